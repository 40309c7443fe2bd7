"""A producer that accepts messages while its group does not accept writes.

Independent of the transport; applications use it as `dledger.client.SpoolingProducer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from dledger.errors import CorruptSpool, InvalidArgument, Refused
from dledger.files.files import Files, RealFiles
from dledger.spool.circuit_breaker import BATCH_RECORDS, CircuitBreaker
from dledger.spool.counters import Counts, SpoolCounters, counters_of
from dledger.spool.format import record_size
from dledger.spool.opening import limits_of, open_spool
from dledger.spool.payload import Message, encode_message
from dledger.spool.rejected import Rejected
from dledger.spool.replay import Replay, Report
from dledger.spool.requeue import take_up
from dledger.spool.spool import Spool
from dledger.spool.topic_sender import Pending, SendResult, TopicSender, Upstream
from dledger.spool.worker import Worker
from dledger.types import Record

DEFAULT_MAX_BYTES: Final = 1 << 30
DEFAULT_PATIENCE_S: Final = 2.0
MAX_PENDING_BYTES: Final = 64 << 20
"""The limit of unfinished messages in memory; senders wait while it is reached."""


class Producer:
    """Sends messages; spools them while the group does not accept writes.

    Args:
        directory: The spool's own directory.
        connect: Connects to the group with a client id.
        check: Raises Refused for a message that the group would refuse.
        max_bytes: The limit of disk space for the spool.
        patience_s: How long the group is tried before a message is spooled.
        client_id: For a new spool; generated if empty.
        report: Called for damage and for rejected messages, which are also logged.
        files: The file system.
        batch_records: The limit of messages in one batch. At most one batch of a topic is sent
            again, so this must be far below the number of ids that the group remembers.
    """

    def __init__(
        self,
        directory: Path,
        connect: Callable[[str], Upstream],
        *,
        check: Callable[[Message], None] = lambda _: None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        patience_s: float = DEFAULT_PATIENCE_S,
        client_id: str = "",
        report: Report = lambda _: None,
        files: Files | None = None,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self._batch_records = batch_records
        self.directory = directory
        self._connect, self._check, self._report = connect, check, report
        self._limits, self._patience_s = limits_of(max_bytes), patience_s
        self._client_id = client_id
        self._files = files or RealFiles()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dledger-spool")
        self._counts = Counts()
        self._lanes: dict[str, TopicSender] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = _Room(MAX_PENDING_BYTES, self._put)
        self._open = False

    async def open(self) -> None:
        """Open the spool and start to replay it.

        Raises:
            DirectoryLocked: Another process uses the directory.
            WrongIdentity: The spool has another client id.
            Unsupported: A later version wrote it.
            StorageError: The disk failed; DiskFull: it has no room for a new spool.
            InvalidArgument: A sidecar's messages wait in it.
        """
        loop = asyncio.get_running_loop()
        try:
            spool = await loop.run_in_executor(self._executor, self._open_spool)
        except BaseException:
            self._executor.shutdown(wait=False)
            raise
        self._upstream = self._connect(spool.client_id)
        self._worker = Worker(self._executor, spool)
        self._gate = CircuitBreaker(spool)
        self._replay = Replay(
            upstream=self._upstream,
            worker=self._worker,
            gate=self._gate,
            counts=self._counts,
            report=self._report,
            batch_records=self._batch_records,
        )
        self._replay.report_damage()
        self._replaying = asyncio.create_task(self._replay.run())
        self._open = True

    def _open_spool(self) -> Spool:
        spool = open_spool(
            self._files, self.directory, limits=self._limits, client_id=self._client_id
        )
        if len(spool.lanes):
            spool.close()
            raise InvalidArgument(
                f"{self.directory} is the spool of a sidecar (dledger spool run): its messages are "
                "of other clients"
            )
        take_up(spool, of_lanes=False)
        return spool

    async def close(self) -> None:
        """Finish the messages in progress and stop; spooled messages stay for the next start.

        Raises:
            StorageError: The disk failed.
        """
        if not self._open:
            return
        self._open = False
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._replaying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._replaying
        try:
            await self._worker.run(self._worker.spool.close)
        finally:
            self._executor.shutdown(wait=False)
            await self._upstream.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, topic: str, record: Record | bytes, *, queue_id: int = -1) -> SendResult:
        """Send one message; return once a majority, or the local disk, has synced it.

        Messages of one topic are stored in the order of these calls; in a compacted topic those
        of one queue are, so those of one key. Concurrent calls share batches and syncs. A cancelled
        call may or may not have sent its message.

        Args:
            topic: The topic.
            record: The message or just its body; it gets an id if it has none.
            queue_id: The queue; -1 lets the leader choose.

        Raises:
            Refused: The message is invalid, or the group refuses it.
            SpoolFull: The group does not accept writes and the spool has no room. The message is
                not spooled, but the group may have stored it: send it again with its id.
            StorageError: The local disk failed while the group does not accept writes; likewise.
        """
        message = self._message(topic, record, queue_id)
        size_bytes = record_size(len(encode_message(message)))
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._room.enter(Pending(message=message, size_bytes=size_bytes, result=result))
        return await result

    async def send_batch(
        self, topic: str, records: Iterable[Record | bytes], *, queue_id: int = -1
    ) -> tuple[SendResult, ...]:
        """Send several messages of a topic in order, each like `send`; return their results.

        Raises the error of the first message that failed; others may have been accepted.
        """
        sends = [self.send(topic, record, queue_id=queue_id) for record in records]
        results = await asyncio.gather(*sends, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return tuple(result for result in results if isinstance(result, SendResult))

    def _message(self, topic: str, record: Record | bytes, queue_id: int) -> Message:
        if not self._open:
            raise Refused("the producer is not open")
        if isinstance(record, bytes):
            record = Record(body=record)
        record = replace(
            record,
            message_id=record.message_id or uuid.uuid4().hex,
            born_at_ms=record.born_at_ms or time.time_ns() // 1_000_000,
        )
        message = Message(topic=topic, record=record, queue_id=queue_id)
        self._check(message)
        return message

    def _put(self, pending: Pending) -> None:
        topic = pending.message.topic
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = TopicSender(
                topic,
                upstream=self._upstream,
                worker=self._worker,
                gate=self._gate,
                counts=self._counts,
                patience_s=self._patience_s,
                batch_records=self._batch_records,
            )
        task = lane.put(pending)
        if task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._finished(topic, done))

    def _finished(self, topic: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        lane = self._lanes.get(topic)
        if lane is not None and lane.task is task:
            del self._lanes[topic]

    async def drained(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is spooled; False after *timeout_s*, or if the disk failed."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._worker.spool.waiting and not self._gate.broken:
                    await self._gate.wait()
        except TimeoutError:
            return False
        return not self._worker.spool.waiting

    @property
    def client_id(self) -> str:
        """The scope of the message ids; it never changes while the spool exists."""
        return self._worker.spool.client_id

    @property
    def spooling(self) -> bool:
        """Whether messages wait on the local disk."""
        return self._worker.spool.waiting > 0

    @property
    def damage(self) -> tuple[CorruptSpool, ...]:
        """The damage found since the producer was opened."""
        return tuple(self._worker.spool.damage)

    async def rejected(self) -> tuple[Rejected, ...]:
        """Return the messages in ``rejected/``, with the group's reasons, from the disk."""
        return await self._worker.run(self._worker.spool.read_rejected)

    def counters(self) -> SpoolCounters:
        """Return the producer's counters. Any thread may call this."""
        return counters_of(
            self._counts,
            self._worker.spool,
            limit_bytes=self._limits.max_bytes,
            degraded=self._gate.down,
        )


class _Room:
    """Admits messages, first come, first served, while the unfinished ones are within a limit."""

    def __init__(self, size_bytes: int, admit: Callable[[Pending], None]) -> None:
        self._free_bytes = size_bytes
        self._admit = admit
        self._waiting: deque[Pending] = deque()

    def enter(self, pending: Pending) -> None:
        """Admit a message, now or when others are finished."""
        self._waiting.append(pending)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._free_bytes > 0:
            pending = self._waiting.popleft()
            if not pending.result.cancelled():
                self._free_bytes -= pending.size_bytes
                pending.result.add_done_callback(partial(self._leave, pending.size_bytes))
                self._admit(pending)

    def _leave(self, size_bytes: int, _: asyncio.Future[SendResult]) -> None:
        self._free_bytes += size_bytes
        self._let_in()
