"""How commands lie in an entry's data: one frame after another.

::

    0       4     5
    +-------+-----+---------------------+
    | u32 n | u8  | payload: n bytes    |   little endian, repeated to the end of the entry
    +-------+-----+---------------------+
      length  type

The gateway frames a command once; the driver concatenates the frames of many requests into one
entry, and `split` takes them apart again on every node. Nothing here looks inside a payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

_HEADER = struct.Struct("<IB")
HEADER_BYTES = _HEADER.size


class CommandType(IntEnum):
    """The type byte of a frame; numbers are on disk and never reused."""

    PRODUCE = 1
    CREATE_TOPIC = 2
    CREATE_GROUP = 3
    RECEIVE = 4
    ACK = 5
    CHANGE_INVISIBLE = 6
    RENEW = 7
    RELEASE = 8
    RETAIN = 9
    EXPIRE_GROUPS = 10
    DELETE_TOPIC = 11
    DELETE_GROUP = 12
    SET_SECRET = 13


class MalformedCommandError(ValueError):
    """The bytes are not a command; the message says which part and why."""


class UnknownCommandError(MalformedCommandError):
    """The bytes are a command that this version does not know, or not all of; a newer one does.

    To a reader it is malformed; who applies the log stops (`state`).
    Decided by type, field names, version byte and flags alone, before anything else of the content
    is looked at: so all nodes of one level decide alike (`features`).
    """


def frame(kind: CommandType, *payload: bytes) -> bytes:
    """Return the parts of a payload, joined, with their header in front."""
    return b"".join((_HEADER.pack(sum(map(len, payload)), kind), *payload))


def frame_type(command: bytes) -> int:
    """Return the type byte of one framed command."""
    return command[_HEADER.size - 1]


def split(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield ``(type, start, end)`` of each payload in *data*; the range is ``[start, end)``.

    Raises:
        MalformedCommandError: A frame is cut short. Frames before it were yielded already.
    """
    position = 0
    while position < len(data):
        if position + HEADER_BYTES > len(data):
            raise MalformedCommandError(f"frame header cut short at byte {position} of {len(data)}")
        length, kind = _HEADER.unpack_from(data, position)
        start = position + HEADER_BYTES
        position = start + length
        if position > len(data):
            raise MalformedCommandError(
                f"frame at byte {start} wants {length} bytes of {len(data)}"
            )
        yield kind, start, position
