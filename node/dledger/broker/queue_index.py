"""Runs of messages as columns: open ones, which grow, and sealed ones, at a fifth of the size.

Owned by `log_runs`. Old runs are sealed because a queue may have very many of them: compressed
they take about 7 bytes each instead of 36, and a snapshot shares them by reference.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from dledger.broker.snapshot_codec import MalformedStateError, Reader
from dledger.common.byte_order import TypeCode, from_little_endian, little_endian

CODES: Final[tuple[TypeCode, ...]] = ("Q", "Q", "I", "I", "I", "Q")
_FASTEST: Final = 1
_OPENED: Final = 64
"""Decompressed pieces cached for all queues together, at about 40 KB each."""
_MAX_STRIDE: Final = (1 << 32) - 1
_LOOKED_AT_BYTES: Final = 1 << 11
_SEALED: Final = struct.Struct("<QIQQI6I")
"""The attributes of sealed runs, and how many bytes each column takes."""


class Runs:
    """Consecutive runs, one column for each attribute. Append-only: a part is a new `Runs`.

    Attributes:
        firsts: The queue offset of each run's first message.
        indexes: The index of its entry.
        starts: The byte of the entry's data at which its payload begins.
        ends: The byte after its payload.
        rows: The row of its first message in the payload.
        codes: The tag code shared by all its messages.
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
        """Return the number of the run that holds *offset*, at or after the first one's."""
        return bisect_right(self.firsts, offset) - 1

    def below(self, index: int) -> int:
        """Return how many of the runs are in entries below *index*."""
        return bisect_left(self.indexes, index)

    def same_payload(self, one: int, other: int) -> bool:
        """Whether two runs are in one payload."""
        return self.indexes[one] == self.indexes[other] and self.starts[one] == self.starts[other]

    def cut(self, start: int, end: int | None = None) -> Runs:
        """Return the runs [*start*, *end*), as they are now."""
        return Runs([column[start:end] for column in self.columns()])


class SealedRuns:
    """Runs that are complete, compressed.

    Attributes:
        first: The queue offset of the first message.
        stride: The distance between consecutive first offsets; 0 if it is not constant.
        count: The number of runs.
        first_index: The entry of the first run.
        last_index: The entry of the last run.
    """

    __slots__ = ("_columns", "count", "first", "first_index", "last_index", "stride")

    def __init__(
        self,
        columns: Sequence[bytes],
        *,
        first: int,
        stride: int,
        count: int,
        first_index: int,
        last_index: int,
    ) -> None:
        """Wrap columns that are compressed already; see `seal`."""
        self._columns, self.first, self.stride, self.count = tuple(columns), first, stride, count
        self.first_index, self.last_index = first_index, last_index

    def column(self, number: int) -> array[int]:
        """Return one of the columns, by its number in `CODES`; may be called from any thread."""
        column = from_little_endian(CODES[number], zlib.decompress(self._columns[number]))
        if len(column) != self.count:
            raise MalformedStateError(f"{len(column)} sealed runs instead of {self.count}")
        return column

    def below(self, index: int) -> int:
        """Return how many of the runs are in entries below *index*.

        At most `count` - 1, because the last run is not. Only the columns needed are decompressed.
        """
        runs, stream, data = 0, zlib.decompressobj(), self._columns[1]
        while index > self.first_index:
            some = from_little_endian(CODES[1], stream.decompress(data, _LOOKED_AT_BYTES))
            data = stream.unconsumed_tail
            if not some:
                raise MalformedStateError(f"{self.count} sealed runs have no entry {index}")
            if some[-1] >= index:
                return runs + bisect_left(some, index)
            runs += len(some)
        return 0

    def first_of(self, run: int) -> int:
        """Return the queue offset of one run's first message."""
        return self.first + run * self.stride if self.stride else self.column(0)[run]

    def encoded(self) -> Iterator[bytes]:
        """Yield the runs for a snapshot, in their compressed form."""
        sizes = map(len, self._columns)
        bounds = (self.first, self.stride, self.first_index, self.last_index, self.count)
        yield _SEALED.pack(*bounds, *sizes)
        yield from self._columns

    @classmethod
    def read(cls, source: Reader) -> SealedRuns:
        """Read sealed runs from a snapshot, still compressed. Raises MalformedStateError."""
        first, stride, first_index, last_index, count, *sizes = source.fields(_SEALED)
        if not count or first_index > last_index:
            raise source.malformed(f"{count} runs in entries [{first_index}, {last_index}]")
        columns = [source.raw(size) for size in sizes]
        return cls(
            columns,
            first=first,
            stride=stride,
            count=count,
            first_index=first_index,
            last_index=last_index,
        )


def seal(runs: Runs) -> SealedRuns:
    """Return *runs*, of which there is at least one, compressed."""
    return SealedRuns(
        [zlib.compress(little_endian(column), _FASTEST) for column in runs.columns()],
        first=runs.firsts[0],
        stride=_stride(runs.firsts),
        count=len(runs),
        first_index=runs.indexes[0],
        last_index=runs.indexes[-1],
    )


def _stride(firsts: array[int]) -> int:
    stride = firsts[1] - firsts[0] if len(firsts) > 1 else 0
    even = range(firsts[0], firsts[0] + stride * len(firsts), stride or 1)
    return stride if stride <= _MAX_STRIDE and firsts == array(CODES[0], even) else 0


@lru_cache(maxsize=_OPENED)
def opened(sealed: SealedRuns) -> Runs:
    """Return the runs, which must not be changed."""
    return Runs([sealed.column(number) for number in range(len(CODES))])
