"""A range of the log as one Parquet object: written once, named by its hash, read back checked.

The object's bytes depend on the entries only, not on how they were cut into batches, so that a
rerun finds its own objects and writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from dledger_pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """One archived range: entries [first_index, last_index] in one object.

    Attributes:
        name: The object, relative to the group's folder: ``data/<first>-<last>-<sha256>.parquet``.
        records: How many entries; last_index - first_index + 1.
        record_bytes: What they take in segments, headers and padding included.
        object_bytes: Length of the object.
        sha256: Of the object, lower hex.
        first_chain: The chain CRC of the record *before* first_index; 0 before entry 1.
        last_chain: The chain CRC of the record at last_index.
        last_term: The term of the record at last_index.
        first_timestamp_ms: The lowest timestamp of entries that have one (no-ops have none); 0 if
            none has.
        last_timestamp_ms: The highest timestamp; 0 if none has one.
    """

    name: str
    first_index: int
    last_index: int
    records: int
    record_bytes: int
    object_bytes: int
    sha256: str
    first_chain: int
    last_chain: int
    last_term: int
    first_timestamp_ms: int
    last_timestamp_ms: int


def write_range(
    store: Store, group_id: str, batches: Iterable[pa.RecordBatch], *, previous_chain: int
) -> ManifestRow:
    """Write the entries of *batches*, which follow each other, as one object below *group_id*.

    The same entries give the same object; if it is there already, it is compared.

    Args:
        store: The store's root.
        group_id: The group's folder.
        batches: As `records.parse` returns them; at least one row in all.
        previous_chain: The chain CRC of the record before the first one.

    Raises:
        CorruptObject: An object of that name is there and has other bytes.
        StoreError: It could not be written.
    """
    raise NotImplementedError(store, group_id, batches, previous_chain)


def read_range(store: Store, group_id: str, row: ManifestRow) -> pa.Table:
    """Return the entries of *row* (`records.ENTRY_SCHEMA`); the object's hash is checked.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It does not have the hash, or not the rows, that *row* states.
    """
    raise NotImplementedError(store, group_id, row)
