"""The queue offsets of messages, as the broker itself assigned them.

The rules have one home, `dledger.broker`: the log is applied to the broker's own state, entry after
entry, and the result of a PRODUCE command says which of its messages are new, in which queue and at
which offsets. The state is that before entry 1, or a base's: its queues say where the messages are
that it still refers to. Repeats of a stored id are left out, and so is what belonged to a topic
that was deleted later. Called by the data source and by `compact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from dledger.broker.command_frame import MalformedCommandError, split
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.results import Produced
from dledger.broker.state import BrokerState
from dledger.broker.topics import Topic
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.bases import read_base, state_of
from dledger_pipeline.archive.entry_ranges import EntryRange, archived, within
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.selection import EVERYTHING, MAX_INDEX, Bounds, Selection, overlap
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA, decode
from dledger_pipeline.object_store.store import Store

_QueueSlice: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""A row of `QUEUE_SLICE_SCHEMA`."""
_APPLIED: Final = ("index", "term", "type", "timestamp_ms", "body_crc32c", "body")
"""What the broker's state needs of an entry."""
_DECODED: Final = ("index", "term", "timestamp_ms", "body")
"""What messages are made of."""


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


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Entries with the queue offsets of their messages: what a worker needs to read. Pickles.

    Attributes:
        entries: Where the messages are.
        slices: Their places; those of *selection*, but for times.
        selection: Which messages are asked for.
    """

    entries: EntryRange
    slices: pa.RecordBatch
    selection: Selection = EVERYTHING

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
        for entries in self.entries.read(self._may_hold, _DECODED):
            slices = self.selection.at_times(_within(entries, self.slices), entries)
            if slices.num_rows:
                yield decode(entries, slices, columns)

    def _may_hold(self, bounds: Bounds) -> bool:
        """Whether entries within *bounds* can hold messages that are asked for."""
        low, high = bounds.get("index", (1, MAX_INDEX))
        is_there = _between(self.slices, low, high).num_rows > 0
        return is_there and overlap(bounds, self.selection.of_entries())


def message_ranges(
    ranges: Iterable[EntryRange],
    state: BrokerState | None = None,
    selection: Selection = EVERYTHING,
) -> Iterator[MessageRange]:
    """Yield each of *ranges* with its queue offsets, after one pass over all entries.

    Messages of a topic that is deleted in one of *ranges* are left out of those before it; entries
    above the last index that is asked for have not happened yet.

    Args:
        ranges: Without a gap from entry 1 on, or from one that *state* includes or follows it.
        state: That of a base; it is changed. Entries that it includes are not read: those of their
            messages that it does not refer to any more are left out.
        selection: Which messages are asked for; a range may have none of them.

    Raises:
        LogIncomplete: An entry is missing.
        CorruptRecord, PipelineError: The entries cannot be read.
    """
    offsets = QueueOffsets(state)
    held = offsets.held()
    found = [(each, _slices(each, offsets, held, selection.last_index)) for each in ranges]
    for each, slices in found:
        wanted = offsets.of_topics_left(slices, selection)
        if not overlap(each.bounds, selection.of_entries()):
            wanted = wanted.slice(0, 0)
        yield MessageRange(each, wanted, selection)


def archived_messages(
    store: Store, manifest: Manifest, selection: Selection = EVERYTHING
) -> Iterator[MessageRange]:
    """Yield the messages of a backup that are asked for, in ranges that may have none of them.

    They are those of the newest run that begins at or below the last index, from its oldest base
    on.

    Raises:
        LogIncomplete: No base stands for what is missing before a run.
        StoreError, BackupError: The store, or what it holds, is at fault.
    """
    in_time = (r.first_index for r in manifest.files if r.last_timestamp_ms >= selection.first_ms)
    first_index = max(selection.first_index, next(in_time, MAX_INDEX))
    if first_index > manifest.last_index:
        return
    wanted = manifest.message_files(first_index, selection.last_index)
    state = None
    if wanted.base is not None:
        snapshot = read_base(store, manifest.group_id, wanted.base)
        state = state_of(wanted.base.name, snapshot)
    ranges = archived(store, manifest.group_id, wanted.files)
    yield from message_ranges(ranges, state, selection)


def _slices(
    each: EntryRange, offsets: QueueOffsets, held: pa.RecordBatch, last_index: int
) -> pa.RecordBatch:
    """Return the slices of a range up to *last_index*: from the state, else by adding entries."""
    first_index, last_index = offsets.applied_index + 1, min(each.last_index, last_index)
    found = [_between(held, each.first_index, last_index)]
    if first_index <= last_index:
        behind = partial(overlap, {"index": (first_index, last_index)})
        rest = within(each.read(behind, _APPLIED), first_index, last_index)
        found += [offsets.add(batch) for batch in rest]
    return pa.concat_batches(found)


def _within(entries: pa.RecordBatch, slices: pa.RecordBatch) -> pa.RecordBatch:
    """Return those of *slices* that lie in *entries*."""
    indexes = entries.column("index")
    return _between(slices, indexes[0].as_py(), indexes[-1].as_py())


def _between(slices: pa.RecordBatch, first_index: int, last_index: int) -> pa.RecordBatch:
    indexes = np.asarray(slices.column("index"))
    start = np.searchsorted(indexes, first_index)
    return slices.slice(start, np.searchsorted(indexes, last_index, "right") - start)


def _held(queue: ConsumeQueue, queue_id: int, generation: int) -> Iterator[_QueueSlice]:
    """Yield the slices of a queue's messages, ascending."""
    offset = queue.first
    while offset < queue.end:
        position, rows = queue.stretch(offset)
        payload = position.payload
        place = (payload.index, payload.start, payload.end, position.row)
        yield (*place, rows, queue_id, offset, generation)
        offset += rows


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
