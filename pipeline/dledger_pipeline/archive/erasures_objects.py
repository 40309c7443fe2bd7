"""The ERASEs among an object's entries as an object: found, written once, read checked.

They follow from the entries alone, so that whoever has these writes the same object again: a backup
that merges small objects, and `repair`. Used by the backup job, `erased`, `verify` and `repair`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dledger_pipeline.archive.archive import ManifestRow, create_once, read_object, write_range
from dledger_pipeline.archive.erasures import ErasuresRow, erasures_name
from dledger_pipeline.errors import CorruptManifest, CorruptObject
from dledger_pipeline.log.erase_rows import ERASE_SCHEMA, erase_rows
from dledger_pipeline.log.places import numbers
from dledger_pipeline.object_store.store import Store

_OFFSET_BYTES: Final = 8
"""What a message takes in an ERASE."""
_ROW_BYTES: Final = 48
"""What it takes in Parquet before compression: 44, rounded up."""
_PAGES_BYTES: Final = 1 << 20
_MOST: Final = 1 << 62
_MAX_QUEUE_ID: Final = (1 << 31) - 1
_WRITER: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "column_encoding": dict.fromkeys(ERASE_SCHEMA.names, "DELTA_BINARY_PACKED"),
    "data_page_size": 8 << 20,
    "write_statistics": False,
    "version": "2.6",
}


def write_entries(
    store: Store, group_id: str, batches: Iterable[pa.RecordBatch], *, previous_chain: int
) -> ManifestRow:
    """Write entries as `archive.write_range` does, and the ERASEs among them beside.

    Raises like that; NewerCommand, if a newer version wrote one of these.
    """
    found: list[pa.RecordBatch] = []
    row = write_range(store, group_id, _noting(batches, found), previous_chain=previous_chain)
    return with_erasures(store, group_id, row, pa.Table.from_batches(found, ERASE_SCHEMA))


def _noting(
    batches: Iterable[pa.RecordBatch], found: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = erase_rows(batch)
        if rows.num_rows:
            found.append(rows)
        yield batch


def with_erasures(store: Store, group_id: str, row: ManifestRow, found: pa.Table) -> ManifestRow:
    """Return *row* after writing *found* (`ERASE_SCHEMA`), if its entries have any.

    Raises:
        CorruptObject: An object of that name is there and has other bytes.
        StoreError: It could not be written.
    """
    if not found.num_rows:
        return row
    sink = pa.BufferOutputStream()
    pq.write_table(found.combine_chunks(), sink, row_group_size=len(found), **_WRITER)
    data = sink.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    made = ErasuresRow(
        name=erasures_name(row.first_index, row.last_index, sha256),
        object_bytes=data.size,
        sha256=sha256,
        rows=len(found),
    )
    create_once(store, f"{group_id}/{made.name}", data)
    return replace(row, erasures=made)


def read_erasures(store: Store, group_id: str, row: ManifestRow) -> pa.Table:
    """Return the ERASEs (`ERASE_SCHEMA`) among the entries of *row*; no rows if it states none.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It does not have the hash that *row* states, or cannot be what it states.
        StoreError: The store failed.
    """
    stated = row.erasures
    if stated is None:
        return ERASE_SCHEMA.empty_table()
    name = f"{group_id}/{stated.name}"
    if stated.rows * _OFFSET_BYTES > row.record_bytes:
        raise CorruptObject(name, f"{stated.rows} messages in {row.record_bytes} bytes of entries")
    table = read_object(
        store,
        name,
        object_bytes=stated.object_bytes,
        sha256=stated.sha256,
        schema=ERASE_SCHEMA,
        rows=stated.rows,
        inflated_bytes=_ROW_BYTES * stated.rows + _PAGES_BYTES,
    )
    if len(table) != stated.rows:
        raise CorruptObject(name, f"it has {len(table)} messages instead of {stated.rows}")
    if reason := _flaw(table, row):
        raise CorruptObject(name, f"not the ERASEs of these entries: {reason}")
    return table


def _flaw(table: pa.Table, row: ManifestRow) -> str:
    """Return why *table* cannot be of the entries of *row*; "" if it can."""
    index, *others = (numbers(each) for each in table.columns)
    at_ms, generation, queue_id, offset, first_entry = others
    if (np.diff(index) < 0).any() or not row.first_index <= index[0] <= index[-1] <= row.last_index:
        return "they do not ascend, or lie outside"
    if min(int(each.min()) for each in (*others, generation - 1)) < 0:
        return "a number is too low"
    if max(int(each.max()) for each in (at_ms, generation, offset, first_entry)) >= _MOST:
        return "a number is too high"
    return "" if queue_id.max() <= _MAX_QUEUE_ID else "a number is too high"


def check_erasures(store: Store, group_id: str, row: ManifestRow, entries: pa.Table) -> None:
    """Check that *row* states the ERASEs that are among its *entries*.

    Raises:
        CorruptManifest: It states others, or none.
        ObjectMissing, CorruptObject, StoreError: See `read_erasures`.
    """
    found = pa.Table.from_batches(map(erase_rows, entries.to_batches()), ERASE_SCHEMA)
    if not read_erasures(store, group_id, row).equals(found):
        raise CorruptManifest(
            f"{group_id}/{row.name}", f"its manifest row says other ERASEs than its {len(found)}"
        )
