"""The offsets of a queue's messages that an ERASE let go, and that still lie in a payload.

They lie over the queue's blocks and the log's runs alike, and cut these where they are
(`consume_queue`). What a REKEEP writes anew, or retention drops, is not among them any more. So
each stands for a message that would be there without it, and numbers are taken by subtraction.
Immutable, so that a snapshot shares it (`editions`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from dledger.broker.snapshot_codec import Reader, ascends, column


class ErasedOffsets:
    """At least one offset."""

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Sequence[int]) -> None:
        """Take *offsets*, which ascend."""
        self._offsets = array("Q", offsets)

    def has(self, offset: int) -> bool:
        """Whether the message at *offset* was erased."""
        at = bisect_left(self._offsets, offset)
        return at < len(self._offsets) and self._offsets[at] == offset

    def count_from(self, offset: int) -> int:
        """Return how many there are from *offset* on."""
        return len(self._offsets) - bisect_left(self._offsets, offset)

    def count_in(self, first: int, end: int) -> int:
        """Return how many there are in ``[first, end)``."""
        return bisect_left(self._offsets, end) - bisect_left(self._offsets, first)

    def next_from(self, first: int, end: int) -> int:
        """Return the lowest one in ``[first, end)``; *end* if there is none."""
        at = bisect_left(self._offsets, first)
        return min(self._offsets[at], end) if at < len(self._offsets) else end

    def behind(self, first: int) -> int:
        """Return the lowest offset from *first* on that is not among these."""
        low = bisect_left(self._offsets, first)
        steps = range(len(self._offsets) - low)
        return first + bisect_right(steps, first, key=lambda step: self._offsets[low + step] - step)

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the pieces of ``[first, end)`` that are left, each as the same."""
        first = self.behind(first)
        while first < end:
            stop = self.next_from(first, end)
            yield first, stop
            first = self.behind(stop)

    def including(self, more: Sequence[int]) -> ErasedOffsets:
        """Return these and *more*, which ascend and are not among these."""
        merged, at = array("Q"), 0
        for offset in more:
            place = bisect_left(self._offsets, offset, at)
            merged += self._offsets[at:place]
            merged.append(offset)
            at = place
        return ErasedOffsets(merged + self._offsets[at:])

    def without(self, first: int, end: int) -> ErasedOffsets | None:
        """Return those that are not in ``[first, end)``; None if there is none."""
        low, high = bisect_left(self._offsets, first), bisect_left(self._offsets, end)
        if low == high:
            return self
        left = self._offsets[:low] + self._offsets[high:]
        return ErasedOffsets(left) if left else None

    def encode(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot."""
        yield from column("Q", len(self._offsets), self._offsets)

    @classmethod
    def read(cls, source: Reader, end: int) -> ErasedOffsets:
        """Read offsets below *end* from a snapshot. Raises MalformedStateError."""
        offsets = source.column("Q")
        if not offsets or not ascends(offsets, end):
            raise source.malformed(f"{len(offsets)} erased offsets that do not ascend to {end}")
        return cls(offsets)

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)
