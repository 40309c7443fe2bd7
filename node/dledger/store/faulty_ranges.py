"""The faulty slots of the log: damaged records whose identity is still known. Bounded in size.

Owned by `LogIndex`; no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MAX_RANGES = 1024


class FaultyRanges:
    """Indexes as ranges [first, last], ascending, with at least one intact slot between them.

    There are at most 1024 ranges, so that a bad disk cannot exhaust memory: instead of one more,
    the two closest become one, with the intact slots between them. An intact slot that is listed as
    faulty is not served until the repairer has fetched it, or has read it again from this disk.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        """Whether any slot is faulty."""
        return bool(self._firsts)

    def __len__(self) -> int:
        """Return how many slots are faulty."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __contains__(self, index: int) -> bool:
        """Whether the slot at *index* is faulty."""
        return self.next(index) == index

    @property
    def ranges(self) -> tuple[range, ...]:
        """The faulty slots, ascending."""
        pairs = zip(self._firsts, self._lasts, strict=True)
        return tuple(range(first, last + 1) for first, last in pairs)

    def next(self, index: int) -> int | None:
        """Return the first faulty index at or after *index*."""
        at = bisect_left(self._lasts, index)
        return max(index, self._firsts[at]) if at < len(self._firsts) else None

    def add(self, first: int, last: int) -> None:
        """Add [first, last] and merge it with adjacent ranges."""
        start = bisect_left(self._lasts, first - 1)
        stop = bisect_right(self._firsts, last + 1)
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]
        if len(self._firsts) > _MAX_RANGES:
            self._join_closest()

    def _join_closest(self, *, but: int = -1) -> None:
        """Join the two closest ranges, but for the range at place *but* and its next."""
        gaps = [
            (after - before, at)
            for at, (before, after) in enumerate(zip(self._lasts, self._firsts[1:], strict=False))
            if at != but
        ]
        _, at = min(gaps)
        del self._lasts[at], self._firsts[at + 1]

    def discard(self, first: int, last: int) -> None:
        """Remove [first, last]: these slots are repaired or no longer in the log."""
        start = bisect_left(self._lasts, first)
        stop = bisect_right(self._firsts, last)
        kept = [
            (begin, end)
            for at in range(start, stop)
            for begin, end in (
                (self._firsts[at], min(self._lasts[at], first - 1)),
                (max(self._firsts[at], last + 1), self._lasts[at]),
            )
            if begin <= end
        ]
        self._firsts[start:stop] = [begin for begin, _ in kept]
        self._lasts[start:stop] = [end for _, end in kept]
        if len(self._firsts) > _MAX_RANGES:  # a range was split: not to be joined there again
            self._join_closest(but=start)

    def truncate(self, last: int) -> None:
        """Forget everything after *last*."""
        if self._lasts:
            self.discard(last + 1, max(last + 1, self._lasts[-1]))

    def forget_before(self, first: int) -> None:
        """Forget everything below *first*."""
        self.discard(0, first - 1)

    def update(self, other: FaultyRanges) -> None:
        """Add all of *other*."""
        for each in other.ranges:
            self.add(each.start, each.stop - 1)
