"""The messages that a REKEEP copied, as they were stored: for entries whose first ones are gone.

Each is told with the queue offset, entry, time and host that it had when it was stored, which the
copy says (`rekeep_columns`); the rest is PRODUCE's payload, and is decoded as that (`messages`).
Which of them count is decided in `planning` and `queue_offsets`. Called by `message_ranges`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from dledger_pipeline.log.messages import (
    QUEUE_SLICE_SCHEMA,
    Messages,
    SetAside,
    schema_of,
    warn,
)
from dledger_pipeline.log.produce_columns import Bools, Ints
from dledger_pipeline.log.records import schema, values
from dledger_pipeline.log.rekeep_columns import rekeep_columns

BLOCK_SCHEMA: Final = schema(
    index=pa.int64(),
    start=pa.int64(),
    end=pa.int64(),
    rows=pa.int64(),
    queue_id=pa.int32(),
    first_offset=pa.int64(),
    end_offset=pa.int64(),
    generation=pa.int64(),
)
"""One row a block: of the `rows` messages of the REKEEP payload at bytes ``[start, end)`` of the
entry at `index`, those at queue offsets ``[first_offset, end_offset)`` of queue `queue_id` of the
topic that is the `generation`th of its group. Ascending by index and start; a payload may come
again, with other offsets."""

Wanted: TypeAlias = Callable[[Ints, Ints, Ints], Bools]
"""Of queue offsets, entries and times in Unix milliseconds, as they were stored: which count."""

COPY_TERM: Final = 0
"""The term of a message of which there is only a copy: the copy does not say it."""


def decode_kept(
    entries: pa.RecordBatch,
    blocks: pa.RecordBatch,
    wanted: Wanted,
    columns: Sequence[str] = (),
    report: Callable[[Sequence[SetAside]], None] = warn,
) -> pa.RecordBatch:
    """Return the messages of *blocks*, which all lie in *entries*, that are *wanted*.

    Args:
        entries: A batch of `records.ENTRY_SCHEMA`, indexes ascending.
        blocks: Of `BLOCK_SCHEMA`, in these entries.
        wanted: Which messages count.
        columns: Which columns of `MESSAGE_SCHEMA`, all when empty.
        report: Called with the messages that cannot be decoded and are set aside, if any.

    Raises:
        MalformedMessage: There is no such REKEEP: no node applied it.
    """
    schema_ = schema_of(columns)
    if blocks.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=schema_)
    return _Kept(entries, blocks, wanted).decode(schema_, report)


class _Kept(Messages):
    """The rows of some blocks, with what they had when they were stored."""

    def __init__(self, entries: pa.RecordBatch, blocks: pa.RecordBatch, wanted: Wanted) -> None:
        super().__init__(entries, _whole_payloads(blocks))
        start = self.starts + values(blocks.column("start"))
        found = rekeep_columns(self.numbers, self.columns, entry_start=self.starts, start=start)
        self._hosts = found.hosts
        block, row = self.place
        offset, at_ms, index = (
            self.numbers.i64(column[block] + 8 * row)
            for column in (found.offsets_at, found.times_at, found.indexes_at)
        )
        low, high = (values(blocks.column(name)) for name in ("first_offset", "end_offset"))
        keep = (low[block] <= offset) & (offset < high[block]) & wanted(offset, index, at_ms)
        self.take(block[keep], row[keep], offset[keep])
        self._index, self._at_ms = index[keep], at_ms[keep]

    def index(self) -> pa.Array:
        return pa.array(self._index)

    def term(self) -> pa.Array:
        return pa.array(np.full(len(self._index), COPY_TERM, np.int64))

    def stored_at_ms(self) -> pa.Array:
        return pa.array(self._at_ms)

    def born_host(self) -> pa.Array:
        return self.texts(self._hosts)


def _whole_payloads(blocks: pa.RecordBatch) -> pa.RecordBatch:
    """Return *blocks* as slices of all their rows, whose offsets are not known yet."""
    nothing = pa.array(np.zeros(blocks.num_rows, np.int64))
    columns = [
        blocks.column(field.name) if field.name in _OF_BLOCKS else nothing
        for field in QUEUE_SLICE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=QUEUE_SLICE_SCHEMA)


_OF_BLOCKS: Final = frozenset(BLOCK_SCHEMA.names) - {"first_offset"}
