"""``Admin.WatchStatus``: a node's status as a stream, in place of a caller's asking each second.

A stream waits for its reader: what changes meanwhile is not kept, only the newest status is sent.
Used by `admin`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Protocol

from dledger.common.status import NodeStatus, without_counters
from dledger.errors import Overloaded, Unavailable

MAX_STREAMS: Final = 8
"""More are refused: the operator has one, and another while a new operator takes over."""
HEARTBEAT_S: Final = 1.0
"""A leader's stream is never silent for longer: who reads it knows that it still leads."""
LOOK_S: Final = 0.1
"""Changes other than of role, leader and members are looked for this often."""


class Watched(Protocol):
    """The node."""

    def status(self) -> NodeStatus:
        """Return the node's view of itself and its group."""

    async def wait_change(self, timeout_s: float) -> None:
        """Return when role, leader or members change, or after *timeout_s*."""


class StatusStreams:
    """The open streams of one node.

    Args:
        node: Whose status it is.
        monotonic_s: The clock of the heartbeats.
    """

    def __init__(self, node: Watched, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._monotonic_s = monotonic_s
        self._closing = False
        self.open = 0

    def close(self) -> None:
        """End all streams within `LOOK_S`, and refuse new ones."""
        self._closing = True

    async def follow(self) -> AsyncGenerator[NodeStatus | None, None]:
        """Yield the status now and whenever it is news; None: a leader's heartbeat.

        Raises:
            Overloaded: There are `MAX_STREAMS` already.
            Unavailable: The node stops.
        """
        if self._closing:
            raise Unavailable("this node is stopping")
        if self.open >= MAX_STREAMS:
            raise Overloaded(f"{MAX_STREAMS} callers watch this node already")
        self.open += 1
        try:
            told: NodeStatus | None = None
            spoke_s = self._monotonic_s()
            while not self._closing:
                status = self._node.status()
                news = without_counters(status)
                if news != told:
                    told, spoke_s = news, self._monotonic_s()
                    yield status
                elif status.role == "leader" and self._monotonic_s() - spoke_s >= HEARTBEAT_S:
                    spoke_s = self._monotonic_s()
                    yield None
                await self._node.wait_change(LOOK_S)
        finally:
            self.open -= 1
