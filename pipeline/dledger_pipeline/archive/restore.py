"""Writes a node's data directory from a backup, byte for byte, up to an index or a time.

The directory is that of a node with a log that has not joined a group: a new node id, no group id,
and `Identity.recovered_to`. Bootstrap then creates a new group on it. Used by the restore job and
`verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.errors import StorageError
from dledger.files.atomic import replace_file
from dledger.files.files import Files, RealFiles
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
from dledger_pipeline.archive.archive import ManifestRow, describe
from dledger_pipeline.archive.manifest import Manifest, load
from dledger_pipeline.archive.prefetch import prefetch, read_checked
from dledger_pipeline.errors import DirectoryNotEmpty, TargetNotAvailable
from dledger_pipeline.log.records import values
from dledger_pipeline.log.segment_writer import SegmentWriter
from dledger_pipeline.object_store.store import Store

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all)."""

_MARKER: Final = "restoring"
_HARD_STATE: Final = "hard_state"
_NO_CONTENTS: Final = frozenset({LOCK_NAME, "lost+found", _MARKER + NEW_SUFFIX})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What was restored: entries [1, last_index] of *group_id* into a directory of *node_id*.

    *term* is the last entry's.
    """

    group_id: str
    node_id: str
    term: int
    first_index: int
    last_index: int
    last_timestamp_ms: int
    records: int
    record_bytes: int


def restore(
    store: Store,
    group_id: str | None,
    directory: Path,
    *,
    name: str,
    target_index: int | None = None,
    target_time_ms: int | None = None,
    segment_bytes: int = 64 << 20,
    progress: Progress | None = None,
) -> RestoreResult:
    """Write a data directory from the newest backup that a node can start from.

    If it is killed, no node starts from the directory, and the same call completes it. Repeated
    after it was complete, it returns the same result.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        directory: Empty or absent, or left by an interrupted restore.
        name: The node's name, ``<group>/<pod>``.
        target_index: The last entry to restore; default: all.
        target_time_ms: Restore up to the last entry before the first one that is later than this
            (Unix milliseconds). Not together with *target_index*.
        segment_bytes: Length of segment files.
        progress: Called after each object.

    Raises:
        DirectoryNotEmpty: The directory has contents; nothing was touched.
        TargetNotAvailable: The backup does not include the target, or begins after entry 1.
        DirectoryLocked: A node, or another restore, is using it.
        CorruptObject, ObjectMissing, BackupError, StoreError: The backup cannot be read.
        DiskFull, StorageError: The directory's disk failed.
    """
    manifest = load(store, group_id)
    end = _end(store, manifest, target_index, target_time_ms)
    files = RealFiles()
    with _storage_errors(directory):
        _find(files, directory, end, name)
        with closing(lock_directory(files, directory)):
            identity = _find(files, directory, end, name)
            if identity is None:
                _clear(files, directory)
                begun = begin_restore(files, directory, name, group_id=manifest.group_id)
                _write(
                    files, directory / LOG_DIRECTORY, begun, end.batches(progress), segment_bytes
                )
                identity = finish_restore(files, directory, begun, end.last_index)
            _unmark(files, directory)
    return end.result(identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Where a restored log ends: after all of *rows* and *tail*, whose manifest row is *last*."""

    store: Store
    manifest: Manifest
    rows: tuple[ManifestRow, ...]
    tail: pa.Table
    last: ManifestRow

    @property
    def last_index(self) -> int:
        return self.last.last_index

    def batches(self, progress: Progress | None) -> Iterator[pa.RecordBatch]:
        """Yield all entries, checked."""
        tables = prefetch(self.store, self.manifest.group_id, self.rows)
        for row, table in zip(self._all, chain(tables, (self.tail,)), strict=True):
            yield from table.to_batches()
            if progress is not None:
                progress(row.last_index, self.last_index)

    def result(self, identity: Identity) -> RestoreResult:
        return RestoreResult(
            group_id=self.manifest.group_id,
            node_id=identity.node_id,
            first_index=self.manifest.first_index,
            last_index=self.last_index,
            term=self.last.last_term,
            last_timestamp_ms=max(row.last_timestamp_ms for row in self._all),
            records=sum(row.records for row in self._all),
            record_bytes=sum(row.record_bytes for row in self._all),
        )

    @property
    def _all(self) -> tuple[ManifestRow, ...]:
        return (*self.rows, self.last)


def _end(
    store: Store, manifest: Manifest, target_index: int | None, target_time_ms: int | None
) -> _End:
    """Find where the restored log ends."""
    if target_index is not None and target_time_ms is not None:
        raise TargetNotAvailable("restore to an index or to a time, not to both")
    if manifest.first_index != 1:
        raise TargetNotAvailable(
            f"the backup begins with entry {manifest.first_index}; a log is restored from entry 1"
        )
    if target_time_ms is not None:
        target_index = _index_at(store, manifest, target_time_ms)
    return _end_at(store, manifest, manifest.last_index if target_index is None else target_index)


def _end_at(store: Store, manifest: Manifest, index: int) -> _End:
    if not 1 <= index <= manifest.last_index:
        raise TargetNotAvailable(
            f"the backup holds entries [1, {manifest.last_index}], not entry {index}"
        )
    number = next(n for n, row in enumerate(manifest.files) if row.last_index >= index)
    row = manifest.files[number]
    tail = read_checked(store, manifest.group_id, row).slice(0, index - row.first_index + 1)
    last = describe(
        tail.to_batches(), previous_chain=row.first_chain, object_bytes=0, sha256=row.sha256
    )
    rows = manifest.files[:number]
    return _End(store=store, manifest=manifest, rows=rows, tail=tail, last=last)


def _index_at(store: Store, manifest: Manifest, time_ms: int) -> int:
    """Return the last index before the first entry that is later than *time_ms*."""
    row = next((row for row in manifest.files if row.last_timestamp_ms > time_ms), None)
    if row is None:
        return manifest.last_index
    times_ms = _times_ms(read_checked(store, manifest.group_id, row))
    index = row.first_index + int((times_ms > time_ms).argmax()) - 1
    if index < 1:
        first_ms = manifest.files[0].first_timestamp_ms
        raise TargetNotAvailable(
            f"even the first entry, at {first_ms} ms, is later than {time_ms} ms"
        )
    return index


def _times_ms(table: pa.Table) -> npt.NDArray[np.int64]:
    return np.concatenate([values(batch.column("timestamp_ms")) for batch in table.to_batches()])


def _write(
    files: Files,
    log: Path,
    identity: Identity,
    batches: Iterable[pa.RecordBatch],
    segment_bytes: int,
) -> None:
    """Write the log, durable on return."""
    with closing(SegmentWriter(files, log, identity, segment_bytes=segment_bytes)) as writer:
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
    if here != ("", end.manifest.group_id, end.last_index, name):
        raise DirectoryNotEmpty(str(directory), f"the node {identity.name}")
    return identity


def _clear(files: Files, directory: Path) -> None:
    """Mark the directory as being restored; remove what an interrupted restore wrote there."""
    replace_file(files, directory / _MARKER, b"")
    log = directory / LOG_DIRECTORY
    names = files.list(log)
    for name in names:
        files.remove(log / name)
    if names:
        files.fsync_dir(log)
    if _HARD_STATE in files.list(directory):
        files.remove(directory / _HARD_STATE)


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
