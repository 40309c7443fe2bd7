"""``Ledger.ReadBatches``: committed messages of a queue as the payloads they were produced in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from dledger.broker.consume_queue import ConsumeQueue
from dledger.errors import OffsetOutOfRange
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Entry

if TYPE_CHECKING:
    from dledger.rpc.gateway.gateway import Gateway

_RESPONSE_BYTES: Final = 1 << 20
_FOLLOW_POLL_S: Final = 5.0


class BatchReading:
    """One reader: walks a queue from payload to payload."""

    def __init__(self, gateway: Gateway, request: pb.ReadRequest) -> None:
        self._engine, self._arrivals = gateway.engine, gateway.arrivals
        self._request = request
        self._offset = request.start_offset
        self._left = request.max_records or None
        self._entry: Entry | None = None

    async def responses(self) -> AsyncIterator[pb.ReadBatchesResponse]:
        """Yield the queue's batches in order; at its end wait for more if the caller follows.

        A caller that follows may be ahead of this node, having read from one that applies faster.

        Raises:
            UnknownTopic: There is no such topic.
            OffsetOutOfRange: The queue does not begin there any more, or not yet.
        """
        beyond = self._offset > self._queue().end and not self._request.follow
        if self._offset < self._queue().first or beyond:
            queue = self._queue()
            raise OffsetOutOfRange(self._offset, first=queue.first, last=queue.end)
        while self._left is None or self._left > 0:
            if self._offset < self._queue().end:
                yield await self._response()
            elif self._request.follow:
                request = self._request
                await self._arrivals.wait(request.topic, request.queue_id, _FOLLOW_POLL_S)
            else:
                return

    def _queue(self) -> ConsumeQueue:
        return self._engine.state.topics.queue(self._request.topic, self._request.queue_id)

    async def _response(self) -> pb.ReadBatchesResponse:
        """Return the next batches: one at least, and about 1 MiB."""
        batches: list[pb.StoredBatch] = []
        size_bytes = 0
        while self._has_more() and size_bytes < _RESPONSE_BYTES:
            batches.append(await self._batch())
            size_bytes += len(batches[-1].payload)
        return pb.ReadBatchesResponse(batches=batches, next_offset=self._offset)

    def _has_more(self) -> bool:
        return self._offset < self._queue().end and (self._left is None or self._left > 0)

    async def _batch(self) -> pb.StoredBatch:
        place, count = self._queue().stretch(self._offset)
        payload = place.payload
        if self._entry is None or self._entry.index != payload.index:
            self._entry = await self._engine.read_entry(payload.index)
        if self._left is not None:
            count = min(count, self._left)
            self._left -= count
        first, self._offset = self._offset, self._offset + count
        return pb.StoredBatch(
            first_offset=first,
            first_row=place.row,
            count=count,
            index=payload.index,
            stored_at_ms=self._entry.timestamp_ms,
            payload=self._entry.data[payload.start : payload.end],
        )
