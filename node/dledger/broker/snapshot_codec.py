"""The bytes of a snapshot of the broker's state: numbers, texts and whole columns.

Little endian, no padding::

    number        i64
    text, blob    number of bytes, then those bytes (a text as UTF-8)
    column        number of items, then the items, 4 or 8 bytes each
    strings       column of u32 lengths, then all the bytes they cut up

Writers yield small pieces, encoded on demand: a thread writes them to disk one by one, from parts
of the state that no longer change (`editions`). `Reader` treats the bytes as untrusted and checks
everything.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from operator import lt
from typing import Final, TypeVar

from dledger.common.byte_order import TypeCode, from_little_endian, little_endian

_T = TypeVar("_T")
Encoded = Callable[[], Iterator[bytes]]
"""Encodes a part of the state that no longer changes, in pieces; may be called from any thread."""

FORMAT: Final = 8
"""The format version of the snapshots that this version writes."""

_NUMBER = struct.Struct("<q")
_SLICE: Final = 1 << 12
"""Items converted at a time, about 0.2 ms, so that other threads get their turn."""
_PIECE_BYTES: Final = 1 << 16


class MalformedStateError(ValueError):
    """The bytes are not a snapshot of a broker's state; the message says where and why."""


def number(value: int) -> bytes:
    """Return a whole number's bytes."""
    return _NUMBER.pack(value)


def text(value: str) -> bytes:
    """Return a text's bytes; lone surrogates, which JSON allows, are kept as they are."""
    return blob(text_bytes(value))


def text_bytes(value: str) -> bytes:
    """Return the bytes of a text as an item of `strings`."""
    return value.encode("utf-8", "surrogatepass")


def blob(data: bytes) -> bytes:
    """Return bytes with their length in front."""
    return _NUMBER.pack(len(data)) + data


def column(code: TypeCode, count: int, values: Iterable[int]) -> Iterator[bytes]:
    """Yield a column of *count* items in small pieces."""
    yield number(count)
    for some in _sliced(values):
        yield little_endian(array(code, some))


def arrays(parts: Sequence[array[int]]) -> Iterator[bytes]:
    """Yield the items of some arrays of one type as one column, in small pieces."""
    yield number(sum(map(len, parts)))
    for part in parts:
        for first in range(0, len(part), _SLICE):
            yield little_endian(part[first : first + _SLICE])


def strings(items: Sequence[bytes]) -> Iterator[bytes]:
    """Yield short byte strings in small pieces."""
    yield from column("I", len(items), map(len, items))
    yield from map(b"".join, _sliced(items))


def _sliced(values: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(values)
    return iter(lambda: list(islice(rest, _SLICE)), [])


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of about 64 KiB, worth a checksum and a write each."""
    some, size_bytes = list[bytes](), 0
    for piece in pieces:
        some.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _PIECE_BYTES:
            yield b"".join(some)
            some, size_bytes = [], 0
    yield b"".join(some)


class Reader:
    """Reads the parts of a snapshot, in the order in which they were written."""

    def __init__(self, data: bytes | memoryview) -> None:
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
        """Return an error that gives the present position and *reason*."""
        return MalformedStateError(f"broker state at byte {self._position}: {reason}")

    def number(self, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return a number in [low, high]. Raises MalformedStateError."""
        (value,) = _NUMBER.unpack(self._take(_NUMBER.size))
        if not low <= value <= high:
            raise self.malformed(f"{value} is outside [{low}, {high}]")
        return int(value)

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the numbers of a struct. Raises MalformedStateError."""
        return form.unpack(self._take(form.size))

    def raw(self, size: int) -> bytes:
        """Return the next *size* bytes. Raises MalformedStateError."""
        return bytes(self._take(size))

    def text(self) -> str:
        """Return a text. Raises MalformedStateError."""
        return self.text_of(self.raw(self.number()))

    def text_of(self, data: bytes) -> str:
        """Return an item of `strings` as a text. Raises MalformedStateError."""
        try:
            return str(data, "utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self.malformed(str(error)) from error

    def column(self, code: TypeCode, count: int | None = None) -> array[int]:
        """Return a column; of *count* items if given. Raises MalformedStateError."""
        items = self.number()
        if count is not None and items != count:
            raise self.malformed(f"a column of {items} items beside one of {count}")
        return self.items(code, items)

    def items(self, code: TypeCode, count: int) -> array[int]:
        """Return *count* items. Raises MalformedStateError."""
        return from_little_endian(code, self._take(count * array(code).itemsize))

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
