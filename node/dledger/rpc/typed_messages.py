"""What only some types of topics know of a message (`types.Typed`), on the wire and from it."""

from __future__ import annotations

from dataclasses import asdict

from dledger.rpc.messages import optional_fields, same_fields
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import NO_PRIORITY, MovedFrom, Typed


def typed_message(typed: Typed) -> pb.Typed:
    """Return it as it is on the wire."""
    return pb.Typed(
        message_group=typed.message_group,
        deliver_at_ms=typed.deliver_at_ms,
        priority=None if typed.priority == NO_PRIORITY else typed.priority,
        moved_from=None if typed.moved_from is None else pb.MovedFrom(**asdict(typed.moved_from)),
    )


def typed_of(message: pb.Typed) -> Typed:
    """Return what is on the wire; unchecked."""
    return same_fields(
        Typed,
        message,
        priority=message.priority if message.HasField("priority") else NO_PRIORITY,
        moved_from=optional_fields(MovedFrom, message, "moved_from"),
    )
