"""A SendMessage request by itself: its checked messages, their command, and the response to it.

Knows nothing of a node's state, so a door process does this for the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from dledger.broker.key_queues import queues_of_groups, queues_of_keys
from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.broker.topics import FIFO, NORMAL, SERVED, TYPES, Topic
from dledger.checks.messages import (
    check_body,
    check_digest,
    check_message_id,
    check_properties,
    check_tag,
    check_times,
    check_total,
    check_trace,
    check_typed,
)
from dledger.checks.packed import check_small
from dledger.checks.replays import replay_mark
from dledger.checks.resources import checked_client_id, topic_name
from dledger.common.limits import MAX_ID_LENGTH, MAX_MESSAGES
from dledger.common.replay_mark import ReplayMark
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok
from dledger.types import Typed

_ONE_SENT: Final[bytes] = service.SendMessageResponse(
    status=ok(), entries=[service.SendResultEntry(status=ok())]
).SerializeToString()
"""The response to nearly every SendMessage, without id and offset: parsing it is faster than
building it from parts."""
_OF_SOME_TYPES: Final = ("message_group", "delivery_timestamp", "lite_topic", "priority")
"""Fields of a message that only some types of topics know."""
_KINDS: Final = {value: name for name, value in definition.MessageType.items()} | {
    definition.MessageType.MESSAGE_TYPE_UNSPECIFIED: NORMAL.name
}
_PLAIN: Final = Encoding.IDENTITY
_ENCODINGS: Final = {0: Encoding.IDENTITY} | {int(encoding): encoding for encoding in Encoding}


class Origin(NamedTuple):
    """What messages of one PRODUCE command have in common; of a replay, the mark of its call.

    *queue_id* is `NO_QUEUE` unless what is in the messages chooses it.
    """

    client_id: str
    topic: str
    born_host: str
    replay: ReplayMark | None = None
    queue_id: int = NO_QUEUE


class Sending(NamedTuple):
    """A checked request.

    Attributes:
        size_bytes: Of its bodies.
        line: The one in which its command waits.
        unchecked: The bodies that are still to be looked into, since that takes long
            (`requests.unpacking`); the request is not to be stored before.
        kind: The type of the messages, which is to be their topic's.
    """

    origin: Origin
    messages: Sequence[Message]
    size_bytes: int
    line: str
    unchecked: Sequence[bytes] = ()
    kind: str = NORMAL.name


def checked(
    request: service.SendMessageRequest, client_id: str, line: str, replay: bytes | None = None
) -> Sending:
    """Return a request's messages. Raises Rejected and other errors for what is wrong.

    Args:
        request: The parsed request.
        client_id: The client's id as it came.
        line: The client's connection.
        replay: What the call's metadata says of a replay; None: nothing.
    """
    sender = checked_client_id(client_id)
    topic = topic_of(request.messages)
    messages: list[Message] = []
    unchecked: list[bytes] = []
    size_bytes, is_typed = 0, False
    for each in request.messages:
        message = message_of(each)
        messages.append(message)
        size_bytes += len(message.body)
        if message.encoding is not _PLAIN:
            unchecked.append(message.body)
        if message.typed is not None:
            is_typed = True
    kind = _kind_of_all(messages) if is_typed else NORMAL.name
    check_total(size_bytes)
    if unchecked:
        unchecked = check_small(unchecked)
    host = request.messages[0].system_properties.born_host[:MAX_ID_LENGTH]
    mark = None if replay is None else replay_mark(replay, sender, topic, len(messages))
    return Sending(Origin(sender, topic, host, mark), messages, size_bytes, line, unchecked, kind)


def _kind_of_all(messages: Sequence[Message]) -> str:
    """Return the type of a request's messages, of which some have what not all types know."""
    kinds = {_kind_of(message) for message in messages}
    if len(kinds) > 1:
        raise Rejected(
            Code.BAD_REQUEST,
            f"one request sends messages of one type, not of {' and '.join(sorted(kinds))}",
        )
    return kinds.pop()


def _kind_of(message: Message) -> str:
    return NORMAL.name if message.typed is None else FIFO.name


def check_type(sending: Sending, topic: Topic) -> None:
    """Raise TopicTypeMismatch unless a topic is for messages like these."""
    if sending.kind != topic.type:
        TYPES[topic.type].check(sending.kind, ())


def by_queue(sending: Sending, topic: Topic) -> list[Sending]:
    """Return a request in parts of one queue each, which follow each other.

    It is for a topic where keys or message groups choose the queue. A part ends where the next
    message's queue is another one, so that the sequences of a replay follow each other in each
    part. Raises IllegalKey or IllegalGroup.
    """
    if topic.compaction is None:
        groups = [each.typed.message_group if each.typed else "" for each in sending.messages]
        queue_ids = queues_of_groups(topic, [group.encode() for group in groups])
    else:
        keys = [[key.encode() for key in message.keys] for message in sending.messages]
        queue_ids = queues_of_keys(topic, keys)
    parts, start = list[Sending](), 0
    for queue_id, rows in groupby(queue_ids):
        stop = start + len(list(rows))
        messages = sending.messages[start:stop]
        mark = sending.origin.replay
        origin = sending.origin._replace(
            queue_id=queue_id,
            replay=None if mark is None else mark._replace(first=mark.first + start),
        )
        size_bytes = sum(len(message.body) for message in messages)
        parts.append(Sending(origin, messages, size_bytes, sending.line, kind=sending.kind))
        start = stop
    return parts


def response_of(messages: Sequence[Message], offsets: Sequence[int]) -> service.SendMessageResponse:
    """Return the response for messages that are stored at these queue offsets.

    An offset is -1 where nobody knows it any more; RocketMQ's clients pass it on as it is.
    """
    if len(messages) > 1:
        entries = [
            service.SendResultEntry(status=ok(), message_id=message.message_id, offset=offset)
            for message, offset in zip(messages, offsets, strict=True)
        ]
        return service.SendMessageResponse(status=ok(), entries=entries)
    response = service.SendMessageResponse.FromString(_ONE_SENT)
    entry = response.entries[0]
    entry.message_id, entry.offset = messages[0].message_id, offsets[0]
    return response


def encoded(origin: Origin, messages: Sequence[Message]) -> bytes:
    """Return the framed PRODUCE command for checked messages."""
    return encode_produce(
        Columns.of(messages),
        client_id=origin.client_id,
        topic=origin.topic,
        queue_id=origin.queue_id,
        born_host=origin.born_host,
        replay=origin.replay,
    )


def topic_of(messages: Sequence[definition.Message]) -> str:
    """Return the one topic that all of a request's messages name."""
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise Rejected(
            Code.BAD_REQUEST, f"a request carries 1 to {MAX_MESSAGES} messages, not {len(messages)}"
        )
    if len(messages) == 1:  # as nearly always
        return topic_name(messages[0].topic)
    resources = (message.topic for message in messages)
    named = {(each.resource_namespace, each.name): each for each in resources}
    topics = set(map(topic_name, named.values()))
    if len(topics) > 1:
        raise Rejected(
            Code.BAD_REQUEST, f"one request sends to one topic, not to {', '.join(sorted(topics))}"
        )
    return topics.pop()


def message_of(message: definition.Message) -> Message:
    """Return the checked form of a protocol message.

    Raises:
        Rejected: With the protocol's code for what is wrong.
        TopicTypeMismatch: It is of no type that is served, or has what its type does not know.
        InvalidArgument: Its producer's timestamp is out of range.
    """
    system, body = message.system_properties, message.body
    kind = _checked_kind(system)
    check_body(body)
    check_digest(body, system.body_digest)
    message_id = system.message_id
    check_message_id(message_id)
    tag, keys = system.tag, tuple(system.keys)
    check_tag(tag)
    properties = dict(message.user_properties)
    check_properties(properties, keys)
    trace_context = system.trace_context
    if trace_context:
        check_trace(trace_context)
    return Message(
        message_id=message_id,
        body=body,
        tag=tag,
        keys=keys,
        properties=properties,
        born_at_ms=_milliseconds(system.born_timestamp),
        encoding=_encoding(system.body_encoding),
        trace_context=trace_context,
        typed=None if kind == NORMAL.name else _fifo_fields(system),
    )


def _checked_kind(system: definition.SystemProperties) -> str:
    """Return a message's type, or refuse one that no topic takes."""
    kind = _KINDS.get(system.message_type) or str(system.message_type)
    served = TYPES[kind] if kind in SERVED else NORMAL
    served.check(kind, [each for each in _OF_SOME_TYPES if system.HasField(each)])
    return kind


def _fifo_fields(system: definition.SystemProperties) -> Typed:
    """Return what a FIFO message has, and no NORMAL one."""
    typed = Typed(message_group=system.message_group)
    if not typed.message_group:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_GROUP,
            "a FIFO message has a message group, by which it is ordered; this one has none",
        )
    check_typed(typed)
    return typed


def _milliseconds(timestamp: Timestamp) -> int:
    milliseconds = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    check_times((milliseconds,))
    return milliseconds


def _encoding(value: int) -> Encoding:
    encoding = _ENCODINGS.get(value)
    if encoding is None:
        raise Rejected(Code.BAD_REQUEST, f"body encoding {value} is unknown")
    return encoding
