"""A SendMessage request by itself: its checked messages, their command, and the response to it.

Knows nothing of a node's state, so a door process does this for the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from dledger.broker.held_commands import encode_produce_held
from dledger.broker.held_refs import Kind
from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.broker.queue_choice import queues_of_messages
from dledger.broker.topics import DELAY, NORMAL, TRANSACTION, TYPES, Topic
from dledger.checks.messages import (
    check_body,
    check_digest,
    check_message_id,
    check_properties,
    check_tag,
    check_times,
    check_total,
    check_trace,
)
from dledger.checks.names import check_may_be_sent_to
from dledger.checks.packed import check_small
from dledger.checks.replays import replay_mark
from dledger.checks.resources import checked_client_id, topic_name
from dledger.common.limits import FIRST_CHECK_MS, MAX_ID_LENGTH, MAX_MESSAGES
from dledger.common.replay_mark import ReplayMark
from dledger.rocketmq.message_types import (
    PLAIN,
    check_after_ms,
    check_kind,
    kind_of_all,
    typed_of,
)
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok

_ONE_SENT: Final[bytes] = service.SendMessageResponse(
    status=ok(), entries=[service.SendResultEntry(status=ok())]
).SerializeToString()
"""The response to nearly every SendMessage, without id and offset: parsing it is faster than
building it from parts."""
_PLAIN: Final = Encoding.IDENTITY
_ENCODINGS: Final = {0: Encoding.IDENTITY} | {int(encoding): encoding for encoding in Encoding}


class Origin(NamedTuple):
    """What messages of one PRODUCE command have in common; of a replay, the mark of its call.

    *queue_id* is `NO_QUEUE` unless the topic chooses it by something that the messages have;
    *check_after_ms* is of halves.
    """

    client_id: str
    topic: str
    born_host: str
    replay: ReplayMark | None = None
    queue_id: int = NO_QUEUE
    check_after_ms: int = FIRST_CHECK_MS


class Sending(NamedTuple):
    """A checked request.

    Attributes:
        size_bytes: Of its bodies.
        line: The one in which its command waits.
        unchecked: The bodies that are still to be looked into, since that takes long
            (`requests.unpacking`); the request is not to be stored before.
        kind: The type that all its messages have, which its topic must have, too (`check_topic`).
    """

    origin: Origin
    messages: Sequence[Message]
    size_bytes: int
    line: str
    unchecked: Sequence[bytes] = ()
    kind: str = NORMAL.name

    def due_ms(self) -> list[int]:
        """Return when each of its messages is to be delivered, Unix ms; empty: at once."""
        return [each.typed.deliver_at_ms for each in self.messages if each.typed is not None]

    @property
    def is_timed(self) -> bool:
        """Whether each of its messages has a time at which it is to be delivered."""
        return self.kind == DELAY.name

    @property
    def is_half(self) -> bool:
        """Whether they are halves of transactions."""
        return self.kind == TRANSACTION.name

    def check_topic(self, topic: Topic) -> None:
        """Raise TopicTypeMismatch if the topic does not take messages of this kind."""
        if topic.type != self.kind:
            TYPES[topic.type].check(self.kind, ())


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
    if topic[0] == "%":  # as hardly ever
        check_may_be_sent_to(topic)
    messages: list[Message] = []
    unchecked: list[bytes] = []
    size_bytes = 0
    kind = NORMAL.name
    for each in request.messages:
        message = message_of(each)
        messages.append(message)
        if each.system_properties.message_type > PLAIN:
            kind = kind_of_all(request.messages)
        size_bytes += len(message.body)
        if message.encoding is not _PLAIN:
            unchecked.append(message.body)
    check_total(size_bytes)
    if unchecked:
        unchecked = check_small(unchecked)
    host = request.messages[0].system_properties.born_host[:MAX_ID_LENGTH]
    mark = None if replay is None else replay_mark(replay, sender, topic, len(messages))
    origin = Origin(sender, topic, host, mark)
    if kind == TRANSACTION.name:
        origin = origin._replace(check_after_ms=max(map(check_after_ms, request.messages)))
    return Sending(origin, messages, size_bytes, line, unchecked, kind)


def by_queue(sending: Sending, topic: Topic) -> list[Sending]:
    """Return a request to a topic that chooses the queue in parts of one each, one after the other.

    A part ends where the next message's queue is another one, so that the sequences of a replay
    follow each other in each part. Raises as `queues_of_messages` does.
    """
    parts, start = list[Sending](), 0
    for queue_id, rows in groupby(queues_of_messages(sending.messages, topic)):
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

    An offset is -1 where nobody knows it any more, or not yet, since the message is held;
    RocketMQ's clients pass it on as it is.
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


def encoded_held(origin: Origin, messages: Sequence[Message]) -> bytes:
    """Return the framed PRODUCE_HELD command for checked messages, each of which has a time."""
    due_ms = [message.typed.deliver_at_ms if message.typed else 0 for message in messages]
    return encode_produce_held(Kind.TIMER, due_ms, encoded(origin, messages))


def encoded_halves(date_ms: int, origin: Origin, messages: Sequence[Message]) -> bytes:
    """Return the framed PRODUCE_HELD command for halves that are sent at a date."""
    due_ms = [date_ms + origin.check_after_ms] * len(messages)
    return encode_produce_held(Kind.HALF, due_ms, encoded(origin, messages))


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
        TopicTypeMismatch: It is of a type that is not served, or lacks what is its type's.
        InvalidArgument: Its producer's timestamp is out of range.
    """
    system, body = message.system_properties, message.body
    check_kind(system)
    typed = typed_of(system) if system.message_type > PLAIN else None
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
        typed=typed,
    )


def _milliseconds(timestamp: Timestamp) -> int:
    milliseconds = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    check_times((milliseconds,))
    return milliseconds


def _encoding(value: int) -> Encoding:
    encoding = _ENCODINGS.get(value)
    if encoding is None:
        raise Rejected(Code.BAD_REQUEST, f"body encoding {value} is unknown")
    return encoding
