"""The queue offsets of messages, as the broker itself assigned them.

The rules have one home, `dledger.broker`: the log is applied to the broker's own state, entry after
entry, and the result of a PRODUCE command says which of its messages are new, in which queue and at
which offsets. The state is that before entry 1, or a base's: its queues say where the messages are
that it still refers to. Repeats of a stored id are left out, and so is what belonged to a topic
that was deleted later. This reads all bodies, so it is done only where no places are known. Called
by `planning` and the data source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.command_frame import MalformedCommandError, split
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.dead_letter import DeadLetter
from dledger.broker.erase import Erase
from dledger.broker.held_commands import ReleaseHeld
from dledger.broker.held_refs import HELD_QUEUE
from dledger.broker.results import DeadLettered, HeldReleased, Produced
from dledger.broker.results import Erased as EraseResult
from dledger.broker.state import BrokerState
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.entry_ranges import EntryRange, within
from dledger_pipeline.archive.erased import Erased
from dledger_pipeline.archive.message_ranges import KeptRows, MessageRange, between
from dledger_pipeline.archive.selection import EVERYTHING, Selection, overlap
from dledger_pipeline.errors import LogIncomplete
from dledger_pipeline.log.erase_rows import rows_of
from dledger_pipeline.log.kept_messages import BLOCK_SCHEMA
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA

_QueueSlice: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""A row of `QUEUE_SLICE_SCHEMA`."""
_Block: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""A row of `BLOCK_SCHEMA`."""
_APPLIED: Final = ("index", "term", "type", "timestamp_ms", "body_crc32c", "body")
"""What the broker's state needs of an entry."""


class QueueOffsets:
    """Assigns queue offsets to the messages of a log that is added entry after entry.

    Takes the memory of a broker: 3 to 7 bytes a batch of messages, and the ids it remembers.
    """

    def __init__(self, state: BrokerState | None = None) -> None:
        """Begin before entry 1, or behind the entries that *state* includes; it is changed."""
        self._state = BrokerState() if state is None else state
        self._erases: list[tuple[int, int, Erase]] = []
        self._ends = {
            (topic.generation, queue_id): queue.end for topic, queue_id, queue in self._queues()
        }

    @property
    def applied_index(self) -> int:
        """The newest entry that was added, or that the state included."""
        return self._state.applied_index

    def held(self) -> pa.RecordBatch:
        """Return the slices (`QUEUE_SLICE_SCHEMA`) of the messages that the state refers to now.

        Those that lie where they were stored; the others are in `blocks`.
        """
        found = sorted(
            each
            for topic, queue_id, queue in self._queues()
            for each in _held(queue, queue_id, topic.generation)
        )
        return _batch(found, QUEUE_SLICE_SCHEMA)

    def blocks(self) -> pa.RecordBatch:
        """Return the blocks (`BLOCK_SCHEMA`) of the copies that the state refers to now."""
        found = sorted(
            each
            for topic, queue_id, queue in self._queues()
            for each in _blocks(queue, queue_id, topic.generation)
        )
        return _batch(found, BLOCK_SCHEMA)

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
        return _batch(found, QUEUE_SLICE_SCHEMA)

    def collect_erased(self) -> Erased:
        """Return what was erased in the entries that were added."""
        return Erased.of(rows_of(self._erases))

    @property
    def now_ms(self) -> int:
        """The log's time after these entries."""
        return self._state.now_ms

    def topics_left(self, chosen: Callable[[Topic], bool] = lambda _: True) -> list[int]:
        """Return the generations of the *chosen* topics that exist after all these entries."""
        return [each.generation for each in self._state.topics.all() if chosen(each)]

    def _apply(self, entry: Entry) -> Iterator[_QueueSlice]:
        if entry.index != self._state.applied_index + 1:
            raise LogIncomplete(entry.index, self._state.applied_index + 1)
        results = self._state.apply(entry)
        if entry.kind is EntryKind.DATA:
            for (start, end), result in zip(_frames(entry.data), results, strict=False):
                produced, inner = _find_appended(result, entry.data, start, end)
                if produced is not None:
                    for stored in self._stored(produced):
                        yield (entry.index, inner, end, *stored, produced.generation)
                elif isinstance(result, EraseResult):
                    command = Erase.decode(entry.data, start, end)
                    self._erases.append((entry.index, entry.timestamp_ms, command))

    def _stored(self, produced: Produced) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first row, rows, queue id, first offset) of the messages that are new.

        What is held is in no queue until it is released: by a copy.
        """
        count, topic = len(produced.offsets), produced.generation
        if produced.stored == count and produced.queue_ids[0] != HELD_QUEUE:
            queue_id, first = produced.queue_ids[0], produced.offsets[0]
            self._ends[topic, queue_id] = first + count
            yield 0, count, queue_id, first
            return
        offsets = zip(produced.queue_ids, produced.offsets, strict=True)
        for row, (queue_id, offset) in enumerate(offsets):
            if queue_id != HELD_QUEUE and offset >= self._ends.get((topic, queue_id), 0):
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
    above the last index that is asked for have not happened yet. What *state* refers to as a copy
    is shown by that copy, what was copied later where it was stored.

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
    held, kept, applied_index = offsets.held(), offsets.blocks(), offsets.applied_index
    found = [(each, _slices(each, offsets, held, selection.last_index)) for each in ranges]
    if not found:
        return
    if topics is None:
        topics = offsets.topics_left(lambda each: selection.topic in (None, each.name))
    if selection.first_index > applied_index:
        kept = kept.slice(0, 0)  # of older messages only
    else:
        kept = _with_moved(kept, held, offsets.blocks(), found[0][0].first_index)
    blocks, erased = selection.of_blocks(kept, topics), offsets.collect_erased()
    for each, slices in found:
        wanted = selection.of_slices(slices, topics)
        if not overlap(each.bounds, selection.of_entries()):
            wanted = wanted.slice(0, 0)
        copies = KeptRows(blocks=between(blocks, each.first_index, each.last_index))
        yield MessageRange(each, wanted, selection, copies).without(erased)


def all_places(
    ranges: Iterable[EntryRange], state: BrokerState | None, last_index: int
) -> Iterator[pa.RecordBatch]:
    """Yield the places (`QUEUE_SLICE_SCHEMA`) of all messages up to an entry, in parts.

    Those that *state* refers to where they were stored, and all that was stored behind it, whatever
    became of it and of its topic later.

    Args:
        ranges: See `message_ranges`; several may have the same entry.
        state: Likewise.
        last_index: No later entry is read.

    Raises:
        LogIncomplete, CorruptRecord, PipelineError: Like `message_ranges`.
    """
    offsets = QueueOffsets(state)
    yield offsets.held()
    for each in ranges:
        if offsets.applied_index < min(each.last_index, last_index):
            yield _slices(each, offsets, _batch((), QUEUE_SLICE_SCHEMA), last_index)


def visible_ranges(
    ranges: Iterable[EntryRange],
    state: BrokerState | None,
    chosen: Callable[[Topic], bool],
    *,
    last_index: int,
    last_ms: int,
) -> list[MessageRange]:
    """Return *ranges* with the messages that consumers can get after the last of their entries.

    Args:
        ranges: See `message_ranges`.
        state: Likewise.
        chosen: Whether a topic's messages are asked for.
        last_index: No later entry has happened.
        last_ms: Nor one from the first on that has a later timestamp.

    Raises:
        LogIncomplete, CorruptRecord, PipelineError: Like `message_ranges`.
        InvalidArgument: *state* is of a later entry.
    """
    offsets, read = QueueOffsets(state), []
    if offsets.applied_index > last_index or offsets.now_ms > last_ms:
        raise InvalidArgument(
            "what was visible then is not known any more: the oldest state that is there is of "
            f"entry {offsets.applied_index}"
        )
    for each in ranges:
        read.append(each)
        if not _add_until(offsets, each, last_index, last_ms):
            break
    topics = offsets.topics_left(chosen=chosen)
    held = EVERYTHING.of_slices(offsets.held(), topics)
    kept = EVERYTHING.of_blocks(offsets.blocks(), topics)
    return [
        MessageRange(
            each,
            between(held, each.first_index, each.last_index),
            kept=KeptRows(blocks=between(kept, each.first_index, each.last_index)),
        )
        for each in read
    ]


def _add_until(offsets: QueueOffsets, each: EntryRange, last_index: int, last_ms: int) -> bool:
    """Add what is not added yet of a range; return False if the log ends in it."""
    first_index = offsets.applied_index + 1
    if first_index > each.last_index:
        return True
    behind = partial(overlap, {"index": (first_index, last_index)})
    for batch in within(each.read(behind, _APPLIED), first_index, last_index):
        late = np.flatnonzero(np.asarray(batch.column("timestamp_ms")) > last_ms)
        if len(late):
            offsets.add(batch.slice(0, late[0]))
            return False
        offsets.add(batch)
    return each.last_index < last_index


def _with_moved(
    kept: pa.RecordBatch, held: pa.RecordBatch, now: pa.RecordBatch, first_index: int
) -> pa.RecordBatch:
    """Return the blocks *kept*, and where those are by *now* that lay below *first_index*.

    A node's log may begin behind what its snapshot refers to, as a restored one's does: everything
    there, *held* or in a block, was copied once more by then, or dropped.
    """
    copied = pc.is_in(held.column("generation"), now.column("generation"))
    below = pc.and_(copied, pc.less(held.column("index"), first_index))
    lost: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in held.filter(below).to_pylist():
        end = row["first_offset"] + row["rows"]
        lost.setdefault(_queue_of(row), []).append((row["first_offset"], end))
    for row in kept.filter(pc.less(kept.column("index"), first_index)).to_pylist():
        offsets = row["first_offset"], row["end_offset"]
        lost.setdefault(_queue_of(row), []).append(offsets)
    if not lost:
        return kept
    moved = [
        {**row, "first_offset": max(low, row["first_offset"]), "end_offset": min(high, end)}
        for row in now.to_pylist()
        for end in [row["end_offset"]]
        for low, high in lost.get(_queue_of(row), ())
        if low < end and row["first_offset"] < high
    ]
    there = kept.filter(pc.greater_equal(kept.column("index"), first_index))
    found = pa.concat_batches([there, pa.RecordBatch.from_pylist(moved, BLOCK_SCHEMA)])
    return found.sort_by([("index", "ascending"), ("start", "ascending")])


def _queue_of(row: Mapping[str, int]) -> tuple[int, int]:
    return row["generation"], row["queue_id"]


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
    for first, length, row, index, start, end in queue.stretches(queue.log_first):
        yield (index, start, end, row, length, queue_id, first, generation)


def _blocks(queue: ConsumeQueue, queue_id: int, generation: int) -> Iterator[_Block]:
    """Yield the blocks of a queue, ascending by offset."""
    for each in queue.blocks or ():
        place = (each.entry, each.start, each.stop, each.length)
        span = each.first, each.end
        for first, end in [span] if queue.erased is None else queue.erased.pieces(*span):
            yield (*place, queue_id, first, end, generation)


def _find_appended(
    result: object, data: bytes, start: int, end: int
) -> tuple[Produced | None, int]:
    """Return what a command has appended to queues, if any, and where its messages begin."""
    if isinstance(result, DeadLettered):
        return result.stored, DeadLetter(data, start, end).inner
    if isinstance(result, HeldReleased):
        return result.stored, ReleaseHeld(data, start, end).inner
    return result if isinstance(result, Produced) else None, start


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the payloads of an entry's commands lie, up to one that is cut short."""
    try:
        for _, start, end in split(data):
            yield start, end
    except MalformedCommandError:
        return


def _batch(rows: Sequence[tuple[int, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
