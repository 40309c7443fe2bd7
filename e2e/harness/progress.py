"""Whether something still gets on: a busy machine is slow, and what is slow is not stuck."""

from __future__ import annotations


class ProgressWatch:
    """Tells when counts that should rise stand still.

    Args:
        patience_s: How long none of them may rise.
        now_s: The time, as of all calls: seconds of any clock that does not go back.
    """

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._patience_s = patience_s
        self._rose_s = now_s
        self._highest: tuple[int, ...] = ()

    def is_stuck(self, counts: tuple[int, ...], now_s: float) -> bool:
        """Take the counts of now; return whether none was higher than ever for the patience.

        There are as many counts in each call. What falls back and rises again gets on only once it
        is above where it was.
        """
        before = self._highest or (0,) * len(counts)
        self._highest = tuple(max(pair) for pair in zip(before, counts, strict=True))
        if self._highest != before:
            self._rose_s = now_s
        return now_s - self._rose_s > self._patience_s
