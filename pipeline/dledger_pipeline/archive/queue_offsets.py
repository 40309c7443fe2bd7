"""The queue offsets of messages, as the broker itself assigned them.

The rules have one home, `dledger.broker`: the log is applied to the broker's own state, entry after
entry, and the result of a PRODUCE command says which of its messages are new, in which queue and at
which offsets. The state is that before entry 1, or a base's: its queues say where the messages are
that it still refers to. Repeats of a stored id are left out, and so is what belonged to a topic
that was deleted later. This reads all bodies, so it is done only where no places are known. Called
by `planning` and the data source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from dledger.broker.command_frame import MalformedCommandError, split
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.results import Produced
from dledger.broker.state import BrokerState
from dledger.broker.topics import Topic
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.entry_ranges import EntryRange, within
from dledger_pipeline.archive.message_ranges import MessageRange, between
from dledger_pipeline.archive.selection import EVERYTHING, Selection, overlap
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA

_QueueSlice: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""A row of `QUEUE_SLICE_SCHEMA`."""
_APPLIED: Final = ("index", "term", "type", "timestamp_ms", "body_crc32c", "body")
"""What the broker's state needs of an entry."""


class QueueOffsets:
    """Assigns queue offsets to the messages of a log that is added entry after entry.

    Takes the memory of a broker: 3 to 7 bytes a batch of messages, and the ids it remembers.
    """

    def __init__(self, state: BrokerState | None = None) -> None:
        """Begin before entry 1, or behind the entries that *state* includes; it is changed."""
        self._state = BrokerState() if state is None else state
        self._ends = {
            (topic.generation, queue_id): queue.end for topic, queue_id, queue in self._queues()
        }

    @property
    def applied_index(self) -> int:
        """The newest entry that was added, or that the state included."""
        return self._state.applied_index

    def held(self) -> pa.RecordBatch:
        """Return the slices (`QUEUE_SLICE_SCHEMA`) of the messages that the state refers to now."""
        found = sorted(
            each
            for topic, queue_id, queue in self._queues()
            for each in _held(queue, queue_id, topic.generation)
        )
        return _batch(found)

    def _queues(self) -> Iterator[tuple[Topic, int, ConsumeQueue]]:
        for topic in self._state.topics.all():
            for queue_id, queue in enumerate(self._state.topics.queues(topic.name)):
                yield topic, queue_id, queue

    def add(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the next entries; return the slices (`QUEUE_SLICE_SCHEMA`) of their messages.

        Args:
            entries: A batch of `records.ENTRY_SCHEMA` that follows the one before.

        Raises:
            LogIncomplete: There are entries missing before these.
        """
        rows = zip(*(entries.column(name).to_pylist() for name in _APPLIED), strict=True)
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

    def of_topics_left(
        self, slices: pa.RecordBatch, selection: Selection = EVERYTHING
    ) -> pa.RecordBatch:
        """Return what of *slices* is asked for, but for times.

        Nothing is of a topic that does not exist any more after all entries that were added.
        """
        topics = [
            topic.generation
            for topic in self._state.topics.all()
            if selection.topic in (None, topic.name)
        ]
        return selection.of_slices(slices, topics)

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


def message_ranges(
    ranges: Iterable[EntryRange],
    state: BrokerState | None = None,
    selection: Selection = EVERYTHING,
    topics: Collection[int] | None = None,
) -> Iterator[MessageRange]:
    """Yield each of *ranges* with its queue offsets, after one pass over all entries.

    Messages of a topic that is deleted in one of *ranges* are left out of those before it; entries
    above the last index that is asked for have not happened yet.

    Args:
        ranges: Without a gap from entry 1 on, or from one that *state* includes or follows it.
        state: That of a base; it is changed. Entries that it includes are not read: those of their
            messages that it does not refer to any more are left out.
        selection: Which messages are asked for; a range may have none of them.
        topics: Generations of the topics that are asked for; None: those of *selection* that exist
            at the end of *ranges*.

    Raises:
        LogIncomplete: An entry is missing.
        CorruptRecord, PipelineError: The entries cannot be read.
    """
    offsets = QueueOffsets(state)
    held = offsets.held()
    found = [(each, _slices(each, offsets, held, selection.last_index)) for each in ranges]
    for each, slices in found:
        if topics is None:
            wanted = offsets.of_topics_left(slices, selection)
        else:
            wanted = selection.of_slices(slices, topics)
        if not overlap(each.bounds, selection.of_entries()):
            wanted = wanted.slice(0, 0)
        yield MessageRange(each, wanted, selection)


def _slices(
    each: EntryRange, offsets: QueueOffsets, held: pa.RecordBatch, last_index: int
) -> pa.RecordBatch:
    """Return the slices of a range up to *last_index*: from the state, else by adding entries."""
    first_index, last_index = offsets.applied_index + 1, min(each.last_index, last_index)
    found = [between(held, each.first_index, last_index)]
    if first_index <= last_index:
        behind = partial(overlap, {"index": (first_index, last_index)})
        rest = within(each.read(behind, _APPLIED), first_index, last_index)
        found += [offsets.add(batch) for batch in rest]
    return pa.concat_batches(found)


def _held(queue: ConsumeQueue, queue_id: int, generation: int) -> Iterator[_QueueSlice]:
    """Yield the slices of a queue's messages, ascending."""
    for first, length, row, index, start, end in queue.stretches(queue.first):
        yield (index, start, end, row, length, queue_id, first, generation)


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
