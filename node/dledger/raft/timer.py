"""When to campaign: the election timer and its random waits.

Owned by one Raft; time is a count of ticks, chance comes from the injected random source.
"""

from __future__ import annotations

import random


class ElectionTimer:
    """Counts ticks since the leader was heard, up to a randomised deadline.

    A node of lower priority waits longer, so that those of higher priority win when they can. The
    handicap is halved with each wait that brought no leader, so that it never keeps a group from
    having one, and is whole again when a leader is heard.

    Three kinds of wait: a follower's (longer than an election timeout), a short one after the
    leader's connection broke, and a campaign's, which doubles with each failure. All have a
    random part, so that rivals do not stay in step (Raft 5.2, 9.3).
    """

    def __init__(self, timeout_ticks: int, rng: random.Random, *, handicap_ticks: int = 0) -> None:
        self._timeout = timeout_ticks
        self._short = max(1, timeout_ticks // 4)
        self._rng = rng
        self._failures = 0
        self._whole_handicap = self._handicap = handicap_ticks
        self.elapsed = 0
        """Ticks since the last reset."""
        self._following = False
        self.follow()

    @property
    def deadline_ticks(self) -> int:
        """The tick at which the current wait is over."""
        return self._deadline

    def tick(self) -> bool:
        """Count one tick; returns True when the wait is over."""
        self.elapsed += 1
        return self.elapsed >= self._deadline

    def follow(self) -> None:
        """A leader was heard, or a vote was given: wait the whole timeout from now."""
        self.elapsed = 0
        if not self._following:
            self._following = True
            self._failures = 0
            spread = max(2, self._timeout // 2)
            self._handicap = self._whole_handicap
            self._deadline = self._timeout + self._rng.randint(1, spread) + self._handicap

    def redraw(self) -> None:
        """Wait the whole timeout from now, with a new random part."""
        self._following = False
        self.follow()

    def rest(self) -> None:
        """Leadership was given up: let the others go first."""
        self._start_wait(2 * self._timeout + self._rng.randint(1, self._timeout))

    def hint(self) -> bool:
        """The leader's connection broke: wait briefly; returns True when not even that."""
        self._start_wait(self._rng.randint(0, self._short) + self._handicap)
        self._failures = 0
        return self._deadline == 0

    def campaign(self) -> None:
        """A campaign begins: if it has not ended by then, it failed."""
        # Raft 5.2, 9.3: random, so that rivals part; longer with each failure, up to the timeout.
        low = min(self._short << min(self._failures, 8), self._timeout)
        self._handicap //= 2
        self._start_wait(low + self._rng.randint(0, low) + self._handicap)

    def failed(self) -> None:
        """A campaign failed: the next one waits longer."""
        self._failures += 1

    def _start_wait(self, ticks: int) -> None:
        self.elapsed = 0
        self._following = False
        self._deadline = ticks
