"""What clients say: requests of both protocols, receipts, filters, what stands in their headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Sequence
from random import Random
from typing import Any, ClassVar, Final

from google.protobuf.duration_pb2 import Duration

from dledger.broker import commands
from dledger.broker.command_frame import split
from dledger.broker.commands import Ack, CancelHeld, ChangeInvisible, LeaseRef, Receive
from dledger.broker.filters import parse_tags, tag_codes
from dledger.broker.held_refs import HOUR_BITS, SLOT_BITS, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.calls.caller import Caller
from dledger.checks.names import check_name
from dledger.checks.replays import replay_mark
from dledger.checks.resources import client_id, group_name, topic_name
from dledger.door import contract as door
from dledger.errors import InvalidArgument, InvalidReceiptHandle, Refused
from dledger.requests.recall_handles import RecallHandles
from dledger.requests.transaction_ids import TransactionIds
from dledger.rocketmq import telemetry
from dledger.rocketmq.expressions import expression
from dledger.rocketmq.receipts import Receipts as Handles
from dledger.rocketmq.receiving import (
    attempt_of,
    checked_invisible,
    invisible_of,
    tags_of,
    wait_of,
)
from dledger.rocketmq.send_requests import message_of, topic_of
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Rejected
from dledger.services.ledger import command_of
from tests.fuzz.logs import doors_agree, rows_of
from tests.fuzz.mutation import NUMBERS, TEXTS, json_bytes, mutated, spoil
from tests.fuzz.target import Broken, Target

_RESOURCE: Final = definition.Resource(name="t")


def told(command: bytes) -> object:
    """Return a command as every node reads it; Broken if none can."""
    ((kind, start, end),) = split(command)
    try:
        return commands.decode(kind, command[start:end])
    except ValueError as error:
        raise Broken(f"the command that it becomes cannot be applied: {error!s:.90}") from error


class Protobuf(Target):
    """Base: messages of a type, with fields of odd values, and their bytes spoilt."""

    refuses: ClassVar[tuple[type[Exception], ...]] = (Refused,)
    seeds: Sequence[Any]

    def draw(self, rng: Random) -> bytes:
        message = type(seed := rng.choice(self.seeds))()
        message.CopyFrom(seed)
        for _ in range(rng.randrange(4)):
            _spoil_field(rng, message)
        raw = bytes(message.SerializeToString())
        way = rng.random()
        if way < 0.1:
            return raw + _many(rng, message)
        return mutated(rng, raw, 2) if way < 0.4 else raw


def _spoil_field(rng: Random, message: Any) -> None:
    """Give one field of a message, or of one inside it, another value."""
    if not message.DESCRIPTOR.fields:
        return
    field = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value[rng.choice(TEXTS)] = rng.choice(TEXTS)
    elif field.message_type is not None:
        if _repeated(field) and not value:
            value.add()
        _spoil_field(rng, rng.choice(value) if _repeated(field) else value)
    elif _repeated(field):
        value.extend([_scalar(rng, field)] * rng.choice((1, 1, 200)))
    else:
        setattr(message, field.name, _scalar(rng, field))


def _repeated(field: Any) -> bool:
    return hasattr(field, "is_repeated") and bool(field.is_repeated)


def _scalar(rng: Random, field: Any) -> Any:
    kinds = field.cpp_type
    if kinds == field.CPPTYPE_STRING:
        text = rng.choice(TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kinds == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kinds == field.CPPTYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 99))
    if kinds in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice((0.0, -1.0, 1e30, float("nan")))
    bits = 32 if kinds in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    signed = kinds in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    number = rng.choice(NUMBERS) % (1 << bits)
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def _many(rng: Random, message: Any) -> bytes:
    """Return a field of the message very often, or groups inside each other."""
    number = rng.choice([field.number for field in message.DESCRIPTOR.fields] or [1])
    depth = rng.choice((50, 101, 5_000))
    return rng.choice(
        (bytes([(number & 15) << 3 | 2, 0]) * 5_000, b"\x0b" * depth + b"\x0c" * depth)
    )


def _message(**system: Any) -> Any:
    return definition.Message(
        topic=_RESOURCE,
        body=b"body",
        user_properties={"name": "value"},
        system_properties=definition.SystemProperties(
            message_id="01ABC", tag="tag", keys=["key"], trace_context="trace", **system
        ),
    )


class Sends(Protobuf):
    """SendMessage: an accepted message comes out of the log as it went in, by every door."""

    name = "sends"
    seeds = (
        service.SendMessageRequest(messages=[_message()]),
        service.SendMessageRequest(messages=[_message(), _message(body_encoding=2)]),
        service.SendMessageRequest(messages=[_message(born_host="h", message_type=1)]),
    )

    def feed(self, data: bytes) -> Hashable:
        request = parsed(service.SendMessageRequest, data)
        topic = topic_of(request.messages)
        messages = [message_of(message) for message in request.messages]
        host = request.messages[0].system_properties.born_host[:255]
        command = encode_produce(Columns.of(messages), client_id="c", topic=topic, born_host=host)
        doors_agree(command)
        if rows_of(command) != messages:
            raise Broken("the log says something else than was sent")
        return len(messages) > 1, messages[0].encoding, bool(messages[0].properties)


class Appends(Protobuf):
    """`Ledger.Append`: what it accepts, `Ledger.Produce` accepts, too, and tells the same."""

    name = "appends"
    _RECORD: ClassVar = pb.Record(
        body=b"body", message_id="id", tag="tag", keys=["key"], properties={"a": "b"}, born_at_ms=1
    )
    seeds = (
        pb.AppendRequest(topic="t", client_id="c", queue_id=-1, records=[_RECORD]),
        pb.AppendRequest(topic="t", client_id="c", records=[_RECORD, pb.Record(body=b"x")]),
        pb.AppendRequest(topic="t", client_id="c", records=[_RECORD], deliver_at_ms=1),
        pb.AppendRequest(
            topic="t",
            client_id="c",
            records=[pb.Record(body=b"x", typed=pb.Typed(deliver_at_ms=n)) for n in (1, 2)],
        ),
        pb.AppendRequest(topic="t", client_id="c", records=[_RECORD], half=pb.Half()),
    )

    def feed(self, data: bytes) -> Hashable:
        request = parsed(pb.AppendRequest, data)
        check_name("topic", request.topic)
        command = command_of(request)
        doors_agree(command)
        rows = rows_of(command)
        if [row.body for row in rows] != [record.body for record in request.records]:
            raise Broken("the log has other bodies than were sent")
        return len(rows) > 1


class Receives(Protobuf):
    """ReceiveMessage: the command that an accepted poll becomes is one that every node reads."""

    name = "receives"
    seeds = (
        service.ReceiveMessageRequest(
            group=definition.Resource(name="g"),
            message_queue=definition.MessageQueue(topic=_RESOURCE, id=-1),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="a || b"),
            batch_size=32,
            invisible_duration=Duration(seconds=30),
            long_polling_timeout=Duration(seconds=20),
            attempt_id="attempt",
        ),
        service.ReceiveMessageRequest(
            group=definition.Resource(name="g", resource_namespace="n"),
            message_queue=definition.MessageQueue(topic=_RESOURCE),
            auto_renew=True,
            batch_size=1,
        ),
    )

    def feed(self, data: bytes) -> Hashable:
        request = parsed(service.ReceiveMessageRequest, data)
        caller = _caller([("x-mq-client-id", "client")])
        command = Receive(
            group=group_name(request.group),
            topic=topic_name(request.message_queue.topic),
            queue_id=max(request.message_queue.id, 0),
            any_queue=True,
            limit=min(max(request.batch_size, 1), 32),
            invisible_ms=invisible_of(request),
            tags=tags_of(request.filter_expression),
            attempt_id=attempt_of(request, caller),
            client_id=client_id(caller),
        )
        if told(command.encode()) != command:
            raise Broken("the log says something else than was asked")
        if not 0 <= wait_of(request) <= 60:
            raise Broken(f"it would wait for {wait_of(request)} s")
        return command.tags is None, request.auto_renew


class Confirmations(Protobuf):
    """AckMessage and ChangeInvisibleDuration: handles, names and durations as one command."""

    name = "confirmations"
    refuses = (Refused,)

    def __init__(self) -> None:
        handle = made_receipt(LeaseRef(1, 2, 3))
        self.seeds = (
            service.AckMessageRequest(
                group=definition.Resource(name="g"),
                topic=_RESOURCE,
                entries=[service.AckMessageEntry(message_id="m", receipt_handle=handle)],
            ),
            service.ChangeInvisibleDurationRequest(
                group=definition.Resource(name="g"),
                topic=_RESOURCE,
                receipt_handle=handle,
                invisible_duration=Duration(seconds=5),
            ),
        )

    def draw(self, rng: Random) -> bytes:
        return bytes([rng.randrange(2)]) + super().draw(rng)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return data[:1] + mutated(rng, data[1:])

    def feed(self, data: bytes) -> Hashable:
        if data[:1] == b"\0":
            request = parsed(service.AckMessageRequest, data[1:])
            group, topic = group_name(request.group), topic_name(request.topic)
            leases = tuple(
                read_receipt(each.receipt_handle, group, topic) for each in request.entries
            )
            told(Ack(group=group, topic=topic, leases=leases).encode())
            return len(leases) > 1
        asked = parsed(service.ChangeInvisibleDurationRequest, data[1:])
        group, topic = group_name(asked.group), topic_name(asked.topic)
        lease = read_receipt(asked.receipt_handle, group, topic)
        change = ChangeInvisible(
            group=group,
            topic=topic,
            lease=lease,
            invisible_ms=checked_invisible(asked.invisible_duration),
        )
        told(change.encode())
        return "change"


_SECRET: Final = b"the group's secret, which no client is told"


def made_receipt(lease: LeaseRef) -> str:
    """Return the handle that a node gives out."""
    return Handles(_SECRET, group="g", topic="t", generation=1).encode(lease)


def read_receipt(handle: str, group: str, topic: str) -> LeaseRef:
    """Return what a node takes a handle for."""
    return Handles(_SECRET, group=group, topic=topic, generation=1).decode(handle)


class Receipts(Target):
    """Receipt handles: whatever is accepted can stand in a command, beside those of others."""

    name = "receipts"
    refuses = (InvalidReceiptHandle,)

    def draw(self, rng: Random) -> bytes:
        lease = LeaseRef(
            rng.choice((0, 1, 1_023, 65_535)),
            rng.choice(NUMBERS) % 2**64,
            rng.choice(NUMBERS) % 2**64,
        )
        handle = made_receipt(lease).encode()
        way = rng.randrange(4)
        if way == 0:
            return handle
        return mutated(rng, handle) if way < 3 else rng.choice(TEXTS).encode()

    def feed(self, data: bytes) -> Hashable:
        lease = read_receipt(data.decode("utf-8", "replace"), "g", "t")
        told(Ack(group="g", topic="t", leases=(lease,)).encode())
        return "lease"


class Recalls(Target):
    """Recall handles: whatever is accepted names a message that a command can name."""

    name = "recalls"
    refuses = (Rejected,)
    _handles: ClassVar = RecallHandles(_SECRET, topic="t", generation=1)

    def draw(self, rng: Random) -> bytes:
        ref = Ref(rng.choice((0, 1, (1 << HOUR_BITS) - 1)), rng.choice((0, 1 << SLOT_BITS - 1)))
        handle = self._handles.encode(ref, rng.choice(TEXTS)).encode()
        way = rng.randrange(4)
        if way == 0:
            return handle
        return mutated(rng, handle) if way < 3 else rng.choice(TEXTS).encode()

    def feed(self, data: bytes) -> Hashable:
        found = self._handles.decode(data.decode("utf-8", "replace"))
        told(CancelHeld(refs=(found.ref,)).encode())
        return "recall"


class Transactions(Target):
    """Transaction ids: whatever is accepted names a half that a command can name."""

    name = "transactions"
    refuses = (Rejected,)
    _ids: ClassVar = TransactionIds(_SECRET, topic="t", generation=1)

    def draw(self, rng: Random) -> bytes:
        ref = Ref(rng.choice((0, 1, (1 << HOUR_BITS) - 1)), rng.choice((0, 1 << SLOT_BITS - 1)))
        given = self._ids.encode(ref).encode()
        way = rng.randrange(4)
        if way == 0:
            return given
        return mutated(rng, given) if way < 3 else rng.choice(TEXTS).encode()

    def feed(self, data: bytes) -> Hashable:
        ref = self._ids.decode(data.decode("utf-8", "replace"))
        told(CancelHeld(refs=(ref,)).encode())
        return "half"


class Telemetry(Protobuf):
    """Telemetry: the answer to Settings is one that SDKs can parse, and not much larger."""

    name = "telemetry"
    seeds = (
        service.TelemetryCommand(
            settings=definition.Settings(
                client_type=definition.PRODUCER,
                subscription=definition.Subscription(
                    group=definition.Resource(name="g"),
                    subscriptions=[definition.SubscriptionEntry(topic=_RESOURCE)],
                    long_polling_timeout=Duration(seconds=20),
                ),
            )
        ),
        service.TelemetryCommand(
            settings=definition.Settings(publishing=definition.Publishing(topics=[_RESOURCE]))
        ),
    )

    def feed(self, data: bytes) -> Hashable:
        answer = telemetry.answer_to(telemetry.command_of(data))
        if not answer:
            return "no answer"
        command = service.TelemetryCommand.FromString(answer)
        if len(answer) > len(data) + 4_096:
            raise Broken(f"{len(data)} bytes are answered by {len(answer)}")
        kind = command.settings.WhichOneof("pub_sub")
        if kind == "subscription":
            command.settings.subscription.long_polling_timeout.ToTimedelta()  # the server's word
        return command.status.code, kind


class Filters(Target):
    """Filter expressions: the tags that they name go into the log and come out alike."""

    name = "filters"
    refuses = (InvalidArgument,)

    def draw(self, rng: Random) -> bytes:
        tags = [rng.choice((*TEXTS, "a", "b")) for _ in range(rng.choice((1, 2, 3, 300)))]
        made = rng.choice(("||", " || ", "|", "|||")).join(tags).encode()
        return mutated(rng, made) if rng.random() < 0.3 else made

    def feed(self, data: bytes) -> Hashable:
        tags = parse_tags(data.decode("utf-8", "replace"))
        tag_codes(tags)
        poll = Receive(
            group="g", topic="t", queue_id=0, any_queue=True, limit=1, invisible_ms=1, tags=tags
        )
        if told(poll.encode()) != poll:
            raise Broken("the log names other tags")
        return tags is None


class Expressions(Target):
    """SQL92 filters: what is taken is evaluated against any properties without an error."""

    name = "expressions"
    refuses = (InvalidArgument,)
    _WORDS: ClassVar = (
        *("a", "b", "TAGS", "'x'", "'it''s'", "1", "2.5", "-3", "1e3", "9223372036854775807", "''"),
        *("=", "<>", ">", ">=", "<", "<=", "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH", "TRUE", "FALSE", "(", ")", ",", "--", "/*", "*/"),
        *("a = 1", "b > 2.0", "a IN ('x')", "(a = 1)", "NOT a = 1", "a BETWEEN 1 AND 2"),
    )

    def draw(self, rng: Random) -> bytes:
        words = [rng.choice(self._WORDS) for _ in range(rng.choice((1, 3, 5, 9, 40, 900)))]
        if rng.random() < 0.5:
            words = [rng.choice(self._WORDS[-6:]) for _ in range(rng.choice((1, 2, 9, 200, 300)))]
            words = [each for word in words for each in (rng.choice(("AND", "OR")), word)][1:]
        made = " ".join(words).encode()
        return mutated(rng, made) if rng.random() < 0.3 else made

    def feed(self, data: bytes) -> Hashable:
        read = expression(data.decode("utf-8", "replace"))
        texts = ("", "x", "it's", "1", "2.5", "-3", "true", "9" * 30, "nan", *TEXTS)
        seen = [read.matches({"a": a, "b": b, "TAGS": a}) for a in texts for b in texts[:4]]
        if {type(each) for each in seen} != {bool}:
            raise Broken("neither a match nor none")
        return any(seen)


_LOOP: Final = asyncio.new_event_loop()


def _caller(metadata: Sequence[tuple[str, Any]], *, peer_port: bool = False) -> Caller:
    async def made() -> Caller:
        pairs = tuple((key.encode("utf-8", "replace"), _bytes_of(value)) for key, value in metadata)
        headers = door.Headers(
            pairs, dict(pairs), peer="ipv4:127.0.0.1:1", connection=0, deadline_s=_LOOP.time() + 3
        )
        return Caller.of(headers, tls=False, peer_port=peer_port)

    return _LOOP.run_until_complete(made())


def _bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


class Headers(Target):
    """A call's metadata: an accepted caller can be logged, passed on, and kept in the log."""

    name = "headers"
    refuses = (Refused,)
    _KEYS: ClassVar = (
        *("x-mq-client-id", "x-mq-request-id", "x-mq-language", "x-mq-namespace", "authorization"),
        *("x-dledger-forwarded", "x-dledger-through", "x-mq-date-time", "user-agent"),
        "x-dledger-replay",
    )

    def draw(self, rng: Random) -> bytes:
        pairs = [["x-mq-client-id", "host@7@0@abc"]] * rng.choice((0, 1, 1, 1, 2))
        pairs += [
            [rng.choice(self._KEYS), rng.choice((*TEXTS, "plain", "tls", "y" * 256, _replay(rng)))]
            for _ in range(rng.randrange(5))
        ]
        return json_bytes(pairs)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return json_bytes(spoil(rng, _pairs(data)))

    def feed(self, data: bytes) -> Hashable:
        pairs = [(key, value) for key, value in _pairs(data)]
        caller = _caller(pairs, peer_port=any("forwarded" in key for key, _ in pairs))
        sender = client_id(caller)
        if any(not isinstance(value, str) for _, value in caller.metadata):
            raise Broken(f"no headers can be made of {caller.metadata!r:.60}")
        request = service.ReceiveMessageRequest()
        poll = Receive(
            group="g", topic="t", queue_id=0, any_queue=True, limit=1, invisible_ms=1,
            attempt_id=attempt_of(request, caller), client_id=sender,
        )  # fmt: skip
        if told(poll.encode()) != poll:
            raise Broken("the log names another client")
        said = caller.fields.get(door.REPLAY_FIELD)
        mark = None if said is None else replay_mark(said, sender, "t", 1)
        if said is not None and door.REPLAY_FIELD.decode() not in dict(caller.metadata):
            raise Broken("a replay is passed on without its mark")
        doors_agree(encode_produce(_ONE, client_id=sender, topic="t"))
        ((_, start, end),) = split(
            command := encode_produce(_ONE, client_id=sender, topic="t", replay=mark)
        )
        if ProduceFrame(command, start, end).replay != mark:
            raise Broken("the log names another lane, or another sequence")
        return caller.tls, caller.through is None, mark is None


def _replay(rng: Random) -> str:
    token = rng.choice(("0" * 32, "0123456789abcdef" * 2, "F" * 32, ""))
    return f"{token};{rng.choice(NUMBERS)};{rng.choice(NUMBERS)}"


_ONE: Final = Columns(message_ids=["m"], bodies=[b"x"], born_at_ms=[0])


def _pairs(data: bytes) -> list[tuple[str, str]]:
    """Return pairs of texts, which is what gRPC makes of headers, whatever the JSON says."""
    try:
        rows = json.loads(data)
        pairs = [(str(key), str(value)) for key, value in rows]
    except (ValueError, TypeError):
        return []
    return [(key, value) for key, value in pairs if not _has_surrogates(key + value)]


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
