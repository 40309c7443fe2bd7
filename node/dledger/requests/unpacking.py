"""Looks into packed bodies beside the event loop: one at a time, and the hosts in turn.

The largest costs a node's CPU 10 to 15 ms, or a second if it was made for it, and its sender some
kilobytes. So whoever sends many delays others who send such, by one body of his, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable

from dledger.checks.packed import Content, check_small, content_of, small_content_of


class Unpacking:
    """Of one node. How much waits is bounded by those who ask, who hold their room meanwhile."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._busy = False

    async def check(self, bodies: Iterable[bytes], host: str) -> None:
        """Check packed bodies. Raises Rejected."""
        for body in check_small(bodies):
            await self._content_of(body, host)

    async def content_of(self, body: bytes, host: str) -> Content:
        """Return what is in a packed body, whose sender or reader is at *host*. Raises Rejected."""
        content = small_content_of(body)
        return content if content is not None else await self._content_of(body, host)

    async def _content_of(self, body: bytes, host: str) -> Content:
        await self._turn(host)
        work = asyncio.get_running_loop().run_in_executor(None, content_of, body)
        work.add_done_callback(self._on_done)  # not when who asked gives up: it goes on until then
        return await asyncio.shield(work)

    async def _turn(self, host: str) -> None:
        """Wait until nobody else's body is looked into, and it is this one's turn."""
        if not self._busy:
            self._busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(host, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            raise

    def _on_done(self, work: asyncio.Future[Content]) -> None:
        if not work.cancelled():
            work.exception()  # who asked may be gone, and it is then nobody's
        self._next()

    def _next(self) -> None:
        """Give the turn to the first of the next host; who has given up is passed over."""
        self._busy = False
        while self._lines and not self._busy:
            host, line = self._lines.popitem(last=False)
            while line and not self._busy:
                turn = line.popleft()
                if not turn.done():
                    self._busy = True
                    turn.set_result(None)
            if line:
                self._lines[host] = line
