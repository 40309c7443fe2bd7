"""Clocks, and the timestamp that a leader writes into its entries. Owned by the driver.

No wall clock is read here: the log's time goes on by time under a leader, measured by monotonic
clocks, from the newest entry. `dating` moves it to the group's date.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

_US_PER_MS: Final = 1_000
_MOST_BETWEEN_LOOKS_US: Final = 5_000_000
"""A process that did not look at its clock for longer (it looks with each tick) was frozen, as a
paused container is: nobody was led by it meanwhile."""


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
    """The log's time, Unix milliseconds: it never goes back, and never stands still under a leader.

    On every node it is the newest applied entry's timestamp plus the time under a leader since that
    was applied here; a start of the process begins that at 0. Who becomes leader goes on from
    there.

    Attributes:
        is_slow: Whether a leader's log is ahead of the date, so that its time runs at 7/8. A lease
            of 8 s then lasts 9.1 s; were it to stand still, the lease would not end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        self._is_led = False
        self._newest_ms = self._leapt_ms = 0
        self._applied_us = 0
        """The time that follows from the entries applied here."""
        self._own_us: int | None = None
        """The time that this node writes into entries; None unless it leads."""
        self._own_leapt_ms = 0
        self.is_slow = False

    def follows(self, *, led: bool) -> None:
        """Note that this node does not lead, and whether it knows who does.

        What it proposed and was never applied counts for nothing.
        """
        self.look()
        self._is_led, self._own_us = led, None

    def lead(self) -> None:
        """Start leadership: go on from the newest entry that was applied here."""
        self.look()
        self._is_led, self._own_us, self._own_leapt_ms = True, self._applied_us, self._leapt_ms
        self.is_slow = False

    def applied(self, timestamp_ms: int, leapt_ms: int) -> None:
        """Record an applied entry's timestamp, and how much all leaps up to it have skipped."""
        self._leapt_ms = leapt_ms
        self._own_leapt_ms = max(self._own_leapt_ms, leapt_ms)
        if timestamp_ms > self._newest_ms:
            self.look()
            self._newest_ms = timestamp_ms
            self._applied_us = timestamp_ms * _US_PER_MS
            if self._own_us is not None:
                self._own_us = max(self._own_us, self._applied_us)

    def look(self) -> None:
        """Let time go on; called with each tick, so that a frozen process is noticed."""
        now_s = self._clock.monotonic_s()
        passed_us, self._looked_s = round((now_s - self._looked_s) * 1e6), now_s
        if not self._is_led:
            return
        lived_us = min(max(passed_us, 0), _MOST_BETWEEN_LOOKS_US)
        self._applied_us += lived_us
        if self._own_us is not None:
            self._own_us += lived_us - (lived_us // 8 if self.is_slow else 0)

    def now_ms(self) -> int:
        """Return the time for the next entry."""
        self.look()
        own_us = self._applied_us if self._own_us is None else self._own_us
        return max(self._newest_ms, own_us // _US_PER_MS)

    def lived_ms(self) -> int:
        """Return the same in lived time, without the leaps (`broker.lived_time`)."""
        leapt_ms = self._leapt_ms if self._own_us is None else self._own_leapt_ms
        return self.now_ms() - leapt_ms

    @property
    def is_dated(self) -> bool:
        """Whether the log has a time at all: the first entry of a group has none to go on from."""
        return self._newest_ms > 0 or (self._own_us or 0) >= _FIRST_US

    def begin(self, date_ms: int) -> None:
        """Let a new group's first leader begin with the group's date: no time was skipped."""
        if self._own_us is not None and not self.is_dated:
            self._own_us = max(date_ms * _US_PER_MS, _FIRST_US)

    def leap(self, to_ms: int) -> int:
        """Move a leader's time forward, with the LEAP that it proposes; return what it was."""
        from_ms = self.now_ms()
        self._own_us = to_ms * _US_PER_MS
        self._own_leapt_ms += to_ms - from_ms
        return from_ms


_FIRST_US: Final = 365 * 86_400 * 1_000_000
"""A time before 1971 is none: it is what a leader counts while it does not know the date."""
