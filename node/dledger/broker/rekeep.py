"""The REKEEP command: "of these queue offsets exactly these rows are there now".

The leader copies what its group's retention is about to drop and the topic keeps for longer. Little
endian, no padding; ``n`` rows::

    offset  size  field
    0       1     version, 1
    1       1     flags: 1 born hosts, 2 lone tombstones
    2       2     zero
    4       4     queue id, signed
    8       8     generation of the topic
    16      8     first offset that it decides
    24      8     the offset behind the last one
    32      4     n, at most 4,096; if it is 0, nothing follows: all of them go
    36      8n    queue offsets, ascending
    ..      8n    when each was stored, Unix milliseconds, signed
    ..      8n    the entry that stored each
    ..            4(n+1) offsets of born hosts, the first is 0          if flag 1
    ..            the bytes that they cut up, UTF-8                     if flag 1
    ..      4     m, 1 to n                                             if flag 2
    ..      4m    rows of lone tombstones, ascending                    if flag 2
    ..      8m    since when each is known to be one, Unix ms, signed   if flag 2
    ..      4     bytes from 0 to here
    ..      1     17, the type of this command
    ..            PRODUCE payload of n rows, without client id and mark

The inner payload is read like any other: a delivery, a reader and a door need nothing new for it.
The byte before it tells it from a PRODUCE command's, before whose payload there is a 1; so whoever
has a payload finds what the rows had as their own when they were stored (`origins`).

A lone tombstone is the only message of its key that is left. Since when that is known lies with it
and is copied with it (`alone_since`): a tombstone may go only so much later, and no leader, backup
or snapshot has to remember it (`replica.compacting`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    frame,
)
from dledger.broker.kept_blocks import MAX_ROWS
from dledger.broker.message import Columns
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.types import MAX_NUMBER, Entry

VERSION: Final = 1
HAS_HOSTS: Final = 1
HAS_ALONE: Final = 2
REKEPT: Final = int(CommandType.REKEEP)
"""The byte before a payload in a REKEEP, and before no other."""
_HEADER: Final = struct.Struct("<BBHiQQQI")
_BACK: Final = struct.Struct("<IB")
_FRAME_BYTES: Final = 5


class Origin(NamedTuple):
    """What a message had when it was stored, wherever it lies now.

    Attributes:
        entry: The entry that stored it.
        stored_at_ms: That entry's timestamp.
        born_host: Its producer's address.
    """

    entry: int
    stored_at_ms: int
    born_host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a REKEEP is to say.

    Attributes:
        queue_id, topic, generation: The queue.
        first, to: Queue offsets ``[first, to)`` are decided.
        offsets: Those of them that are there from now on.
        origins: Of each, what it had when it was stored.
        messages: Of each, the message; every one has an id.
        alone: By row, ascending, which of them are tombstones that are known to be the only message
            of their key, and since when, Unix milliseconds.
    """

    topic: str
    generation: int
    queue_id: int
    first: int
    to: int
    offsets: Sequence[int] = ()
    origins: Sequence[Origin] = ()
    messages: Columns | None = None
    alone: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the framed command."""
        count = len(self.offsets)
        hosts = [origin.born_host.encode() for origin in self.origins]
        flags = (HAS_HOSTS if any(hosts) else 0) | (HAS_ALONE if self.alone else 0)
        head = _HEADER.pack(
            VERSION, flags, 0, self.queue_id, self.generation, self.first, self.to, count
        )
        if self.messages is None:
            return frame(CommandType.REKEEP, head)
        columns = b"".join(
            (
                head,
                struct.pack(f"<{count}Q", *self.offsets),
                struct.pack(f"<{count}q", *(origin.stored_at_ms for origin in self.origins)),
                struct.pack(f"<{count}Q", *(origin.entry for origin in self.origins)),
                *(_texts(hosts) if flags & HAS_HOSTS else ()),
                *(_times_of_rows(self.alone) if self.alone else ()),
            )
        )
        inner = encode_produce(
            self.messages, client_id="", topic=self.topic, queue_id=self.queue_id
        )
        back = _BACK.pack(len(columns) + 4, CommandType.REKEEP)
        return frame(CommandType.REKEEP, columns, back, inner[_FRAME_BYTES:])


class Rekeep:
    """A REKEEP payload, at bytes ``[start, end)`` of an entry's data.

    Attributes:
        queue_id, generation, first, to, offsets: See `Kept`.
        stored_at_ms: When each of the rows was stored.
        newest_ms: When the newest of them was stored; 0 if there is none.
        inner: Where the inner PRODUCE payload begins; *end* if there is none.
        topic: The topic that the inner payload names; empty if there is none.
    """

    __slots__ = (
        "end",
        "first",
        "generation",
        "inner",
        "newest_ms",
        "offsets",
        "queue_id",
        "stored_at_ms",
        "to",
        "topic",
    )

    def __init__(self, data: bytes, start: int, end: int) -> None:
        """Find everything but the messages.

        Raises:
            UnknownCommandError: A newer version wrote it.
            MalformedCommandError: It is not one.
        """
        columns = _Columns(data, start, end)
        self.queue_id, self.generation = columns.queue_id, columns.generation
        self.first, self.to = columns.first, columns.to
        self.inner, self.end, self.topic = end, end, ""
        self.newest_ms = 0
        self.offsets: tuple[int, ...] = ()
        self.stored_at_ms: tuple[int, ...] = ()
        if not columns.count:
            return
        self.offsets, self.inner = columns.offsets(), columns.inner
        self.stored_at_ms = columns.stored_at_ms()
        self.newest_ms = max(self.stored_at_ms)
        try:
            columns.hosts()
        except UnicodeDecodeError as error:
            raise MalformedCommandError(f"REKEEP with a born host: {error}") from error
        rows = (-1, *columns.alone_rows(), columns.count)
        if not all(earlier < later for earlier, later in pairwise(rows)):
            raise MalformedCommandError("REKEEP with lone tombstones that do not ascend")
        bounds = (self.first - 1, *self.offsets, self.to)
        if not all(earlier < later for earlier, later in pairwise(bounds)):
            raise MalformedCommandError(f"offsets do not ascend in [{self.first}, {self.to})")
        inner = ProduceFrame(data, self.inner, end)
        if inner.count != columns.count or inner.client_id or inner.replay is not None:
            raise MalformedCommandError(
                f"a payload of {inner.count} messages of {inner.client_id!r} for {columns.count} "
                "rows of nobody's"
            )
        self.topic = inner.topic


class _Columns:
    """The columns of a REKEEP payload; what is malformed is told when it is asked for."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        _check_known(data, start, end)
        if end - start < _HEADER.size:
            raise MalformedCommandError(f"REKEEP payload of {end - start} bytes is too short")
        self._data = data
        (
            _,
            flags,
            zero,
            self.queue_id,
            self.generation,
            self.first,
            self.to,
            self.count,
        ) = _HEADER.unpack_from(data, start)
        self._at = start + _HEADER.size
        if zero or self.count > MAX_ROWS or not self.first < self.to <= MAX_NUMBER:
            raise MalformedCommandError(
                f"REKEEP of {self.count} rows in offsets [{self.first}, {self.to})"
            )
        position = self._at + 24 * self.count
        if position + (_BACK.size if self.count else 0) > end:
            raise MalformedCommandError(f"REKEEP of {self.count} rows is cut short")
        if not self.count and (flags or position != end):
            raise MalformedCommandError("REKEEP without rows has more than a head")
        self._hosts_at = position if flags & HAS_HOSTS else 0
        position = self._behind_hosts(end) if flags & HAS_HOSTS else position
        self._alone_at = position if flags & HAS_ALONE else 0
        position = self._behind_alone(end) if flags & HAS_ALONE else position
        self.inner = position + (_BACK.size if self.count else 0)
        if self.count and (
            self.inner >= end
            or _BACK.unpack_from(data, position) != (position + 4 - start, CommandType.REKEEP)
        ):
            raise MalformedCommandError("REKEEP does not say where its payload begins")

    def offsets(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.count}Q", self._data, self._at)

    def stored_at_ms(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.count}q", self._data, self._at + 8 * self.count)

    def indexes(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.count}Q", self._data, self._at + 16 * self.count)

    def _behind_hosts(self, end: int) -> int:
        bytes_at: int = self._hosts_at + 4 * (self.count + 1)
        if bytes_at > end:
            raise MalformedCommandError("REKEEP is cut short in its born hosts")
        bounds = self._host_bounds()
        if bounds[0] or list(bounds) != sorted(bounds) or bytes_at + bounds[-1] > end:
            raise MalformedCommandError("REKEEP has born hosts that do not follow each other")
        return bytes_at + int(bounds[-1])

    def _behind_alone(self, end: int) -> int:
        at: int = self._alone_at + 4
        marks = self._alone_count() if at <= end else 0
        if not 1 <= marks <= self.count or at + 12 * marks > end:
            raise MalformedCommandError(
                f"REKEEP of {self.count} rows with {marks} lone tombstones, or cut short in them"
            )
        return at + 12 * marks

    def _alone_count(self) -> int:
        (marks,) = struct.unpack_from("<I", self._data, self._alone_at)
        return int(marks)

    def alone_rows(self) -> tuple[int, ...]:
        if not self._alone_at:
            return ()
        return struct.unpack_from(f"<{self._alone_count()}I", self._data, self._alone_at + 4)

    def alone(self) -> dict[int, int]:
        rows = self.alone_rows()
        times_at = self._alone_at + 4 + 4 * len(rows)
        times = struct.unpack_from(f"<{len(rows)}q", self._data, times_at)
        return dict(zip(rows, times, strict=True))

    def _host_bounds(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.count + 1}I", self._data, self._hosts_at)

    def hosts(self) -> list[str]:
        if not self._hosts_at:
            return [""] * self.count
        at = self._hosts_at + 4 * (self.count + 1)
        bounds = pairwise(self._host_bounds())
        return [str(self._data[at + low : at + high], "utf-8") for low, high in bounds]


def _texts(items: Sequence[bytes]) -> tuple[bytes, bytes]:
    bounds = tuple(accumulate(map(len, items), initial=0))
    return struct.pack(f"<{len(bounds)}I", *bounds), b"".join(items)


def _times_of_rows(times: Mapping[int, int]) -> tuple[bytes, bytes]:
    count = len(times)
    return struct.pack(f"<{count + 1}I", count, *times), struct.pack(f"<{count}q", *times.values())


def _check_known(data: bytes, start: int, end: int) -> None:
    """Check only version and flags: a newer version may have changed the meaning of the rest."""
    if start < end and data[start] > VERSION:
        raise UnknownCommandError(f"REKEEP of version {data[start]}")
    if start + 1 < end and (more := data[start + 1] & ~(HAS_HOSTS | HAS_ALONE)):
        raise UnknownCommandError(f"REKEEP with flags {more:#x}")
    if start < end and data[start] != VERSION:
        raise MalformedCommandError(f"REKEEP of version {data[start]}")


def origins(entry: Entry, start: int, end: int) -> list[Origin]:
    """Return what each row of a REKEEP's payload had when it was stored.

    *start* and *end* are the payload's bounds in the entry's data; `REKEPT` is before them.

    Raises:
        MalformedCommandError: It is a REKEEP's that was applied, and damaged nevertheless.
    """
    columns = _columns_before(entry, start, end)
    rows = zip(columns.indexes(), columns.stored_at_ms(), columns.hosts(), strict=True)
    return list(map(Origin._make, rows))


def alone_since(entry: Entry, start: int, end: int) -> dict[int, int]:
    """Return which rows of a REKEEP's payload are lone tombstones, and since when that is known.

    Unix milliseconds of the log, by row. Arguments and errors are those of `origins`.
    """
    return _columns_before(entry, start, end).alone()


def _columns_before(entry: Entry, start: int, end: int) -> _Columns:
    (back, _) = _BACK.unpack_from(entry.data, start - _BACK.size)
    return _Columns(entry.data, start - 1 - back, end)
