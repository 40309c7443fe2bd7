"""PRODUCE payloads to Arrow columns, many at a time, without a loop over messages.

The bytes are those of ``docs/internals/message-format.md``. `dledger.broker.produce` is the decoder
that the broker itself uses, a message at a time; a property test holds the two to the same answers.
Here the columns of all payloads in a batch of entries are found together (`produce_columns`), and
each column of messages is cut out of the entries' bytes by one Arrow ``take``. Which payloads
count, and which queue offset a message has, is decided in `queue_offsets`. Called there, for each
batch.

Nodes no longer accept a message that cannot be decoded, such as one whose id is not UTF-8, but an
older log may have some. These are set aside, as consumers never get them: counted, logged, and left
out with all their columns. Ids, which were not checked at first, are checked here even when they
are not asked for; other columns, which always were, only when they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.message import Encoding
from dledger.types import NO_PRIORITY
from dledger_pipeline.log.produce_columns import (
    Bools,
    Ints,
    Lists,
    Numbers,
    ProduceColumns,
    Span,
    Strings,
)
from dledger_pipeline.log.records import schema

logger = logging.getLogger(__name__)

_TEXT: Final = pa.string()
_ASCII: Final = 0x7F
MOVED_FROM: Final = pa.struct(
    {
        "topic": _TEXT,
        "generation": pa.int64(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "stored_at_ms": pa.int64(),
        "born_host": _TEXT,
        "attempts": pa.int64(),
    }
)
"""What `MESSAGE_SCHEMA` says of a message that its group moved. Its fields may be null, as writers
of tables look at them even where the whole of it is."""


MESSAGE_SCHEMA: Final = schema(
    topic=_TEXT,
    queue_id=pa.int32(),
    queue_offset=pa.int64(),
    message_id=_TEXT,
    tag=_TEXT,
    keys=pa.list_(pa.field("element", _TEXT, nullable=False)),
    properties=pa.map_(_TEXT, pa.field("value", _TEXT, nullable=False)),
    body=pa.binary(),
    encoding=pa.int8(),
    born_at_ms=pa.int64(),
    stored_at_ms=pa.int64(),
    client_id=_TEXT,
    born_host=_TEXT,
    trace_context=_TEXT,
    index=pa.int64(),
    term=pa.int64(),
    message_group=_TEXT,
    deliver_at_ms=pa.int64(),
    priority=pa.int32(),
).append(pa.field("moved_from", MOVED_FROM))
"""One row a message. `index` and `term` are those of the entry that holds it; `body` is as its
producer packed it, which `encoding` names (1 identity, 2 gzip); times are Unix milliseconds. Of
most messages the last four say nothing: an empty group, no delivery time (0), no priority (-1), and
null for where the broker group moved it from."""

QUEUE_SLICE_SCHEMA: Final = schema(
    index=pa.int64(),
    start=pa.int64(),
    end=pa.int64(),
    first_row=pa.int64(),
    rows=pa.int64(),
    queue_id=pa.int32(),
    first_offset=pa.int64(),
    generation=pa.int64(),
)
"""One row a slice of a queue: rows ``[first_row, first_row + rows)`` of the PRODUCE payload at
bytes ``[start, end)`` of the entry at `index` are the messages of queue `queue_id` at offsets
`first_offset` and up, of the topic that is the `generation`th of its group. Slices ascend by
(index, start, first_row); a row that is in none is a repeat."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return these columns of `MESSAGE_SCHEMA`, all when empty."""
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in columns or MESSAGE_SCHEMA.names])


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message that cannot be decoded: its queue offset, and the entry that holds it."""

    index: int
    queue_id: int
    queue_offset: int


def warn(set_aside: Sequence[SetAside]) -> None:
    """Log how many messages of a batch are set aside, and which is the first."""
    first = set_aside[0]
    logger.warning(
        "%d messages cannot be decoded and are set aside; the first is at offset %d of queue %d, "
        "in entry %d",
        len(set_aside),
        first.queue_offset,
        first.queue_id,
        first.index,
    )


def decode(
    entries: pa.RecordBatch,
    slices: pa.RecordBatch,
    columns: Sequence[str] = (),
    report: Callable[[Sequence[SetAside]], None] = warn,
) -> pa.RecordBatch:
    """Return the messages of *slices*, which all lie in *entries*, in the order of the log.

    Args:
        entries: A batch of `records.ENTRY_SCHEMA`, indexes ascending.
        slices: Of `QUEUE_SLICE_SCHEMA`, in these entries.
        columns: Which columns of `MESSAGE_SCHEMA`, all when empty.
        report: Called with the messages that are set aside, if any.

    Raises:
        MalformedMessage: A payload's columns do not fit into it: the broker stored no such thing.
    """
    wanted = schema_of(columns)
    if slices.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=wanted)
    return Messages(entries, slices).decode(wanted, report)


class Messages:
    """The messages of some slices: which slice each is in, and which row of its payload it is."""

    def __init__(self, entries: pa.RecordBatch, slices: pa.RecordBatch) -> None:
        index, start, end, first_row, rows = (_ints(c) for c in slices.columns[:5])
        bodies = entries.column("body")
        found = np.searchsorted(_ints(entries.column("index")), index)
        at = np.frombuffer(bodies.buffers()[1], np.int64)[bodies.offset :][found]
        self.numbers = Numbers(bodies.buffers()[2])
        self._entries, self._slices = entries, slices
        self._entry = found
        self.starts = at
        """Where the data of each slice's entry begins."""
        self.columns = ProduceColumns(self.numbers, index=index, start=at + start, end=at + end)
        self.columns.check(
            first_row + rows <= self.columns.count, "fewer messages than queue offsets"
        )
        of_slice, nth = np.repeat(np.arange(len(rows)), rows), _count_up(rows)
        first_offset = _ints(slices.column("first_offset"))
        self.take(of_slice, first_row[of_slice] + nth, first_offset[of_slice] + nth)

    @property
    def place(self) -> tuple[Ints, Ints]:
        """The slice that each message is in, and its row in the payload."""
        return self._slice, self._row

    def take(self, of_slice: Ints, row: Ints, offset: Ints) -> None:
        """Decode these messages: each is a *row* of a slice's payload, at a queue *offset*."""
        self._slice, self._row, self._offset = of_slice, row, offset
        self._every = np.arange(len(row))
        self.good = np.ones(len(row), np.bool_)
        """Which messages can be decoded, by the columns that were cut out so far."""

    def decode(
        self, wanted: pa.Schema, report: Callable[[Sequence[SetAside]], None]
    ) -> pa.RecordBatch:
        """Return the columns of *wanted*; *report* is told of messages that are set aside."""
        if "message_id" not in wanted.names:
            self._judge_ids()
        arrays = [_COLUMNS[name](self) for name in wanted.names]
        found = pa.RecordBatch.from_arrays(arrays, schema=wanted)
        if self.good.all():
            return found
        report(self._set_aside())
        return found.filter(pa.array(self.good))

    def _set_aside(self) -> list[SetAside]:
        """Return the messages that cannot be decoded."""
        bad = np.flatnonzero(~self.good)
        of_slice = self._slice[bad]
        queue_ids = _ints(self._slices.column("queue_id"))[of_slice]
        rows = zip(self.columns.index[of_slice], queue_ids, self._offset[bad], strict=True)
        return [SetAside(int(index), int(queue), int(offset)) for index, queue, offset in rows]

    def _judge_ids(self) -> None:
        """Check the ids, even if not asked for; a single test is enough if all are ASCII."""
        ids = self.columns.ids
        start = ids.offsets_at + 4 * (ids.count + 1)
        once = np.flatnonzero(np.diff(start, prepend=-1))
        _, _, characters = self._cut(start[once], (start + ids.size)[once]).buffers()
        if characters is not None and np.frombuffer(characters, np.uint8).max(initial=0) > _ASCII:
            self.texts(ids)

    def of_entry(self, column: str) -> pa.Array:
        """Return a column of the messages' entries."""
        return self._entries.column(column).take(pa.array(self._entry[self._slice]))

    def index(self) -> pa.Array:
        """Return the entry that stored each."""
        return self.of_entry("index")

    def term(self) -> pa.Array:
        """Return that entry's term."""
        return self.of_entry("term")

    def stored_at_ms(self) -> pa.Array:
        """Return when each was stored, Unix milliseconds."""
        return self.of_entry("timestamp_ms")

    def born_host(self) -> pa.Array:
        """Return each one's producer's address."""
        return self.once(self.columns.born_host)

    def queue_id(self) -> pa.Array:
        """Return the queue of each."""
        return self._slices.column("queue_id").take(pa.array(self._slice))

    def queue_offset(self) -> pa.Array:
        """Return the queue offset of each."""
        return pa.array(self._offset)

    def once(self, span: Span) -> pa.Array:
        """Return a text that all messages of a payload share."""
        strings = self._cut(span.start, span.end)
        try:
            texts = strings.cast(_TEXT)
        except pa.ArrowInvalid:
            good = np.array([_is_text(each.as_py()) for each in strings])
            self.columns.check(good, "a name is not UTF-8")
            raise
        return texts.take(pa.array(self._slice))

    def texts(self, column: Strings) -> pa.Array:
        """Return a column of texts, one for each message."""
        return self._text(self.strings(column), self._every)

    def strings(self, column: Strings) -> pa.Array:
        """Return a column of bytes, one for each message."""
        if not column.present.any():
            return pa.repeat(pa.scalar(b"", pa.large_binary()), len(self._row))
        return self._items(column, self._every, self._row)

    def keys(self) -> pa.Array:
        """Return the keys of each."""
        offsets, items = self._lists(self.columns.keys)
        return pa.ListArray.from_arrays(offsets, *items, type=MESSAGE_SCHEMA.field("keys").type)

    def properties(self) -> pa.Array:
        """Return the properties of each."""
        offsets, items = self._lists(self.columns.properties)
        return pa.MapArray.from_arrays(
            offsets, *items, type=MESSAGE_SCHEMA.field("properties").type
        )

    def encoding(self) -> pa.Array:
        """Return how each body is packed."""
        at = self.columns.encodings_at
        encodings = self._numbers(self.numbers.u8, at, 1, Encoding.IDENTITY)
        self._keep(np.isin(encodings, list(Encoding)), self._every)
        return pa.array(encodings.astype(np.int8))

    def born_at_ms(self) -> pa.Array:
        """Return when each was sent, by its producer's clock."""
        return pa.array(self.numbers.i64(self.columns.born_at[self._slice] + 8 * self._row))

    def deliver_at_ms(self) -> pa.Array:
        """Return before when each is not to be delivered; 0: at once."""
        return pa.array(self._numbers(self.numbers.i64, self.columns.deliver_at, 8, 0))

    def priority(self) -> pa.Array:
        """Return the priority of each."""
        at = self.columns.priorities_at
        found = self._numbers(self.numbers.i32, at, 4, NO_PRIORITY)
        self._keep(found >= NO_PRIORITY, self._every)
        return pa.array(found.astype(np.int32))

    def moved_from(self) -> pa.Array:
        """Return where each was before its group moved it; null: its producer sent it here."""
        moves = self.columns.moves
        if moves is None:
            return pa.nulls(len(self._row), MOVED_FROM)
        topics, hosts = self.texts(moves.topics), self.texts(moves.hosts)
        i32, i64, u32 = self.numbers.i32, self.numbers.i64, self.numbers.u32
        arrays = [
            topics,
            pa.array(self._numbers(i64, moves.generations_at, 8, 0)),
            pa.array(self._numbers(i32, moves.queues_at, 4, 0).astype(np.int32)),
            pa.array(self._numbers(i64, moves.offsets_at, 8, 0)),
            pa.array(self._numbers(i64, moves.times_at, 8, 0)),
            hosts,
            pa.array(self._numbers(u32, moves.attempts_at, 4, 0)),
        ]
        stayed = pc.equal(pc.binary_length(topics), 0)
        return pa.StructArray.from_arrays(arrays, fields=list(MOVED_FROM), mask=stayed)

    def _numbers(self, read: Callable[[Ints], Ints], starts: Ints, width: int, absent: int) -> Ints:
        """Return a column of numbers, one for each message; *absent* where there is none."""
        at = starts[self._slice]
        return np.where(at >= 0, read(np.where(at >= 0, at + width * self._row, 0)), absent)

    def _lists(self, lists: Lists) -> tuple[pa.Array, list[pa.Array]]:
        """Return the offsets of each message's list, and the texts of each of its columns."""
        low, high = self._offsets(lists.present, lists.offsets_at, self._slice, self._row)
        items = lists.columns[0].count[self._slice]
        sizes = self._keep((low <= high) & (high <= items), self._every) * (high - low)
        message = np.repeat(self._every, sizes)
        item = np.repeat(low, sizes) + _count_up(sizes)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        columns = [self._items(column, message, item) for column in lists.columns]
        return pa.array(offsets), [self._text(column, message) for column in columns]

    def _items(self, column: Strings, message: Ints, item: Ints) -> pa.Array:
        """Return string *item* of the column in the payload of *message*, for each pair of them.

        A string with invalid offsets is empty, and its message is not good.
        """
        present, offsets_at, of_slice = column.present, column.offsets_at, self._slice[message]
        low, high = self._offsets(present, offsets_at, of_slice, item)
        good = self._keep((low <= high) & (high <= column.size[of_slice]), message)
        base = (offsets_at + np.where(present, 4 * (column.count + 1), 0))[of_slice]
        return self._cut(base + low * good, base + high * good)

    def _offsets(
        self, present: Bools, offsets_at: Ints, of_slice: Ints, item: Ints
    ) -> tuple[Ints, Ints]:
        """Return the two offsets that bound *item* in the payload of *of_slice*; 0 where absent."""
        there = present[of_slice]
        at = np.where(there, offsets_at[of_slice] + 4 * item, 0)
        low, high = self.numbers.u32(at), self.numbers.u32(at + 4)
        return np.where(there, low, 0), np.where(there, high, 0)

    def _cut(self, start: Ints, end: Ints) -> pa.Array:
        """Return the bytes ``[start, end)``, ascending, as strings: one copy of each."""
        if len(start) == 0:
            return pa.array([], pa.large_binary())
        # Damaged lists may overlap; Arrow asks only that the last bound is not before the first.
        bounds = np.append(np.column_stack((start, end)).ravel(), end.max())
        buffers = [None, pa.py_buffer(bounds), self.numbers.buffer]
        with_gaps = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
        return with_gaps.take(pa.array(np.arange(0, len(bounds) - 1, 2)))

    def _text(self, strings: pa.Array, message: Ints) -> pa.Array:
        """Decode *strings*; one that is not UTF-8 is empty, and its message not good."""
        try:
            return strings.cast(_TEXT)
        except pa.ArrowInvalid:
            good = self._keep(np.array([_is_text(each.as_py()) for each in strings]), message)
            return pc.if_else(pa.array(good), strings, pa.scalar(b"", strings.type)).cast(_TEXT)

    def _keep(self, good: Bools, message: Ints) -> Bools:
        """Mark the messages that are not *good*; return *good*."""
        if not good.all():
            self.good[message[~good]] = False
        return good


_COLUMNS: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "topic": lambda m: m.once(m.columns.topic),
    "queue_id": Messages.queue_id,
    "queue_offset": Messages.queue_offset,
    "message_id": lambda m: m.texts(m.columns.ids),
    "tag": lambda m: m.texts(m.columns.tags),
    "keys": Messages.keys,
    "properties": Messages.properties,
    "body": lambda m: m.strings(m.columns.bodies).cast(pa.binary()),
    "encoding": Messages.encoding,
    "born_at_ms": Messages.born_at_ms,
    "stored_at_ms": lambda m: m.stored_at_ms(),
    "client_id": lambda m: m.once(m.columns.client),
    "born_host": lambda m: m.born_host(),
    "trace_context": lambda m: m.texts(m.columns.traces),
    "index": lambda m: m.index(),
    "term": lambda m: m.term(),
    "message_group": lambda m: m.texts(m.columns.groups),
    "deliver_at_ms": Messages.deliver_at_ms,
    "priority": Messages.priority,
    "moved_from": Messages.moved_from,
}


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ints(column: pa.Array) -> Ints:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def _count_up(sizes: Ints) -> Ints:
    """Return 0, 1, ... size - 1 for each of *sizes*, one after the other."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
