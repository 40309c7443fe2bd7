"""A first-come-first-served limit on what is in progress at once, in bytes or messages.

Used by the clients and by the node's admission control.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """A limit on the sum of the sizes that are taken, first come, first served.

    Args:
        limit: The maximum sum; a larger single size is admitted when nothing else is taken.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._in_line = 0
        self.taken = 0

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        """Whether *size* fits now and nobody waits."""
        return not self._in_line and self._fits(size)

    def take_now(self, size: int) -> bool:
        """Take *size* if it fits now and nobody waits; return whether it was taken."""
        if not self.has_room(size):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        """Take *size*, after all earlier callers. A cancelled call has taken nothing."""
        if self.take_now(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._in_line += 1
        self._admit()
        try:
            if turn.done():  # let earlier callers, admitted just now, run first
                await asyncio.sleep(0)
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((size, turn))
                self._admit()
            else:
                self.give(size)
            raise
        finally:
            self._in_line -= 1

    def give(self, size: int) -> None:
        """Give *size* back; a negative size takes more, whether it fits or not."""
        self.taken -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._limit

    def _admit(self) -> None:
        """Admit those who wait, in order. A cancelled one removes itself and calls this again."""
        while self._waiting and self._fits(self._waiting[0][0]):
            if self._waiting[0][1].cancelled():
                return
            size, turn = self._waiting.popleft()
            self.taken += size
            turn.set_result(None)
