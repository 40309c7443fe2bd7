"""Wakes very many waiters in batches, one per event-loop iteration, so as not to block it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

AT_ONCE: Final = 64


class Herd:
    """The waiters still to be woken. Single-threaded, on the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_waking = False

    def wake(self, some: Iterable[Callable[[], None]]) -> None:
        """Call each of *some*, in order, after those queued already."""
        self._waiting.extend(some)
        if not self._is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._waiting.popleft()()
        self._is_waking = bool(self._waiting)
        if self._is_waking:
            asyncio.get_running_loop().call_soon(self._wake_some)
