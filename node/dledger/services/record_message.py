"""A stored message as clients are told of it, one by one."""

from __future__ import annotations

from dataclasses import asdict

from dledger.broker.message import Message
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import NO_PRIORITY, Typed


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
        message_group=message.typed.message_group if message.typed else "",
    )
    return pb.StoredRecord(
        offset=offset,
        index=index,
        stored_at_ms=stored_at_ms,
        record=record,
        typed=None if message.typed is None else _typed_message(message.typed),
    )


def _typed_message(typed: Typed) -> pb.Typed:
    return pb.Typed(
        message_group=typed.message_group,
        deliver_at_ms=typed.deliver_at_ms,
        priority=None if typed.priority == NO_PRIORITY else typed.priority,
        moved_from=None if typed.moved_from is None else pb.MovedFrom(**asdict(typed.moved_from)),
    )
