"""The framing of commands in an entry's data: one frame after another.

::

    0       4     5
    +-------+-----+---------------------+
    | u32 n | u8  | payload: n bytes    |   little endian, repeated to the end of the entry
    +-------+-----+---------------------+
      length  type

A servicer frames a command once; the driver concatenates the frames of many requests into one
entry, and `split` separates them again on every node. Nothing here looks inside a payload.
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
    GROW_TOPIC = 14
    LEAP = 15
    USE_FILTER = 16
    REKEEP = 17
    SET_RETENTION = 18
    ERASE = 19
    SEEK_GROUP = 20
    RECEIVE_AT = 21
    SET_GROUP = 22
    DEAD_LETTER = 23
    PRODUCE_HELD = 24
    RELEASE_HELD = 25
    CANCEL_HELD = 26
    PAUSE_HELD = 27
    RESUME_HELD = 28
    CHECK_HELD = 29


class MalformedCommandError(ValueError):
    """The bytes are not a command; the message says which part and why."""


class UnknownCommandError(MalformedCommandError):
    """The command, or a field of it, is only known to a newer version.

    A reader treats it as malformed; a node that applies the log must stop (`state`, ADR 19). It is
    recognised by type, field names, version byte and flags alone, before any other content is
    examined, so that all nodes of one feature level come to the same decision (`features`).
    """


def frame(kind: CommandType, *payload: bytes) -> bytes:
    """Return the parts of a payload, joined, after the frame's header."""
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
