"""The columns of a PRODUCE that only some types of topics know (`types.Typed`).

They stand behind the trace contexts, each only if a message of the batch has what it says::

    strings: message groups ("" = none)                             if flag 256
    8n    not to be delivered before, Unix ms, signed; 0: at once   if flag 512
    4n    priority, signed; -1: none                                if flag 1024
    of each message, where its group moved it from:                 if flag 2048
      strings: topics ("" = its producer sent it here; then the rest of the row is 0)
      8n    generation of that topic, signed
      8n    queue offset there, signed; -1: it had none
      8n    when it was stored there, Unix ms, signed
      4n    queue id there, signed; -1: it was in none
      4n    how often it had been delivered there
      strings: born hosts

Used by `produce`, which has the other columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.string_columns import Strings, texts
from dledger.types import NO_PRIORITY, MovedFrom, Typed

_HAS_GROUPS: Final = 256
_HAS_TIMES: Final = 512
_HAS_PRIORITIES: Final = 1024
_HAS_MOVES: Final = 2048
TYPED_FLAGS: Final = _HAS_GROUPS | _HAS_TIMES | _HAS_PRIORITIES | _HAS_MOVES
FIELDS: Final = {
    _HAS_GROUPS: "message_group",
    _HAS_TIMES: "delivery_timestamp",
    _HAS_PRIORITIES: "priority",
    _HAS_MOVES: "moved_from",
}
"""What a topic's type is asked about a column (`topics.TopicType.check`)."""
_NOT_MOVED: Final = MovedFrom(topic="", generation=0, queue_id=0, offset=0, stored_at_ms=0)
_NOTHING: Final = Typed()
_I64: Final = struct.Struct("<q")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")


def encode_typed(items: Sequence[Typed | None]) -> tuple[int, list[bytes]]:
    """Return the flags and the columns of a batch of which some messages have something."""
    flags, columns, count = 0, list[bytes](), len(items)
    rows = [_NOTHING if each is None else each for each in items]
    groups = [row.message_group for row in rows]
    if any(groups):
        flags |= _HAS_GROUPS
        columns += texts(groups)
    times = [row.deliver_at_ms for row in rows]
    if any(times):
        flags |= _HAS_TIMES
        columns.append(struct.pack(f"<{count}q", *times))
    priorities = [row.priority for row in rows]
    if any(priority != NO_PRIORITY for priority in priorities):
        flags |= _HAS_PRIORITIES
        columns.append(struct.pack(f"<{count}i", *priorities))
    if any(row.moved_from is not None for row in rows):
        flags |= _HAS_MOVES
        columns += _moves([row.moved_from or _NOT_MOVED for row in rows])
    return flags, columns


def _moves(rows: Sequence[MovedFrom]) -> list[bytes]:
    count = len(rows)
    return [
        *texts([row.topic for row in rows]),
        struct.pack(f"<{count}q", *(row.generation for row in rows)),
        struct.pack(f"<{count}q", *(row.offset for row in rows)),
        struct.pack(f"<{count}q", *(row.stored_at_ms for row in rows)),
        struct.pack(f"<{count}i", *(row.queue_id for row in rows)),
        struct.pack(f"<{count}I", *(row.attempts for row in rows)),
        *texts([row.born_host for row in rows]),
    ]


class TypedColumns:
    """These columns inside a payload.

    Attributes:
        flags: Those of them that are there.
        end: Where the next column starts.
    """

    __slots__ = (
        "_count",
        "_data",
        "_groups",
        "_moves",
        "_priorities_at",
        "_times_at",
        "end",
        "flags",
    )

    def __init__(self, data: bytes, start: int, end: int, *, count: int, flags: int) -> None:
        """Find them from byte *start* on. Raises MalformedCommandError."""
        self._data, self._count, self.flags = data, count, flags & TYPED_FLAGS
        self._groups: Strings | None = None
        self._moves: _Moves | None = None
        self._times_at = self._priorities_at = 0
        position = start
        if flags & _HAS_GROUPS:
            self._groups = Strings(data, position, end, count)
            position = self._groups.end
        if flags & _HAS_TIMES:
            self._times_at = position
            position += 8 * count
        if flags & _HAS_PRIORITIES:
            self._priorities_at = position
            position += 4 * count
        if flags & _HAS_MOVES:
            self._moves = _Moves(data, position, end, count)
            position = self._moves.end
        if position > end:
            raise MalformedCommandError(
                f"columns for a type of topic at byte {start} are cut short"
            )
        self.end = position

    @property
    def fields(self) -> list[str]:
        """What they are called."""
        return [name for flag, name in FIELDS.items() if flag & self.flags]

    def groups(self) -> list[bytes]:
        """Return every message's group, UTF-8. Raises MalformedCommandError."""
        return self._groups.all() if self._groups is not None else [b""] * self._count

    def deliver_at_ms(self) -> tuple[int, ...]:
        """Return before when each is not to be delivered."""
        if not self._times_at:
            return (0,) * self._count
        return struct.unpack_from(f"<{self._count}q", self._data, self._times_at)

    def priorities(self) -> tuple[int, ...]:
        """Return every message's priority."""
        if not self._priorities_at:
            return (NO_PRIORITY,) * self._count
        return struct.unpack_from(f"<{self._count}i", self._data, self._priorities_at)

    def row(self, row: int) -> Typed | None:
        """Return what one message has; None: nothing.

        Raises:
            ValueError: This row's offsets, text or numbers are broken.
        """
        data, priority = self._data, NO_PRIORITY
        if self._priorities_at:
            (priority,) = _I32.unpack_from(data, self._priorities_at + 4 * row)
        if priority < NO_PRIORITY:
            raise MalformedCommandError(f"a priority of {priority}")
        found = Typed(
            message_group=self._groups[row].decode() if self._groups is not None else "",
            deliver_at_ms=(
                _I64.unpack_from(data, self._times_at + 8 * row)[0] if self._times_at else 0
            ),
            priority=priority,
            moved_from=self._moves.row(row) if self._moves is not None else None,
        )
        return None if found == _NOTHING else found


class _Moves:
    """The columns that say where each message was before."""

    __slots__ = (
        "_attempts_at",
        "_count",
        "_data",
        "_hosts",
        "_numbers_at",
        "_queues_at",
        "_topics",
        "end",
    )

    def __init__(self, data: bytes, start: int, end: int, count: int) -> None:
        self._data, self._count = data, count
        self._topics = Strings(data, start, end, count)
        self._numbers_at = self._topics.end
        self._queues_at = self._numbers_at + 24 * count
        self._attempts_at = self._queues_at + 4 * count
        self._hosts = Strings(data, self._attempts_at + 4 * count, end, count)
        self.end = self._hosts.end

    def row(self, row: int) -> MovedFrom | None:
        topic, host = self._topics[row].decode(), self._hosts[row].decode()
        if not topic:
            return None
        data, at, width = self._data, self._numbers_at + 8 * row, 8 * self._count
        (generation,) = _I64.unpack_from(data, at)
        (offset,) = _I64.unpack_from(data, at + width)
        (stored_at_ms,) = _I64.unpack_from(data, at + 2 * width)
        (queue_id,) = _I32.unpack_from(data, self._queues_at + 4 * row)
        (attempts,) = _U32.unpack_from(data, self._attempts_at + 4 * row)
        return MovedFrom(
            topic=topic,
            generation=generation,
            queue_id=queue_id,
            offset=offset,
            stored_at_ms=stored_at_ms,
            born_host=host,
            attempts=attempts,
        )
