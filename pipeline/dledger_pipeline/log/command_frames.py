"""Finds the commands of one type in entries: by the type bytes of all frames at once. Pure.

Most entries hold a few frames, so that each step looks at the next frame of all entries that have
one more. What a found command says, its own decoder tells. Called by `erase_rows` and `keys`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dledger.broker.command_frame import HEADER_BYTES, CommandType
from dledger.types import EntryKind
from dledger_pipeline.log.produce_columns import Bools, Ints, Numbers
from dledger_pipeline.log.records import body_bounds, values


def find_commands(
    entries: pa.RecordBatch, numbers: Numbers, command: CommandType
) -> list[tuple[int, int, int]]:
    """Return (row, start, end) of each payload of a *command*, in the log's order.

    A frame that is cut short ends its entry, as it does on a node.

    Args:
        entries: A batch of `records.ENTRY_SCHEMA`.
        numbers: Of the buffer that has their bodies; the payload is its bytes ``[start, end)``.
        command: What is looked for.
    """
    edges = body_bounds(entries.column("body"))
    row = np.flatnonzero(values(entries.column("type")) == EntryKind.DATA)
    at, end = edges[row], edges[row + 1]
    found = list[tuple[int, int, int]]()
    while len(row):
        row, at, end = _where(at + HEADER_BYTES <= end, row, at, end)
        start = at + HEADER_BYTES
        behind = start + numbers.u32(at)
        is_one = (numbers.u8(start - 1) == command) & (behind <= end)
        if is_one.any():
            columns = _where(is_one, row, start, behind)
            found += zip(*(each.tolist() for each in columns), strict=True)
        row, at, end = _where(behind < end, row, behind, end)
    return sorted(found)


def _where(wanted: Bools, *columns: Ints) -> tuple[Ints, ...]:
    return columns if wanted.all() else tuple(each[wanted] for each in columns)
