"""The node's end of one link: calls and batches from a door, to handlers, and their answers back.

Handlers notice no difference: each call has the form that `door.task_calls` gives it in process,
and this is what carries it (`door.call.Carrier`). A door that is gone has given up its calls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from dledger.calls.service import Resumed
from dledger.common.limits import MAX_CLIENT_FRAME_BYTES, MAX_UNCONFIRMED_ANSWERS
from dledger.door.bounds import Bounds
from dledger.door.call import Call, OneMessage
from dledger.door.contract import (
    Arrival,
    BidiStream,
    Cancel,
    Code,
    Failed,
    Handler,
    Handlers,
    Headers,
    Pairs,
    TooLarge,
    Unary,
)
from dledger.door.grpc_format import framed
from dledger.door.task_calls import call_of
from dledger.door_process import frames
from dledger.door_process.frames import AckBatch, Arrives, Kind, MalformedFrame, Resumes, SendBatch
from dledger.door_process.link import Link

logger = logging.getLogger(__name__)

_LARGEST_FRAME_BYTES: Final = 2 * MAX_CLIENT_FRAME_BYTES
"""A client's largest message with its call's headers, or as a command, whose columns take more."""
_LARGEST_PATH: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPort:
    """One client port as the node's end knows it.

    Attributes:
        handlers: By path.
        resumed: By path, for methods whose calls come in batches, too.
    """

    handlers: Handlers
    resumed: Mapping[str, Resumed]


Outcome: TypeAlias = Sequence[int] | bytes | Resumes
"""Of a batch: a number for each message, the one answer to all calls, or why they come singly."""
Settle: TypeAlias = Callable[[Outcome], None]


class Batches(Protocol):
    """Carries out batches on the leader, without awaiting anything."""

    def leads(self) -> bool:
        """Whether batches make sense now."""
        ...

    def send(self, batch: SendBatch, settle: Settle) -> Cancel:
        """Store messages; *settle* gets their offsets. Raises MalformedFrame."""
        ...

    def ack(self, batch: AckBatch, settle: Settle) -> Cancel:
        """Acknowledge messages; *settle* gets a `frames.Acked` for each handle."""
        ...


_links: Final = itertools.count(1)


class NodeEnd:
    """Of one door process.

    Args:
        ports: What the door serves, in the order of its ports.
        methods: The paths that an OPEN frame names by number.
        batches: Carries out batches.
        bounds: What streams may have under way.
        same_clock: Whether deadlines come as times of this machine's clock; else as seconds left.
        on_ready: Called when the door serves its ports.
        on_pong: Called with the number of each PING that it answers.
        on_lost: Called once the link is closed, with the reason.
    """

    def __init__(
        self,
        ports: Sequence[ServedPort],
        methods: Sequence[str],
        batches: Batches,
        bounds: Bounds,
        *,
        same_clock: bool = True,
        on_ready: Callable[[], None] = lambda: None,
        on_pong: Callable[[int], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ports, self._methods, self._batches, self._bounds = ports, methods, batches, bounds
        self._same_clock = same_clock
        self._on_ready, self._on_pong, self._on_lost = on_ready, on_pong, on_lost
        self._loop = asyncio.get_running_loop()
        self._number = next(_links)
        self._calls: dict[int, Call] = {}
        self._under_way: dict[int, Cancel] = {}
        self._resuming = set[int]()
        self._arrivals: dict[int, Arrival] = {}
        self._rooms: dict[Call, asyncio.Future[None]] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._leads: bool | None = None
        self.link = Link(
            self._receive,
            on_turn=self._turn,
            on_lost=self._lost,
            max_bytes=_LARGEST_FRAME_BYTES,
        )

    def __len__(self) -> int:
        return len(self._calls) + len(self._under_way)

    def tell(self) -> None:
        """Tell the door whether this node leads, if that has changed."""
        leads = self._batches.leads()
        if leads is not self._leads:
            self._leads = leads
            self.link.send(frames.packed(Kind.LEADS, leads))

    # -- frames ----------------------------------------------------------------------------------

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case Kind.SEND:
                self._send_batch(number, frames.sending_of(payload))
            case Kind.ACK:
                batch = frames.acking_of(payload)
                self._begin(number, partial(self._batches.ack, batch), Kind.ACKED)
            case Kind.OPEN:
                self._open(number, frames.opening_of(payload))
            case Kind.SETTLED:
                self._resuming.discard(number)
            case Kind.PONG:
                self._on_pong(number)
            case Kind.READY:
                self._on_ready()
            case Kind.REFUSED:
                self._count_refusal(number, payload)
            case Kind.ARRIVAL:
                self._arrives(number, frames.arriving_of(payload))
            case Kind.MESSAGE | Kind.HALF_CLOSE | Kind.CREDIT | Kind.CANCEL:
                self._of_one(kind, number, payload)
            case _:
                raise MalformedFrame(f"a door sends no frame of kind {kind}")

    def _turn(self) -> None:
        self.tell()
        if self._rooms:
            self._wake()

    def _open(self, number: int, opening: frames.Opening) -> None:
        if number in self._calls or opening.port >= len(self._ports):
            raise MalformedFrame(f"call {number} at port {opening.port} cannot begin")
        if opening.method >= len(self._methods):
            raise MalformedFrame(f"there is no method {opening.method}")
        port, path = self._ports[opening.port], self._methods[opening.method]
        handler = port.handlers[path]
        if isinstance(handler, BidiStream) is (opening.body is not None):
            raise MalformedFrame(f"{path} with a body: {opening.body is not None}")
        if opening.resumes:
            handler = _resuming(port, path, handler, opening.resumes)
        headers = Headers(
            opening.pairs,
            dict(opening.pairs),
            peer=opening.peer,
            connection=self._number << 48 | opening.connection,
            deadline_s=self._deadline_s(opening.deadline_s),
        )
        call = self._calls[number] = call_of(self, number, headers, handler, self._loop.time())
        if isinstance(call, OneMessage):
            call.ended = True
            try:
                call.start(opening.body or b"")
            except Failed as error:
                self.fail(call, error.code, error.message, error.trailers)

    def _deadline_s(self, told_s: float | None) -> float | None:
        return told_s if told_s is None or self._same_clock else self._loop.time() + told_s

    def _of_one(self, kind: int, number: int, payload: bytes) -> None:
        """Go on with a call, or give up a batch; either may have ended meanwhile."""
        call = self._calls.get(number)
        if call is not None:
            self._go_on(call, kind, payload)
        elif kind == Kind.CANCEL and number in self._under_way:
            self._under_way.pop(number)()

    def _go_on(self, call: Call, kind: int, payload: bytes) -> None:
        match kind:
            case Kind.CANCEL:
                self._over(call)
                call.drop()
                self._arrives(call.stream_id, Arrives.LOST)
            case Kind.CREDIT:
                call.taken += frames.credit_of(payload)
                if call.taken > call.queued:
                    raise MalformedFrame(f"{call.taken} of {call.queued} bytes were taken")
                self._wake()
            case _ if isinstance(call, OneMessage) or call.ended:
                raise MalformedFrame("a message after the last")
            case Kind.MESSAGE:
                self._deliver(call, payload)
            case _:
                call.end()

    def _arrives(self, number: int, arrives: Arrives) -> None:
        """Tell what became of a call's answers; of those that nobody asks for, nobody."""
        if arrives is Arrives.MOVES:
            if (arrival := self._arrivals.get(number)) is not None:
                arrival.moves()
        elif (arrival := self._arrivals.pop(number, None)) is not None:
            if arrives is Arrives.PROVED:
                arrival.proved()
            else:
                arrival.lost()

    def _deliver(self, call: Call, message: bytes) -> None:
        """Give a stream its message; the door has judged its size already. Raises MalformedFrame.

        The door sends no more than a stream's window before something is read, but for a message
        that is larger than that.
        """
        unread = call.unconsumed
        if unread >= self._bounds.stream_window_bytes:
            raise MalformedFrame(f"a stream has {unread} unread bytes")
        call.unconsumed += len(message)
        try:
            call.data(framed(message), self._loop.time())
        except Failed as error:
            raise MalformedFrame(f"the door let pass: {error}") from error

    def _count_refusal(self, number: int, payload: bytes) -> None:
        """Count an answer that the door has made as the handler would have."""
        if number >= len(self._methods) or len(payload) > _LARGEST_PATH or not payload:
            raise MalformedFrame(f"no refusal: {number}")
        refusal = self._ports[0].handlers[self._methods[number]].refusal
        if refusal is None:
            return
        why = payload[1:].decode("utf-8", "replace")
        try:
            refusal(TooLarge(why) if payload[0] else Failed(Code.RESOURCE_EXHAUSTED, why))
        except Failed:
            return

    # -- batches ---------------------------------------------------------------------------------

    def _send_batch(self, number: int, batch: SendBatch) -> None:
        """Carry out a batch, unless one before it of its connection was not: they keep their order.

        That ends when the door says that what was passed on instead is over (SETTLED).
        """
        connection = batch.connection
        if connection in self._resuming:
            self.link.send(frames.packed(Kind.RESUME, number, bytes((Resumes.NOTHING_DONE,))))
            return
        self._begin(number, partial(self._batches.send, batch), Kind.PLACES, connection)

    def _begin(
        self,
        number: int,
        begin: Callable[[Settle], Cancel],
        kind: Kind,
        connection: int | None = None,
    ) -> None:
        if number in self._under_way:
            raise MalformedFrame(f"batch {number} is under way")
        self._under_way[number] = _nothing
        cancel = begin(partial(self._settle, number, kind, connection))
        if number in self._under_way:
            self._under_way[number] = cancel

    def _settle(self, number: int, kind: Kind, connection: int | None, outcome: Outcome) -> None:
        if self._under_way.pop(number, None) is None or self.link.closed:
            return
        if isinstance(outcome, Resumes):
            if connection is not None:
                self._resuming.add(connection)
            self.link.send(frames.packed(Kind.RESUME, number, bytes((outcome,))))
        elif isinstance(outcome, bytes):
            self.link.send(frames.packed(Kind.SAME, number, outcome))
        elif kind is Kind.PLACES:
            self.link.send(frames.packed(kind, number, frames.offsets(outcome)))
        else:
            self.link.send(frames.packed(kind, number, bytes(outcome)))

    # -- what calls ask for (`door.call.Carrier`) --------------------------------------------------

    def answer(self, call: Call, message: bytes) -> None:
        """Send a call's one answer."""
        self._end(call, frames.packed(Kind.ANSWER, call.stream_id, message))

    def send(self, call: Call, message: bytes) -> None:
        """Send one answer of many; a client that is too far behind loses the call."""
        unsent = call.queued - call.taken
        if unsent and unsent + len(message) > self._bounds.unsent_bytes:
            self.fail(call, Code.RESOURCE_EXHAUSTED, "the client does not read")
            call.drop()
            return
        call.queued += len(message)
        self.link.send(frames.packed(Kind.MESSAGE, call.stream_id, message))

    async def room(self, call: Call) -> None:
        """Wait until the client has taken most of a call's answers, and the link is not full."""
        while not call.over and self._is_full(call):
            turn = self._rooms[call] = self._loop.create_future()
            try:
                await turn
            finally:
                self._rooms.pop(call, None)

    def finish(self, call: Call) -> None:
        """Send the end of a call that succeeded."""
        self._end(call, frames.packed(Kind.END, call.stream_id))

    def fail(self, call: Call, code: Code, message: str, trailers: Pairs = ()) -> None:
        """Send the end of a call that failed."""
        failure = frames.Failure(code, message, trailers)
        self._end(call, frames.failing(call.stream_id, failure))

    def consumed(self, call: Call, size_bytes: int) -> None:
        """Let the door send on; *size_bytes* has gRPC's prefix, which the link has not."""
        size_bytes -= len(framed(b""))
        call.unconsumed -= size_bytes
        if not call.over:
            self.link.send(frames.credit(call.stream_id, size_bytes))

    def prove(self, call: Call, arrival: Arrival) -> None:
        """Have the door tell what becomes of a call's answers; of too many, the oldest are lost."""
        self._arrivals[call.stream_id] = arrival
        if len(self._arrivals) > MAX_UNCONFIRMED_ANSWERS:
            self._arrives(next(iter(self._arrivals)), Arrives.LOST)
        self.link.send(frames.packed(Kind.PROVE, call.stream_id))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a handler."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end(self, call: Call, frame: bytes) -> None:
        self._over(call)
        self.link.send(frame)

    def _over(self, call: Call) -> None:
        call.over = True
        self._calls.pop(call.stream_id, None)
        waiting = self._rooms.get(call)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _is_full(self, call: Call) -> bool:
        return self.link.full or call.queued - call.taken > self._bounds.unsent_stream_bytes

    def _wake(self) -> None:
        for call, turn in tuple(self._rooms.items()):
            if not turn.done() and (call.over or not self._is_full(call)):
                turn.set_result(None)

    # -- the end ---------------------------------------------------------------------------------

    def _lost(self, why: str) -> None:
        """Give up all that the door had under way: its clients are gone with it."""
        for call in tuple(self._calls.values()):
            self._over(call)
            call.drop()
        under_way, self._under_way = self._under_way, {}
        for cancel in under_way.values():
            cancel()
        for number in tuple(self._arrivals):
            self._arrives(number, Arrives.LOST)
        self._resuming.clear()
        self._on_lost(why)


def _resuming(port: ServedPort, path: str, handler: Handler, resumes: Resumes) -> Handler:
    serve = port.resumed.get(path)
    if serve is None:
        raise MalformedFrame(f"{path} is in no batch")
    unknown = resumes is Resumes.UNKNOWN
    resume = partial(serve, asked=resumes is not Resumes.NOTHING_DONE, unknown=unknown)
    return Unary(resume, max_request_bytes=handler.max_request_bytes)


def _nothing() -> None:
    """Give up what is not begun."""
