"""Rows to Parquet files, one for each topic and day of a part of the log. Written once.

A file's name has the entries and a hash of its bytes: the same messages again make the same file,
and no file ever gets other bytes. Which files count is the table's to say (`table`). Called by the
workers of the job `export`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dledger_pipeline.archive.archive import create_once
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.columns import DATE, PARTITIONED_BY, Columns
from dledger_pipeline.tables.rows import Told, Wanted, rows_of

_PART_BYTES: Final = 64 << 20
"""Of rows that are held until their files are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where files are, and what is in them.

    Attributes:
        has_folders: Whether topic and day name a file's folders, as Hive has them, or nothing.
        has_partitions: Whether a file has the columns of its topic and day, too.
    """

    has_folders: bool
    has_partitions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One file.

    Attributes:
        name: From the table's URL on.
        topic, date: Of all of its rows.
        first_index, last_index: The lowest and highest index of its rows.
        first_ms, last_ms: When these were stored.
    """

    name: str
    topic: str
    date: str
    rows: int
    object_bytes: int
    first_index: int
    last_index: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a part of the log.

    Attributes:
        files: In order.
        not_unpacked, not_fitting: See `rows.Told`.
    """

    files: tuple[TableFile, ...]
    not_unpacked: int
    not_fitting: int

    @classmethod
    def of(cls, files: Iterable[Mapping[str, Any]], **told: int) -> Written:
        """Return one out of its fields as JSON has them."""
        return cls(files=tuple(TableFile(**each) for each in files), **told)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriter:
    """Writes the files of one export. Pickles.

    Attributes:
        store: The table's root.
        wanted: Which messages it does not have.
    """

    store: Store
    layout: Layout
    columns: Columns
    wanted: Wanted

    def write(self, messages: MessageRange) -> Written:
        """Write the files of the messages that the table does not have.

        Raises:
            StoreError: A file could not be written.
            PipelineError: See `MessageRange.read`.
        """
        told = Told()
        files: list[TableFile] = []
        span = f"{max(messages.first_index, self.wanted.after + 1):020}-{messages.last_index:020}"
        rows = rows_of(messages.read(), self.columns, self.wanted, told)
        for part in _parts(rows):
            for table in _by_partition(part):
                files.append(self._write(table, f"{span}-{len(files):04}"))
        return Written(
            files=tuple(files), not_unpacked=told.not_unpacked, not_fitting=told.not_fitting
        )

    def _write(self, table: pa.Table, stem: str) -> TableFile:
        topic, day = (table.column(name)[0].as_py() for name in PARTITIONED_BY)
        data = _parquet(table if self.layout.has_partitions else table.drop_columns(PARTITIONED_BY))
        name = f"{self._folder(topic, day)}/{stem}-{sha256(data).hexdigest()[:16]}.parquet"
        create_once(self.store, name, data)
        bounds = [pc.min_max(table.column(each)).as_py() for each in ("index", "stored_at_ms")]
        return TableFile(
            name=name,
            topic=topic,
            date=day.isoformat(),
            rows=table.num_rows,
            object_bytes=data.size,
            first_index=bounds[0]["min"],
            last_index=bounds[0]["max"],
            first_ms=bounds[1]["min"],
            last_ms=bounds[1]["max"],
        )

    def _folder(self, topic: str, day: date) -> str:
        return f"topic={quote(topic)}/{DATE}={day}" if self.layout.has_folders else "data"


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables that memory holds."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= _PART_BYTES:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _by_partition(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each topic and day, in their order."""
    in_order = table.take(pc.sort_indices(table, [(name, "ascending") for name in PARTITIONED_BY]))
    columns = [in_order.column(name).combine_chunks() for name in PARTITIONED_BY]
    changes = [np.asarray(pc.not_equal(each[1:], each[:-1])) for each in columns]
    cuts = [0, *(np.flatnonzero(np.logical_or(*changes)) + 1).tolist(), in_order.num_rows]
    for start, end in pairwise(cuts):
        yield in_order.slice(start, end - start)


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, compression="zstd", store_schema=False)
    return sink.getvalue()
