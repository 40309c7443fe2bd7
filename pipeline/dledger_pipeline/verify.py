"""Prove that a backup is whole: hashes, CRCs, joins; and, if asked, a restore compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger_pipeline.restore import Progress
from dledger_pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What was found good.

    Attributes:
        manifest: The object's name within the group's folder.
        compared_bytes: Record bytes of a restored log that were compared; 0 if not asked for.
    """

    group_id: str
    manifest: str
    first_index: int
    last_index: int
    objects: int
    records: int
    record_bytes: int
    object_bytes: int
    compared_bytes: int


def verify(
    store: Store,
    group_id: str | None = None,
    *,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> VerifyResult:
    """Check every object of the newest backup: hash, rows, body and chain CRCs, joins.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        scratch: An empty directory to restore into and compare; None: do not.
        progress: Told after each object.

    Raises:
        CorruptObject, ObjectMissing, BackupError, StoreError: With the name of the first fault.
    """
    raise NotImplementedError(store, group_id, scratch, progress)
