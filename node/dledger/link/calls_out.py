"""The end that passes calls on: each goes to the other end, and its answers come back."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, TypeAlias

from dledger.common.limits import MAX_PEER_FRAME_BYTES
from dledger.door.bounds import Bounds
from dledger.door.contract import Answer, Cancel, Code, Fail, Failed, Headers, Stream
from dledger.errors import NotTaken
from dledger.link import frames
from dledger.link.connection import Link
from dledger.link.frames import OF_NO_CALL, Kind, MalformedFrame, Resumes
from dledger.rpc.error_table import ERROR_KEY

_LARGEST_FRAME_BYTES: Final = MAX_PEER_FRAME_BYTES
"""As of an answer to a gRPC call between nodes."""

Where: TypeAlias = tuple[int, int]
"""The numbers of a port, and of a method."""
_NOT_TAKEN: Final = ((ERROR_KEY.encode(), NotTaken.__name__.encode()),)


class _Call:
    """A call of one message that the other end has."""

    __slots__ = ("answer", "fail", "method", "over")

    def __init__(
        self, method: int, answer: Answer, fail: Fail, over: Callable[[], None] | None
    ) -> None:
        self.method, self.answer, self.fail, self.over = method, answer, fail, over


class StreamOut:
    """A call of many messages that the other end has.

    Attributes:
        method: The number of its method.
        client: Whose call it is, and who looks again when something has come; None: `next` does.
        credit_bytes: How much may be sent now.
        over: Whether the other end has ended it, or it has failed.
        failure: How, if it has failed.
        on_taken: Called when the other end has read something.
    """

    __slots__ = (
        "_messages",
        "_turn",
        "client",
        "credit_bytes",
        "failure",
        "method",
        "on_taken",
        "over",
    )

    def __init__(self, method: int, credit_bytes: int, client: Stream | None) -> None:
        self.method, self.client = method, client
        self._messages: deque[bytes] | None = None  # of very many streams that wait none has any
        self.credit_bytes = credit_bytes
        self.over = False
        self.on_taken: Callable[[], None] = _nothing
        self.failure: Failed | None = None
        self._turn: asyncio.Future[None] | None = None

    def add(self, message: bytes) -> None:
        """Add an answer behind the others."""
        if self._messages is None:
            self._messages = deque()
        self._messages.append(message)

    def take(self) -> bytes | None:
        """Return the next answer; None: there is none now. Raises Failed, after the last."""
        if self._messages is not None:
            message = self._messages.popleft()
            if not self._messages:
                self._messages = None
            return message
        if self.failure is not None:
            raise self.failure
        return None

    async def next(self) -> bytes | None:
        """Return the next answer; None: the other end has ended the call. Raises Failed."""
        while (message := self.take()) is None and not self.over:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        return message

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        if self.client is not None:
            self.client.go_on()


class CallsOut:
    """Of one link.

    Args:
        on_lost: Called once the link is closed, with the reason.
        on_rejected: Called with the number of a method if a frame of a call of it was not read, by
            either end, before that call fails.

    Attributes:
        bounds: What streams may have under way.
    """

    def __init__(
        self,
        *,
        on_lost: Callable[[str], None],
        on_rejected: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.bounds, self._on_rejected = Bounds(), on_rejected
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._streams: dict[int, StreamOut] = {}
        self.link = Link(
            self._receive,
            on_malformed=self._reject,
            on_turn=self._turn,
            on_lost=on_lost,
            max_bytes=_LARGEST_FRAME_BYTES,
        )

    def begin(
        self,
        where: Where,
        headers: Headers,
        body: bytes,
        answer: Answer,
        fail: Fail,
        *,
        resumes: Resumes = Resumes.NO,
        over: Callable[[], None] | None = None,
    ) -> Cancel:
        """Pass a call of one message on; *over* is called when it has ended in any way."""
        number = next(self._numbers)
        self._calls[number] = _Call(where[1], answer, fail, over)
        self._open(number, where, headers, body, resumes)
        return partial(self._give_up, number)

    def fail_all(self, why: Failed) -> None:
        """End all calls: no answer will come."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._fail_call(call, why)
        self.fail_streams(why)

    def fail_streams(self, why: Failed) -> None:
        """End those of many messages."""
        for number, stream in self._streams.items():
            if not stream.over:
                self.link.send(frames.packed(Kind.CANCEL, number))
                stream.over, stream.failure = True, why
                stream.wake()

    def _open(
        self,
        number: int,
        where: Where,
        headers: Headers,
        body: bytes | None,
        resumes: Resumes = Resumes.NO,
    ) -> None:
        opening = frames.Opening(
            *where,
            resumes,
            headers.connection,
            headers.deadline_s,
            headers.peer,
            headers.pairs,
            body,
        )
        self.link.send(frames.opening(number, opening))

    def _give_up(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            self.link.send(frames.packed(Kind.CANCEL, number))
            if call.over is not None:
                call.over()

    # -- streams ---------------------------------------------------------------------------------

    async def answers(
        self,
        where: Where,
        headers: Headers,
        body: bytes,
        on_taken: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[bytes]:
        """Pass a call of one message for many on; yield the answers. Raises Failed.

        *on_taken* is called when the other end has read that message, and maybe again.
        """
        number, call = self._opened(where, headers)
        call.on_taken = on_taken
        self.link.send(frames.message(Kind.MESSAGE, number, body))
        self.link.send(frames.packed(Kind.HALF_CLOSE, number))
        async with aclosing(self._received(number, call)) as messages:
            async for message in messages:
                yield message

    def _opened(
        self, where: Where, headers: Headers, client: Stream | None = None
    ) -> tuple[int, StreamOut]:
        number = next(self._numbers)
        call = self._streams[number] = StreamOut(where[1], self.bounds.stream_window_bytes, client)
        self._open(number, where, headers, None)
        return number, call

    async def _received(self, number: int, call: StreamOut) -> AsyncGenerator[bytes]:
        """Yield the answers; each counts as taken when the next is asked for."""
        try:
            while (message := await call.next()) is not None:
                yield message
                self.note_taken(number, call, message)
        finally:
            self.leave(number, call)

    def note_taken(self, number: int, call: StreamOut, message: bytes) -> None:
        """Let the other end send as much again."""
        if not call.over:
            self.link.send(frames.credit(number, len(message)))

    def leave(self, number: int, call: StreamOut) -> None:
        """Forget a stream; the other end is told, unless it has ended it."""
        del self._streams[number]
        if not call.over:
            self.link.send(frames.packed(Kind.CANCEL, number))

    # -- frames ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Send what was gathered in a turn of the loop."""

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case Kind.ANSWER if number in self._calls:
                message = frames.message_of(payload)
                self._answer(self._calls.pop(number), message)
            case Kind.FAIL if number in self._calls:
                failed = _failed(payload)
                self._fail_call(self._calls.pop(number), failed)
            case Kind.MESSAGE | Kind.END | Kind.FAIL | Kind.CREDIT:
                call = self._streams.get(number)
                if call is not None:  # else who asked is gone, and the other end has not heard yet
                    self._go_on(call, kind, payload)
            case Kind.ANSWER:
                pass  # as above
            case Kind.REJECTED:
                rejected = frames.rejected_of(payload)
                self._fail_rejected(rejected, number, nothing_done=rejected == Kind.OPEN)
            case _:
                raise MalformedFrame(f"this version knows no frame of kind {kind}")

    def _reject(self, kind: int, number: int, why: MalformedFrame) -> None:
        """Refuse a frame, and with it no more than the call that it is about."""
        self._fail_rejected(kind, number, nothing_done=False)
        self.link.reject(kind, number, why)

    def _fail_rejected(self, kind: int, number: int, *, nothing_done: bool) -> None:
        """Fail the call of a frame that one of the ends has not read."""
        if kind >= OF_NO_CALL:
            return
        why = Failed(
            Code.UNAVAILABLE,
            f"a frame of kind {kind} was not read, as of another version",
            _NOT_TAKEN if nothing_done else (),
        )
        if (call := self._calls.pop(number, None)) is not None:
            self._on_rejected(call.method)
            self._fail_call(call, why)
        elif (stream := self._streams.get(number)) is not None and not stream.over:
            self._on_rejected(stream.method)
            stream.over, stream.failure = True, why
            stream.wake()

    def _answer(self, call: _Call, message: bytes) -> None:
        call.answer(message)
        if call.over is not None:
            call.over()

    def _fail_call(self, call: _Call, why: Failed) -> None:
        call.fail(why.code, why.message, why.trailers)
        if call.over is not None:
            call.over()

    def _go_on(self, call: StreamOut, kind: int, payload: bytes) -> None:
        call.on_taken()
        if kind == Kind.CREDIT:
            call.credit_bytes += frames.credit_of(payload)
        elif kind == Kind.MESSAGE:
            call.add(frames.message_of(payload))
        else:
            if kind == Kind.FAIL:
                call.failure = _failed(payload)
            else:
                frames.check_empty(payload)
            call.over = True
        call.wake()


def _failed(payload: bytes) -> Failed:
    """Return the end of a FAIL frame. Raises MalformedFrame."""
    failure = frames.failure_of(payload)
    return Failed(Code(failure.code), failure.message, failure.trailers)


def _nothing() -> None:
    """Do nothing: nobody waits for it."""
