"""Columns of strings and of lists of strings in a payload, written and seen where they lie.

::

    strings of m items:  u32[m+1] offsets (the first is 0), then the bytes they cut up
    lists of n items:    u32[n+1] offsets (the first is 0), then strings of as many as the last

That is the layout of Arrow's ``binary`` and ``list`` arrays. Used by `produce`, whose diagram says
which columns there are.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise, repeat
from operator import sub

from dledger.broker.body_digests import Digests, digests_of, digests_of_one_size
from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.id_runs import Ids, run_from

_PAIR = struct.Struct("<2I")
_U32 = struct.Struct("<I")
_LONG_ID_BYTES = 64
_COPIED_BYTES = 1024
"""Bodies up to this average size are copied to be hashed: a copy is cheaper than a view."""


def texts(items: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a column of texts."""
    return strings(list(map(str.encode, items)))


def strings(items: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return a column of byte strings."""
    return offsets_of(map(len, items)), b"".join(items)


def lists(items: Sequence[Collection[str]]) -> tuple[bytes, bytes, bytes]:
    """Return a column of lists of texts."""
    return (offsets_of(map(len, items)), *texts(list(chain.from_iterable(items))))


def offsets_of(lengths: Iterable[int]) -> bytes:
    """Return the offsets of strings of these lengths, which follow each other from 0 on."""
    offsets = tuple(accumulate(lengths, initial=0))
    return struct.pack(f"<{len(offsets)}I", *offsets)


@lru_cache(maxsize=128)
def _of_one_size(count: int, size: int) -> tuple[bytes, struct.Struct]:
    """Return the offsets of *count* strings of *size* bytes each, and the struct to split them."""
    return offsets_of(repeat(size, count)), struct.Struct(f"{size}s" * count)


class Strings:
    """A column of byte strings inside a payload; `end` is where the next column starts."""

    __slots__ = ("_bytes_at", "_count", "_data", "_offsets_at", "end", "size_bytes")

    def __init__(self, data: bytes, start: int, end: int, count: int) -> None:
        self._data, self._count, self._offsets_at = data, count, start
        self._bytes_at = start + 4 * (count + 1)
        if self._bytes_at > end:
            raise MalformedCommandError(f"column of {count} strings at byte {start} is cut short")
        self.end: int = self._bytes_at + _U32.unpack_from(data, self._bytes_at - 4)[0]
        if self.end > end:
            raise MalformedCommandError(f"strings at byte {self._bytes_at} end after the payload")
        self.size_bytes: int = self.end - self._bytes_at

    def offsets(self) -> tuple[int, ...]:
        """Return the offsets. Raises MalformedCommandError."""
        offsets = struct.unpack_from(f"<{self._count + 1}I", self._data, self._offsets_at)
        if offsets[0] != 0 or list(offsets) != sorted(offsets):
            raise MalformedCommandError(f"offsets at byte {self._offsets_at} do not ascend from 0")
        return offsets

    def sizes(self) -> list[int]:
        """Return the bytes of each string. Raises MalformedCommandError."""
        offsets = self.offsets()
        return list(map(sub, offsets[1:], offsets))

    def all(self) -> list[bytes]:
        """Return every string. Raises MalformedCommandError."""
        offsets, base, data = self.offsets(), self._bytes_at, self._data
        return [data[base + low : base + high] for low, high in pairwise(offsets)]

    def some(self, rows: Sequence[int]) -> list[bytes]:
        """Return the strings in some rows. Raises MalformedCommandError."""
        offsets, base, data = self.offsets(), self._bytes_at, self._data
        return [data[base + offsets[row] : base + offsets[row + 1]] for row in rows]

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Return the same as texts. Raises ValueError."""
        return [*map(bytes.decode, self.some(rows))]

    def texts_between(self, first: int, stop: int) -> list[str]:
        """Return the strings of rows ``[first, stop)`` as texts, cut at once. Raises ValueError."""
        offsets, base = self.offsets()[first : stop + 1], self._bytes_at
        if len(offsets) < 2:
            return []
        low = offsets[0]
        joined = self._data[base + low : base + offsets[-1]]
        if joined.isascii():  # as most are: then each character is a byte
            text = joined.decode()
            return [text[start - low : end - low] for start, end in pairwise(offsets)]
        return [joined[start - low : end - low].decode() for start, end in pairwise(offsets)]

    def check_text(self, name: str) -> None:
        """Check that each, a *name*, is UTF-8. Raises MalformedCommandError, naming the row."""
        if self.joined().isascii():
            return
        for row, each in enumerate(self.all()):
            try:
                each.decode()
            except UnicodeDecodeError as error:
                raise MalformedCommandError(
                    f"row {row}: its {name} is not UTF-8: {error.reason}"
                ) from error

    def digests(self) -> Digests:
        """Return the digest of each string; a copy is cheaper than a view of a few bytes."""
        if self.size_bytes > _COPIED_BYTES * self._count:
            offsets, view = self.offsets(), memoryview(self._data)[self._bytes_at :]
            return digests_of([view[low:high] for low, high in pairwise(offsets)])
        rows = self._rows(_COPIED_BYTES)
        if rows is None:
            return digests_of(self.all())
        bodies = rows.unpack_from(self._data, self._bytes_at)
        return digests_of_one_size(bodies, rows.size // self._count)

    def joined(self) -> bytes:
        """Return all the strings, concatenated."""
        return self._data[self._bytes_at : self.end]

    def all_ids(self) -> tuple[bytes, ...]:
        """Return the same as `all`, faster if all have one size, as most clients' ids do."""
        rows = self._rows()
        return tuple(self.all()) if rows is None else rows.unpack_from(self._data, self._bytes_at)

    def ids(self) -> Ids:
        """Return the same as one run, if they are one."""
        rows = self._rows()
        if rows is None:
            return tuple(self.all())
        size = rows.size // self._count
        run = run_from(self._data[self._bytes_at : self._bytes_at + size], self._count)
        if run is not None and self._data.startswith(run.joined(), self._bytes_at):
            return run
        return rows.unpack_from(self._data, self._bytes_at)

    def _rows(self, longest: int = _LONG_ID_BYTES) -> struct.Struct | None:
        """Return the struct that splits strings of one size; None if sizes differ or are large."""
        size, more = divmod(self.size_bytes, self._count)
        if more or size > longest:
            return None
        offsets, rows = _of_one_size(self._count, size)
        return rows if self._data.startswith(offsets, self._offsets_at) else None

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < self._count:
            raise MalformedCommandError(f"string {row} of {self._count}")
        low, high = _PAIR.unpack_from(self._data, self._offsets_at + 4 * row)
        if not low <= high <= self.size_bytes:
            raise MalformedCommandError(f"offsets at byte {self._offsets_at} do not ascend from 0")
        return self._data[self._bytes_at + low : self._bytes_at + high]


class Lists:
    """A column of lists of strings; its *columns* of strings share the lists' offsets."""

    __slots__ = ("_count", "_data", "_offsets_at", "columns", "end")

    def __init__(self, data: bytes, start: int, end: int, count: int, *, columns: int) -> None:
        self._data, self._count, self._offsets_at = data, count, start
        position = start + 4 * (count + 1)
        if position > end:
            raise MalformedCommandError(f"column of {count} lists at byte {start} is cut short")
        items = _U32.unpack_from(data, position - 4)[0]
        self.columns: list[Strings] = []
        for _ in range(columns):
            self.columns.append(Strings(data, position, end, items))
            position = self.columns[-1].end
        self.end = position

    def _offsets(self) -> tuple[int, ...]:
        offsets = struct.unpack_from(f"<{self._count + 1}I", self._data, self._offsets_at)
        if offsets[0] != 0 or list(offsets) != sorted(offsets):
            raise MalformedCommandError(f"list offsets at byte {self._offsets_at} do not ascend")
        return offsets

    def all(self) -> list[list[bytes]]:
        """Return every list of the first column."""
        items = self.columns[0].all()
        return [items[low:high] for low, high in pairwise(self._offsets())]

    def texts(self, rows: Sequence[int], column: int) -> list[tuple[str, ...]]:
        """Return the lists in some rows, of one of the columns, as texts. Raises ValueError."""
        if not rows:
            return []
        offsets = self._offsets()
        low = offsets[min(rows)]
        items = self.columns[column].texts_between(low, offsets[max(rows) + 1])
        return [tuple(items[offsets[row] - low : offsets[row + 1] - low]) for row in rows]

    def range(self, row: int) -> range:
        """Return which strings are those of one list. Raises MalformedCommandError."""
        low, high = _PAIR.unpack_from(self._data, self._offsets_at + 4 * row)
        if low > high:
            raise MalformedCommandError(f"list offsets at byte {self._offsets_at} do not ascend")
        return range(low, high)
