"""Clocks, and the time that a leader writes into its entries. Owned by the driver."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as a node needs it."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""

    def unix_ms(self) -> int:
        """Return the wall clock, Unix milliseconds; may jump."""


class RealClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return time.time_ns() // 1_000_000


class LogClock:
    """Unix milliseconds that never go back, not even with the next leader.

    The wall clock is read when leadership starts; from then on monotonic time is added.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest_ms = 0
        self._base = (clock.monotonic_s(), clock.unix_ms())

    def lead(self) -> None:
        """Leadership starts: read the wall clock, but not behind what the log has."""
        self._base = (self._clock.monotonic_s(), max(self._clock.unix_ms(), self._newest_ms))

    def applied(self, timestamp_ms: int) -> None:
        """Take note of an entry's time."""
        self._newest_ms = max(self._newest_ms, timestamp_ms)

    def now_ms(self) -> int:
        """Return the time for the next entry."""
        base_s, base_ms = self._base
        elapsed_ms = int((self._clock.monotonic_s() - base_s) * 1000)
        return max(self._newest_ms, base_ms + elapsed_ms)
