"""Looks into packed bodies beside the event loop: one at a time, and the hosts in turn.

The largest costs a node's CPU 10 to 15 ms, or a second if it was made for it, and its sender some
kilobytes. So whoever sends many delays others who send such, by one body of his, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, TypeAlias

from dledger.checks.packed import Content, check_small, content_of, small_content_of
from dledger.common.shares import NO_ROOM, Share, address_of
from dledger.rpc.status import Code, Rejected

_MAX_WAITING: Final = 512
"""Of the largest a node looks into some 70 a second: of those their senders would not wait for the
last. Each waits with its request, 24 KiB of a small one."""

_Turn: TypeAlias = asyncio.Future[bool]
"""False: others need the place."""


class Unpacking:
    """Of one node.

    Args:
        max_waiting: Single requests that wait; for one more the oldest of the address with most is
            refused.
    """

    def __init__(self, max_waiting: int = _MAX_WAITING) -> None:
        self._lines: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._waiting: Share[_Turn] = Share(max_waiting, _turn_away)
        self._busy = False

    async def check(self, bodies: Iterable[bytes], host: str, *, may_refuse: bool = True) -> None:
        """Check packed bodies.

        Args:
            bodies: Of one request, or batch.
            host: Where its sender is.
            may_refuse: Whether its sender can send it again. A stream has one batch here, and the
                others behind it.

        Raises:
            Rejected: One is not what it says; or too many wait.
        """
        for body in check_small(bodies):
            await self._content_of(body, host, may_refuse=may_refuse)

    async def content_of(self, body: bytes, host: str) -> Content:
        """Return what is in a packed body, whose reader is at *host*. Raises Rejected."""
        content = small_content_of(body)
        return content if content is not None else await self._content_of(body, host)

    async def _content_of(self, body: bytes, host: str, *, may_refuse: bool = False) -> Content:
        await self._turn(address_of(host), may_refuse=may_refuse)
        work = asyncio.get_running_loop().run_in_executor(None, content_of, body)
        work.add_done_callback(self._on_done)  # not when who asked gives up: it goes on until then
        return await asyncio.shield(work)

    async def _turn(self, address: str, *, may_refuse: bool) -> None:
        """Wait until nobody else's body is looked into, and it is this one's turn."""
        if not self._busy:
            self._busy = True
            return
        turn: _Turn = asyncio.get_running_loop().create_future()
        entry = self._waiting.enter(address, turn) if may_refuse else None
        self._lines.setdefault(address, deque()).append(turn)
        try:
            is_due = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._next()
            raise
        finally:
            if entry is not None:
                self._waiting.leave(entry)
        if not is_due:
            raise Rejected(Code.TOO_MANY_REQUESTS, NO_ROOM)

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
                    turn.set_result(True)
            if line:
                self._lines[host] = line


def _turn_away(turn: _Turn) -> None:
    """Tell one that waits that others need its place; by no exception, which would be a circle."""
    if not turn.done():
        turn.set_result(False)
