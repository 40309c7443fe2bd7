"""The commit log: the durable list of entries, in segments. The only writer of ``log/``.

Threads: `append`, `sync` and `prepare` belong to writer threads and block on the disk; `read` may
run in any number of reader threads; `term`, `recent`, `memberships` and the properties never do
I/O and are for the event loop. Two locks make that safe: `_writing` serialises writers and is held
during I/O; `_state` guards the metadata, is never held during I/O, and is all that the loop takes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dledger.errors import CorruptRecord, DiskFull, NotJoined, StorageError
from dledger.store.extent import Extent, RecordRange, cut, extent
from dledger.store.files import Files, disk_full_on_enospc
from dledger.store.format import Base, encode_records, record_size
from dledger.store.identity import Identity
from dledger.store.log_index import LogIndex, SealedSegment
from dledger.store.recent import RecentEntries
from dledger.store.recovery import Survey, check, repair, survey, write_index
from dledger.store.segment import Segment, Span, span
from dledger.store.segment_files import SegmentFiles
from dledger.store.watermark import Watermark
from dledger.types import Entry, EntryKind, Membership

_log = logging.getLogger(__name__)

Durability = Literal["sync", "osBuffer"]


class CommitLog:
    """An open commit log; see the module for which thread may call what."""

    def __init__(
        self,
        segment_files: SegmentFiles,
        found: Survey,
        watermark: Watermark,
        *,
        identity: Identity,
        cache_bytes: int,
        durability: Durability,
    ) -> None:
        self._disk = segment_files
        self._watermark = watermark
        self._identity = identity
        self._durability = durability
        self._index = LogIndex(found.mark.base, found.last_index, found.segments, found.runs)
        self._synced_index = found.last_index
        self._recent = RecentEntries(cache_bytes)
        self._truncations = 0
        self._failure: str | None = None
        self._writing = threading.Lock()
        self._state = threading.Lock()

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        *,
        identity: Identity,
        segment_bytes: int = 64 << 20,
        cache_bytes: int = 64 << 20,
        reserve_bytes: int = 16 << 20,
        durability: Durability = "sync",
    ) -> CommitLog:
        """Recover the log in *directory*; everything it then holds is durable.

        Args:
            files: The file system.
            directory: The ``log`` directory, as formatting the disk made it.
            identity: Who the log must belong to. While Unjoined the log is empty and refuses
                entries; open it again after joining.
            segment_bytes: Length of a segment file; a larger entry gets a larger one.
            cache_bytes: Bound of the newest entries kept in memory for `recent`.
            reserve_bytes: Free disk space that segments never take, so that hard state can
                always be saved.
            durability: "osBuffer" lets `sync` return before the disk has the entries.

        Raises:
            CorruptRecord: A record that was synced is damaged or missing.
            CorruptFile: The watermark is damaged or missing.
            WrongIdentity: The log belongs to another node or group.
            StorageError: The disk failed.
        """
        watermark = Watermark.open(files, directory)
        try:
            found = survey(files, directory, watermark.mark, identity)
            check(found)
            repair(files, directory, found, watermark)
        except OSError as error:
            raise StorageError(f"cannot recover the log in {directory}: {error}") from error
        disk = SegmentFiles(
            files, directory, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes
        )
        log = cls(
            disk,
            found,
            watermark,
            identity=identity,
            cache_bytes=cache_bytes,
            durability=durability,
        )
        log._index.memberships = [log._load_membership(index) for index in found.memberships]
        return log

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
        return self._synced_index

    @property
    def size_bytes(self) -> int:
        """What the segment files take on disk, preallocated space included."""
        with self._state:
            return sum(segment.capacity_bytes for segment in self._index.segments)

    @property
    def failure(self) -> str | None:
        """Why the log refuses to work (a write or sync failed), or None."""
        return self._failure

    def term(self, index: int) -> int:
        """Return the term of the entry at *index*, or at first_index - 1; 0 for index 0.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        with self._state:
            return self._index.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC of the entry at *index*, or at first_index - 1; 0 for index 0.

        Equal chain values mean equal logs up to there.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        with self._state:
            return self._index.chain(index)

    def sealed(self) -> list[SealedSegment]:
        """Return the segments that are not written any more, oldest first."""
        with self._state:
            return self._index.sealed()

    def memberships(self) -> list[tuple[int, Membership]]:
        """Return (index, membership) of all MEMBERSHIP entries kept, ascending."""
        with self._state:
            return list(self._index.memberships)

    def recent(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries [first, last] from memory, cut at *max_bytes* of data but at least one.

        The answer also ends at the newest entry written. None if *first* is not in memory.
        """
        with self._state:
            return self._recent.get(first, last, max_bytes)

    # What reader threads may ask.

    def read(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries [first, last] from disk, cut at *max_bytes* of data but at least one.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
            CorruptRecord: The disk does not give back what was written.
            StorageError: The log has failed.
        """
        entries: list[Entry] = []
        room = max_bytes
        while first <= last and (room >= 0 or not entries):
            for entry in self._read_span(first, last, room):
                room -= entry.size_bytes
                if room < 0 and entries:
                    return tuple(entries)
                entries.append(entry)
            first = entries[-1].index + 1
        return tuple(entries)

    def _read_span(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        while True:
            with self._state:
                self._check_usable()
                self._index.check_range(first, last)
                truncations = self._truncations
                wanted = self._span(first, last, max_bytes)
            try:
                return wanted.read(self._disk.open(wanted.segment))
            except (CorruptRecord, FileNotFoundError) as error:
                if truncations != self._truncations:
                    continue  # the records were truncated while we read; look again
                if isinstance(error, CorruptRecord):
                    raise
                raise CorruptRecord(wanted.segment.name, 0, "the segment is missing") from error

    def _span(self, first: int, last: int, max_bytes: int) -> Span:
        segment = self._index.segment_of(first)
        return span(segment, first, min(last, segment.last_index), max_bytes)

    def cut(self, first: int, last: int, target_bytes: int) -> list[RecordRange]:
        """Cut [first, last] into ranges for export; see `extent.cut`. No I/O.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
        """
        with self._state:
            self._index.check_range(first, last)
            return cut(self._index.segments, first, last, target_bytes)

    def read_extent(self, first: int, last: int, max_bytes: int) -> tuple[Extent, bytes]:
        """Return records from *first* on as they are on disk, unchecked: one segment's.

        They end at *last* or before, with at most *max_bytes* but at least one record. For
        committed entries only: others may be truncated while they are read.

        Raises:
            OffsetOutOfRange: The log does not hold all of [first, last].
            CorruptRecord: The disk does not have them any more.
            StorageError: The log has failed.
        """
        with self._state:
            self._check_usable()
            self._index.check_range(first, last)
            wanted = extent(self._index.segment_of(first), first, last, max_bytes)
        try:
            return wanted, wanted.read(self._disk.open(wanted.segment))
        except FileNotFoundError as error:
            with self._state:
                self._index.check_range(first, last)  # it may have been dropped meanwhile
            raise CorruptRecord(wanted.segment.name, 0, "the segment is missing") from error

    def _load_membership(self, index: int) -> tuple[int, Membership]:
        segment = self._index.segment_of(index)
        (entry,) = span(segment, index, index, 0).read(self._disk.open(segment))
        return index, _membership(entry, segment)

    # What the writer thread does.

    def append(self, entries: Sequence[Entry]) -> None:
        """Write *entries*, which follow each other; they become durable with the next `sync`.

        Their CRCs are trusted: entries from peers go through `format.check_entry` first. If the
        first one is not behind the log's end, the log is truncated there, durably, before.

        Raises:
            DiskFull: There is no room. None of *entries* was appended (though an overlap stays
                cut); later appends work once there is space.
            NotJoined: The node has no group yet.
            ValueError: The entries leave a gap; a mistake of the caller.
            StorageError: A write failed, now or earlier.
        """
        if not entries:
            return
        with self._writing, self._poisoning():
            self._check_appendable(entries)
            if entries[0].index <= self._index.last_index:
                self._truncate(entries[0].index - 1)
            before = self._index.last_index
            try:
                self._append(entries)
            except DiskFull:
                if self._index.last_index > before:
                    self._truncate(before)
                raise

    def _append(self, entries: Sequence[Entry]) -> None:
        while entries:
            count = self._index.segments[-1].room_for(entries) if self._index.segments else 0
            if count:
                self._write(self._index.segments[-1], entries[:count])
            else:
                self._roll(record_size(len(entries[0].data)))
            entries = entries[count:]

    def _write(self, segment: Segment, entries: Sequence[Entry]) -> None:
        encoded = encode_records(entries, chain=segment.last_chain, position=segment.end)
        file = self._disk.open(segment)
        segment.scrub(file)
        segment.dirty_end = segment.end + encoded.size_bytes
        with disk_full_on_enospc(f"write segment {segment.name}"):
            file.pwritev(encoded.buffers, segment.end)
        memberships = [(e.index, _membership(e, segment)) for e in entries if _is_membership(e)]
        with self._state:
            self._index.add(encoded, entries, memberships)
            self._recent.add(entries)

    def _roll(self, room_bytes: int) -> None:
        """Seal the last segment and begin another, so that sealed segments are always synced."""
        self._drop_empty_segment()
        if self._index.segments:
            self._seal(self._index.segments[-1])
        segment = self._disk.create(
            self._identity,
            first_index=self._index.last_index + 1,
            previous_chain=self._index.chain(self._index.last_index),
            room_bytes=room_bytes,
        )
        with self._state:
            self._index.segments.append(segment)

    def _drop_empty_segment(self) -> None:
        """Remove a last segment without records: it was too small, and its name is needed."""
        empty = [one for one in self._index.segments[-1:] if one.last_index < one.first_index]
        with self._state:
            del self._index.segments[len(self._index.segments) - len(empty) :]
        self._disk.remove(empty, self._index.segments[-1:])

    def _seal(self, segment: Segment) -> None:
        self._disk.open(segment).fdatasync()
        indexes = [index for index, _ in self._index.memberships]
        write_index(self._disk.files, segment, self._index.runs, indexes)

    def _truncate(self, last: int) -> None:
        """Remove everything behind *last*, durably.

        The order is what makes it safe: first the watermark no longer promises the records, then
        later segments go, then the rest is zeroed so that it can never be taken for records again.
        """
        with self._state:
            self._truncations += 1
            self._index.forget_behind(last)
            self._synced_index = min(self._synced_index, last)
            self._recent.truncate(last)
        if last < self._watermark.mark.index:
            self._watermark.advance(index=last, chain=self._index.chain(last))
        with self._state:
            dropped = self._index.cut_segments(last)
        self._disk.remove(dropped, self._index.segments[-1:])
        if self._index.segments:
            with self._state:
                self._index.segments[-1].truncate(last)
            self._index.segments[-1].scrub(self._disk.open(self._index.segments[-1]))

    def drop_before(self, index: int) -> int:
        """Remove the whole sealed segments below *index*, durably; return the new first index.

        The caller has a durable snapshot of at least everything below *index*. The last segment
        always stays. The term and chain of the entry before the new first one stay known.

        Raises:
            StorageError: A write or removal failed, now or earlier.
        """
        with self._writing, self._poisoning():
            self._check_usable()
            base = self._index.base_before(index)
            if base == self._index.base:
                return self.first_index
            self._move_base(base)
            with self._state:
                self._truncations += 1
                dropped = self._index.rebase(base)
                self._recent.forget_before(base.index + 1)
            self._disk.remove(dropped, ())
            return self.first_index

    def _move_base(self, base: Base) -> None:
        """Say durably where the log begins, before anything that was there goes.

        With "osBuffer" the watermark may be lower than that, though sealed segments are synced.
        """
        index = max(self._watermark.mark.index, base.index)
        self._watermark.rebase(base, index=index, chain=self._index.chain(index))
        self._synced_index = max(self._synced_index, index)

    def restart_behind(self, *, index: int, term: int, chain: int) -> None:
        """Replace the log by an empty one behind a snapshot that ends in this entry.

        The caller has that snapshot durably. After a crash the log is the old one, or it begins
        behind *index*; it never lacks anything between the two.

        Raises:
            StorageError: A write or removal failed, now or earlier.
        """
        base = Base(index=index, term=term, chain=chain)
        with self._writing, self._poisoning():
            self._check_usable()
            self._watermark.rebase(base, index=index, chain=chain)
            with self._state:
                self._truncations += 1
                dropped = self._index.restart(base)
                self._recent.clear()
                self._synced_index = index
            self._disk.remove(dropped, ())

    def sync(self) -> None:
        """Make everything appended durable, then say so in the durable watermark.

        With durability "osBuffer" it returns at once and the watermark stays.

        Raises:
            StorageError: A write or sync failed, now or earlier; what the disk holds is unknown.
        """
        with self._writing, self._poisoning():
            self._check_usable()
            if self._durability == "sync":
                self._sync()
            self._synced_index = self._index.last_index

    def _sync(self) -> None:
        if self._watermark.mark.index == self._index.last_index:
            return
        last = self._index.segments[-1]
        self._disk.open(last).fdatasync()
        self._watermark.advance(index=self._index.last_index, chain=last.last_chain)

    def prepare(self) -> bool:
        """Make the next segment file ready, so that `append` need not wait for it.

        Worth a call, from any thread but the loop's, every now and then: it is cheap when there is
        nothing to do. The space is reserved, not filled with zeros: filling made the median sync
        a quarter faster, but doubled what is written, and tripled the 99th percentile under load.

        Returns:
            Whether a spare file is ready.
        """
        if self._failure:
            return False
        with self._poisoning():
            return self._disk.prepare()

    def close(self) -> None:
        """Close all files; with durability "osBuffer", sync first."""
        with self._writing:
            if self._durability == "osBuffer" and not self._failure:
                with self._poisoning():
                    self._sync()
            self._failure = self._failure or "closed"
            self._watermark.close()
            self._disk.close()

    def _check_appendable(self, entries: Sequence[Entry]) -> None:
        self._check_usable()
        if not self._identity.group_id:
            raise NotJoined
        first = entries[0].index
        if not self._index.first_index <= first <= self._index.last_index + 1:
            raise ValueError(f"entry {first} does not fit behind {self._index.last_index}")
        if [entry.index for entry in entries] != list(range(first, first + len(entries))):
            raise ValueError(f"entries behind {first} do not follow each other")

    def _check_usable(self) -> None:
        if self._failure:
            raise StorageError(f"the log has failed: {self._failure}")

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Turn a failed write or sync into a failure that stays."""
        try:
            yield
        except OSError as error:
            self._failure = self._failure or str(error)
            _log.error("log of node %s failed: %s", self._identity.node_id, error)
            raise StorageError(f"the log has failed: {error}") from error


def _is_membership(entry: Entry) -> bool:
    return entry.kind is EntryKind.MEMBERSHIP


def _membership(entry: Entry, segment: Segment) -> Membership:
    try:
        return Membership.decode(entry.data)
    except ValueError as error:
        raise CorruptRecord(segment.name, segment.position(entry.index), str(error)) from error
