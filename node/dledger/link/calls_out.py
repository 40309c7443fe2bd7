"""The end that passes calls on: each goes to the other end, and its answers come back."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, TypeAlias

from dledger.door.bounds import Bounds
from dledger.door.contract import Answer, Cancel, Code, Fail, Failed, Headers, Stream
from dledger.link import frames
from dledger.link.connection import Link
from dledger.link.frames import Kind, MalformedFrame, Resumes

_LARGEST_FRAME_BYTES: Final = (1 << 32) - 1


Where: TypeAlias = tuple[int, int]
"""The numbers of a port, and of a method."""


class _Call:
    """A call of one message that the other end has."""

    __slots__ = ("answer", "fail", "over")

    def __init__(self, answer: Answer, fail: Fail, over: Callable[[], None] | None) -> None:
        self.answer, self.fail, self.over = answer, fail, over


class StreamOut:
    """A call of many messages that the other end has."""

    __slots__ = ("_turn", "client", "credit_bytes", "failure", "messages", "over", "room")

    def __init__(self, credit_bytes: int, client: Stream | None) -> None:
        self.client = client
        self.messages: deque[bytes] = deque()
        self.credit_bytes = credit_bytes
        self.over = False
        self.failure: Failed | None = None
        self._turn: asyncio.Future[None] | None = None
        self.room: asyncio.Future[None] | None = None

    async def next(self) -> bytes | None:
        """Return the next answer; None: the other end has ended the call. Raises Failed."""
        while not self.messages:
            if self.failure is not None:
                raise self.failure
            if self.over:
                return None
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        return self.messages.popleft()

    def wake(self) -> None:
        """Let `next` look again."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class CallsOut:
    """Of one link.

    Args:
        on_lost: Called once the link is closed, with the reason.

    Attributes:
        bounds: What streams may have under way.
    """

    def __init__(self, *, on_lost: Callable[[str], None]) -> None:
        self.bounds = Bounds()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._streams: dict[int, StreamOut] = {}
        self.link = Link(
            self._receive, on_turn=self._turn, on_lost=on_lost, max_bytes=_LARGEST_FRAME_BYTES
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
        self._calls[number] = _Call(answer, fail, over)
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

    async def answers(self, where: Where, headers: Headers, body: bytes) -> AsyncGenerator[bytes]:
        """Pass a call of one message for many on; yield the answers. Raises Failed."""
        number, call = self._opened(where, headers)
        self.link.send(frames.packed(Kind.MESSAGE, number, body))
        self.link.send(frames.packed(Kind.HALF_CLOSE, number))
        async with aclosing(self._received(number, call)) as messages:
            async for message in messages:
                yield message

    def _opened(
        self, where: Where, headers: Headers, client: Stream | None = None
    ) -> tuple[int, StreamOut]:
        number = next(self._numbers)
        call = self._streams[number] = StreamOut(self.bounds.stream_window_bytes, client)
        self._open(number, where, headers, None)
        return number, call

    async def _received(self, number: int, call: StreamOut) -> AsyncGenerator[bytes]:
        """Yield the answers; each counts as taken when the next is asked for."""
        try:
            while (message := await call.next()) is not None:
                yield message
                if not call.over:
                    self.link.send(frames.credit(number, len(message)))
        finally:
            del self._streams[number]
            if not call.over:
                self.link.send(frames.packed(Kind.CANCEL, number))

    # -- frames ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Send what was gathered in a turn of the loop."""

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case Kind.ANSWER | Kind.FAIL if number in self._calls:
                self._end_call(self._calls.pop(number), kind, payload)
            case Kind.MESSAGE | Kind.END | Kind.FAIL | Kind.CREDIT:
                call = self._streams.get(number)
                if call is not None:  # else who asked is gone, and the other end has not heard yet
                    self._go_on(call, kind, payload)
            case Kind.ANSWER:
                pass  # as above
            case _:
                raise MalformedFrame(f"nobody asked for a frame of kind {kind}")

    def _end_call(self, call: _Call, kind: int, payload: bytes) -> None:
        if kind == Kind.FAIL:
            self._fail_call(call, _failed(payload))
            return
        call.answer(payload)
        if call.over is not None:
            call.over()

    def _fail_call(self, call: _Call, why: Failed) -> None:
        call.fail(why.code, why.message, why.trailers)
        if call.over is not None:
            call.over()

    def _go_on(self, call: StreamOut, kind: int, payload: bytes) -> None:
        if kind == Kind.CREDIT:
            call.credit_bytes += frames.credit_of(payload)
            if call.room is not None and not call.room.done():
                call.room.set_result(None)
            return
        if kind == Kind.MESSAGE:
            call.messages.append(payload)
        else:
            call.over = True
            if kind == Kind.FAIL:
                call.failure = _failed(payload)
        call.wake()


def _failed(payload: bytes) -> Failed:
    """Return the end of a FAIL frame. Raises MalformedFrame."""
    failure = frames.failure_of(payload)
    return Failed(Code(failure.code), failure.message, failure.trailers)
