"""Locates the columns of many PRODUCE payloads at once: where each begins, and its string count.

Arrays have one item for each payload; positions are bytes from the start of the buffer that holds
the bodies of a batch of entries. Called by `messages` only. ``docs/internals/message-format.md``
has the diagram; the checks are those of `dledger.broker.produce.ProduceFrame`, which reads one
payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dledger.broker.produce import FLAGS, FURTHER_AT, HAS_MARK, VERSION
from dledger.common.replay_mark import KEY_BYTES, MARK_BYTES
from dledger_pipeline.errors import MalformedMessage

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_HEADER_BYTES: Final = 16
_HAS_ENCODINGS, _HAS_TAGS, _HAS_KEYS, _HAS_PROPERTIES, _HAS_TRACES = 1, 2, 4, 8, 16
_HAS_GROUPS, _HAS_TIMES, _HAS_PRIORITIES, _HAS_MOVES = 256, 512, 1024, 2048


class Numbers:
    """Little-endian numbers at any byte positions of a buffer, gathered into one array."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self.buffer = buffer

    def u8(self, at: Ints) -> Ints:
        """Return the bytes at *at*."""
        return self._gather("u1", at)

    def u16(self, at: Ints) -> Ints:
        """Return the unsigned 16-bit numbers that begin at *at*."""
        return self._gather("<u2", at)

    def u32(self, at: Ints) -> Ints:
        """Return the unsigned 32-bit numbers that begin at *at*."""
        return self._gather("<u4", at)

    def i32(self, at: Ints) -> Ints:
        """Return the signed 32-bit numbers that begin at *at*."""
        return self._gather("<i4", at)

    def i64(self, at: Ints) -> Ints:
        """Return the signed 64-bit numbers that begin at *at*."""
        return self._gather("<i8", at)

    def _gather(self, kind: str, at: Ints) -> Ints:
        numbers = self.buffer.size - np.dtype(kind).itemsize + 1
        if numbers < 1 or not len(at):
            return np.zeros(len(at), np.int64)
        view = np.ndarray(numbers, kind, self.buffer, strides=(1,))
        return view[at].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """One string in each payload, at bytes ``[start, end)``."""

    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class Strings:
    """A column of strings in each payload; where it is absent, every string is empty.

    Attributes:
        offsets_at: Where its offsets begin.
        count: How many strings it has.
        size: How many bytes they have together.
    """

    present: Bools
    offsets_at: Ints
    count: Ints
    size: Ints


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of strings in each payload; *columns* share the offsets."""

    present: Bools
    offsets_at: Ints
    columns: tuple[Strings, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """Where each message of each payload was before its group moved it.

    Attributes:
        topics: Of those that were moved; empty of the others.
        generations_at, offsets_at, times_at: Where these columns begin, 8 bytes a message.
        queues_at, attempts_at: Likewise, 4 bytes a message.
        hosts: Their producers' addresses.
    """

    topics: Strings
    generations_at: Ints
    offsets_at: Ints
    times_at: Ints
    queues_at: Ints
    attempts_at: Ints
    hosts: Strings


class ProduceColumns:
    """The columns of the PRODUCE payloads at bytes ``[start, end)`` of a buffer.

    Attributes:
        index: The entry that each payload is in, for errors.
        count: Messages in each payload.
        born_at: Where the clocks begin, 8 bytes a message.
        encodings_at: Where the encodings begin, one byte a message; -1 where all are identity.
        deliver_at: Where the delivery times begin, 8 bytes a message; -1 where there are none.
        priorities_at: Where the priorities begin, 4 bytes a message; likewise.
        moves: Where messages were before; None if that is not said of any in these payloads.

    Raises:
        MalformedMessage: The columns of a payload do not fill it exactly.
    """

    def __init__(self, numbers: Numbers, *, index: Ints, start: Ints, end: Ints) -> None:
        self.numbers, self.index, self._end = numbers, index, end
        self.check(end - start >= _HEADER_BYTES, "PRODUCE payload is too short")
        self._flags = numbers.u8(start + 1) | numbers.u8(start + FURTHER_AT) << 8
        self.count = numbers.u32(start + 12)
        self.check(numbers.u8(start) == VERSION, "unknown PRODUCE version")
        self.check(self._flags & ~FLAGS == 0, "unknown PRODUCE flags")
        self.check(self.count >= 1, "PRODUCE without messages")
        self.check(9 * self.count <= end - start, "PRODUCE payload is too short for its messages")
        self._at = start + _HEADER_BYTES
        self._pass_mark()
        self.client = self._span(numbers.u16(start + 2))
        self.topic = self._span(numbers.u8(start + 4))
        self.born_host = self._span(numbers.u16(start + 6))
        self.born_at = self._span(8 * self.count).start
        self.encodings_at = self._rows(_HAS_ENCODINGS, 1)
        self._find_columns()
        self.check(self._at == end, "bytes after the last body")

    def _pass_mark(self) -> None:
        """Check the mark of a replay, of which no reader is told, and go on behind it."""
        marked, mark = self._has(HAS_MARK), self._span(np.where(self._has(HAS_MARK), MARK_BYTES, 0))
        self.check(mark.end <= self._end, "the mark of a replay is cut short")
        first = self.numbers.i64(np.where(marked, mark.start + KEY_BYTES, 0))
        # It is unsigned: from 1 on, and that of the last message has 64 bits as well.
        self.check(~marked | (first > 0) | (first <= -self.count), "no sequence of a replay")

    def _find_columns(self) -> None:
        everywhere = np.ones(len(self.count), np.bool_)
        self.ids = self._strings(self.count, everywhere)
        self.tags = self._strings(self.count, self._has(_HAS_TAGS))
        self.keys = self._lists(1, self._has(_HAS_KEYS))
        self.properties = self._lists(2, self._has(_HAS_PROPERTIES))
        self.traces = self._strings(self.count, self._has(_HAS_TRACES))
        self.groups = self._strings(self.count, self._has(_HAS_GROUPS))
        self.deliver_at = self._rows(_HAS_TIMES, 8)
        self.priorities_at = self._rows(_HAS_PRIORITIES, 4)
        self.moves = self._moves() if self._has(_HAS_MOVES).any() else None
        self.bodies = self._strings(self.count, everywhere)

    def _moves(self) -> Moves:
        present = self._has(_HAS_MOVES)
        return Moves(
            topics=self._strings(self.count, present),
            generations_at=self._rows(_HAS_MOVES, 8),
            offsets_at=self._rows(_HAS_MOVES, 8),
            times_at=self._rows(_HAS_MOVES, 8),
            queues_at=self._rows(_HAS_MOVES, 4),
            attempts_at=self._rows(_HAS_MOVES, 4),
            hosts=self._strings(self.count, present),
        )

    def check(self, good: Bools, reason: str) -> None:
        """Raise MalformedMessage with *reason* for the first payload that is not good."""
        if not good.all():
            raise MalformedMessage(int(self.index[np.argmin(good)]), reason)

    def _has(self, flag: int) -> Bools:
        return np.asarray(self._flags & flag, np.bool_)

    def _span(self, size: Ints) -> Span:
        start, self._at = self._at, self._at + size
        return Span(start, self._at)

    def _rows(self, flag: int, width: int) -> Ints:
        """Return where a column of *width* bytes a message begins; -1 where it is absent."""
        present = self._has(flag)
        found = self._span(np.where(present, width * self.count, 0))
        return np.where(present, found.start, -1)

    def _strings(self, count: Ints, present: Bools) -> Strings:
        start = self._at
        size = self._last_offset(start, count, present)
        self._at = np.where(present, start + 4 * (count + 1) + size, start)
        self.check(self._at <= self._end, "strings end after the payload")
        return Strings(present, start, count, size)

    def _lists(self, columns: int, present: Bools) -> Lists:
        start = self._at
        items = self._last_offset(start, self.count, present)
        self._at = np.where(present, start + 4 * (self.count + 1), start)
        return Lists(present, start, tuple(self._strings(items, present) for _ in range(columns)))

    def _last_offset(self, start: Ints, count: Ints, present: Bools) -> Ints:
        """Return the last of the *count* + 1 offsets at *start*; 0 where they are absent."""
        last = start + 4 * count
        self.check(~present | (last + 4 <= self._end), "a column is cut short")
        return np.where(present, self.numbers.u32(np.where(present, last, 0)), 0)
