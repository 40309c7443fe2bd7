"""What a topic keeps for longer than its group, copied forward before it is dropped: pure.

`next_roll` finds, on the event loop and in a short turn, which messages of a queue come next;
`rekeep_of` makes a REKEEP of them, from entries that a thread reads. Small blocks are written anew
together with their neighbours, so that there are no more of them after a year than after a day.
What is due is said by `roller`, for retention, and by `compacting`, for a compacted topic; `copier`
calls both functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.kept_blocks import MAX_ROWS, KeptBlock
from dledger.broker.message import Columns, Message, id_of_place
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_part import QueuePart
from dledger.broker.queue_positions import Stretch
from dledger.broker.rekeep import REKEPT, Kept, Origin, alone_since, origins
from dledger.broker.topics import Topic
from dledger.common.offset_set import OffsetSet
from dledger.types import MAX_NUMBER, Entry

MAX_BYTES: Final = 1 << 20
"""Of the messages of one REKEEP; a single message may be larger."""
_NEIGHBOUR: Final = 2
"""A neighbour is taken along if it has at most this many times the rows,"""
_FEW: Final = 16
"""and is due soon, or has at most so many: a block costs about as much state as these."""
_SOON: Final = 8
"""Due soon is this part of what the log has."""
_MAX_LOOKED_AT: Final = 2 * MAX_ROWS
"""Rows of blocks, and slices of the log, that are looked at for one REKEEP, however few stay."""

Stays: TypeAlias = Callable[[int, Origin], bool]
"""Whether a message stays, by its queue offset and what it had when it was stored."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Tombstones that were found to be the only messages of their keys.

    Attributes:
        offsets: Which.
        since_ms: Since when that is known, Unix milliseconds of the log.
    """

    offsets: OffsetSet = field(default_factory=lambda: OffsetSet(0, 0))
    since_ms: int = 0


_NONE_ALONE: Final = Alone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What of a queue is to be copied, and what of that goes.

    Attributes:
        is_block: Whether a block is.
        before, to: The log's messages are, from their front on, in entries below *before* and at
            offsets below *to*.
        soon: Neighbours in entries below it go along, since they are due soon: writing a young one
            anew costs as much as what it would have cost later, and that once more.
        goes: Those that are known to go: they take no room in a REKEEP. `rekeep_of` is told, too.
        gone_of: How many rows of a block that are: only of blocks that have some.
        alone: Those of which a copy is to say so. `rekeep_of` is told, too.
    """

    is_block: Callable[[KeptBlock], bool]
    before: int
    soon: int
    to: int = MAX_NUMBER
    goes: OffsetSet = field(default_factory=lambda: OffsetSet(0, 0))
    gone_of: Mapping[KeptBlock, int] = field(default_factory=dict)
    alone: Alone = _NONE_ALONE

    @classmethod
    def below(cls, index: int, *, soon: int = MAX_NUMBER) -> Due:
        """Return that all is due that lies in entries below *index*; its neighbours go along."""
        return cls(is_block=lambda block: block.entry < index, before=index, soon=soon)

    def left_of(self, block: KeptBlock) -> int:
        """Return how many rows of a block do not go."""
        return block.length - self.gone_of.get(block, 0)

    def left_bytes(self, block: KeptBlock) -> int:
        """Return about how many bytes these take."""
        return block.size_bytes * self.left_of(block) // block.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """Queue offsets ``[first, to)`` whose messages are to be copied.

    Attributes:
        topic, queue_id: Whose they are.
        first, to: What is decided. Behind *log_first* it may end earlier, where it gets too large.
        log_first: Where the log's runs begin.
        stretches: Where the messages are.
    """

    topic: Topic
    queue_id: int
    first: int
    to: int
    log_first: int
    stretches: tuple[Stretch, ...]


def soon_due(index: int, last_index: int) -> int:
    """Return below which entry is due soon what is not yet, if what lies below *index* is now."""
    return index + max(0, last_index - index) // _SOON


def next_roll(topic: Topic, queue_id: int, queue: ConsumeQueue, due: Due) -> Roll | None:
    """Return what is copied next of what is *due*; None: nothing is."""
    blocks = tuple(queue.blocks or ())
    at = next((at for at, block in enumerate(blocks) if due.is_block(block)), None)
    if at is not None:
        rows, size_bytes = due.left_of(blocks[at]), due.left_bytes(blocks[at])
        low, high = _together(blocks, at, at + 1, due, rows=rows, size_bytes=size_bytes)
        first, to = blocks[low].first, blocks[high - 1].end
    else:
        to, rows, size_bytes = _of_log(queue, due)
        if to == queue.log_first:
            return None
        count = len(blocks)
        low, _ = _together(blocks, count, count, due, rows=rows, size_bytes=size_bytes)
        first = blocks[low].first if low < len(blocks) else queue.log_first
    return Roll(
        topic=topic,
        queue_id=queue_id,
        first=first,
        to=to,
        log_first=queue.log_first,
        stretches=tuple(_within(queue, first, to, due.goes)),
    )


def _together(
    blocks: Sequence[KeptBlock], low: int, high: int, due: Due, *, rows: int, size_bytes: int
) -> tuple[int, int]:
    """Return [low, high) with those neighbours that are not much larger than what there is."""
    looked_at = sum(block.length for block in blocks[low:high])
    while True:
        for at in (low - 1, high):
            if not 0 <= at < len(blocks):
                continue
            left, left_bytes = due.left_of(blocks[at]), due.left_bytes(blocks[at])
            if (
                left <= _NEIGHBOUR * rows
                and (left <= _FEW or blocks[at].entry < due.soon)
                and rows + left <= MAX_ROWS
                and size_bytes + left_bytes <= MAX_BYTES
                and looked_at + blocks[at].length <= _MAX_LOOKED_AT
            ):
                rows, size_bytes = rows + left, size_bytes + left_bytes
                looked_at += blocks[at].length
                low, high = min(low, at), max(high, at + 1)
                break
        else:
            return low, high


def _of_log(queue: ConsumeQueue, due: Due) -> tuple[int, int, int]:
    """Return the end of the log's next messages that are due, how many stay, and their size."""
    rows = size_bytes = 0
    to, last = queue.log_first, None
    for seen, each in enumerate(queue.stretches(queue.log_first)):
        if (
            each.entry >= due.before
            or each.first >= due.to
            or rows >= MAX_ROWS
            or size_bytes >= MAX_BYTES
            or seen >= _MAX_LOOKED_AT
        ):
            break
        length = min(each.length, due.to - each.first)
        left = length - due.goes.count(each.first, each.first + length)
        if rows + left > MAX_ROWS:
            length = left = min(length, MAX_ROWS - rows)
        rows, to = rows + left, each.first + length
        size_bytes += 0 if last == each[3:] else (each.end - each.start) * left // each.length
        last = each[3:]
    return to, rows, size_bytes


def _within(queue: ConsumeQueue, first: int, to: int, goes: OffsetSet) -> Sequence[Stretch]:
    """Return where the messages of ``[first, to)`` are, without slices of which all go."""
    found: list[Stretch] = []
    for each in queue.stretches(max(first, queue.first)):
        if each.first >= to:
            break
        length = min(each.length, to - each.first)
        if goes.count(each.first, each.first + length) < length:
            found.append(each._replace(length=length))
    return found


def rekeep_of(
    roll: Roll, read: Callable[[int], Entry], stays: Stays, alone: Alone = _NONE_ALONE
) -> tuple[bytes, int]:
    """Return the framed REKEEP, and how many messages it copies. May be called from any thread.

    Args:
        roll: What is copied.
        read: Returns an entry.
        stays: Whether a message is copied; others go.
        alone: Of which of them the copy says, from now on, that they are lone tombstones. What an
            older copy says of one, this one says again.

    Raises:
        DledgerError: An entry cannot be read.
    """
    messages, offsets, found = list[Message](), list[int](), list[Origin]()
    marks = dict[int, int]()
    size_bytes, to, payload = 0, roll.to, None
    for first, length, row, index, start, end in roll.stretches:
        if size_bytes >= MAX_BYTES and first >= roll.log_first:
            to = first
            break
        if payload is None or payload.place != (index, start):
            if payload is None or payload.entry.index != index:
                entry = read(index)
            payload = _Payload(entry, start, end)
        for number in range(length):
            if size_bytes >= MAX_BYTES and first + number >= roll.log_first:
                to = first + number
                break
            origin = payload.origin(row + number)
            if not stays(first + number, origin):
                continue
            message = payload.message(row + number)
            if message is None:
                continue
            if row + number in payload.alone:
                marks[len(messages)] = payload.alone[row + number]
            messages.append(message)
            offsets.append(first + number)
            found.append(origin)
            size_bytes += len(message.body)
        else:
            continue
        break
    kept = Kept(
        topic=roll.topic.name,
        generation=roll.topic.generation,
        queue_id=roll.queue_id,
        first=roll.first,
        to=to,
        offsets=offsets,
        origins=found,
        messages=Columns.of(messages) if messages else None,
        alone=_with_new(marks, offsets, alone),
    )
    return kept.encode(), len(offsets)


def _with_new(marks: Mapping[int, int], offsets: Sequence[int], alone: Alone) -> dict[int, int]:
    """Return *marks*, by row, ascending, with those of *offsets* that are found to be alone."""
    if not len(alone.offsets):
        return dict(marks)
    new = {row: alone.since_ms for row, offset in enumerate(offsets) if offset in alone.offsets}
    return dict(sorted({**new, **marks}.items()))


class _Payload:
    """A payload of messages in an entry: each slice of a block with gaps is in the same one."""

    def __init__(self, entry: Entry, start: int, end: int) -> None:
        self.entry, self.place = entry, (entry.index, start)
        self._frame = ProduceFrame(entry.data, start, end)
        is_copy = entry.data[start - 1] == REKEPT
        self._theirs = origins(entry, start, end) if is_copy else None
        self.alone = alone_since(entry, start, end) if is_copy else {}
        self._mine = Origin(entry.index, entry.timestamp_ms, self._frame.born_host)

    def origin(self, row: int) -> Origin:
        """Return what a message had when it was stored."""
        return self._mine if self._theirs is None else self._theirs[row]

    def message(self, row: int) -> Message | None:
        """Return a message, with an id; None if it cannot be decoded: then nobody ever got it."""
        try:
            message = self._frame.message(row)
        except MalformedCommandError:
            return None
        if message.message_id:
            return message
        return replace(message, message_id=id_of_place(*self.place, row))


def past_blocks(
    topic: Topic, queue_id: int, queue: ConsumeQueue, is_past: Callable[[int], bool]
) -> bytes | None:
    """Return the REKEEP that drops the first blocks that have been kept for long enough, if any."""
    blocks = tuple(queue.blocks or ())
    low = next((at for at, block in enumerate(blocks) if is_past(block.newest_ms)), None)
    if low is None:
        return None
    high = low + 1
    while high < len(blocks) and is_past(blocks[high].newest_ms):
        high += 1
    return Kept(
        topic=topic.name,
        generation=topic.generation,
        queue_id=queue_id,
        first=blocks[low].first,
        to=blocks[high - 1].end,
    ).encode()


def effective_hours(own: int, of_group: int) -> int:
    """Return how long a topic's messages are kept: never shorter than the group's; 0: for ever."""
    return 0 if own == 0 or of_group == 0 else max(own, of_group)


def held_bytes(parts: Sequence[QueuePart]) -> int:
    """Return about how many bytes of the log these messages take. May be called from any thread."""
    size_bytes = 0
    for part in parts:
        last = None
        for columns in part.columns():
            places = zip(columns.indexes, columns.starts, columns.ends, strict=True)
            for index, start, end in places:
                size_bytes += 0 if last == (index, start) else end - start
                last = (index, start)
    return size_bytes
