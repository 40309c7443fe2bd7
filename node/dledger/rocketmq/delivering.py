"""The protocol's form of messages that were handed out; what neighbours share is encoded once."""

from __future__ import annotations

from typing import Any

from dledger.broker.commands import LeaseRef, Receive
from dledger.broker.message import Message
from dledger.broker.results import Delivery
from dledger.common.limits import RENEWED_INVISIBLE_MS
from dledger.rocketmq.receipts import Receipts
from dledger.rpc.checks import MAX_TIMESTAMP_MS, md5_of
from dledger.rpc.rocketmq_stubs import definition, service


class DeliveryForm:
    """Makes the responses of one RECEIVE.

    Args:
        poll: What was asked for.
        resource: The topic as the client named it.
        receive_id: Part of every receipt handle.
        receipts: Makes these.
    """

    def __init__(self, poll: Receive, resource: Any, receive_id: int, receipts: Receipts) -> None:
        self._receive_id, self._receipts = receive_id, receipts
        message = definition.Message(topic=resource)
        system = message.system_properties
        system.message_type = definition.MessageType.NORMAL
        system.body_digest.type = definition.DigestType.MD5
        kept_ms = RENEWED_INVISIBLE_MS if poll.client_id else poll.invisible_ms
        system.invisible_duration.FromMilliseconds(kept_ms)
        self._message = message
        self._common = b""

    def begin(self, born_host: str, stored_at_ms: int) -> None:
        """Begin with the messages of the next payload, which have this in common."""
        system = self._message.system_properties
        system.born_host = born_host
        system.store_timestamp.FromMilliseconds(stored_at_ms)
        self._common = service.ReceiveMessageResponse(message=self._message).SerializeToString()

    def response(self, message: Message, delivery: Delivery) -> Any:
        """Return the ReceiveMessageResponse with a message that was handed out."""
        lease = LeaseRef(delivery.queue_id, delivery.offset, self._receive_id)
        response = service.ReceiveMessageResponse.FromString(self._common)
        response.message.body = message.body
        system = response.message.system_properties
        system.message_id = message.message_id or made_up_id(delivery)
        system.body_encoding = int(message.encoding)
        system.body_digest.checksum = md5_of(message.body)
        system.receipt_handle = self._receipts.encode(lease)
        system.queue_id, system.queue_offset = delivery.queue_id, delivery.offset
        system.delivery_attempt = delivery.attempt
        _set_time(system.born_timestamp, message.born_at_ms)
        _set_optional(response.message, message)
        return response


def _set_time(timestamp: Any, milliseconds: int) -> None:
    """Set a producer's clock; one of an older log that no ``Timestamp`` can say is moved there."""
    milliseconds = min(max(milliseconds, 0), MAX_TIMESTAMP_MS)
    timestamp.seconds, rest = divmod(milliseconds, 1000)
    timestamp.nanos = rest * 1_000_000


def _set_optional(target: Any, message: Message) -> None:
    system = target.system_properties
    if message.tag:
        system.tag = message.tag
    if message.keys:
        system.keys.extend(message.keys)
    if message.trace_context:
        system.trace_context = message.trace_context
    if message.properties:
        target.user_properties.update(message.properties)


def made_up_id(delivery: Delivery) -> str:
    """Return the id of a message that was stored without one: always the same one."""
    payload = delivery.payload
    return f"01{payload.index:016X}{payload.start & 0xFFFFFFFF:08X}{delivery.row:08X}"
