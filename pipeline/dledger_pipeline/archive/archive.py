"""A range of the log as one Parquet object: written once, named by its hash, read back checked.

The object's bytes depend on the entries only, not on how they were cut into batches, so that a
rerun finds its own objects and writes nothing twice. (Another version of the Parquet writer may
give other bytes for the same entries.) Used by the backup job, `restore` and `verify`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dledger_pipeline.archive.erasures import ErasuresRow
from dledger_pipeline.archive.parquet_sizes import MAX_INFLATED_BYTES, opened
from dledger_pipeline.archive.places import PlacesRow
from dledger_pipeline.archive.selection import BOUNDED, Bounds, MayHold, anything
from dledger_pipeline.errors import (
    AlreadyExists,
    BrokenBackup,
    CorruptObject,
    ObjectMissing,
    VersionConflict,
)
from dledger_pipeline.log.erase_rows import ERASE_SCHEMA, erase_rows
from dledger_pipeline.log.records import ENTRY_SCHEMA, check, record_sizes, values
from dledger_pipeline.object_store.store import Store

_ATTEMPTS: Final = 5
"""To write an object that others write, too, or that `gc` deletes at the same time."""
_ROW_GROUP_BYTES: Final = 16 << 20
"""Of records: what a writer holds in memory besides the compressed object."""
_WRITER: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "column_encoding": {
        field.name: "DELTA_BINARY_PACKED" if field.type == pa.int64() else "PLAIN"
        for field in ENTRY_SCHEMA
    },
    "data_page_size": 8 << 20,
    "write_statistics": ["index", "timestamp_ms"],
    "version": "2.6",
}
"""Pages are large enough to compress as well as the whole column; the other settings pin what the
bytes depend on."""
_COLUMN_BYTES: Final = 64
"""What a row takes in Parquet besides its body, before compression: 48, rounded up."""
_PAGES_BYTES: Final = 1 << 20
"""What headers of pages take, and the padding of blocks of numbers: kilobytes, rounded up."""


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
        places: Where its messages are; None if no node told.
        erasures: The ERASEs among its entries; None if there are none.
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
    places: PlacesRow | None = None
    erasures: ErasuresRow | None = None


def object_name(first_index: int, last_index: int, sha256: str) -> str:
    """Return the name, within the group's folder, of the object with these entries."""
    return f"data/{first_index:020}-{last_index:020}-{sha256}.parquet"


def write_range(
    store: Store, group_id: str, batches: Iterable[pa.RecordBatch], *, previous_chain: int
) -> ManifestRow:
    """Write the entries of *batches*, which follow each other, as one object below *group_id*.

    The same entries give the same object; if it is there already, it is compared. Memory is that
    of one object, compressed, and one row group (about 16 MiB).

    Args:
        store: The store's root.
        group_id: The group's folder.
        batches: As `records.parse` returns them, so that each is checked; at least one row in all.
        previous_chain: The chain CRC of the record before the first one.

    Raises:
        BrokenBackup: A batch does not continue the one before it, or *previous_chain*.
        CorruptObject: An object of that name is there and has other bytes.
        CorruptRecord, ExportError: From reading *batches*.
        StoreError: It could not be written.
    """
    facts = _Facts(previous_chain)
    sink = pa.BufferOutputStream()
    metadata = {"dledger.group_id": group_id, "dledger.previous_chain": str(previous_chain)}
    with pq.ParquetWriter(sink, ENTRY_SCHEMA.with_metadata(metadata), **_WRITER) as writer:
        for rows in _row_groups(facts.noting(batches)):
            writer.write_table(rows.replace_schema_metadata(metadata), row_group_size=len(rows))
    data = sink.getvalue()
    row = facts.row(object_bytes=data.size, sha256=hashlib.sha256(data).hexdigest())
    create_once(store, f"{group_id}/{row.name}", data)
    return row


def read_range(
    store: Store,
    group_id: str,
    row: ManifestRow,
    may_hold: MayHold = anything,
    columns: Sequence[str] = (),
) -> pa.Table:
    """Return the entries of *row* (`records.ENTRY_SCHEMA`); the object's hash is checked.

    CRCs are not checked here, since the entries were checked before they were written with that
    hash; `prefetch.read_checked` does it again.

    Args:
        store: The store's root.
        group_id: The group's folder.
        row: Which object.
        may_hold: Row groups that cannot are left out, unread.
        columns: Which; all when empty.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It does not have the hash, or not the rows, that *row* states.
    """
    name = f"{group_id}/{row.name}"
    table = read_object(
        store,
        name,
        object_bytes=row.object_bytes,
        sha256=row.sha256,
        schema=ENTRY_SCHEMA,
        rows=row.records,
        inflated_bytes=row.record_bytes + _COLUMN_BYTES * row.records + _PAGES_BYTES,
        may_hold=may_hold,
        columns=columns and [*{"index": None, **dict.fromkeys(columns)}],
    )
    if may_hold is anything:
        _check_ends(table, row, name)
    return table


def read_object(
    store: Store,
    name: str,
    *,
    object_bytes: int,
    sha256: str,
    schema: pa.Schema,
    rows: int,
    inflated_bytes: int,
    may_hold: MayHold = anything,
    columns: Sequence[str] = (),
) -> pa.Table:
    """Return the rows of a Parquet object, after checking everything that its manifest states.

    Row groups are left out where *may_hold* says so of what their small columns hold. *columns*:
    empty for all.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It differs. It is decompressed only if its hash is right.
    """
    data = store.get(name, max_bytes=object_bytes)
    if data.size != object_bytes:
        raise CorruptObject(name, f"it has {data.size} of {object_bytes} bytes")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptObject(name, f"its SHA-256 is {found}, the manifest says {sha256}")
    file = opened(data, name, schema=schema, rows=rows, inflated_bytes=inflated_bytes)
    names = list(columns or schema.names)
    try:
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if may_hold is anything or may_hold(_bounds(file, number, schema))
        ]
        if not groups:
            return schema.empty_table().select(names)
        return file.read_row_groups(groups, names).select(names).replace_schema_metadata(None)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptObject(name, f"not readable as Parquet: {error}") from error


def _bounds(file: pq.ParquetFile, group: int, schema: pa.Schema) -> Bounds:
    """Return the lowest and highest values of a row group's columns that a selection may bound.

    They are read: the statistics in a damaged footer may say anything, or end the process.
    """
    table = file.read_row_group(group, [name for name in schema.names if name in BOUNDED])
    found = {name: pc.min_max(table.column(name)).as_py() for name in table.column_names}
    return {name: (one["min"], one["max"]) for name, one in found.items() if one["min"] is not None}


def describe_object(
    store: Store, group_id: str, name: str, object_bytes: int
) -> tuple[ManifestRow, pa.Table]:
    """Return the manifest row of an object, from nothing but what is in it, and its ERASEs.

    All of it is checked. The ERASEs are rows of `erase_rows.ERASE_SCHEMA`.

    Raises:
        CorruptObject: It does not have the hash that its name says, or is not readable.
        BrokenBackup: Its entries do not follow each other.
        StoreError: The store failed.
    """
    full_name = f"{group_id}/{name}"
    data = store.get(full_name, max_bytes=object_bytes)
    sha256 = hashlib.sha256(data).hexdigest()
    first, last = (int(text) for text in name.removeprefix("data/").split("-")[:2])
    if name != object_name(first, last, sha256):
        raise CorruptObject(full_name, f"its SHA-256 is {sha256}")
    file = opened(
        data,
        full_name,
        schema=ENTRY_SCHEMA,
        rows=last - first + 1,
        inflated_bytes=MAX_INFLATED_BYTES,
    )
    metadata = file.schema_arrow.metadata or {}
    chain = metadata.get(b"dledger.previous_chain", b"")
    if metadata.get(b"dledger.group_id") != group_id.encode() or not chain.isdigit():
        raise CorruptObject(full_name, "it does not say that it is of this group")
    batches = file.read().replace_schema_metadata(None).to_batches()
    at, index = int(chain), first
    for batch in batches:
        at, index = (
            check(batch, name=full_name, previous_chain=at, first_index=index),
            index + len(batch),
        )
    row = describe(batches, previous_chain=int(chain), object_bytes=data.size, sha256=sha256)
    if row.name != name:
        raise CorruptObject(full_name, f"it has entries [{row.first_index}, {row.last_index}]")
    return row, pa.Table.from_batches(map(erase_rows, batches), ERASE_SCHEMA)


def describe(
    batches: Iterable[pa.RecordBatch], *, previous_chain: int, object_bytes: int, sha256: str
) -> ManifestRow:
    """Return the manifest row of *batches*. Raises like `write_range`."""
    facts = _Facts(previous_chain)
    for _ in facts.noting(batches):
        pass
    return facts.row(object_bytes=object_bytes, sha256=sha256)


def _check_ends(table: pa.Table, row: ManifestRow, name: str) -> None:
    if len(table) != row.records:
        raise CorruptObject(name, f"it has {len(table)} entries, the manifest says {row.records}")
    first, last = table["index"][0].as_py(), table["index"][-1].as_py()
    if (first, last) != (row.first_index, row.last_index):
        raise CorruptObject(
            name,
            f"it has entries [{first}, {last}], "
            f"the manifest says [{row.first_index}, {row.last_index}]",
        )


def create_once(store: Store, name: str, data: pa.Buffer | bytes) -> None:
    """Write an object; if it is there, write its bytes again, so that it counts as young for `gc`.

    Raises:
        CorruptObject: It is there with other bytes, and stays so.
        VersionConflict: Others wrote or deleted it all the time.
        StoreError: The store failed.
    """
    for _ in range(_ATTEMPTS):
        try:
            store.create(name, data)
        except AlreadyExists as error:
            if not _write_again(store, name, data, error):
                continue
        return
    raise VersionConflict(name)


def _write_again(store: Store, name: str, data: pa.Buffer | bytes, error: AlreadyExists) -> bool:
    """Write the same bytes; return False if somebody else wrote or deleted it meanwhile."""
    try:
        found = store.get_versioned(name)
        if not found.data.equals(pa.py_buffer(data)):
            raise CorruptObject(name, "it exists already, with other bytes") from error
        store.replace(name, data, found.version)
    except (ObjectMissing, VersionConflict):
        return False
    return True


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in groups that end with the record that fills them, wherever batches end."""
    pending: list[pa.RecordBatch] = []
    room = _ROW_GROUP_BYTES
    for batch in batches:
        rest = batch
        while len(rest):
            ends = np.cumsum(record_sizes(rest))
            count = int(np.searchsorted(ends, room)) + 1
            pending.append(rest.slice(0, count))
            room -= int(ends[min(count, len(rest)) - 1])
            rest = rest.slice(min(count, len(rest)))
            if room <= 0:
                yield pa.Table.from_batches(pending).combine_chunks()
                pending, room = [], _ROW_GROUP_BYTES
    if pending:
        yield pa.Table.from_batches(pending).combine_chunks()


class _Facts:
    """Collects the fields of a manifest row while batches pass through."""

    def __init__(self, previous_chain: int) -> None:
        self._first_chain = self._chain = previous_chain
        self._first_index = self._last_index = self._last_term = 0
        self._record_bytes = 0
        self._timestamps: list[int] = []

    def noting(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield *batches* that are not empty, after checking that each continues the last."""
        for batch in batches:
            if len(batch):
                self._note(batch)
                yield batch

    def _note(self, batch: pa.RecordBatch) -> None:
        first = batch["index"][0].as_py()
        self._first_index = self._first_index or first
        expected = self._last_index + 1 if self._last_index else first
        name = f"the batch from entry {first} on"
        try:
            check(batch.slice(0, 1), name=name, previous_chain=self._chain, first_index=expected)
        except CorruptObject as error:
            raise BrokenBackup(
                name, f"expected entry {expected} behind chain CRC {self._chain:#010x}"
            ) from error
        self._last_index = batch["index"][-1].as_py()
        self._last_term = batch["term"][-1].as_py()
        self._chain = batch["chain_crc32c"][-1].as_py()
        self._record_bytes += int(record_sizes(batch).sum())
        timestamps = values(batch.column("timestamp_ms"))
        timestamps = timestamps[timestamps != 0]
        if len(timestamps):
            self._timestamps += [int(timestamps.min()), int(timestamps.max())]

    def row(self, *, object_bytes: int, sha256: str) -> ManifestRow:
        """Return the row of all batches that passed through."""
        if not self._first_index:
            raise ValueError("a range has at least one entry")
        return ManifestRow(
            name=object_name(self._first_index, self._last_index, sha256),
            first_index=self._first_index,
            last_index=self._last_index,
            records=self._last_index - self._first_index + 1,
            record_bytes=self._record_bytes,
            object_bytes=object_bytes,
            sha256=sha256,
            first_chain=self._first_chain,
            last_chain=self._chain,
            last_term=self._last_term,
            first_timestamp_ms=min(self._timestamps, default=0),
            last_timestamp_ms=max(self._timestamps, default=0),
        )
