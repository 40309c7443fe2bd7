"""Runs of messages by columns: open ones that grow, sealed ones that take a fifth of the room."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from dledger.broker.columns import TypeCode

CODES: Final[tuple[TypeCode, ...]] = ("Q", "Q", "I", "I", "I", "Q")
_FASTEST: Final = 1
_OPENED: Final = 64
"""Sealed runs that stay open once they were looked at, of all queues together: some 40 KB each."""


class Runs:
    """Neighbouring runs, a column an attribute.

    Attributes:
        firsts: The queue offset of each run's first message.
        indexes: The entry it is in.
        starts: Where its payload begins in the entry's data.
        ends: Where that ends.
        rows: The row of the first message in the payload.
        codes: The tag code that all its messages have.
    """

    __slots__ = ("codes", "ends", "firsts", "indexes", "rows", "starts")

    def __init__(self, columns: Sequence[array[int]] = ()) -> None:
        given = columns or [array(code) for code in CODES]
        self.firsts, self.indexes, self.starts, self.ends, self.rows, self.codes = given

    def __len__(self) -> int:
        return len(self.firsts)

    def columns(self) -> tuple[array[int], ...]:
        """Return the columns, in the order of `CODES`."""
        return (self.firsts, self.indexes, self.starts, self.ends, self.rows, self.codes)

    def add(  # noqa: PLR0917 - one a column
        self, first: int, index: int, start: int, end: int, row: int, code: int
    ) -> None:
        """Add one run."""
        self.firsts.append(first)
        self.indexes.append(index)
        self.starts.append(start)
        self.ends.append(end)
        self.rows.append(row)
        self.codes.append(code)

    def at(self, offset: int) -> int:
        """Return the number of the run that holds *offset*, at or behind the first one's."""
        return bisect_right(self.firsts, offset) - 1

    def below(self, index: int) -> int:
        """Return how many of the runs are in entries below *index*."""
        return bisect_left(self.indexes, index)

    def same_payload(self, one: int, other: int) -> bool:
        """Whether two runs are in one payload."""
        return self.indexes[one] == self.indexes[other] and self.starts[one] == self.starts[other]

    def take(self, count: int) -> Runs:
        """Remove and return the first *count* runs."""
        taken = Runs([column[:count] for column in self.columns()])
        for column in self.columns():
            del column[:count]
        return taken


class SealedRuns:
    """Runs that take no more, compressed.

    Attributes:
        count: How many.
        last_index: The entry of the last run.
    """

    __slots__ = ("_columns", "count", "last_index")

    def __init__(self, runs: Runs) -> None:
        self.count, self.last_index = len(runs), runs.indexes[-1]
        self._columns = [zlib.compress(column, _FASTEST) for column in runs.columns()]

    def column(self, number: int) -> array[int]:
        """Return one of the columns, by its place in `CODES`; for any thread."""
        column = array(CODES[number])
        column.frombytes(zlib.decompress(self._columns[number]))
        return column


@lru_cache(maxsize=_OPENED)
def opened(sealed: SealedRuns) -> Runs:
    """Return the runs, which must not be changed."""
    return Runs([sealed.column(number) for number in range(len(CODES))])
