"""What may be under way at once, bytes or messages; who has to wait goes on in its turn."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """A bound on what is taken together, first come first served.

    Args:
        limit: How much that is; one that is larger by itself goes alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._in_line = 0
        self.taken = 0

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        """Whether there is room for so much, and nobody waits."""
        return not self._in_line and self._fits(size)

    def take_now(self, size: int) -> bool:
        """Take so much if there is room and nobody waits; return whether."""
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
            if turn.done():  # those who got theirs before have not gone on yet
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
        """Give so much back; less than nothing: take some more, whether they fit or not."""
        self.taken -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._limit

    def _admit(self) -> None:
        """Let in who is next; one that was cancelled leaves the line by itself, and asks again."""
        while self._waiting and self._fits(self._waiting[0][0]):
            if self._waiting[0][1].cancelled():
                return
            size, turn = self._waiting.popleft()
            self.taken += size
            turn.set_result(None)
