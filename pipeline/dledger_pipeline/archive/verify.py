"""Verifies a backup: hashes, CRCs and joins; and, if asked, a restore compared byte for byte.

Used by the jobs `verify` and `sign`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pyarrow as pa

from dledger_pipeline.archive.archive import ManifestRow, describe
from dledger_pipeline.archive.bases import check_kept, read_base, state_of
from dledger_pipeline.archive.catalog import load, signature
from dledger_pipeline.archive.entry_ranges import within
from dledger_pipeline.archive.erasures_objects import check_erasures
from dledger_pipeline.archive.hashed_json import Signature
from dledger_pipeline.archive.manifest import Manifest, told_time
from dledger_pipeline.archive.places_objects import read_places
from dledger_pipeline.archive.prefetch import prefetch
from dledger_pipeline.archive.restore import Progress, check_base, restore
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
    number: int
    first_index: int
    last_index: int
    as_of: str
    records: int
    record_bytes: int
    object_bytes: int
    objects: int
    bases: int
    compared_bytes: int
    signature: Signature


def verify(
    store: Store,
    group_id: str | None = None,
    *,
    number: int | None = None,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> VerifyResult:
    """Check every object of a backup: hash, rows, body and chain CRCs, joins, bases.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        number: Which; None: the newest.
        scratch: An empty directory to restore into and compare; None for neither.
        progress: Called after each object.

    Raises:
        CorruptObject, ObjectMissing, BackupError, StoreError: With the name of the first fault.
    """
    manifest = load(store, group_id, number)
    for base in manifest.bases:
        name = f"{manifest.group_id}/{base.name}"
        check_kept(name, state_of(name, read_base(store, manifest.group_id, base)), base)
    tables = prefetch(store, manifest.group_id, manifest.files)
    for row, table in zip(manifest.files, tables, strict=True):
        _check_row(f"{manifest.group_id}/{row.name}", row, table)
        if row.places is not None:
            read_places(store, manifest.group_id, row)
        check_erasures(store, manifest.group_id, row, table)
        for base, batch in product(manifest.bases, table.to_batches()):
            check_base(base, batch)
        if progress is not None:
            progress(row, len(manifest.files))
    return VerifyResult(
        group_id=manifest.group_id,
        manifest=manifest.name,
        number=manifest.number,
        first_index=manifest.first_index,
        last_index=manifest.last_index,
        as_of=told_time(manifest.as_of_ms),
        bases=len(manifest.bases),
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
    if found != replace(row, places=None, erasures=None):
        raise CorruptManifest(name, f"the object holds {found}, its manifest row says {row}")


def _compare(store: Store, manifest: Manifest, scratch: Path) -> int:
    """Restore into *scratch* and compare with the archive; return how many bytes were equal."""
    end = manifest.last_index
    name = "verify/verify-0"
    result = restore(
        store,
        manifest.group_id,
        scratch,
        name=name,
        number=manifest.number,
        target_index=end,
    )
    restored = _Bytes(read_log(scratch))
    rows = [row for row in manifest.files if row.last_index >= result.first_index]
    tables = prefetch(store, manifest.group_id, rows)
    for row, table in zip(rows, tables, strict=True):
        for expected in map(encode, within(table.to_batches(), result.first_index, end)):
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
