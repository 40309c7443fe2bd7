"""Simulated time: what is due next happens next. The order of ties is the order of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from dledger_sim.stalls import StalledError

MAX_AT_ONCE: Final = 100_000
"""Actions at one moment; more of them are a circle, and time would stand still for ever."""
MAX_ACTIONS: Final = 20_000_000
"""In a whole run, which takes some ten thousand."""


class Clock:
    """A queue of actions by time, in microseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self._count = self._done = self._done_before = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let *action* happen after a delay."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._count, action))

    def run_until(self, end_us: int, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to *end_us*; returns whether *stop* became true before.

        Raises:
            StalledError: Time stands still, or the run has too many actions.
        """
        while self._queue and self._queue[0][0] <= end_us:
            at_us, _, action = heapq.heappop(self._queue)
            self._count_action(at_us)
            action()
            if stop is not None and stop():
                return True
        self.now_us = end_us
        return False

    def _count_action(self, at_us: int) -> None:
        if at_us > self.now_us:
            self._done_before = self._done
        self.now_us = at_us
        self._done += 1
        if self._done - self._done_before > MAX_AT_ONCE:
            raise StalledError(f"{MAX_AT_ONCE} actions, and it is still {at_us} us")
        if self._done > MAX_ACTIONS:
            raise StalledError(f"{MAX_ACTIONS} actions by {at_us} us")
