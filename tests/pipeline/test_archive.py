"""Ranges as objects: the same entries give the same object, and only what was written is read."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.types import Entry
from dledger_pipeline.archive import archive
from dledger_pipeline.archive.archive import read_range, write_range
from dledger_pipeline.errors import BrokenBackup, CorruptObject, ObjectMissing
from dledger_pipeline.log.records import ENTRY_SCHEMA, encode
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import GROUP_ID, batches, contents, entries, entry, flip

ENTRIES = entries(120)


def encoded(table: pa.Table) -> bytes:
    """Return the record bytes of a table."""
    return b"".join(encode(batch) for batch in table.to_batches())


def test_a_range_is_read_as_it_was_written(store: Store) -> None:
    """Every row, and a manifest row that states what is in it."""
    chain = batches(ENTRIES[:40])[-1]["chain_crc32c"][-1].as_py()
    written = batches(ENTRIES[40:], chain=chain)

    row = write_range(store, GROUP_ID, written, previous_chain=chain)

    table = read_range(store, GROUP_ID, row)
    assert table.schema == ENTRY_SCHEMA
    assert table == pa.Table.from_batches(written)
    assert (row.first_index, row.last_index, row.records) == (41, 120, 80)
    assert row.record_bytes == len(encoded(table))
    assert (row.first_chain, row.last_chain) == (chain, written[0]["chain_crc32c"][-1].as_py())
    assert (row.last_term, row.first_timestamp_ms, row.last_timestamp_ms) == (7, 410, 1190)
    assert row.name == f"data/{41:020}-{120:020}-{row.sha256}.parquet"
    assert list(store.list()) == [f"{GROUP_ID}/{row.name}"]


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(0, 30), max_size=6), group_bytes=st.integers(1, 50_000))
def test_the_same_entries_give_the_same_object_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group_bytes: int
) -> None:
    """Neither batches nor a second run change a byte; row groups end where entries say."""
    store = Store.open(f"file://{tmp_path_factory.mktemp('store')}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "_ROW_GROUP_BYTES", group_bytes)

        first = write_range(store, GROUP_ID, batches(ENTRIES), previous_chain=0)
        again = write_range(store, GROUP_ID, batches(ENTRIES, sizes=sizes), previous_chain=0)

    assert again == first
    assert len(contents(store)) == 1
    assert encoded(read_range(store, GROUP_ID, again)) == encoded(
        pa.Table.from_batches(batches(ENTRIES))
    )


def test_row_groups_are_bounded(tmp_path: Path) -> None:
    """So that neither writing nor reading needs a range in memory at once."""
    store = Store.open(f"file://{tmp_path}")
    large = [entry(index, data=bytes(6 << 20)) for index in range(1, 8)]

    row = write_range(store, GROUP_ID, batches(large), previous_chain=0)

    found = pq.ParquetFile(io.BytesIO(store.get(f"{GROUP_ID}/{row.name}").to_pybytes()))
    assert [found.metadata.row_group(n).num_rows for n in range(3)] == [3, 3, 1]
    assert encoded(read_range(store, GROUP_ID, row)) == encoded(
        pa.Table.from_batches(batches(large))
    )


def test_a_range_says_whose_it_is(tmp_path: Path) -> None:
    """An object is of use without its manifest, and readable by anything that reads Parquet."""
    store = Store.open(f"file://{tmp_path}")
    row = write_range(store, GROUP_ID, batches(ENTRIES), previous_chain=0)

    schema = pq.read_schema(tmp_path / GROUP_ID / row.name)

    assert schema.metadata[b"dledger.group_id"] == GROUP_ID.encode()
    assert schema.metadata[b"dledger.previous_chain"] == b"0"


@pytest.mark.parametrize(
    ("parts", "chain"),
    [
        ((ENTRIES[:10], ENTRIES[11:20]), 0),
        ((ENTRIES[:10], ENTRIES[9:20]), 0),
        ((ENTRIES[:10], entries(20, seed=2)[10:]), 0),
        ((ENTRIES[:10],), 1),
    ],
    ids=["gap", "overlap", "other history", "other predecessor"],
)
def test_batches_that_do_not_join_are_refused(
    store: Store, parts: tuple[list[Entry], ...], chain: int
) -> None:
    """Nothing is written."""
    joined = [batch for part in parts for batch in batches(part)]

    with pytest.raises(BrokenBackup, match="the batch from entry"):
        write_range(store, GROUP_ID, joined, previous_chain=chain)

    assert list(store.list()) == []


def test_a_damaged_object_is_named(store: Store) -> None:
    """A flipped bit anywhere, and a missing end."""
    row = write_range(store, GROUP_ID, batches(ENTRIES), previous_chain=0)
    name = f"{GROUP_ID}/{row.name}"
    whole = store.get(name).to_pybytes()

    for at in (0, 100, len(whole) // 2, len(whole) - 1):
        flip(store, name, at)
        with pytest.raises(CorruptObject, match=rf"{name}: its SHA-256"):
            read_range(store, GROUP_ID, row)
        store.put(name, whole)
    store.put(name, whole[:-1])
    with pytest.raises(CorruptObject, match=rf"{name}: it has {len(whole) - 1} of {len(whole)}"):
        read_range(store, GROUP_ID, row)


def test_a_missing_object_is_named(store: Store) -> None:
    """With the name under which it should be."""
    row = write_range(store, "elsewhere", batches(ENTRIES), previous_chain=0)

    with pytest.raises(ObjectMissing, match=f"{GROUP_ID}/{row.name}"):
        read_range(store, GROUP_ID, row)


def test_a_rerun_does_not_trust_a_damaged_object_of_the_right_name(store: Store) -> None:
    """Nor does it replace it: that is for people to look at."""
    row = write_range(store, GROUP_ID, batches(ENTRIES), previous_chain=0)
    flip(store, f"{GROUP_ID}/{row.name}")
    before = contents(store)

    with pytest.raises(CorruptObject, match=row.name):
        write_range(store, GROUP_ID, batches(ENTRIES), previous_chain=0)

    assert contents(store) == before
