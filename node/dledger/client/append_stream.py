"""Sends batches to the leader over one stream: in order, pipelined, each stored exactly once.

Batches that are unanswered when a stream ends are sent again on the next one, oldest first, with
the same message ids. The group stores those that it does not have yet, so nothing is reordered or
stored twice in a failover. Single records that wait share batches (`joining`); if the answer to
such a batch does not say what became of each, its records are sent again, each by itself. Exported
from `dledger.client`; used by `batching_producer`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import cycle, islice
from typing import Final, Self

import grpc.aio
from google.protobuf.message import DecodeError

from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.checks.names import check_name
from dledger.client.joining import Lanes, columns_of, encode, joinable, size_of, taken_apart
from dledger.client.message_ids import MessageIds
from dledger.client.produce_call import Connect, GrpcConnection
from dledger.client.unanswered import Batch, Call, Unanswered
from dledger.common.backoff import Backoff
from dledger.common.limits import MAX_MESSAGES_UNDER_WAY
from dledger.errors import DiskFull, DledgerError, InvalidArgument, NotLeader, Unavailable
from dledger.rpc.cancelled import is_cancelled
from dledger.rpc.channel import leader_address, nodes_of, nothing_taken, outcome_of
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Appended, Record

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_PATIENCE: Final = 4
"""How many rounds to avoid a node that knew no leader: others may name it as leader for a while."""
_ENOUGH_BYTES: Final = 256 << 10
_MAX_BATCHES: Final = 64
"""The limits of one gRPC message, because the leader handles it without yielding its event loop."""
_SILENCE_S: Final = 0.4
"""How long an answer may take before the other nodes are asked who leads."""


class _Foreign(Exception):
    """The answers are not those of a node."""


class AppendStream:
    """Appends batches through the leader, whichever node that is.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        client_id: The scope of the idempotency keys; generated if empty.
        max_bytes: The limit of unanswered bytes; `append` waits while it is reached.
        timeout_s: How long a batch may stay unanswered.
        max_messages: The limit of unanswered messages for each topic; at most 32,768, because a
            failover could store more of them twice (docs/internals/message-format.md).
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
        timeout_s: float = 30.0,
        max_messages: int = MAX_MESSAGES_UNDER_WAY,
        connect: Connect = GrpcConnection,
    ) -> None:
        if not 1 <= max_messages <= MAX_MESSAGES_UNDER_WAY:
            raise InvalidArgument(
                f"1 to {MAX_MESSAGES_UNDER_WAY} messages may be unanswered, not {max_messages}"
            )
        self._addresses = nodes_of(addresses, for_what="stream")
        self.client_id = client_id or f"dledger-py-{uuid.uuid4()}"
        self._ids = MessageIds()
        self._lanes = Lanes(self.client_id, self._released, max_bytes=_ENOUGH_BYTES)
        self._timeout_s = timeout_s
        self._connect = connect
        self._window = Unanswered(max_bytes=max_bytes, max_messages=max_messages)
        self._unsent: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()
        self._batches = self._streams = self._answers = 0
        self._leaderless = ""
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the stream. Unanswered batches fail: with `OutcomeUnknown` if they were sent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._fail_all(Unavailable("the stream was closed before the group had answered"))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all batches if the task failed by a bug: nothing will be sent any more."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the stream ended by an internal error", exc_info=error)
            self._fail_all(Unavailable(f"the stream ended by an internal error: {error!r}"))

    @property
    def unanswered_bytes(self) -> int:
        """The bytes of unanswered batches; at most *max_bytes*, or one larger batch."""
        return self._window.taken_bytes

    async def append(
        self, topic: str, records: Iterable[Record | bytes], *, queue_id: int = NO_QUEUE
    ) -> Appended:
        """Append one batch to one queue; return once a majority has synced it.

        Batches are stored in the order of these calls, even of those that wait for room; there is
        no need to await one before the next. That order is one of each queue: records that are
        appended singly and wait together travel together, ahead of what is for other queues. Each
        caller is told of its own record only. With queue -1 what travels together is stored in
        one queue. In a compacted topic that is the queue of their keys: single records travel with
        those of the same queue.

        Raises:
            MessageIdConflict: Some messages have ids that other messages used; the error says
                which, and where the rest is stored.
            SeveralQueues: The topic is compacted, and the keys are of several of its queues: append
                one batch for each (`queue_of_key`); nothing of it is stored.
            Refused: Other errors in the batch; nothing of it is stored.
            DiskFull: The group's disks are full; nothing of it is stored.
            RateLimited: The leader takes no more of this now; nothing of it is stored.
            OutcomeUnknown: No leader answered within the timeout, the stream was closed, or the
                group accepts no more; the batch may be stored now or later.
            Unavailable: Likewise, but the batch was not sent: it is not stored.
        """
        given = list(records)
        if not given:
            raise InvalidArgument("a batch needs at least one record")
        if len(given) == 1 and self._lanes.has_lane(topic, queue_id):
            record = joinable(given[0])
            if record is not None:
                size_bytes = size_of(record)
                call = Call(topic, queue_id, count=1, size_bytes=size_bytes, record=record)
                return await self._answer(call)
        check_name("topic", topic)
        columns = columns_of(given, self._ids)
        command = encode_produce(columns, client_id=self.client_id, topic=topic, queue_id=queue_id)
        call = Call(topic, queue_id, count=len(given), size_bytes=len(command))
        return await self._answer(call, command)

    async def _answer(self, call: Call, command: bytes = b"") -> Appended:
        """Send a call when there is room, with a batch of its own if it has a *command*."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        if not self._window.take_now(call):
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._window.take(call)
            except TimeoutError:
                raise Unavailable(f"no answer within {self._timeout_s:g} s") from None
        if self._task is not None and self._task.done():
            self._window.give(call)
            raise Unavailable("the stream is closed; the batch was not sent")
        if command:
            batch = Batch(call.topic, call.queue_id)
            batch.add(call)
            batch.command = command
            self._lanes.close(call.topic, call.queue_id)
            self._released(batch)
        else:
            self._lanes.add(call)
        timer = loop.call_at(deadline_s, call.expire, self._timeout_s)
        try:
            return await call.appended
        finally:
            timer.cancel()

    def _released(self, batch: Batch) -> None:
        """Send a batch when it is its turn."""
        self._batches += 1
        batch.id = self._batches
        self._unsent.append(batch)
        self._arrived.set()

    def _left(self, batch: Batch) -> None:
        """Free the room of a batch that is not unanswered any more, and its place in its lane."""
        self._window.give(batch)
        if batch.lane is not None:
            self._lanes.left(batch)

    # -- the stream ------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a stream to the leader open, trying the nodes in turn.

        If a node names the leader, that is tried next. The task sleeps only after as many streams
        without an answer as there are nodes, so that a failover is not delayed by a sleep.
        """
        count, nodes = len(self._addresses), cycle(self._addresses)
        address, in_vain, backoff = next(nodes), 0, Backoff(_RETRY_S, _RETRY_MAX_S)
        while True:
            answers = self._answers
            leader = await self._one_stream(address)
            self._unsent.extendleft(reversed(self._sent))
            self._sent.clear()
            if self._answers > answers:
                in_vain = 0
                backoff.reset()
            in_vain += 1
            if in_vain > _PATIENCE * count:
                self._leaderless = ""
            if not leader or leader in (address, self._leaderless):
                others = (n for n in islice(nodes, count) if n not in (address, self._leaderless))
                leader = next(others, address)
            address = leader
            if in_vain % max(2, count) == 0:
                await asyncio.sleep(backoff.next_s())

    async def _one_stream(self, address: str) -> str:
        """Hold one stream until it ends; return the leader's address if the node knew one."""
        async with self._connect(address) as connection:
            self._streams += 1
            call = connection.produce(self._requests(self._streams))
            moved = asyncio.ensure_future(self._leader_elsewhere(address))
            moved.add_done_callback(lambda _: call.cancel())
            try:
                async for raw in call:
                    for answer in pb.ProduceAnswers.FromString(raw).answers:
                        self._answered(answer)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                return moved.result() if moved.done() else ""
            except grpc.aio.AioRpcError as error:
                outcome, leader = outcome_of(error, address), leader_address(error)
                self._note(outcome, harmless=int(nothing_taken(error)))
                if isinstance(outcome, NotLeader) and not leader:
                    self._leaderless = address
                return leader
            except (_Foreign, DecodeError) as error:
                logger.warning("%s does not answer as a node does: %s", address, error)
            finally:
                self._streams += 1
                self._arrived.set()
                moved.cancel()
                call.cancel()
        return ""

    async def _leader_elsewhere(self, address: str) -> str:
        """Return the new leader's address, once *address* stops answering and is not the leader.

        A node that is frozen or partitioned does not close the connection; only other nodes can
        tell. A leader that is only slow is still named by them, and its stream is kept.
        """
        others = cycle([node for node in self._addresses if node != address] or [address])
        while True:
            oldest = self._sent[0] if self._sent else None
            await asyncio.sleep(_SILENCE_S)
            if oldest is None or not self._sent or self._sent[0] is not oldest:
                continue
            leader = await _leader_at(next(others), self._connect)
            if leader not in ("", address):
                return leader

    async def _requests(self, stream: int) -> AsyncIterator[bytes]:
        """Yield requests while *stream* is the newest: gRPC may ask for more after its end."""
        while stream == self._streams:
            while stream == self._streams and (request := self._next_request()):
                yield request
            self._arrived.clear()
            await self._arrived.wait()

    def _next_request(self) -> bytes:
        """Return one gRPC message of unsent batches, within its limits; empty if there are none.

        gRPC asks for it once the previous one was sent, so on a busy stream it holds many batches.
        """
        parts: list[bytes] = []
        count = size_bytes = 0
        while self._unsent and count < _MAX_BATCHES and size_bytes < _ENOUGH_BYTES:
            batch = self._unsent.popleft()
            if not self._is_wanted(batch):
                self._left(batch)
                continue
            batch.streams += 1
            self._sent.append(batch)
            parts += batch.parts()
            count += 1
            size_bytes += batch.size_bytes
        return b"".join(parts)

    def _is_wanted(self, batch: Batch) -> bool:
        """Encode a batch that still may be joined; return whether any caller waits for it."""
        if batch.command:
            return batch.is_awaited
        for call in batch.without_abandoned():
            self._window.give(call)
        if batch.calls:
            encode(batch, self._ids, self.client_id)
        return bool(batch.calls)

    def _answered(self, answer: pb.ProduceAnswer) -> None:
        if not self._sent or self._sent[0].id != answer.id:
            raise _Foreign(f"an answer to batch {answer.id}, which is not the next one")
        self._answers += 1
        if answer.disk_full:
            self._streams += 1  # later batches go to the next stream
            self._fail_all(DiskFull(answer.disk_full), harmless=1)
            return
        batch = self._sent.popleft()
        if answer.key_queues:
            self._lanes.learn(batch.topic, answer.key_queues)
        if batch.settle(answer):
            self._left(batch)
        else:
            self._take_apart(batch, stopped=answer.stopped)

    def _take_apart(self, batch: Batch, *, stopped: bool) -> None:
        """Send the records of a batch again, each by itself.

        Either all of it is stored, and each is told where by an answer of its own; or nothing of
        it is stored, nor of any batch behind it: the stream has *stopped*, and order is kept.
        """
        if stopped:
            self._streams += 1  # later batches go to the next stream
            for each in (batch, *self._sent):
                each.streams -= 1
            self._unsent.extendleft(reversed(self._sent))
            self._sent.clear()
        parts = taken_apart(batch, self._ids, self.client_id)
        for part in parts:
            self._batches += 1
            part.id, part.streams = self._batches, batch.streams
        self._unsent.extendleft(reversed(parts))
        self._lanes.left(batch, len(parts))
        self._arrived.set()

    def _note(self, error: DledgerError, *, harmless: int) -> None:
        """Fail every batch unless a retry may help; *harmless* as for `_fail_all`."""
        if isinstance(error, Unavailable):
            logger.debug("stream ended: %s", error)
            for batch in self._sent:
                batch.streams -= harmless
        else:
            self._fail_all(error, harmless=harmless)

    def _fail_all(self, error: DledgerError, *, harmless: int = 0) -> None:
        """Fail every batch; *harmless* is 1 if the current stream stored no unanswered batch."""
        failures = [(batch, batch.failure(error, harmless=harmless)) for batch in self._sent]
        failures += [(batch, batch.failure(error)) for batch in self._unsent]
        failures += [(batch, error) for batch in self._lanes.drained()]
        self._sent.clear()
        self._unsent.clear()
        for batch, failure in failures:
            batch.fail(failure)
            self._left(batch)


async def _leader_at(address: str, connect: Connect = GrpcConnection) -> str:
    """Return the leader's address as the node at *address* knows it; empty if unknown."""
    async with connect(address) as connection:
        try:
            async for _ in connection.produce(_nothing(), timeout_s=_SILENCE_S):
                pass
        except grpc.aio.AioRpcError as error:
            return leader_address(error)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return ""
    return address  # it accepts batches


async def _nothing() -> AsyncIterator[bytes]:
    """Yield no requests."""
    for request in tuple[bytes, ...]():
        yield request
