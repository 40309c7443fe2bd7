"""The messages of a queue in some entries, as they were at one moment.

Taken on the event loop by `ConsumeQueue.part` and read in a thread, for exports. What it refers to
is never changed: sealed runs are immutable, open runs only grow behind it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.queue_index import Runs, SealedRuns

_OPEN_AT_ONCE: Final = 1 << 14
"""How many open runs are copied at once: 450 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceColumns:
    """Consecutive runs without their tags; the columns are those of `queue_index.Runs`.

    Attributes:
        end: The queue offset behind the last run.
    """

    firsts: array[int]
    indexes: array[int]
    starts: array[int]
    ends: array[int]
    rows: array[int]
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePart:
    """Some pieces of a queue.

    Attributes:
        first: The oldest offset in the log's runs.
        entries: The first and the last entry; the pieces may go beyond.
        sealed: The sealed pieces, and in *ends* the queue offset behind each.
        runs: Open runs, of which those in [low, high) of *bounds* count.
        end: The queue offset behind these.
        erased: Which messages of the queue were erased; None if none was.
    """

    first: int
    entries: tuple[int, int]
    sealed: tuple[SealedRuns, ...]
    ends: tuple[int, ...]
    runs: Runs
    bounds: tuple[int, int]
    end: int
    erased: ErasedOffsets | None = None

    @property
    def pieces(self) -> int:
        """About how many times a thousand runs it has."""
        low, high = self.bounds
        return len(self.sealed) + 1 + (high - low) // _OPEN_AT_ONCE

    def columns(self) -> Iterator[PlaceColumns]:
        """Yield the runs, ascending, in parts of some thousand; may be called from any thread.

        A part ends before what was erased: it has no gaps.

        Raises:
            MalformedStateError: A sealed piece is damaged.
        """
        for whole in self._columns():
            if self.erased is None:
                yield whole
            else:
                yield from _left_of(whole, self.erased)

    def _columns(self) -> Iterator[PlaceColumns]:
        for piece, end in zip(self.sealed, self.ends, strict=True):
            found = self._of_sealed(piece, end)
            if found.firsts:
                yield found
        low, high = self.bounds
        for at in range(low, high, _OPEN_AT_ONCE):
            stop = min(at + _OPEN_AT_ONCE, high)
            end = self.runs.firsts[stop] if stop < high else self.end
            yield _columns(self.runs.cut(at, stop), end)

    def _of_sealed(self, piece: SealedRuns, end: int) -> PlaceColumns:
        """Return what lies in the entries, and was not dropped."""
        firsts, indexes = piece.column(0), piece.column(1)
        first_index, last_index = self.entries
        low = max(bisect_left(indexes, first_index), bisect_right(firsts, self.first) - 1)
        high = bisect_right(indexes, last_index)
        end = firsts[high] if high < len(firsts) else end
        firsts = firsts[low:high]
        starts, ends, rows = (piece.column(number)[low:high] for number in (2, 3, 4))
        if firsts and firsts[0] < self.first:  # a run of which only the end is left
            rows[0] += self.first - firsts[0]
            firsts[0] = self.first
        return PlaceColumns(
            firsts=firsts,
            indexes=indexes[low:high],
            starts=starts,
            ends=ends,
            rows=rows,
            end=end,
        )


def _left_of(whole: PlaceColumns, erased: ErasedOffsets) -> Iterator[PlaceColumns]:
    """Yield what is left of consecutive runs."""
    for first, end in erased.pieces(whole.firsts[0], whole.end):
        low, high = bisect_right(whole.firsts, first) - 1, bisect_left(whole.firsts, end)
        firsts, rows = whole.firsts[low:high], whole.rows[low:high]
        rows[0] += first - firsts[0]
        firsts[0] = first
        yield PlaceColumns(
            firsts=firsts,
            indexes=whole.indexes[low:high],
            starts=whole.starts[low:high],
            ends=whole.ends[low:high],
            rows=rows,
            end=end,
        )


def _columns(runs: Runs, end: int) -> PlaceColumns:
    return PlaceColumns(
        firsts=runs.firsts,
        indexes=runs.indexes,
        starts=runs.starts,
        ends=runs.ends,
        rows=runs.rows,
        end=end,
    )
