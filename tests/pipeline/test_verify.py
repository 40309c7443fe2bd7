"""A backup is proven whole, or the first thing that is wrong with it is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dledger_pipeline.archive.archive import ManifestRow, object_name, write_range
from dledger_pipeline.archive.catalog import publish
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.errors import (
    BackupError,
    CorruptManifest,
    CorruptObject,
    DirectoryNotEmpty,
    NoBackup,
    ObjectMissing,
)
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import (
    GROUP_ID,
    backup,
    batches,
    contents,
    entries,
    file_rows,
    flip,
    manifest,
    rewrite,
)

ENTRIES = entries(100)


def test_a_whole_backup_is_proven(store: Store, tmp_path: Path) -> None:
    """With figures; and compared with what a restore of it gives."""
    published = backup(store, ENTRIES, (30, 30, 40))

    shallow = verify(store)
    deep = verify(store, GROUP_ID, scratch=tmp_path / "scratch")

    assert (shallow.manifest, shallow.objects, shallow.records) == (published.name, 3, 100)
    assert (shallow.first_index, shallow.last_index) == (1, 100)
    assert (shallow.record_bytes, shallow.compared_bytes) == (published.record_bytes, 0)
    assert deep == replace(shallow, compared_bytes=published.record_bytes)
    restored = b"".join(bytes(chunk.data) for chunk in read_log(tmp_path / "scratch"))
    assert len(restored) == deep.compared_bytes


def test_progress_is_told_after_each_object(store: Store) -> None:
    """By its row, of how many in all."""
    backup(store, ENTRIES, (30, 30, 40))
    told: list[tuple[int, int]] = []

    verify(store, progress=lambda row, total: told.append((row.last_index, total)))

    assert told == [(30, 3), (60, 3), (100, 3)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_object_is_named(store: Store, number: int) -> None:
    """Whichever it is; and the store stays as it is."""
    published = backup(store, ENTRIES, (30, 30, 40))
    name = f"{GROUP_ID}/{published.files[number].name}"
    flip(store, name)
    before = contents(store)

    with pytest.raises(CorruptObject, match=name):
        verify(store)

    assert contents(store) == before


def test_a_missing_object_is_named(tmp_path: Path) -> None:
    """By the name under which it should be."""
    store = Store.open(f"file://{tmp_path}/store")
    published = backup(store, ENTRIES, (30, 30, 40))
    (tmp_path / "store" / GROUP_ID / published.files[1].name).unlink()

    with pytest.raises(ObjectMissing, match=published.files[1].name):
        verify(store)


def test_a_store_without_a_backup_says_so(store: Store) -> None:
    """Nothing was published, or another group."""
    with pytest.raises(NoBackup, match="no backup"):
        verify(store)
    backup(store, ENTRIES, (30,))
    with pytest.raises(NoBackup, match="other-group"):
        verify(store, "other-group")


def test_a_directory_in_use_is_no_scratch(store: Store, tmp_path: Path) -> None:
    """Nothing there is overwritten."""
    backup(store, ENTRIES, (30,))
    (tmp_path / "notes").write_bytes(b"mine")

    with pytest.raises(DirectoryNotEmpty, match="notes"):
        verify(store, scratch=tmp_path)

    assert (tmp_path / "notes").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "change",
    [
        {"record_bytes": 1},
        {"last_term": 9},
        {"first_timestamp_ms": 1},
        {"last_timestamp_ms": 1},
    ],
)
def test_a_manifest_that_states_other_facts_is_named(
    store: Store, change: dict[str, object]
) -> None:
    """Sealed by whoever wrote it, and yet not what the objects hold."""
    published = backup(store, ENTRIES, (30,))
    rewrite(store, published, file_rows(published, **change))

    with pytest.raises(CorruptManifest, match=published.files[0].name):
        verify(store)


def _with(batch: pa.RecordBatch, column: str, value: object) -> pa.RecordBatch:
    rows = batch.to_pylist()
    rows[7][column] = value
    return pa.RecordBatch.from_pylist(rows, schema=batch.schema)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: _with(batch, "body", b"forged"),
        lambda batch: _with(batch, "term", 7),
        lambda batch: _with(batch, "index", 9),
        lambda batch: _with(batch, "type", 9),
        lambda batch: batch.slice(0, 29),
        lambda batch: batch.drop_columns(["term"]),
    ],
    ids=["body", "term", "index", "type", "rows", "columns"],
)
def test_entries_that_were_archived_wrong_are_found_by_their_crcs(
    store: Store, spoil: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> None:
    """An object may have its hash and yet not hold the log."""
    (batch,) = batches(ENTRIES[:30])
    honest = write_range(store, GROUP_ID, [batch], previous_chain=0)
    row = _forged(store, honest, spoil(batch))
    publish(store, manifest((row,)))

    with pytest.raises(BackupError, match=row.name):
        verify(store)


def _forged(store: Store, honest: ManifestRow, batch: pa.RecordBatch) -> ManifestRow:
    """Archive *batch* unchecked, under a row that says what it should hold."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    data = sink.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    name = object_name(honest.first_index, honest.last_index, sha256)
    store.put(f"{GROUP_ID}/{name}", data)
    return replace(honest, name=name, sha256=sha256, object_bytes=data.size)


def test_an_object_that_is_no_parquet_is_named(store: Store) -> None:
    """Though it has the hash that the manifest says."""
    honest = write_range(store, GROUP_ID, batches(ENTRIES[:30]), previous_chain=0)
    data = b"PAR1 and nothing else PAR1"
    sha256 = hashlib.sha256(data).hexdigest()
    name = object_name(1, 30, sha256)
    store.put(f"{GROUP_ID}/{name}", data)
    row = replace(honest, name=name, sha256=sha256, object_bytes=len(data))
    publish(store, manifest((row,)))

    with pytest.raises(CorruptObject, match=f"{name}: not readable as Parquet"):
        verify(store)
