"""PRODUCE_HELD and RELEASE_HELD: messages that are held, and what is done with them later.

Little endian, no padding. PRODUCE_HELD, "hold these messages until they are released"::

    offset  size  field
    0       1     version, 1
    1       1     kind: 1 timers, 2 halves
    2       2     zero
    4       4     n, at least 1
    8       8n    when each is due, Unix milliseconds, signed
    ..      1     24, the type of this command
    ..            PRODUCE payload of n rows

RELEASE_HELD, "these messages are here now"::

    offset  size  field
    0       1     version, 1
    1       1     what: 1 they are delivered, 2 they stay held, and lie in this payload
    2       2     zero
    4       4     n, at least 1
    8       8     generation of the topic
    16      8n    names: hour, slot, 4 bytes each; none twice
    ..      1     25, the type of this command
    ..            PRODUCE payload of n rows, without client id and mark

The inner payload is read like any other: a delivery, a reader and a door need nothing new for it.
A RELEASE_HELD has copies of the messages, so that what was held keeps no older entry once it is
delivered, and a long wait is a chain of copies (adr 78).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from dledger.broker.command_frame import (
    HEADER_BYTES,
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    frame,
)
from dledger.broker.held_refs import HOUR_BITS, HOUR_MS, SLOT_BITS, Kind, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import NO_QUEUE, ProduceFrame, encode_produce

VERSION: Final = 1
_PRODUCE: Final = struct.Struct("<BBHI")
_RELEASE: Final = struct.Struct("<BBHIQ")
_DUE_BEFORE_MS: Final = HOUR_MS << HOUR_BITS


class What(IntEnum):
    """What a RELEASE_HELD does; numbers are in the log."""

    DELIVER = 1
    """Append those that are still held to a queue."""
    MOVE = 2
    """Let those that are still held lie in this entry: their old ones are dropped next."""


def encode_produce_held(kind: Kind, due_ms: Sequence[int], produce: bytes) -> bytes:
    """Return the framed PRODUCE_HELD of the messages of a framed PRODUCE.

    *due_ms*: When each is due, Unix milliseconds; for timers what their producers have asked for.
    """
    count = len(due_ms)
    return frame(
        CommandType.PRODUCE_HELD,
        _PRODUCE.pack(VERSION, kind, 0, count),
        struct.pack(f"<{count}q", *due_ms),
        bytes([CommandType.PRODUCE_HELD]),
        produce[HEADER_BYTES:],
    )


def encode_release_held(
    what: What,
    refs: Sequence[Ref],
    messages: Columns,
    *,
    topic: str,
    generation: int,
    queue_id: int = NO_QUEUE,
    born_host: str = "",
) -> bytes:
    """Return the framed RELEASE_HELD of *messages*, which are called *refs*, of one topic.

    Those that are delivered go to the queue of *queue_id*; `NO_QUEUE`: to the topic's next one.
    """
    count = len(refs)
    produce = encode_produce(
        messages, client_id="", topic=topic, queue_id=queue_id, born_host=born_host
    )
    return frame(
        CommandType.RELEASE_HELD,
        _RELEASE.pack(VERSION, what, 0, count, generation),
        struct.pack(f"<{2 * count}I", *(part for ref in refs for part in ref)),
        bytes([CommandType.RELEASE_HELD]),
        produce[HEADER_BYTES:],
    )


class ProduceHeld:
    """A PRODUCE_HELD payload, at bytes ``[start, end)`` of an entry's data.

    Attributes:
        kind: Why the messages are held.
        due_ms: When each is due.
        batch: The messages.
        inner, end: Where their payload begins and ends.
    """

    __slots__ = ("batch", "due_ms", "end", "inner", "kind")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        """Read it.

        Raises:
            UnknownCommandError: A newer version wrote it.
            MalformedCommandError: It is none.
        """
        self.kind = Kind(_kind_of(_PRODUCE, data, start, end))
        (count,) = _numbers(_PRODUCE, data, start, end)
        self.inner = start + _PRODUCE.size + 8 * count + 1
        self.end = end
        self.batch = _batch(data, self.inner, end, count)
        self.due_ms: tuple[int, ...] = struct.unpack_from(f"<{count}q", data, start + _PRODUCE.size)
        if not 0 <= min(self.due_ms) <= max(self.due_ms) < _DUE_BEFORE_MS:
            raise MalformedCommandError(
                "PRODUCE_HELD of messages that are due before 1970 or never"
            )


class ReleaseHeld:
    """A RELEASE_HELD payload, at bytes ``[start, end)`` of an entry's data.

    Attributes:
        what: What is done with them.
        generation: The topic that all of them were sent to.
        refs: What they are called.
        batch: The messages.
        inner, end: Where their payload begins and ends.
    """

    __slots__ = ("batch", "end", "generation", "inner", "refs", "what")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        """Read it. Raises UnknownCommandError and MalformedCommandError like `ProduceHeld`."""
        self.what = What(_kind_of(_RELEASE, data, start, end))
        count, self.generation = _numbers(_RELEASE, data, start, end)
        self.inner = start + _RELEASE.size + 8 * count + 1
        self.end = end
        self.batch = _batch(data, self.inner, end, count)
        if self.batch.client_id or self.batch.replay is not None:
            raise MalformedCommandError("RELEASE_HELD of messages of a producer")
        numbers = struct.unpack_from(f"<{2 * count}I", data, start + _RELEASE.size)
        self.refs = list(map(Ref, numbers[::2], numbers[1::2]))
        if len(set(self.refs)) < count:
            raise MalformedCommandError("RELEASE_HELD names a message twice")
        if max(numbers[::2]) >> HOUR_BITS or max(numbers[1::2]) >> SLOT_BITS:
            raise MalformedCommandError("RELEASE_HELD names a message that cannot be")


_NAMES: Final = {_PRODUCE: "PRODUCE_HELD", _RELEASE: "RELEASE_HELD"}
_MEANINGS: Final = {_PRODUCE: max(Kind), _RELEASE: max(What)}


def _kind_of(form: struct.Struct, data: bytes, start: int, end: int) -> int:
    """Return the second byte; of a newer version, or with a newer meaning, no more is examined."""
    name = _NAMES[form]
    if start < end and data[start] > VERSION:
        raise UnknownCommandError(f"{name} of version {data[start]}")
    if end - start < form.size or data[start] != VERSION:
        raise MalformedCommandError(f"{name} payload of {end - start} bytes")
    if data[start + 1] > _MEANINGS[form]:
        raise UnknownCommandError(f"{name} of kind {data[start + 1]}")
    if not data[start + 1]:
        raise MalformedCommandError(f"{name} of no kind")
    return data[start + 1]


def _numbers(form: struct.Struct, data: bytes, start: int, end: int) -> tuple[int, ...]:
    """Return how many messages there are, and the numbers behind that."""
    name = _NAMES[form]
    _, _, zero, *numbers = form.unpack_from(data, start)
    inner = start + form.size + 8 * numbers[0] + 1
    if zero or numbers[0] < 1 or inner > end:
        raise MalformedCommandError(f"{name} of {numbers[0]} messages is cut short")
    if data[inner - 1] != CommandType[name]:
        raise MalformedCommandError(f"{name} does not say where its payload begins")
    return tuple(numbers)


def _batch(data: bytes, start: int, end: int, count: int) -> ProduceFrame:
    batch = ProduceFrame(data, start, end)
    if batch.count != count:
        raise MalformedCommandError(f"a payload of {batch.count} messages for {count}")
    return batch
