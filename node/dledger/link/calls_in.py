"""The end that serves calls: they come from the other end, to handlers, and their answers go back.

Handlers notice no difference: each call has the form that `door.task_calls` gives it in process,
and this is what carries it (`door.call.Carrier`). Who is gone has given up its calls.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dledger.calls.service import Resumed
from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.door.bounds import Bounds
from dledger.door.call import Call, OneMessage
from dledger.door.contract import (
    Answer,
    Arrival,
    BidiStream,
    Cancel,
    Code,
    Fail,
    Failed,
    Handler,
    Handlers,
    Headers,
    Pairs,
    Unary,
)
from dledger.door.grpc_format import framed
from dledger.door.task_calls import call_of
from dledger.link import frames
from dledger.link.connection import Link
from dledger.link.frames import OF_NO_CALL, Kind, MalformedFrame, Resumes

LARGEST_FRAME_BYTES: Final = 2 * MAX_CLIENT_FRAME_BYTES
"""A client's largest message with its call's headers, or as a command, whose columns take more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPort:
    """One client port as this end knows it.

    Attributes:
        handlers: By path.
        resumed: By path, for methods whose calls come in batches, too.
    """

    handlers: Handlers
    resumed: Mapping[str, Resumed]


_links: Final = itertools.count(1)


class CallsIn:
    """Of one link.

    Args:
        ports: What is served, in the order of its ports.
        methods: The paths that an OPEN frame names by number.
        bounds: What streams may have under way.
        same_clock: Whether deadlines come as times of this machine's clock; else as seconds left.
        on_lost: Called once the link is closed, with the reason.
    """

    def __init__(
        self,
        ports: Sequence[ServedPort],
        methods: Sequence[str],
        bounds: Bounds,
        *,
        same_clock: bool,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ports, self._methods, self._bounds = ports, methods, bounds
        self._same_clock, self._on_lost = same_clock, on_lost
        self._loop = asyncio.get_running_loop()
        self._number = next(_links)
        self._calls: dict[int, Call] = {}
        self._rooms: dict[Call, asyncio.Future[None]] = {}
        self._tasks = set[asyncio.Task[None]]()
        self.link = Link(
            self._receive,
            on_malformed=self._reject,
            on_turn=self._turn,
            on_lost=self._lost,
            max_bytes=LARGEST_FRAME_BYTES,
        )

    def __len__(self) -> int:
        return len(self._calls)

    # -- frames ----------------------------------------------------------------------------------

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case Kind.OPEN:
                self._open(number, frames.opening_of(payload))
            case Kind.MESSAGE | Kind.HALF_CLOSE | Kind.CREDIT | Kind.CANCEL:
                call = self._calls.get(number)
                if call is not None:  # else it has ended meanwhile
                    self._go_on(call, kind, payload)
            case Kind.REJECTED:
                self._give_up(frames.rejected_of(payload), number)
            case _:
                raise MalformedFrame(f"this version knows no frame of kind {kind}")

    def _reject(self, kind: int, number: int, why: MalformedFrame) -> None:
        """Refuse a frame, and with it no more than the call that it is about."""
        self._give_up(kind, number)
        self.link.reject(kind, number, why)

    def _give_up(self, kind: int, number: int) -> None:
        """Give up the call of a frame that one of the ends has not read."""
        call = self._calls.get(number) if kind < OF_NO_CALL else None
        if call is not None:
            self._over(call)
            call.drop()

    def _turn(self) -> None:
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

    def _go_on(self, call: Call, kind: int, payload: bytes) -> None:
        match kind:
            case Kind.CANCEL:
                frames.check_empty(payload)
                self._over(call)
                call.drop()
            case Kind.CREDIT:
                call.taken += frames.credit_of(payload)
                if call.taken > call.queued:
                    raise MalformedFrame(f"{call.taken} of {call.queued} bytes were taken")
                self._wake()
            case _ if isinstance(call, OneMessage) or call.ended:
                raise MalformedFrame("a message after the last")
            case Kind.MESSAGE:
                self._deliver(call, frames.message_of(payload))
            case _:
                frames.check_empty(payload)
                call.end()

    def _deliver(self, call: Call, message: bytes) -> None:
        """Give a stream its message; its size has been judged already. Raises MalformedFrame.

        The other end sends no more than a stream's window before something is read, but for a
        message that is larger than that.
        """
        unread = call.unconsumed
        if unread >= self._bounds.stream_window_bytes:
            raise MalformedFrame(f"a stream has {unread} unread bytes")
        call.unconsumed += len(message)
        try:
            call.data(framed(message), self._loop.time())
        except Failed as error:
            raise MalformedFrame(f"the other end let pass: {error}") from error

    # -- what calls ask for (`door.call.Carrier`) --------------------------------------------------

    def answer(self, call: Call, message: bytes) -> None:
        """Send a call's one answer."""
        self._end(call, frames.message(Kind.ANSWER, call.stream_id, message))

    def send(self, call: Call, message: bytes) -> None:
        """Send one answer of many; a client that is too far behind loses the call."""
        unsent = call.queued - call.taken
        if unsent and unsent + len(message) > self._bounds.unsent_bytes:
            self.fail(call, Code.RESOURCE_EXHAUSTED, "the client does not read")
            call.drop()
            return
        call.queued += len(message)
        self.link.send(frames.message(Kind.MESSAGE, call.stream_id, message))

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
        """Let the other end send on; *size_bytes* has gRPC's prefix, which the link has not."""
        size_bytes -= len(framed(b""))
        call.unconsumed -= size_bytes
        if not call.over:
            self.link.send(frames.credit(call.stream_id, size_bytes))

    def prove(self, call: Call, arrival: Arrival) -> None:
        """Tell nothing: who passes answers on confirms them (`requests.passing_on`)."""
        del call
        self._loop.call_soon(arrival.lost)

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
        self._give_up_all()
        self._on_lost(why)

    def _give_up_all(self) -> None:
        """Give up all that the other end had under way: who asked is gone with it."""
        for call in tuple(self._calls.values()):
            self._over(call)
            call.drop()


def _resuming(port: ServedPort, path: str, handler: Handler, resumes: Resumes) -> Handler:
    serve = port.resumed.get(path)
    if serve is None:
        raise MalformedFrame(f"{path} is in no batch")
    asked, unknown = resumes is not Resumes.NOTHING_DONE, resumes is Resumes.UNKNOWN

    def resume(headers: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel:
        return serve(headers, body, answer, fail, asked, unknown)

    return Unary(resume, max_request_bytes=handler.max_request_bytes)
