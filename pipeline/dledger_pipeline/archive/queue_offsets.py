"""The queue offsets of messages, as the broker itself assigned them.

The rules have one home, `dledger.broker`: the log is applied to the broker's own state, entry after
entry from the first one on, and the result of a PRODUCE command says which of its messages are new,
in which queue and at which offsets. Repeats of a stored id are left out, and so is what belonged to
a topic that was deleted later. Called by the data source and by `compact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.command_frame import MalformedCommandError, split
from dledger.broker.results import Produced
from dledger.broker.state import BrokerState
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.entry_ranges import EntryRange
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA, decode

_QueueSlice: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""A row of `QUEUE_SLICE_SCHEMA`."""


class QueueOffsets:
    """Assigns queue offsets to the messages of a log that is added from entry 1 on.

    Takes the memory of a broker: 3 to 7 bytes a batch of messages, and the ids it remembers.
    """

    def __init__(self) -> None:
        self._state = BrokerState()
        self._ends: dict[tuple[int, int], int] = {}

    def add(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the next entries; return the slices (`QUEUE_SLICE_SCHEMA`) of their messages.

        Args:
            entries: A batch of `records.ENTRY_SCHEMA` that follows the one before.

        Raises:
            LogIncomplete: There are entries missing before these.
        """
        columns = ("index", "term", "type", "timestamp_ms", "body_crc32c", "body")
        rows = zip(*(entries.column(name).to_pylist() for name in columns), strict=True)
        found = [
            queue_slice
            for index, term, kind, timestamp_ms, crc, body in rows
            for queue_slice in self._apply(
                Entry(
                    term=term,
                    index=index,
                    kind=EntryKind(kind),
                    timestamp_ms=timestamp_ms,
                    crc32c=crc,
                    data=body,
                )
            )
        ]
        return _batch(found)

    def of_topics_left(self, slices: pa.RecordBatch) -> pa.RecordBatch:
        """Return those of *slices* whose topic still exists after all entries that were added."""
        topics = pa.array([topic.generation for topic in self._state.topics.all()], pa.int64())
        return slices.filter(pc.is_in(slices.column("generation"), value_set=topics))

    def _apply(self, entry: Entry) -> Iterator[_QueueSlice]:
        if entry.index != self._state.applied_index + 1:
            raise LogIncomplete(entry.index, self._state.applied_index + 1)
        results = self._state.apply(entry)
        if entry.kind is EntryKind.DATA:
            for (start, end), result in zip(_frames(entry.data), results, strict=False):
                if isinstance(result, Produced):
                    for stored in self._stored(result):
                        yield (entry.index, start, end, *stored, result.generation)

    def _stored(self, produced: Produced) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first row, rows, queue id, first offset) of the messages that are new."""
        count, topic = len(produced.offsets), produced.generation
        if produced.stored == count:
            queue_id, first = produced.queue_ids[0], produced.offsets[0]
            self._ends[topic, queue_id] = first + count
            yield 0, count, queue_id, first
            return
        offsets = zip(produced.queue_ids, produced.offsets, strict=True)
        for row, (queue_id, offset) in enumerate(offsets):
            if offset >= self._ends.get((topic, queue_id), 0):
                self._ends[topic, queue_id] = offset + 1
                yield row, 1, queue_id, offset


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Entries with the queue offsets of their messages: what a worker needs to read. Pickles."""

    entries: EntryRange
    slices: pa.RecordBatch

    @property
    def first_index(self) -> int:
        """The first entry."""
        return self.entries.first_index

    @property
    def last_index(self) -> int:
        """The last entry."""
        return self.entries.last_index

    def read(self, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the messages, of `MESSAGE_SCHEMA` or only these *columns* of it.

        Unreadable ones are left out, counted and logged (see `messages`).

        Raises:
            MalformedMessage: See `messages.decode`.
            CorruptRecord, PipelineError: The entries cannot be read.
        """
        for entries in self.entries.read():
            yield decode(entries, _within(entries, self.slices), columns)


def message_ranges(ranges: Iterable[EntryRange]) -> Iterator[MessageRange]:
    """Yield each of *ranges*, from entry 1 on, with its queue offsets: one pass over all entries.

    Messages of a topic that is deleted in one of *ranges* are left out of those before it.

    Raises:
        LogIncomplete: The first range does not begin with entry 1.
        CorruptRecord, PipelineError: The entries cannot be read.
    """
    offsets = QueueOffsets()
    found = [
        (each, pa.concat_batches([offsets.add(batch) for batch in each.read()])) for each in ranges
    ]
    for each, slices in found:
        yield MessageRange(each, offsets.of_topics_left(slices))


def _within(entries: pa.RecordBatch, slices: pa.RecordBatch) -> pa.RecordBatch:
    """Return those of *slices* that lie in *entries*."""
    bounds = [entries.column("index")[0].as_py(), entries.column("index")[-1].as_py() + 1]
    start, end = np.searchsorted(np.asarray(slices.column("index")), bounds)
    return slices.slice(start, end - start)


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the payloads of an entry's commands lie, up to one that is cut short."""
    try:
        for _, start, end in split(data):
            yield start, end
    except MalformedCommandError:
        return


def _batch(slices: list[_QueueSlice]) -> pa.RecordBatch:
    columns = zip(*slices, strict=True) if slices else ((),) * len(QUEUE_SLICE_SCHEMA)
    arrays = [
        pa.array(column, field.type)
        for column, field in zip(columns, QUEUE_SLICE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=QUEUE_SLICE_SCHEMA)
