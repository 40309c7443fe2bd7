"""The PRODUCE payload: a batch of messages as columns, encoded once and never re-encoded.

Little endian, no padding; ``n`` messages::

    offset  size  field
    0       1     version, 1
    1       1     flags: 1 encodings, 2 tags, 4 keys, 8 properties, 16 trace contexts, 32 mark
    2       2     length of client id
    4       1     length of topic
    5       1     further flags: 256 message groups, 512 delivery times, 1024 priorities,
                  2048 where each was moved from
    6       2     length of born host
    8       4     queue id, signed; -1: chosen when applied
    12      4     n, at least 1
    16      24    mark of a replay: key of the lane, u64 first sequence   if flag 32
            ..    client id, topic, born host (UTF-8)
            8n    born_at_ms, signed 64 bit
            n     encoding of each body (1 identity, 2 gzip)            if flag 1
            ..    strings: message ids ("" = not deduplicated)
            ..    strings: tags                                         if flag 2
            ..    lists:   4(n+1) list offsets, strings: keys           if flag 4
            ..    lists:   4(n+1) list offsets, strings: names,
                           strings: values                              if flag 8
            ..    strings: trace contexts                               if flag 16
            ..    what only some types of topics know (`typed_columns`) by further flags
            ..    strings: bodies, to the end of the payload

    strings of m items:  u32[m+1] offsets (the first is 0), then the bytes they cut up

The variable columns are laid out like Arrow's ``binary``, ``list`` and ``map`` arrays, so a
reader with numpy or pyarrow takes each column as buffers without a loop over messages. An absent
column means: every message has its default. `ProduceFrame` reads only what is asked for: applying
a frame touches ids and tags, delivering one message touches one row.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from dledger.broker.body_digests import Digests, digest_of, with_times
from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    frame,
)
from dledger.broker.id_runs import Ids
from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.string_columns import Lists, Strings, lists, offsets_of, texts
from dledger.broker.typed_columns import TYPED_FLAGS, TypedColumns, encode_typed
from dledger.common.replay_mark import MARK_BYTES, MAX_SEQUENCE, ReplayMark, mark_at
from dledger.types import Typed

VERSION = 1
NO_QUEUE = -1
HEADER = struct.Struct("<BBHBBHiI")
"""Version, flags, lengths of client id and topic, further flags, length of born host, queue, n."""
FURTHER_AT = 5
"""Where the further flags stand; they count from 256 on."""
_QUEUE = struct.Struct("<i")
_QUEUE_AT = 8
_FRAME_BYTES = 5
"""Of a command's length and type, before the payload."""
_HAS_ENCODINGS, _HAS_TAGS, _HAS_KEYS, _HAS_PROPERTIES, _HAS_TRACES = 1, 2, 4, 8, 16
HAS_MARK = 32
_FIRST_FLAGS = _HAS_ENCODINGS | _HAS_TAGS | _HAS_KEYS | _HAS_PROPERTIES | _HAS_TRACES | HAS_MARK
FLAGS = _FIRST_FLAGS | TYPED_FLAGS
_FEW = 4
"""Of so many rows, to read one by itself costs less than its column."""

_IDENTITY = bytes([Encoding.IDENTITY])


def encode_produce(
    batch: Columns,
    *,
    client_id: str,
    topic: str,
    queue_id: int = NO_QUEUE,
    born_host: str = "",
    replay: ReplayMark | None = None,
) -> bytes:
    """Return the framed PRODUCE command for a batch, whose messages share topic and queue."""
    client, name, host = client_id.encode(), topic.encode(), born_host.encode()
    count = len(batch.bodies)
    flags, encodings, columns = _optional_columns(batch)
    flags |= HAS_MARK if replay is not None else 0
    further = 0
    if any(batch.typed):
        typed, more = encode_typed(batch.typed)
        further = typed >> 8
        columns += more
    return frame(
        CommandType.PRODUCE,
        HEADER.pack(VERSION, flags, len(client), len(name), further, len(host), queue_id, count),
        replay.encode() if replay is not None else b"",
        client,
        name,
        host,
        struct.pack(f"<{count}q", *batch.born_at_ms),
        encodings,
        *texts(batch.message_ids),
        *columns,
        offsets_of(map(len, batch.bodies)),
        *batch.bodies,
    )


def _optional_columns(batch: Columns) -> tuple[int, bytes, list[bytes]]:
    """Return the flags, the encodings, and the other columns that are not all defaults."""
    flags, columns = 0, list[bytes]()
    encodings = bytes(batch.encodings)
    if encodings.strip(_IDENTITY):
        flags |= _HAS_ENCODINGS
    if any(batch.tags):
        flags |= _HAS_TAGS
        columns += texts(batch.tags)
    if any(batch.keys):
        flags |= _HAS_KEYS
        columns += lists(batch.keys)
    if any(batch.properties):
        flags |= _HAS_PROPERTIES
        columns += lists(batch.properties)
        columns += texts([v for each in batch.properties for v in each.values()])
    if any(batch.trace_contexts):
        flags |= _HAS_TRACES
        columns += texts(batch.trace_contexts)
    return flags, encodings if flags & _HAS_ENCODINGS else b"", columns


class ProduceFrame:
    """A PRODUCE payload seen through its columns; nothing is copied until it is asked for.

    Attributes:
        client_id: The scope of the idempotency keys.
        topic: Where the messages go.
        queue_id: The queue asked for, or `NO_QUEUE`.
        count: Number of messages.
        born_host: The producer's address, as the producer gave it.
        replay: The mark of a replay; None if it is none.
        typed: The columns that only some types of topics know; None if there are none.
    """

    __slots__ = (
        "_bodies",
        "_born_at",
        "_data",
        "_encodings_at",
        "_ids",
        "_keys",
        "_properties",
        "_tags",
        "_traces",
        "born_host",
        "client_id",
        "count",
        "queue_id",
        "replay",
        "topic",
        "typed",
    )

    def __init__(self, data: bytes, start: int, end: int) -> None:
        """Find the columns of the payload at ``[start, end)`` of *data*.

        Raises:
            UnknownCommandError: A newer version wrote it; nothing else of its layout is known.
            MalformedCommandError: The columns do not fill the payload exactly.
        """
        _check_known(data, start, end)
        if end - start < HEADER.size:
            raise MalformedCommandError(f"PRODUCE payload of {end - start} bytes is too short")
        version, flags, client, topic, further, host, queue_id, count = HEADER.unpack_from(
            data, start
        )
        if version != VERSION or count < 1 or 9 * count > end - start:
            raise MalformedCommandError(f"PRODUCE version {version} with {count} messages")
        self._data = data
        self.queue_id: int = queue_id
        self.count: int = count
        position = start + HEADER.size
        self.replay = _mark(data, position, end, count) if flags & HAS_MARK else None
        position += MARK_BYTES if flags & HAS_MARK else 0
        try:
            self.client_id = str(data[position : position + client], "utf-8")
            position += client
            self.topic = str(data[position : position + topic], "utf-8")
            position += topic
            self.born_host = str(data[position : position + host], "utf-8")
            position += host
        except UnicodeDecodeError as error:
            raise MalformedCommandError(f"PRODUCE names are not UTF-8: {error}") from error
        self._born_at = position
        position += 8 * count
        self._encodings_at = position if flags & _HAS_ENCODINGS else 0
        position += count if flags & _HAS_ENCODINGS else 0
        self._find_columns(position, end, flags, further)

    def _find_columns(self, position: int, end: int, flags: int, further: int) -> None:
        data, count = self._data, self.count
        self._tags: Strings | None = None
        self._keys: Lists | None = None
        self._properties: Lists | None = None
        self._traces: Strings | None = None
        self._ids = Strings(data, position, end, count)
        position = self._ids.end
        if flags & _HAS_TAGS:
            self._tags = Strings(data, position, end, count)
            position = self._tags.end
        if flags & _HAS_KEYS:
            self._keys = Lists(data, position, end, count, columns=1)
            position = self._keys.end
        if flags & _HAS_PROPERTIES:
            self._properties = Lists(data, position, end, count, columns=2)
            position = self._properties.end
        if flags & _HAS_TRACES:
            self._traces = Strings(data, position, end, count)
            position = self._traces.end
        self.typed: TypedColumns | None = None
        if further:
            self.typed = TypedColumns(data, position, end, count=count, flags=further << 8)
            position = self.typed.end
        self._bodies = Strings(data, position, end, count)
        if self._bodies.end != end:
            raise MalformedCommandError(f"{end - self._bodies.end} bytes after the last body")

    @property
    def has_ids(self) -> bool:
        """Whether any message has an idempotency key."""
        return self._ids.size_bytes > 0

    def message_ids(self) -> tuple[bytes, ...]:
        """Return every message's id, UTF-8; empty where there is none."""
        return self._ids.all_ids()

    def ids(self) -> Ids:
        """Return every message's id, as a run if they count up."""
        return self._ids.ids()

    def id_sizes(self) -> list[int]:
        """Return the bytes of every message's id. Raises MalformedCommandError."""
        return self._ids.sizes()

    def born_at_ms(self) -> tuple[int, ...]:
        """Return every message's time at its producer; empty if no message has one."""
        if self._data.startswith(bytes(8 * self.count), self._born_at):
            return ()
        return struct.unpack_from(f"<{self.count}q", self._data, self._born_at)

    def keys(self) -> list[list[bytes]]:
        """Return every message's keys, UTF-8. Raises MalformedCommandError."""
        return self._keys.all() if self._keys is not None else [[]] * self.count

    def check_texts(self) -> None:
        """Check that every id and tag is UTF-8. Raises MalformedCommandError, naming the row."""
        self._ids.check_text("message id")
        if self._tags is not None:
            self._tags.check_text("tag")

    def bodies(self) -> list[bytes]:
        """Return every body. Raises MalformedCommandError."""
        return self._bodies.all()

    def packed_bodies(self) -> list[bytes]:
        """Return every body that says that it is packed. Raises MalformedCommandError."""
        if not self._encodings_at:
            return []
        encodings = self._data[self._encodings_at : self._encodings_at + self.count]
        return [self._bodies[row] for row, each in enumerate(encodings) if each != _IDENTITY[0]]

    def body_digests(self, due_ms: Sequence[int] = ()) -> Digests:
        """Return the digest of every body and of its time (`body_digests`).

        *due_ms* has every message's time; if not given, they are those of the payload, if any.

        Raises:
            MalformedCommandError: The bodies are malformed.
        """
        if self.count == 1:
            digests = array("Q", (digest_of(self._bodies[0]),))
        else:
            digests = self._bodies.digests()
        if not due_ms and self.typed is None:
            return digests
        times = due_ms or (() if self.typed is None else self.typed.deliver_at_ms())
        return with_times(digests, times) if any(times) else digests

    def body_sizes(self) -> list[int]:
        """Return the bytes of every body. Raises MalformedCommandError."""
        return self._bodies.sizes()

    @property
    def is_plain(self) -> bool:
        """Whether every message has only an id, a body and a tag."""
        some = self._encodings_at or self._keys or self._properties or self._traces or self.typed
        return not some

    def tags(self) -> list[bytes] | None:
        """Return every message's tag, UTF-8, or None when no message has one."""
        return self._tags.all() if self._tags is not None else None

    def columns(self, rows: Sequence[int]) -> Columns:
        """Return the messages in some rows: many at a time, faster than one by one.

        Raises:
            MalformedCommandError: One of the columns is broken, it may be in another row.
        """
        try:
            return self._columns(rows)
        except ValueError as error:
            raise MalformedCommandError(f"columns of {len(rows)} rows: {error}") from error

    def _columns(self, rows: Sequence[int]) -> Columns:
        born_at_ms = struct.unpack_from(f"<{self.count}q", self._data, self._born_at)
        return Columns(
            message_ids=self._ids.texts(rows),
            bodies=self._bodies.some(rows),
            born_at_ms=[born_at_ms[row] for row in rows],
            tags=self._tags.texts(rows) if self._tags else [""] * len(rows),
            keys=self._keys.texts(rows, 0) if self._keys else [()] * len(rows),
            properties=self._property_maps(rows),
            encodings=self._encodings(rows),
            trace_contexts=self._traces.texts(rows) if self._traces else [""] * len(rows),
            typed=self._typed_rows(rows),
        )

    def properties(self, rows: Sequence[int]) -> list[tuple[str, dict[str, str]]]:
        """Return the tag and the properties of the messages in some rows, without their bodies.

        Raises:
            MalformedCommandError: One of the columns is broken, it may be in another row.
        """
        try:
            if len(rows) * _FEW < self.count:  # each column would be cut up as a whole
                return [self._properties_of(row) for row in rows]
            tags = self._tags.texts(rows) if self._tags else [""] * len(rows)
            return list(zip(tags, self._property_maps(rows), strict=True))
        except ValueError as error:
            raise MalformedCommandError(f"columns of {len(rows)} rows: {error}") from error

    def _properties_of(self, row: int) -> tuple[str, dict[str, str]]:
        return self._tags[row].decode() if self._tags else "", self._property_map(row)

    def _property_maps(self, rows: Sequence[int]) -> list[dict[str, str]]:
        if self._properties is None:
            return [{}] * len(rows)
        pairs = zip(*(self._properties.texts(rows, column) for column in (0, 1)), strict=True)
        return [dict(zip(names, texts, strict=True)) for names, texts in pairs]

    def _typed_rows(self, rows: Sequence[int]) -> list[Typed | None]:
        typed = self.typed
        return [None] * len(rows) if typed is None else [typed.row(row) for row in rows]

    def _encodings(self, rows: Sequence[int]) -> list[int]:
        if not self._encodings_at:
            return [Encoding.IDENTITY] * len(rows)
        return [Encoding(self._data[self._encodings_at + row]) for row in rows]

    def message(self, row: int) -> Message:
        """Return the message in *row*, 0 to count - 1.

        Raises:
            MalformedCommandError: This row's offsets or text are broken.
        """
        if not 0 <= row < self.count:
            raise MalformedCommandError(f"row {row} of a batch of {self.count}")
        try:
            return self._message(row)
        except ValueError as error:
            raise MalformedCommandError(f"row {row}: {error}") from error

    def _message(self, row: int) -> Message:
        data = self._data
        encoding = data[self._encodings_at + row] if self._encodings_at else Encoding.IDENTITY
        return Message(
            message_id=self._ids[row].decode(),
            body=self._bodies[row],
            tag=self._tags[row].decode() if self._tags else "",
            keys=_texts(self._keys, row, 0) if self._keys else (),
            properties=self._property_map(row),
            born_at_ms=struct.unpack_from("<q", data, self._born_at + 8 * row)[0],
            encoding=Encoding(encoding),
            trace_context=self._traces[row].decode() if self._traces else "",
            typed=self.typed.row(row) if self.typed is not None else None,
        )

    def _property_map(self, row: int) -> dict[str, str]:
        if self._properties is None:
            return {}
        names = _texts(self._properties, row, 0)
        return dict(zip(names, _texts(self._properties, row, 1), strict=True))


def with_queue(command: bytes, queue_id: int) -> bytes:
    """Return a framed PRODUCE command for another queue; nothing else changes."""
    at = _FRAME_BYTES + _QUEUE_AT
    return b"".join((command[:at], _QUEUE.pack(queue_id), command[at + _QUEUE.size :]))


def without_client_id(payload: memoryview) -> tuple[bytes, memoryview]:
    """Return a payload without client id and mark, as two pieces; nothing else changes."""
    version, flags, client, *others = HEADER.unpack_from(payload)
    head = HEADER.pack(version, flags & ~HAS_MARK, 0, *others)
    mark = MARK_BYTES if flags & HAS_MARK else 0
    return head, payload[HEADER.size + mark + client :]


def _mark(data: bytes, start: int, end: int, count: int) -> ReplayMark:
    if start + MARK_BYTES > end:
        raise MalformedCommandError(f"the mark of a replay at byte {start} is cut short")
    mark = mark_at(data, start)
    if not 1 <= mark.first <= MAX_SEQUENCE - count + 1:
        raise MalformedCommandError(f"{count} messages of a replay from sequence {mark.first} on")
    return mark


def _check_known(data: bytes, start: int, end: int) -> None:
    """Check only version and flags: a newer version may have changed the meaning of the rest."""
    if start < end and data[start] > VERSION:
        raise UnknownCommandError(f"PRODUCE of version {data[start]}")
    if start + 1 >= end or data[start] != VERSION:
        return
    if more := data[start + 1] & ~_FIRST_FLAGS:
        raise UnknownCommandError(f"PRODUCE with flags {more:#x}")
    if start + FURTHER_AT < end and (more := data[start + FURTHER_AT] << 8 & ~TYPED_FLAGS):
        raise UnknownCommandError(f"PRODUCE with flags {more:#x}")


def _texts(lists: Lists, row: int, column: int) -> tuple[str, ...]:
    strings = lists.columns[column]
    return tuple(strings[item].decode() for item in lists.range(row))
