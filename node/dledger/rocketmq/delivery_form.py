"""What a consumer is told of a message: only what is so, in a form that its library takes.

Libraries decode an answer in one go, and what one of its messages makes them raise costs the others
that came with it: docs/clients.md has who believes what, field by field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from dledger.broker.commands import LeaseRef, Receive
from dledger.broker.message import Encoding, Message, id_of_place
from dledger.broker.queue_positions import Payload
from dledger.broker.results import Delivery
from dledger.broker.topics import Topic
from dledger.checks.messages import MAX_TIMESTAMP_MS, md5_of
from dledger.checks.packed import Content, Form, in_form
from dledger.common.limits import RENEWED_INVISIBLE_MS
from dledger.rocketmq.receipts import Receipts
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.types import NO_PRIORITY, Typed

_SMALL_FRAMES: Final = {"HTTP", "NODE_JS", "RUST", "DOTNET", "PHP"}
"""Languages whose client ends a whole answer with an error when a message of it, with all that
belongs to it, is larger than gRPC's default; Node.js' says HTTP. The others have set it higher."""
SMALL_FRAME_BYTES: Final = 4 << 20
_FITS_BYTES: Final = 3 << 20
"""What is in a payload of so much always fits, with what the node adds to it."""
_READS_ZLIB: Final = "CPP"
"""The one language whose client unpacks only zlib's form; see `checks.packed`."""


def repack(message: Message, content: Content | None, language: str) -> Message:
    """Return a message with a packed body as a client of that language unpacks it.

    Args:
        message: As it is in the log.
        content: What is in its body. None: it is not packed as it says, which an older log may
            hold; then it is told as the plain bytes that it is.
        language: The client's, as it says.
    """
    if content is None:
        return replace(message, encoding=Encoding.IDENTITY)
    form = Form.ZLIB if language == _READS_ZLIB else Form.GZIP
    return replace(message, body=in_form(message.body, content, form))


def is_taken(response: service.ReceiveMessageResponse, payload: Payload, language: str) -> bool:
    """Whether a client of that language takes a message of this size, which is in *payload*."""
    if payload.end - payload.start <= _FITS_BYTES or language not in _SMALL_FRAMES:
        return True
    return response.ByteSize() <= SMALL_FRAME_BYTES


class DeliveryForm:
    """Encodes the responses of one RECEIVE; fields shared by neighbouring messages only once.

    Args:
        poll: The RECEIVE command.
        topic: Its topic.
        resource: The topic as the client named it.
        receive_id: Part of every receipt handle.
        receipts: Encodes the receipt handles.
    """

    def __init__(
        self,
        poll: Receive,
        topic: Topic,
        resource: definition.Resource,
        receive_id: int,
        receipts: Receipts,
    ) -> None:
        self._receive_id, self._receipts = receive_id, receipts
        message = definition.Message(topic=resource)
        system = message.system_properties
        system.message_type = definition.MessageType.Value(topic.type)
        system.body_digest.type = definition.DigestType.MD5
        kept_ms = RENEWED_INVISIBLE_MS if poll.client_id else poll.invisible_ms
        system.invisible_duration.FromMilliseconds(kept_ms)
        self._message = message
        self._common = b""

    def begin(self, born_host: str, stored_at_ms: int) -> None:
        """Begin the messages of the next payload, which share these fields."""
        system = self._message.system_properties
        system.born_host = born_host
        system.store_timestamp.FromMilliseconds(stored_at_ms)
        self._common = service.ReceiveMessageResponse(message=self._message).SerializeToString()

    def response(self, message: Message, delivery: Delivery) -> service.ReceiveMessageResponse:
        """Return the ReceiveMessageResponse of a delivered message."""
        lease = LeaseRef(delivery.queue_id, delivery.offset, self._receive_id)
        response = service.ReceiveMessageResponse.FromString(self._common)
        response.message.body = message.body
        system = response.message.system_properties
        system.message_id = message.message_id or made_up_id(delivery)
        system.body_encoding = definition.Encoding.ValueType(message.encoding)
        system.body_digest.checksum = md5_of(message.body)
        system.receipt_handle = self._receipts.encode(lease)
        system.queue_id, system.queue_offset = delivery.queue_id, delivery.offset
        system.delivery_attempt = delivery.attempt
        _set_time(system.born_timestamp, message.born_at_ms)
        _set_optional(response.message, message)
        return response


class PullForm:
    """Encodes the responses of one PullMessage: nothing is leased, so there is no handle."""

    def __init__(self, topic: Topic, resource: definition.Resource) -> None:
        self._resource = resource
        self._type = definition.MessageType.Value(topic.type)

    def response(
        self, message: Message, place: Delivery, born_host: str, stored_at_ms: int
    ) -> service.PullMessageResponse:
        """Return the response of a message that lies at a place."""
        response = service.PullMessageResponse()
        response.message.topic.CopyFrom(self._resource)
        response.message.body = message.body
        system = response.message.system_properties
        system.message_type, system.born_host = self._type, born_host
        system.store_timestamp.FromMilliseconds(stored_at_ms)
        system.message_id = message.message_id or made_up_id(place)
        system.body_encoding = definition.Encoding.ValueType(message.encoding)
        system.body_digest.type = definition.DigestType.MD5
        system.body_digest.checksum = md5_of(message.body)
        system.queue_id, system.queue_offset = place.queue_id, place.offset
        _set_time(system.born_timestamp, message.born_at_ms)
        _set_optional(response.message, message)
        return response


def half_form(topic: Topic, message: Message, born_host: str) -> definition.Message:
    """Return the half of a transaction as its producer is shown it, who is asked about it."""
    namespace, mark, name = topic.name.partition("%")
    known = namespace and mark  # else it is of none
    form = definition.Message(body=message.body)
    form.topic.resource_namespace = namespace if known else ""
    form.topic.name = name if known else topic.name
    system = form.system_properties
    system.message_type = definition.MessageType.Value(topic.type)
    system.message_id, system.born_host = message.message_id, born_host
    system.body_encoding = definition.Encoding.ValueType(message.encoding)
    system.body_digest.type = definition.DigestType.MD5
    system.body_digest.checksum = md5_of(message.body)
    _set_time(system.born_timestamp, message.born_at_ms)
    _set_optional(form, message)
    return form


def _set_time(timestamp: Timestamp, milliseconds: int) -> None:
    """Set a producer's clock; one of an old log that is out of ``Timestamp``'s range is clamped."""
    milliseconds = min(max(milliseconds, 0), MAX_TIMESTAMP_MS)
    timestamp.seconds, rest = divmod(milliseconds, 1000)
    timestamp.nanos = rest * 1_000_000


def _set_optional(target: definition.Message, message: Message) -> None:
    system = target.system_properties
    if message.tag:
        system.tag = message.tag
    if message.keys:
        system.keys.extend(message.keys)
    if message.trace_context:
        system.trace_context = message.trace_context
    if message.properties:
        target.user_properties.update(message.properties)
    if message.typed is not None:
        _set_typed(system, message.typed, target.topic.name)


def _set_typed(system: definition.SystemProperties, typed: Typed, topic: str) -> None:
    """Set what only some types of topics know, in the topic that its consumer named so."""
    if typed.message_group:
        system.message_group = typed.message_group
    if typed.deliver_at_ms:
        _set_time(system.delivery_timestamp, typed.deliver_at_ms)
    if typed.priority != NO_PRIORITY:
        system.priority = typed.priority
    moved = typed.moved_from
    if moved is not None and moved.topic != topic:
        system.dead_letter_queue.topic = moved.topic
        system.dead_letter_queue.message_id = system.message_id


def made_up_id(delivery: Delivery) -> str:
    """Return the id of a message that was stored without one; stable across deliveries.

    A message that is kept for longer than its group's retention was given it when it was copied.
    """
    payload = delivery.payload
    return id_of_place(payload.index, payload.start, delivery.row)
