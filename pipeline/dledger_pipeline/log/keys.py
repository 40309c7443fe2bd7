"""The keys of messages and where these are in their queues: what compaction decides by. Pure.

Of PRODUCE's rows a place says which queue offset they have (`messages.QUEUE_SLICE_SCHEMA`);
REKEEP's say it themselves (`dledger.broker.rekeep`). A row is a fact that stays true: this message
of this queue has this key. So it does not matter if one is read twice, or if the message is gone by
now. Called by the tasks of the job `compact`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
)
from dledger.broker.message import DELETES, TOMBSTONE
from dledger.broker.rekeep import REKEPT, Rekeep
from dledger_pipeline.errors import MalformedMessage
from dledger_pipeline.log.command_frames import find_commands
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA, decode
from dledger_pipeline.log.produce_columns import Bools, Ints, Numbers
from dledger_pipeline.log.records import array_of, body_bounds, schema, values

KEY_SCHEMA: Final = schema(
    generation=pa.int64(),
    queue_id=pa.int32(),
    key=pa.string(),
    queue_offset=pa.int64(),
    tombstone=pa.bool_(),
)
"""One row a message that has just one key: of which topic, queue and offset it is, and whether that
is a tombstone."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """A REKEEP that has rows, and where its payload begins in the data of the entry at *index*."""

    index: int
    at: int
    command: Rekeep


def key_rows(
    entries: pa.RecordBatch, places: pa.RecordBatch, generations: Collection[int]
) -> pa.RecordBatch:
    """Return the rows (`KEY_SCHEMA`) of the messages in *entries*.

    A message without a key, with several, or that cannot be decoded has none: nothing is decided
    about it.

    Args:
        entries: A batch of `records.ENTRY_SCHEMA`, indexes ascending.
        places: Of `QUEUE_SLICE_SCHEMA`, in these entries: where PRODUCE's messages are. Those of
            REKEEP's may be among them, and are passed over.
        generations: The topics that are asked for.

    Raises:
        MalformedMessage: A place is none in these entries, or a payload does not have the columns
            that it should.
    """
    bodies = entries.column("body")
    numbers, starts = Numbers(bodies.buffers()[2] or pa.py_buffer(b"")), body_bounds(bodies)
    produced = _of_produce(entries, places, numbers, starts, generations)
    copied = list(_find_copied(entries, numbers, starts, generations))
    if not copied and not produced.num_rows:
        return pa.RecordBatch.from_pylist([], KEY_SCHEMA)
    slices, generation, queue_id, offsets = _numbered(produced, copied)
    found = decode(entries, slices, ("queue_offset", "keys", "properties"))
    row = values(found.column("queue_offset"))
    keys = found.column("keys")
    single = pc.equal(pc.list_value_length(keys), 1)
    has_one = np.asarray(single.to_numpy(zero_copy_only=False), np.bool_)
    row = row[has_one]
    tombstone = _is_tombstone(found.column("properties"))[has_one]
    columns = [
        pa.array(generation[row]),
        pa.array(queue_id[row].astype(np.int32)),
        pc.list_flatten(keys.filter(single)),
        pa.array(offsets[row]),
        pa.array(tombstone),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KEY_SCHEMA)


def _of_produce(
    entries: pa.RecordBatch,
    places: pa.RecordBatch,
    numbers: Numbers,
    starts: Ints,
    generations: Collection[int],
) -> pa.RecordBatch:
    """Return the places of PRODUCE's messages: the byte before their payload is not REKEEP's."""
    asked = pc.is_in(places.column("generation"), pa.array(sorted(generations), pa.int64()))
    places = places.filter(asked)
    index, start, end = (values(places.column(name)) for name in ("index", "start", "end"))
    indexes = values(entries.column("index"))
    entry = np.minimum(np.searchsorted(indexes, index), len(indexes) - 1)
    inside = (indexes[entry] == index) & (start > 0) & (end <= np.diff(starts)[entry])
    if not inside.all():
        raise MalformedMessage(int(index[np.argmin(inside)]), "a place is outside of the entry")
    return places.filter(pa.array(numbers.u8(starts[entry] + start - 1) != REKEPT))


def _numbered(
    produced: pa.RecordBatch, copied: list[_Copied]
) -> tuple[pa.RecordBatch, Ints, Ints, Ints]:
    """Return all slices in the log's order, and of each message what it has, by its number.

    Messages are numbered through in the slices' `first_offset`, since those of a REKEEP have gaps
    in their offsets. What they have is generation, queue and queue offset.
    """
    index, start, end, first_row, rows, queue_id, first, generation = (
        values(column).astype(np.int64) for column in produced.columns
    )
    commands = [each.command for each in copied]
    sizes = [len(each.offsets) for each in commands]
    facts = (
        _with_copied(generation, rows, [each.generation for each in commands], sizes),
        _with_copied(queue_id, rows, [each.queue_id for each in commands], sizes),
        _join(_count_up(first, rows), [each.offsets for each in commands]),
    )
    more = [
        (each.index, each.at + each.command.inner, each.at + each.command.end, 0, size)
        for each, size in zip(copied, sizes, strict=True)
    ]
    extra = np.array(more, np.int64).reshape(-1, 5).T
    columns = np.concatenate((np.stack((index, start, end, first_row, rows)), extra), axis=1)
    number = np.cumsum(columns[4]) - columns[4]
    order = np.lexsort((columns[3], columns[1], columns[0]))
    nothing = np.zeros(len(order), np.int64)
    arrays = [
        array_of(column[order], field.type)
        for column, field in zip(
            (*columns, nothing, number, nothing), QUEUE_SLICE_SCHEMA, strict=True
        )
    ]
    slices = pa.RecordBatch.from_arrays(arrays, schema=QUEUE_SLICE_SCHEMA)
    return slices, *facts


def _with_copied(of_slice: Ints, rows: Ints, of_copied: list[int], sizes: list[int]) -> Ints:
    more = np.repeat(np.array(of_copied, np.int64), np.array(sizes, np.int64))
    return np.concatenate((np.repeat(of_slice, rows), more))


def _join(of_produce: Ints, of_copied: Sequence[Sequence[int]]) -> Ints:
    return np.concatenate((of_produce, *(np.array(each, np.int64) for each in of_copied)))


def _count_up(first: Ints, rows: Ints) -> Ints:
    """Return the numbers from each of *first* on, *rows* of them."""
    begins = np.cumsum(rows) - rows
    found: Ints = np.arange(int(rows.sum())) + np.repeat(first - begins, rows)
    return found


def _find_copied(
    entries: pa.RecordBatch, numbers: Numbers, starts: Ints, generations: Collection[int]
) -> Iterator[_Copied]:
    """Yield the REKEEPs of *generations* that have rows, in the log's order.

    By the node's own decoder, not by columns (`rekeep_columns`): which of them nodes refused, only
    that may say.
    """
    indexes, data = values(entries.column("index")), memoryview(numbers.buffer)
    for entry, start, end in find_commands(entries, numbers, CommandType.REKEEP):
        index = int(indexes[entry])
        try:
            command = Rekeep(bytes(data[start:end]), 0, end - start)
        except UnknownCommandError as error:
            raise MalformedMessage(index, f"{error}, which a newer version wrote") from error
        except MalformedCommandError:
            continue  # all nodes refused it
        if command.offsets and command.generation in generations:
            yield _Copied(index, start - int(starts[entry]), command)


def _is_tombstone(properties: pa.MapArray) -> Bools:
    """Return which messages have the property of a tombstone."""
    bounds = np.asarray(properties.offsets.to_numpy(), np.int64)
    keys, items = properties.keys, properties.items
    if not len(keys):
        return np.zeros(len(properties), np.bool_)
    is_one = pc.and_(pc.equal(keys, TOMBSTONE), pc.equal(items, DELETES))
    is_one = is_one.to_numpy(zero_copy_only=False)
    so_far = np.concatenate(([0], np.cumsum(is_one)))
    found: Bools = so_far[bounds[1:] - bounds[0]] > so_far[bounds[:-1] - bounds[0]]
    return found
