"""The newest message of each key of compacted topics: what view `current` shows.

Of what consumers could get at one moment, and over all queues of a topic. What was visible then is
the broker's own answer (`queue_offsets.visible_ranges`). The driver reads the keys, once, and holds
one row a key; the tasks then read the messages that are the newest of any. A message that is the
newest of several keys has a row for each. A tombstone counts as a key's newest message, and has no
row. Used by the data source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.message import is_tombstone
from dledger.broker.topics import Topic
from dledger_pipeline.archive.bases import read_base, state_of
from dledger_pipeline.archive.entry_ranges import archived
from dledger_pipeline.archive.erased import NOTHING_ERASED, read_erased
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.queue_offsets import visible_ranges
from dledger_pipeline.archive.restore import index_at
from dledger_pipeline.archive.selection import EVERYTHING, MAX_INDEX, Selection, rows_within
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.log.records import schema, values
from dledger_pipeline.object_store.store import Store

KEY: Final = "key"
CURRENT_SCHEMA: Final = pa.schema([pa.field(KEY, pa.string(), nullable=False), *MESSAGE_SCHEMA])
"""`messages.MESSAGE_SCHEMA`, and first the key of which the message is the newest."""

_PLACE: Final = ("topic", "queue_id", "queue_offset")
_SLIM: Final = (*_PLACE, "keys", "index")
_NEWEST_SCHEMA: Final = schema(
    topic=pa.string(),
    key=pa.string(),
    index=pa.int64(),
    queue_id=pa.int32(),
    queue_offset=pa.int64(),
    part=pa.int64(),
)
_OF_KEY: Final = ("topic", "key")
_ORDER: Final = ("index", "queue_id", "queue_offset")
"""Which of two messages is newer. A key's are in one queue, unless clients have spread them: then
of two in one entry that of the higher queue counts, since nothing says which was meant."""
_PENDING_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which topics: those of these names, or all that are compacted if there are none."""

    names: frozenset[str] = frozenset()

    def __call__(self, topic: Topic) -> bool:
        """Whether *topic* is one of them."""
        return topic.name in self.names if self.names else topic.compaction is not None


@dataclass(frozen=True, slots=True)
class CurrentRange:
    """Some visible messages, and of which keys which of them is the newest.

    Attributes:
        messages: All that are visible in some entries.
        newest: The columns topic, queue_id, queue_offset and key.
        selection: Which rows are asked for.
    """

    messages: MessageRange
    newest: pa.Table
    selection: Selection = EVERYTHING

    def read(self, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield a row for each key, of `CURRENT_SCHEMA` or only these *columns* of it.

        Raises like `MessageRange.read`.
        """
        names = columns or CURRENT_SCHEMA.names
        bounds = self.selection.of_messages()
        needed = tuple({*names, *_PLACE, "properties", *bounds} - {KEY})
        keys: dict[tuple[str, int, int], list[str]] = {}
        for *place, key in zip(*(c.to_pylist() for c in self.newest.columns), strict=True):
            keys.setdefault(tuple(place), []).append(key)
        for batch in self.messages.read(needed):
            found = rows_within(_by_key_of(batch, keys), bounds)
            if found.num_rows:
                yield found.select(names)


def _by_key_of(
    messages: pa.RecordBatch, keys: dict[tuple[str, int, int], list[str]]
) -> pa.RecordBatch:
    """Return those of *messages* that are the newest of any of *keys*, by their places."""
    places = zip(*(messages.column(name).to_pylist() for name in _PLACE), strict=True)
    found = [(row, key) for row, place in enumerate(places) for key in keys.get(place, ())]
    rows = messages.take(pa.array([row for row, _ in found], pa.int64()))
    named = rows.append_column(
        CURRENT_SCHEMA.field(KEY), pa.array([key for _, key in found], pa.string())
    )
    stays = [not is_tombstone(dict(each)) for each in rows.column("properties").to_pylist()]
    return named.filter(pa.array(stays, pa.bool_()))


def archived_current(
    store: Store,
    manifest: Manifest,
    chosen: Callable[[Topic], bool],
    *,
    last_index: int = MAX_INDEX,
    as_of_ms: int = MAX_INDEX,
) -> list[MessageRange]:
    """Return the messages of a backup that were visible after an entry, or at a time.

    Raises:
        TargetNotAvailable: The backup does not know that moment: as for a restore.
        StoreError, BackupError: The store, or what it holds, is at fault.
    """
    last_index = min(last_index, manifest.last_index)
    if as_of_ms < MAX_INDEX:
        last_index = min(last_index, index_at(store, manifest, as_of_ms))
    start = manifest.start_for(last_index)
    state = None
    if start.base is not None:
        state = state_of(start.base.name, read_base(store, manifest.group_id, start.base))
    ranges = archived(store, manifest.group_id, manifest.files_in(start.first_index, last_index))
    erased = read_erased(store, manifest)
    visible = visible_ranges(ranges, state, chosen, last_index=last_index, last_ms=MAX_INDEX)
    return [each.without(erased) for each in visible]


def current_ranges(
    visible: Sequence[MessageRange], selection: Selection = EVERYTHING
) -> Iterator[CurrentRange]:
    """Yield those of *visible* that have the newest message of a key.

    All keys are read for that, those of what was erased since then, too: such a key has no row,
    and an older message of it does not come instead. *selection* is of what is shown, and decides
    nothing about what is the newest.

    Raises like `MessageRange.read`.
    """
    newest = _newest(visible).sort_by("part")
    parts = values(newest.column("part").combine_chunks())
    for number, messages in enumerate(visible):
        low, high = np.searchsorted(parts, [number, number + 1])
        if low < high:
            of_part = newest.slice(low, high - low).select([*_PLACE, KEY])
            yield CurrentRange(messages, of_part, selection)


def _newest(visible: Iterable[MessageRange]) -> pa.Table:
    """Return the newest message of each key, and which of *visible* it is in."""
    newest, pending, rows = _NEWEST_SCHEMA.empty_table(), list[pa.Table](), 0
    for number, messages in enumerate(visible):
        for batch in replace(messages, erased=NOTHING_ERASED).read(_SLIM):
            pending.append(_by_key(batch, number))
            rows += len(pending[-1])
            if rows > max(_PENDING_ROWS, len(newest)):
                newest, pending, rows = _merge([newest, *pending]), [], 0
    return _merge([newest, *pending])


def _by_key(batch: pa.RecordBatch, number: int) -> pa.Table:
    keys = batch.column("keys")
    of_message = pc.list_parent_indices(keys)
    columns = {name: batch.column(name).take(of_message) for name in (*_PLACE, "index")}
    columns["key"] = pc.list_flatten(keys)
    columns["part"] = pa.repeat(pa.scalar(number, pa.int64()), len(of_message))
    return pa.Table.from_arrays([columns[n] for n in _NEWEST_SCHEMA.names], schema=_NEWEST_SCHEMA)


def _merge(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the newest row of each key."""
    rest = [name for name in _NEWEST_SCHEMA.names if name not in _OF_KEY]
    ordered = pa.concat_tables(tables).sort_by([(name, "ascending") for name in _ORDER])
    grouped = ordered.group_by(list(_OF_KEY), use_threads=False)  # threads would lose the order
    found = grouped.aggregate([(name, "last") for name in rest])
    return found.rename_columns([*_OF_KEY, *rest]).select(_NEWEST_SCHEMA.names).cast(_NEWEST_SCHEMA)
