"""``Ledger.ReadBatches``: a queue's committed messages in the payloads they were produced in.

The client id is removed from each: with it, a reader could guess the producer's next message ids
and use them first (docs/adr/0020). A reader that asks for it gets neighbours that were produced by
few as one payload: what a payload costs by itself, here and there, is most of what reading single
messages costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.consume_queue import ConsumeQueue, Stretch
from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.joined_rows import Rows, joined_payload
from dledger.broker.produce import ProduceFrame, without_client_id
from dledger.broker.rekeep import REKEPT, Origin, origins
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
_BATCHES: Final = pb.ReadBatchesResponse.BATCHES_FIELD_NUMBER
_PAYLOAD: Final = pb.StoredBatch.PAYLOAD_FIELD_NUMBER


@dataclass(slots=True)
class QueueSlice:
    """Consecutive messages of a queue that were produced together.

    Not frozen: there is one for each message that was produced singly, and it is made in a third of
    the time.

    Attributes:
        first_offset: Queue offset of the first one.
        first_row: Its row in the payload.
        count: The number of messages.
        entry: The entry that holds the payload, at bytes [start, end) of its data.
        is_cut: Whether others of the payload may have been erased: then only its own are sent.
    """

    first_offset: int
    first_row: int
    count: int
    entry: Entry
    start: int
    end: int
    is_cut: bool = False

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
        """Return which entry stored each message, and when, if the payload is a REKEEP's."""
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
        self._planned: list[Stretch] = []
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
        if all that was planned has been erased since.
        """
        part: list[QueueSlice] = []
        held_bytes = 0
        if self._queue().erased is not self._erased:
            self._go_back(self._planned)
            self._plan()
        stretches, self._planned = self._planned, []
        self._read_ahead(stretches)
        for number, (first, count, row, index, start, end) in enumerate(stretches):
            if self._entry is None or self._entry.index != index:
                if held_bytes > _HELD_BYTES:
                    self._go_back(stretches[number:])
                    break
                self._entry = await self._engine.read_entry(index)
                held_bytes += self._entry.size_bytes
            is_cut = self._erased is not None
            part.append(QueueSlice(first, row, count, self._entry, start, end, is_cut))
        if stretches and stretches[0].end - stretches[0].start > _RESPONSE_BYTES:
            self.let_go()  # a payload this large is alone in its entry
        with suppress(UnknownTopic, OffsetOutOfRange):  # told when it is asked for
            self._read_ahead(self._plan())
            if self._planned and self._offset == self._queue().end:
                self._go_back(self._planned)  # more may have come until it is asked for
                self._planned = []
        return part

    def _read_ahead(self, stretches: Sequence[Stretch]) -> None:
        """Have the disk at work while the loop encodes and the client takes what is sent."""
        self._engine.read_ahead(list(dict.fromkeys([stretch.entry for stretch in stretches])))

    def _plan(self) -> list[Stretch]:
        """Find where the next part is, and go on behind it.

        Raises:
            UnknownTopic: See `check`.
            OffsetOutOfRange: Retention has dropped it.
        """
        stretches: list[Stretch] = []
        self._planned, self._erased = stretches, self._queue().erased
        if self._left == 0 or self._offset >= self._queue().end:
            return stretches
        size_bytes = 0
        self._check_is_left(self._offset)
        for stretch in self._queue().stretches(self._offset):
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

    def _go_back(self, stretches: Sequence[Stretch]) -> None:
        """Leave some stretches to the next part."""
        self._offset = stretches[0].first
        if self._left is not None:
            self._left += sum(stretch.length for stretch in stretches)


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
        for piece in (batch,) if batch is not None else map(_alone, part[at:end]):
            pieces += piece
        at = end
    rest = pb.ReadBatchesResponse(next_offset=_end_of(part[-1]), generation=generation)
    pieces.append(rest.SerializeToString())
    return b"".join(pieces)


def _alone(stretch: QueueSlice) -> tuple[bytes | memoryview, ...]:
    """Return one batch as it was produced, in pieces."""
    if stretch.entry.data[stretch.start - 1] == REKEPT:
        return _rekept(stretch)
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


def _cut(stretch: QueueSlice) -> tuple[bytes | memoryview, ...]:
    """Return one batch without the other rows of its payload, in pieces.

    A row that cannot be decoded is left out: nobody can be shown it, and the others have to go on.
    """
    try:
        payload = _own_rows(stretch, stretch.frame())
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


def _own_rows(stretch: QueueSlice, frame: ProduceFrame) -> bytes:
    """Return a payload with the rows of a slice only. Raises MalformedCommandError."""
    row = (stretch.entry.data, stretch.start, stretch.end, stretch.first_row, stretch.count)
    return joined_payload(frame.topic, frame.queue_id, [row])


def _rekept(stretch: QueueSlice) -> tuple[bytes | memoryview, ...]:
    """Return a batch that was copied since it was stored, in pieces.

    Of a block with gaps only the slice's own rows are sent: it may have thousands of slices.
    """
    frame, found = stretch.frame(), stretch.origins()
    payload = memoryview(stretch.entry.data)[stretch.start : stretch.end]
    if stretch.count < frame.count:
        payload = memoryview(_own_rows(stretch, frame))
    entries = [
        (len(list(rows)), *entry)
        for entry, rows in groupby((origin.entry, origin.stored_at_ms) for origin in found)
    ]
    counts, indexes, stored_at_ms = zip(*entries, strict=True)
    several = len(entries) > 1
    head = pb.StoredBatch(
        first_offset=stretch.first_offset,
        first_row=stretch.first_row if stretch.count == frame.count else 0,
        count=stretch.count,
        index=indexes[0],
        stored_at_ms=stored_at_ms[0],
        entry_counts=counts if several else (),
        entry_indexes=indexes if several else (),
        entry_stored_at_ms=stored_at_ms if several else (),
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
        if stretch.entry.data[stretch.start - 1] == REKEPT:
            break
        if end > start and stretch.is_cut and stretch.first_offset != _end_of(part[end - 1]):
            break
        end += 1
    return max(end, start + 1)


def _end_of(stretch: QueueSlice) -> int:
    return stretch.first_offset + stretch.count


def _joined(
    stretches: Sequence[QueueSlice], request: pb.ReadRequest
) -> tuple[bytes | memoryview, ...] | None:
    """Return several slices as one batch, in pieces; None if one cannot be decoded."""
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
