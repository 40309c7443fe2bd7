"""``dledger.v1.Ledger``: appends and reads in batches, without the cost of a call per message."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Final

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.held_refs import HELD_QUEUE
from dledger.broker.message import Columns
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.broker.results import Produced
from dledger.broker.topics import DELAY, NORMAL, TRANSACTION
from dledger.calls.caller import Caller
from dledger.calls.method import AnyMethod, Ended
from dledger.calls.service import Service
from dledger.checks.messages import (
    check_body_sizes,
    check_count,
    check_id_size,
    check_properties,
    check_tag,
    check_times,
    check_total,
    check_typed,
)
from dledger.checks.names import check_client_id, check_may_be_sent_to, check_name
from dledger.door.contract import Stream
from dledger.errors import DledgerError, MessageIdConflict, NotLeader
from dledger.requests.context import RequestContext
from dledger.requests.current_state import READ_INDEX, catch_up
from dledger.requests.half_ends import end, half_named
from dledger.requests.recalls import recall
from dledger.rpc.channel import LEADER_KEY, NOTHING_TAKEN_KEY
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import parsed
from dledger.rpc.status import grpc_code_of
from dledger.rpc.typed_messages import typed_of
from dledger.services.batches import for_transactions, kind_of, prepare
from dledger.services.held_responses import halves_response, held_response
from dledger.services.native import NativeHandlers, native_method, native_stream
from dledger.services.producing import Producing
from dledger.services.reading import BatchReading, QueueSlice, encoded
from dledger.services.record_message import record_message
from dledger.types import NO_PRIORITY, Typed

SERVICE_NAME: Final = "dledger.v1.Ledger"
_HOLDING: Final = frozenset({DELAY.name, TRANSACTION.name})
"""The types of topics of which messages are held."""
_ELECTION_WAIT_S: Final = 1.0
_RESPONSE_RECORDS: Final = 1_024
_RESPONSE_BYTES: Final = 1 << 20


class LedgerHandlers(NativeHandlers):
    """The service at one port of a node."""

    def __init__(self, context: RequestContext, *, tls: bool, peer_port: bool) -> None:
        super().__init__(context, tls=tls, peer_port=peer_port)
        self._produce_intake = context.produce_intake
        path = f"/{SERVICE_NAME}/"
        self._producing = native_stream(f"{path}Produce", pb.ProduceBatches, self._produce)
        self._reading = native_stream(f"{path}Read", pb.ReadRequest, self._read)
        self._reading_batches = native_stream(
            f"{path}ReadBatches", pb.ReadRequest, self._read_batches
        )

    def service(self) -> Service:
        """Return its methods."""
        append = native_method(
            f"/{SERVICE_NAME}/Append", pb.AppendRequest, self._append, messages=_messages
        )
        recall_ = native_method(f"/{SERVICE_NAME}/Recall", pb.RecallRequest, self._recall)
        end_ = native_method(
            f"/{SERVICE_NAME}/EndTransaction", pb.EndTransactionRequest, self._end_transaction
        )
        read_index = native_method(READ_INDEX, pb.ReadIndexRequest, self._read_index)
        streams = (self._producing, self._reading, self._reading_batches)
        return Service(self._pipeline, [append, recall_, end_, read_index, *streams])

    async def _append(self, request: pb.AppendRequest, _: Caller) -> pb.AppendResponse:
        topic = request.topic
        check_name("topic", topic)
        check_may_be_sent_to(topic)
        command, request_client = command_of(request), request.client_id
        half = request.half.check_after_ms if request.HasField("half") else None
        is_typed = bool(request.deliver_at_ms) or any(r.HasField("typed") for r in request.records)
        kind = _kind_of(request) if half is not None or is_typed else NORMAL.name
        ids = () if kind == NORMAL.name else [r.message_id.encode() for r in request.records]
        del request  # free this second copy of the bodies while the command waits
        found = await self._context.resolver.topic(topic, kind=kind)
        if found.type in _HOLDING:
            await self._context.resolver.secret()  # before: nothing is to be held without a name
        if half is not None:
            command = for_transactions(command, found, self._engine, half)
        else:
            command = prepare(command, found, self._engine, is_typed=is_typed)
        if (topics := self._engine.state.topics).full:
            topics.check_takes(topic)
        line = f"client {request_client}"  # admission is fair per connection already
        stored = await self._engine.submit(command, line=line, producer=request_client)
        if not isinstance(stored, Produced):
            raise TypeError(f"PRODUCE answered {stored!r}")
        if stored.conflicts:
            self._context.metrics.message_id_conflicts.inc(len(stored.conflicts))
            raise MessageIdConflict.of(stored.conflicts)
        if half is not None:
            return halves_response(stored, self._engine.state.secret)
        if HELD_QUEUE in stored.queue_ids:
            return held_response(stored, ids, self._engine.state.secret)
        return pb.AppendResponse(
            queue_id=stored.queue_id, offsets=stored.offsets, index=stored.index
        )

    async def _recall(self, request: pb.RecallRequest, _: Caller) -> pb.RecallResponse:
        check_name("topic", request.topic)
        message_id = await recall(self._engine, request.topic, request.recall_handle)
        return pb.RecallResponse(message_id=message_id)

    async def _end_transaction(
        self, request: pb.EndTransactionRequest, caller: Caller
    ) -> pb.EndTransactionResponse:
        check_name("topic", request.topic)
        ref = half_named(self._engine, request.topic, request.transaction_id)
        metrics = self._context.metrics.transactions
        await end(self._engine, ref, metrics, commits=request.commits, line=caller.line)
        return pb.EndTransactionResponse()

    async def _produce(self, caller: Caller, stream: Stream) -> None:
        ask = partial(self._pipeline.ask, self._producing, caller)
        producing = Producing(self._context, self._answered_batch, caller.peer, ask)
        messages = partial(self._produce_intake.message, caller.peer, stream.read, "Produce")
        try:
            await self._election_over()
            if not self._engine.is_leader():
                leader = self._engine.leader()
                raise NotLeader(leader.id if leader else None)
            async with aclosing(producing.answers(messages)) as answers:
                async for each in answers:
                    await stream.send(each)
        except DledgerError as error:
            said = self._leader_address()
            if not producing.in_doubt:
                said = (*said, (NOTHING_TAKEN_KEY, "1"))
            raise Ended(error, said) from error

    def _answered_batch(self, error: DledgerError | None) -> None:
        if isinstance(error, MessageIdConflict):
            self._context.metrics.message_id_conflicts.inc(len(error.rows))
        self._answered(self._producing, "OK" if error is None else grpc_code_of(error).name)

    async def _election_over(self) -> None:
        """Wait until this node serves or knows the leader, or for a second."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ELECTION_WAIT_S
        while not self._engine.is_leader() and (left_s := deadline_s - loop.time()) > 0:
            leader = self._engine.leader()
            if leader is not None and leader.id != self._engine.node_id:
                break
            await self._engine.wait_leader_change(left_s)

    def _leader_address(self) -> tuple[tuple[str, str], ...]:
        leader = self._engine.leader()
        known = (e for e in self._engine.endpoints() if leader and e.node_id == leader.id)
        return tuple((LEADER_KEY, f"{e.host}:{e.tls_port if self._tls else e.port}") for e in known)

    async def _read(self, caller: Caller, stream: Stream) -> None:
        """Send the queue's messages one by one, for readers that do not know the batch format."""
        await self._send(caller, stream, self._reading, self._records, pb.ReadResponse)

    async def _read_batches(self, caller: Caller, stream: Stream) -> None:
        method, response = self._reading_batches, pb.ReadBatchesResponse
        await self._send(caller, stream, method, _batches, response)

    async def _send(
        self,
        caller: Caller,
        stream: Stream,
        method: AnyMethod,
        encode: Callable[[pb.ReadRequest, Sequence[QueueSlice], int], Iterable[bytes]],
        response: type[pb.ReadResponse | pb.ReadBatchesResponse],
    ) -> None:
        """Send the requested messages, encoded by *encode*, in parts, each when there is room.

        A follower may wait for long, and is told at once which topic of that name it is of: where
        it goes on at another node, there may be another by then.
        """
        async with self._admission.request(caller.peer, stream.read, method.name) as raw:
            request = parsed(pb.ReadRequest, raw)
        if request.linearizable:
            await catch_up(self._engine, self._context.relay, caller, caller.remaining_s())
        outflow, followers = self._context.outflow, self._context.queue_followers
        reading = BatchReading(self._engine, followers, request)
        reading.check()
        if request.follow:
            told = response(next_offset=request.start_offset, generation=reading.generation)
            await _write(stream, [told.SerializeToString()])
        while size_bytes := await reading.next_bytes():
            if not outflow.has_room(size_bytes):
                reading.let_go()
            async with outflow.room(caller.connection, size_bytes):
                generation = reading.generation
                await _write(stream, encode(request, await reading.part(), generation))
        self._answered(method)

    async def _read_index(self, request: pb.ReadIndexRequest, _: Caller) -> pb.ReadIndexResponse:
        del request
        return pb.ReadIndexResponse(index=await self._engine.read_index())

    def _records(
        self, request: pb.ReadRequest, part: Sequence[QueueSlice], generation: int
    ) -> Iterator[bytes]:
        """Yield the responses with the messages of a part, one by one."""
        for records in _parts(record for each in part for record in self._stored(request, each)):
            yield pb.ReadResponse(
                records=records, next_offset=records[-1].offset + 1, generation=generation
            ).SerializeToString()

    def _stored(self, request: pb.ReadRequest, stretch: QueueSlice) -> Iterator[pb.StoredRecord]:
        """Yield the messages of a slice, without those that cannot be decoded."""
        frame = stretch.frame()
        rekept = stretch.origins() if stretch.offsets is not None else None
        index, stored_at_ms = stretch.entry.index, stretch.entry.timestamp_ms
        for number, offset in enumerate(stretch.own_offsets()):
            try:
                message = frame.message(stretch.first_row + number)
            except MalformedCommandError as error:
                self._context.broken.note(request.topic, request.queue_id, offset, error)
                continue
            if rekept is not None:
                index, stored_at_ms, _ = rekept[number]
            yield record_message(message, offset=offset, index=index, stored_at_ms=stored_at_ms)


def _messages(raw: bytes) -> int:
    return len(parsed(pb.AppendRequest, raw).records)


def command_of(request: pb.AppendRequest) -> bytes:
    """Return the PRODUCE command of a checked request, or raise Refused."""
    check_count(len(request.records))
    check_client_id(request.client_id)
    return encode_produce(
        _checked_columns(request.records, request.deliver_at_ms),
        client_id=request.client_id,
        topic=request.topic,
        queue_id=max(request.queue_id, NO_QUEUE),
    )


def _checked_columns(records: Sequence[pb.Record], deliver_at_ms: int = 0) -> Columns:
    """Return a batch in columns; each rule checks a column rather than every message."""
    message_ids = [record.message_id for record in records]
    bodies = [record.body for record in records]
    tags = [record.tag for record in records]
    keys: Sequence[Collection[str]] = [record.keys for record in records]
    properties: Sequence[Mapping[str, str]] = [record.properties for record in records]
    sizes = list(map(len, bodies))
    check_body_sizes(min(sizes), max(sizes))
    check_total(sum(sizes))
    check_id_size(max(map(len, message_ids)), "characters")
    born_at_ms = [record.born_at_ms for record in records]
    check_times(born_at_ms)
    for tag in set(tags):
        check_tag(tag)
    if any(keys) or any(properties):
        properties = [dict(each) for each in properties]
        for names, values in zip(keys, properties, strict=True):
            check_properties(values, names)
    typed = [typed_of(each.typed) if each.HasField("typed") else None for each in records]
    fields = {name for each in filter(None, typed) for name in _fields_of(each)}
    if deliver_at_ms:
        DELAY.check(DELAY.name, sorted(fields))
        typed = [Typed(deliver_at_ms=deliver_at_ms)] * len(records)
    elif fields:
        kind_of(sorted(fields))
    for each in filter(None, typed):
        check_typed(each)
    return Columns(
        message_ids=message_ids,
        bodies=bodies,
        born_at_ms=born_at_ms,
        tags=tags,
        keys=keys,
        properties=properties,
        typed=typed if any(typed) else (),
    )


def _kind_of(request: pb.AppendRequest) -> str:
    """Return the type of a checked request's messages."""
    if request.HasField("half"):
        return TRANSACTION.name
    if request.deliver_at_ms:
        return DELAY.name
    typed = (typed_of(each.typed) for each in request.records)
    fields = {name for each in typed for name in _fields_of(each)}
    return kind_of(sorted(fields)) if fields else NORMAL.name


def _fields_of(typed: Typed) -> Iterator[str]:
    """Yield what a record's fields are called that only some types of topics know."""
    if typed.message_group:
        yield "message_group"
    if typed.deliver_at_ms:
        yield "delivery_timestamp"
    if typed.priority != NO_PRIORITY:
        yield "priority"


def _batches(request: pb.ReadRequest, part: Sequence[QueueSlice], generation: int) -> list[bytes]:
    return [encoded(part, request, generation=generation)] if part else []


async def _write(stream: Stream, responses: Iterable[bytes]) -> None:
    """Write all responses; a separate call, so that no reference to them is kept."""
    for response in responses:
        await stream.send(response)


def _parts(records: Iterator[pb.StoredRecord]) -> Iterator[list[pb.StoredRecord]]:
    """Split *records* into responses of at most 1024 records and about 1 MiB."""
    part: list[pb.StoredRecord] = []
    size_bytes = 0
    for record in records:
        part.append(record)
        size_bytes += len(record.record.body)
        if len(part) == _RESPONSE_RECORDS or size_bytes >= _RESPONSE_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
