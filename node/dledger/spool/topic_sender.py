"""Sends the messages of one topic in order, one batch at a time.

Created by `producer` for each topic with unfinished messages. In a compacted topic the keys choose
the queue, in one of type PRIORITY the priorities, and a batch is of one: how many queues there are
is learned from the refusal of the first batch of several. From then on the order is that of each
queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from dledger.broker.produce import NO_QUEUE
from dledger.broker.queue_choice import queue_of_record
from dledger.errors import DledgerError, Refused, SeveralQueues, SpoolFull, UnknownTopic
from dledger.spool.circuit_breaker import BATCH_BYTES, BATCH_RECORDS, CircuitBreaker, Route
from dledger.spool.counters import Counts
from dledger.spool.payload import Message
from dledger.spool.worker import Worker
from dledger.types import Appended, Record

_PASSED: Final = 8
"""How many times the size of a batch it may pass messages of other queues."""


class Upstream(Protocol):
    """The broker group, as the producer needs it."""

    async def append(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        """Store one batch, whose records have ids.

        Raises:
            MessageIdConflict: Some messages have ids that other messages used; the rest is stored.
            Refused: Another error in the batch; nothing of it is stored.
            DledgerError: Any other error; the outcome is unknown.
        """

    async def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The outcome of sending a message.

    Attributes:
        message_id: Its idempotency key.
        spooled: True: it is on the local disk and will be replayed. False: the group stored it.
        queue_id: Where the group stored it; None while it is spooled, or waits for its time.
        offset: Its queue offset; likewise.
        recall_handle: If the group holds it until its time: what recalls it (`Client.recall`).
    """

    message_id: str
    spooled: bool
    queue_id: int | None = None
    offset: int | None = None
    recall_handle: str = ""


@dataclass(slots=True)
class Pending:
    """An unfinished message and the future of its result; if that is cancelled, it is not sent."""

    message: Message
    size_bytes: int
    result: asyncio.Future[SendResult]


class TopicSender:
    """Sends one topic's messages; `task` ends when there are none left."""

    def __init__(
        self,
        topic: str,
        *,
        upstream: Upstream,
        worker: Worker,
        gate: CircuitBreaker,
        counts: Counts,
        patience_s: float,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self._topic = topic
        self._upstream, self._worker, self._gate = upstream, worker, gate
        self._counts, self._patience_s = counts, patience_s
        self._pending: deque[Pending] = deque()
        self._limit = self._batch_records = batch_records
        self._own_queues = 0
        self.task: asyncio.Task[None] | None = None

    def put(self, pending: Pending) -> asyncio.Task[None]:
        """Queue a message; return the task that sends it."""
        self._pending.append(pending)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        return self.task

    async def _run(self) -> None:
        batch: list[Pending] = []
        try:
            while self._pending:
                route = self._gate.route(self._topic)
                if route is Route.WAIT:
                    await self._gate.wait()
                elif route is Route.SPOOL:
                    batch = self._take(self._batch_records, one_queue=False)
                    await self._spool(batch)
                else:
                    batch = self._take(self._limit, one_queue=True)
                    await self._direct(batch)
        except BaseException as error:  # no caller may wait forever
            _fail([*batch, *self._pending], error)
            self._pending.clear()
            raise

    def _take(self, limit: int, *, one_queue: bool) -> list[Pending]:
        """Remove and return the next messages, up to the limits of a batch."""
        taken, passed = list[Pending](), list[Pending]()
        size_bytes = queue_id = 0
        while self._pending and len(taken) < limit:
            first = self._pending[0]
            if one_queue:
                its = queue_of(first.message, own_queues=self._own_queues)
                queue_id = its if not taken else queue_id
                if its != queue_id:
                    if len(passed) == self._may_pass:
                        break
                    passed.append(self._pending.popleft())
                    continue
            size_bytes += first.size_bytes
            if taken and size_bytes > BATCH_BYTES:
                break
            self._pending.popleft()
            if not first.result.cancelled():
                taken.append(first)
        self._put_back(passed)
        return taken

    @property
    def _may_pass(self) -> int:
        """How many messages of other queues a batch may pass, at most."""
        return self._own_queues and self._limit * _PASSED

    def _put_back(self, batch: Sequence[Pending]) -> None:
        self._pending.extendleft(reversed(batch))

    async def _direct(self, batch: list[Pending]) -> None:
        if not batch:
            return
        try:
            stored = await self._upstream.append(
                self._topic,
                [pending.message.record for pending in batch],
                queue_id=batch[0].message.queue_id,
                timeout_s=self._patience_s,
            )
        except Refused as error:
            self._refused(batch, error)
        except DledgerError as error:
            self._limit = max(1, len(batch) // 2)
            self._gate.closed(error)
            for pending in batch:
                pending.message = replace(pending.message, tried=True)
            await self._spool(batch)
        else:
            self._stored(batch, stored)

    def _stored(self, batch: Sequence[Pending], stored: Appended) -> None:
        self._gate.opened()
        self._limit = min(self._limit * 2, self._batch_records)
        self._counts.stored += len(batch)
        handles = stored.recall_handles or ("",) * len(batch)
        for pending, offset, handle in zip(batch, stored.offsets, handles, strict=True):
            result = SendResult(
                message_id=pending.message.record.message_id,
                spooled=False,
                queue_id=None if handle else stored.queue_id,
                offset=None if handle else offset,
                recall_handle=handle,
            )
            _settle(pending, result)

    def _refused(self, batch: Sequence[Pending], error: Refused) -> None:
        """Fail a single refused message; halve a larger batch to find the faulty one."""
        if len(batch) == 1 or isinstance(error, UnknownTopic):
            _fail(batch, error)
        elif isinstance(error, SeveralQueues) and error.queues != self._own_queues:
            self._own_queues = error.queues
            self._put_back(batch)
        else:
            self._limit = len(batch) // 2
            self._put_back(batch)

    async def _spool(self, batch: list[Pending]) -> None:
        if not batch:
            return
        try:
            kept = await self._worker.append([pending.message for pending in batch])
        except DledgerError as error:
            _fail(batch, error)
            return
        done, rest = batch[: kept.messages], batch[kept.messages :]
        self._counts.spooled += len(done)
        self._gate.spooled(sum(pending.size_bytes for pending in done))
        for pending in done:
            message_id = pending.message.record.message_id
            _settle(pending, SendResult(message_id=message_id, spooled=True))
        if kept.refusal is not None:
            await self._no_room(rest, kept.refusal)

    async def _no_room(self, rest: Sequence[Pending], refusal: SpoolFull) -> None:
        """Wait while the spool is being replayed; else fail the messages."""
        if self._gate.down:
            _fail(rest, refusal)
        else:
            self._put_back(rest)
            await self._gate.wait()


def queue_of(message: Message, *, own_queues: int) -> int:
    """Return the queue that a message goes to, as far as that is known; -1: it is not.

    *own_queues* is how many queues the topic has if it is known to choose among them, else 0.
    """
    if message.queue_id != NO_QUEUE or not own_queues:
        return message.queue_id
    chosen = queue_of_record(message.record, own_queues)
    return message.queue_id if chosen is None else chosen


def _settle(pending: Pending, result: SendResult) -> None:
    if not pending.result.done():
        pending.result.set_result(result)


def _fail(batch: Sequence[Pending], error: BaseException) -> None:
    for pending in batch:
        if not pending.result.done():
            pending.result.set_exception(error)
