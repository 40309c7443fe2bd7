"""A node's data directory out of a backup, byte for byte, up to an index or a time.

The directory is that of an Unjoined node with a log: a fresh node id, no group id, and
`Identity.recovered_to`. Bootstrap then founds a new group on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dledger_pipeline.store import Store

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What was restored: entries [1, last_index] of *group_id* into a directory of *node_id*."""

    group_id: str
    node_id: str
    first_index: int
    last_index: int
    last_term: int
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

    Killed at any point it leaves a directory that a repeated call completes and no node takes for
    a whole one.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        directory: Empty or absent, or left by an interrupted restore.
        name: The node's name, ``<group>/<pod>``.
        target_index: The last entry to restore; default: all.
        target_time_ms: Restore up to the last entry before the first one that is later than this
            (Unix milliseconds). Not together with *target_index*.
        segment_bytes: Length of segment files.
        progress: Told after each object.

    Raises:
        DirectoryNotEmpty: The directory has contents; nothing was touched.
        TargetNotAvailable: The backup does not reach so far, or begins after the first entry.
        CorruptObject, ObjectMissing, BackupError, StoreError: The backup is at fault.
        DiskFull, StorageError: The directory's disk is.
    """
    raise NotImplementedError(
        store, group_id, directory, name, target_index, target_time_ms, segment_bytes, progress
    )
