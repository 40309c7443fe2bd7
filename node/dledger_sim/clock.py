"""Simulated time: what is due next happens next. The order of ties is the order of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """A queue of actions by time, in microseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self._count = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let *action* happen after a delay."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._count, action))

    def run_until(self, end_us: int, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to *end_us*; returns whether *stop* became true before."""
        while self._queue and self._queue[0][0] <= end_us:
            self.now_us, _, action = heapq.heappop(self._queue)
            action()
            if stop is not None and stop():
                return True
        self.now_us = end_us
        return False
