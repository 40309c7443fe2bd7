"""Compaction: the newest message for each (topic, queue, key), of the topics that ask for it.

Two passes: `newest` reads keys and queue offsets only and finds the newest message for each key;
`Winners` then filters. A message with several keys stays while it is the newest of any of them.
Messages without keys, and those of other topics, all stay. Pure: batches in, batches out;
`jobs.compact` runs these functions in tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dledger_pipeline.log.records import schema

_Queue: TypeAlias = tuple[str, int]

SLIM_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "keys")
"""What `newest` needs of a message."""

NEWEST_SCHEMA: Final = schema(
    topic=pa.string(), queue_id=pa.int32(), key=pa.string(), queue_offset=pa.int64()
)
"""The newest message for a key, among those read so far."""

_QUEUE: Final = ("topic", "queue_id")
KEY: Final = (*_QUEUE, "key")
_OFFSET: Final = np.dtype("<i8")
_CELL: Final = 1 << 20
_NONE: Final = np.array([], _OFFSET)

WINNERS_SCHEMA: Final = schema(topic=pa.string(), queue_id=pa.int32(), offsets=pa.binary())
"""Queue offsets that stay, of one queue: ascending, 8 bytes each, little endian."""


def newest(batches: Iterable[pa.RecordBatch], topics: Collection[str]) -> pa.Table:
    """Return the newest message (`NEWEST_SCHEMA`) for each key in the compacted *topics*.

    Args:
        batches: Messages with at least `SLIM_COLUMNS`.
        topics: The topics that are compacted.
    """
    return merged(_by_key(batch, topics) for batch in batches)


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the newest message for each key that is newest in any of *tables*."""
    everything = pa.concat_tables([NEWEST_SCHEMA.empty_table(), *tables])
    grouped = everything.group_by(list(KEY)).aggregate([("queue_offset", "max")])
    return grouped.rename_columns([*KEY, "queue_offset"]).cast(NEWEST_SCHEMA)


def _by_key(batch: pa.RecordBatch, topics: Collection[str]) -> pa.Table:
    """Return a row for each key of each message in *topics*."""
    chosen = batch.filter(_is_in(batch, topics))
    keys = chosen.column("keys")
    of_message = pc.list_parent_indices(keys)
    columns = [chosen.column(name).take(of_message) for name in _QUEUE]
    offsets = chosen.column("queue_offset").take(of_message)
    return pa.Table.from_arrays([*columns, pc.list_flatten(keys), offsets], schema=NEWEST_SCHEMA)


def _is_in(batch: pa.RecordBatch, topics: Collection[str]) -> pa.Array:
    return pc.is_in(batch.column("topic"), value_set=pa.array(sorted(topics), pa.string()))


def winners(newest: pa.Table) -> pa.Table:
    """Return where the *newest* messages are (`WINNERS_SCHEMA`), without their keys.

    It takes 8 bytes a message, whatever its keys and its topic's name take.
    """
    rows = [
        {"topic": topic, "queue_id": queue_id, "offsets": part.astype(_OFFSET).tobytes()}
        for (topic, queue_id), offsets in _by_queue(newest, "queue_offset")
        for part in _cut(np.unique(offsets))
    ]
    return pa.Table.from_pylist(rows, WINNERS_SCHEMA)


def _cut(offsets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield parts that a cell of a table has room for."""
    for at in range(0, len(offsets), _CELL):
        yield offsets[at : at + _CELL]


class Winners:
    """Which messages stay: the queue offsets of each compacted queue's newest messages.

    Takes 8 bytes for each of them.
    """

    def __init__(self, found: pa.Table, topics: Collection[str]) -> None:
        """Take all that `winners` *found*, in any parts: of *topics*, in the whole log."""
        self._topics = frozenset(topics)
        parts: dict[_Queue, list[npt.NDArray[np.int64]]] = {}
        for batch in found.to_batches():
            for topic, queue_id, offsets in zip(*batch.columns, strict=True):
                of_queue = parts.setdefault((topic.as_py(), queue_id.as_py()), [])
                of_queue.append(np.frombuffer(offsets.as_buffer(), _OFFSET))
        self._offsets = {queue: np.unique(np.concatenate(each)) for queue, each in parts.items()}

    def without_keys(self) -> tuple[str, ...]:
        """Return the compacted topics, sorted, in which no message has a key: misspelt ones."""
        return tuple(sorted(self._topics - {topic for topic, _ in self._offsets}))

    def filter(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages of a batch (`MESSAGE_SCHEMA`) that stay, in their order."""
        return messages.filter(pa.array(self._stays(messages)))

    def _stays(self, messages: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        has_key = np.asarray(pc.greater(pc.list_value_length(messages.column("keys")), 0))
        contested = has_key & np.asarray(_is_in(messages, self._topics))
        stays = np.array(~contested, np.bool_)
        offsets = np.asarray(messages.column("queue_offset"))
        for queue, rows in _by_queue(_numbered(messages, contested), "row"):
            stays[rows] = _among(offsets[rows], self._offsets.get(queue, _NONE))
        return stays


def _among(
    offsets: npt.NDArray[np.int64], ascending: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which of *offsets* are in *ascending*, which is not sorted again for each batch."""
    at = np.searchsorted(ascending, offsets)
    found = np.zeros(len(offsets), np.bool_)
    inside = at < len(ascending)
    found[inside] = ascending[at[inside]] == offsets[inside]
    return found


def _numbered(messages: pa.RecordBatch, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the queue and the row number of the *chosen* messages."""
    rows = pa.array(np.flatnonzero(chosen))
    queues = (messages.column(name).take(rows) for name in _QUEUE)
    return pa.Table.from_arrays([*queues, rows], names=[*_QUEUE, "row"])


def _by_queue(table: pa.Table, column: str) -> Iterator[tuple[_Queue, npt.NDArray[np.int64]]]:
    """Yield each queue and what *column* has in its rows."""
    grouped = table.group_by(list(_QUEUE)).aggregate([(column, "list")]).combine_chunks()
    topics, queue_ids = (grouped.column(name).to_pylist() for name in _QUEUE)
    lists = grouped.column(f"{column}_list")
    for row, queue in enumerate(zip(topics, queue_ids, strict=True)):
        yield queue, np.asarray(lists[row].values, np.int64)
