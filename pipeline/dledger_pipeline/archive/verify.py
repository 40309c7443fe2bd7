"""Verifies a backup: hashes, CRCs and joins; and, if asked, a restore compared byte for byte.

Used by the jobs `verify` and `sign`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dledger_pipeline.archive.archive import ManifestRow, describe
from dledger_pipeline.archive.hashed_json import Signature
from dledger_pipeline.archive.manifest import Manifest, load, signature
from dledger_pipeline.archive.prefetch import prefetch
from dledger_pipeline.archive.restore import Progress, restore
from dledger_pipeline.errors import BrokenBackup, CorruptManifest
from dledger_pipeline.log.records import RecordBytes, encode
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What was verified.

    Attributes:
        manifest: The object's name within the group's folder.
        compared_bytes: Record bytes of a restored log that were compared; 0 if not asked for.
        signature: Whether the manifest is signed.
    """

    group_id: str
    manifest: str
    first_index: int
    last_index: int
    records: int
    record_bytes: int
    object_bytes: int
    objects: int
    compared_bytes: int
    signature: Signature


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
        scratch: An empty directory to restore into and compare; None for neither.
        progress: Called after each object.

    Raises:
        CorruptObject, ObjectMissing, BackupError, StoreError: With the name of the first fault.
    """
    manifest = load(store, group_id)
    tables = prefetch(store, manifest.group_id, manifest.files)
    for row, table in zip(manifest.files, tables, strict=True):
        _check_row(f"{manifest.group_id}/{row.name}", row, table)
        if progress is not None:
            progress(row.last_index, manifest.last_index)
    return VerifyResult(
        group_id=manifest.group_id,
        manifest=manifest.name,
        first_index=manifest.first_index,
        last_index=manifest.last_index,
        objects=len(manifest.files),
        records=manifest.records,
        record_bytes=manifest.record_bytes,
        object_bytes=manifest.object_bytes,
        compared_bytes=0 if scratch is None else _compare(store, manifest, scratch),
        signature=signature(store, manifest),
    )


def _check_row(name: str, row: ManifestRow, table: pa.Table) -> None:
    """Check everything else that the manifest states of an object: bytes, term, times."""
    found = describe(
        table.to_batches(),
        previous_chain=row.first_chain,
        object_bytes=row.object_bytes,
        sha256=row.sha256,
    )
    if found != row:
        raise CorruptManifest(name, f"the object holds {found}, its manifest row says {row}")


def _compare(store: Store, manifest: Manifest, scratch: Path) -> int:
    """Restore into *scratch* and compare with the archive; return how many bytes were equal."""
    end = manifest.last_index
    name = "verify/verify-0"
    result = restore(store, manifest.group_id, scratch, name=name, target_index=end)
    restored = _Bytes(read_log(scratch))
    tables = prefetch(store, manifest.group_id, manifest.files)
    for row, table in zip(manifest.files, tables, strict=True):
        for expected in map(encode, table.to_batches()):
            if restored.take(len(expected)) != expected:
                name = f"{manifest.group_id}/{row.name}"
                raise BrokenBackup(name, "restored, its records have other bytes")
    return result.record_bytes


class _Bytes:
    """The records of a log directory as one stream of bytes."""

    def __init__(self, chunks: Iterator[RecordBytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def take(self, size: int) -> bytes:
        """Return the next *size* bytes; fewer at the end."""
        parts = [self._rest]
        missing = size - len(self._rest)
        while missing > 0 and (chunk := next(self._chunks, None)) is not None:
            parts.append(bytes(chunk.data))
            missing -= len(parts[-1])
        taken = b"".join(parts)
        self._rest = taken[size:]
        return taken[:size]
