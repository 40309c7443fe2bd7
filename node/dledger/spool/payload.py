r"""The payload of a spooled message: pure functions from values to bytes and back.

Payload, one message; all integers are little endian::

    0     8    born at, Unix milliseconds (i64); of a message of a lane: when it was spooled
    8     4    queue id (i32); -1: the leader chooses
    12    2    number of keys k (u16)
    14    2    number of properties p (u16)
    16    8    sequence in its lane (u64): 1, 2, 3, ...; 0: it is of no lane
    24    4    lane (u32); 0: of none
    28    4    flags (u32): bit 0: the group may have the message already; bit 1, in rejected files:
               it went back into the spool, and this record only says so; bit 2: it has what only
               some types of topics know
    32    4m   byte lengths of m = 5 + k + 2p strings (u32)
    ..         the strings, UTF-8: topic, message id, tag, reason (in rejected files, else ""),
               client id ("": the spool's own), keys, then each property's name and value
    ..         if flag bit 2: 8 not to be delivered before, Unix milliseconds (i64; 0: at once);
               4 priority (i32; -1: none); 4 byte length of the message group (u32), and this
    ..         body, up to the end; of a message of a lane: its protobuf Message, as it came

Version 1 had neither lane nor flags (bytes 16 to 32) nor the client id (m = 4 + k + 2p).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from dledger.errors import InvalidArgument
from dledger.spool.format import FORMAT_VERSION
from dledger.types import Record, Typed

_PAYLOAD: Final = struct.Struct("<qiHHQII")
_PAYLOAD_1: Final = struct.Struct("<qiHH")
_U32: Final = struct.Struct("<I")
_TRIED: Final = 1
_WENT_BACK: Final = 2
_IS_TYPED: Final = 4
_TYPED: Final = struct.Struct("<qiI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message and its destination.

    Attributes:
        topic: Where it goes.
        record: The message. Of one of a lane only id, time and body count: when it was spooled, and
            the protobuf Message as its producer sent it.
        queue_id: The queue; -1: the leader chooses.
        reason: Why the group refused it, if it did.
        client_id: Whose it is; empty: the spool's own.
        lane: The lane of its client and topic; 0: of none.
        lane_sequence: Its place there; 0: of none.
        tried: Whether the group may have it already: a try to send it ended without an answer.
        went_back: Whether this is no message, but says in ``rejected/`` that the one of this
            sequence and id has gone back into the spool.
    """

    topic: str
    record: Record
    queue_id: int = -1
    reason: str = ""
    client_id: str = ""
    lane: int = 0
    lane_sequence: int = 0
    tried: bool = False
    went_back: bool = False


def encode_message(message: Message) -> bytes:
    """Return the payload of a message.

    Raises:
        InvalidArgument: A string is not valid Unicode, or there are too many keys or properties.
    """
    record = message.record
    pairs = [text for item in record.properties.items() for text in item]
    texts = (
        message.topic,
        record.message_id,
        record.tag,
        message.reason,
        message.client_id,
        *record.keys,
        *pairs,
    )
    try:
        strings = [text.encode() for text in texts]
        typed = _typed_bytes(record.typed)
        fixed = _PAYLOAD.pack(
            record.born_at_ms,
            message.queue_id,
            len(record.keys),
            len(record.properties),
            message.lane_sequence,
            message.lane,
            _TRIED * message.tried | _WENT_BACK * message.went_back | _IS_TYPED * bool(typed),
        )
    except (UnicodeEncodeError, struct.error) as error:
        raise InvalidArgument(f"message {record.message_id!r} cannot be spooled: {error}") from None
    lengths = struct.pack(f"<{len(strings)}I", *map(len, strings))
    return b"".join((fixed, lengths, *strings, typed, record.body))


def _typed_bytes(typed: Typed | None) -> bytes:
    """Return what only some types of topics know; empty: nothing."""
    if typed is None:
        return b""
    group = typed.message_group.encode()
    return _TYPED.pack(typed.deliver_at_ms, typed.priority, len(group)) + group


def _typed_at(payload: bytes, position: int) -> tuple[Typed, int]:
    """Return what `_typed_bytes` wrote, and where it ends. Raises ValueError."""
    try:
        deliver_at_ms, priority, length = _TYPED.unpack_from(payload, position)
    except struct.error as error:
        raise ValueError(f"the payload is not a message: {error}") from None
    position += _TYPED.size
    end = position + length
    if end > len(payload):
        raise ValueError("the payload is not a message: its group is longer than it is")
    group = payload[position:end].decode()
    return Typed(message_group=group, deliver_at_ms=deliver_at_ms, priority=priority), end


class Head(NamedTuple):
    """What is counted of a message that waits; the fields are `Message`'s."""

    topic: str
    born_at_ms: int
    client_id: str = ""
    lane: int = 0
    lane_sequence: int = 0
    tried: bool = False


def head_of(payload: bytes, version: int = FORMAT_VERSION) -> Head:
    """Return what is counted of an intact record's message without decoding the rest of it.

    Raises:
        ValueError: `encode_message` does not return such a payload.
    """
    layout, named = (_PAYLOAD_1, 4) if version == 1 else (_PAYLOAD, 5)
    try:
        born_at_ms, _, keys, pairs, *rest = layout.unpack_from(payload)
        lengths = struct.unpack_from(f"<{named}I", payload, layout.size)
    except struct.error as error:
        raise ValueError(f"the payload is not a message: {error}") from None
    start = layout.size + 4 * (named + keys + 2 * pairs)
    topic = payload[start : start + lengths[0]].decode()
    if version == 1:
        return Head(topic, born_at_ms)
    sequence, lane, flags = rest
    start += sum(lengths[:4])
    client_id = payload[start : start + lengths[4]].decode()
    return Head(topic, born_at_ms, client_id, lane, sequence, bool(flags & _TRIED))


def decode_message(payload: bytes, version: int = FORMAT_VERSION) -> Message:
    """Return the message of an intact record in a file of that format version.

    Raises:
        ValueError: `encode_message` does not return such a payload.
    """
    layout, named = (_PAYLOAD_1, 4) if version == 1 else (_PAYLOAD, 5)
    try:
        born_at_ms, queue_id, keys, pairs, *rest = layout.unpack_from(payload)
        count = named + keys + 2 * pairs
        lengths = struct.unpack_from(f"<{count}I", payload, layout.size)
    except struct.error as error:
        raise ValueError(f"the payload is not a message: {error}") from None
    position = layout.size + 4 * count
    if position + sum(lengths) > len(payload):
        raise ValueError("the payload is not a message: its strings are longer than it is")
    texts: list[str] = []
    for length in lengths:
        texts.append(payload[position : position + length].decode())
        position += length
    topic, message_id, tag, reason = texts[:4]
    lane_sequence, lane, flags = rest or (0, 0, 0)
    typed: Typed | None = None
    if flags & _IS_TYPED:
        typed, position = _typed_at(payload, position)
    properties = texts[named + keys :]
    return Message(
        topic=topic,
        queue_id=queue_id,
        reason=reason,
        client_id="" if version == 1 else texts[4],
        lane=lane,
        lane_sequence=lane_sequence,
        tried=bool(flags & _TRIED),
        went_back=bool(flags & _WENT_BACK),
        record=Record(
            body=payload[position:],
            message_id=message_id,
            tag=tag,
            keys=tuple(texts[named : named + keys]),
            properties=dict(zip(properties[::2], properties[1::2], strict=True)),
            born_at_ms=born_at_ms,
            typed=typed,
        ),
    )
