"""The forms of a call that a coroutine serves: one answer, many, or many in both directions.

Each has a task, which is cancelled if the call ends without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from dledger.door.call import BUG, Call, Carrier, UnaryCall, torn
from dledger.door.contract import (
    Arrival,
    BidiStream,
    Code,
    Failed,
    Handler,
    Headers,
    Pairs,
    Rest,
    Unary,
)
from dledger.door.grpc_format import PREFIX_BYTES

logger = logging.getLogger(__name__)

_FIRST_WRITE_S: Final = 0.05
"""A client that writes at once has done so by then, but over a slow link."""


async def _guarded(call: BidiCall, work: Callable[[], Awaitable[Rest | None]]) -> None:
    """Run a handler, or what it left; whatever it raises ends its call and nothing else.

    It is not even made if the call ends before its task has begun. An exception that outlives its
    handling is in a cycle with this frame, and holds the request until that is collected.
    """
    ending: tuple[Code, str, Pairs] | None = None
    try:
        rest = await work()
        if rest is not None:
            call.leave(rest)
        elif not call.over:
            call.carrier.finish(call)
    except Failed as error:
        ending = error.code, error.message, error.trailers
    except asyncio.CancelledError:
        if not call.over:
            call.carrier.fail(call, Code.CANCELLED, "the handler was cancelled")
        raise
    except Exception:
        logger.exception("%s failed", call.headers.get(b":path"))
        ending = Code.UNKNOWN, BUG, ()
    if ending is not None and not call.over:
        await call.heard()
        if not call.over:
            call.carrier.fail(call, *ending)


class BidiCall(Call):
    """A call with many messages in both directions; its handler starts at once.

    While the handler has left, nothing runs for it: it is its `contract.Rest` that waits. What it
    needs for messages it has while there are any, since of such calls there may be very many.
    """

    __slots__ = ("_begun", "_messages", "_reader", "_rest", "_task", "received")
    may_leave = True

    def __init__(
        self, carrier: Carrier, stream_id: int, headers: Headers, handler: BidiStream, now_s: float
    ) -> None:
        super().__init__(carrier, stream_id, headers, handler, now_s)
        self.waits_since_s = None  # it may be silent for ever, between messages
        self._messages: deque[bytes] | None = None
        self.received = self._begun = False
        self._reader: asyncio.Future[None] | None = None
        self._rest: Rest | None = None
        self._task: asyncio.Task[None] | None = None
        self._run(partial(handler.serve, headers, self))

    @property
    def is_unfinished(self) -> bool:
        """Whether a part of a message has come, or not even its first."""
        return bool(self.inbox.missing) or not (self._begun or self.ended)

    def data(self, data: bytes, now_s: float) -> None:
        """Queue the messages that are whole. Raises Failed."""
        self.received = True
        whole = self.inbox.feed(data)
        if whole:
            self._begun = True
            if self._messages is None:
                self._messages = deque(whole)
            else:
                self._messages += whole
        if not self.inbox.missing:
            self.waits_since_s = None
        elif whole or self.waits_since_s is None:
            self.waits_since_s = now_s
        self._wake()

    def end(self) -> None:
        """Let the handler see the end after what is queued. Raises Failed."""
        self.ended = True
        self.waits_since_s = None
        if self.inbox.missing:
            raise torn()
        self._wake()

    @property
    def is_readable(self) -> bool:
        """Whether `read` does not wait."""
        return bool(self._messages) or self.ended

    def read_now(self) -> bytes | None:
        """Return the client's next message, if it has come."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        if not self._messages:
            self._messages = None
        self.carrier.consumed(self, PREFIX_BYTES + len(message))
        return message

    async def read(self) -> bytes | None:
        """Return the client's next message; None: it has sent all."""
        while (message := self.read_now()) is None and not self.ended:
            await self._more()
        return message

    async def _more(self) -> None:
        """Wait for something of the client's."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def drop(self) -> None:
        """Cancel the handler, unless it is what ends the call just now.

        It is let go: a cancelled task keeps its frames, and these the call.
        """
        task, self._task = self._task, None
        rest, self._rest = self._rest, None
        self._messages = None
        if rest is not None:
            self._drop(rest)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _drop(self, rest: Rest) -> None:
        try:
            rest.drop()
        except Exception:
            logger.exception("%s failed when it was cancelled", self.headers.get(b":path"))

    async def heard(self) -> None:
        """Wait for the client's first bytes, if it is about to write.

        gRPC's client for Python that writes to a call which has ended is told of that write, and
        neither of the status nor of the metadata, such as who leads.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WRITE_S):
                while not (self.received or self.ended or self.over):
                    await self._more()

    # -- for its handler (`contract.Stream`) -------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.read()) is not None:
            yield message

    async def send(self, message: bytes) -> None:
        """Send a message, and return once its client has taken most of it. Raises Failed."""
        await self.carrier.room(self)
        self.send_now(message)
        await self.carrier.room(self)

    def send_now(self, message: bytes) -> None:
        """Send a message. Raises Failed: the call is over, and its handler must not go on."""
        if not self.over:
            self.carrier.send(self, message)
        if self.over:
            raise Failed(Code.CANCELLED, "the client is gone, or does not read")

    def prove(self, arrival: Arrival) -> None:
        """Tell *arrival* what becomes of its answers."""
        if self.over:
            arrival.lost()
        else:
            self.carrier.prove(self, arrival)

    # -- its handler -----------------------------------------------------------------------------

    def _run(self, work: Callable[[], Awaitable[Rest | None]]) -> None:
        self._task = self.carrier.run(_guarded(self, work))

    def leave(self, rest: Rest) -> None:
        """Let *rest* wait in place of the handler, which ends now."""
        self._task = None
        if self.over:
            self._drop(rest)
            return
        self._rest = rest
        try:
            rest.wait()
        except BaseException:
            self.drop()
            raise
        if rest.reads and self.is_readable:
            self.go_on()

    def go_on(self) -> None:
        """Have what waits serve the call on."""
        if self._rest is not None and self._task is None:
            self._run(self._serve_on)

    async def _serve_on(self) -> Rest | None:
        """Serve on; what waits is in its place until then, since the call may end before."""
        rest, self._rest = self._rest, None
        return await rest.serve() if rest is not None else None

    def _wake(self) -> None:
        if self._reader is not None:
            if not self._reader.done():
                self._reader.set_result(None)
        elif self._rest is not None and self._rest.reads:
            self.go_on()


def call_of(
    carrier: Carrier, stream_id: int, headers: Headers, handler: Handler, now_s: float
) -> Call:
    """Return the call of a request whose headers have arrived, in its handler's form."""
    match handler:
        case Unary():
            return UnaryCall(carrier, stream_id, headers, handler, now_s)
        case BidiStream():
            return BidiCall(carrier, stream_id, headers, handler, now_s)
