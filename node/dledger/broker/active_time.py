"""Idle time, measured by the timestamps of entries, with a cap on each gap between two entries.

Whatever expires must expire at the same entry on every node, so ages are measured by the timestamps
in the log. But a client could not have called during a night in which the whole group was down, and
a new leader whose clock is a month ahead must not expire everything. So the time between two
entries counts up to a maximum only. Part of the replicated state.
"""

from __future__ import annotations

from dledger.broker.snapshot_codec import Reader, number


class ActiveTime:
    """A counter of milliseconds during which the log was active.

    Args:
        max_step_ms: The most that the time between two entries counts.

    Attributes:
        log_ms: The newest timestamp of an entry, Unix milliseconds.
        ms: The active milliseconds so far; never decreases.
    """

    __slots__ = ("_max_step_ms", "log_ms", "ms")

    def __init__(self, max_step_ms: int) -> None:
        self._max_step_ms = max_step_ms
        self.log_ms = self.ms = 0

    def at(self, log_ms: int) -> int:
        """Return what `ms` would be after an entry at *log_ms*, Unix milliseconds."""
        return self.ms + max(min(log_ms - self.log_ms, self._max_step_ms), 0)

    def advance(self, log_ms: int) -> None:
        """Advance to the timestamp of an entry, Unix milliseconds."""
        step_ms = log_ms - self.log_ms
        if step_ms > 0:
            self.ms += min(self._max_step_ms, step_ms)
            self.log_ms = log_ms

    def encoded(self) -> bytes:
        """Return the counter's bytes for a snapshot."""
        return number(self.log_ms) + number(self.ms)

    def read(self, source: Reader) -> None:
        """Read the counter from a snapshot. Raises MalformedStateError."""
        self.log_ms = source.number()
        self.ms = source.number(high=self.log_ms)

    def canonical(self) -> list[int]:
        """Return the counter as plain values."""
        return [self.log_ms, self.ms]
