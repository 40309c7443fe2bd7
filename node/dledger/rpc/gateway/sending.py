"""SendMessage: check what a producer sent, make one PRODUCE command of it, answer with places."""

from __future__ import annotations

from typing import Any

from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced
from dledger.rpc.checks import (
    born_at_ms,
    check_body,
    check_digest,
    check_normal,
    check_properties,
    check_tag,
    check_total,
)
from dledger.rpc.engine import Engine
from dledger.rpc.forward import Caller
from dledger.rpc.gateway.catalog import Catalog
from dledger.rpc.gateway.names import client_id, topic_name
from dledger.rpc.limits import MAX_ID_LENGTH, MAX_MESSAGES
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok


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
            Columns.of(messages),
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
    check_properties(properties, system.keys)
    return Message(
        message_id=system.message_id,
        body=message.body,
        tag=system.tag,
        keys=tuple(system.keys),
        properties=properties,
        born_at_ms=_milliseconds(system.born_timestamp),
        encoding=_encoding(system.body_encoding),
        trace_context=system.trace_context,
    )


def _milliseconds(timestamp: Any) -> int:
    (milliseconds,) = born_at_ms([timestamp.seconds * 1000 + timestamp.nanos // 1_000_000])
    return milliseconds


def _encoding(value: int) -> Encoding:
    if value == definition.Encoding.ENCODING_UNSPECIFIED:
        return Encoding.IDENTITY
    try:
        return Encoding(value)
    except ValueError:
        raise Rejected(Code.BAD_REQUEST, f"body encoding {value} is unknown") from None
