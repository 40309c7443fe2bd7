"""Compaction: the newest message for each (topic, queue, key), of the topics that ask for it.

Two passes: `newest` reads keys and queue offsets only and finds the newest message for each key;
`Winners` then filters. A message with several keys stays while it is the newest of any of them.
Messages without keys, and those of other topics, all stay. Pure: batches in, batches out;
`jobs.compact` runs these functions in Spark tasks.
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
_NONE: Final = np.array([], np.int64)


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


class Winners:
    """Which messages stay: the queue offsets of each compacted queue's newest messages."""

    def __init__(self, newest: pa.Table, topics: Collection[str]) -> None:
        """Take the *newest* messages of *topics*; they must be those of the whole log."""
        self._topics = frozenset(topics)
        self._offsets = dict(_by_queue(newest, "queue_offset"))

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
            stays[rows] = np.isin(offsets[rows], self._offsets.get(queue, _NONE))
        return stays


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
