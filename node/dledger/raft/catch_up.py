"""Whether a learner has caught up, so that as a voter it would not hold the group up.

Replication to a learner is cut into rounds: one ends when the learner has all that the leader had
when the round began. A learner has caught up when its last round took no longer than an election
timeout: then what it lacks is less than a group waits for anyway. Source: thesis 4.2.1.
"""

from __future__ import annotations


class CatchUp:
    """The rounds of one learner. Times are the leader's ticks."""

    def __init__(self, *, last_index: int, tick: int, limit_ticks: int) -> None:
        self._limit = limit_ticks
        self._target = last_index
        self._began = tick
        self._last_round_was_fast = False

    def heard(self, *, match_index: int, last_index: int, tick: int) -> None:
        """Take an answer of the learner, who has everything up to *match_index*."""
        if match_index >= self._target:
            self._last_round_was_fast = tick - self._began <= self._limit
            self._target, self._began = last_index, tick

    def is_done(self, tick: int) -> bool:
        """Whether the last round was fast, and the one that runs can still be."""
        return self._last_round_was_fast and tick - self._began <= self._limit
