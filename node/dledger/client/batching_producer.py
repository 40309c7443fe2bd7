"""Groups single messages into batches, without a linger time.

An idle queue sends a message at once; a busy one sends what has collected when a batch is answered,
so its batches grow with the load. Exported from `dledger.client`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from dledger.broker.produce import NO_QUEUE
from dledger.broker.topics import check_name
from dledger.client.append_stream import AppendStream
from dledger.client.produce_call import Connect, GrpcConnection
from dledger.common.limits import MAX_MESSAGES, MAX_MESSAGES_UNDER_WAY
from dledger.common.window import Window
from dledger.errors import DledgerError, MessageIdConflict, OutcomeUnknown
from dledger.rpc.checks import check_record
from dledger.types import Appended, Record

_UNDER_WAY: Final = 2
"""Batches of one queue in flight at once: one is synced while the next one is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where a message is stored: queue, queue offset, and the Raft index of its entry."""

    queue_id: int
    offset: int
    index: int


class _Lane:
    """The messages to one queue of one topic, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Record, asyncio.Future[Sent]]] = deque()
        self.under_way = 0

    def take(self, max_bytes: int, max_messages: int) -> list[tuple[Record, asyncio.Future[Sent]]]:
        """Remove and return the next batch: at least one message, and more within the limits."""
        batch = [self.waiting.popleft()]
        size_bytes = len(batch[0][0].body)
        while self.waiting and len(batch) < max_messages:
            size_bytes += len(self.waiting[0][0].body)
            if size_bytes > max_bytes:
                break
            batch.append(self.waiting.popleft())
        return batch


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
        self._stream = AppendStream(
            addresses,
            client_id=client_id,
            max_bytes=2 * max_bytes,
            timeout_s=timeout_s,
            max_messages=max_messages,
            connect=connect,
        )
        self._window, self._batch_bytes = Window(max_bytes), batch_bytes
        self._batch_messages = min(MAX_MESSAGES, max_messages)
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
        while self._tasks:
            await asyncio.wait(self._tasks)
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
        message = Record(body=record) if isinstance(record, bytes) else record
        check_name("topic", topic)
        check_record(message)
        size_bytes = len(message.body)
        await self._window.take(size_bytes)
        try:
            return await self._queued(topic, queue_id, message)
        finally:
            self._window.give(size_bytes)

    def _queued(self, topic: str, queue_id: int, message: Record) -> asyncio.Future[Sent]:
        lane = self._lanes.setdefault((topic, queue_id), _Lane())
        sent: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        lane.waiting.append((message, sent))
        if len(lane.waiting) == 1 and lane.under_way < _UNDER_WAY:
            asyncio.get_running_loop().call_soon(self._begin, topic, queue_id, lane)
        return sent

    def _begin(self, topic: str, queue_id: int, lane: _Lane) -> None:
        """Send the next batch of a lane if it may send one; drop a lane that is empty."""
        if lane.waiting and lane.under_way < _UNDER_WAY:
            lane.under_way += 1
            batch = lane.take(self._batch_bytes, self._batch_messages)
            task = asyncio.ensure_future(self._append(topic, queue_id, lane, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not lane.waiting and not lane.under_way:
            self._lanes.pop((topic, queue_id), None)

    async def _append(
        self,
        topic: str,
        queue_id: int,
        lane: _Lane,
        batch: list[tuple[Record, asyncio.Future[Sent]]],
    ) -> None:
        try:
            appended = await self._stream.append(
                topic, [record for record, _ in batch], queue_id=queue_id
            )
        except MessageIdConflict as error:
            _tell_conflicts(batch, error)
        except DledgerError as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(
                batch, OutcomeUnknown("closed before the group answered; the message may be stored")
            )
            raise
        else:
            _tell(batch, appended)
        finally:
            lane.under_way -= 1
            self._begin(topic, queue_id, lane)


def _tell(
    batch: list[tuple[Record, asyncio.Future[Sent]]],
    appended: Appended,
) -> None:
    """Resolve each message's future with where it is stored, unless it is done already."""
    for (_, sent), offset in zip(batch, appended.offsets, strict=True):
        if not sent.done():
            sent.set_result(Sent(queue_id=appended.queue_id, offset=offset, index=appended.index))


def _tell_conflicts(
    batch: list[tuple[Record, asyncio.Future[Sent]]], conflict: MessageIdConflict
) -> None:
    """Resolve each message's future with its conflict, or with where it is stored."""
    for row in conflict.rows:
        record, sent = batch[row]
        if not sent.done():
            sent.set_exception(MessageIdConflict.of_message(record.message_id))
    if conflict.appended is None:
        _fail(batch, conflict)
    else:
        _tell(batch, conflict.appended)


def _fail(batch: list[tuple[Record, asyncio.Future[Sent]]], error: DledgerError) -> None:
    for _, sent in batch:
        if not sent.done():
            sent.set_exception(error)
