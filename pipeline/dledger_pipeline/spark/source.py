"""``spark.read.format("dledger")``: a group's log as a table, for DataFrames and SQL.

A Python Data Source that yields Arrow batches. It reads a backup, a node's data directory or
running nodes (`entry_ranges`), and shows entries, messages as consumers saw them, or compacted
messages. Queue offsets are found in one pass over the log while Spark plans (`queue_offsets`); the
tasks then read in parallel. Spark finds the format by `pyspark_dledger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog, compacted
from dledger_pipeline.archive.compacted import CompactedRange
from dledger_pipeline.archive.entry_ranges import EntryRange, archived, live, on_disk, within
from dledger_pipeline.archive.manifest import MAX_INDEX
from dledger_pipeline.archive.queue_offsets import MessageRange, archived_messages, message_ranges
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.object_store.store import Store

FORMAT: Final = "dledger"
_SOURCES: Final = ("store", "data", "endpoint")
_PATH: Final = "path"
"""What Spark makes of ``load(url)``: the store's URL."""
_OPTIONS: Final = (
    *_SOURCES,
    *("storeEndpoint", "allowHttp", "groupId", "view", "topics", "firstIndex", "lastIndex"),
)

ENTRY_VIEW: Final = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("type", pa.int16(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("body_crc32c", pa.int64(), nullable=False),
        pa.field("chain_crc32c", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""`records.ENTRY_SCHEMA` in types that Spark has: it has no unsigned numbers."""


class View(StrEnum):
    """What the rows are."""

    ENTRIES = "entries"
    MESSAGES = "messages"
    COMPACTED = "compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read: the options of ``spark.read``, checked.

    Attributes:
        store, data, endpoint: Just one is set: a store's URL, a directory, or peer addresses.
        group_id: Whose backup; None if the store holds one group only.
        topics: Of a compaction: which one.
        first_index, last_index: Only what is in the entries [first_index, last_index].
    """

    store: str | None
    data: str | None
    endpoint: tuple[str, ...]
    store_endpoint: str | None
    allow_http: bool
    group_id: str | None
    view: View
    topics: tuple[str, ...]
    first_index: int
    last_index: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check *options*, whose names are compared without case, as Spark does.

        Raises:
            InvalidArgument: One is unknown, malformed or missing; names it.
        """
        given = _with_path({name.lower(): value for name, value in options.items() if value})
        view = _view(given.get("view", View.MESSAGES))
        _check_names(given, view)
        return cls(
            store=given.get("store"),
            data=given.get("data"),
            endpoint=_list(given.get("endpoint", "")),
            store_endpoint=given.get("storeendpoint"),
            allow_http=given.get("allowhttp", "").lower() == "true",
            group_id=given.get("groupid"),
            view=view,
            topics=_list(given.get("topics", "")),
            first_index=_index("firstIndex", given.get("firstindex", "1")),
            last_index=_index("lastIndex", given.get("lastindex", str(MAX_INDEX))),
        )

    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return ENTRY_VIEW if self.view is View.ENTRIES else MESSAGE_SCHEMA

    def opened(self) -> Store:
        """Return the store. Raises StoreError, StoreDenied."""
        return Store.open(self.store or "", self.store_endpoint, allow_http=self.allow_http)


def _with_path(given: dict[str, str]) -> dict[str, str]:
    if "paths" in given:
        raise InvalidArgument("load takes one URL, that of a store")
    if _PATH in given:
        if "store" in given:
            raise InvalidArgument("the store is given twice, by load(URL) and by option store")
        given["store"] = given.pop(_PATH)
    return given


def _check_names(given: Mapping[str, str], view: View) -> None:
    known = {name.lower() for name in _OPTIONS}
    for name in given:
        if name not in known:
            raise InvalidArgument(f"unknown option {name!r}; the options are {', '.join(_OPTIONS)}")
    sources = [name for name in _SOURCES if name in given]
    if len(sources) != 1:
        raise InvalidArgument(
            f"exactly one of the options {', '.join(_SOURCES)} must say where to read; "
            f"given: {', '.join(sources) or 'none'}"
        )
    if (view is View.COMPACTED) != ("topics" in given):
        raise InvalidArgument("view compacted needs the option topics, and no other view has it")
    if view is View.COMPACTED and sources != ["store"]:
        raise InvalidArgument("view compacted needs the option store")


def _view(value: str) -> View:
    if value not in list(View):
        raise InvalidArgument(f"option view must be one of {', '.join(View)}, not {value!r}")
    return View(value)


def _list(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (item.strip() for item in value.split(","))))


def _index(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_INDEX:
        raise InvalidArgument(f"option {name} must be an index, 1 or more, not {value!r}")
    return int(value)


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """One task's share of the rows."""

    share: EntryRange | MessageRange | CompactedRange


class LedgerDataSource(DataSource):
    """The format ``dledger``."""

    @classmethod
    def name(cls) -> str:
        """Return what to give to ``spark.read.format``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the chosen view. Raises InvalidArgument."""
        return from_arrow_schema(ReadOptions.of(self.options).schema())

    def reader(self, schema: StructType) -> LedgerReader:
        """Return the reader; Spark calls it on the driver, before it starts any task.

        Raises:
            InvalidArgument: An option is wrong, or *schema*, which a user may have given, is not
                that of the view; it may allow nulls.
        """
        options = ReadOptions.of(self.options)
        own, given = _ddl(from_arrow_schema(options.schema())), _ddl(schema)
        if given != own:
            raise InvalidArgument(f"the schema given, {given}, is not that of the rows: {own}")
        return LedgerReader(options, to_arrow_schema(schema))


def _ddl(schema: StructType) -> str:
    """Return names and types, without what may be null."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


class LedgerReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        """Yield rows of *schema*."""
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[Part]:
        """Return a part for each range that has something to be read; raises what planning does."""
        first_index = self._options.first_index
        shares = _shares(self._options)
        return [Part(share) for share in shares if share.last_index >= first_index]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the part's rows; raises what reading the entries does."""
        if not isinstance(partition, Part):  # Spark's own, where there are no parts
            return
        options = self._options
        for batch in within(partition.share.read(), options.first_index, options.last_index):
            yield batch if batch.schema == self._schema else batch.cast(self._schema)


def _shares(options: ReadOptions) -> Iterator[EntryRange | MessageRange | CompactedRange]:
    if options.view is View.COMPACTED:
        yield from _compacted(options)
        return
    if options.view is View.MESSAGES and options.store:
        store = options.opened()
        manifest = catalog.load(store, options.group_id)
        first_index, last_index = options.first_index, options.last_index
        yield from archived_messages(store, manifest, first_index, last_index)
        return
    ranges = [each for each in _ranges(options) if each.first_index <= options.last_index]
    if options.view is View.MESSAGES:
        yield from message_ranges(ranges, last_index=options.last_index)
    else:
        yield from ranges


def _compacted(options: ReadOptions) -> Iterator[CompactedRange]:
    store = options.opened()
    group_id = options.group_id or catalog.load(store).group_id
    for file in compacted.load(store, group_id, options.topics).files:
        yield CompactedRange(store=store, group_id=group_id, file=file)


def _ranges(options: ReadOptions) -> Sequence[EntryRange]:
    if options.store:
        store = options.opened()
        manifest = catalog.load(store, options.group_id)
        return archived(store, manifest.group_id, manifest.files)
    return on_disk(Path(options.data)) if options.data else live(options.endpoint)


def register(spark: SparkSession) -> None:
    """Make the format known to *spark*, where this package is not on Spark's own Python path.

    ``addPyFiles``, for example, is too late for Spark to find it by itself.
    """
    spark.dataSource.register(LedgerDataSource)
