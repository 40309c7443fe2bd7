"""The message group of each message of a queue of a FIFO topic, as a 32-bit code.

Two groups with one code only wait for each other, so the name itself is not kept. Codes do not
compress, and runs that share a group would be as many as messages: so it is a plain column, four
bytes a message, in pieces that are let go as the front of their queue goes. It has an item for each
offset, also where a message is gone.

The pieces are shared with a snapshot's copy: they only ever grow, and each queue knows its own end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from crc32c import crc32c

from dledger.broker.snapshot_codec import Reader, number
from dledger.common.byte_order import little_endian

_BITS: Final = 16
_PIECE: Final = 1 << _BITS
"""Codes of a piece."""
_SLICE: Final = 1 << 12


def codes_of_groups(groups: Sequence[bytes]) -> array[int]:
    """Return the code of each message's group, given by its name in UTF-8."""
    return array("I", map(crc32c, groups))


class GroupCodes:
    """The codes of offsets ``[first, end)``, of which a piece's part before *first* is kept."""

    __slots__ = ("_base", "_pieces")

    def __init__(self) -> None:
        self._base = 0
        self._pieces: list[array[int]] = [array("I")]

    def copy(self) -> GroupCodes:
        """Return a column that may be changed while this one is read up to its own end."""
        other = GroupCodes()
        other._base, other._pieces = self._base, self._pieces[:]
        return other

    def extend(self, codes: array[int]) -> None:
        """Add the codes of the next messages."""
        at = 0
        while at < len(codes):
            if len(self._pieces[-1]) == _PIECE:
                self._pieces.append(array("I"))
            some = codes[at : at + _PIECE - len(self._pieces[-1])]
            self._pieces[-1].extend(some)
            at += len(some)

    def at(self, offset: int) -> int:
        """Return the code at an offset, which must be there."""
        at = offset - self._base
        return self._pieces[at >> _BITS][at & _PIECE - 1]

    def some(self, first: int, end: int) -> array[int]:
        """Return the codes of offsets ``[first, end)``, which must be there."""
        found, at, stop = array("I"), first - self._base, end - self._base
        if at < stop and at >> _BITS == (stop - 1) >> _BITS:  # as nearly always
            start = at & _PIECE - 1
            return self._pieces[at >> _BITS][start : start + stop - at]
        while at < stop:
            piece = at >> _BITS
            last = min(stop, (piece + 1) << _BITS)
            found += self._pieces[piece][at & _PIECE - 1 : last - (piece << _BITS)]
            at = last
        return found

    def drop_before(self, first: int) -> None:
        """Let go of whole pieces below an offset."""
        gone = min((first - self._base) >> _BITS, len(self._pieces) - 1)
        if gone > 0:
            del self._pieces[:gone]
            self._base += gone << _BITS

    def encoded(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the codes of offsets ``[first, end)`` for a snapshot."""
        yield number(end - first)
        for at in range(first, end, _SLICE):
            yield little_endian(self.some(at, min(at + _SLICE, end)))

    @classmethod
    def read(cls, source: Reader, *, first: int, end: int) -> GroupCodes:
        """Read the codes of offsets ``[first, end)``. Raises MalformedStateError."""
        found = cls()
        codes = source.column("I", end - first)
        found._base = first & ~(_PIECE - 1)
        padded = array("I", bytes(4 * (first - found._base))) + codes
        found._pieces = [padded[at : at + _PIECE] for at in range(0, len(padded), _PIECE)]
        found._pieces = found._pieces or [array("I")]
        return found
