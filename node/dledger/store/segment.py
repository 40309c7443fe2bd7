"""One segment in memory: the positions of its records, and reading some of them back.

Owned by `CommitLog` and `recovery`. A record takes eight bytes of memory, in arrays: a log may have
millions of records, too many for an object each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import CorruptRecord
from dledger.files.files import File
from dledger.files.full import telling_full_disk
from dledger.store.format import (
    ALIGNMENT_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    EncodedRecords,
    decode_body,
    decode_record_header,
    record_size,
)
from dledger.types import Entry

ZEROS = bytes(1 << 20)
SUFFIX = ".seg"
INDEX_SUFFIX = ".idx"
NEW_SUFFIX = ".new"
MAX_RECORDS = 1 << 18
"""Records in a segment, at most: at 32 bytes a row, the last one's identity rows take 8 MiB."""
_DROP_BYTES = 4 << 20
"""How much written data is dropped from the page cache at a time (ADR 16)."""
_PASSING_BYTES = 1 << 20
"""A read of this size is taken for a sequential scan of the log; see `Span.read`."""


def write_zeros(file: File, start: int, stop: int) -> None:
    """Zero bytes [start, stop)."""
    for position in range(start, stop, len(ZEROS)):
        size = min(len(ZEROS), stop - position)
        file.pwritev([memoryview(ZEROS)[:size]], position)


def segment_name(first_index: int) -> str:
    """Return the file name of the segment that begins with *first_index*."""
    return f"{first_index:020}{SUFFIX}"


def index_name(first_index: int) -> str:
    """Return the name of the index file that goes with that segment."""
    return f"{first_index:020}{INDEX_SUFFIX}"


class TermRuns:
    """The term of every index, stored as (first index, term) of each run of equal terms."""

    __slots__ = ("_firsts", "_terms")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._terms: list[int] = []
        self.extend(runs)

    def append(self, index: int, term: int) -> None:
        """Set the term of *index*, the newest entry."""
        if not self._terms or self._terms[-1] != term:
            self._firsts.append(index)
            self._terms.append(term)

    def extend(self, runs: Iterable[tuple[int, int]]) -> None:
        """Append the runs of a later part of the log."""
        for first, term in runs:
            self.append(first, term)

    def term(self, index: int) -> int:
        """Return the term at *index*, which the caller knows to be in the log."""
        return self._terms[bisect_right(self._firsts, index) - 1]

    def truncate(self, last: int) -> None:
        """Forget everything after *last*."""
        keep = bisect_right(self._firsts, last)
        del self._firsts[keep:], self._terms[keep:]

    def forget_before(self, first: int) -> None:
        """Forget everything below *first*."""
        drop = max(0, bisect_right(self._firsts, first) - 1)
        del self._firsts[:drop], self._terms[:drop]

    def within(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of [first, last], the first one beginning at *first*."""
        start = max(0, bisect_right(self._firsts, first) - 1)
        stop = bisect_right(self._firsts, last)
        pairs = zip(self._firsts[start:stop], self._terms[start:stop], strict=True)
        return tuple((max(begin, first), term) for begin, term in pairs)


@dataclass(slots=True)
class Segment:
    """The positions of the records in one segment file.

    Attributes:
        previous_chain: The chain CRC of the record before the segment.
        capacity_bytes: Length of the file.
        end: The byte after the last record; from here on the file holds zeros.
        dirty_end: If above `end`, bytes [end, dirty_end) may hold an old or torn write and must be
            zeroed before the next record is written.
        name: The file's name.
        dropped_end: The bytes below were dropped from the page cache (ADR 16).
    """

    directory: Path
    first_index: int
    previous_chain: int
    capacity_bytes: int
    end: int = SEGMENT_HEADER_BYTES
    dirty_end: int = SEGMENT_HEADER_BYTES
    dropped_end: int = 0
    positions: array[int] = field(default_factory=lambda: array("I"))
    chains: array[int] = field(default_factory=lambda: array("I"))
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = segment_name(self.first_index)

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.directory / self.name

    @property
    def index_path(self) -> Path:
        """The path of its index file, which exists once it is sealed."""
        return self.directory / index_name(self.first_index)

    @property
    def last_index(self) -> int:
        """The index of the last record; first_index - 1 if there is none."""
        return self.first_index + len(self.positions) - 1

    @property
    def last_chain(self) -> int:
        """The chain CRC that the next record continues."""
        return self.chains[-1] if self.chains else self.previous_chain

    def position(self, index: int) -> int:
        """Return the byte at which record *index* begins; for last_index + 1, the end."""
        number = index - self.first_index
        return (
            self.positions[number] * ALIGNMENT_BYTES if number < len(self.positions) else self.end
        )

    def fitting(self, first: int, stop: int, room_bytes: int) -> int:
        """Return the last of records [first, stop] that ends within *room_bytes*, or first-1."""
        limit = self.position(first) + room_bytes
        if self.position(stop + 1) <= limit:
            return stop
        begin, end = first - self.first_index, stop + 1 - self.first_index
        starts_within = bisect_right(self.positions, limit // ALIGNMENT_BYTES, begin, end)
        return self.first_index + starts_within - 2

    def chain(self, index: int) -> int:
        """Return the chain CRC of record *index*, or of the one before the segment."""
        if index < self.first_index:
            return self.previous_chain
        return self.chains[index - self.first_index]

    def room_for(self, entries: Iterable[Entry]) -> int:
        """Return how many of *entries* still fit."""
        room, count = self.capacity_bytes - self.end, 0
        records = MAX_RECORDS - len(self.positions)
        for entry in entries:
            room -= record_size(len(entry.data))
            if room < 0 or count == records:
                break
            count += 1
        return count

    def add(self, encoded: EncodedRecords) -> None:
        """Add records that were written at `end`."""
        self.positions.extend(encoded.positions)
        self.chains.extend(encoded.chains)
        self.end += encoded.size_bytes
        self.dirty_end = max(self.dirty_end, self.end)

    def truncate(self, last: int) -> None:
        """Forget the records after *last*; their bytes stay until they are zeroed."""
        self.end = self.position(last + 1)
        self.dropped_end = min(self.dropped_end, self.end)
        keep = last + 1 - self.first_index
        del self.positions[keep:], self.chains[keep:]

    def sync(self, file: File) -> None:
        """Make the records durable, then drop them from the page cache.

        The log has the newest entries in its own cache (`recent`).

        Raises:
            OSError: The sync failed.
        """
        file.fdatasync()
        if self.end - self.dropped_end >= _DROP_BYTES:
            self.drop_cached(file, max(0, self.dropped_end - _DROP_BYTES))

    def drop_cached(self, file: File, start: int = 0) -> None:
        """Drop synced pages from *start* on, except the last, where the next record begins.

        Pages in one large folio with the last page are not dropped by this call; the next call
        begins a little earlier and drops them.
        """
        file.drop_cached(start, self.end - start)
        self.dropped_end = self.end

    def scrub(self, file: File) -> None:
        """Zero bytes [end, dirty_end) durably, if there are any.

        Raises:
            DiskFull: A copy-on-write file system has no room for zeros; the bytes stay.
            OSError: The write or sync failed.
        """
        if self.dirty_end <= self.end:
            return
        with telling_full_disk(f"zero segment {self.name}"):
            write_zeros(file, self.end, self.dirty_end)
        file.fdatasync()
        self.dirty_end = self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive records of one segment, immutable, so that a reader needs no lock.

    Attributes:
        offsets: Byte offsets of the records, and of the byte after the last one.
        chains: The chain CRC before the first record, and that of each record.
    """

    segment: Segment
    first_index: int
    offsets: tuple[int, ...]
    chains: tuple[int, ...]

    def read(self, file: File) -> list[Entry]:
        """Read the records with one pread and check headers and bodies.

        A large sequential read is dropped from the page cache again: the reader buffers it itself.

        Raises:
            CorruptRecord: The bytes are not what was written, or cannot be read.
        """
        start, stop = self.offsets[0], self.offsets[-1]
        try:
            data = memoryview(file.pread(stop - start, start))
            if stop - start >= _PASSING_BYTES:
                file.drop_cached(start, stop - start)
        except OSError as error:
            only = self.first_index if len(self.offsets) == 2 else None
            reason = f"cannot be read: {error}"
            raise CorruptRecord(self.segment.name, start, reason, index=only) from error
        return [self._entry(data, number) for number in range(len(self.offsets) - 1)]

    def _entry(self, data: memoryview, number: int) -> Entry:
        at, index = self.offsets[number] - self.offsets[0], self.first_index + number
        try:
            header = decode_record_header(data, at, chain=self.chains[number], index=index)
            if header.chain != self.chains[number + 1]:
                raise ValueError(
                    f"chain CRC is {header.chain:#010x}, "
                    f"the index says {self.chains[number + 1]:#010x}"
                )
            body = decode_body(data, at, header)
        except ValueError as error:
            offset = self.offsets[number]
            raise CorruptRecord(self.segment.name, offset, str(error), index=index) from error
        return Entry(
            term=header.term,
            index=index,
            kind=header.kind,
            timestamp_ms=header.timestamp_ms,
            crc32c=header.crc32c,
            data=bytes(body),
        )


def span(segment: Segment, first: int, last: int, max_bytes: int) -> Span:
    """Return the span of [first, last], cut where it would certainly exceed *max_bytes*."""
    offsets, room = [segment.position(first)], max_bytes
    for index in range(first, last + 1):
        offsets.append(segment.position(index + 1))
        room -= offsets[-1] - offsets[-2] - RECORD_HEADER_BYTES - ALIGNMENT_BYTES
        if room < 0:
            break
    before = first - segment.first_index
    chains = (segment.chain(first - 1), *segment.chains[before : before + len(offsets) - 1])
    return Span(segment=segment, first_index=first, offsets=tuple(offsets), chains=chains)
