"""The commit log: the durable list of entries, in segments. The only writer of ``log/``.

Threads: `append`, `sync` and `prepare` belong to writer threads and block on the disk; `read` may
run in any number of reader threads; `term`, `recent`, `memberships` and the properties never do
I/O and are for the event loop. `log_state` has the two locks that make that safe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dledger.common import defaults
from dledger.common.features import FEATURES
from dledger.errors import CorruptRecord, DiskFull, FaultyEntry, NotJoined, StorageError
from dledger.files.files import Files
from dledger.files.full import refuse_full_disk
from dledger.store.format import Base, encode_records, record_size
from dledger.store.identity import Identity
from dledger.store.log_index import LogIndex
from dledger.store.log_reader import LogReader
from dledger.store.log_scan import LogScan, survey
from dledger.store.log_scrubber import LogScrubber
from dledger.store.log_state import LogState
from dledger.store.recent import RecentEntries
from dledger.store.recovery import check, has_room_for_rows, repair, write_index
from dledger.store.segment import Segment
from dledger.store.segment_files import SegmentFiles
from dledger.store.slot_repair import fitting, write_back
from dledger.store.watermark import Watermark
from dledger.types import Entry, EntryKind, Membership

_log = logging.getLogger(__name__)

Durability = Literal["sync", "osBuffer"]


class CommitLog(LogReader):
    """An open commit log; see the module for which thread may call what.

    Attributes:
        scrubber: Looks for rot in it.
    """

    def __init__(
        self,
        segment_files: SegmentFiles,
        found: LogScan,
        watermark: Watermark,
        *,
        rows_index: int,
        identity: Identity,
        cache_bytes: int,
        durability: Durability,
    ) -> None:
        index = LogIndex(
            found.mark.base,
            found.segments,
            found.runs,
            special=found.memberships,
            faulty=found.faulty,
        )
        super().__init__(
            LogState(
                segment_files,
                watermark,
                index,
                RecentEntries(cache_bytes),
                identity=identity,
                rows_index=rows_index,
            )
        )
        self.scrubber = LogScrubber(self._state)
        self._watermark = watermark
        self._durability = durability

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        *,
        identity: Identity,
        segment_bytes: int = defaults.SEGMENT_BYTES,
        cache_bytes: int = 48 << 20,
        reserve_bytes: int = 16 << 20,
        durability: Durability = "sync",
    ) -> CommitLog:
        """Recover the log in *directory*; everything it then holds is durable.

        A damaged record that was synced stays in the log as `faulty` if a second copy of its
        identity exists.

        Args:
            files: The file system.
            directory: The ``log`` directory, as formatting the disk made it.
            identity: The node and group that must own the log. Before the node has joined a group
                the log is empty and refuses entries; open it again after joining.
            segment_bytes: Length of a segment file; a larger entry gets a larger one.
            cache_bytes: Upper bound on the entries kept in memory for `recent`.
            reserve_bytes: Free disk space that segments never use, so that hard state can
                always be saved.
            durability: With "osBuffer", `sync` returns before the entries are on disk.

        Raises:
            CorruptRecord: A record that was synced is damaged or missing, and so is its identity.
            CorruptFile: The watermark is damaged or missing.
            WrongIdentity: The log belongs to another node or group.
            StorageError: The disk failed.
        """
        try:
            watermark = Watermark.open(files, directory)
            found = survey(files, directory, watermark.mark, identity, rows=watermark.rows())
            check(found)
            has_rows = repair(files, directory, found, watermark, identity)
        except OSError as error:
            refuse_full_disk(error, f"recover the log in {directory}")
            raise StorageError(f"cannot recover the log in {directory}: {error}") from error
        disk = SegmentFiles(
            files, directory, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes
        )
        log = cls(
            disk,
            found,
            watermark,
            rows_index=found.last_index if has_rows else 0,
            identity=identity,
            cache_bytes=cache_bytes,
            durability=durability,
        )
        try:
            log._load_memberships(found.memberships)
        except OSError as error:
            raise StorageError(f"cannot read the log in {directory}: {error}") from error
        return log

    def _load_memberships(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            with suppress(FaultyEntry):
                (entry,) = self.read(index, index, 0)
                membership = _membership(entry, self._index.segment_of(index))
                self._index.memberships.append((index, membership))

    # Called by the writer thread.

    def append(self, entries: Sequence[Entry]) -> None:
        """Write *entries*, which follow each other; they become durable with the next `sync`.

        Their CRCs are trusted: entries from peers go through `format.check_entry` first. If the
        first entry overlaps the log, the log is durably truncated there before the write.

        Raises:
            DiskFull: The disk is full. None of *entries* was appended (though an overlap stays
                truncated); later appends succeed once there is space.
            NotJoined: The node has no group yet.
            ValueError: The entries leave a gap, which is a bug in the caller.
            StorageError: A write failed, now or earlier.
        """
        if not entries:
            return
        with self._state.writing, self._state.poisoning():
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
        self._watermark.reserve(len(segment.positions) + len(entries))
        segment.scrub(file)
        segment.dirty_end = segment.end + encoded.size_bytes
        try:
            file.pwritev(encoded.buffers, segment.end)
        except OSError as error:
            refuse_full_disk(error, f"write segment {segment.name}")
            raise
        memberships = [
            (e.index, _membership(e, segment)) for e in entries if e.kind is EntryKind.MEMBERSHIP
        ]
        with self._state.lock:
            self._index.add(encoded, entries, memberships)
            self._recent.add(entries)

    def _roll(self, room_bytes: int) -> None:
        """Seal the last segment and start a new one, so that sealed segments are always synced."""
        self._drop_empty_segment()
        if self._index.segments:
            self._seal(self._index.segments[-1])
        segment = self._disk.create(
            self._identity,
            first_index=self._index.last_index + 1,
            previous_chain=self._index.chain(self._index.last_index),
            room_bytes=room_bytes,
        )
        with self._state.lock:
            self._index.segments.append(segment)

    def _drop_empty_segment(self) -> None:
        """Remove an empty last segment that is too small; the new one needs its file name."""
        empty = [one for one in self._index.segments[-1:] if one.last_index < one.first_index]
        with self._state.lock:
            del self._index.segments[len(self._index.segments) - len(empty) :]
        self._disk.remove(empty, ())

    def _seal(self, segment: Segment) -> None:
        """Sync a segment and write its index file, the second copy of its records' identities.

        Creating the next segment syncs the directory, so the index file's name is durable before
        the identity rows in the watermark file, the only other copy, are overwritten.
        """
        file = self._disk.open(segment)
        segment.sync(file)
        segment.drop_cached(file)
        write_index(self._disk.files, segment, self._index.runs, self._index.special)

    def cut_behind(self, last: int) -> None:
        """Remove all entries after *last*, durably on return; do nothing if there are none.

        The caller guarantees that none of them was ever committed.

        Raises:
            DiskFull: A copy-on-write file system has no room to write zeros; try again later.
            ValueError: The log begins after *last*, which is a bug in the caller.
            StorageError: A write, sync or removal failed, now or earlier.
        """
        with self._state.writing, self._state.poisoning():
            self._state.check_usable()
            if last < self._index.base.index:
                raise ValueError(
                    f"cannot cut the log after {last}: it begins after {self._index.base.index}"
                )
            if last < self._index.last_index:
                self._truncate(last)
            for segment in self._index.segments[-1:]:  # zeros an earlier call could not write
                segment.scrub(self._disk.open(segment))

    def _truncate(self, last: int) -> None:
        """Remove everything after *last*, durably.

        The order makes it safe to crash at any point. First the watermark is lowered, so that
        recovery no longer expects the records. Then the later segments are removed. Last, the
        rest of the segment is zeroed, so that recovery can never read it as records again.
        """
        crossing = any(segment.first_index > last for segment in self._index.segments)
        if last < self._watermark.mark.index or crossing:
            self._lower_watermark(last, with_rows=crossing and last >= self.first_index)
        with self._state.lock:  # only now: without room for the above nothing has changed
            self._state.truncations += 1
            self._index.forget_behind(last)
            self._state.synced_index = min(self._state.synced_index, last)
            self._recent.truncate(last)
        with self._state.lock:
            dropped = self._index.cut_segments(last)
        self._disk.remove(dropped, self._index.segments[-1:])
        if self._index.segments:
            with self._state.lock:
                self._index.segments[-1].truncate(last)
            self._index.segments[-1].scrub(self._disk.open(self._index.segments[-1]))

    def _lower_watermark(self, last: int, *, with_rows: bool) -> None:
        """Lower the watermark to *last*; *with_rows*: write the new last segment's identity rows.

        This takes two writes. The new rows overwrite the rows of the records being truncated,
        which the old watermark still covers and which may be the only copy of a damaged record's
        identity. So the lower watermark must be durable before the rows are written. The caller
        then removes the segment's index file.
        """
        index = min(last, self._watermark.mark.index)
        chain = self._index.chain(index)
        self._state.rows_index = min(self._state.rows_index, last)
        self._watermark.advance(index=index, chain=chain)
        if with_rows:
            segment = self._index.segment_of(last)
            has_room = has_room_for_rows(self._watermark, segment)
            self._state.rows_index = 0
            if has_room:
                rows = self._index.rows(segment, segment.first_index, last)
                self._watermark.advance(index=index, chain=chain, rows=rows)
                self._state.rows_index = last

    def drop_before(self, index: int) -> int:
        """Remove the sealed segments that lie wholly below *index*; return the new first index.

        The caller holds a durable snapshot of everything below *index*. The last segment is never
        removed. The term and chain of the entry before the new first entry remain available.
        Durable on return.

        Raises:
            StorageError: A write or removal failed, now or earlier.
        """
        with self._state.writing, self._state.poisoning():
            self._state.check_usable()
            base = self._index.base_before(index)
            if base == self._index.base:
                return self.first_index
            self._move_base(base)
            with self._state.lock:
                self._state.truncations += 1
                dropped = self._index.rebase(base)
                self._recent.forget_before(base.index + 1)
            self._disk.remove(dropped, ())
            return self.first_index

    def _move_base(self, base: Base) -> None:
        """Record durably where the log begins, before the segments below it are removed.

        Otherwise a crash in between would look like lost segments. With "osBuffer" the watermark
        may be below *base*, because `sync` does not move it, though sealed segments are synced.
        """
        index = max(self._watermark.mark.index, base.index)
        self._watermark.rebase(base, index=index, chain=self._index.chain(index))
        self._state.synced_index = max(self._state.synced_index, index)

    def restart_behind(self, *, index: int, term: int, chain: int) -> None:
        """Replace the log by an empty one that begins after this entry, the last of a snapshot.

        The caller holds that snapshot durably. After a crash the log is either the old one or the
        new, empty one; there is never a gap between snapshot and log.

        Raises:
            StorageError: A write or removal failed, now or earlier.
        """
        base = Base(index=index, term=term, chain=chain)
        with self._state.writing, self._state.poisoning():
            self._state.check_usable()
            self._watermark.rebase(base, index=index, chain=chain)
            with self._state.lock:
                self._state.truncations += 1
                self._state.rows_index = index
                dropped = self._index.restart(base)
                self._recent.clear()
                self._state.synced_index = index
            self._disk.remove(dropped, ())

    def sync(self) -> None:
        """Make everything appended durable, then advance the durable watermark.

        With durability "osBuffer" it returns at once and the watermark stays.

        Raises:
            StorageError: A write or sync failed, now or earlier; what the disk holds is unknown.
        """
        with self._state.writing, self._state.poisoning():
            self._state.check_usable()
            if self._durability == "sync":
                self._sync()
            self._state.synced_index = self._index.last_index

    def _sync(self) -> None:
        if self._watermark.mark.index == self._index.last_index:
            return
        last, newest = self._index.segments[-1], self._index.last_index
        last.sync(self._disk.open(last))
        first = max(last.first_index, self._state.rows_index + 1)
        self._watermark.advance(
            index=newest,
            chain=last.last_chain,
            at=first - last.first_index,
            rows=self._index.rows(last, first, newest),
        )
        self._state.rows_index = newest

    def repair(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Write the *entries* that match a faulty slot's identity exactly, and return them.

        Other entries are ignored, so the sender need not be trusted. Durable on return.

        Raises:
            DiskFull: A copy-on-write file system has no room.
            StorageError: A write or sync failed, now or earlier.
        """
        with self._state.writing, self._state.poisoning():
            self._state.check_usable()
            slots = write_back(self._disk, fitting(self._index, entries))
            with self._state.lock:
                for slot in slots:
                    self._index.mend(slot.entry.index, slot.membership)
            return tuple(slot.entry for slot in slots)

    def prepare(self) -> bool:
        """Preallocate the next segment file, so that `append` need not wait for it.

        Call it periodically from any thread but the event loop's: it is cheap when there is
        nothing to do. The space is reserved, not filled with zeros: filling made the median sync
        a quarter faster, but doubled the bytes written and tripled the 99th percentile under load.

        Returns:
            True if a spare file is ready.
        """
        if self._state.failure:
            return False
        with self._state.poisoning():
            return self._disk.prepare()

    def fit(self, *, segment_bytes: int, reserve_bytes: int, makes_spares: bool) -> None:
        """Go by other sizes from the next segment on; those that exist stay. From any thread."""
        self._disk.fit(
            segment_bytes=segment_bytes, reserve_bytes=reserve_bytes, makes_spares=makes_spares
        )

    def close(self) -> None:
        """Close all files; with durability "osBuffer", sync first."""
        with self._state.writing:
            if self._durability == "osBuffer" and not self._state.failure:
                with self._state.poisoning():
                    self._sync()
            self._state.failure = self._state.failure or "closed"
            self._watermark.close()
            self._disk.close()

    def _check_appendable(self, entries: Sequence[Entry]) -> None:
        self._state.check_usable()
        if not self._identity.group_id:
            raise NotJoined
        first = entries[0].index
        if not self._index.first_index <= first <= self._index.last_index + 1:
            raise ValueError(
                f"expected entry {self._index.last_index + 1} or an earlier one, got {first}"
            )
        for index, entry in enumerate(entries, first):
            if entry.index != index:
                raise ValueError(f"the entries from {first} on are not consecutive")


def _membership(entry: Entry, segment: Segment) -> Membership:
    try:
        FEATURES.check_stored(entry.kind, entry.index, entry.data)
        return Membership.decode(entry.data)
    except ValueError as error:
        raise CorruptRecord(segment.name, segment.position(entry.index), str(error)) from error
