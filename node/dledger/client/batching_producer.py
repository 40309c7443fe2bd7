"""Sends single messages, each checked before, within a limit of their bodies.

They share batches as those of an `AppendStream` do (`joining`): an idle queue sends a message at
once; a busy one sends what has collected when a batch is answered, so its batches grow with the
load. Exported from `dledger.client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dledger.broker.produce import NO_QUEUE
from dledger.checks.messages import check_body, check_record
from dledger.checks.names import check_name
from dledger.client.append_stream import AppendStream
from dledger.client.joining import Lanes
from dledger.client.produce_call import Connect, GrpcConnection
from dledger.common.limits import MAX_MESSAGES_UNDER_WAY
from dledger.common.window import Window
from dledger.errors import MessageIdConflict
from dledger.types import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where a message is stored: queue, queue offset, and the Raft index of its entry.

    One that waits for its time is in no queue yet (-1), and has a *recall_handle*.
    """

    queue_id: int
    offset: int
    index: int
    recall_handle: str = ""


class _Stream(AppendStream):
    """A stream of single messages that were checked, with a limit of its own for their batches."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        client_id: str,
        max_bytes: int,
        batch_bytes: int,
        timeout_s: float,
        max_messages: int,
        connect: Connect,
    ) -> None:
        super().__init__(
            addresses,
            client_id=client_id,
            max_bytes=max_bytes,
            timeout_s=timeout_s,
            max_messages=max_messages,
            connect=connect,
        )
        self._lanes = Lanes(self.client_id, self._released, max_bytes=batch_bytes)


class BatchingProducer:
    """Sends single messages as efficiently as batches.

    Messages to one queue of a topic are stored in the order of `send`, exactly once, even in a
    failover. With queue -1 the leader distributes batches over the topic's queues.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        client_id: The scope of the idempotency keys; generated if empty.
        max_bytes: The limit of unanswered bodies; `send` waits while it is reached.
        batch_bytes: The limit of bodies in one batch; a larger message is a batch of its own.
        timeout_s: How long a batch may stay unanswered.
        max_messages: The limit of unanswered messages for each topic, as for `AppendStream`.
        connect: Connects to a node.

    Raises:
        InvalidArgument: There is no address, or *max_messages* is out of range.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        client_id: str = "",
        max_bytes: int = 32 << 20,
        batch_bytes: int = 256 << 10,
        timeout_s: float = 30.0,
        max_messages: int = MAX_MESSAGES_UNDER_WAY,
        connect: Connect = GrpcConnection,
    ) -> None:
        self._stream = _Stream(
            addresses,
            client_id=client_id,
            max_bytes=2 * max_bytes,
            batch_bytes=batch_bytes,
            timeout_s=timeout_s,
            max_messages=max_messages,
            connect=connect,
        )
        self._window = Window(max_bytes)
        self._sends = 0
        self._idle = asyncio.Event()

    @property
    def client_id(self) -> str:
        """The scope of the idempotency keys."""
        return self._stream.client_id

    @property
    def unanswered_bytes(self) -> int:
        """The bytes of unanswered bodies; at most *max_bytes*, or one larger message."""
        return self._window.taken

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait until all messages are answered or timed out, then end the stream."""
        while self._sends:
            self._idle.clear()
            await self._idle.wait()
        await self._stream.close()

    async def send(self, topic: str, record: Record | bytes, *, queue_id: int = NO_QUEUE) -> Sent:
        """Send one message; return once a majority has synced it.

        There is no need to await one call before the next: call it from many tasks, or gather.

        Raises:
            MessageIdConflict: Another message used its id; it is not stored.
            Refused: Another error in the message; it is not stored.
            DiskFull: The group's disks are full; it is not stored.
            OutcomeUnknown: No leader answered within the timeout, or the group accepts no more; it
                may be stored now or later.
            Unavailable: Likewise, but it was not sent: it is not stored.
        """
        check_name("topic", topic)
        if isinstance(record, bytes):
            size_bytes, message_id = len(record), ""
            check_body(record)
        else:
            size_bytes, message_id = len(record.body), record.message_id
            check_record(record)
        self._sends += 1
        try:
            if not self._window.take_now(size_bytes):
                await self._window.take(size_bytes)
            try:
                appended = await self._stream.append(topic, (record,), queue_id=queue_id)
            except MessageIdConflict:
                raise MessageIdConflict.of_message(message_id) from None
            finally:
                self._window.give(size_bytes)
        finally:
            self._sends -= 1
            if not self._sends:
                self._idle.set()
        return Sent(
            queue_id=appended.queue_id,
            offset=appended.offsets[0],
            index=appended.index,
            recall_handle=next(iter(appended.recall_handles), ""),
        )
