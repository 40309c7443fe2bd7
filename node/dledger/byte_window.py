"""Bytes that may be under way at once; who has to wait goes on in its turn."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteWindow:
    """A bound on bytes, first come first served.

    Args:
        max_bytes: What may be taken together; one that is larger by itself goes alone.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._in_line = 0
        self.taken = 0

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def take_now(self, size_bytes: int) -> bool:
        """Take so many bytes if there is room and nobody waits; return whether."""
        if self._in_line or not self._fits(size_bytes):
            return False
        self.taken += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Take so many bytes, behind all who asked before. Who is cancelled has taken nothing."""
        if self.take_now(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        self._in_line += 1
        self._admit()
        try:
            if turn.done():  # those who got theirs before have not gone on yet
                await asyncio.sleep(0)
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((size_bytes, turn))
                self._admit()
            else:
                self.give(size_bytes)
            raise
        finally:
            self._in_line -= 1

    def give(self, size_bytes: int) -> None:
        """Give so many bytes back; fewer than none: take some more, whether they fit or not."""
        self.taken -= size_bytes
        self._admit()

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken or self.taken + size_bytes <= self._max_bytes

    def _admit(self) -> None:
        """Let in who is next; one that was cancelled leaves the line by itself, and asks again."""
        while self._waiting and self._fits(self._waiting[0][0]):
            if self._waiting[0][1].cancelled():
                return
            size_bytes, turn = self._waiting.popleft()
            self.taken += size_bytes
            turn.set_result(None)
