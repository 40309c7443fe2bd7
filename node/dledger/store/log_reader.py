"""What may be asked of an open commit log: without I/O by the event loop, with I/O by readers.

`CommitLog` adds all that changes the log.
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


class LogReader:
    """The part of a commit log that changes nothing on the disk."""

    def __init__(self, state: LogState) -> None:
        self._state, self._index, self._recent = state, state.index, state.recent
        self._disk, self._identity = state.disk, state.identity

    # What the event loop may ask.

    @property
    def first_index(self) -> int:
        """The oldest entry kept; 1 while nothing was dropped, also when the log is empty."""
        return self._index.first_index

    @property
    def last_index(self) -> int:
        """The newest entry written; first_index - 1 if there is none."""
        return self._index.last_index

    @property
    def synced_index(self) -> int:
        """The newest entry that `sync` vouched for; all of them after opening."""
        return self._state.synced_index

    @property
    def truncations(self) -> int:
        """How often entries were removed; what was read at another count may have changed since."""
        return self._state.truncations

    @property
    def size_bytes(self) -> int:
        """What the segment files take on disk, preallocated space included."""
        with self._state.lock:
            return sum(segment.capacity_bytes for segment in self._index.segments)

    @property
    def needed_from(self) -> int:
        """The first entry that no durable snapshot covers; see `need_from`."""
        return self._state.needed_from

    @property
    def failure(self) -> str | None:
        """Why the log refuses to work (a write or sync failed), or None."""
        return self._state.failure

    @property
    def faulty(self) -> tuple[range, ...]:
        """The entries that are in the log, but damaged on disk, ascending; until `repair`.

        Only those that no snapshot covers: see `need_from`.
        """
        with self._state.lock:
            known, first = self._index.faulty.ranges, self._state.needed_from
        return tuple(
            range(max(first, each.start), each.stop) for each in known if each.stop > first
        )

    @property
    def faulty_count(self) -> int:
        """How many they are."""
        return sum([len(each) for each in self.faulty])

    @property
    def is_whole(self) -> bool:
        """Whether no needed entry is known to be damaged."""
        with self._state.lock:
            return self._index.faulty.next(self._state.needed_from) is None

    def need_from(self, index: int) -> None:
        """Say that a durable snapshot covers what is below *index*: damage there is no loss."""
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

        Not of those before: a restored log has another group's (see `identity`).
        """
        with self._state.lock:
            return [at for at in self._index.special if at > self._identity.recovered_to]

    def recent(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries [first, last] from memory, cut at *max_bytes* of data but at least one.

        The answer also ends at the newest entry written. None if *first* is not in memory.
        """
        with self._state.lock:
            return self._recent.get(first, last, max_bytes)

    def cut(self, first: int, last: int, target_bytes: int) -> list[RecordRange]:
        """Cut [first, last] into ranges for export; see `extent.cut`. No I/O.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
        """
        with self._state.lock:
            self._index.check_range(first, last)
            return cut(self._index.segments, first, last, target_bytes)

    def mark_faulty(self, first: int, last: int, reason: str) -> None:
        """Take the records of [first, last] for damaged from now on, as far as they are kept."""
        self._state.mark_faulty(first, last, reason)

    # What reader threads may ask.

    def read(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries [first, last] from disk, cut at *max_bytes* of data but at least one.

        They also end before one that is damaged, which is noted: see `faulty`.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
            FaultyEntry: The record of *first* is damaged.
            CorruptRecord: A segment's file is gone.
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
        """Return what the disk gives after all of damaged entries [first, last]: the oldest ones.

        A read may fail but once. What is returned is what was there, and still to be repaired.
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
        """Return at least one entry; none if *first* is damaged and *keep_trying* is off."""
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
            return last  # the records were truncated while we read; look again
        if error.index is None:
            return first  # not known which: one by one
        self.mark_faulty(error.index, error.index, str(error))
        return last

    def _span(self, first: int, last: int, max_bytes: int) -> Span:
        segment = self._index.segment_of(first)
        return span(segment, first, min(last, segment.last_index), max_bytes)

    def read_extent(self, first: int, last: int, max_bytes: int) -> tuple[ExportedRange, bytes]:
        """Return records from *first* on as they are on disk, unchecked: one segment's.

        They end at *last* or before, with at most *max_bytes* but at least one record. For
        committed entries only: others may be truncated while they are read.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
            FaultyEntry: The record of *first* is known to be damaged.
            CorruptRecord: The disk does not have them any more.
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
                self._index.check_range(first, last)  # it may have been dropped meanwhile
            raise CorruptRecord(wanted.segment.name, 0, "the segment is missing") from error
