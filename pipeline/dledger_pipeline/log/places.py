"""Places: where the messages of some entries are, as a node states them. Pure, by columns.

A place is a row of `messages.QUEUE_SLICE_SCHEMA`. A node sends the runs of its consume queues,
which are also cut where a tag changes; these are joined. Nothing that is sent or stored is
believed: `flaw` says what is wrong with it. Called by `export_client` and `places_objects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.rpc.pb import dledger_pb2 as pb
from dledger_pipeline.errors import ExportError
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from dledger_pipeline.log.records import array_of, values

_Ints = npt.NDArray[np.int64]

_MOST: Final = 1 << 62
_MAX_QUEUE_ID: Final = (1 << 31) - 1
_COLUMNS: Final = {
    "first_offsets": "<u8",
    "indexes": "<u8",
    "starts": "<u4",
    "ends": "<u4",
    "rows": "<u4",
}


def no_places() -> pa.RecordBatch:
    """Return no rows."""
    return pa.RecordBatch.from_pylist([], QUEUE_SLICE_SCHEMA)


def places_of(queues: Sequence[pb.QueuePlaces]) -> pa.RecordBatch:
    """Return the runs of *queues* as places, joined where only a tag cuts them, in the log's order.

    Args:
        queues: What a node sent; what is sent of one queue ascends, and is not mixed with others.

    Raises:
        ExportError: They are no runs.
    """
    if not queues:
        return no_places()
    first_offset, index, start, end, row = (
        np.concatenate([_column(each, name) for each in queues]) for name in _COLUMNS
    )
    sizes = np.array([len(each.indexes) // 8 for each in queues])
    behind = np.append(first_offset[1:], 0)
    behind[np.cumsum(sizes) - 1] = [min(each.end_offset, _MOST) for each in queues]
    rows = behind - first_offset
    if (rows < 1).any():
        raise ExportError("a node sent runs of a queue that do not ascend")
    generation = np.repeat(np.array([each.generation for each in queues], np.int64), sizes)
    queue_id = np.repeat(np.array([each.queue_id for each in queues], np.int64), sizes)
    continues = row[1:] == row[:-1] + rows[:-1]
    for column in (generation, queue_id, index, start):
        continues &= column[1:] == column[:-1]
    continues &= first_offset[1:] == behind[:-1]
    begins = np.flatnonzero(np.append(True, ~continues))
    order = begins[np.lexsort((row[begins], start[begins], index[begins]))]
    joined = np.zeros(len(index), np.int64)
    joined[begins] = np.add.reduceat(rows, begins)
    columns = (index, start, end, row, joined, queue_id, first_offset, generation)
    arrays = [
        array_of(column[order], field.type)
        for column, field in zip(columns, QUEUE_SLICE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=QUEUE_SLICE_SCHEMA)


def _column(queue: pb.QueuePlaces, name: str) -> _Ints:
    data, kind = getattr(queue, name), np.dtype(_COLUMNS[name])
    count = len(queue.indexes) // 8
    if not count or len(data) != count * kind.itemsize or not 0 <= queue.queue_id <= _MAX_QUEUE_ID:
        raise ExportError(f"a node sent {len(data)} bytes of {name} for {count} runs of a queue")
    numbers: _Ints = np.minimum(np.frombuffer(data, kind).astype("u8"), _MOST).astype(np.int64)
    return numbers


def numbers(column: pa.Array | pa.ChunkedArray) -> _Ints:
    """Return a column of places; NumPy's own way to it imports pandas."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found: _Ints = values(whole).astype(np.int64, copy=False)
    return found


def flaw(places: pa.RecordBatch | pa.Table, first_index: int, last_index: int) -> str:
    """Return why *places* cannot be those of entries [*first_index*, *last_index*]; "" if they can.

    No message has two places, and all numbers are such that sums have 64 bits.
    """
    index, start, end, first_row, rows, queue_id, offset, generation = (
        numbers(column) for column in places.columns
    )
    if not len(index):
        return ""
    lowest = (index - first_index, start, end - start - 1, first_row, rows - 1, queue_id, offset)
    if min(int(column.min()) for column in (*lowest, generation - 1)) < 0:
        return "a number is too low"
    if max(int(each.max()) for each in (start, end, first_row, rows, offset, generation)) >= _MOST:
        return "a number is too high"
    if int(index.max()) > last_index:
        return f"entry {index.max()} is behind {last_index}"
    same = index[1:] == index[:-1]
    inside = same & (start[1:] == start[:-1])
    follows = np.where(
        inside,
        (first_row[1:] >= first_row[:-1] + rows[:-1]) & (end[1:] == end[:-1]),
        np.where(same, start[1:] >= end[:-1], index[1:] > index[:-1]),
    )
    return "" if follows.all() else "they overlap, or do not ascend"
