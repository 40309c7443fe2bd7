"""Which rows of a log are asked for, as a value. Pure.

What cannot hold any of them is left out by what is known of it: an object by its manifest's row, a
row group by its small columns. What is read is then filtered, row by row. Used by `queue_offsets`
and the data source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Ints: TypeAlias = npt.NDArray[np.int64]

MAX_INDEX: Final = (1 << 63) - 1
"""The last index, offset or time there can be."""

BOUNDED: Final = frozenset(
    {"index", "timestamp_ms", "stored_at_ms", "topic", "queue_id", "queue_offset"}
)
"""Columns that a selection may bound."""

Bounds: TypeAlias = Mapping[str, tuple[Any, Any]]
"""By column, the lowest and the highest value."""
MayHold: TypeAlias = Callable[[Bounds], bool]
"""Whether rows with values within these bounds can be of use."""


def overlap(one: Bounds, other: Bounds) -> bool:
    """Whether a row can be within both; a column that only one bounds decides nothing."""
    return all(
        low <= other[name][1] and other[name][0] <= high
        for name, (low, high) in one.items()
        if name in other
    )


def anything(bounds: Bounds) -> bool:  # noqa: ARG001, one of many tests
    """Let everything be of use."""
    return True


def rows_within(batch: pa.RecordBatch, bounds: Bounds) -> pa.RecordBatch:
    """Return the rows that are within *bounds*."""
    for name, (low, high) in bounds.items():
        column = batch.column(name)
        batch = batch.filter(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))
    return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows are asked for; all bounds are inclusive.

    Attributes:
        first_index, last_index: Of the entries.
        first_ms, last_ms: Their timestamps. From 1 on, entries without one are left out. With an
            upper bound they must be: what is known of an object does not tell of them.
        topic: The topic's name; None: of any topic.
        queue_id: None: of any queue.
        first_offset, last_offset: The queue offsets.
    """

    first_index: int = 1
    last_index: int = MAX_INDEX
    first_ms: int = 0
    last_ms: int = MAX_INDEX
    topic: str | None = None
    queue_id: int | None = None
    first_offset: int = 0
    last_offset: int = MAX_INDEX

    def of_entries(self) -> Bounds:
        """Return the bounds of entries (`records.ENTRY_SCHEMA`)."""
        return self._bounds("timestamp_ms")

    def of_messages(self) -> Bounds:
        """Return the bounds of messages (`messages.MESSAGE_SCHEMA`)."""
        bounds = {**self._bounds("stored_at_ms")}
        if self.topic is not None:
            bounds["topic"] = (self.topic, self.topic)
        if self.queue_id is not None:
            bounds["queue_id"] = (self.queue_id, self.queue_id)
        if (self.first_offset, self.last_offset) != (0, MAX_INDEX):
            bounds["queue_offset"] = (self.first_offset, self.last_offset)
        return bounds

    def _bounds(self, time: str) -> Bounds:
        given = {"index": (self.first_index, self.last_index), time: (self.first_ms, self.last_ms)}
        every = {"index": (1, MAX_INDEX), time: (0, MAX_INDEX)}
        return {name: bounds for name, bounds in given.items() if bounds != every[name]}

    def of_slices(self, slices: pa.RecordBatch, topics: Collection[int]) -> pa.RecordBatch:
        """Return *slices* (`messages.QUEUE_SLICE_SCHEMA`), cut to what is asked for but for times.

        Args:
            slices: Any.
            topics: The generations of the topics that are asked for.
        """
        index, first, rows = (_ints(slices, name) for name in ("index", "first_offset", "rows"))
        start = np.maximum(first, self.first_offset)
        end = np.minimum(first + rows - 1, self.last_offset) + 1
        wanted = (start < end) & (self.first_index <= index) & (index <= self.last_index)
        wanted &= np.isin(_ints(slices, "generation"), np.array([*topics], np.int64))
        if self.queue_id is not None:
            wanted &= _ints(slices, "queue_id") == self.queue_id
        cut = {
            "first_row": _ints(slices, "first_row") + start - first,
            "rows": end - start,
            "first_offset": start,
        }
        columns = [
            pa.array(cut[field.name]) if field.name in cut else slices.column(field.name)
            for field in slices.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=slices.schema).filter(pa.array(wanted))

    def of_blocks(self, blocks: pa.RecordBatch, topics: Collection[int]) -> pa.RecordBatch:
        """Return *blocks* (`kept_messages.BLOCK_SCHEMA`) that may have what is asked for.

        Which of their messages are asked for is `of_kept`. *topics*: see `of_slices`.
        """
        wanted = np.isin(_ints(blocks, "generation"), np.array([*topics], np.int64))
        wanted &= _ints(blocks, "index") <= self.last_index
        wanted &= _ints(blocks, "first_offset") <= self.last_offset
        wanted &= self.first_offset < _ints(blocks, "end_offset")
        if self.queue_id is not None:
            wanted &= _ints(blocks, "queue_id") == self.queue_id
        return blocks.filter(pa.array(wanted))

    def of_kept(self, offset: _Ints, index: _Ints, stored_at_ms: _Ints) -> npt.NDArray[np.bool_]:
        """Return which messages of `of_blocks` are asked for, by what they were stored with."""
        wanted = (self.first_offset <= offset) & (offset <= self.last_offset)
        wanted &= (self.first_index <= index) & (index <= self.last_index)
        return wanted & (self.first_ms <= stored_at_ms) & (stored_at_ms <= self.last_ms)

    def at_times(self, slices: pa.RecordBatch, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return those of *slices*, all in *entries*, whose entries' times are asked for."""
        if (self.first_ms, self.last_ms) == (0, MAX_INDEX):
            return slices
        at = np.searchsorted(_ints(entries, "index"), _ints(slices, "index"))
        times = _ints(entries, "timestamp_ms")[at]
        return slices.filter(pa.array((self.first_ms <= times) & (times <= self.last_ms)))


EVERYTHING: Final = Selection()


def _ints(batch: pa.RecordBatch, name: str) -> _Ints:
    return np.asarray(batch.column(name), np.int64)
