"""The ERASE command: "nobody is shown the messages at these queue offsets any more".

The leader finds the messages of a key; the command has only where they are. Neither the key nor a
digest of it is in it: that would keep what is to go. Little endian, no padding; ``n`` offsets::

    offset  size  field
    0       1     version, 1
    1       1     flags, 0
    2       2     zero
    4       4     queue id, signed
    8       8     generation of the topic
    16      8     the lowest entry that stored one of the messages
    24      4     n, 1 to 4,096
    28      8n    queue offsets, ascending

It is tolerant: an offset where nothing is, or that the queue has not come to, is passed over. So a
log that was restored to an earlier time may be given the same command, before anything else is
stored there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise, starmap
from operator import lt
from typing import Final

from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    frame,
)

VERSION: Final = 1
MAX_OFFSETS: Final = 4_096
"""Offsets of one command, at most: a node applies them in one turn."""
_HEADER: Final = struct.Struct("<BBHiQQI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Messages of one queue that go.

    Attributes:
        generation, queue_id: The queue.
        first_entry: The lowest entry that stored one of them, as the leader has read; for people.
        offsets: Where they are, ascending.
    """

    generation: int
    queue_id: int
    first_entry: int
    offsets: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the framed command."""
        count = len(self.offsets)
        head = _HEADER.pack(VERSION, 0, 0, self.queue_id, self.generation, self.first_entry, count)
        return frame(CommandType.ERASE, head, struct.pack(f"<{count}Q", *self.offsets))

    @classmethod
    def decode(cls, data: bytes, start: int, end: int) -> Erase:
        """Return the command whose payload is bytes ``[start, end)`` of *data*.

        Raises:
            UnknownCommandError: A newer version wrote it.
            MalformedCommandError: It is not one.
        """
        _check_known(data, start, end)
        if end - start < _HEADER.size:
            raise MalformedCommandError(f"ERASE payload of {end - start} bytes is too short")
        _, _, zero, queue_id, generation, first_entry, count = _HEADER.unpack_from(data, start)
        at = start + _HEADER.size
        if zero or not 1 <= count <= MAX_OFFSETS or at + 8 * count != end:
            raise MalformedCommandError(f"ERASE of {count} offsets in {end - start} bytes")
        offsets = struct.unpack_from(f"<{count}Q", data, at)
        if not all(starmap(lt, pairwise(offsets))):
            raise MalformedCommandError(f"ERASE of {count} offsets that do not ascend")
        return cls(
            generation=generation, queue_id=queue_id, first_entry=first_entry, offsets=offsets
        )


def _check_known(data: bytes, start: int, end: int) -> None:
    """Check only version and flags: a newer version may have changed the meaning of the rest."""
    if start < end and data[start] > VERSION:
        raise UnknownCommandError(f"ERASE of version {data[start]}")
    if start + 1 < end and data[start + 1]:
        raise UnknownCommandError(f"ERASE with flags {data[start + 1]:#x}")
    if start < end and data[start] != VERSION:
        raise MalformedCommandError(f"ERASE of version {data[start]}")
