"""What a node lets in: unary requests are read when there is room for them, not when they come.

A request that is not read yet waits at its client, held back by HTTP/2. How large it will be is
not known before, so room for one as large as the largest of late is taken, and what is left over
given back once it is here. Room is held until the answer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final

import grpc.aio

from dledger.errors import InvalidArgument, Overloaded, Unavailable
from dledger.window import Window

MAX_BYTES: Final = 32 << 20
"""Requests under way at one node; each is in memory two or three times while it is served."""
MAX_WAITING: Final = 512
"""Requests that wait for room; HTTP/2 may hold 64 KiB of each."""
_PATIENCE_S: Final = 1.0
"""How long one waits for room; then its client is told to come later."""
_ARRIVES_S: Final = 10.0
"""How long one may take to arrive; meanwhile it keeps room from others."""
_LEAST_BYTES: Final = 8 << 10
"""What a small request counts: its call, its tasks and its answer take memory, too."""
_EXPECTED_BYTES: Final = 1 << 20
"""What is expected when nothing larger came of late."""
_REMEMBERS_S: Final = 10.0


class Intake:
    """The room for requests at one node, all ports together."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.window = Window(max_bytes)
        self._largest = self._largest_before = _EXPECTED_BYTES
        self._since_s = 0.0

    @property
    def expected_bytes(self) -> int:
        """The largest request of the last 10 to 20 seconds, 1 MiB at least."""
        return max(self._largest, self._largest_before)

    def request(self, context: Any) -> Request:
        """Return the one request of the call *context*, to be entered with ``async with``."""
        return Request(self, context)

    def arrived(self, size_bytes: int, now_s: float) -> None:
        """Take note of how large requests are."""
        if now_s - self._since_s >= _REMEMBERS_S:
            self._largest_before, self._largest = self._largest, _EXPECTED_BYTES
            self._since_s = now_s
        self._largest = max(self._largest, size_bytes)


class Request:
    """A request that is let in while its ``async with`` lasts; entering it returns its bytes.

    Raises:
        Overloaded: There is no room, and too many wait for some already, or there was none in time.
        Unavailable: It did not arrive in time.
        InvalidArgument: The call carries none.
    """

    __slots__ = ("_context", "_intake", "_taken")

    def __init__(self, intake: Intake, context: Any) -> None:
        self._intake, self._context = intake, context
        self._taken = 0

    async def __aenter__(self) -> bytes:
        await self._take(self._intake.expected_bytes)
        try:
            raw = await self._read()
        except BaseException:
            self._intake.window.give(self._taken)
            raise
        size_bytes = max(len(raw), _LEAST_BYTES)
        self._intake.arrived(size_bytes, asyncio.get_running_loop().time())
        self._intake.window.give(self._taken - size_bytes)
        self._taken = size_bytes
        return raw

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._intake.window.give(self._taken)

    async def _take(self, size_bytes: int) -> None:
        window = self._intake.window
        if not window.take_now(size_bytes):
            if window.waiting >= MAX_WAITING:
                raise Overloaded(f"{window.waiting} requests wait for room; back off and retry")
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await window.take(size_bytes)
            except TimeoutError:
                raise Overloaded(
                    f"requests of {window.taken} bytes are under way; back off and retry"
                ) from None
        self._taken = size_bytes

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(_ARRIVES_S):
                raw = await self._context.read()
        except TimeoutError:
            raise Unavailable(f"the request did not arrive within {_ARRIVES_S:g} s") from None
        if raw is grpc.aio.EOF:
            raise InvalidArgument("the call carries no request")
        return bytes(raw)
