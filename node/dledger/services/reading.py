"""``Ledger.ReadBatches``: committed messages of a queue as the payloads they were produced in.

The client id is left out of each: with it and a guess at the next ids a reader could take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dledger.broker.consume_queue import ConsumeQueue, Position
from dledger.broker.produce import ProduceFrame, without_client_id
from dledger.broker.topics import Topic
from dledger.errors import OffsetOutOfRange, UnknownTopic
from dledger.requests.context import RequestContext
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix
from dledger.types import Entry

_RESPONSE_BYTES: Final = 1 << 20
_FOLLOW_POLL_S: Final = 5.0
_BATCHES: Final = pb.ReadBatchesResponse.BATCHES_FIELD_NUMBER
_PAYLOAD: Final = pb.StoredBatch.PAYLOAD_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """Messages that follow each other in a queue and were produced together.

    Attributes:
        first_offset: Queue offset of the first one.
        first_row: Its row in the payload.
        count: How many there are.
        entry: What holds the payload, at bytes [start, end) of its data.
    """

    first_offset: int
    first_row: int
    count: int
    entry: Entry
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload, with the rows of other queues in it."""
        return self.end - self.start

    def anonymous(self) -> tuple[bytes, memoryview]:
        """Return the payload without its client id, in two pieces."""
        return without_client_id(memoryview(self.entry.data)[self.start : self.end])

    def frame(self) -> ProduceFrame:
        """Return the payload, to be looked into."""
        return ProduceFrame(self.entry.data, self.start, self.end)


class BatchReading:
    """One reader: walks a queue from payload to payload."""

    def __init__(self, context: RequestContext, request: pb.ReadRequest) -> None:
        self._engine, self._queue_followers = context.engine, context.queue_followers
        self._request = request
        self._topic: Topic | None = None
        self._offset = request.start_offset
        self._left = request.max_records or None
        self._entry: Entry | None = None
        self._ahead: tuple[Position, int] | None = None

    def check(self) -> None:
        """Check that the queue can be read from there.

        Who follows may be ahead of this node, having read from one that applies faster.

        Raises:
            UnknownTopic: There is no such topic, or it was deleted meanwhile.
            OffsetOutOfRange: The queue does not begin there any more, or not yet.
        """
        beyond = self._offset > self._queue().end and not self._request.follow
        if self._offset < self._queue().first or beyond:
            queue = self._queue()
            raise OffsetOutOfRange(self._offset, first=queue.first, last=queue.end)

    async def next_bytes(self) -> int:
        """Wait for the next part; return the room that it takes, or 0 if there is none."""
        while self._left is None or self._left > 0:
            if self._offset < self._queue().end:
                return max(_RESPONSE_BYTES, self._next_bytes())
            if not self._request.follow:
                break
            self.let_go()
            request = self._request
            await self._queue_followers.wait(request.topic, request.queue_id, _FOLLOW_POLL_S)
        return 0

    def _queue(self) -> ConsumeQueue:
        topics, name = self._engine.state.topics, self._request.topic
        self._topic = self._topic or topics.named(name)
        if not topics.is_there(self._topic):
            raise UnknownTopic(name)
        return topics.queue(name, self._request.queue_id)

    def let_go(self) -> None:
        """Keep nothing of the log while this waits."""
        self._entry = None

    async def part(self) -> list[QueueSlice]:
        """Return the next batches in order: one, or what is together at most 1 MiB."""
        part: list[QueueSlice] = []
        size_bytes = 0
        while self._has_more(size_bytes):
            part.append(await self._stretch())
            size_bytes += part[-1].size_bytes
        if size_bytes > _RESPONSE_BYTES:
            self.let_go()  # so large a payload has its entry for itself
        return part

    def _has_more(self, size_bytes: int) -> bool:
        if self._offset >= self._queue().end or self._left == 0:
            return False
        return not size_bytes or size_bytes + self._next_bytes() <= _RESPONSE_BYTES

    def _next_bytes(self) -> int:
        if self._ahead is None:
            self._ahead = self._queue().stretch(self._offset)
        payload = self._ahead[0].payload
        return payload.end - payload.start

    async def _stretch(self) -> QueueSlice:
        place, count = self._ahead or self._queue().stretch(self._offset)
        self._ahead, payload = None, place.payload
        if self._entry is None or self._entry.index != payload.index:
            self._entry = await self._engine.read_entry(payload.index)
        if self._left is not None:
            count = min(count, self._left)
            self._left -= count
        first, self._offset = self._offset, self._offset + count
        return QueueSlice(first, place.row, count, self._entry, payload.start, payload.end)


def encoded(part: Sequence[QueueSlice]) -> bytes:
    """Return the ReadBatchesResponse with these batches, in which each payload is copied once."""
    pieces: list[bytes | memoryview] = []
    for stretch in part:
        head = pb.StoredBatch(
            first_offset=stretch.first_offset,
            first_row=stretch.first_row,
            count=stretch.count,
            index=stretch.entry.index,
            stored_at_ms=stretch.entry.timestamp_ms,
        ).SerializeToString()
        fixed, rest = stretch.anonymous()
        head += length_prefix(_PAYLOAD, len(fixed) + len(rest)) + fixed
        pieces += (length_prefix(_BATCHES, len(head) + len(rest)), head, rest)
    next_offset = part[-1].first_offset + part[-1].count
    pieces.append(pb.ReadBatchesResponse(next_offset=next_offset).SerializeToString())
    return b"".join(pieces)
