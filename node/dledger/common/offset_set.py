"""Queue offsets of a range as bits: what Admin.Compact is told, and what it lets go.

Bit ``k % 8``, from the lowest, of byte ``k // 8`` stands for offset ``first + k``; on the wire the
bytes are compressed by zlib.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dledger.errors import InvalidArgument

_FASTEST: Final = 1


class OffsetSet:
    """Some of the queue offsets ``[first, to)``. Others are never in it, and cannot be added."""

    __slots__ = ("_bits", "first", "to")

    def __init__(self, first: int, to: int, offsets: Iterable[int] = ()) -> None:
        self.first, self.to = first, to
        self._bits = bytearray(-(-(to - first) // 8))
        for offset in offsets:
            self.add(offset)

    @classmethod
    def unpack(cls, first: int, to: int, packed: bytes) -> OffsetSet:
        """Return the set that *packed* says; bits behind the last offset count for nothing.

        Raises:
            InvalidArgument: It is no zlib, or has more or fewer bytes than these offsets need. No
                more than that is ever decompressed.
        """
        found = cls(first, to)
        size_bytes = len(found._bits)
        unpacked = zlib.decompressobj()
        try:
            bits = unpacked.decompress(packed, size_bytes + 1)
        except zlib.error as error:
            raise InvalidArgument(f"a bitmap that zlib cannot read: {error}") from error
        if len(bits) != size_bytes or not unpacked.eof or unpacked.unused_data:
            raise InvalidArgument(
                f"a bitmap of offsets [{first}, {to}) has {size_bytes} bytes, in one zlib stream: "
                f"this one has {'more' if len(bits) > size_bytes else len(bits)}, or does not end "
                "there"
            )
        found._set(bits)
        return found

    def pack(self) -> bytes:
        """Return it as it is said on the wire."""
        return zlib.compress(bytes(self._bits), _FASTEST)

    def __contains__(self, offset: int) -> bool:
        at = offset - self.first
        return 0 <= at < self.to - self.first and bool(self._bits[at >> 3] >> (at & 7) & 1)

    def __iter__(self) -> Iterator[int]:
        """Yield the offsets, ascending."""
        for number, byte in enumerate(self._bits):
            if byte:
                at = self.first + 8 * number
                yield from (at + bit for bit in range(8) if byte >> bit & 1)

    def __len__(self) -> int:
        return self.count(self.first, self.to)

    def count(self, first: int, to: int) -> int:
        """Return how many of the offsets ``[first, to)`` are in it."""
        if to - first == 1:  # most slices of a block with gaps
            return int(first in self)
        return self._slice(first, to).bit_count()

    def rows_missing(self, offsets: Sequence[int]) -> list[int]:
        """Return which of some offsets, ascending, are in its range and not in it; by number."""
        bits, first = self._bits, self.first
        low, high = bisect_left(offsets, first), bisect_left(offsets, self.to)
        return [
            row
            for row, offset in enumerate(offsets[low:high], low)
            if not bits[offset - first >> 3] >> (offset - first & 7) & 1
        ]

    def count_missing(self, first: int, to: int) -> int:
        """Return how many of the offsets ``[first, to)`` are in its range and not in it."""
        low, high = max(first, self.first), min(to, self.to)
        return max(0, high - low) - self.count(low, high)

    def last(self, first: int, to: int) -> int | None:
        """Return the highest of the offsets ``[first, to)`` that is in it; None if none is."""
        found = self._slice(first, to)
        return max(first, self.first) + found.bit_length() - 1 if found else None

    def add(self, offset: int) -> None:
        """Put in an offset of the range."""
        at = offset - self.first
        self._bits[at >> 3] |= 1 << (at & 7)

    def discard(self, offset: int) -> None:
        """Take an offset out, if it is in it."""
        if offset in self:
            at = offset - self.first
            self._bits[at >> 3] &= ~(1 << (at & 7))

    def below(self, to: int) -> OffsetSet:
        """Return those that are below *to*."""
        found = OffsetSet(self.first, min(max(to, self.first), self.to))
        found._set(self._bits[: len(found._bits)])
        return found

    def _set(self, bits: bytes | bytearray) -> None:
        """Take these bits, but for those behind the last offset."""
        self._bits[:] = bits
        if bits:
            self._bits[-1] &= 0xFF >> 8 * len(bits) - (self.to - self.first)

    def add_missing(self, first: int, to: int, other: OffsetSet) -> None:
        """Add those of the offsets ``[first, to)`` that are not in *other*, which has its range."""
        low, high = max(first, self.first), min(to, self.to)
        if low >= high:
            return
        found = other._slice(low, high) ^ ((1 << (high - low)) - 1)
        start, stop = (low - self.first) >> 3, ((high - self.first - 1) >> 3) + 1
        found = found << (low - self.first & 7) | int.from_bytes(self._bits[start:stop], "little")
        self._bits[start:stop] = found.to_bytes(stop - start, "little")

    def _slice(self, first: int, to: int) -> int:
        """Return the bits of ``[first, to)``, as far as they are here, the first one lowest."""
        low, high = max(first, self.first) - self.first, min(to, self.to) - self.first
        if low >= high:
            return 0
        found = int.from_bytes(self._bits[low >> 3 : ((high - 1) >> 3) + 1], "little")
        return found >> (low & 7) & ((1 << (high - low)) - 1)
