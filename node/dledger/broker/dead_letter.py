"""The DEAD_LETTER command: a consumer group's lease ends, and its message is a dead letter.

Both happen in one step, or neither. Little endian, no padding::

    offset  size  field
    0       1     version, 1
    1       1     flags, 0
    2       2     length of the consumer group's name
    4       8     receive id of the lease
    12      ..    consumer group (UTF-8)
    ..      1     23, the type of this command
    ..            PRODUCE payload of one message, without client id and mark, for the group's topic
                  of dead letters; where it was moved from names the lease

The inner payload is read like any other: to a delivery, a reader and a door a dead letter is a
message of its topic.
"""

from __future__ import annotations

import struct
from typing import Final

from dledger.broker.command_frame import (
    HEADER_BYTES,
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    frame,
)
from dledger.broker.commands import NUMBER_BOUND, LeaseRef
from dledger.broker.message import Columns, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.redelivery import dead_letter_topic
from dledger.types import MovedFrom

VERSION: Final = 1
_HEADER: Final = struct.Struct("<BBHQ")
_BACK: Final = bytes([CommandType.DEAD_LETTER])


def encode_dead_letter(group: str, receive_id: int, message: Message, *, born_host: str) -> bytes:
    """Return the framed command; *message* has an id, and says where it is moved from."""
    name = group.encode()
    inner = encode_produce(
        Columns.of([message]), client_id="", topic=dead_letter_topic(group), born_host=born_host
    )
    head = _HEADER.pack(VERSION, 0, len(name), receive_id)
    return frame(CommandType.DEAD_LETTER, head, name, _BACK, inner[HEADER_BYTES:])


class DeadLetter:
    """A DEAD_LETTER payload, at bytes ``[start, end)`` of an entry's data.

    Attributes:
        group: The consumer group.
        lease: Which of its leases ends.
        moved: Where the message is.
        batch: The message as it goes on.
        inner, end: Where its payload begins and ends.
    """

    __slots__ = ("batch", "end", "group", "inner", "lease", "moved")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        """Read it.

        Raises:
            UnknownCommandError: A newer version wrote it.
            MalformedCommandError: It is none.
        """
        _check_known(data, start, end)
        if end - start < _HEADER.size:
            raise MalformedCommandError(f"DEAD_LETTER payload of {end - start} bytes is too short")
        _, _, size, receive_id = _HEADER.unpack_from(data, start)
        name_at = start + _HEADER.size
        self.inner, self.end = name_at + size + len(_BACK), end
        if self.inner > end or data[self.inner - 1 : self.inner] != _BACK:
            raise MalformedCommandError("DEAD_LETTER does not say where its payload begins")
        try:
            self.group = str(data[name_at : name_at + size], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedCommandError(f"DEAD_LETTER with a group: {error}") from error
        self.batch = ProduceFrame(data, self.inner, end)
        self.moved = self._moved_from()
        self.lease = LeaseRef(self.moved.queue_id, self.moved.offset, receive_id)
        if min(self.moved.offset, self.moved.queue_id) < 0 or receive_id >= NUMBER_BOUND:
            raise MalformedCommandError("DEAD_LETTER of a lease that cannot be")

    def _moved_from(self) -> MovedFrom:
        batch = self.batch
        if batch.count != 1 or batch.replay is not None or batch.client_id:
            raise MalformedCommandError(f"DEAD_LETTER of {batch.count} messages, or of a producer")
        if batch.topic != dead_letter_topic(self.group):
            raise MalformedCommandError(f"DEAD_LETTER of {self.group!r} for {batch.topic!r}")
        typed = batch.message(0).typed
        if typed is None or typed.moved_from is None:
            raise MalformedCommandError("DEAD_LETTER does not say where its message is")
        return typed.moved_from


def _check_known(data: bytes, start: int, end: int) -> None:
    """Check only version and flags: a newer version may have changed the meaning of the rest."""
    if start < end and data[start] > VERSION:
        raise UnknownCommandError(f"DEAD_LETTER of version {data[start]}")
    if start + 1 < end and data[start] == VERSION and data[start + 1]:
        raise UnknownCommandError(f"DEAD_LETTER with flags {data[start + 1]:#x}")
    if start < end and data[start] != VERSION:
        raise MalformedCommandError(f"DEAD_LETTER of version {data[start]}")
