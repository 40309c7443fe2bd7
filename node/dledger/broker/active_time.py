"""How long somebody was silent, by the log's time: gaps in it count for little.

What goes by age goes at the same entry on every node, so its age is measured by the timestamps of
entries. But a night in which the whole group was down is no night in which a client could have
asked, and a new leader whose wall clock is a month ahead makes no month. So of the time between two
entries only so much counts. It is part of the replicated state.
"""

from __future__ import annotations

from dledger.broker.snapshot_codec import Reader, number


class ActiveTime:
    """Milliseconds in which the log moved on.

    Args:
        max_step_ms: What the time between two entries counts at most.

    Attributes:
        log_ms: The newest time of an entry, Unix milliseconds.
        ms: How many there were; they never go back.
    """

    __slots__ = ("_max_step_ms", "log_ms", "ms")

    def __init__(self, max_step_ms: int) -> None:
        self._max_step_ms = max_step_ms
        self.log_ms = self.ms = 0

    def at(self, log_ms: int) -> int:
        """Return how many there would be with an entry at *log_ms*, Unix milliseconds."""
        return self.ms + max(min(log_ms - self.log_ms, self._max_step_ms), 0)

    def advance(self, log_ms: int) -> None:
        """Take the time of an entry, Unix milliseconds."""
        self.ms, self.log_ms = self.at(log_ms), max(log_ms, self.log_ms)

    def encoded(self) -> bytes:
        """Return it for a snapshot."""
        return number(self.log_ms) + number(self.ms)

    def read(self, source: Reader) -> None:
        """Take it from a snapshot. Raises MalformedStateError."""
        self.log_ms = source.number()
        self.ms = source.number(high=self.log_ms)

    def canonical(self) -> list[int]:
        """Return it as plain values."""
        return [self.log_ms, self.ms]
