"""A consume queue: where each message of one (topic, queue id) lies in the commit log.

It is derived from the log: applying the log again, or its end to a snapshot, gives the same queue.
Batches arrive whole, so it keeps *runs*: neighbours in one PRODUCE payload that share a tag take
one row, whether they are one message or a thousand. A row is 36 bytes, and some 7 once it is old.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import le
from typing import Final

from dledger.broker.columns import Reader, Writer, ascends
from dledger.broker.filters import tag_code
from dledger.broker.runs import CODES, Runs, SealedRuns, opened
from dledger.errors import OffsetOutOfRange

_SEALED: Final = 1024
"""Runs that are sealed together; so many of the newest stay open at least."""


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
    """Positions of a queue's messages; queue offsets count from 0 without gaps.

    The newest runs are open, older ones sealed in pieces of about `_SEALED`, cut between payloads.
    """

    __slots__ = ("_open", "_sealed", "_sealed_firsts", "end", "first")

    def __init__(self) -> None:
        self.first = 0
        """The oldest offset kept; `end` if none is."""
        self.end = 0
        """The offset that the next message gets."""
        self._sealed: list[SealedRuns] = []
        self._sealed_firsts = array("Q")
        self._open = Runs()

    def append(self, payload: Payload, rows: range, tags: Sequence[bytes] | None) -> int:
        """Add consecutive *rows* of *payload*; return the first one's queue offset.

        *tags* has the tag of every row of the payload; None: no message has one.
        """
        first = self.end
        for row, count, code in _stretches(rows, tags):
            self._open.add(self.end, payload.index, payload.start, payload.end, row, code)
            self.end += count
        self._seal()
        return first

    def _seal(self) -> bool:
        """Seal older runs if there are enough, but for the newest payload's; return whether."""
        last, cut = len(self._open) - 1, _SEALED
        if last < 2 * _SEALED - 1:
            return False
        while cut < last and self._open.same_payload(cut - 1, cut):
            cut += 1
        if self._open.same_payload(cut - 1, cut):
            return False
        runs = self._open.take(cut)
        self._sealed.append(SealedRuns(runs))
        self._sealed_firsts.append(runs.firsts[0])
        return True

    def locate(self, offset: int) -> Position:
        """Return where the message at queue *offset* lies.

        Raises:
            OffsetOutOfRange: There is no message at *offset*.
        """
        return self.stretch(offset)[0]

    def stretch(self, offset: int) -> tuple[Position, int]:
        """Return where the message at *offset* lies, and how many follow each other from there on.

        All of them are in one payload, in consecutive rows. Raises OffsetOutOfRange.
        """
        if not self.first <= offset < self.end:
            raise OffsetOutOfRange(offset, first=self.first, last=self.end - 1)
        runs, end = self._piece(offset)
        run = runs.at(offset)
        last = run + 1
        while last < len(runs) and _continues(runs, run, last):
            last += 1
        if last < len(runs):
            end = runs.firsts[last]
        payload = Payload(runs.indexes[run], runs.starts[run], runs.ends[run])
        return Position(payload, runs.rows[run] + offset - runs.firsts[run]), end - offset

    def _piece(self, offset: int) -> tuple[Runs, int]:
        """Return the runs around *offset*, which must exist, and the offset behind them."""
        if self._open and offset >= self._open.firsts[0]:
            return self._open, self.end
        number = bisect_right(self._sealed_firsts, offset) - 1
        return opened(self._sealed[number]), self._begin(number + 1)

    def _begin(self, number: int) -> int:
        """Return the first offset of a sealed piece, or of what is behind the last one."""
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
            for run in range(runs.at(start), len(runs)):
                end = runs.firsts[run + 1] if run + 1 < len(runs) else piece_end
                yield Run(first=start, end=end, code=runs.codes[run])
                start = end

    def drop_before(self, index: int) -> int:
        """Forget the messages in entries below *index*; return how many."""
        gone = 0
        while gone < len(self._sealed) and self._sealed[gone].last_index < index:
            gone += 1
        rest = opened(self._sealed[gone]) if gone < len(self._sealed) else None
        del self._sealed[:gone], self._sealed_firsts[:gone]
        if rest is None:
            self._open.take(self._open.below(index))
        elif cut := rest.below(index):
            kept = Runs([column[cut:] for column in rest.columns()])
            self._sealed[0], self._sealed_firsts[0] = SealedRuns(kept), kept.firsts[0]
        first = self._begin(0)
        dropped, self.first = first - self.first, first
        return dropped

    def _column(self, number: int) -> Iterator[array[int]]:
        return _joined(tuple(self._sealed), self._open, number)

    def write(self, out: Writer) -> None:
        """Add the whole queue to a snapshot: its bounds, then its columns.

        Only the open runs are copied here; sealed ones are opened later.
        """
        out.number(self.first)
        out.number(self.end)
        sealed, tail = tuple(self._sealed), Runs([column[:] for column in self._open.columns()])
        count = sum(piece.count for piece in sealed) + len(tail)
        for number in range(len(CODES)):
            out.pieces(count, partial(_joined, sealed, tail, number))

    @classmethod
    def read(cls, source: Reader) -> ConsumeQueue:
        """Take a queue from a snapshot. Raises MalformedStateError."""
        queue = cls()
        queue.first = source.number()
        queue.end = source.number(queue.first)
        firsts = source.column(CODES[0])
        runs = Runs([firsts, *(source.column(code, len(firsts)) for code in CODES[1:])])
        if not (
            [*firsts[:1], queue.end][0] == queue.first
            and ascends(firsts, queue.end)
            and all(map(le, runs.indexes, runs.indexes[1:]))
        ):
            raise source.malformed(f"runs of a queue do not fill [{queue.first}, {queue.end})")
        queue._open = runs
        while queue._seal():
            pass
        return queue

    def canonical(self) -> list[object]:
        """Return the whole queue as plain values, equal on nodes that applied the same log."""
        columns = (self._column(number) for number in range(len(CODES)))
        return [self.first, self.end, *([*chain.from_iterable(column)] for column in columns)]


def _joined(sealed: Sequence[SealedRuns], tail: Runs, number: int) -> Iterator[array[int]]:
    """Yield one column, piece by piece."""
    for piece in sealed:
        yield piece.column(number)
    yield tail.columns()[number]


def _continues(runs: Runs, run: int, later: int) -> bool:
    """Whether a later run's rows lie behind those of *run*, in the same payload."""
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
