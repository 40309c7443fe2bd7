"""A consume queue: the position in the commit log of each message of one (topic, queue id).

It is derived from the log: applying the log again, or its end to a snapshot, gives the same queue.
Batches arrive whole, so the queue stores *runs*: consecutive messages of one PRODUCE payload that
share a tag take one row, whether they are one message or a thousand. A row takes 36 bytes, or about
7 once it is old and sealed. Sealed runs are compressed and immutable: a snapshot shares them by
reference, so that the event loop never copies them (`editions`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter, le
from typing import Final, NamedTuple

from dledger.broker.filters import tag_code
from dledger.broker.queue_index import CODES, Runs, SealedRuns, opened, seal
from dledger.broker.queue_part import QueuePart
from dledger.broker.snapshot_codec import Reader, ascends
from dledger.common.byte_order import little_endian
from dledger.errors import OffsetOutOfRange

_SEALED: Final = 1024
"""How many runs are sealed together; at least this many of the newest stay open."""
_BOUNDS: Final = struct.Struct("<QQII")
"""The queue's first and end offset, its sealed pieces and its open runs."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The position of a PRODUCE payload: bytes ``[start, end)`` of the entry at *index*."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one message: a row of a payload."""

    payload: Payload
    row: int


class Stretch(NamedTuple):
    """*length* messages from queue offset *first* on, in consecutive rows of one payload.

    Attributes:
        first: The queue offset of the first one.
        length: How many there are.
        row: The row of the first one.
        entry: The index of the entry that holds the payload, at bytes ``[start, end)`` of its data.
        start: The payload's first byte.
        end: The byte after it.
    """

    first: int
    length: int
    row: int
    entry: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Queue offsets ``[first, end)``, all with one tag."""

    first: int
    end: int
    code: int


class ConsumeQueue:
    """Positions of a queue's messages; queue offsets count from 0 without gaps.

    The newest runs are open; older ones are sealed in pieces of about `_SEALED`, cut between
    payloads. The first piece may begin with runs that were dropped: they are freed with the piece.
    """

    __slots__ = ("_open", "_sealed", "_sealed_firsts", "edition", "end", "first")

    def __init__(self, edition: int = 0) -> None:
        self.edition = edition
        """Which edition of the state this is of; see `editions`."""
        self.first = 0
        """The oldest offset kept; equal to `end` if none is."""
        self.end = 0
        """The offset that the next message gets."""
        self._sealed: list[SealedRuns] = []
        self._sealed_firsts = array("Q")
        self._open = Runs()

    def copy(self, edition: int) -> ConsumeQueue:
        """Return a queue that may be changed while this one stays as it is.

        Both share the open runs, which only ever grow: each queue knows its own end.
        """
        other = ConsumeQueue(edition)
        other.first, other.end = self.first, self.end
        other._sealed, other._sealed_firsts = self._sealed[:], self._sealed_firsts[:]
        other._open = self._open
        return other

    def append(self, payload: Payload, rows: range, tags: Sequence[bytes] | None) -> int:
        """Add consecutive *rows* of *payload*; return the first one's queue offset.

        *tags* has the tag of every row of the payload; None if no message has one.
        """
        first = self.end
        for row, count, code in _stretches(rows, tags):
            self._open.add(self.end, payload.index, payload.start, payload.end, row, code)
            self.end += count
        self._seal()
        return first

    def _seal(self) -> None:
        """Seal older runs if there are enough, but for the newest payload's."""
        last, cut = len(self._open.firsts) - 1, _SEALED
        if last < 2 * _SEALED - 1:
            return
        while cut < last and self._open.same_payload(cut - 1, cut):
            cut += 1
        if self._open.same_payload(cut - 1, cut):
            return
        self._sealed.append(seal(self._open.cut(0, cut)))
        self._sealed_firsts.append(self._open.firsts[0])
        self._open = self._open.cut(cut)

    def locate(self, offset: int) -> Position:
        """Return the position of the message at queue *offset*.

        Raises:
            OffsetOutOfRange: There is no message at *offset*.
        """
        return self.stretch(offset)[0]

    def stretch(self, offset: int) -> tuple[Position, int]:
        """Return the position of the message at *offset*, and the length of the slice it begins.

        The messages of a slice are in consecutive rows of one payload. Raises OffsetOutOfRange.
        """
        if not self.first <= offset < self.end:
            raise OffsetOutOfRange(offset, first=self.first, last=self.end - 1)
        runs, end = self._piece(offset)
        run = runs.at(offset)
        last, count = run + 1, len(runs.firsts)
        while last < count and _continues(runs, run, last):
            last += 1
        if last < count:
            end = runs.firsts[last]
        payload = Payload(runs.indexes[run], runs.starts[run], runs.ends[run])
        return Position(payload, runs.rows[run] + offset - runs.firsts[run]), end - offset

    def stretches(self, offset: int) -> Iterator[Stretch]:
        """Yield the slices from *offset* on, as of now; none if there is no message at *offset*.

        The queue may be changed meanwhile: what was dropped or added is then yielded, or not.
        """
        if offset < self.first:
            return
        while offset < self.end:
            runs, piece_end = self._piece(offset)
            run, count = runs.at(offset), len(runs.firsts)
            while offset < piece_end:
                last = run + 1
                while last < count and _continues(runs, run, last):
                    last += 1
                end = runs.firsts[last] if last < count else piece_end
                row = runs.rows[run] + offset - runs.firsts[run]
                place = (runs.indexes[run], runs.starts[run], runs.ends[run])
                yield Stretch(offset, end - offset, row, *place)
                offset, run = end, last

    def _piece(self, offset: int) -> tuple[Runs, int]:
        """Return the runs around *offset*, which must exist, and the offset after them."""
        if self._open.firsts and offset >= self._open.firsts[0]:
            return self._open, self.end
        number = bisect_right(self._sealed_firsts, offset) - 1
        return opened(self._sealed[number]), self._begin(number + 1)

    def _begin(self, number: int) -> int:
        """Return the first offset of a sealed piece; for the number after the last, of the rest."""
        if number < len(self._sealed_firsts):
            return self._sealed_firsts[number]
        return self._open.firsts[0] if self._open else self.end

    def code(self, offset: int) -> int:
        """Return the tag code of the message at *offset*, which must exist."""
        runs, _ = self._piece(offset)
        return runs.codes[runs.at(offset)]

    def runs(self, start: int) -> Iterator[Run]:
        """Yield the runs from offset *start*, at least `first`, on; the first begins at *start*."""
        while start < self.end:
            runs, piece_end = self._piece(start)
            count = len(runs.firsts)
            for run in range(runs.at(start), count):
                end = runs.firsts[run + 1] if run + 1 < count else piece_end
                yield Run(first=start, end=end, code=runs.codes[run])
                start = end

    def part(self, first_index: int, last_index: int) -> QueuePart | None:
        """Return the messages in entries [*first_index*, *last_index*]; None if there are none.

        Nothing is decompressed or copied: a sealed piece at either end may turn out to have none.
        """
        start = bisect_left(self._sealed, first_index, key=attrgetter("last_index"))
        stop = bisect_right(self._sealed, last_index, start, key=attrgetter("first_index"))
        count = self._runs_at_its_end()
        low = bisect_left(self._open.indexes, first_index, 0, count)
        high = bisect_right(self._open.indexes, last_index, low, count)
        if self.first == self.end or (start == stop and low == high):
            return None
        return QueuePart(
            first=self.first,
            entries=(first_index, last_index),
            sealed=tuple(self._sealed[start:stop]),
            ends=tuple(self._begin(number + 1) for number in range(start, stop)),
            runs=self._open,
            bounds=(low, high),
            end=self._open.firsts[high] if high < count else self.end,
        )

    def drop_before(self, index: int) -> int:
        """Forget the messages in entries below *index*; return how many.

        A sealed piece that is only partly dropped stays as it is; only `first` moves.
        """
        gone = 0
        while gone < len(self._sealed) and self._sealed[gone].last_index < index:
            gone += 1
        del self._sealed[:gone], self._sealed_firsts[:gone]
        if not self._sealed:
            below = self._open.below(index)
            self._open = self._open.cut(below) if below else self._open
            first = self._begin(0)
        elif below := self._sealed[0].below(index):
            first = max(self._sealed[0].first_of(below), self.first)
        else:
            first = max(self._sealed_firsts[0], self.first)
        dropped, self.first = first - self.first, first
        return dropped

    def _runs_at_its_end(self) -> int:
        """Return how many open runs are this queue's; its copy may have added others."""
        return bisect_left(self._open.firsts, self.end)

    def encoded(self) -> Iterator[bytes]:
        """Yield the whole queue for a snapshot: its bounds, its sealed pieces, its open runs."""
        count = self._runs_at_its_end()
        yield _BOUNDS.pack(self.first, self.end, len(self._sealed), count)
        for piece in self._sealed:
            yield from piece.encoded()
        if count:
            yield from map(little_endian, self._open.cut(0, count).columns())

    @classmethod
    def read(cls, source: Reader) -> ConsumeQueue:
        """Read a queue from a snapshot; sealed pieces stay sealed. Raises MalformedStateError."""
        queue = cls()
        queue.first, queue.end, sealed, count = source.fields(_BOUNDS)
        queue._sealed = [SealedRuns.read(source) for _ in range(sealed)]
        queue._open = Runs([source.items(code, count) for code in CODES])
        queue._sealed_firsts.extend(piece.first for piece in queue._sealed)
        if not queue._is_whole():
            raise source.malformed(f"runs of a queue do not fill [{queue.first}, {queue.end})")
        return queue

    def _is_whole(self) -> bool:
        firsts, indexes = self._open.firsts, self._open.indexes
        begins = [*self._sealed_firsts, *firsts[:1], self.end]
        entries = [index for one in self._sealed for index in (one.first_index, one.last_index)]
        if self._sealed:
            first_is_kept = begins[0] <= self.first < begins[1]
        else:
            first_is_kept = begins[0] == self.first
        return (
            first_is_kept
            and all(a < b for a, b in pairwise(begins))
            and ascends(firsts, self.end)
            and all(map(le, entries, [*entries[1:], *indexes[:1]]))
            and all(map(le, indexes, indexes[1:]))
        )

    def canonical(self) -> list[object]:
        """Return the whole queue as plain values, equal on nodes that applied the same log."""
        pieces = [*map(opened, self._sealed), self._open.cut(0, self._runs_at_its_end())]
        joined = [
            [item for column in columns for item in column]
            for columns in zip(*(piece.columns() for piece in pieces), strict=True)
        ]
        gone = bisect_right(joined[0], self.first) - 1 if self.first < self.end else len(joined[0])
        return [self.first, self.end, *(column[gone:] for column in joined)]


def _continues(runs: Runs, run: int, later: int) -> bool:
    """Whether a later run's rows lie after those of *run*, in the same payload."""
    distance = runs.firsts[later] - runs.firsts[run]
    return runs.same_payload(run, later) and runs.rows[later] == runs.rows[run] + distance


def _stretches(rows: range, tags: Sequence[bytes] | None) -> list[tuple[int, int, int]]:
    """Cut *rows* where the tag changes: (first row, count, tag code)."""
    if tags is None:
        return [(rows.start, len(rows), tag_code(b""))]
    stretches = []
    row = rows.start
    for tag, group in groupby(tags[rows.start : rows.stop]):
        count = len(list(group))
        stretches.append((row, count, tag_code(tag)))
        row += count
    return stretches
