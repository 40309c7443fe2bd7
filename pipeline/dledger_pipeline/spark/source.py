"""``spark.read.format("dledger")``: a group's log as a table, for DataFrames and SQL.

A Python Data Source that yields Arrow batches. It reads a backup, a node's data directory or
running nodes (`entry_ranges`), and shows entries, messages as consumers saw them,
or the newest message of each key (`current`). Which objects of a backup may have such
messages follows from the manifest (`planning`); elsewhere queue offsets are found in one pass over
the log while Spark plans (`queue_offsets`). The tasks then read in parallel. Spark finds the format
by `pyspark_dledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.bases import state_of_node, state_on_disk
from dledger_pipeline.archive.current import (
    CURRENT_SCHEMA,
    Chosen,
    CurrentRange,
    archived_current,
    current_ranges,
)
from dledger_pipeline.archive.entry_ranges import (
    EntryRange,
    ExportedRange,
    SegmentRange,
    archived,
    live,
    on_disk,
)
from dledger_pipeline.archive.erased import find_erased_behind
from dledger_pipeline.archive.manifest import time_ms
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.queue_offsets import message_ranges, visible_ranges
from dledger_pipeline.archive.selection import (
    MAX_INDEX,
    Bounds,
    Selection,
    overlap,
    rows_within,
)
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.log.records import ENTRY_SCHEMA
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark import pushdown

FORMAT: Final = "dledger"
_SOURCES: Final = ("store", "data", "endpoint")
_PATH: Final = "path"
"""What Spark makes of ``load(url)``: the store's URL."""
_OPTIONS: Final = (
    *_SOURCES,
    *("storeEndpoint", "allowHttp", "groupId", "manifest", "view", "topics", "columns"),
    *("firstIndex", "lastIndex", "fromTime", "toTime", "asOf", "topic", "queue", "from", "to"),
    "maxEntriesPerTrigger",
)
_NOT_OF_STREAMS: Final = ("data", "manifest", "lastIndex")
"""Options that say where a table ends, which a stream does not."""
READ_ONCE: Final = "readOnce"
"""What `jobs.query` alone says of a table: one plan reads it, once, and nothing does afterwards.

Spark below 5 keeps the rows that were selected for one use of a table for all its other uses, and a
reader is not told. So this is no option of users, who use a DataFrame as often as they like.
"""
_REFUSED: Final = {
    "pushdown": "this Spark would keep the conditions of one use of a DataFrame for all its others;"
    " say by options what is to be read (topic, queue, from, to, fromTime, toTime, firstIndex), or"
    " ask `dledger-pipeline query`, which pushes down where a statement reads a table once",
}
_OF_MESSAGES: Final = ("topic", "queue", "from", "to")
"""Options that mean nothing to entries."""

_NO_WRITE: Final = (
    "the format dledger is read only: messages are sent to a group by its clients, and backups are "
    "made by `dledger-pipeline backup`"
)

_SPARK_TYPES: Final = {
    pa.uint8(): pa.int16(),
    pa.uint32(): pa.int64(),
    pa.large_binary(): pa.binary(),
}
ENTRY_VIEW: Final = pa.schema(
    [field.with_type(_SPARK_TYPES.get(field.type, field.type)) for field in ENTRY_SCHEMA]
)
"""`ENTRY_SCHEMA` in types that Spark has: it has no unsigned numbers."""


class View(StrEnum):
    """What the rows are."""

    ENTRIES = "entries"
    MESSAGES = "messages"
    CURRENT = "current"


_PUSHED: Final = {
    View.ENTRIES: pushdown.OF_ENTRIES,
    View.MESSAGES: pushdown.OF_MESSAGES,
    View.CURRENT: pushdown.OF_MESSAGES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read: the options of ``spark.read``, checked.

    Attributes:
        store, data, endpoint: Just one is set: a store's URL, a directory, or peer addresses.
        group_id: Whose backup; None if the store holds one group only.
        number: Which backup; None: the newest.
        topics: Of what is current: which topics, if not the compacted.
        columns: Which columns of the view, in which order.
        selection: Which rows.
        as_of_ms: Of what is current: at which time, Unix milliseconds.
        read_once: Whether Spark may narrow the selection by a query's conditions: `READ_ONCE`.
        max_entries: Of a stream: how many entries a batch reads at most; 0: all that there are.
    """

    store: str | None
    data: str | None
    endpoint: tuple[str, ...]
    store_endpoint: str | None
    allow_http: bool
    group_id: str | None
    number: int | None
    view: View
    topics: tuple[str, ...]
    columns: tuple[str, ...]
    selection: Selection
    as_of_ms: int
    read_once: bool
    max_entries: int = 0

    @classmethod
    def of_stream(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check the *options* of a stream. Raises InvalidArgument."""
        given = {name.lower() for name, value in options.items() if value}
        unfit = [name for name in _NOT_OF_STREAMS if name.lower() in given]
        if unfit:
            raise InvalidArgument(
                f"a stream has no option {', '.join(unfit)}: it reads a store or running nodes "
                "(endpoint), and goes on with what is new"
            )
        found = cls.of(options)
        if found.view is not View.MESSAGES:
            raise InvalidArgument(f"only view messages is a stream, not {found.view}")
        return found

    @classmethod
    def of_table(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check the *options* of a table. Raises InvalidArgument."""
        found = cls.of(options)
        if found.max_entries:
            raise InvalidArgument("only a stream has option maxEntriesPerTrigger")
        return found

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check *options*, whose names are compared without case, as Spark does.

        Raises:
            InvalidArgument: One is unknown, malformed or missing; names it.
        """
        given = _with_path({name.lower(): value for name, value in options.items() if value})
        read_once = given.pop(READ_ONCE.lower(), "").lower() == "true"
        view = _view(given.get("view", View.MESSAGES))
        _check_names(given, view)
        return cls(
            store=given.get("store"),
            data=given.get("data"),
            endpoint=_list(given.get("endpoint", "")),
            store_endpoint=given.get("storeendpoint"),
            allow_http=given.get("allowhttp", "").lower() == "true",
            group_id=given.get("groupid"),
            number=_number("manifest", given, 0, low=1) if "manifest" in given else None,
            view=view,
            topics=_list(given.get("topics", "")),
            columns=_columns(given, view),
            selection=_selection(given),
            as_of_ms=_of(_time("asOf", given), MAX_INDEX),
            read_once=read_once,
            max_entries=_number("maxEntriesPerTrigger", given, 0),
        )

    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return pa.schema([_schema(self.view).field(name) for name in self.columns])

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
        if name in _REFUSED:
            raise InvalidArgument(f"option {name} is refused: {_REFUSED[name]}")
        if name not in known:
            raise InvalidArgument(f"unknown option {name!r}; the options are {', '.join(_OPTIONS)}")
    sources = [name for name in _SOURCES if name in given]
    if len(sources) != 1:
        raise InvalidArgument(
            f"exactly one of the options {', '.join(_SOURCES)} must say where to read; "
            f"given: {', '.join(sources) or 'none'}"
        )
    _check_of_keys(given, view)
    if "manifest" in given and sources != ["store"]:
        raise InvalidArgument("option manifest says which backup of a store")
    of_messages = [name for name in _OF_MESSAGES if name in given]
    if view is View.ENTRIES and of_messages:
        raise InvalidArgument(f"view entries has no option {', '.join(of_messages)}")


def _check_of_keys(given: Mapping[str, str], view: View) -> None:
    if view is not View.CURRENT:
        if "topics" in given:
            raise InvalidArgument("option topics is for view current only; others have topic")
        if "asof" in given:
            raise InvalidArgument("option asOf is for view current only; others have toTime")


def _view(value: str) -> View:
    if value not in list(View):
        raise InvalidArgument(f"option view must be one of {', '.join(View)}, not {value!r}")
    return View(value)


def _list(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (item.strip() for item in value.split(","))))


_SCHEMAS: Final = {View.ENTRIES: ENTRY_VIEW, View.CURRENT: CURRENT_SCHEMA}


def _schema(view: View) -> pa.Schema:
    return _SCHEMAS.get(view, MESSAGE_SCHEMA)


def _columns(given: Mapping[str, str], view: View) -> tuple[str, ...]:
    known = _schema(view).names
    columns = _list(given.get("columns", "")) or tuple(known)
    for name in columns:
        if name not in known:
            raise InvalidArgument(
                f"view {view} has no column {name!r}; its columns are {', '.join(known)}"
            )
    if len({*columns}) < len(columns):
        raise InvalidArgument(f"option columns has a column twice: {given['columns']}")
    return columns


def _selection(given: Mapping[str, str]) -> Selection:
    first_ms = _time("fromTime", given, up=True)
    last_ms = _time("toTime", given)
    is_timed = first_ms is not None or last_ms is not None
    return Selection(
        first_index=_number("firstIndex", given, 1, low=1),
        last_index=_number("lastIndex", given, MAX_INDEX, low=1),
        first_ms=max(first_ms or 1, 1) if is_timed else 0,  # 0: an entry without a time
        last_ms=_of(last_ms, MAX_INDEX),
        topic=given.get("topic"),
        queue_id=_number("queue", given, 0) if "queue" in given else None,
        first_offset=_number("from", given, 0),
        last_offset=_number("to", given, MAX_INDEX),
    )


def _of(value: int | None, default: int) -> int:
    return default if value is None else value


def _number(name: str, given: Mapping[str, str], default: int, *, low: int = 0) -> int:
    value = given.get(name.lower(), str(default))
    if not value.isascii() or not value.isdigit() or not low <= int(value) <= MAX_INDEX:
        raise InvalidArgument(f"option {name} must be a number, {low} or more, not {value!r}")
    return int(value)


def _time(name: str, given: Mapping[str, str], *, up: bool = False) -> int | None:
    value = given.get(name.lower())
    try:
        return None if value is None else time_ms(value, up=up)
    except InvalidArgument as error:
        raise InvalidArgument(f"option {name}: {error}") from None


Share: TypeAlias = EntryRange | MessageRange | CurrentRange
"""What one task reads."""


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """One task's share of the rows."""

    share: Share


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
        options = ReadOptions.of_table(self.options)
        _check_schema(options, schema)
        kind = PushdownReader if options.read_once else LedgerReader
        return kind(options, to_arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, Spark's
        """Return the reader of a stream. Raises InvalidArgument, like `reader`."""
        options = ReadOptions.of_stream(self.options)
        _check_schema(options, schema)
        try:
            from dledger_pipeline.spark.stream import (  # noqa: PLC0415, it imports this module
                LedgerStreamReader,
            )
        except ImportError as error:
            raise InvalidArgument(
                f"a stream needs Spark 4.2 or newer, this is {pyspark.__version__}"
            ) from error
        return LedgerStreamReader(options, to_arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse. Raises InvalidArgument."""
        raise InvalidArgument(_NO_WRITE)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802, ARG002
        """Refuse. Raises InvalidArgument."""
        raise InvalidArgument(_NO_WRITE)


def _check_schema(options: ReadOptions, schema: StructType) -> None:
    own, given = _ddl(from_arrow_schema(options.schema())), _ddl(schema)
    if given != own:
        raise InvalidArgument(f"the schema given, {given}, is not that of the rows: {own}")


def _ddl(schema: StructType) -> str:
    """Return names and types, without what may be null."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


class LedgerReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        """Yield rows of *schema*."""
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[Part]:
        """Return a part for each range that may have rows; raises what planning does."""
        return [Part(share) for share in _shares(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the part's rows; raises what reading the entries does."""
        if not isinstance(partition, Part):  # Spark passes its own if there are no parts
            return
        for batch in _rows(partition.share, self._options):
            yield batch if batch.schema == self._schema else batch.cast(self._schema)


class PushdownReader(LedgerReader):
    """Has conditions of SQL pushed down.

    For a table that is read once: see `READ_ONCE`. A reader that has `pushFilters` fails every
    query while Spark's setting spark.sql.python.filterPushdown.enabled is false, as by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Narrow the selection; return the conditions that Spark has to check."""
        options = self._options
        selection, rest = pushdown.pushed(options.selection, filters, _PUSHED[options.view])
        self._options = replace(options, selection=selection)
        return rest


def _rows(share: Share, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    if isinstance(share, MessageRange | CurrentRange):
        yield from share.read(options.columns)
        return
    bounds = _bounds(options)
    needed = tuple({*options.columns, *bounds})
    for batch in share.read(partial(overlap, bounds), needed):
        found = rows_within(batch, bounds)
        if found.num_rows:
            yield found.select(options.columns)


def _bounds(options: ReadOptions) -> Bounds:
    selection = options.selection
    is_entries = options.view is View.ENTRIES
    return selection.of_entries() if is_entries else selection.of_messages()


def _shares(options: ReadOptions) -> Iterator[Share]:
    """Yield what may have rows that are asked for."""
    if options.view is View.CURRENT:
        yield from current_ranges(_visible(options), options.selection)
        return
    if options.view is View.MESSAGES:
        yield from (each for each in _messages(options) if each.may_have_rows)
        return
    bounds = _bounds(options)
    yield from (each for each in _ranges(options) if overlap(each.bounds, bounds))


def _messages(options: ReadOptions) -> Iterator[MessageRange]:
    selection = options.selection
    if options.store:
        store = options.opened()
        manifest = catalog.load(store, options.group_id, options.number)
        yield from archived_messages(store, manifest, selection)
        return
    yield from node_messages(_of_nodes(options), selection)


def node_messages(
    ranges: Sequence[SegmentRange | ExportedRange], selection: Selection
) -> Iterator[MessageRange]:
    """Yield the messages that are asked for, of all entries that a node keeps, by a replay.

    What was erased behind the last entry that is asked for is in none of them.

    Raises:
        LogIncomplete: It does not keep all entries, and tells no state that stands for the others.
        CorruptRecord, PipelineError: The entries cannot be read.
    """
    early = [each for each in ranges if each.first_index <= selection.last_index]
    erased = find_erased_behind(ranges, selection.last_index)
    for each in message_ranges(early, _state_before(ranges), selection):
        yield each.without(erased)


def _visible(options: ReadOptions) -> Sequence[MessageRange]:
    chosen = Chosen(frozenset(options.topics))
    last_index, as_of_ms = options.selection.last_index, options.as_of_ms
    if options.store:
        store = options.opened()
        manifest = catalog.load(store, options.group_id, options.number)
        return archived_current(store, manifest, chosen, last_index=last_index, as_of_ms=as_of_ms)
    ranges = _of_nodes(options)
    state = _state_before(ranges)
    visible = visible_ranges(ranges, state, chosen, last_index=last_index, last_ms=as_of_ms)
    if (last_index, as_of_ms) == (MAX_INDEX, MAX_INDEX):
        return visible
    erased = find_erased_behind(ranges, 0)
    return [each.without(erased) for each in visible]


def _state_before(
    ranges: Sequence[SegmentRange | ExportedRange],
) -> BrokerState | None:
    """Return a state of the node that *ranges* are of, if it has dropped what is before them."""
    first = next(iter(ranges), None)
    if first is None or first.first_index == 1:
        return None
    if isinstance(first, ExportedRange):
        return state_of_node(first.addresses[0], first.group_id)
    return state_on_disk(first.path.parent.parent)


def _ranges(options: ReadOptions) -> Sequence[EntryRange]:
    if options.store:
        store = options.opened()
        manifest = catalog.load(store, options.group_id, options.number)
        return archived(store, manifest.group_id, manifest.files)
    return _of_nodes(options)


def _of_nodes(options: ReadOptions) -> Sequence[SegmentRange | ExportedRange]:
    return on_disk(Path(options.data)) if options.data else live(options.endpoint)


def register(spark: SparkSession) -> None:
    """Make the format known to *spark*, where this package is not on Spark's own Python path.

    ``addPyFiles``, for example, is too late for Spark to find it by itself.
    """
    spark.dataSource.register(LedgerDataSource)
