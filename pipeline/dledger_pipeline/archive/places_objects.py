"""The places of an object's messages as an object: asked of a node, written once, read checked.

Used by the backup job, `planning`, `verify` and `repair`.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dledger_pipeline.archive.archive import ManifestRow, create_once, read_object
from dledger_pipeline.archive.parquet_sizes import opened, stated_rows
from dledger_pipeline.archive.places import PlacesRow, places_name, spans_of
from dledger_pipeline.archive.topics import SeenTopics
from dledger_pipeline.errors import (
    BackupError,
    CorruptObject,
    ExportError,
    NodeUnavailable,
    ObjectMissing,
    RangeNotAvailable,
)
from dledger_pipeline.log.export_client import ExportClient, ExportedPlaces
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from dledger_pipeline.log.places import flaw
from dledger_pipeline.object_store.store import Store

T = TypeVar("T")

logger = logging.getLogger(__name__)

_ROUNDS: Final = 3
_PAUSE_S: Final = 1.0
_PLACE_BYTES: Final = 64
"""What a place takes in Parquet before compression: 60, rounded up."""
_PAGES_BYTES: Final = 1 << 20
_MESSAGE_BYTES: Final = 9
"""The least that a message takes in an entry; a place has at least one."""
_WRITER: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "column_encoding": dict.fromkeys(QUEUE_SLICE_SCHEMA.names, "DELTA_BINARY_PACKED"),
    "data_page_size": 8 << 20,
    "write_statistics": False,
    "version": "2.6",
}
_GROUP: Final = "dledger.group_id"


def exported_places(
    addresses: Sequence[str], group_id: str, first_index: int, last_index: int
) -> ExportedPlaces | None:
    """Return the places of some entries from the first of *addresses* that has all of them.

    None if none has: they are older, do not answer, or have dropped messages.
    """

    def ask(exporter: ExportClient) -> ExportedPlaces | None:
        found = exporter.places(group_id, first_index, last_index)
        return found if found.kept_from <= first_index else None

    return _asked(addresses, ask)


def told_places(
    addresses: Sequence[str], group_id: str, first_index: int, last_index: int
) -> ExportedPlaces:
    """Return the places of those messages that lie in these entries now.

    What was copied elsewhere by `applied_index`, or has been let go, is not among them.

    Raises:
        RangeNotAvailable: None of *addresses* tells, such as when all have dropped the entries.
    """
    found = _asked(addresses, lambda each: each.places(group_id, first_index, last_index))
    if found is None:
        raise RangeNotAvailable(
            f"no node tells where the messages of entries [{first_index}, {last_index}] are: "
            f"{', '.join(addresses)} were asked"
        )
    return found


def exported_topics(addresses: Sequence[str], group_id: str, last_index: int) -> SeenTopics | None:
    """Return the topics of a state that includes *last_index*; None if no node tells."""

    def ask(exporter: ExportClient) -> SeenTopics:
        found = exporter.places(group_id, last_index + 1, last_index, with_topics=True)
        return SeenTopics(
            applied_index=found.applied_index, made=found.topics_made, names=found.topics
        )

    return _asked(addresses, ask)


def _asked(addresses: Sequence[str], ask: Callable[[ExportClient], T | None]) -> T | None:
    """Return the first answer; nodes that are only not able to answer yet are asked again."""
    again = list(addresses)
    for attempt in range(_ROUNDS):
        if attempt and again:
            time.sleep(_PAUSE_S)
        asked, again = again, []
        for address in asked:
            try:
                with ExportClient(address) as exporter:
                    found = ask(exporter)
            except ExportError as error:
                logger.info("no places: %s", error)
                if isinstance(error, NodeUnavailable | RangeNotAvailable):
                    again.append(address)
            else:
                if found is not None:
                    return found
    return None


def with_places(
    store: Store, group_id: str, row: ManifestRow, parts: Sequence[ManifestRow], new: pa.RecordBatch
) -> ManifestRow:
    """Return *row* after writing the places of its messages; without them if some are not known.

    Args:
        store: The store's root.
        group_id: The group's folder.
        row: Entries that were written.
        parts: Older objects whose entries it begins with.
        new: The places of all later ones.

    Raises:
        StoreError: They could not be written.
    """
    try:
        older = [read_places(store, group_id, part) for part in parts if part.places]
    except (BackupError, ObjectMissing) as error:
        logger.warning("entries [%d, %d] get no places: %s", row.first_index, row.last_index, error)
        return row
    if len(older) < len(parts):
        return row
    places = pa.Table.from_batches([batch for one in older for batch in one.to_batches()] + [new])
    return replace(row, places=write_places(store, group_id, row, places))


def write_places(store: Store, group_id: str, row: ManifestRow, places: pa.Table) -> PlacesRow:
    """Write the places of the messages of *row* as one object; return its row.

    Raises:
        CorruptObject: An object of that name is there and has other bytes.
        StoreError: It could not be written.
    """
    sink = pa.BufferOutputStream()
    table = places.combine_chunks().replace_schema_metadata({_GROUP: group_id})
    pq.write_table(table, sink, row_group_size=max(len(table), 1), **_WRITER)
    data = sink.getvalue()
    made = _row(row, places, data, hashlib.sha256(data).hexdigest())
    create_once(store, f"{group_id}/{made.name}", data)
    return made


def _row(row: ManifestRow, places: pa.Table, data: pa.Buffer, sha256: str) -> PlacesRow:
    return PlacesRow(
        name=places_name(row.first_index, row.last_index, sha256),
        object_bytes=data.size,
        sha256=sha256,
        rows=len(places),
        spans=spans_of(places),
    )


def read_places(store: Store, group_id: str, row: ManifestRow) -> pa.Table:
    """Return the places (`messages.QUEUE_SLICE_SCHEMA`) of the messages of *row*, which has them.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It does not have the hash that *row* states, or cannot be what it states.
        StoreError: The store failed.
    """
    places = row.places
    if places is None:
        raise ValueError(f"{row.name} has no places")
    name = f"{group_id}/{places.name}"
    _check_rows(name, places.rows, row)
    table = read_object(
        store,
        name,
        object_bytes=places.object_bytes,
        sha256=places.sha256,
        schema=QUEUE_SLICE_SCHEMA,
        rows=places.rows,
        inflated_bytes=_inflated_bytes(places.rows),
    )
    _check(name, table, places.rows, row)
    if spans_of(table) != places.spans:
        raise CorruptObject(name, "it has places of other queues than the manifest says")
    return table


def describe_places(store: Store, group_id: str, row: ManifestRow, name: str) -> PlacesRow:
    """Return the row of the object *name*, of the entries of *row*, from nothing but what is in it.

    Raises like `read_places`; CorruptObject also if it is of another group.
    """
    full_name = f"{group_id}/{name}"
    data = store.get(full_name)
    sha256 = hashlib.sha256(data).hexdigest()
    if name != places_name(row.first_index, row.last_index, sha256):
        raise CorruptObject(full_name, f"its SHA-256 is {sha256}")
    rows = stated_rows(data, full_name)
    _check_rows(full_name, rows, row)
    file = opened(
        data,
        full_name,
        schema=QUEUE_SLICE_SCHEMA,
        rows=rows,
        inflated_bytes=_inflated_bytes(rows),
    )
    if (file.schema_arrow.metadata or {}).get(_GROUP.encode()) != group_id.encode():
        raise CorruptObject(full_name, "it does not say that it is of this group")
    try:
        table = file.read().replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObject(full_name, f"not readable as Parquet: {error}") from error
    _check(full_name, table, rows, row)
    return _row(row, table, data, sha256)


def _inflated_bytes(rows: int) -> int:
    return _PLACE_BYTES * rows + _PAGES_BYTES


def _check_rows(name: str, rows: int, row: ManifestRow) -> None:
    """Refuse, before they are inflated, more places than the entries have room for."""
    if rows * _MESSAGE_BYTES > row.record_bytes:
        raise CorruptObject(name, f"{rows} places in {row.record_bytes} bytes of entries")


def _check(name: str, table: pa.Table, rows: int, row: ManifestRow) -> None:
    if len(table) != rows:
        raise CorruptObject(name, f"it has {len(table)} places instead of {rows}")
    if reason := flaw(table, row.first_index, row.last_index):
        raise CorruptObject(name, f"not the places of these entries: {reason}")
