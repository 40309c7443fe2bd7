"""Clocks, and the timestamp that a leader writes into its entries. Owned by the driver."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks that a node needs."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""

    def unix_ms(self) -> int:
        """Return the wall clock in Unix milliseconds; it may jump."""


class RealClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return time.time_ns() // 1_000_000


class LogClock:
    """Unix milliseconds that never go back, not even after a change of leader.

    The wall clock is read when leadership starts; monotonic time is added from then on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest_ms = 0
        self._base = (clock.monotonic_s(), clock.unix_ms())

    def lead(self) -> None:
        """Start leadership: read the wall clock, but return no time before the log's newest."""
        self._base = (self._clock.monotonic_s(), max(self._clock.unix_ms(), self._newest_ms))

    def applied(self, timestamp_ms: int) -> None:
        """Record the timestamp of an applied entry."""
        self._newest_ms = max(self._newest_ms, timestamp_ms)

    def now_ms(self) -> int:
        """Return the time for the next entry."""
        base_s, base_ms = self._base
        elapsed_ms = int((self._clock.monotonic_s() - base_s) * 1000)
        return max(self._newest_ms, base_ms + elapsed_ms)
