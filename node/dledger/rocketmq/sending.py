"""SendMessage: check the messages, store them with one PRODUCE command, return their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from prometheus_client import Counter

from dledger.broker.command_frame import CommandType, MalformedCommandError
from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.results import Produced
from dledger.common.limits import MAX_ID_LENGTH, MAX_MESSAGES
from dledger.errors import MessageIdConflict, OffsetOutOfRange
from dledger.requests.engine import Engine
from dledger.requests.forward import Caller
from dledger.requests.topic_resolver import TopicResolver
from dledger.rocketmq.command_batcher import Begun, CommandBatcher, Place
from dledger.rocketmq.names import client_id, topic_name
from dledger.rpc.checks import (
    SCOPE_DIGEST_BYTES,
    check_body,
    check_digest,
    check_normal,
    check_properties,
    check_tag,
    check_times,
    check_total,
)
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import Code, Rejected, ok

_ONE_SENT: Final[bytes] = service.SendMessageResponse(
    status=ok(), entries=[service.SendResultEntry(status=ok())]
).SerializeToString()
"""The response to nearly every SendMessage, without id and offset: parsing it is faster than
building it from parts."""
_ENCODINGS: Final = {0: Encoding.IDENTITY} | {int(encoding): encoding for encoding in Encoding}


class _Origin(NamedTuple):
    """What messages of one PRODUCE command have in common."""

    client_id: str
    topic: str
    born_host: str


class _Sending(NamedTuple):
    """A checked request; *line* is the one in which its command waits."""

    origin: _Origin
    messages: Sequence[Message]
    size_bytes: int
    line: str


class Sender:
    """Serves SendMessage on the leader."""

    def __init__(self, engine: Engine, resolver: TopicResolver, conflicts: Counter) -> None:
        """*conflicts* counts messages whose id was already used for another message."""
        self._engine, self._resolver, self._conflicts = engine, resolver, conflicts
        self._batches: CommandBatcher[_Origin, Message] = CommandBatcher(
            engine, CommandType.PRODUCE, _encoded
        )

    async def send(self, request: Any, caller: Caller) -> Any:
        """Store the request's messages as one batch; return each one's position."""
        sending = _checked(request, caller)
        await self._resolver.topic(sending.origin.topic)
        stored, first = _placed(await self._submitted(sending))
        response = _plain_response(sending, stored, first)
        if response is not None:
            return response
        places = enumerate(sending.messages, first)
        own = (self._own(sending.origin, m, stored, n, sending.line) for n, m in places)
        return _response(sending.messages, await asyncio.gather(*own))

    def begin(self, request: Any, caller: Caller) -> Begun | None:
        """Submit the request's messages now; None if their topic has to be created first.

        The response is None if an id of theirs was used before: `send` has to look by whom.
        """
        sending = _checked(request, caller)
        if self._engine.state.topics.get(sending.origin.topic) is None:
            return None
        return self._submitted(sending), lambda place: _plain_response(sending, *_placed(place))

    def _submitted(self, sending: _Sending) -> asyncio.Future[Place]:
        return self._batches.submit(
            sending.origin,
            sending.messages,
            sending.size_bytes,
            line=sending.line,
            producer=sending.origin.client_id,
        )

    async def _own(
        self, origin: _Origin, message: Message, stored: Produced, row: int, line: str
    ) -> int:
        """Return a message's own offset, even if another message was stored under its id before.

        Raises:
            MessageIdConflict: It is not stored: another message has its id even in its own scope.
        """
        queue_id, offset = stored.queue_ids[row], stored.offsets[row]
        if row not in stored.conflicts and (
            row not in stored.repeats
            or await is_stored(self._engine, origin.topic, queue_id, offset, message)
        ):
            return offset
        self._conflicts.inc()
        origin = origin._replace(client_id=scope_of(origin.client_id, message))
        again = _Sending(origin, [message], len(message.body), line)
        stored, row = _placed(await self._submitted(again))
        if row in stored.conflicts:
            raise MessageIdConflict.of_message(message.message_id)
        return stored.offsets[row]


def _checked(request: Any, caller: Caller) -> _Sending:
    """Return a request's messages. Raises Rejected and other errors for what is wrong."""
    sender = client_id(caller)
    topic = topic_of(request.messages)
    messages: list[Message] = []
    size_bytes = 0
    for each in request.messages:
        messages.append(message_of(each))
        size_bytes += len(each.body)
    check_total(size_bytes)
    host = request.messages[0].system_properties.born_host[:MAX_ID_LENGTH]
    return _Sending(_Origin(sender, topic, host), messages, size_bytes, caller.line)


def _placed(place: Place) -> tuple[Produced, int]:
    """Return a command's result, and the position of a request's first row in it."""
    stored, first = place
    if not isinstance(stored, Produced):
        raise TypeError(f"PRODUCE answered {stored!r}")
    return stored, first


def _plain_response(sending: _Sending, stored: Produced, first: int) -> Any | None:
    """Return the response, unless an id of the command's messages was used before."""
    if stored.repeats or stored.conflicts:
        return None
    messages = sending.messages
    return _response(messages, stored.offsets[first : first + len(messages)])


def _response(messages: Sequence[Message], offsets: Sequence[int]) -> Any:
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


def _encoded(origin: _Origin, messages: Sequence[Message]) -> bytes:
    return encode_produce(
        Columns.of(messages),
        client_id=origin.client_id,
        topic=origin.topic,
        born_host=origin.born_host,
    )


def topic_of(messages: Any) -> str:
    """Return the one topic that all of a request's messages name."""
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise Rejected(
            Code.BAD_REQUEST, f"a request carries 1 to {MAX_MESSAGES} messages, not {len(messages)}"
        )
    topics = set[str]()
    for message in messages:
        topics.add(topic_name(message.topic))
    if len(topics) > 1:
        raise Rejected(
            Code.BAD_REQUEST, f"one request sends to one topic, not to {', '.join(sorted(topics))}"
        )
    return topics.pop()


def message_of(message: Any) -> Message:
    """Return the checked form of a protocol message.

    Raises:
        Rejected: With the protocol's code for what is wrong.
        TopicTypeMismatch: It is not a NORMAL message.
        InvalidArgument: Its producer's timestamp is out of range.
    """
    system, body = message.system_properties, message.body
    check_normal(system)
    check_body(body)
    check_digest(body, system.body_digest)
    message_id = system.message_id
    if not 1 <= len(message_id) <= MAX_ID_LENGTH:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_ID,
            f"a message id has 1 to {MAX_ID_LENGTH} characters, not {len(message_id)}",
        )
    tag, keys = system.tag, tuple(system.keys)
    check_tag(tag)
    properties = dict(message.user_properties)
    check_properties(properties, keys)
    return Message(
        message_id=message_id,
        body=body,
        tag=tag,
        keys=keys,
        properties=properties,
        born_at_ms=_milliseconds(system.born_timestamp),
        encoding=_encoding(system.body_encoding),
        trace_context=system.trace_context,
    )


def _milliseconds(timestamp: Any) -> int:
    milliseconds = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    check_times((milliseconds,))
    return int(milliseconds)


def _encoding(value: int) -> Encoding:
    encoding = _ENCODINGS.get(value)
    if encoding is None:
        raise Rejected(Code.BAD_REQUEST, f"body encoding {value} is unknown")
    return encoding


# An SDK builds ids from its machine's address, its process id, the time and a counter: anyone who
# has seen some ids can guess others, and use them first (docs/adr/0020). So if the deduplication
# window reports a message as a repetition, the stored message is read and compared. A message whose
# id is taken by a different one is stored in a scope named by a digest of all that consumers see of
# it: a retry of the same message finds it there, and no other message matches.


def scope_of(client_id: str, message: Message) -> str:
    """Return the scope for a message whose id is taken in its client's own scope.

    No client may use such a client id (`checks.is_scope`).
    """
    digest = blake2b(digest_size=SCOPE_DIGEST_BYTES)
    for part in _parts(message):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{client_id}#{digest.hexdigest()}"


def _parts(message: Message) -> Iterator[bytes]:
    yield message.body
    yield bytes([message.encoding, len(message.keys)])
    yield message.tag.encode()
    yield from (key.encode() for key in message.keys)
    for name, value in sorted(message.properties.items()):
        yield name.encode()
        yield value.encode()


def is_same(message: Message, other: Message) -> bool:
    """Whether consumers see no difference; times and traces may differ between attempts."""
    return (
        message.body == other.body
        and message.encoding == other.encoding
        and message.tag == other.tag
        and message.keys == other.keys
        and message.properties == other.properties
    )


async def is_stored(
    engine: Engine, topic: str, queue_id: int, offset: int, message: Message
) -> bool:
    """Whether *message* is stored at that offset; assumed if retention has dropped it.

    Raises:
        Unavailable: It cannot be read now.
    """
    queue = engine.state.topics.queue(topic, queue_id)
    if offset < queue.first:
        return True
    place = queue.locate(offset)
    payload = place.payload
    try:
        entry = await engine.read_entry(payload.index)
        stored = ProduceFrame(entry.data, payload.start, payload.end).message(place.row)
    except OffsetOutOfRange:
        return True
    except MalformedCommandError:
        return False
    return is_same(message, stored)
