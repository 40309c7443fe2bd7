"""Finds the messages of one key in entries: what is to be erased of a backup. Pure.

Most entries have the key's bytes nowhere, and are told apart at once; the others are decoded as the
broker itself does. What a REKEEP has copied says which message it was; of what a PRODUCE stored
that is known by its place (`place_hits`). The key is in nothing that leaves this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    split,
)
from dledger.broker.produce import ProduceFrame
from dledger.broker.rekeep import Rekeep, origins
from dledger.common.features import FEATURES
from dledger.errors import NewerCommand
from dledger.types import Entry, EntryKind
from dledger_pipeline.log.produce_columns import Ints
from dledger_pipeline.log.records import schema, values

HIT_SCHEMA: Final = schema(
    index=pa.int64(),
    start=pa.int64(),
    row=pa.int64(),
    generation=pa.int64(),
    queue_id=pa.int32(),
    queue_offset=pa.int64(),
    stored_in=pa.int64(),
)
"""One row a message of the key: it lies in row `row` of the payload at byte `start` of the entry at
`index`, and was stored by the entry `stored_in` at `queue_offset` of queue `queue_id` of the topic
that is the `generation`th of its group. Generation 0: where it was stored is not known yet."""

NOT_PLACED: Final = 0
_ROW_BITS: Final = 32
_OF_HIT: Final = ("index", "start", "row", "generation", "queue_id", "queue_offset")
_OF_PLACE: Final = (
    *("index", "start", "first_row", "rows"),
    *("generation", "queue_id", "first_offset"),
)
_Hit: TypeAlias = tuple[int, int, int, int, int, int, int]


def find_hits(entries: pa.RecordBatch, topic: str, key: str) -> pa.RecordBatch:
    """Return the messages (`HIT_SCHEMA`) in *entries* of topics of this name that have just *key*.

    Args:
        entries: Of `records.ENTRY_SCHEMA`: index, type and body.
        topic: The topic's name, as the messages have it.
        key: Exactly this one.

    Raises:
        NewerCommand: A newer version wrote one of the entries that may have such a message.
    """
    wanted = _Wanted(topic, key.encode())
    has_key = pc.match_substring(entries.column("body"), pattern=wanted.key)
    found = entries.filter(has_key)
    kinds = values(found.column("type"))
    hits: list[_Hit] = []
    for number in np.flatnonzero(kinds == EntryKind.DATA).tolist():
        index, body = (found.column(name)[number].as_py() for name in ("index", "body"))
        try:
            hits += _hits_in(index, body, wanted)
        except UnknownCommandError as error:
            raise NewerCommand(index, what=str(error), level=FEATURES.level) from error
    columns = zip(*hits, strict=True) if hits else ((),) * len(HIT_SCHEMA)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, HIT_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=HIT_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Whose messages are looked for."""

    topic: str
    key: bytes

    def rows(self, body: bytes, start: int, end: int) -> Iterator[int]:
        """Yield which rows of a PRODUCE payload are; one that cannot be decoded is nobody's."""
        try:
            frame = ProduceFrame(body, start, end)
        except UnknownCommandError:
            raise
        except MalformedCommandError:
            return
        if frame.topic != self.topic:
            return
        for row, keys in enumerate(frame.keys()):
            if keys == [self.key] and _can_be_read(frame, row):
                yield row


def _hits_in(index: int, body: bytes, wanted: _Wanted) -> Iterator[_Hit]:
    for kind, start, end in _frames(body):
        if kind == CommandType.PRODUCE:
            for row in wanted.rows(body, start, end):
                yield index, start, row, NOT_PLACED, 0, 0, index
        elif kind == CommandType.REKEEP:
            try:
                copy = Rekeep(body, start, end)
            except UnknownCommandError:
                raise
            except MalformedCommandError:
                continue  # all nodes refused it
            yield from _find_copied(index, body, copy, wanted)


def _find_copied(index: int, body: bytes, copy: Rekeep, wanted: _Wanted) -> Iterator[_Hit]:
    if not copy.offsets:
        return
    entry = Entry(term=0, index=index, kind=EntryKind.DATA, timestamp_ms=0, crc32c=0, data=body)
    were = origins(entry, copy.inner, copy.end)
    for row in wanted.rows(body, copy.inner, copy.end):
        place = (copy.generation, copy.queue_id, copy.offsets[row], were[row].entry)
        yield index, copy.inner, row, *place


def _frames(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield all commands up to a frame that is cut short, as nodes do."""
    try:
        yield from split(body)
    except MalformedCommandError:
        return


def _can_be_read(frame: ProduceFrame, row: int) -> bool:
    try:
        frame.message(row)
    except MalformedCommandError:
        return False
    return True


def place_hits(hits: pa.Table, places: pa.RecordBatch) -> pa.Table:
    """Return *hits*, of which those are placed, too, that are among *places*.

    Args:
        hits: Of `HIT_SCHEMA`.
        places: Of `messages.QUEUE_SLICE_SCHEMA`, in any order.
    """
    if not hits.num_rows or not places.num_rows:
        return hits
    index, start, row, generation, queue_id, offset = (_ints(hits, each) for each in _OF_HIT)
    at, begins, first_row, rows, of_topic, of_queue, first = (
        _ints(places, each) for each in _OF_PLACE
    )
    payload, of_place = _payloads((index, start), (at, begins))
    order = np.argsort((of_place << _ROW_BITS) + first_row)
    wanted = (payload << _ROW_BITS) + row
    last = np.searchsorted(((of_place << _ROW_BITS) + first_row)[order], wanted, "right") - 1
    place = order[np.maximum(last, 0)]
    within = (last >= 0) & (of_place[place] == payload) & (row < first_row[place] + rows[place])
    within &= generation == NOT_PLACED
    made = {
        "generation": np.where(within, of_topic[place], generation),
        "queue_id": np.where(within, of_queue[place], queue_id),
        "queue_offset": np.where(within, first[place] + row - first_row[place], offset),
    }
    columns = [
        pa.array(made[field.name].astype(str(field.type)))
        if field.name in made
        else hits.column(field.name)
        for field in HIT_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=HIT_SCHEMA)


def _payloads(*pairs: tuple[Ints, Ints]) -> tuple[Ints, ...]:
    """Return a number for each (index, start), the same for the same."""
    every = np.concatenate([np.column_stack(pair) for pair in pairs])
    numbers = np.unique(every, axis=0, return_inverse=True)[1].reshape(-1)
    return tuple(np.split(numbers, np.cumsum([len(pair[0]) for pair in pairs])[:-1]))


def _ints(rows: pa.Table | pa.RecordBatch, name: str) -> Ints:
    column = rows.column(name)
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return values(whole).astype(np.int64)
