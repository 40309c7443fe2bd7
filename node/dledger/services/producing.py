"""``Ledger.Produce``: one producer's batches as a stream, in order, many under way at once.

A batch arrives encoded and goes into the log as it came. Both ways, as many travel in one message
as are there: gRPC costs by messages. Answers leave in the order of the batches. What is under way
on a stream, and on all of a connection, is bounded (`production`): beyond that the stream is not
read, and HTTP/2 holds the producer back.

A producer sends again, from the oldest on, what was not answered when its stream ended. So the
stream is closed in the moment in which a batch's outcome is unknown, whether or not anybody reads
the answers before it: what was submitted later would be stored in front of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dledger.broker.results import Produced
from dledger.errors import (
    DiskFull,
    DledgerError,
    LeadershipLost,
    MessageIdConflict,
    NotLeader,
    Overloaded,
    RateLimited,
    Refused,
)
from dledger.requests.context import RequestContext
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import parsed
from dledger.rpc.status import bug
from dledger.services.batches import checked_batch

if TYPE_CHECKING:
    from dledger.requests.admission import Request

logger = logging.getLogger(__name__)

_OVERLOAD_PAUSE_S: Final = 0.01
_UNREAD_S: Final = 10.0
"""So long answers may wait for a producer that has sent more than may be unanswered."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch under way: what it takes of the bounds, and the future of what became of it.

    Attributes:
        taken: Whether it was proposed; if not, *result* says why.
    """

    id: int
    size_bytes: int
    messages: int
    result: asyncio.Future[object]
    taken: bool

    def lost(self) -> BaseException | None:
        """Return why the outcome is unknown, if it is; there is a result."""
        error = self.result.exception()
        return None if isinstance(error, Refused) or not self.taken else error


class Producing:
    """One stream: a task that reads and proposes, and answers in order.

    Args:
        context: The node's.
        answered: Told of each answered batch, for the metrics: None, or why it was refused.
        connection: Whose stream it is, as gRPC names it.
    """

    def __init__(
        self,
        context: RequestContext,
        answered: Callable[[DledgerError | None], None],
        connection: str,
    ) -> None:
        self._engine, self._resolver = context.engine, context.resolver
        self._production, self._connection = context.production, connection
        self._bounds = context.config.streams
        self._answered = answered
        self._under_way: deque[_Batch] = deque()
        self._bytes = self._messages = 0
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._closed = self._has_taken = False
        self._error: DledgerError | None = None

    @property
    def has_taken(self) -> bool:
        """Whether a batch was proposed; its outcome may be known."""
        return self._has_taken

    async def answers(self, messages: Callable[[int | None], Request]) -> AsyncIterator[bytes]:
        """Yield the answers to *messages*, until those end, or after one that the disk is full.

        Args:
            messages: Returns the stream's next one, given the size of the one before; it has room
                until its batches are taken.

        Raises:
            DledgerError: What stopped the stream. What is unanswered may be stored: all of it, or
                up to some batch and nothing behind that.
        """
        reader = asyncio.ensure_future(self._read(messages))
        try:
            while True:
                answers = self._take_answers()
                if answers:
                    yield pb.ProduceAnswers(answers=answers).SerializeToString()
                elif self._under_way or not self._closed:
                    await self._changed.wait()
                    self._changed.clear()
                else:
                    break
            if self._error is not None:
                raise self._error
        finally:
            reader.cancel()
            self._drop()

    # -- in --------------------------------------------------------------------------------------

    async def _read(self, messages: Callable[[int | None], Request]) -> None:
        size_bytes = None
        try:
            while not self._closed:
                message = messages(size_bytes)
                async with message as raw:
                    if message.ended:
                        return
                    size_bytes = len(raw)
                    batches = parsed(pb.ProduceBatches, raw).batches
                    del raw  # a second copy of the batches, while they wait for room
                    await self._take_all(batches)
                    del batches
        except DledgerError as error:
            self._error = self._error or error
        except Exception as error:
            logger.exception("group %s: Produce failed", self._engine.group)
            self._error = self._error or bug(error)
        finally:
            self._close()

    async def _take_all(self, batches: Iterable[pb.ProduceBatch]) -> None:
        for batch in batches:
            await self._take(batch)
            if self._closed:
                return

    async def _take(self, batch: pb.ProduceBatch) -> None:
        """Propose one batch when there is room for it; a refused one is answered in its turn."""
        command, messages, producer = batch.command, 0, ""
        refused: DledgerError | None = None
        try:
            checked = checked_batch(command)
            messages, producer = checked.count, checked.client_id
            await self._resolver.topic(checked.topic)
        except (Refused, RateLimited) as error:
            refused = error
        while not self._closed and self._is_full(len(command), messages):
            await self._make_room()
        if self._closed:
            return
        try:
            result = await self._submitted(command, producer) if refused is None else None
        except DiskFull as error:
            refused = error
            self._close()
        if refused is not None:
            result = asyncio.get_running_loop().create_future()
            result.set_exception(refused)
        if result is not None:
            taken = _Batch(batch.id, len(command), messages, result, taken=refused is None)
            self._under_way.append(taken)
            self._bytes += len(command)
            self._messages += messages
            result.add_done_callback(lambda _: self._done(taken))

    async def _make_room(self) -> None:
        """Wait until something was answered. Raises Overloaded if nobody takes the answers."""
        self._room.clear()
        try:
            async with asyncio.timeout(_UNREAD_S):
                await self._room.wait()
        except TimeoutError:
            if self._under_way and self._under_way[0].result.done():
                raise Overloaded("the stream's answers are not read") from None

    async def _submitted(self, command: bytes, producer: str) -> asyncio.Future[object] | None:
        """Propose *command* when there is room, and nothing before; None: it is too late."""
        room = await self._production.room(self._connection, len(command))
        result = None
        try:
            while result is None and not self._closed:
                try:
                    result = self._engine.submit(command, line=self._connection, producer=producer)
                except Overloaded:
                    await asyncio.sleep(_OVERLOAD_PAUSE_S)
        finally:
            if result is None:
                room.give()
        if result is not None:
            self._has_taken = True
            result.add_done_callback(lambda _: room.give())
        return result

    def _is_full(self, size_bytes: int, messages: int) -> bool:
        bounds, count = self._bounds, len(self._under_way)
        return count > 0 and (
            count >= bounds.max_batches
            or self._bytes + size_bytes > bounds.max_bytes
            or self._messages + messages > bounds.max_messages
        )

    # -- out -------------------------------------------------------------------------------------

    def _done(self, batch: _Batch) -> None:
        """Take nothing more once an outcome is unknown, also while nobody takes the answers."""
        if not batch.result.cancelled() and (error := batch.lost()) is not None:
            self._error = self._reason(error)
            self._close()
        self._changed.set()

    def _take_answers(self) -> list[pb.ProduceAnswer]:
        """Return the answers to the oldest batches whose outcome is known."""
        answers: list[pb.ProduceAnswer] = []
        while self._under_way and (oldest := self._under_way[0]).result.done():
            if oldest.lost() is not None:
                self._drop()
                break
            self._under_way.popleft()
            self._bytes -= oldest.size_bytes
            self._messages -= oldest.messages
            answers.append(_answer(oldest))
            self._answered(_error_of(oldest))
        self._room.set()
        return answers

    def _reason(self, error: BaseException) -> DledgerError:
        """Return what the stream ends with after such an outcome of a batch."""
        if isinstance(error, LeadershipLost):
            leader = self._engine.leader()
            return NotLeader(leader.id if leader is not None else None)
        return error if isinstance(error, DledgerError) else bug(error)

    def _close(self) -> None:
        """Take nothing more; what is under way is still answered."""
        self._closed = True
        self._room.set()
        self._changed.set()

    def _drop(self) -> None:
        """Answer nothing more; what is not in the log yet does not come into it."""
        for batch in self._under_way:
            batch.result.cancel()
        self._under_way.clear()


def _error_of(batch: _Batch) -> DledgerError | None:
    """Return why a batch, or some of its messages, was refused."""
    error = batch.result.exception()
    if error is None and (stored := _stored(batch)).conflicts:
        return MessageIdConflict.of(stored.conflicts)
    return error if isinstance(error, DledgerError) else None


def _stored(batch: _Batch) -> Produced:
    stored = batch.result.result()
    if not isinstance(stored, Produced):
        raise TypeError(f"PRODUCE answered {stored!r}")
    return stored


def _answer(batch: _Batch) -> pb.ProduceAnswer:
    error = _error_of(batch)
    if isinstance(error, DiskFull):
        return pb.ProduceAnswer(id=batch.id, disk_full=str(error))
    if error is not None and not isinstance(error, MessageIdConflict):
        return pb.ProduceAnswer(id=batch.id, refused=str(error))
    stored = _stored(batch)
    in_a_row = isinstance(stored.offsets, range)
    return pb.ProduceAnswer(
        id=batch.id,
        queue_id=stored.queue_id,
        first_offset=stored.offsets[0],
        offsets=() if in_a_row else stored.offsets,
        index=stored.index,
        conflicts=stored.conflicts,
    )
