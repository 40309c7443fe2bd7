"""``Ledger.Produce``: a producer's batches as a stream, in order, many in flight at a time.

A batch arrives encoded and enters the log unchanged. In both directions one gRPC message carries
all batches or answers that are ready, because gRPC's cost is per message. Answers are sent in the
order of the batches. The batches in flight are bounded per stream and per connection
(`production`): beyond that the stream is not read, and HTTP/2 flow control holds the producer back.

When its stream ends, a producer resends everything unanswered, oldest first. So the stream is
closed as soon as a batch's outcome is unknown, even if earlier answers are still unread: otherwise
a later batch could be stored before the resent one. For the same reason it ends when a batch of
several callers' messages is refused for one of them, or because their topic has them in several
queues: its producer sends them again. And it ends when a rule for every request refuses a batch:
whether that was sent before, on a stream that was lost, only its producer knows, and "refused"
would say of it that it is not stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from dledger.broker.held_refs import HELD_QUEUE
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import Produced
from dledger.broker.topics import DELAY
from dledger.calls.rules import Asked
from dledger.errors import (
    DiskFull,
    DledgerError,
    IllegalGroup,
    IllegalKey,
    LeadershipLost,
    MessageIdConflict,
    NotLeader,
    Overloaded,
    RateLimited,
    Refused,
    SeveralQueues,
    TopicTypeMismatch,
)
from dledger.requests.context import RequestContext
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import parsed
from dledger.rpc.status import Rejected, bug
from dledger.services.batches import checked_batch, kind_of_batch, prepare
from dledger.services.held_responses import places_of, recall_handles

if TYPE_CHECKING:
    from dledger.calls.admission import Request

logger = logging.getLogger(__name__)

_OF_SOME: Final = (IllegalKey, IllegalGroup, Rejected, SeveralQueues, TopicTypeMismatch)
"""What a batch of several callers is refused for though it may fit some of them."""
_OVERLOAD_PAUSE_S: Final = 0.01
_UNREAD_S: Final = 10.0
"""How long answers may stay unread by a producer at its limit of unanswered batches."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch in flight: what it counts towards the bounds, and the future of its result.

    Attributes:
        taken: Whether it was proposed; if not, *result* says why.
        stops: Whether the stream ends with its answer, because messages of other callers are in it.
        ids: If they may be held: the messages' ids, which their recall handles have.
    """

    id: int
    size_bytes: int
    messages: int
    result: asyncio.Future[object]
    taken: bool
    stops: bool = False
    ids: Sequence[bytes] = ()

    def lost(self) -> BaseException | None:
        """Return why the outcome is unknown, if it is; call once *result* is done."""
        error = self.result.exception()
        return None if isinstance(error, Refused | DiskFull) or not self.taken else error


class Producing:
    """One stream: a task that reads and proposes batches, and answers them in order.

    Args:
        context: The node's request context.
        answered: Called for each answered batch, for the metrics: with None, or the refusal.
        connection: The stream's connection, as gRPC names it.
        ask: Returns what the rules are to be asked by, about one batch; None: there are none.
    """

    def __init__(
        self,
        context: RequestContext,
        answered: Callable[[DledgerError | None], None],
        connection: str,
        ask: Callable[[], Asked | None] = lambda: None,
    ) -> None:
        self._engine, self._resolver = context.engine, context.resolver
        self._production, self._connection = context.production, connection
        self._unpacking, self._host = context.unpacking, connection.rpartition(":")[0]
        self._bounds = context.config.streams
        self._answered, self._ask = answered, ask
        self._under_way: deque[_Batch] = deque()
        self._bytes = self._messages = 0
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._closed = self._in_doubt = False
        self._error: DledgerError | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether a batch may be stored that is not answered; once the answers have ended."""
        return self._in_doubt

    async def answers(self, messages: Callable[[int | None], Request]) -> AsyncGenerator[bytes]:
        """Yield the answers to *messages* until they end, or until an answer says DiskFull.

        Args:
            messages: Returns the stream's next message, given the size of the previous one; it
                holds its room until its batches are proposed.

        Raises:
            DledgerError: Why the stream stopped. Unanswered batches may be stored: all of them, or
                all up to some batch and none after it.
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
                    del raw  # free this second copy of the batches while they wait for room
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
        """Propose one batch when there is room; the rules are asked about each."""
        asked = self._ask()
        result: asyncio.Future[object] | None = None
        try:
            result = await self._propose(batch, asked)
        except DledgerError as error:
            if asked is not None:
                asked.tell_refusal(error)
            raise
        finally:
            if asked is not None and result is None:
                asked.leave()
        if asked is not None and result is not None:
            result.add_done_callback(partial(_over, asked))

    async def _propose(
        self, batch: pb.ProduceBatch, asked: Asked | None
    ) -> asyncio.Future[object] | None:
        """Propose a batch, and return what gets its result; a refused one is answered in order.

        None: the stream closed first. Raises what a rule refuses it with.
        """
        command, messages, producer = batch.command, 0, ""
        ids: Sequence[bytes] = ()
        refused: DledgerError | None = None
        stops = False
        try:
            checked = await self._check(command)
        except Refused as error:
            refused, stops = error, batch.joined
        else:
            messages, producer = checked.count, checked.client_id
            if asked is not None:
                asked.admit(calls=0, messages=messages, size_bytes=len(command))
            command, refused = await self._for_topic(command, checked)
            ids = checked.message_ids() if checked.typed is not None else ()
            stops = batch.joined and isinstance(refused, _OF_SOME)
        while not self._closed and self._is_full(len(command), messages):
            await self._make_room()
        if self._closed:
            return None
        if stops:
            self._close()
        try:
            result = await self._submitted(command, producer) if refused is None else None
        except DiskFull as error:
            refused = error
            self._close()
        if refused is not None:
            result = asyncio.get_running_loop().create_future()
            result.set_exception(refused)
        if result is not None:
            taken = _Batch(batch.id, len(command), messages, result, refused is None, stops, ids)
            self._under_way.append(taken)
            self._bytes += len(command)
            self._messages += messages
            result.add_done_callback(lambda _: self._done(taken))
        return result

    async def _check(self, command: bytes) -> ProduceFrame:
        """Return what a batch says, once that is believed. Raises Refused."""
        checked = checked_batch(command)
        if packed := checked.packed_bodies():
            await self._unpacking.check(packed, self._host, may_refuse=False)
        return checked

    async def _for_topic(
        self, command: bytes, batch: ProduceFrame
    ) -> tuple[bytes, DledgerError | None]:
        """Return a batch as it may be proposed, and why nothing of it can be stored, if so.

        Its topic is made if that is allowed.
        """
        try:
            is_typed = batch.typed is not None
            topic = await self._resolver.topic(batch.topic, kind=kind_of_batch(batch))
            if (topics := self._engine.state.topics).full:
                topics.check_takes(batch.topic)
            if topic.type == DELAY.name:
                await self._resolver.secret()  # before: nothing is to be held without a handle
            return prepare(command, topic, self._engine, is_typed=is_typed), None
        except (Refused, RateLimited, DiskFull) as error:
            return command, error

    async def _make_room(self) -> None:
        """Wait until a batch is answered. Raises Overloaded if the answers stay unread."""
        self._room.clear()
        try:
            async with asyncio.timeout(_UNREAD_S):
                await self._room.wait()
        except TimeoutError:
            if self._under_way and self._under_way[0].result.done():
                raise Overloaded("the stream's answers are not read") from None

    async def _submitted(self, command: bytes, producer: str) -> asyncio.Future[object] | None:
        """Propose *command* once there is room, in order; None if the stream closed first."""
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
        """Accept no more batches once an outcome is unknown, even if answers stay unread."""
        if not batch.result.cancelled() and (error := batch.lost()) is not None:
            self._lose(error)
        self._changed.set()

    def _lose(self, error: BaseException) -> None:
        """End the stream: a batch's outcome is unknown."""
        self._error, self._in_doubt = self._reason(error), True
        self._close()

    def _take_answers(self) -> list[pb.ProduceAnswer]:
        """Return the answers to the oldest batches whose outcome is known."""
        answers: list[pb.ProduceAnswer] = []
        while self._under_way and (oldest := self._under_way[0]).result.done():
            if (error := oldest.lost()) is not None:
                self._lose(error)  # before `_done`, in the turn in which its client half-closes
                self._drop()
                break
            self._under_way.popleft()
            self._bytes -= oldest.size_bytes
            self._messages -= oldest.messages
            answers.append(_answer(oldest, self._engine.state.secret))
            self._answered(refusal := _error_of(oldest))
            if isinstance(refusal, DiskFull):  # what is behind it waited for room as well
                self._close()
                self._drop()
        self._room.set()
        return answers

    def _reason(self, error: BaseException) -> DledgerError:
        """Return the error that ends the stream after a batch failed with *error*."""
        if isinstance(error, LeadershipLost):
            leader = self._engine.leader()
            return NotLeader(leader.id if leader is not None else None)
        return error if isinstance(error, DledgerError) else bug(error)

    def _close(self) -> None:
        """Accept no more batches; those in flight are still answered."""
        self._closed = True
        self._room.set()
        self._changed.set()

    def _drop(self) -> None:
        """Answer nothing more; batches that are not in the log yet are cancelled."""
        for batch in self._under_way:
            batch.result.cancel()
        self._under_way.clear()


def _over(asked: Asked, result: asyncio.Future[object]) -> None:
    """Give back what the rules let a batch have, and tell them if it was refused."""
    error = None if result.cancelled() else result.exception()
    if isinstance(error, DledgerError):
        asked.tell_refusal(error)
    asked.leave()


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


def _answer(batch: _Batch, secret: bytes) -> pb.ProduceAnswer:
    error = _error_of(batch)
    if isinstance(error, DiskFull):
        return pb.ProduceAnswer(id=batch.id, disk_full=str(error))
    if error is not None and not isinstance(error, MessageIdConflict):
        queues = error.queues if isinstance(error, SeveralQueues) else 0
        return pb.ProduceAnswer(
            id=batch.id, refused=str(error), stopped=batch.stops, key_queues=queues
        )
    stored = _stored(batch)
    is_held = bool(batch.ids) and HELD_QUEUE in stored.queue_ids
    queue_id, offsets = places_of(stored) if is_held else (stored.queue_id, stored.offsets)
    in_a_row = isinstance(offsets, range)
    return pb.ProduceAnswer(
        id=batch.id,
        queue_id=queue_id,
        first_offset=offsets[0],
        offsets=() if in_a_row else offsets,
        index=stored.index,
        conflicts=stored.conflicts,
        recall_handles=recall_handles(stored, batch.ids, secret) if is_held else (),
    )
