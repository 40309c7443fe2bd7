"""Lets what is passed on to another node pass in turns: so many may be under way and not yet read.

When a leader is new, all that waits is passed on to it at once; it would read nothing else for as
long as that takes, and its group would take it for dead. Used by `forward` for calls that wait, and
for those of gRPC.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from dledger.errors import NotTaken

AT_ONCE: Final = 100
"""Of polls, and as many of gRPC's calls, where there is no link that has room: each takes 40 KiB.
Their connection has 256 (ADR 28), and a link to the leader is asked for behind them."""


class Turnstile:
    """Of one node: first come, first served.

    Args:
        at_once: How many may be under way.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def enter(self, timeout_s: float) -> Turn:
        """Wait for a turn. Raises NotTaken: there was none within *timeout_s*."""
        if self._free.locked():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._free.acquire()
            except TimeoutError:
                raise NotTaken("too many calls are on their way to the leader") from None
        else:
            await self._free.acquire()  # at once
        return Turn(self._free)


class Turn:
    """One turn; a context manager that ends it at the latest."""

    __slots__ = ("_free",)

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Let the next pass. More than once does nothing."""
        free, self._free = self._free, None
        if free is not None:
            free.release()
