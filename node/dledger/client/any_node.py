"""The group as a `SpoolingProducer` has it: whichever node takes a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from dledger.errors import Unavailable
from dledger.types import Appended, Record

_RETRY_S: Final = 0.1


class OneNode(Protocol):
    """A node; `dledger.client.Client` is one."""

    async def append_once(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Append one batch in a single attempt. Raises as `Client.append_once`."""

    async def close(self) -> None:
        """Close the connection."""


class AnyNode:
    """Appends through one node, and through the next one when that fails."""

    def __init__(self, nodes: Sequence[OneNode]) -> None:
        self._nodes = nodes
        self._current = 0

    async def append(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Append one batch, trying until *timeout_s*. Raises as `Client.append_once` does."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        attempt_s = timeout_s / len(self._nodes)
        while True:
            chosen = self._current
            left_s = max(0.1, deadline_s - loop.time())
            try:
                return await self._nodes[chosen].append_once(
                    topic, records, queue_id=queue_id, timeout_s=min(attempt_s, left_s)
                )
            except Unavailable:
                if self._current == chosen:
                    self._current = (chosen + 1) % len(self._nodes)
                if loop.time() + _RETRY_S >= deadline_s:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Close the connections."""
        for node in self._nodes:
            await node.close()
