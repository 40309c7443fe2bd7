"""Read access to an open commit log: without I/O for the event loop, with I/O for reader threads.

`CommitLog` adds everything that changes the log.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from dledger.errors import CorruptRecord, FaultyEntry, StorageError
from dledger.store.export import ExportedRange, RecordRange, cut, extent
from dledger.store.log_index import SealedSegment
from dledger.store.log_state import LogState
from dledger.store.segment import Span, span
from dledger.types import Entry, Membership

_MOST_READ_AGAIN: Final = 64
_INDEX_BYTES: Final = 4096  # its header and the rest of a block
_ROW_BYTES: Final = 12


class LogReader:
    """The part of a commit log that changes nothing on the disk."""

    def __init__(self, state: LogState) -> None:
        self._state, self._index, self._recent = state, state.index, state.recent
        self._disk, self._identity = state.disk, state.identity

    # For the event loop: no I/O.

    @property
    def first_index(self) -> int:
        """The oldest entry kept; 1 while nothing was dropped, even if the log is empty."""
        return self._index.first_index

    @property
    def last_index(self) -> int:
        """The newest entry written; first_index - 1 if there is none."""
        return self._index.last_index

    @property
    def synced_index(self) -> int:
        """The newest entry known to be synced; the last entry just after opening."""
        return self._state.synced_index

    @property
    def truncations(self) -> int:
        """How often the log was truncated; an entry read at an older count may be stale."""
        return self._state.truncations

    @property
    def size_bytes(self) -> int:
        """What the segment files take on disk, preallocated space included."""
        with self._state.lock:
            return sum(segment.capacity_bytes for segment in self._index.segments)

    @property
    def allocated_bytes(self) -> int:
        """What was taken of the disk for segments since the log was opened; it only grows."""
        return self._state.disk.allocated_bytes

    @property
    def disk_bytes(self) -> int:
        """What all files take: segments, the spare one, index files, the watermark.

        It goes through all segments: not for the event loop.
        """
        with self._state.lock:
            segments = list(self._index.segments)
        indexes = sum(_INDEX_BYTES + _ROW_BYTES * len(one.positions) for one in segments[:-1])
        files = sum(one.capacity_bytes for one in segments) + self._state.disk.spare_bytes
        return files + indexes + self._state.watermark.size_bytes

    @property
    def needed_from(self) -> int:
        """The first entry that no durable snapshot covers; see `need_from`."""
        return self._state.needed_from

    @property
    def failure(self) -> str | None:
        """Why the log accepts no more calls (a write or sync failed), or None."""
        return self._state.failure

    @property
    def faulty(self) -> tuple[range, ...]:
        """The entries that are damaged on disk and not yet repaired, ascending.

        Only those that no snapshot covers: see `need_from`.
        """
        with self._state.lock:
            known, first = self._index.faulty.ranges, self._state.needed_from
        return tuple(
            range(max(first, each.start), each.stop) for each in known if each.stop > first
        )

    @property
    def faulty_count(self) -> int:
        """The number of `faulty` entries."""
        return sum([len(each) for each in self.faulty])

    @property
    def is_whole(self) -> bool:
        """Whether no needed entry is known to be damaged."""
        with self._state.lock:
            return self._index.faulty.next(self._state.needed_from) is None

    def need_from(self, index: int) -> None:
        """Note that a durable snapshot covers all below *index*; damage there loses nothing."""
        self._state.needed_from = index

    def is_faulty(self, index: int) -> bool:
        """Whether the entry at *index* is known to be damaged."""
        with self._state.lock:
            return index in self._index.faulty

    def term(self, index: int) -> int:
        """Return the term of the entry at *index*, or at first_index - 1; 0 for index 0.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        with self._state.lock:
            return self._index.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC of the entry at *index*, or at first_index - 1; 0 for index 0.

        Equal chain values mean equal logs up to there.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        with self._state.lock:
            return self._index.chain(index)

    def sealed(self) -> list[SealedSegment]:
        """Return the segments that are not written any more, oldest first."""
        with self._state.lock:
            return self._index.sealed()

    def memberships(self) -> list[tuple[int, Membership]]:
        """Return (index, membership) of all MEMBERSHIP entries kept and not faulty, ascending."""
        with self._state.lock:
            return list(self._index.memberships)

    def membership_indexes(self) -> list[int]:
        """Return the indexes of all MEMBERSHIP entries of the group, those too that are faulty.

        A restored log also holds memberships of the group it was backed up from (see `identity`);
        those are left out.
        """
        with self._state.lock:
            return [at for at in self._index.special if at > self._identity.recovered_to]

    def recent(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries [first, last] from memory: at most *max_bytes* of data, at least one.

        The result also ends at the newest entry written. None if *first* is not in memory.
        """
        with self._state.lock:
            return self._recent.get(first, last, max_bytes)

    def reach(self, first: int, last: int, max_bytes: int) -> tuple[int, int]:
        """Return the last of [first, last] that at most *max_bytes* reach from *first* on.

        Also returns the bytes up to there. No further than the segment, and at least *first* (of no
        bytes, if that is not in the log). No I/O.
        """
        with self._state.lock:
            if not self._index.first_index <= first <= self._index.last_index:
                return first, 0
            segment = self._index.segment_of(first)
            stop = max(first, segment.fitting(first, min(last, segment.last_index), max_bytes))
            return stop, segment.position(stop + 1) - segment.position(first)

    def cut(self, first: int, last: int, target_bytes: int) -> list[RecordRange]:
        """Cut [first, last] into ranges for export; see `export.cut`. No I/O.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
        """
        with self._state.lock:
            self._index.check_range(first, last)
            return cut(self._index.segments, first, last, target_bytes)

    def mark_faulty(self, first: int, last: int, reason: str) -> None:
        """Mark the records of [first, last] that are still in the log as damaged."""
        self._state.mark_faulty(first, last, reason)

    # For reader threads: these block on the disk.

    def read(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries [first, last] from disk: at most *max_bytes* of data, at least one.

        The result also ends before a damaged record, which is then listed in `faulty`.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
            FaultyEntry: The record of *first* is damaged.
            CorruptRecord: A segment's file is missing.
            StorageError: The log has failed.
        """
        entries: list[Entry] = []
        room = max_bytes
        while first <= last and (room >= 0 or not entries):
            if entries and self.is_faulty(first):
                break
            for entry in self._read_span(first, last, room, keep_trying=not entries):
                room -= entry.size_bytes
                if room < 0 and entries:
                    return tuple(entries)
                entries.append(entry)
            if not entries or entries[-1].index < first:
                break
            first = entries[-1].index + 1
        return tuple(entries)

    def reread(self, first: int, last: int) -> tuple[Entry, ...]:
        """Read damaged entries [first, last] again; return those up to the first still damaged.

        A read error may be transient. The returned entries are correct, but stay marked as faulty
        until `repair` writes them again.
        """
        found: list[Entry] = []
        for index in range(first, min(last, first + _MOST_READ_AGAIN - 1) + 1):
            with self._state.lock:
                if index not in self._index.faulty or not self.first_index <= index:
                    continue
                wanted = self._span(index, index, 0)
            with suppress(CorruptRecord, OSError):
                found += wanted.read(self._disk.open(wanted.segment))
        return tuple(found)

    def _read_span(
        self, first: int, last: int, max_bytes: int, *, keep_trying: bool
    ) -> list[Entry]:
        """Return at least one entry; none if *first* is damaged and *keep_trying* is false."""
        while True:
            with self._state.lock:
                self._state.check_usable()
                self._index.check_range(first, last)
                truncations = self._state.truncations
                fault = self._index.faulty.next(first)
                if fault == first:
                    if keep_trying:
                        raise FaultyEntry(first)
                    return []
                end = last if fault is None else min(last, fault - 1)
                wanted = self._span(first, end, max_bytes)
            try:
                return wanted.read(self._disk.open(wanted.segment))
            except CorruptRecord as error:
                last = self._note_damage(error, truncations, first, last)
            except FileNotFoundError as error:
                if truncations == self._state.truncations:
                    raise CorruptRecord(wanted.segment.name, 0, "the segment is missing") from error
            except OSError as error:
                raise StorageError(f"cannot open segment {wanted.segment.name}: {error}") from error

    def _note_damage(self, error: CorruptRecord, truncations: int, first: int, last: int) -> int:
        """Mark the damaged record; return up to where to read next."""
        if truncations != self._state.truncations:
            return last  # the records were truncated during the read; read again
        if error.index is None:
            return first  # it is not known which record is damaged: read them one by one
        self.mark_faulty(error.index, error.index, str(error))
        return last

    def _span(self, first: int, last: int, max_bytes: int) -> Span:
        segment = self._index.segment_of(first)
        return span(segment, first, min(last, segment.last_index), max_bytes)

    def read_extent(self, first: int, last: int, max_bytes: int) -> tuple[ExportedRange, bytes]:
        """Return records from *first* on, unchecked, as they are on disk, from one segment.

        They end at *last* or earlier: at most *max_bytes*, at least one record. For committed
        entries only, because others may be truncated during the read.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
            FaultyEntry: The record of *first* is known to be damaged.
            CorruptRecord: The segment's file is missing.
            StorageError: The log has failed.
        """
        with self._state.lock:
            self._state.check_usable()
            self._index.check_range(first, last)
            fault = self._index.faulty.next(first)
            if fault == first:
                raise FaultyEntry(first)
            end = last if fault is None else min(last, fault - 1)
            wanted = extent(self._index.segment_of(first), first, end, max_bytes)
        try:
            return wanted, wanted.read(self._disk.open(wanted.segment))
        except FileNotFoundError as error:
            with self._state.lock:
                self._index.check_range(first, last)  # retention may have dropped it meanwhile
            raise CorruptRecord(wanted.segment.name, 0, "the segment is missing") from error
