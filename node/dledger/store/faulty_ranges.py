"""Which slots of the log are faulty: known by identity, their bytes damaged. A bounded value.

Owned by `LogIndex`; no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MAX_RANGES = 1024


class FaultyRanges:
    """Indexes as ranges [first, last], ascending, with a whole slot between each two.

    At most 1024 ranges are kept: beyond that the two closest become one, with what is between.
    A whole slot that is taken for a faulty one is fetched for nothing, and no harm is done.
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
        """Return the first faulty index at or behind *index*."""
        at = bisect_left(self._lasts, index)
        return max(index, self._firsts[at]) if at < len(self._firsts) else None

    def add(self, first: int, last: int) -> None:
        """Take in [first, last]; what touches it becomes one range with it."""
        start = bisect_left(self._lasts, first - 1)
        stop = bisect_right(self._firsts, last + 1)
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]
        if len(self._firsts) > _MAX_RANGES:
            self._join_closest()

    def _join_closest(self) -> None:
        gaps = [
            after - before for before, after in zip(self._lasts, self._firsts[1:], strict=False)
        ]
        at = gaps.index(min(gaps))
        del self._lasts[at], self._firsts[at + 1]

    def discard(self, first: int, last: int) -> None:
        """Take [first, last] out: these slots are whole, or gone."""
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

    def truncate(self, last: int) -> None:
        """Forget everything behind *last*."""
        if self._lasts:
            self.discard(last + 1, max(last + 1, self._lasts[-1]))

    def forget_before(self, first: int) -> None:
        """Forget everything below *first*."""
        self.discard(0, first - 1)

    def update(self, other: FaultyRanges) -> None:
        """Take in all of *other*."""
        for each in other.ranges:
            self.add(each.start, each.stop - 1)
