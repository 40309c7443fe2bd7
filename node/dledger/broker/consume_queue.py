"""A consume queue: where each message of one (topic, queue id) lies in the commit log.

It is derived from the log: applying the log again, or its end to a snapshot, gives the same queue.
Batches arrive whole, so it keeps *runs*: neighbours in one PRODUCE payload that share a tag take
one row of 40 bytes, whether they are one message or a thousand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import le

from dledger.broker.columns import Reader, Writer, ascends
from dledger.broker.filters import tag_code
from dledger.errors import OffsetOutOfRange


@dataclass(frozen=True, slots=True)
class Payload:
    """Where a PRODUCE payload lies: bytes ``[start, end)`` of the data of the entry at *index*."""

    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where one message lies: a row of a payload."""

    payload: Payload
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Queue offsets ``[first, end)``, all with one tag."""

    first: int
    end: int
    code: int


class ConsumeQueue:
    """Positions of a queue's messages; queue offsets count from 0 without gaps."""

    __slots__ = ("_codes", "_ends", "_firsts", "_indexes", "_rows", "_starts", "end", "first")

    def __init__(self) -> None:
        self.first = 0
        """The oldest offset kept; `end` if none is."""
        self.end = 0
        """The offset that the next message gets."""
        self._firsts = array("Q")
        self._indexes = array("Q")
        self._starts = array("I")
        self._ends = array("I")
        self._rows = array("I")
        self._codes = array("Q")

    def append(self, payload: Payload, rows: range, tags: Sequence[bytes] | None) -> int:
        """Add consecutive *rows* of *payload*; return the first one's queue offset.

        *tags* has the tag of every row of the payload; None: no message has one.
        """
        first = self.end
        for row, count, code in _stretches(rows, tags):
            self._firsts.append(self.end)
            self._indexes.append(payload.index)
            self._starts.append(payload.start)
            self._ends.append(payload.end)
            self._rows.append(row)
            self._codes.append(code)
            self.end += count
        return first

    def locate(self, offset: int) -> Position:
        """Return where the message at queue *offset* lies.

        Raises:
            OffsetOutOfRange: There is no message at *offset*.
        """
        if not self.first <= offset < self.end:
            raise OffsetOutOfRange(offset, first=self.first, last=self.end - 1)
        run = bisect_right(self._firsts, offset) - 1
        payload = Payload(self._indexes[run], self._starts[run], self._ends[run])
        return Position(payload, self._rows[run] + offset - self._firsts[run])

    def stretch(self, offset: int) -> tuple[Position, int]:
        """Return where the message at *offset* lies, and how many follow each other from there on.

        All of them are in one payload, in consecutive rows. Raises OffsetOutOfRange.
        """
        position = self.locate(offset)
        run = bisect_right(self._firsts, offset) - 1
        last = run + 1
        while last < len(self._firsts) and self._continues(run, last):
            last += 1
        end = self._firsts[last] if last < len(self._firsts) else self.end
        return position, end - offset

    def _continues(self, run: int, later: int) -> bool:
        """Whether a later run's rows lie behind those of *run*, in the same payload."""
        distance = self._firsts[later] - self._firsts[run]
        return (
            self._indexes[later] == self._indexes[run]
            and self._starts[later] == self._starts[run]
            and self._rows[later] == self._rows[run] + distance
        )

    def code(self, offset: int) -> int:
        """Return the tag code of the message at *offset*, which must exist."""
        return self._codes[bisect_right(self._firsts, offset) - 1]

    def runs(self, start: int) -> Iterator[Run]:
        """Yield the runs from offset *start*, at least `first`, on; the first begins at *start*."""
        run = bisect_right(self._firsts, start) - 1 if start < self.end else len(self._firsts)
        while run < len(self._firsts):
            last = run + 1 == len(self._firsts)
            end = self.end if last else self._firsts[run + 1]
            yield Run(first=max(start, self._firsts[run]), end=end, code=self._codes[run])
            run += 1

    def drop_before(self, index: int) -> int:
        """Forget the messages in entries below *index*; return how many."""
        runs = bisect_left(self._indexes, index)
        first = self._firsts[runs] if runs < len(self._firsts) else self.end
        dropped, self.first = first - self.first, first
        for column in self._columns():
            del column[:runs]
        return dropped

    def _columns(self) -> tuple[array[int], ...]:
        return (self._firsts, self._indexes, self._starts, self._ends, self._rows, self._codes)

    def write(self, out: Writer) -> None:
        """Add the whole queue to a snapshot: its bounds, then its columns."""
        out.number(self.first)
        out.number(self.end)
        for column in self._columns():
            out.column(column)

    @classmethod
    def read(cls, source: Reader) -> ConsumeQueue:
        """Take a queue from a snapshot. Raises MalformedStateError."""
        queue = cls()
        queue.first = source.number()
        queue.end = source.number(queue.first)
        queue._firsts = source.column("Q")
        runs = len(queue._firsts)
        queue._indexes = source.column("Q", runs)
        queue._starts = source.column("I", runs)
        queue._ends = source.column("I", runs)
        queue._rows = source.column("I", runs)
        queue._codes = source.column("Q", runs)
        if not (
            [*queue._firsts[:1], queue.end][0] == queue.first
            and ascends(queue._firsts, queue.end)
            and all(map(le, queue._indexes, queue._indexes[1:]))
        ):
            raise source.malformed(f"runs of a queue do not fill [{queue.first}, {queue.end})")
        return queue

    def canonical(self) -> list[object]:
        """Return the whole queue as plain values, equal on nodes that applied the same log."""
        return [self.first, self.end, *(column.tolist() for column in self._columns())]


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
