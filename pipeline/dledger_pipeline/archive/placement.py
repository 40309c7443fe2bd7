"""Where messages are in their queues: what applying the log answered, by stretches.

The rules have one home, `dledger.broker`: the log is applied to the broker's own state, entry after
entry from the first one on, and what that answers to a PRODUCE command says which of its messages
are new, in which queue and at which offsets. A message whose id was stored before is no message,
and those of a topic that was deleted are none any more.
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
from dledger_pipeline.archive.origin import EntryRange
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.messages import PLACEMENT_SCHEMA, decode

_Stretch: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""A row of `PLACEMENT_SCHEMA`."""


class Placement:
    """The places of messages after some prefix of the log, which must begin at entry 1.

    It remembers what a broker does: 3 to 7 bytes a batch of messages, and the dedupe window.
    """

    def __init__(self) -> None:
        self._state = BrokerState()
        self._ends: dict[tuple[int, int], int] = {}

    def add(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the next entries; return the stretches (`PLACEMENT_SCHEMA`) of their messages.

        Args:
            entries: A batch of `records.ENTRY_SCHEMA` that follows the one before.

        Raises:
            LogIncomplete: There are entries missing before these.
        """
        columns = ("index", "term", "type", "timestamp_ms", "body_crc32c", "body")
        rows = zip(*(entries.column(name).to_pylist() for name in columns), strict=True)
        found = [
            stretch
            for index, term, kind, timestamp_ms, crc, body in rows
            for stretch in self._apply(
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

    def kept(self, placement: pa.RecordBatch) -> pa.RecordBatch:
        """Return the stretches of topics that are there after all that was added."""
        topics = pa.array([topic.generation for topic in self._state.topics.all()], pa.int64())
        return placement.filter(pc.is_in(placement.column("generation"), value_set=topics))

    def _apply(self, entry: Entry) -> Iterator[_Stretch]:
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
        places = zip(produced.queue_ids, produced.offsets, strict=True)
        for row, (queue_id, offset) in enumerate(places):
            if offset >= self._ends.get((topic, queue_id), 0):
                self._ends[topic, queue_id] = offset + 1
                yield row, 1, queue_id, offset


@dataclass(frozen=True, slots=True)
class PlacedRange:
    """Entries and where their messages are: all that a worker needs to read messages. Pickles."""

    entries: EntryRange
    placement: pa.RecordBatch

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

        Those that cannot be told are set aside, counted and logged (`messages`).

        Raises:
            MalformedMessage: See `messages.decode`.
            CorruptRecord, PipelineError: The entries cannot be read.
        """
        for entries in self.entries.read():
            yield decode(entries, _about(entries, self.placement), columns)


def placed(ranges: Iterable[EntryRange]) -> Iterator[PlacedRange]:
    """Yield each of *ranges*, from entry 1 on, with its placement: one pass over all entries.

    Messages of a topic that is deleted in one of *ranges* are left out of those before it.

    Raises:
        LogIncomplete: The first range does not begin with entry 1.
        CorruptRecord, PipelineError: The entries cannot be read.
    """
    placement = Placement()
    found = [
        (each, pa.concat_batches([placement.add(batch) for batch in each.read()]))
        for each in ranges
    ]
    for each, stretches in found:
        yield PlacedRange(each, placement.kept(stretches))


def _about(entries: pa.RecordBatch, placement: pa.RecordBatch) -> pa.RecordBatch:
    """Return the part of *placement* that is about *entries*."""
    bounds = [entries.column("index")[0].as_py(), entries.column("index")[-1].as_py() + 1]
    start, end = np.searchsorted(np.asarray(placement.column("index")), bounds)
    return placement.slice(start, end - start)


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the payloads of an entry's commands lie, up to one that is cut short."""
    try:
        for _, start, end in split(data):
            yield start, end
    except MalformedCommandError:
        return


def _batch(stretches: list[_Stretch]) -> pa.RecordBatch:
    columns = zip(*stretches, strict=True) if stretches else ((),) * len(PLACEMENT_SCHEMA)
    arrays = [
        pa.array(column, field.type)
        for column, field in zip(columns, PLACEMENT_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PLACEMENT_SCHEMA)
