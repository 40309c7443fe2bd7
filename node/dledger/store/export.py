"""Committed records for export, byte for byte as on disk: dividing the log into ranges.

The ranges depend only on the sizes of the records, never on where a node's segments begin, so every
node of a group divides the same log at the same indexes. Called by `CommitLog`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from dledger.errors import CorruptRecord
from dledger.files.files import File
from dledger.store.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """Entries [first_index, last_index]: *size_bytes* of records after *previous_chain*."""

    first_index: int
    last_index: int
    size_bytes: int
    previous_chain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRange:
    """Consecutive records of one segment, immutable, so that a reader needs no lock.

    Attributes:
        offset: The byte of the segment file at which the first record begins.
        size_bytes: The size of all records, headers and padding included.
        starts: Where each record begins in the segment file, in units of 8 bytes.
        previous_chain: The chain CRC of the record before the first.
    """

    segment: Segment
    first_index: int
    offset: int
    size_bytes: int
    starts: array[int]
    previous_chain: int

    @property
    def last_index(self) -> int:
        """The index of the last record."""
        return self.first_index + len(self.starts) - 1

    @property
    def positions(self) -> array[int]:
        """Where each record begins in the extent, in units of 8 bytes."""
        start = self.starts[0]
        return array("I", [position - start for position in self.starts])

    def read(self, file: File) -> bytes:
        """Return the records with one pread, unchecked.

        Raises:
            CorruptRecord: The disk cannot read the records, or the file is too short.
        """
        name, size_bytes = self.segment.name, self.size_bytes
        try:
            data = file.pread(size_bytes, self.offset)
        except OSError as error:
            raise CorruptRecord(name, self.offset, f"cannot be read: {error}") from error
        if len(data) < size_bytes:
            raise CorruptRecord(
                name, self.offset + len(data), f"{len(data)} of {size_bytes} bytes are there"
            )
        return data


def extent(segment: Segment, first: int, last: int, max_bytes: int) -> ExportedRange:
    """Return records from *first* on, not beyond *last*, at most *max_bytes* but at least one."""
    last = max(first, segment.fitting(first, min(last, segment.last_index), max_bytes))
    offset, start = segment.position(first), first - segment.first_index
    return ExportedRange(
        segment=segment,
        first_index=first,
        offset=offset,
        size_bytes=segment.position(last + 1) - offset,
        starts=segment.positions[start : last + 1 - segment.first_index],
        previous_chain=segment.chain(first - 1),
    )


def cut(segments: Iterable[Segment], first: int, last: int, target_bytes: int) -> list[RecordRange]:
    """Cut [first, last], which *segments* hold, into ranges of at most *target_bytes*.

    A larger record gets a range of its own. Each range is as large as possible.
    """
    ranges: list[RecordRange] = []
    start, size_bytes, chain = first, 0, 0
    for segment in segments:
        index, stop = max(first, segment.first_index), min(last, segment.last_index)
        while index <= stop:
            if size_bytes == 0:
                start, chain = index, segment.chain(index - 1)
            fit = segment.fitting(index, stop, target_bytes - size_bytes)
            if fit < index and size_bytes:
                ranges.append(_range(start, index - 1, size_bytes, chain))
                size_bytes = 0
                continue
            fit = max(fit, index)
            size_bytes += segment.position(fit + 1) - segment.position(index)
            index = fit + 1
    if size_bytes:
        ranges.append(_range(start, last, size_bytes, chain))
    return ranges


def _range(first: int, last: int, size_bytes: int, chain: int) -> RecordRange:
    return RecordRange(
        first_index=first, last_index=last, size_bytes=size_bytes, previous_chain=chain
    )
