"""A small object never becomes a large one: sizes are compared before anything is inflated."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_pipeline.archive.archive import ManifestRow, object_name, read_range, write_range
from dledger_pipeline.archive.parquet_sizes import inflated_bytes, opened
from dledger_pipeline.errors import CorruptObject
from dledger_pipeline.log.records import ENTRY_SCHEMA
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import GROUP_ID, batches, entries

pytestmark = pytest.mark.found

BOMB_BYTES = 64 << 20
ENTRIES = entries(30)


def parquet(table: pa.Table, **settings: Any) -> pa.Buffer:
    """Return a table as Parquet."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"compression": "zstd", "use_dictionary": False, **settings})
    return sink.getvalue()


def one_row(body: bytes, rows: int = 1) -> pa.Table:
    """Return *rows* rows with the same body."""
    bodies = pa.array([body] * rows, pa.large_binary())
    columns = [
        bodies
        if field.name == "body"
        else pa.array(range(1, rows + 1), pa.int64()).cast(field.type)
        for field in ENTRY_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=ENTRY_SCHEMA)


def stored(store: Store, data: pa.Buffer, *, rows: int, record_bytes: int) -> ManifestRow:
    """Put an object into the store as a hostile one would; return its row."""
    sha256 = hashlib.sha256(data).hexdigest()
    name = object_name(1, rows, sha256)
    store.put(f"{GROUP_ID}/{name}", data)
    return ManifestRow(
        name=name,
        first_index=1,
        last_index=rows,
        records=rows,
        record_bytes=record_bytes,
        object_bytes=data.size,
        sha256=sha256,
        first_chain=0,
        last_chain=0,
        last_term=0,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
    )


@pytest.fixture
def store(tmp_path: Any) -> Store:
    """Return a directory's store: what Parquet says does not depend on where it lies."""
    return Store.open(f"file://{tmp_path}/store")


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (lambda: parquet(one_row(bytes(BOMB_BYTES))), 1),
        (lambda: parquet(one_row(bytes(1 << 20), 64), use_dictionary=True), 64),
        (
            lambda: parquet(
                one_row(bytes(1 << 20), 64), column_encoding={"body": "DELTA_BYTE_ARRAY"}
            ),
            64,
        ),
    ],
    ids=["zeros", "a dictionary", "shared prefixes"],
)
def test_a_bomb_is_refused_before_it_is_inflated(
    store: Store, data: Callable[[], pa.Buffer], rows: int
) -> None:
    """Its hash is right, and so is the number of its rows."""
    row = stored(store, data(), rows=rows, record_bytes=100 * rows)
    before = pa.total_allocated_bytes()
    tracemalloc.start()

    with pytest.raises(CorruptObject, match=row.name):
        read_range(store, GROUP_ID, row)

    assert pa.total_allocated_bytes() - before < BOMB_BYTES // 8
    assert tracemalloc.get_traced_memory()[1] < BOMB_BYTES // 8
    tracemalloc.stop()


def test_the_sizes_in_pages_count_not_only_those_in_the_footer(store: Store) -> None:
    """A reader makes room for what a page says, so the footer of a small object does not help."""
    larger = _with_larger_page(parquet(one_row(b"x" * 200)))
    row = stored(store, larger, rows=1, record_bytes=1000)

    with pytest.raises(CorruptObject, match="its footer says"):
        read_range(store, GROUP_ID, row)


def _with_larger_page(data: pa.Buffer) -> pa.Buffer:
    """Return the object with the largest size that its last page's header has room for."""
    raw = bytearray(data.to_pybytes())
    body = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(6)
    at = body.data_page_offset
    assert raw[at : at + 3] == b"\x15\x00\x15"  # type 0, then the uncompressed size
    end = at + 3
    while raw[end] & 0x80:
        end += 1
    raw[at + 3 : end + 1] = b"\xfe" + b"\xff" * (end - at - 4) + b"\x7f"
    return pa.py_buffer(bytes(raw))


def test_more_rows_or_a_larger_object_than_stated_are_refused(store: Store) -> None:
    """Rows by the footer, bytes before they are read."""
    honest = write_range(store, GROUP_ID, batches(ENTRIES), previous_chain=0)

    with pytest.raises(CorruptObject, match="30 entries, the manifest says 29"):
        read_range(store, GROUP_ID, replace(honest, records=29))
    with pytest.raises(CorruptObject, match="it may have"):
        read_range(store, GROUP_ID, replace(honest, object_bytes=honest.object_bytes - 1))


@settings(max_examples=150, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4),
    cut=st.integers(0, 40),
)
def test_whatever_the_bytes_are_they_are_named_or_inflate_to_what_is_stated(
    flips: list[tuple[int, int]], cut: int
) -> None:
    """Damaged anywhere, footer and headers included."""
    raw = bytearray(parquet(pa.Table.from_batches(batches(ENTRIES))).to_pybytes())
    most = inflated_bytes(pa.py_buffer(bytes(raw)))
    for at, bits in flips:
        raw[at % len(raw)] ^= bits
    data = pa.py_buffer(bytes(raw[: len(raw) - cut]))

    try:
        file = opened(data, "x", schema=ENTRY_SCHEMA, rows=30, inflated_bytes=most)
    except CorruptObject:
        return
    assert inflated_bytes(data) <= most
    assert file.metadata.num_rows == 30
