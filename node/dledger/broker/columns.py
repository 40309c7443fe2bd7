"""The bytes of a snapshot of the broker's state: numbers, texts and whole columns.

Little endian, no padding::

    number        i64
    text, bytes   number of bytes, then those bytes (a text as UTF-8)
    column        number of items, then the items, 4 or 8 bytes each
    strings       column of u32 lengths, then all the bytes they cut up

`Writer` only gathers: what it is given must not change afterwards, so that a thread can turn it
into bytes while the state goes on. `Reader` believes nothing.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise
from operator import lt
from typing import Final, Literal, TypeVar

_T = TypeVar("_T")
TypeCode = Literal["I", "Q", "q"]

FORMAT: Final = 3
"""What a snapshot is written in. Format 1 has every message id by itself; 2 and below do not say
of a lease whether its message arrived."""

_NUMBER = struct.Struct("<q")
_SLICE: Final = 1 << 12
"""What is converted in one go, some 0.2 ms, so that other threads get their turn."""


class MalformedStateError(ValueError):
    """The bytes are no snapshot of a broker's state; the message says where and why."""


class Writer:
    """Gathers the parts of a snapshot."""

    def __init__(self) -> None:
        self._parts: list[bytes | Callable[[], Iterable[bytes]]] = []

    def number(self, value: int) -> None:
        """Add a whole number."""
        self._parts.append(_NUMBER.pack(value))

    def text(self, value: str) -> None:
        """Add a text; one that is not Unicode, as JSON allows, is kept as it is."""
        data = value.encode("utf-8", "surrogatepass")
        self._parts += (_NUMBER.pack(len(data)), data)

    def column(self, column: array[int]) -> None:
        """Add a copy of a column."""
        self._parts += (_NUMBER.pack(len(column)), _little_endian(column))

    def pieces(self, count: int, make: Callable[[], Iterable[array[int]]]) -> None:
        """Add a column of *count* items, which *make* returns piece by piece, later."""
        self.number(count)
        self._parts.append(lambda: map(_little_endian, make()))

    def numbers(self, code: TypeCode, values: Sequence[int]) -> None:
        """Add a column; *values* is kept, not copied."""
        self.pieces(len(values), lambda: in_arrays(code, values))

    def strings(self, count: int, make: Callable[[], Iterable[bytes]]) -> None:
        """Add *count* short byte strings, which *make* returns, later, twice."""
        self.pieces(count, lambda: in_arrays("I", map(len, make())))
        self._parts.append(lambda: map(b"".join, _sliced(make())))

    def encoded(self) -> Iterator[bytes]:
        """Return all that was added, in order, in small pieces. Takes long; for a thread."""
        pieces = ([part] if isinstance(part, bytes) else part() for part in self._parts)
        return chain.from_iterable(pieces)


def in_arrays(code: TypeCode, values: Iterable[int]) -> Iterator[array[int]]:
    """Return a column in small pieces."""
    return (array(code, some) for some in _sliced(values))


def _sliced(values: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(values)
    return iter(lambda: list(islice(rest, _SLICE)), [])


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder != "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


class Reader:
    """Takes the parts of a snapshot, in the order in which they were written in *version*."""

    def __init__(self, data: bytes, version: int = FORMAT) -> None:
        self.version = version
        self._data = memoryview(data)
        self._position = 0

    def _take(self, size: int) -> memoryview:
        end = self._position + size
        if not self._position <= end <= len(self._data):
            raise self.malformed(f"{size} bytes wanted, {len(self._data)} are there")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def malformed(self, reason: str) -> MalformedStateError:
        """Return the error that says where we are and what is wrong there."""
        return MalformedStateError(f"broker state at byte {self._position}: {reason}")

    def number(self, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return a number in [low, high]. Raises MalformedStateError."""
        (value,) = _NUMBER.unpack(self._take(_NUMBER.size))
        if not low <= value <= high:
            raise self.malformed(f"{value} is outside [{low}, {high}]")
        return int(value)

    def text(self) -> str:
        """Return a text. Raises MalformedStateError."""
        data = self._take(self.number())
        try:
            return str(data, "utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self.malformed(str(error)) from error

    def column(self, code: TypeCode, count: int | None = None) -> array[int]:
        """Return a column; of *count* items if given. Raises MalformedStateError."""
        found = array(code)
        items = self.number()
        if count is not None and items != count:
            raise self.malformed(f"a column of {items} items beside one of {count}")
        found.frombytes(self._take(items * found.itemsize))
        if sys.byteorder != "little":
            found.byteswap()
        return found

    def strings(self, count: int | None = None) -> list[bytes]:
        """Return byte strings; *count* of them if given. Raises MalformedStateError."""
        lengths = self.column("I", count)
        data = bytes(self._take(sum(lengths)))
        return [data[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]

    def end(self) -> None:
        """Check that nothing is left. Raises MalformedStateError."""
        if self._position != len(self._data):
            raise self.malformed(f"{len(self._data) - self._position} bytes too many")


def ascends(column: Sequence[int], end: int) -> bool:
    """Whether each item is above the one before, and all are below *end*."""
    return all(map(lt, column, column[1:])) and (not column or column[-1] < end)
