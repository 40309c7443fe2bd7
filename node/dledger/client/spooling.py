"""The public producer with a spool: messages go to any node, or wait on the local disk.

Connects `dledger.spool`, which knows no transport, to the group; exported from `dledger.client`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from dledger.checks.messages import check_record
from dledger.checks.names import check_name
from dledger.client.ledger_client import Client
from dledger.common.backoff import retry
from dledger.errors import CorruptSpool, MessageRejected, Unavailable
from dledger.rpc.channel import nodes_of
from dledger.spool.blocking import BlockingProducer
from dledger.spool.payload import Message
from dledger.spool.producer import DEFAULT_MAX_BYTES, DEFAULT_PATIENCE_S, Producer
from dledger.types import Appended, Record

_RETRY_S: Final = 0.1


class SpoolingProducer(Producer):
    """A producer that accepts messages even while the whole group is down.

    While the group accepts writes, messages go to it directly. While it does not, they are written
    to the local disk and synced before `send` returns. They are replayed in order, with their ids,
    when the group accepts writes again: nothing is lost or stored twice. See
    ``docs/outage-spool.md``.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        directory: The spool's own directory, on a local disk; one process uses it at a time.
        max_bytes: The limit of disk space for the spool.
        patience_s: How long the group is tried before a message is spooled.
        client_id: For a new spool; generated if empty. An existing spool keeps its own.
        report: Called for damage and for rejected messages, which are also logged.

    Raises:
        InvalidArgument: There is no address, or *max_bytes* is too small.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        directory: str | Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        patience_s: float = DEFAULT_PATIENCE_S,
        client_id: str = "",
        report: Callable[[CorruptSpool | MessageRejected], None] = lambda _: None,
    ) -> None:
        nodes = nodes_of(addresses, for_what="producer")
        super().__init__(
            Path(directory),
            lambda client_id: AnyNode([Client(node, client_id=client_id) for node in nodes]),
            check=_check_message,
            max_bytes=max_bytes,
            patience_s=patience_s,
            client_id=client_id,
            report=report,
        )

    def blocking(self) -> BlockingProducer:
        """Return a blocking version, for programs without an event loop; a context manager."""
        return BlockingProducer(self)


def _check_message(message: Message) -> None:
    """Refuse what a node would refuse, by the same rules: after an outage it is too late."""
    check_name("topic", message.topic)
    check_record(message.record)


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
        """Append one batch, retrying until *timeout_s*. Raises like `Client.append_once`."""
        attempt_s = timeout_s / len(self._nodes)

        async def attempt(left_s: float) -> Appended:
            chosen = self._current
            try:
                return await self._nodes[chosen].append_once(
                    topic, records, queue_id=queue_id, timeout_s=min(attempt_s, left_s)
                )
            except Unavailable:
                if self._current == chosen:
                    self._current = (chosen + 1) % len(self._nodes)
                raise

        return await retry(attempt, timeout_s=timeout_s, pause_s=_RETRY_S)

    async def close(self) -> None:
        """Close the connections."""
        for node in self._nodes:
            await node.close()
