"""The door's end of the link: each call of a client goes to the node, and its answers come back.

This is the general path, which every method has. `send_batches` and `ack_batches` spare the node
most of it for what is one call a message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol, TypeAlias

from dledger.door.bounds import Bounds
from dledger.door.contract import (
    Answer,
    BidiStream,
    Cancel,
    Code,
    Fail,
    Failed,
    Handler,
    Headers,
    Stream,
    TooLarge,
    Unary,
)
from dledger.door_process import frames
from dledger.door_process.frames import Arrives, Kind, Resumes
from dledger.door_process.link import Link
from dledger.door_process.refusals import refused_answer
from dledger.rpc.rocketmq_stubs import SERVICE_NAME

logger = logging.getLogger(__name__)

_LARGEST_FRAME_BYTES: Final = (1 << 32) - 1


Where: TypeAlias = tuple[int, int]
"""The numbers of a port, and of a method."""


class Replies(Protocol):
    """Takes the node's replies to batches."""

    def reply(self, kind: int, number: int, payload: bytes) -> bool:
        """Answer the calls of a batch; False: it is not one of these."""
        ...


class _Call:
    """A call of one message that the node has."""

    __slots__ = ("answer", "fail", "over")

    def __init__(self, answer: Answer, fail: Fail, over: Callable[[], None] | None) -> None:
        self.answer, self.fail, self.over = answer, fail, over


class _Stream:
    """A call of many messages that the node has."""

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
        """Return the node's next message; None: it has ended the call. Raises Failed."""
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


class _Passage:
    """The answers to one call on their way: what becomes of them is told to the node."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number

    def proved(self) -> None:
        """Tell that they arrived."""
        self._tell(Arrives.PROVED)

    def moves(self) -> None:
        """Tell that they are still under way."""
        self._tell(Arrives.MOVES)

    def lost(self) -> None:
        """Tell that nobody will know."""
        self._tell(Arrives.LOST)

    def _tell(self, arrives: Arrives) -> None:
        if not self._link.closed:
            self._link.send(frames.arriving(self._number, arrives))


class DoorEnd:
    """Of one door process.

    Args:
        control: Gets the frames that are about the process itself.
        on_lost: Called once the link is closed, with the reason.

    Attributes:
        bounds: The limits of its ports.
        leads: Whether the node takes batches.
        replies: Who awaits replies to batches.
        turns: Called before what a turn of the loop has to send is written.
    """

    def __init__(
        self,
        *,
        control: Callable[[int, int, bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.bounds, self._control = Bounds(), control
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._streams: dict[int, _Stream] = {}
        self.leads = False
        self.replies: list[Replies] = []
        self.turns: list[Callable[[], None]] = []
        self.link = Link(
            self._receive, on_turn=self._turn, on_lost=on_lost, max_bytes=_LARGEST_FRAME_BYTES
        )

    def handler(
        self, port: int, method: int, path: str, *, unary: bool, max_request_bytes: int
    ) -> Handler:
        """Return the handler of a method that passes each call on.

        Args:
            port: The number of the client port.
            method: The number of the method.
            path: Its path.
            unary: Whether it takes one message for one.
            max_request_bytes: As in `door.contract.Method`.
        """
        refusal = partial(self._refuse, method, path)
        if unary:
            return Unary(
                partial(self.begin, (port, method)),
                max_request_bytes=max_request_bytes,
                refusal=refusal,
            )
        return BidiStream(
            partial(self._serve, (port, method)),
            max_request_bytes=max_request_bytes,
            refusal=refusal,
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

    def number(self) -> int:
        """Return a number for a batch."""
        return next(self._numbers)

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

    def _refuse(self, method: int, path: str, refused: Failed) -> bytes:
        """Answer a request that is refused unread, and let the node count that."""
        why = bytes((isinstance(refused, TooLarge),)) + refused.message.encode()
        self.link.send(frames.packed(Kind.REFUSED, method, why))
        service, _, name = path[1:].partition("/")
        return refused_answer(name, refused, is_messaging=service == SERVICE_NAME)

    # -- streams ---------------------------------------------------------------------------------

    async def answers(self, where: Where, headers: Headers, body: bytes) -> AsyncGenerator[bytes]:
        """Pass a call of one message for many on; yield the answers. Raises Failed."""
        number, call = self._opened(where, headers)
        self.link.send(frames.packed(Kind.MESSAGE, number, body))
        self.link.send(frames.packed(Kind.HALF_CLOSE, number))
        async with aclosing(self._received(number, call)) as messages:
            async for message in messages:
                yield message

    async def _serve(self, where: Where, headers: Headers, stream: Stream) -> None:
        number, call = self._opened(where, headers, stream)
        pump = asyncio.get_running_loop().create_task(self._pump(number, call, stream))
        try:
            async with aclosing(self._received(number, call)) as messages:
                async for message in messages:
                    await stream.send(message)
        finally:
            pump.cancel()

    def _opened(
        self, where: Where, headers: Headers, client: Stream | None = None
    ) -> tuple[int, _Stream]:
        number = next(self._numbers)
        call = self._streams[number] = _Stream(self.bounds.stream_window_bytes, client)
        self._open(number, where, headers, None)
        return number, call

    async def _received(self, number: int, call: _Stream) -> AsyncGenerator[bytes]:
        """Yield the node's messages; each counts as taken when the next is asked for."""
        try:
            while (message := await call.next()) is not None:
                yield message
                if not call.over:
                    self.link.send(frames.credit(number, len(message)))
        finally:
            del self._streams[number]
            if not call.over:
                self.link.send(frames.packed(Kind.CANCEL, number))

    async def _pump(self, number: int, call: _Stream, stream: Stream) -> None:
        """Pass the client's messages on, while few of them are unread at the node."""
        while (message := await stream.read()) is not None:
            while call.credit_bytes <= 0:
                call.room = asyncio.get_running_loop().create_future()
                await call.room
            if call.over:
                return
            call.credit_bytes -= len(message)
            self.link.send(frames.packed(Kind.MESSAGE, number, message))
        if not call.over:
            self.link.send(frames.packed(Kind.HALF_CLOSE, number))

    # -- frames ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        for turn in self.turns:
            turn()

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case Kind.PLACES | Kind.ACKED | Kind.RESUME | Kind.SAME:
                for each in self.replies:
                    if each.reply(kind, number, payload):
                        break  # if nobody does, all of its clients have left
            case Kind.ANSWER | Kind.FAIL if number in self._calls:
                self._end_call(self._calls.pop(number), kind, payload)
            case Kind.MESSAGE | Kind.END | Kind.FAIL | Kind.CREDIT | Kind.PROVE:
                call = self._streams.get(number)
                if call is not None:  # else its client is gone, and the node does not know it yet
                    self._go_on(number, call, kind, payload)
            case Kind.LEADS:
                self.leads = bool(number)
                self.link.turn()
            case Kind.PING:
                self.link.send(frames.packed(Kind.PONG, number))
            case Kind.ANSWER:
                pass  # as above
            case _:
                self._control(kind, number, payload)

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

    def _prove(self, number: int, call: _Stream) -> None:
        """Tell the node what becomes of a call's answers, whose end is behind this."""
        arrival = _Passage(self.link, number)
        if call.client is None:
            arrival.lost()
        else:
            call.client.prove(arrival)

    def _go_on(self, number: int, call: _Stream, kind: int, payload: bytes) -> None:
        if kind == Kind.PROVE:
            self._prove(number, call)
            return
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
