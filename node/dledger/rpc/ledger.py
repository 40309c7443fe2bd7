"""``dledger.v1.Ledger``: batches in and out, without the cost of one call a message."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Final

import grpc

from dledger.broker.message import Columns, Message
from dledger.broker.produce import NO_QUEUE, ProduceFrame, encode_produce
from dledger.broker.results import Produced
from dledger.broker.topics import check_name
from dledger.channel import LEADER_KEY
from dledger.errors import DledgerError, InvalidArgument, OffsetOutOfRange
from dledger.rpc.batches import check_client_id
from dledger.rpc.checks import (
    born_at_ms,
    check_body_sizes,
    check_properties,
    check_tag,
    check_total,
)
from dledger.rpc.limits import MAX_ID_LENGTH, MAX_MESSAGES
from dledger.rpc.native import NativeHandlers, bug, parsed
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.producing import Producing
from dledger.types import Entry

logger = logging.getLogger(__name__)

SERVICE_NAME: Final = "dledger.v1.Ledger"
_READ: Final = "Ledger/Read"
_PRODUCE: Final = "Ledger/Produce"
_ELECTION_WAIT_S: Final = 1.0
_RESPONSE_RECORDS: Final = 1_024
_RESPONSE_BYTES: Final = 1 << 20
_FOLLOW_POLL_S: Final = 5.0


class LedgerHandlers(NativeHandlers):
    """The service at one port of a node."""

    def generic_handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        append = self._at_leader(f"/{SERVICE_NAME}/Append", pb.AppendRequest, self._append)
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Append": grpc.unary_unary_rpc_method_handler(append),
                "Produce": grpc.stream_stream_rpc_method_handler(self._produce),
                "Read": grpc.unary_stream_rpc_method_handler(self._read),
            },
        )

    async def _append(self, request: pb.AppendRequest) -> pb.AppendResponse:
        check_name("topic", request.topic)
        command = command_of(request)
        await self._gateway.catalog.topic(request.topic)
        stored = await self._engine.propose(command)
        if not isinstance(stored, Produced):
            raise TypeError(f"PRODUCE answered {stored!r}")
        return pb.AppendResponse(
            queue_id=stored.queue_ids[0], offsets=stored.offsets, index=stored.index
        )

    async def _produce(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            if self._engine.leader() is None:
                await self._engine.wait_leader_change(_ELECTION_WAIT_S)
            producing = Producing(self._gateway, lambda: self._answered(_PRODUCE))
            async for answers in producing.answers(requests):
                yield answers
        except DledgerError as error:
            await self._refuse(context, _PRODUCE, error, *self._leader_address())

    def _leader_address(self) -> Sequence[tuple[str, str]]:
        leader = self._engine.leader()
        known = (e for e in self._engine.endpoints() if leader and e.node_id == leader.id)
        return [(LEADER_KEY, f"{e.host}:{e.tls_port if self._tls else e.port}") for e in known]

    async def _read(self, raw: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            async for response in self._responses(parsed(pb.ReadRequest, raw)):
                yield response.SerializeToString()
            self._answered(_READ)
        except DledgerError as error:
            await self._refuse(context, _READ, error)
        except Exception as error:
            logger.exception("group %s: Read failed", self._engine.group)
            await self._refuse(context, _READ, bug(error))

    async def _responses(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        """Yield the queue's messages in order; at its end wait for more if the caller follows.

        A caller that follows may be ahead of this node, having read from one that applies faster.
        """
        queue = self._engine.state.topics.queue(request.topic, request.queue_id)
        beyond = request.start_offset > queue.end and not request.follow
        if request.start_offset < queue.first or beyond:
            raise OffsetOutOfRange(request.start_offset, first=queue.first, last=queue.end)
        offset, left = request.start_offset, request.max_records or None
        while left is None or left > 0:
            queue = self._engine.state.topics.queue(request.topic, request.queue_id)
            if offset < queue.end:
                limit = min(_RESPONSE_RECORDS, left or _RESPONSE_RECORDS)
                response = await self._response(request, offset, limit)
                offset = response.next_offset
                left = left - len(response.records) if left is not None else None
                yield response
            elif request.follow:
                await self._gateway.arrivals.wait(request.topic, request.queue_id, _FOLLOW_POLL_S)
            else:
                return

    async def _response(self, request: pb.ReadRequest, offset: int, limit: int) -> pb.ReadResponse:
        """Return the messages from *offset* on: at most *limit*, and about 1 MiB."""
        queue = self._engine.state.topics.queue(request.topic, request.queue_id)
        response = pb.ReadResponse()
        size_bytes = 0
        entry: Entry | None = None
        frame: ProduceFrame | None = None
        start = -1
        while offset < queue.end and len(response.records) < limit and size_bytes < _RESPONSE_BYTES:
            place = queue.locate(offset)
            payload = place.payload
            if entry is None or entry.index != payload.index:
                entry = await self._engine.read_entry(payload.index)
                frame = None
            if frame is None or start != payload.start:
                frame, start = ProduceFrame(entry.data, payload.start, payload.end), payload.start
            message = frame.message(place.row)
            response.records.append(_stored(message, offset=offset, entry=entry))
            size_bytes += len(message.body)
            offset += 1
        response.next_offset = offset
        return response


def command_of(request: pb.AppendRequest) -> bytes:
    """Return the PRODUCE command of a checked request, or raise Refused."""
    if not 1 <= len(request.records) <= MAX_MESSAGES:
        count = len(request.records)
        raise InvalidArgument(f"a batch has 1 to {MAX_MESSAGES} records, not {count}")
    check_client_id(request.client_id)
    return encode_produce(
        _checked_columns(request.records),
        client_id=request.client_id,
        topic=request.topic,
        queue_id=max(request.queue_id, NO_QUEUE),
    )


def _checked_columns(records: Sequence[pb.Record]) -> Columns:
    """Return a batch by columns; each rule looks at a column rather than at every message."""
    message_ids = [record.message_id for record in records]
    bodies = [record.body for record in records]
    tags = [record.tag for record in records]
    keys: Sequence[Collection[str]] = [record.keys for record in records]
    properties: Sequence[Mapping[str, str]] = [record.properties for record in records]
    sizes = list(map(len, bodies))
    check_body_sizes(min(sizes), max(sizes))
    check_total(sum(sizes))
    if max(map(len, message_ids)) > MAX_ID_LENGTH:
        raise InvalidArgument(f"message_id has at most {MAX_ID_LENGTH} characters")
    for tag in set(tags):
        check_tag(tag)
    if any(keys) or any(properties):
        properties = [dict(each) for each in properties]
        for names, values in zip(keys, properties, strict=True):
            check_properties(values, names)
    return Columns(
        message_ids=message_ids,
        bodies=bodies,
        born_at_ms=born_at_ms([record.born_at_ms for record in records]),
        tags=tags,
        keys=keys,
        properties=properties,
    )


def _stored(message: Message, *, offset: int, entry: Entry) -> pb.StoredRecord:
    record = pb.Record(
        message_id=message.message_id,
        body=message.body,
        tag=message.tag,
        keys=message.keys,
        properties=message.properties,
        born_at_ms=message.born_at_ms,
    )
    return pb.StoredRecord(
        offset=offset, index=entry.index, stored_at_ms=entry.timestamp_ms, record=record
    )
