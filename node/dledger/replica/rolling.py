"""What a topic keeps for longer than its group, copied forward before it is dropped: pure.

`next_roll` finds, on the event loop and in a short turn, which messages of a queue come next;
`rekeep_of` makes a REKEEP of them, from entries that a thread reads. Small blocks are written anew
together with their neighbours, so that there are no more of them after a year than after a day.
What is due is said by `roller`, for retention, and by `compacting`, for a compacted topic; `copier`
calls both functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
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
FEW: Final = 16
"""and is due soon, or has at most so many: a block costs about as much state as these."""
_SOON: Final = 8
"""Due soon is what lies in this part of the log, or has this part of half of its rows to lose."""
_BY_ONE: Final = 3
"""Up to so many messages of a payload are read one by one: that is as fast as by columns."""
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
        soon: Neighbours in entries below it go along, since they are due soon (as are those that
            have lost nearly half of their rows): writing a young one anew costs as much as what it
            would have cost later, and that once more.
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

    def is_soon(self, block: KeptBlock) -> bool:
        """Return whether a block that is not due will be soon."""
        return block.entry < self.soon or loses_half_soon(block, self.gone_of.get(block, 0))

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


def loses_half_soon(block: KeptBlock, gone: int) -> bool:
    """Return whether a block that loses so many rows will have lost half of them soon."""
    return 2 * _SOON * gone >= (_SOON - 1) * block.length


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
                and (left <= FEW or due.is_soon(blocks[at]))
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
            found.append(each if length == each.length else each._replace(length=length))
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
    copies, offsets, found = _Copies(), list[int](), list[Origin]()
    marks = dict[int, int]()
    size_bytes, to, entry = 0, roll.to, None
    for (index, start, end), stretches in groupby(roll.stretches, key=_place_of):
        if entry is None or entry.index != index:
            entry = read(index)
        payload, rows = _Payload(entry, start, end), dict[int, int]()
        for offset, row in _each_row(stretches):
            if size_bytes >= MAX_BYTES and offset >= roll.log_first:
                to = offset
                break
            if stays(offset, payload.origin(row)):
                rows[row] = offset
                size_bytes += payload.sizes[row]
        taken = copies.take(payload, [*rows])
        if payload.alone:
            places = enumerate(taken, len(offsets))
            marks |= {at: payload.alone[row] for at, row in places if row in payload.alone}
        offsets += [rows[row] for row in taken]
        found += map(payload.origin, taken)
        if to < roll.to:
            break
    kept = Kept(
        topic=roll.topic.name,
        generation=roll.topic.generation,
        queue_id=roll.queue_id,
        first=roll.first,
        to=to,
        offsets=offsets,
        origins=found,
        messages=copies.columns() if offsets else None,
        alone=_with_new(marks, offsets, alone),
    )
    return kept.encode(), len(offsets)


def _place_of(stretch: Stretch) -> tuple[int, int, int]:
    return stretch.entry, stretch.start, stretch.end


def _each_row(stretches: Iterable[Stretch]) -> Iterator[tuple[int, int]]:
    """Yield the queue offset and the row of each message."""
    for first, length, row, *_ in stretches:
        yield from zip(range(first, first + length), range(row, row + length), strict=True)


def _body_sizes(frame: ProduceFrame, size_bytes: int) -> Sequence[int]:
    """Return the bytes of each body; of one that is alone, or in a broken column, about."""
    if frame.count > 1:
        try:
            return frame.body_sizes()
        except MalformedCommandError:
            pass  # some rows can be decoded nevertheless
    return [size_bytes // frame.count] * frame.count


def _with_new(marks: Mapping[int, int], offsets: Sequence[int], alone: Alone) -> dict[int, int]:
    """Return *marks*, by row, ascending, with those of *offsets* that are found to be alone."""
    if not len(alone.offsets):
        return dict(marks)
    new = {row: alone.since_ms for row, offset in enumerate(offsets) if offset in alone.offsets}
    return dict(sorted({**new, **marks}.items()))


class _Payload:
    """A payload of messages in an entry: all slices of a block are in one.

    Attributes:
        sizes: See `_body_sizes`.
    """

    def __init__(self, entry: Entry, start: int, end: int) -> None:
        self._place = entry.index, start
        self._frame = ProduceFrame(entry.data, start, end)
        self.sizes = _body_sizes(self._frame, end - start)
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
        return replace(message, message_id=self._id(message.message_id, row))

    def columns(self, rows: Sequence[int]) -> Columns:
        """Return some messages, with ids. Raises MalformedCommandError: see `message`."""
        found = self._frame.columns(rows)
        ids = map(self._id, found.message_ids, rows)
        return replace(found, message_ids=[*ids])

    def _id(self, given: str, row: int) -> str:
        return given or id_of_place(*self._place, row)


class _Copies:
    """The messages of a REKEEP: by columns, but where a payload has few of them."""

    def __init__(self) -> None:
        self._parts, self._few = list[Columns](), list[Message]()

    def take(self, payload: _Payload, rows: Sequence[int]) -> Sequence[int]:
        """Add some messages of a payload, but for those that cannot be decoded; return the rows."""
        if len(rows) > _BY_ONE:
            try:
                found = payload.columns(rows)
            except MalformedCommandError:
                pass  # some can be decoded
            else:
                self._parts += self._columns_of_few(), found
                return rows
        messages = {row: message for row in rows if (message := payload.message(row)) is not None}
        self._few += messages.values()
        return [*messages]

    def _columns_of_few(self) -> Columns:
        few, self._few = self._few, []
        return Columns.of(few)

    def columns(self) -> Columns:
        """Return all of them."""
        return Columns.join([*self._parts, self._columns_of_few()])


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
