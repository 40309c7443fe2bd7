"""Writes a node's data directory from a backup, byte for byte, up to an index or a time.

It begins with what the nodes still kept then: a base, if they had dropped entries, and the entries
from there on. What was erased behind that, as far as the store knows, is erased in entries that
follow (`erasing_entries`): to whatever time a log is restored, nobody is shown it again.

The directory is that of a node with a log that has not joined a group: a new node id, no group id,
and `Identity.recovered_to`. Bootstrap then creates a new group on it. Used by the restore job and
`verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.errors import StorageError
from dledger.files.atomic import replace_file
from dledger.files.files import Files, RealFiles
from dledger.store.format import Base
from dledger.store.hard_state import NAME as HARD_STATE
from dledger.store.identity import (
    LOCK_NAME,
    LOG_DIRECTORY,
    Identity,
    begin_restore,
    finish_restore,
    load_identity,
    lock_directory,
)
from dledger.store.segment import NEW_SUFFIX
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.store.two_copies import both
from dledger_pipeline.archive.archive import ManifestRow, describe
from dledger_pipeline.archive.bases import read_base
from dledger_pipeline.archive.catalog import load
from dledger_pipeline.archive.entry_ranges import within
from dledger_pipeline.archive.erased import Erased, read_erased
from dledger_pipeline.archive.erasing_entries import LastEntry, erasing_entries
from dledger_pipeline.archive.manifest import BaseRow, Manifest, Start, told_time
from dledger_pipeline.archive.prefetch import prefetch, read_checked
from dledger_pipeline.errors import BrokenBackup, DirectoryNotEmpty, TargetNotAvailable
from dledger_pipeline.log.records import values
from dledger_pipeline.log.segment_writer import SegmentWriter
from dledger_pipeline.object_store.store import Store

Progress = Callable[[ManifestRow, int], None]
"""Told each object when it is done, and how many there are in all."""

_MARKER: Final = "restoring"
_NO_CONTENTS: Final = frozenset({LOCK_NAME, "lost+found", _MARKER + NEW_SUFFIX})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What was restored: entries [first_index, last_index] of *group_id*, for *node_id*.

    Attributes:
        term: The last entry's.
        state_index: The last entry that the state included from the start; 0 if it follows from
            the entries alone.
        number: The backup's.
        erased: How many messages the entries behind *last_index* name, which were erased later.
        erasing_index: The last one of these entries, with which the log on disk ends; 0: none.
    """

    group_id: str
    node_id: str
    term: int
    first_index: int
    last_index: int
    last_timestamp_ms: int
    records: int
    record_bytes: int
    state_index: int
    number: int
    erased: int
    erasing_index: int


def restore(
    store: Store,
    group_id: str | None,
    directory: Path,
    *,
    name: str,
    number: int | None = None,
    target_index: int | None = None,
    target_time_ms: int | None = None,
    segment_bytes: int = 64 << 20,
    progress: Progress | None = None,
) -> RestoreResult:
    """Write a data directory from a backup that a node can start from.

    If it is killed, no node starts from the directory, and the same call completes it. Repeated
    after it was complete, it returns the same result.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        directory: Empty or absent, or left by an interrupted restore.
        name: The node's name, ``<group>/<pod>``.
        number: Which backup; default: the newest. What was erased since then is known by the
            newest in any case.
        target_index: The last entry to restore; default: all.
        target_time_ms: Restore up to the last entry before the first one that is later than this
            (Unix milliseconds). Not together with *target_index*.
        segment_bytes: Length of segment files.
        progress: Called after each object.

    Raises:
        DirectoryNotEmpty: The directory has contents; nothing was touched.
        TargetNotAvailable: The backup does not include the target.
        DirectoryLocked: A node, or another restore, is using it.
        CorruptObject, ObjectMissing, BackupError, StoreError: The backup cannot be read.
        DiskFull, StorageError: The directory's disk failed.
    """
    manifest = load(store, group_id, number)
    end = _end(store, manifest, target_index, target_time_ms)
    files = RealFiles()
    with _storage_errors(directory):
        _find(files, directory, end, name)
        with closing(lock_directory(files, directory)):
            identity = _find(files, directory, end, name)
            if identity is None:
                _clear(files, directory)
                begun = begin_restore(files, directory, name, group_id=manifest.group_id)
                base = end.write_snapshot(files, directory)
                writer = SegmentWriter(
                    files,
                    directory / LOG_DIRECTORY,
                    begun,
                    base=base,
                    segment_bytes=segment_bytes,
                )
                _write(writer, chain(end.batches(progress), end.erasing.to_batches()))
                identity = finish_restore(files, directory, begun, end.log_end)
            _unmark(files, directory)
    return end.result(identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Which log is restored: from *start*, all of *rows* and *tail*, whose manifest row is *last*.

    *rows* may begin before *start*; *last* is None if the base alone is what is restored. *erased*
    is what was erased behind *last_index*, of what may be stored up to there; *erasing* are the
    entries that follow the last one for that.
    """

    store: Store
    manifest: Manifest
    start: Start
    last_index: int
    rows: tuple[ManifestRow, ...]
    tail: pa.Table | None
    last: ManifestRow | None
    erased: Erased
    erasing: pa.Table

    def write_snapshot(self, files: Files, directory: Path) -> Base:
        """Write the base, if there is one, as a node's snapshot; return what the log follows."""
        if self.start.base is None:
            return Base()
        snapshot = read_base(self.store, self.manifest.group_id, self.start.base)
        base = self._place(snapshot.base)
        kept = SnapshotFiles(files, directory / SNAPSHOT_DIRECTORY, reserve_bytes=0)
        kept.save(replace(snapshot, base=base))
        return base

    def _place(self, oldest: Base) -> Base:
        """Return the entry before the first one; *oldest* is the one before all that there are."""
        index = self.start.first_index - 1
        if index == oldest.index:
            return oldest
        row = next(row for row in self.manifest.files if row.last_index == index)
        return Base(index=index, term=row.last_term, chain=row.last_chain)

    def batches(self, progress: Progress | None) -> Iterator[pa.RecordBatch]:
        """Yield all entries, checked."""
        tables = prefetch(self.store, self.manifest.group_id, self.rows)
        for row, table in zip(self._all, chain(tables, (self.tail,)), strict=False):
            if table is None:
                return
            for batch in within(table.to_batches(), self.start.first_index, self.last_index):
                check_base(self.start.base, batch)
                yield batch
            if progress is not None:
                progress(row, len(self._all))

    @property
    def log_end(self) -> int:
        """The last entry on disk."""
        return self.last_index + int(self.erasing.num_rows)

    def result(self, identity: Identity) -> RestoreResult:
        base, end = self.start.base, self.last
        return RestoreResult(
            group_id=self.manifest.group_id,
            node_id=identity.node_id,
            first_index=self.start.first_index,
            last_index=self.last_index,
            term=end.last_term if end else base.applied_term if base else 0,
            last_timestamp_ms=_last_timestamp_ms(self._all),
            records=self.last_index - self.start.first_index + 1,
            record_bytes=sum(row.record_bytes for row in self._all),
            state_index=base.applied_index if base else 0,
            number=self.manifest.number,
            erased=len(self.erased),
            erasing_index=self.log_end if self.erasing.num_rows else 0,
        )

    @property
    def _all(self) -> tuple[ManifestRow, ...]:
        return (*self.rows, self.last) if self.last else self.rows


def check_base(base: BaseRow | None, batch: pa.RecordBatch) -> None:
    """Check that the entry that *base* reaches, if it is in *batch*, is the one that it states.

    Raises:
        BrokenBackup: The base is of another history.
    """
    if base is None:
        return
    at = base.applied_index - batch["index"][0].as_py()
    if 0 <= at < len(batch) and batch["chain_crc32c"][at].as_py() != base.applied_chain:
        raise BrokenBackup(base.name, f"entry {base.applied_index} has another chain CRC there")


def _end(
    store: Store, manifest: Manifest, target_index: int | None, target_time_ms: int | None
) -> _End:
    """Find where the restored log begins and ends."""
    if target_index is not None and target_time_ms is not None:
        raise TargetNotAvailable("restore to an index or to a time, not to both")
    if target_time_ms is not None:
        target_index = index_at(store, manifest, target_time_ms)
    return _end_at(store, manifest, manifest.last_index if target_index is None else target_index)


def _end_at(store: Store, manifest: Manifest, index: int) -> _End:
    start = manifest.start_for(index)
    rows = tuple(
        row
        for row in manifest.files
        if row.last_index >= start.first_index and row.first_index <= index
    )
    whole, tail, last = rows[:-1], None, None
    if rows:
        row = rows[-1]
        tail = read_checked(store, manifest.group_id, row).slice(0, index - row.first_index + 1)
        last = describe(
            tail.to_batches(),
            previous_chain=row.first_chain,
            object_bytes=row.object_bytes,
            sha256=row.sha256,
        )
    erased = read_erased(store, manifest).since(index).may_concern(index)
    return _End(
        store=store,
        manifest=manifest,
        start=start,
        last_index=index,
        rows=whole,
        tail=tail,
        last=last,
        erased=erased,
        erasing=erasing_entries(erased, _last_entry(start, whole, last)),
    )


def _last_entry(start: Start, whole: Sequence[ManifestRow], last: ManifestRow | None) -> LastEntry:
    if last is not None:
        return LastEntry(
            index=last.last_index,
            term=last.last_term,
            chain=last.last_chain,
            log_ms=_last_timestamp_ms([*whole, last]),
        )
    base = start.base
    if base is None:
        raise AssertionError("a log without a base has entries")
    return LastEntry(
        index=base.applied_index, term=base.applied_term, chain=base.applied_chain, log_ms=0
    )


def _last_timestamp_ms(rows: Iterable[ManifestRow]) -> int:
    return max((row.last_timestamp_ms for row in rows), default=0)


def index_at(store: Store, manifest: Manifest, time_ms: int) -> int:
    """Return the last index before the first entry that is later than *time_ms*.

    Raises:
        TargetNotAvailable: The backup was made before that time, or has no message so old.
    """
    told = told_time(time_ms)
    if time_ms > manifest.as_of_ms:
        raise TargetNotAvailable(f"the backup does not reach {told}: {manifest.range_told()}")
    if time_ms < manifest.first_timestamp_ms:
        raise TargetNotAvailable(f"{told} is before the first message: {manifest.range_told()}")
    row = next((row for row in manifest.files if row.last_timestamp_ms > time_ms), None)
    if row is None:
        return manifest.last_index
    times_ms = _times_ms(read_checked(store, manifest.group_id, row))
    return row.first_index + int((times_ms > time_ms).argmax()) - 1


def _times_ms(table: pa.Table) -> npt.NDArray[np.int64]:
    return np.concatenate([values(batch.column("timestamp_ms")) for batch in table.to_batches()])


def _write(writer: SegmentWriter, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the log, durable on return."""
    with closing(writer):
        for batch in batches:
            writer.append(batch)
        writer.finish()


def _find(files: Files, directory: Path, end: _End, name: str) -> Identity | None:
    """Return the directory's identity if this restore completed it before, else None.

    It is None, too, if an interrupted restore left something there.

    Raises:
        DirectoryNotEmpty: Something else is there.
    """
    identity = load_identity(files, directory)
    if identity is None:
        found = [name for name in files.list(directory) if name not in _NO_CONTENTS]
        if found and _MARKER not in found:
            raise DirectoryNotEmpty(str(directory), found[0])
        return None
    here = (identity.group_id, identity.recovered_from, identity.recovered_to, identity.name)
    if here != ("", end.manifest.group_id, end.log_end, name):
        raise DirectoryNotEmpty(str(directory), f"the node {identity.name}")
    return identity


def _clear(files: Files, directory: Path) -> None:
    """Mark the directory as being restored; remove what an interrupted restore wrote there."""
    replace_file(files, directory / _MARKER, b"")
    for folder in (directory / LOG_DIRECTORY, directory / SNAPSHOT_DIRECTORY):
        names = files.list(folder)
        for name in names:
            files.remove(folder / name)
        if names:
            files.fsync_dir(folder)
    for path in both(directory / HARD_STATE):
        if path.name in files.list(directory):
            files.remove(path)


def _unmark(files: Files, directory: Path) -> None:
    if _MARKER in files.list(directory):
        files.remove(directory / _MARKER)
        files.fsync_dir(directory)


@contextmanager
def _storage_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot restore into {directory}: {error}") from error
