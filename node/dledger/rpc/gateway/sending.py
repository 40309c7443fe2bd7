"""SendMessage: check what a producer sent, make one PRODUCE command of it, answer with places."""

from __future__ import annotations

from hashlib import md5, sha1
from typing import Any
from zlib import crc32

from dledger.broker.produce import Encoding, Message, encode_produce
from dledger.broker.results import Produced
from dledger.errors import TopicTypeMismatch
from dledger.rpc.engine import Engine
from dledger.rpc.forward import Caller
from dledger.rpc.gateway.catalog import Catalog
from dledger.rpc.gateway.config import (
    MAX_BODY_BYTES,
    MAX_ID_LENGTH,
    MAX_MESSAGES,
    MAX_PROPERTIES,
    MAX_PROPERTIES_BYTES,
    MAX_REQUEST_BYTES,
)
from dledger.rpc.gateway.names import client_id, topic_name
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok

_MESSAGE_TYPE = definition.MessageType
_DIGEST = definition.DigestType
_MAX_TIMESTAMP_MS = 253_402_300_799_999


class Sender:
    """Serves SendMessage on the leader."""

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine, self._catalog = engine, catalog

    async def send(self, request: Any, caller: Caller) -> Any:
        """Store the request's messages as one batch; return where each one is."""
        sender = client_id(caller)
        topic = topic_of(request.messages)
        messages = [message_of(message) for message in request.messages]
        check_total(sum(len(message.body) for message in messages))
        await self._catalog.topic(topic)
        command = encode_produce(
            messages,
            client_id=sender,
            topic=topic,
            born_host=request.messages[0].system_properties.born_host[:MAX_ID_LENGTH],
        )
        stored = await self._engine.propose(command)
        if not isinstance(stored, Produced):
            raise TypeError(f"PRODUCE answered {stored!r}")
        entries = [
            service.SendResultEntry(status=ok(), message_id=message.message_id, offset=offset)
            for message, offset in zip(messages, stored.offsets, strict=True)
        ]
        return service.SendMessageResponse(status=ok(), entries=entries)


def topic_of(messages: Any) -> str:
    """Return the one topic that all of a request's messages name."""
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise Rejected(
            Code.BAD_REQUEST, f"a request carries 1 to {MAX_MESSAGES} messages, not {len(messages)}"
        )
    topics = {topic_name(message.topic) for message in messages}
    if len(topics) > 1:
        raise Rejected(
            Code.BAD_REQUEST, f"one request sends to one topic, not to {', '.join(sorted(topics))}"
        )
    return topics.pop()


def message_of(message: Any) -> Message:
    """Return the checked form of a protocol message.

    Raises:
        Rejected: With the protocol's code for what is wrong.
        TopicTypeMismatch: It is no NORMAL message.
    """
    system = message.system_properties
    check_normal(system)
    check_body(message.body)
    check_digest(message.body, system.body_digest)
    if not 1 <= len(system.message_id) <= MAX_ID_LENGTH:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_ID,
            f"a message id has 1 to {MAX_ID_LENGTH} characters, not {len(system.message_id)}",
        )
    check_tag(system.tag)
    properties = dict(message.user_properties)
    check_properties(properties, list(system.keys))
    return Message(
        message_id=system.message_id,
        body=message.body,
        tag=system.tag,
        keys=tuple(system.keys),
        properties=properties,
        born_at_ms=born_at_ms(
            system.born_timestamp.seconds * 1000 + system.born_timestamp.nanos // 1_000_000
        ),
        encoding=_encoding(system.body_encoding),
        trace_context=system.trace_context,
    )


def check_normal(system: Any) -> None:
    """Refuse what only topics of another type take: FIFO, delayed, transactional and so on."""
    if system.message_type not in (_MESSAGE_TYPE.NORMAL, _MESSAGE_TYPE.MESSAGE_TYPE_UNSPECIFIED):
        kind = _name(_MESSAGE_TYPE, system.message_type)
        raise TopicTypeMismatch(f"the topic takes NORMAL messages, not {kind}")
    for field in ("message_group", "delivery_timestamp", "lite_topic", "priority"):
        if system.HasField(field):
            raise TopicTypeMismatch(f"the topic takes NORMAL messages, which have no {field}")


def check_body(body: bytes) -> None:
    """Refuse an empty body and one of more than 4 MiB."""
    if not body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the message body is empty")
    if len(body) > MAX_BODY_BYTES:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the message body has {len(body)} bytes; the limit is {MAX_BODY_BYTES}",
        )


def check_total(size_bytes: int) -> None:
    """Refuse a batch that would make too large a Raft entry."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise Rejected(
            Code.PAYLOAD_TOO_LARGE,
            f"the bodies of one request have {size_bytes} bytes; the limit is {MAX_REQUEST_BYTES}",
        )


def check_digest(body: bytes, digest: Any) -> None:
    """Refuse a body that does not have the digest its producer computed, if it sent one."""
    given: str = digest.checksum
    if digest.type == _DIGEST.MD5:
        correct = given.upper() == md5_of(body)
    elif digest.type == _DIGEST.SHA1:
        correct = given.upper() == sha1(body, usedforsecurity=False).hexdigest().upper()
    elif digest.type == _DIGEST.CRC32:
        correct = given.upper().lstrip("0") == f"{crc32(body):X}".lstrip("0")
    else:
        return
    if not correct:
        kind = _name(_DIGEST, digest.type)
        raise Rejected(
            Code.MESSAGE_CORRUPTED,
            f"the body was damaged on its way: its {kind} is not {given[:64]!r}",
        )


def born_at_ms(milliseconds: int) -> int:
    """Return a producer's clock, moved into the range that a protobuf ``Timestamp`` can say."""
    return min(max(milliseconds, 0), _MAX_TIMESTAMP_MS)


def md5_of(body: bytes) -> str:
    """Return the digest that every SDK agrees on: MD5 in upper-case hexadecimal."""
    return md5(body, usedforsecurity=False).hexdigest().upper()


def check_tag(tag: str) -> None:
    """Refuse a tag that no filter could name."""
    if "|" in tag or tag != tag.strip() or tag == "*" or not (tag.isprintable()):
        raise Rejected(
            Code.ILLEGAL_MESSAGE_TAG,
            f"tag {tag[:80]!r} must be printable, without '|' and outer spaces, and not '*'",
        )


def check_properties(properties: dict[str, str], keys: list[str]) -> None:
    """Refuse blank keys and names, and more properties than a message may carry."""
    if any(not key.strip() for key in keys):
        raise Rejected(Code.ILLEGAL_MESSAGE_KEY, "a message key is blank")
    if any(not name.strip() for name in properties):
        raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the name of a property is blank")
    count = len(properties) + len(keys)
    size_bytes = sum(len(n) + len(v) for n, v in properties.items()) + sum(map(len, keys))
    if count > MAX_PROPERTIES or size_bytes > MAX_PROPERTIES_BYTES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{count} keys and properties of {size_bytes} characters; "
            f"the limits are {MAX_PROPERTIES} and {MAX_PROPERTIES_BYTES}",
        )


def _encoding(value: int) -> Encoding:
    if value == definition.Encoding.ENCODING_UNSPECIFIED:
        return Encoding.IDENTITY
    try:
        return Encoding(value)
    except ValueError:
        raise Rejected(Code.BAD_REQUEST, f"body encoding {value} is unknown") from None


def _name(enum: Any, value: int) -> str:
    return str(enum.Name(value)) if value in enum.values() else str(value)
