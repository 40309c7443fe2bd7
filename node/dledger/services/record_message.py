"""A stored message as clients are told of it, one by one."""

from __future__ import annotations

from dledger.broker.message import Message
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.typed_messages import typed_message


def record_message(
    message: Message, *, offset: int, index: int, stored_at_ms: int
) -> pb.StoredRecord:
    """Return a message with the place and the time that it was stored at (Unix ms)."""
    record = pb.Record(
        message_id=message.message_id,
        body=message.body,
        tag=message.tag,
        keys=message.keys,
        properties=message.properties,
        born_at_ms=message.born_at_ms,
    )
    return pb.StoredRecord(
        offset=offset,
        index=index,
        stored_at_ms=stored_at_ms,
        record=record,
        typed=None if message.typed is None else typed_message(message.typed),
    )
