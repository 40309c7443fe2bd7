"""The requests: of each RPC a good one, and all that a server can see is wrong by looking at it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import LeaseRef
from dledger.broker.held_refs import Ref
from dledger.broker.message import Columns
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.requests.recall_handles import RecallHandles
from dledger.requests.transaction_ids import TransactionIds
from dledger.rocketmq.receipts import Receipts
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import SMALL_BYTES, TELEMETRY_BYTES
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.types import MovedFrom, Typed
from tests.refusals.answers import metadata
from tests.refusals.wire import Pairs, prefixed
from tests.requests.rocketmq_client import message

TOPIC, GROUP = "orders", "billing"
ORDERED = "transfers"
"""A topic that is FIFO, with two queues."""
RANKED = "alerts"
"""A topic of type PRIORITY, with two queues."""
TABLE = "prices"
"""A topic that is compacted, with two queues."""
SECRET = bytes(range(32))
"""The group's, so that receipt handles are the same each time."""
ME = metadata(x_mq_client_id="client-1", x_mq_language="JAVA")
FORWARDED = metadata(
    x_dledger_forwarded="plain", x_dledger_host="ipv4:10.0.0.9", x_dledger_line="ipv4:10.0.0.9:1"
)
TIMED = "reminders"
"""A topic of messages that are delivered later."""
HALVES = "payments"
"""A topic of messages of transactions."""
LATER = ("SyncLiteSubscription",)
"""Methods of RocketMQ's service that nobody serves yet."""
LARGE = {"SendMessage", "Append", "Produce"}
PACKED = {
    "body: says GZIP, and is none": b"evil",
    "body: a gzip cut short": gzip.compress(b"hello", mtime=0)[:-1],
    "body: a gzip with more behind it": gzip.compress(b"hello", mtime=0) + b"x",
    "body: a gzip of nothing": gzip.compress(b"", mtime=0),
    "body: a gzip of more than 4 MiB": gzip.compress(bytes((4 << 20) + 1), mtime=0),
}
"""Bodies that are no gzip, or no fitting one."""
_MORE_THAN_A_SHARE = 6 << 20
_TYPE_AT, _FLAGS_AT = 4, 6
"""Bytes of a framed command: its type; and of a PRODUCE its flags, of which 64 means nothing."""


@dataclass(frozen=True)
class Asked:
    """One call.

    Attributes:
        rpc: The method, as ``SendMessage`` or ``Ledger/Append``.
        refusal: What is wrong with it, or with its world.
        body: All that its client sends, framed.
        headers: Its metadata.
        ends: Whether the client then says that it sends nothing more.
        http: Instead of gRPC's fields of HTTP/2.
    """

    rpc: str
    refusal: str
    body: bytes
    headers: Pairs = ME
    ends: bool = True
    http: Pairs = ()

    @property
    def path(self) -> str:
        """The method's path."""
        owner = "" if self.rpc.startswith("/") else "/dledger.v1."
        return f"{owner}{self.rpc}" if "/" in self.rpc else f"/{SERVICE_NAME}/{self.rpc}"


def resource(name: str, **more: Any) -> Any:
    """Return how requests name a topic or a consumer group."""
    return definition.Resource(name=name, **more)


def handle(offset: int = 0, receive_id: int = 1, group: str = GROUP) -> str:
    """Return the receipt handle of a message of queue 0 of `TOPIC`."""
    receipts = Receipts(SECRET, group=group, topic=TOPIC, generation=1)
    return receipts.encode(LeaseRef(queue_id=0, offset=offset, receive_id=receive_id))


def receive(**changes: Any) -> Any:
    """Return a ReceiveMessageRequest that does not wait."""
    fields: dict[str, Any] = {
        "group": resource(GROUP),
        "message_queue": definition.MessageQueue(topic=resource(TOPIC), id=0),
        "filter_expression": definition.FilterExpression(
            type=definition.FilterType.TAG, expression="*"
        ),
        "batch_size": 1,
        "invisible_duration": {"seconds": 10},
        "long_polling_timeout": {},
    }
    return service.ReceiveMessageRequest(**fields | changes)


def ack(*handles: str, **changes: Any) -> Any:
    """Return an AckMessageRequest."""
    entries = [
        service.AckMessageEntry(message_id=f"id-{n}", receipt_handle=one)
        for n, one in enumerate(handles)
    ]
    fields = {"group": resource(GROUP), "topic": resource(TOPIC), "entries": entries}
    return service.AckMessageRequest(**fields | changes)


def change(**changes: Any) -> Any:
    """Return a ChangeInvisibleDurationRequest."""
    fields = {
        "group": resource(GROUP),
        "topic": resource(TOPIC),
        "receipt_handle": handle(),
        "invisible_duration": {"seconds": 10},
    }
    return service.ChangeInvisibleDurationRequest(**fields | changes)


def place(queue_id: int = 0, topic: str = TOPIC, group: str = GROUP) -> dict[str, Any]:
    """Return how requests about offsets name a queue, and whose place in it is meant."""
    queue = definition.MessageQueue(topic=resource(topic), id=queue_id)
    return {"group": resource(group), "message_queue": queue}


def pull(**changes: Any) -> Any:
    """Return a PullMessageRequest that does not wait."""
    fields = {**place(), "batch_size": 1, "long_polling_timeout": {}}
    return service.PullMessageRequest(**fields | changes)


def query(policy: int = definition.QueryOffsetPolicy.END, **changes: Any) -> Any:
    """Return a QueryOffsetRequest."""
    fields = {"message_queue": place()["message_queue"], "query_offset_policy": policy}
    return service.QueryOffsetRequest(**fields | changes)


def forward(**changes: Any) -> Any:
    """Return a ForwardMessageToDeadLetterQueueRequest; its handle is stale."""
    fields = {"group": resource(GROUP), "topic": resource(TOPIC), "receipt_handle": handle()}
    return service.ForwardMessageToDeadLetterQueueRequest(**fields | changes)


def recall(topic: str = TIMED, handle: str | None = None) -> Any:
    """Return a RecallMessageRequest, for a message that nobody knows any more."""
    handles = RecallHandles(SECRET, topic=TIMED, generation=2)
    named = handles.encode(Ref(hour=1, slot=0), "id-1") if handle is None else handle
    return service.RecallMessageRequest(topic=resource(topic), recall_handle=named)


def end(transaction_id: str, resolution: Any = 1, topic: str = HALVES) -> Any:
    """Return an EndTransactionRequest."""
    return service.EndTransactionRequest(
        topic=resource(topic), transaction_id=transaction_id, resolution=resolution
    )


def send(*messages: Any) -> Any:
    """Return a SendMessageRequest."""
    return service.SendMessageRequest(messages=messages or (sent(),))


def sent(number: int = 1, body: bytes = b"body", topic: str = TOPIC, **system: Any) -> Any:
    """Return a message of RocketMQ."""
    return message(number, body, topic, **system)


def append(*records: Any, **changes: Any) -> pb.AppendRequest:
    """Return an AppendRequest; without records one that is good."""
    fields: dict[str, Any] = {"topic": TOPIC, "client_id": "client-1", "queue_id": 0}
    chosen = records or (pb.Record(body=b"body", message_id="id-1"),)
    return pb.AppendRequest(records=chosen, **fields | changes)


MOVED = MovedFrom(topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5)


def batch(bodies: tuple[bytes, ...] = (b"body",), **changes: Any) -> bytes:
    """Return the PRODUCE command of a batch."""
    ids = changes.pop("message_ids", [f"id-{row}" for row in range(len(bodies))])
    born = changes.pop("born_at_ms", [0] * len(bodies))
    names: dict[str, Any] = {
        "client_id": "client-1",
        "topic": TOPIC,
        "queue_id": 0,
        "born_host": "",
    }
    named = names | {name: changes.pop(name) for name in names if name in changes}
    return encode_produce(
        Columns(message_ids=ids, bodies=bodies, born_at_ms=born, **changes), **named
    )


def produce(*commands: bytes, joined: bool = False) -> pb.ProduceBatches:
    """Return one message of a Produce stream."""
    batches = [
        pb.ProduceBatch(id=number, command=command, joined=joined)
        for number, command in enumerate(commands or (batch(),), 1)
    ]
    return pb.ProduceBatches(batches=batches)


def _of_type(number: int) -> bytes:
    """Return an empty command of a type that nobody knows."""
    command = bytearray(frame(CommandType.ACK, b""))
    command[_TYPE_AT] = number
    return bytes(command)


def _newer() -> bytes:
    """Return a batch with a flag that this version does not know, as a newer producer sets it."""
    command = bytearray(batch())
    command[_FLAGS_AT] = 64
    return bytes(command)


def read(**changes: Any) -> pb.ReadRequest:
    """Return a ReadRequest."""
    fields: dict[str, Any] = {"topic": TOPIC, "queue_id": 0}
    return pb.ReadRequest(**fields | changes)


GOOD: Mapping[str, Any] = {
    "QueryRoute": service.QueryRouteRequest(topic=resource(TOPIC)),
    "QueryAssignment": service.QueryAssignmentRequest(topic=resource(TOPIC), group=resource(GROUP)),
    "Heartbeat": service.HeartbeatRequest(),
    "SendMessage": send(),
    "ReceiveMessage": receive(),
    "AckMessage": ack(handle()),
    "ChangeInvisibleDuration": change(),
    "ForwardMessageToDeadLetterQueue": forward(),
    "NotifyClientTermination": service.NotifyClientTerminationRequest(group=resource(GROUP)),
    "GetOffset": service.GetOffsetRequest(**place()),
    "UpdateOffset": service.UpdateOffsetRequest(**place()),
    "QueryOffset": query(),
    "PullMessage": pull(),
    "RecallMessage": recall(),
    "Telemetry": service.TelemetryCommand(settings=definition.Settings()),
    **{name: getattr(service, f"{name}Request")() for name in LATER},
    "Ledger/Append": append(),
    "Ledger/Recall": pb.RecallRequest(topic=TIMED, recall_handle=recall().recall_handle),
    "Ledger/Produce": produce(),
    "Ledger/Read": read(),
    "Ledger/ReadBatches": read(),
    "Ledger/ReadIndex": pb.ReadIndexRequest(),
    "Topics/CreateTopic": pb.CreateTopicRequest(name="another", queues=1),
    "Topics/ListTopics": pb.ListTopicsRequest(),
}
"""Each RPC of a client port, and a request that nothing is wrong with."""
WRITES = (
    "SendMessage",
    "AckMessage",
    "ChangeInvisibleDuration",
    "NotifyClientTermination",
    "ReceiveMessage",
    "UpdateOffset",
    "RecallMessage",
    "Ledger/Append",
    "Ledger/Recall",
    "Ledger/Produce",
    "Topics/CreateTopic",
)
"""Those that put something into the log."""
AT_LEADER = (
    *WRITES,
    "ForwardMessageToDeadLetterQueue",
    "GetOffset",
    "QueryOffset",
    "PullMessage",
    "Heartbeat",
    "Ledger/ReadIndex",
)
"""Those that only the leader answers."""


def good(rpc: str, refusal: str, **changes: Any) -> Asked:
    """Return the call that nothing is wrong with but its world."""
    return Asked(rpc, refusal, prefixed(GOOD[rpc].SerializeToString()), **changes)


def bad(rpc: str, refusal: str, request: Any, **changes: Any) -> Asked:
    """Return a call with this request."""
    return Asked(rpc, refusal, prefixed(request.SerializeToString()), **changes)


def wrong() -> Iterator[Asked]:
    """Yield the calls that any server refuses for what they are."""
    for rpc in GOOD:
        yield from _misframed(rpc)
    for rpc in GOOD:
        if not rpc.startswith("Topics/") and rpc not in LATER and not rpc.startswith("Ledger/"):
            yield from _nameless(rpc)
    yield from _names()
    yield from _messages()
    yield from _timed()
    yield from _transactions()
    yield from _consumers()
    yield from _offsets()
    yield from _ledger()


def _misframed(rpc: str) -> Iterator[Asked]:
    known, name = good(rpc, ""), rpc.rpartition("/")[2]
    limit = MAX_CLIENT_FRAME_BYTES if name in LARGE else SMALL_BYTES
    limit = TELEMETRY_BYTES if name == "Telemetry" else limit
    for refusal, body in {
        "bytes that are no request": prefixed(b"\xff\xff\xff"),
        "no request": b"",
        "a torn request": prefixed(b"abc", declared=10),
        "a compressed request": prefixed(b"abc", flag=1),
        "a request over its method's limit": prefixed(bytes(limit + 1)),
    }.items():
        yield replace(known, refusal=refusal, body=body)
    if limit == MAX_CLIENT_FRAME_BYTES:
        many = prefixed(b"\x08\x01" * (1 << 18))
        yield replace(known, refusal="more fields than a request may have", body=many)


def _nameless(rpc: str) -> Iterator[Asked]:
    known = good(rpc, "")
    for what, headers in {
        "no client id": (),
        "an empty client id": metadata(x_mq_client_id=""),
        "a client id of 256 characters": metadata(x_mq_client_id="x" * 256),
        "a client id that the group reserves": metadata(x_mq_client_id="c#0123456789abcdef"),
    }.items():
        yield replace(known, refusal=what, headers=headers)
    if rpc == "Heartbeat":  # gRPC's own server takes it, and others would store something then
        odd = metadata(x_mq_client_id=b"\xc3\xa4")
        yield replace(known, refusal="a client id that is not ASCII", headers=odd)


def _names() -> Iterator[Asked]:
    for what, name in {"empty": "", "illegal": "a b", "128 characters": "x" * 128}.items():
        topic, said = resource(name), f"topic: {what}"
        queue = definition.MessageQueue(topic=topic)
        group = f"group: {what}"
        yield bad("QueryRoute", said, service.QueryRouteRequest(topic=topic))
        yield bad(
            "QueryAssignment",
            said,
            service.QueryAssignmentRequest(topic=topic, group=resource(GROUP)),
        )
        yield bad(
            "QueryAssignment",
            group,
            service.QueryAssignmentRequest(topic=resource(TOPIC), group=resource(name)),
        )
        yield bad("SendMessage", said, send(sent(topic=name)))
        yield bad("ReceiveMessage", said, receive(message_queue=queue))
        yield bad("ReceiveMessage", group, receive(group=resource(name)))
        yield bad("AckMessage", said, ack(handle(), topic=topic))
        yield bad("RecallMessage", said, recall(name))
        yield bad("AckMessage", group, ack(handle(), group=resource(name)))
        yield bad("ChangeInvisibleDuration", said, change(topic=topic))
        yield bad("ChangeInvisibleDuration", group, change(group=resource(name)))
        yield bad("ForwardMessageToDeadLetterQueue", said, forward(topic=topic))
        yield bad("ForwardMessageToDeadLetterQueue", group, forward(group=resource(name)))
        if name:
            left = service.NotifyClientTerminationRequest(group=resource(name))
            yield bad("NotifyClientTermination", group, left)
        yield bad("Ledger/Append", said, append(topic=name))
        yield bad("Ledger/Read", said, read(topic=name))
        yield bad("Topics/CreateTopic", said, pb.CreateTopicRequest(name=name, queues=1))
    yield bad(
        "QueryRoute",
        "topic: kept for dead letters",
        service.QueryRouteRequest(topic=resource("%DLQ%g")),
    )
    yield bad("SendMessage", "topic: kept for dead letters", send(sent(topic="%RETRY%g")))
    yield bad(
        "Topics/CreateTopic",
        "topic: kept for dead letters",
        pb.CreateTopicRequest(name="%DLQ%g", queues=1),
    )
    yield bad(
        "QueryRoute",
        "topic: too long with its namespace",
        service.QueryRouteRequest(topic=resource("x" * 64, resource_namespace="y" * 64)),
    )


def _messages() -> Iterator[Asked]:
    kinds, digests = definition.MessageType, definition.DigestType
    broken: dict[str, dict[str, Any]] = {
        "message id: none": {"message_id": ""},
        "message id: 256 characters": {"message_id": "x" * 256},
        "tag: with a bar": {"tag": "a|b"},
        "tag: with a blank": {"tag": " a"},
        "tag: a star": {"tag": "*"},
        "tag: too long": {"tag": "t" * 65_537},
        "trace context: too long": {"trace_context": "t" * 65_537},
        "key: blank": {"keys": ["a", " "]},
        "keys: too large": {"keys": ["x" * 70_000]},
        "encoding: unknown": {"body_encoding": 99},
        "type: FIFO": {"message_type": kinds.FIFO, "message_group": "g"},
        "type: FIFO without a message group": {"message_type": kinds.FIFO},
        "message group: too long": {"message_type": kinds.FIFO, "message_group": "g" * 65},
        "message group: with a blank": {"message_type": kinds.FIFO, "message_group": " g"},
        "type: DELAY": {"message_type": kinds.DELAY},
        "type: TRANSACTION": {"message_type": kinds.TRANSACTION},
        "type: unknown": {"message_type": 77},
        "type: NORMAL with a message group": {"message_group": "g"},
        "type: NORMAL with a lite topic": {"lite_topic": "l"},
        "type: NORMAL with a priority": {"priority": 1},
        "type: NORMAL with a delivery timestamp": {"delivery_timestamp": {"seconds": 1}},
        "digest: wrong MD5": {"body_digest": {"type": digests.MD5, "checksum": "00"}},
        "digest: wrong SHA1": {"body_digest": {"type": digests.SHA1, "checksum": "00"}},
        "digest: wrong CRC32": {"body_digest": {"type": digests.CRC32, "checksum": "00"}},
        "time: before 1970": {"born_timestamp": {"seconds": -1}},
    }
    for what, system in broken.items():
        yield bad("SendMessage", what, send(sent(**system)))
    blank, many = sent(), sent()
    blank.user_properties[" "] = "x"
    for number in range(200):
        many.user_properties[f"p{number}"] = "x"
    yield bad("SendMessage", "property: blank name", send(blank))
    yield bad("SendMessage", "properties: too many", send(many))
    yield bad("SendMessage", "body: empty", send(sent(body=b"")))
    yield bad("SendMessage", "body: over 4 MiB", send(sent(body=bytes((4 << 20) + 1))))
    for what, body in PACKED.items():
        yield bad(
            "SendMessage", what, send(sent(body=body, body_encoding=definition.Encoding.GZIP))
        )
    yield bad(
        "SendMessage",
        "bodies: over 16 MiB",
        send(*(sent(n, bytes(4 << 20)) for n in range(4)), sent(9)),
    )
    yield bad("SendMessage", "messages: none", service.SendMessageRequest())
    yield bad("SendMessage", "messages: 4097", send(*(sent(n) for n in range(4097))))
    yield bad("SendMessage", "messages: of two topics", send(sent(), sent(2, topic="another")))
    yield bad("SendMessage", "one of two: body empty", send(sent(), sent(2, b"")))
    token, last = "0123456789abcdef" * 2, (1 << 64) - 1
    for what, said in {
        "replay: empty": "",
        "replay: no token": "0;1",
        "replay: a token in upper case": f"{token.upper()};0;1",
        "replay: a lane of 33 bits": f"{token};{1 << 32};1",
        "replay: a sequence of 0": f"{token};0;0",
        "replay: a sequence of 65 bits": f"{token};0;{last + 1}",
    }.items():
        yield good("SendMessage", what, headers=(*ME, *metadata(x_dledger_replay=said)))
    headers = (*ME, *metadata(x_dledger_replay=f"{token};0;{last}"))
    two = send(sent(), sent(2))
    yield bad("SendMessage", "replay: its second sequence has 65 bits", two, headers=headers)


def _timed() -> Iterator[Asked]:
    delay: dict[str, Any] = {"message_type": definition.MessageType.DELAY}
    wrong: dict[str, dict[str, Any]] = {
        "a topic of DELAY, no time": delay,
        "a topic of DELAY, a NORMAL message": {},
        "a topic of DELAY, the year 9999": delay | {"delivery_timestamp": {"seconds": 1 << 37}},
        "a topic of DELAY, before 1970": delay | {"delivery_timestamp": {"seconds": -1}},
        "a topic of DELAY, a message group": delay
        | {"delivery_timestamp": {"seconds": 1}, "message_group": "g"},
    }
    for what, fields in wrong.items():
        yield bad("SendMessage", what, send(sent(topic=TIMED, **fields)))
    late = delay | {"delivery_timestamp": {"seconds": 1}}
    yield bad("SendMessage", "a topic of NORMAL, a time", send(sent(**late)))
    yield bad("SendMessage", "two types at once", send(sent(**late), sent(2)))
    yield bad("Ledger/Append", "a topic of DELAY", append(topic=TIMED))
    yield bad("Ledger/Append", "a topic of NORMAL, a time", append(deliver_at_ms=1))
    yield bad("Ledger/Append", "the year 9999", append(topic=TIMED, deliver_at_ms=1 << 47))
    yield bad("Ledger/Append", "before 1970", append(topic=TIMED, deliver_at_ms=-1))
    yield bad("Ledger/Recall", "a handle: forged", pb.RecallRequest(topic=TIMED))
    for what, handle in {"none": "", "malformed": "nonsense", "forged": "A" * 40}.items():
        yield bad("RecallMessage", f"handle: {what}", recall(handle=handle))
    yield bad("RecallMessage", "a topic of NORMAL", recall(TOPIC))
    yield bad("RecallMessage", "no such topic", recall("nowhere"))


def _transactions() -> Iterator[Asked]:
    half: dict[str, Any] = {"message_type": definition.MessageType.TRANSACTION}
    late = {"orphaned_transaction_recovery_duration": {"seconds": 3_601}}
    for what, fields in {
        "a topic of TRANSACTION, a NORMAL message": {},
        "a topic of TRANSACTION, a message group": half | {"message_group": "g"},
        "a topic of TRANSACTION, a time": half | {"delivery_timestamp": {"seconds": 1}},
        "a topic of TRANSACTION, a check after an hour": half | late,
        "a topic of TRANSACTION, empty": half | {"body": b""},
    }.items():
        yield bad("SendMessage", what, send(sent(topic=HALVES, **fields)))
    yield bad("SendMessage", "a topic of NORMAL, a half", send(sent(**half)))
    yield bad("Ledger/Append", "a topic of TRANSACTION", append(topic=HALVES))
    yield bad("Ledger/Append", "a topic of NORMAL, a half", append(half=pb.Half()))
    record = pb.Record(body=b"body", typed=pb.Typed(priority=1))
    for what, asked in {
        "a check after an hour": append(topic=HALVES, half=pb.Half(check_after_ms=3_600_001)),
        "a check before it": append(topic=HALVES, half=pb.Half(check_after_ms=-1)),
        "a priority": append(record, topic=HALVES, half=pb.Half()),
        "a time": append(topic=HALVES, half=pb.Half(), deliver_at_ms=1),
    }.items():
        yield bad("Ledger/Append", f"a half, {what}", asked)
    for what, transaction_id in {
        "none": "",
        "blank": " ",
        "malformed": "nonsense",
        "no text of base64": "ä",
        "forged": "A" * 40,
        "too long": "A" * 5_000,
    }.items():
        yield bad("EndTransaction", f"transaction id: {what}", end(transaction_id))
        ends = pb.EndTransactionRequest(topic=HALVES, transaction_id=transaction_id)
        yield bad("Ledger/EndTransaction", f"transaction id: {what}", ends)
    known = TransactionIds(SECRET, topic=HALVES, generation=3).encode(Ref(hour=1, slot=0))
    for resolution in (1, 2):
        yield bad("EndTransaction", f"{resolution}, unknown half", end(known, resolution))
    for what, topic in {
        "an unknown half": HALVES,
        "another topic's": TIMED,
        "no such topic": "nowhere",
        "no topic": "",
    }.items():
        ends = pb.EndTransactionRequest(topic=topic, transaction_id=known, commits=True)
        yield bad("Ledger/EndTransaction", what, ends)
    yield bad("EndTransaction", "another topic's", end(known, topic=TIMED))
    yield bad("EndTransaction", "no such topic", end(known, topic="nowhere"))
    yield bad("EndTransaction", "no topic", end(known, topic=""))


def _consumers() -> Iterator[Asked]:
    filters, kinds = definition.FilterExpression, definition.FilterType
    changed: dict[str, dict[str, Any]] = {
        "filter: broken": {"filter_expression": filters(type=kinds.TAG, expression="a |")},
        "filter: SQL, broken": {"filter_expression": filters(type=kinds.SQL, expression="a >")},
        "filter: SQL, empty": {"filter_expression": filters(type=kinds.SQL)},
        "filter: SQL, of texts": {
            "filter_expression": filters(type=kinds.SQL, expression="a > 'b'")
        },
        "filter: SQL, too deep": {
            "filter_expression": filters(type=kinds.SQL, expression="(" * 40 + "a=1" + ")" * 40)
        },
        "filter: SQL, too long": {
            "filter_expression": filters(type=kinds.SQL, expression="a" * 5_000)
        },
        "filter: too long": {"filter_expression": filters(type=kinds.TAG, expression="a" * 70_000)},
        "batch size: 0": {"batch_size": 0},
        "invisible: 0": {"invisible_duration": {}},
        "invisible: 13 hours": {"invisible_duration": {"seconds": 13 * 3600}},
        "queue: none of the topic's": {
            "message_queue": definition.MessageQueue(topic=resource(TOPIC), id=99)
        },
        "nothing new": {},
    }
    for what, changes in changed.items():
        yield bad("ReceiveMessage", what, receive(**changes))
    for what, given in {
        "handle: empty": "",
        "handle: no base64": "ä",
        "handle: too short": "AAAA",
        "handle: another group's": handle(group="another"),
        "handle: stale": handle(7),
    }.items():
        yield bad("AckMessage", what, ack(given))
        yield bad("ChangeInvisibleDuration", what, change(receipt_handle=given))
        yield bad("ForwardMessageToDeadLetterQueue", what, forward(receipt_handle=given))
    yield bad("AckMessage", "handles: none", ack())
    yield bad("AckMessage", "handles: 4097", ack(*[handle()] * 4097))
    yield bad("AckMessage", "handles: one bad, one stale", ack("nonsense", handle(7)))
    yield bad("AckMessage", "topic: unknown", ack(handle(), topic=resource("nowhere")))
    yield bad("ChangeInvisibleDuration", "topic: unknown", change(topic=resource("nowhere")))
    for name in ("nowhere", "%DLQ%g"):
        yield bad(
            "ForwardMessageToDeadLetterQueue", f"topic: {name}", forward(topic=resource(name))
        )
    yield bad(
        "ChangeInvisibleDuration",
        "invisible: 13 hours",
        change(invisible_duration={"seconds": 13 * 3600}),
    )
    yield bad(
        "ChangeInvisibleDuration", "invisible: below 0", change(invisible_duration={"seconds": -1})
    )


def _offsets() -> Iterator[Asked]:
    get, update = service.GetOffsetRequest, service.UpdateOffsetRequest
    for what, named in {
        "topic: illegal": place(topic="a b"),
        "topic: unknown": place(topic="nowhere"),
        "queue: none of the topic's": place(99),
        "queue: below 0": place(-1),
        "group: illegal": place(group="a b"),
    }.items():
        yield bad("GetOffset", what, get(**named))
        yield bad("UpdateOffset", what, update(**named))
        yield bad("PullMessage", what, pull(**named))
        if not what.startswith("group"):
            yield bad("QueryOffset", what, query(message_queue=named["message_queue"]))
    yield bad("GetOffset", "group: unknown", get(**place(group="nobody")))
    policies = definition.QueryOffsetPolicy
    for what, request in {
        "policy: unknown": query(77),
        "policy: a time, and none is named": query(policies.TIMESTAMP),
        "time: before 1970": query(policies.TIMESTAMP, timestamp={"seconds": -1}),
        "time: beyond what there is": query(policies.TIMESTAMP, timestamp={"seconds": 1 << 62}),
    }.items():
        yield bad("QueryOffset", what, request)
    for what, offset in {
        "offset: below 0": -1,
        "offset: beyond the end": 99,
        "offset: of 63 bits": (1 << 63) - 1,
    }.items():
        yield bad("UpdateOffset", what, update(**place(), offset=offset))
        yield bad("PullMessage", what, pull(offset=offset))
    filters, kinds = definition.FilterExpression, definition.FilterType
    changed: dict[str, dict[str, Any]] = {
        "filter: broken": {"filter_expression": filters(type=kinds.TAG, expression="a |")},
        "filter: SQL": {"filter_expression": filters(type=kinds.SQL, expression="a > 1")},
        "batch size: 0": {"batch_size": 0},
        "nothing new": {},
    }
    for what, changes in changed.items():
        yield bad("PullMessage", what, pull(**changes))


def _ledger() -> Iterator[Asked]:
    full = bytes(4 << 20)
    for what, request in {
        "records: none": pb.AppendRequest(topic=TOPIC, client_id="client-1"),
        "records: 4097": append(*[pb.Record(body=b"x")] * 4097),
        "client id: none": append(client_id=""),
        "client id: 256 characters": append(client_id="x" * 256),
        "client id: reserved": append(client_id="c#0123456789abcdef"),
        "queue: none of the topic's": append(queue_id=99),
        "body: empty": append(pb.Record(body=b"")),
        "body: over 4 MiB": append(pb.Record(body=full + b"x")),
        "bodies: over 16 MiB": append(*[pb.Record(body=full)] * 4, pb.Record(body=b"x")),
        "message id: 256 characters": append(pb.Record(body=b"x", message_id="x" * 256)),
        "tag: with a bar": append(pb.Record(body=b"x", tag="a|b")),
        "key: blank": append(pb.Record(body=b"x", keys=[" "])),
        "property: blank name": append(pb.Record(body=b"x", properties={" ": "x"})),
        "time: before 1970": append(pb.Record(body=b"x", born_at_ms=-1)),
    }.items():
        yield bad("Ledger/Append", what, request)
    for what, command in {
        "batch: no command": b"",
        "batch: bytes": b"\xff" * 40,
        "batch: another command": frame(CommandType.ACK, b""),
        "batch: an unknown command": _of_type(250),
        "batch: of a newer producer": _newer(),
        "topic: illegal": batch(topic="a b"),
        "client id: none": batch(client_id=""),
        "client id: reserved": batch(client_id="c#0123456789abcdef"),
        "queue: none of the topic's": batch(queue_id=99),
        "body: empty": batch((b"x", b"")),
        "body: over 4 MiB": batch((full + b"x",)),
        "message id: too long": batch(message_ids=["x" * 256]),
        "tag: with a bar": batch(tags=["a|b"]),
        "key: blank": batch(keys=[(" ",)]),
        "tag: too long": batch(tags=["t" * 65_537]),
        "trace context: too long": batch(trace_contexts=["t" * 65_537]),
        "born host: too long": batch(born_host="h" * 256),
        "time: before 1970": batch(born_at_ms=[-1]),
        "message group": batch(typed=[Typed(message_group="g")]),
        "message group: with a line break": batch(typed=[Typed(message_group="a\nb")]),
        "message group: too long": batch(typed=[Typed(message_group="g" * 65)]),
        "delivery time": batch(typed=[Typed(deliver_at_ms=1)]),
        "delivery time: before 1970": batch(typed=[Typed(deliver_at_ms=-1)]),
        "priority": batch(typed=[Typed(priority=0)]),
        "priority: below none": batch(typed=[Typed(priority=-2)]),
        "moved from another topic": batch(typed=[Typed(moved_from=MOVED)]),
        **{what: batch((body,), encodings=[2]) for what, body in PACKED.items()},
    }.items():
        yield bad("Ledger/Produce", what, produce(command))
    yield bad(
        "Ledger/Produce",
        "joined batch: body empty, another behind it",
        produce(batch((b"",)), batch(), joined=True),
    )
    for rpc in ("Ledger/Read", "Ledger/ReadBatches"):
        places: dict[str, dict[str, Any]] = {
            "topic: unknown": {"topic": "nowhere"},
            "queue: none of the topic's": {"queue_id": 99},
            "queue: below 0": {"queue_id": -1},
            "offset: beyond the end": {"start_offset": 99},
            "offset: below the first": {"start_offset": -1},
            "generation: of a topic that is gone": {"generation": 77},
        }
        for what, changes in places.items():
            yield bad(rpc, what, read(**changes))
    for what, topic in {
        "type: unknown": pb.CreateTopicRequest(name="another", type="NONE", queues=1),
        "type: LITE": pb.CreateTopicRequest(name="another", type="LITE", queues=1),
        **{
            f"type: {kind}, compacted": pb.CreateTopicRequest(
                name="another", type=kind, queues=1, compaction=pb.Compaction()
            )
            for kind in ("FIFO", "DELAY", "TRANSACTION", "PRIORITY")
        },
        "queues: 1025": pb.CreateTopicRequest(name="another", queues=1025),
        "queues: below 0": pb.CreateTopicRequest(name="another", queues=-1),
        "exists with other queues": pb.CreateTopicRequest(name=TOPIC, queues=3),
    }.items():
        yield bad("Topics/CreateTopic", what, topic)


def in_order() -> Iterator[Asked]:
    """Yield the calls that are refused because a topic, `ORDERED`, is FIFO."""
    kind = definition.MessageType.FIFO
    grouped = sent(topic=ORDERED, message_type=kind, message_group="g")
    yield bad("SendMessage", "FIFO: a NORMAL message", send(sent(topic=ORDERED)))
    yield bad(
        "SendMessage",
        "FIFO: a priority beside the message group",
        send(sent(topic=ORDERED, message_type=kind, message_group="g", priority=1)),
    )
    two = send(grouped, sent(2, topic=ORDERED))
    yield bad("SendMessage", "FIFO: a NORMAL message as the second", two)
    sql = definition.FilterExpression(type=definition.FilterType.SQL, expression="a = 1")
    queue = definition.MessageQueue(topic=resource(ORDERED), id=0)
    yield bad(
        "ReceiveMessage",
        "FIFO: an SQL92 filter",
        receive(message_queue=queue, filter_expression=sql),
    )
    tag = definition.FilterExpression(type=definition.FilterType.TAG, expression="b")
    yield bad("ReceiveMessage", "FIFO: the first filter", receive(message_queue=queue))
    yield bad(
        "ReceiveMessage",
        "FIFO: a second filter",
        receive(message_queue=queue, filter_expression=tag),
    )
    for what, groups in {
        "FIFO: no message group": ("",),
        "FIFO: no message group in the second": ("a", ""),
        "FIFO: message groups of two queues": ("a", "c"),
        "FIFO: a message group too long": ("g" * 65,),
    }.items():
        records = [
            pb.Record(body=b"x", typed=pb.Typed(message_group=each), message_id=f"{row}")
            for row, each in enumerate(groups)
        ]
        yield bad("Ledger/Append", what, append(*records, topic=ORDERED))
        typed = [Typed(message_group=each) if each else None for each in groups]
        command = batch((b"x",) * len(groups), typed=typed, topic=ORDERED)
        yield bad("Ledger/Produce", what, produce(command))
    to_normal = append(pb.Record(body=b"x", typed=pb.Typed(message_group="a"), message_id="1"))
    yield bad("Ledger/Append", "a message group, for a NORMAL topic", to_normal)


def ranked() -> Iterator[Asked]:
    """Yield the calls that are refused because a topic, `RANKED`, orders by priority."""
    kind = definition.MessageType.PRIORITY
    one = sent(topic=RANKED, message_type=kind, priority=1)
    for what, messages in {
        "PRIORITY: a NORMAL message": (sent(topic=RANKED),),
        "PRIORITY: no priority": (sent(topic=RANKED, message_type=kind),),
        "PRIORITY: below 0": (sent(topic=RANKED, message_type=kind, priority=-1),),
        "PRIORITY: a message group beside it": (
            sent(topic=RANKED, message_type=kind, priority=1, message_group="g"),
        ),
        "PRIORITY: a NORMAL message as the second": (one, sent(2, topic=RANKED)),
        "PRIORITY: a topic that is not there": (
            sent(topic="nowhere", message_type=kind, priority=1),
        ),
        "PRIORITY: for a NORMAL topic": (sent(message_type=kind, priority=1),),
    }.items():
        yield bad("SendMessage", what, send(*messages))
    for what, priorities, queue_id in (
        ("PRIORITY: none", (-1,), NO_QUEUE),
        ("PRIORITY: none in the second", (1, -1), NO_QUEUE),
        ("PRIORITY: of two queues", (0, 1), NO_QUEUE),
        ("PRIORITY: another queue than its own", (1,), 0),
    ):
        records = [
            pb.Record(
                body=b"x",
                typed=None if each < 0 else pb.Typed(priority=each),
                message_id=f"{row}",
            )
            for row, each in enumerate(priorities)
        ]
        yield bad("Ledger/Append", what, append(*records, topic=RANKED, queue_id=queue_id))
        typed = [None if each < 0 else Typed(priority=each) for each in priorities]
        command = batch((b"x",) * len(typed), typed=typed, topic=RANKED, queue_id=queue_id)
        yield bad("Ledger/Produce", what, produce(command))
    below = append(pb.Record(body=b"x", typed=pb.Typed(priority=-2)), topic=RANKED)
    yield bad("Ledger/Append", "PRIORITY: below none", below)
    to_normal = append(pb.Record(body=b"x", typed=pb.Typed(priority=0), message_id="1"))
    yield bad("Ledger/Append", "PRIORITY: for a NORMAL topic", to_normal)


def compacted() -> Iterator[Asked]:
    """Yield the calls that are refused because a topic, `TABLE`, is compacted; or cannot be."""
    no_key, two_keys = sent(topic=TABLE), sent(topic=TABLE, keys=("a", "b"))
    yield bad("SendMessage", "compacted: no key", send(no_key))
    yield bad("SendMessage", "compacted: two keys", send(two_keys))
    second = send(sent(topic=TABLE, keys=("a",)), sent(2, topic=TABLE))
    yield bad("SendMessage", "compacted: no key in the second message", second)
    for what, keys in {
        "compacted: no key": ((),),
        "compacted: two keys": (("a", "b"),),
        "compacted: keys of two queues": (("a",), ("c",)),
        "compacted: another queue than the key's": (("c",),),
    }.items():
        records = [
            pb.Record(body=b"x", keys=each, message_id=f"{row}") for row, each in enumerate(keys)
        ]
        yield bad("Ledger/Append", what, append(*records, topic=TABLE))
        command = batch((b"x",) * len(keys), keys=keys, topic=TABLE)
        yield bad("Ledger/Produce", what, produce(command))
    joined = batch((b"x",) * 2, keys=(("a",), ("c",)), topic=TABLE, queue_id=NO_QUEUE)
    yield bad(
        "Ledger/Produce",
        "joined batch: keys of two queues of a compacted topic, another behind it",
        produce(joined, batch(), joined=True),
    )
    times = pb.Compaction(min_lag_ms=1, tombstone_ms=2)
    for what, topic in {
        "compaction: a lag below 0": pb.CreateTopicRequest(
            name="another", compaction=pb.Compaction(min_lag_ms=-1, tombstone_ms=2)
        ),
        "compaction: beyond 114 years": pb.CreateTopicRequest(
            name="another", compaction=pb.Compaction(min_lag_ms=1, tombstone_ms=1 << 60)
        ),
        "exists, and is not compacted": pb.CreateTopicRequest(
            name=TOPIC, queues=2, compaction=times
        ),
        "exists, and is compacted": pb.CreateTopicRequest(name=TABLE, queues=2),
    }.items():
        yield bad("Topics/CreateTopic", what, topic)


def no_method() -> Iterator[Asked]:
    """Yield calls that are none of any method, by HTTP/2 or by gRPC."""
    body = prefixed(b"")
    for path in (f"/{SERVICE_NAME}/Nothing", "/dledger.v1.Ledger/Nothing", "/no.Service/Method"):
        yield Asked(path, "no such method", body)
    heartbeat = good("Heartbeat", "")
    plain = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":authority", b"dledger"),
        (b":path", heartbeat.path.encode()),
    )
    grpc = (b"content-type", b"application/grpc")
    for what, http in {
        "another content type": (*plain, (b"content-type", b"application/json")),
        "no content type": plain,
        "GET": ((b":method", b"GET"), *plain[1:], grpc),
        "a timeout that is none": (*plain, grpc, (b"te", b"trailers"), (b"grpc-timeout", b"soon")),
    }.items():
        yield replace(heartbeat, refusal=what, http=http)
    for what, headers in {
        "headers of 17 KiB": metadata(x_token="x" * (17 << 10)),
        "200 headers": tuple((b"x-%d" % n, b"1") for n in range(200)),
    }.items():
        yield replace(heartbeat, refusal=what, headers=(*ME, *headers))


def large() -> Any:
    """Return a SendMessageRequest that takes more of the room than its connection has."""
    half = bytes(_MORE_THAN_A_SHARE // 2)
    return send(sent(101, half), sent(102, half))
