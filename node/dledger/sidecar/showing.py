"""What `dledger spool show` says of single messages: those that wait, those set aside, the damage.

Nothing is written. Called by `cli.spool_command`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError

from dledger.rpc.rocketmq_stubs import definition
from dledger.spool.lanes import age_s
from dledger.spool.looking import Look
from dledger.spool.payload import Message

_BODY_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which messages are meant; None: all of them."""

    topic: str | None = None
    client_id: str | None = None

    def has(self, message: Message) -> bool:
        """Whether it is one of them."""
        return self.topic in (None, message.topic) and self.client_id in (None, message.client_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message that waits or was set aside.

    Attributes:
        sequence: Its place in the spool.
        lane: Its lane's name for the group, and its place there; 0: a SpoolingProducer's own.
        lane_sequence: As above.
        message_id: As its producer gave it.
        topic: Where it goes.
        client_id: Whose it is; empty: the spool's own.
        since_ms: Since when it waits, Unix milliseconds.
        age_seconds: How long that is.
        size_bytes: What it takes on the disk; 0: it was set aside.
        unknown_outcome: Whether the group may have it already.
        reason: Why the group refused it; empty: it waits.
        body: Its producer's.
    """

    sequence: int
    lane: int
    lane_sequence: int
    message_id: str
    topic: str
    client_id: str
    since_ms: int
    age_seconds: float
    size_bytes: int
    unknown_outcome: bool
    reason: str
    body: bytes = field(repr=False)

    def as_dict(self, *, body: bool) -> dict[str, Any]:
        """Return the fields, for JSON; the body in base64."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "body"}
        return told | ({"body": base64.b64encode(self.body).decode()} if body else {})


def _entry_of(sequence: int, message: Message, size_bytes: int) -> Shown:
    record = message.record
    return Shown(
        sequence=sequence,
        lane=message.lane,
        lane_sequence=message.lane_sequence,
        message_id=record.message_id,
        topic=message.topic,
        client_id=message.client_id,
        since_ms=record.born_at_ms,
        age_seconds=age_s(record.born_at_ms),
        size_bytes=size_bytes,
        unknown_outcome=message.tried,
        reason=message.reason,
        body=_body_of(message),
    )


def _body_of(message: Message) -> bytes:
    """Return what the producer sent; of a lane's message that is in a protobuf Message."""
    if not message.client_id:
        return message.record.body
    try:
        return bytes(definition.Message.FromString(message.record.body).body)
    except DecodeError:
        return message.record.body


def waiting_of(look: Look, choice: Choice) -> Iterator[Shown]:
    """Yield what waits, in order. Raises as `Look`."""
    for one in look.waiting():
        if choice.has(one.message):
            yield _entry_of(one.sequence, one.message, one.size_bytes)


def rejected_of(look: Look, choice: Choice) -> Iterator[Shown]:
    """Yield what was set aside, in the order in which it was. Raises as `Look`."""
    for sequence, message in look.refusals():
        if choice.has(message):
            yield _entry_of(sequence, message, 0)


def first_of(found: Iterable[Shown], limit: int) -> tuple[list[Shown], bool]:
    """Return the first ones, and whether there are more."""
    some = list(islice(found, limit + 1))
    return some[:limit], len(some) > limit


def damage_as_dict(look: Look) -> list[dict[str, Any]]:
    """Return each damaged place, for JSON. Raises as `Look`."""
    return [
        {
            "file": one.path,
            "offset": one.offset,
            "size_bytes": one.size_bytes,
            "messages": max(0, one.messages),
            "first": one.first,
            "last": one.last,
            "reason": one.reason,
        }
        for one in look.damage()
    ]


def line_of(one: Shown, *, body: bool) -> str:
    """Return what is shown to people of one message."""
    lane = f"{one.lane:08x}:{one.lane_sequence}" if one.lane else "-"
    words = [
        f"{one.sequence:>10} {lane:>17} {one.message_id} {one.topic}",
        f"of {one.client_id}" if one.client_id else "of this spool",
        f"{one.age_seconds:.0f} s",
    ]
    if one.size_bytes:
        words.append(f"{one.size_bytes} bytes")
    if one.unknown_outcome:
        words.append("outcome unknown")
    line = ", ".join(words)
    if one.reason:
        line += f"\n{'':11}refused: {one.reason}"
    if body:
        text = repr(one.body[:_BODY_SHOWN])[1:]
        more = (
            f" and {len(one.body) - _BODY_SHOWN} bytes more" if len(one.body) > _BODY_SHOWN else ""
        )
        line += f"\n{'':11}{text}{more}"
    return line


def line_of_damage(one: Mapping[str, Any]) -> str:
    """Return what is shown to people of a damaged place."""
    which = f" ({one['first']} to {one['last']})" if one["messages"] else ""
    where = f"{one['file']} at byte {one['offset']}, {one['size_bytes']} bytes"
    return f"{where}: {one['messages']} messages lost{which}: {one['reason']}"
