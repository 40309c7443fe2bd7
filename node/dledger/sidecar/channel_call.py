"""One call to the group, as `grpc.aio` has calls; made by `channel`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, Self, cast

import grpc
import grpc.aio

from dledger.common.limits import MAX_ANSWER_BYTES
from dledger.door.grpc_format import Deframer

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_OK: Final = 0


class Connection(Protocol):
    """What a call asks of the connection that it is on."""

    def send(self, call: ChannelCall, message: bytes) -> None:
        """Send one of its messages."""

    def take(self, call: ChannelCall) -> None:
        """Let more of its answers come."""

    def reset(self, call: ChannelCall) -> None:
        """Have the other side stop, unless it has; nobody reads what came."""


class ChannelCall:
    """One call under way: of one message or many, either way.

    Args:
        is_unary: Whether `answer` gets its one message; else `read` gets each.

    Attributes:
        answer: Done when the call is over.
        timer: Its deadline.
        connection: The one that it is on; None: it waits for one.
        stream_id: There.
        held: Bytes that came and that the other side is not told yet that they were taken.
        sends: Whether more of its client's messages may come.
    """

    __slots__ = (
        "_deframer", "_done", "_is_over", "_is_unary", "_messages", "_waiters", "answer",
        "connection", "held", "sends", "stream_id", "timer",
    )  # fmt: skip

    def __init__(self, *, is_unary: bool) -> None:
        self._is_unary = is_unary
        self._deframer = Deframer(MAX_ANSWER_BYTES)
        self._messages: deque[bytes] = deque()
        self._done: list[Callable[[Any], object]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.connection: Connection | None = None
        self.stream_id = self.held = 0
        self.sends = self._is_over = False

    # -- what the connection tells ----------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Take in a part of the answer; return whether more may come. Raises Failed."""
        self.held += len(data)
        self._messages += self._deframer.feed(data)
        self._wake()
        return self._is_unary or not self._messages

    def end(self, code: int, message: str) -> None:
        """Note how it ended."""
        if self._is_over:
            return
        if code == _OK and (self._messages or not self._is_unary):
            self._over()
            self.answer.set_result(self._messages[0] if self._is_unary else b"")
        else:
            status = (
                _CODES.get(code, grpc.StatusCode.UNKNOWN)
                if code != _OK
                else grpc.StatusCode.INTERNAL
            )
            self.fail(status, message or "the call ended without an answer")

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End it without an answer."""
        if self._is_over:
            return
        self._over()
        if not self.answer.done():  # by whoever stopped to wait for it
            empty = grpc.aio.Metadata()
            self.answer.set_exception(grpc.aio.AioRpcError(code, empty, empty, details))
            self.answer.exception()  # nobody may ask

    def _over(self) -> None:
        self._is_over = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._wake()
        for each in self._done:
            each(self)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for each in waiters:
            if not each.done():
                each.set_result(None)

    # -- as `grpc.aio`'s calls --------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Have it called when the call is over."""
        self._done.append(callback)

    def cancel(self) -> None:
        """Give up what is left of it."""
        if self.connection is not None:
            self.connection.reset(self)
        if not self._is_over:
            self._over()
            self.answer.cancel()

    async def write(self, message: bytes) -> None:
        """Send a message, once there is a connection."""
        await self._until(lambda: self.connection is not None)
        if self.connection is None or self._is_over:
            raise asyncio.InvalidStateError("the call is over")
        self.connection.send(self, message)

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF`. Raises AioRpcError."""
        await self._until(lambda: bool(self._messages))
        if not self._messages:
            await self.answer  # raises what it ended with
            return grpc.aio.EOF
        message = self._messages.popleft()
        if not self._messages and self.connection is not None:
            self.connection.take(self)
        return message

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds, or the call is over."""
        while not holds() and not self._is_over:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def on_begun(self, connection: Connection) -> None:
        """Note that it is on its way."""
        self.connection = connection
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        message = await self.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return cast("bytes", message)
