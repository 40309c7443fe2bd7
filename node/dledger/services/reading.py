"""``Ledger.ReadBatches``: a queue's committed messages in the payloads they were produced in.

The client id is removed from each: with it, a reader could guess the producer's next message ids
and use them first (docs/adr/0020). A reader that asks for it gets neighbours that were produced by
few as one payload: what a payload costs by itself, here and there, is most of what reading single
messages costs.

What was copied since it was stored lies in blocks, some of whose offsets are gone. A reader that
knows of gaps gets a block as it lies; any other a batch for each stretch without one, of its own
rows only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final, NamedTuple, TypeAlias

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.joined_rows import Rows, joined_payload
from dledger.broker.kept_blocks import KeptBlock, KeptBlocks
from dledger.broker.produce import ProduceFrame, without_client_id
from dledger.broker.queue_positions import Stretch
from dledger.broker.rekeep import Origin, origins
from dledger.broker.topics import Topic
from dledger.errors import OffsetOutOfRange, TopicMadeAnew, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.queue_followers import QueueFollowers
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix
from dledger.types import Entry

_RESPONSE_BYTES: Final = 1 << 20
_HELD_BYTES: Final = 16 << 20
"""Of the entries that a part lies in; one is always read."""
_FOLLOW_POLL_S: Final = 5.0
_FEW: Final = 8
_SMALL_BYTES: Final = 16 << 10
"""Payloads of which at most so many messages are the queue's, and of at most so many bytes, are
joined: of others a copy would cost more than it saves."""
_JOINED_ROWS: Final = 4_096
"""Slices of a part and messages of a joined payload, at most: they are found in one go."""
_CUT_ROWS: Final = 256
"""Rows of blocks that a part cuts out of their payloads, at most: that takes 8 ms of the loop."""
_BATCHES: Final = pb.ReadBatchesResponse.BATCHES_FIELD_NUMBER
_PAYLOAD: Final = pb.StoredBatch.PAYLOAD_FIELD_NUMBER


_Batch: TypeAlias = tuple[bytes | memoryview, ...]
"""One batch of a ReadBatchesResponse, in pieces."""


class KeptStretch(NamedTuple):
    """What is planned of a block: like a `Stretch`, but there may be gaps between the messages.

    Attributes:
        first, length, row, entry, start, end: See `Stretch`.
        offsets: The queue offset of each row of the payload.
    """

    first: int
    length: int
    row: int
    entry: int
    start: int
    end: int
    offsets: Sequence[int]


_Planned: TypeAlias = Sequence[Stretch | KeptStretch]


@dataclass(slots=True)
class QueueSlice:
    """Messages of a queue in consecutive rows of one payload.

    Not frozen: there is one for each message that was produced singly, and it is made in a third of
    the time.

    Attributes:
        first_offset: Queue offset of the first one.
        first_row: Its row in the payload.
        count: The number of messages.
        entry: The entry that holds the payload, at bytes [start, end) of its data.
        offsets: The queue offset of each row of the payload, if that is a REKEEP's: there may be
            gaps. None: as it was produced, so there are none.
        is_cut: Whether others of the payload may have been erased: then only its own are sent.
    """

    first_offset: int
    first_row: int
    count: int
    entry: Entry
    start: int
    end: int
    offsets: Sequence[int] | None = None
    is_cut: bool = False

    def own_offsets(self) -> Sequence[int]:
        """Return the queue offset of each message."""
        if self.offsets is None:
            return range(self.first_offset, self.first_offset + self.count)
        return self.offsets[self.first_row : self.first_row + self.count]

    @property
    def end_offset(self) -> int:
        """The queue offset behind the last one."""
        if self.offsets is None:
            return self.first_offset + self.count
        return self.offsets[self.first_row + self.count - 1] + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload, including rows of other queues."""
        return self.end - self.start

    def anonymous(self) -> tuple[bytes, memoryview]:
        """Return the payload without its client id, in two pieces."""
        return without_client_id(memoryview(self.entry.data)[self.start : self.end])

    def frame(self) -> ProduceFrame:
        """Return the payload, parsed."""
        return ProduceFrame(self.entry.data, self.start, self.end)

    def origins(self) -> list[Origin]:
        """Return which entry stored each message, and when; the payload is a REKEEP's."""
        found = origins(self.entry, self.start, self.end)
        return found[self.first_row : self.first_row + self.count]


class BatchReading:
    """One reader: walks a queue from payload to payload."""

    def __init__(
        self, engine: Engine, queue_followers: QueueFollowers, request: pb.ReadRequest
    ) -> None:
        self._engine, self._queue_followers = engine, queue_followers
        self._request = request
        self._topic: Topic | None = None
        self._offset = request.start_offset
        self._left = request.max_records or None
        self._planned: _Planned = []
        self._erased: ErasedOffsets | None = None
        self._entry: Entry | None = None

    def check(self) -> None:
        """Check that the queue can be read from there.

        A following reader may be ahead of this node, if it read from one that applies faster.

        Raises:
            UnknownTopic: There is no such topic, or it was deleted meanwhile.
            TopicMadeAnew: It is not the one that the request names by its generation.
            OffsetOutOfRange: The offset was dropped, or is beyond the queue's end.
        """
        beyond = self._offset > self._queue().end and not self._request.follow
        if self._offset < self._queue().first or beyond:
            queue = self._queue()
            raise OffsetOutOfRange(self._offset, first=queue.first, last=queue.end)

    async def next_bytes(self) -> int:
        """Wait for the next part; return the room that it needs, or 0 at the end."""
        while not (self._planned or self._plan()):
            if self._left == 0 or not self._request.follow:
                return 0
            self.let_go()
            request = self._request
            await self._queue_followers.wait(request.topic, request.queue_id, _FOLLOW_POLL_S)
        first = self._planned[0]
        self._check_is_left(first.first)  # retention may have dropped it since it was planned
        return max(_RESPONSE_BYTES, first.end - first.start)

    def _queue(self) -> ConsumeQueue:
        topics, name = self._engine.state.topics, self._request.topic
        found = topics.named(name)
        self._topic = self._topic or found
        asked = self._request.generation or self._topic.generation
        if found.generation != asked:
            raise TopicMadeAnew(name)
        return topics.queue(name, self._request.queue_id)

    def _check_is_left(self, offset: int) -> None:
        """Raise OffsetOutOfRange if retention has come so far; a gap that is kept is none."""
        queue = self._queue()
        if offset < queue.first:
            raise OffsetOutOfRange(offset, first=queue.first, last=queue.end)

    @property
    def generation(self) -> int:
        """Which topic of that name is read, once it was checked."""
        return self._topic.generation if self._topic is not None else 0

    def let_go(self) -> None:
        """Release the cached entry, so that a waiting reader holds no memory."""
        self._entry = None

    async def part(self) -> list[QueueSlice]:
        """Return the next batches in order: one, or several of together at most 1 MiB.

        Fewer if they lie in large entries of other queues' messages, which are held meanwhile. None
        if all that was planned has been erased since, or copied elsewhere: that is planned again.
        """
        part: list[QueueSlice] = []
        held_bytes = 0
        if self._queue().erased is not self._erased:
            self._go_back(self._planned)
            self._plan()
        stretches, self._planned = self._planned, []
        self._read_ahead(stretches)
        for number, stretch in enumerate(stretches):
            first, count, row, index, start, end = stretch[:6]
            if self._entry is None or self._entry.index != index:
                entry = None if held_bytes > _HELD_BYTES else await self._read(index)
                if entry is None:
                    self._go_back(stretches[number:])
                    break
                self._entry = entry
                held_bytes += entry.size_bytes
            offsets = stretch.offsets if isinstance(stretch, KeptStretch) else None
            is_cut = self._erased is not None
            part.append(QueueSlice(first, row, count, self._entry, start, end, offsets, is_cut))
        if stretches and stretches[0].end - stretches[0].start > _RESPONSE_BYTES:
            self.let_go()  # a payload this large is alone in its entry
        with suppress(UnknownTopic, OffsetOutOfRange):  # told when it is asked for
            self._read_ahead(self._plan())
            if self._planned and self._offset == self._queue().end:
                self._go_back(self._planned)  # more may have come until it is asked for
                self._planned = []
        return part

    async def _read(self, index: int) -> Entry | None:
        """Return an entry; None if retention has come so far since it was planned.

        Its messages went then, or lie elsewhere: a topic that keeps them longer copies them first.
        """
        try:
            return await self._engine.read_entry(index)
        except OffsetOutOfRange:
            lowest = self._queue().lowest_index
            if lowest is not None and lowest <= index:
                raise
            return None

    def _read_ahead(self, stretches: _Planned) -> None:
        """Have the disk at work while the loop encodes and the client takes what is sent."""
        self._engine.read_ahead(list(dict.fromkeys([stretch.entry for stretch in stretches])))

    def _plan(self) -> _Planned:
        """Find where the next part is, and go on behind it.

        Raises:
            UnknownTopic: See `check`.
            OffsetOutOfRange: Retention has dropped it.
        """
        self._planned, queue = [], self._queue()
        self._erased = queue.erased
        if self._left == 0 or self._offset >= queue.end:
            return self._planned
        self._check_is_left(self._offset)
        if queue.blocks is not None and self._offset < queue.log_first:
            self._planned = self._of_blocks(queue.blocks)
        if not self._planned:
            self._planned = self._of_log(queue)
        return self._planned

    def _of_log(self, queue: ConsumeQueue) -> list[Stretch]:
        stretches: list[Stretch] = []
        size_bytes = 0
        for stretch in queue.stretches(max(self._offset, queue.log_first)):
            size_bytes += stretch.end - stretch.start
            if stretches and size_bytes > _RESPONSE_BYTES:
                break
            length = stretch.length if self._left is None else min(stretch.length, self._left)
            if self._left is not None:
                self._left -= length
            whole = length == stretch.length
            stretches.append(stretch if whole else stretch._replace(length=length))
            self._offset = stretch.first + length
            if self._left == 0 or len(stretches) == _JOINED_ROWS:
                break
        return stretches

    def _of_blocks(self, blocks: KeptBlocks) -> list[KeptStretch]:
        """Plan blocks; each counts as its payload, however many gaps there are."""
        stretches: list[KeptStretch] = []
        size_bytes = cut_rows = 0
        for block, row, rows in _left_of_blocks(blocks, self._offset, self._erased):
            if not stretches or stretches[-1].entry != block.entry:
                size_bytes += block.size_bytes
            if stretches and size_bytes > _RESPONSE_BYTES:
                break
            length = rows if self._left is None else min(rows, self._left)
            if length < block.length or (block.gaps and not self._request.with_gaps):
                length = min(length, _CUT_ROWS - cut_rows)
                cut_rows += length
            if self._left is not None:
                self._left -= length
            offsets, place = block.offsets(), (block.entry, block.start, block.stop)
            stretches.append(KeptStretch(offsets[row], length, row, *place, offsets))
            self._offset = offsets[row + length - 1] + 1
            if self._left == 0 or cut_rows == _CUT_ROWS or len(stretches) == _JOINED_ROWS:
                break
        return stretches

    def _go_back(self, stretches: _Planned) -> None:
        """Leave some stretches to the next part."""
        self._offset = stretches[0].first
        if self._left is not None:
            self._left += sum(stretch.length for stretch in stretches)


def _left_of_blocks(
    blocks: KeptBlocks, offset: int, erased: ErasedOffsets | None
) -> Iterator[tuple[KeptBlock, int, int]]:
    """Yield blocks from *offset* on: a row and how many, cut where some were erased."""
    for block, row in blocks.blocks(offset):
        if erased is None:
            yield block, row, block.length - row
            continue
        offsets = block.offsets()
        for first, end in erased.pieces(offsets[row], block.end):
            low, high = bisect_left(offsets, first), bisect_left(offsets, end)
            if low < high:
                yield block, low, high - low


def encoded(
    part: Sequence[QueueSlice], request: pb.ReadRequest | None = None, *, generation: int = 0
) -> bytes:
    """Return the ReadBatchesResponse with these batches of a topic.

    Each payload is copied only once, except those that *request* asks to be joined.
    """
    pieces: list[bytes | memoryview] = []
    at = 0
    while at < len(part):
        end = _end_of_few(part, at) if request is not None and request.joined else at + 1
        batch = _joined(part[at:end], request) if request is not None and end > at + 1 else None
        if batch is not None:
            pieces += batch
        elif part[at].offsets is not None:
            with_gaps = request is not None and request.with_gaps
            for batch in _encode_kept(part[at], with_gaps=with_gaps):
                pieces += batch
        else:
            for stretch in part[at:end]:
                pieces += _alone(stretch)
        at = end
    rest = pb.ReadBatchesResponse(next_offset=part[-1].end_offset, generation=generation)
    pieces.append(rest.SerializeToString())
    return b"".join(pieces)


def _alone(stretch: QueueSlice) -> _Batch:
    """Return one batch as it was produced, but for rows beside it that may have been erased."""
    if stretch.is_cut and stretch.count < stretch.frame().count:
        return _cut(stretch)
    head = pb.StoredBatch(
        first_offset=stretch.first_offset,
        first_row=stretch.first_row,
        count=stretch.count,
        index=stretch.entry.index,
        stored_at_ms=stretch.entry.timestamp_ms,
    ).SerializeToString()
    fixed, rest = stretch.anonymous()
    head += length_prefix(_PAYLOAD, len(fixed) + len(rest)) + fixed
    return length_prefix(_BATCHES, len(head) + len(rest)), head, rest


def _cut(stretch: QueueSlice) -> _Batch:
    """Return one batch without the other rows of its payload, in pieces.

    A row that cannot be decoded is left out: nobody can be shown it, and the others have to go on.
    """
    try:
        payload = _own_payload(stretch, stretch.first_row, stretch.count)
    except MalformedCommandError:
        rows = range(stretch.count if stretch.count > 1 else 0)
        first, row = stretch.first_offset, stretch.first_row
        each = (replace(stretch, first_offset=first + n, first_row=row + n, count=1) for n in rows)
        return tuple(chain.from_iterable(map(_cut, each)))
    head = pb.StoredBatch(
        first_offset=stretch.first_offset,
        count=stretch.count,
        index=stretch.entry.index,
        stored_at_ms=stretch.entry.timestamp_ms,
    ).SerializeToString()
    head += length_prefix(_PAYLOAD, len(payload))
    return length_prefix(_BATCHES, len(head) + len(payload)), head, payload


def _own_payload(stretch: QueueSlice, row: int, count: int) -> bytes:
    """Return a payload with some rows of a slice's only. Raises MalformedCommandError."""
    frame = stretch.frame()
    rows = (stretch.entry.data, stretch.start, stretch.end, row, count)
    return joined_payload(frame.topic, frame.queue_id, [rows])


def _encode_kept(stretch: QueueSlice, *, with_gaps: bool) -> Iterator[_Batch]:
    """Yield what was copied since it was stored: one batch, or one for each stretch without gaps.

    A payload has the rows of its batch only: a block of which each second offset is gone has two
    thousand stretches.
    """
    offsets, found, frame = stretch.own_offsets(), stretch.origins(), stretch.frame()
    bounds = [(0, len(offsets))] if with_gaps else _without_gaps(offsets)
    for low, high in bounds:
        payload = memoryview(stretch.entry.data)[stretch.start : stretch.end]
        if high - low < frame.count:
            payload = memoryview(_own_payload(stretch, stretch.first_row + low, high - low))
        yield _kept_batch(offsets[low:high], found[low:high], payload)


def _without_gaps(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where stretches of consecutive offsets begin and end."""
    low = 0
    for high in range(1, len(offsets) + 1):
        if high == len(offsets) or offsets[high] != offsets[high - 1] + 1:
            yield low, high
            low = high


def _kept_batch(offsets: Sequence[int], found: Sequence[Origin], payload: memoryview) -> _Batch:
    """Return the batch of a payload, all of whose rows are meant."""
    entries = [
        (len(list(rows)), *entry)
        for entry, rows in groupby((origin.entry, origin.stored_at_ms) for origin in found)
    ]
    counts, indexes, stored_at_ms = zip(*entries, strict=True)
    several = len(entries) > 1
    has_gaps = offsets[-1] - offsets[0] >= len(offsets)
    head = pb.StoredBatch(
        first_offset=offsets[0],
        count=len(offsets),
        index=indexes[0],
        stored_at_ms=stored_at_ms[0],
        entry_counts=counts if several else (),
        entry_indexes=indexes if several else (),
        entry_stored_at_ms=stored_at_ms if several else (),
        offsets=offsets if has_gaps else (),
    ).SerializeToString()
    head += length_prefix(_PAYLOAD, len(payload))
    return length_prefix(_BATCHES, len(head) + len(payload)), head, payload


def _end_of_few(part: Sequence[QueueSlice], start: int) -> int:
    """Return the end of the slices from *start* on that may be joined, at least one.

    A joined payload has no gaps.
    """
    end, rows = start, 0
    while end < len(part):
        stretch = part[end]
        rows += stretch.count
        if stretch.count > _FEW or stretch.size_bytes > _SMALL_BYTES or rows > _JOINED_ROWS:
            break
        if stretch.offsets is not None:
            break
        if end > start and stretch.is_cut and stretch.first_offset != part[end - 1].end_offset:
            break
        end += 1
    return max(end, start + 1)


def _joined(stretches: Sequence[QueueSlice], request: pb.ReadRequest) -> _Batch | None:
    """Return several slices as one batch; None if one cannot be decoded."""
    rows: list[Rows] = [(s.entry.data, s.start, s.end, s.first_row, s.count) for s in stretches]
    try:
        payload = joined_payload(request.topic, request.queue_id, rows)
    except MalformedCommandError:
        return None
    counts, entries = list[int](), list[Entry]()
    for stretch in stretches:
        if entries and entries[-1] is stretch.entry:
            counts[-1] += stretch.count
        else:
            entries.append(stretch.entry)
            counts.append(stretch.count)
    several = len(entries) > 1
    head = pb.StoredBatch(
        first_offset=stretches[0].first_offset,
        count=sum(counts),
        index=entries[0].index,
        stored_at_ms=entries[0].timestamp_ms,
        entry_counts=counts if several else (),
        entry_indexes=[entry.index for entry in entries] if several else (),
        entry_stored_at_ms=[entry.timestamp_ms for entry in entries] if several else (),
    ).SerializeToString()
    head += length_prefix(_PAYLOAD, len(payload))
    return length_prefix(_BATCHES, len(head) + len(payload)), head, payload
