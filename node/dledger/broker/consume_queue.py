"""A consume queue: the position in the commit log of each message of one (topic, queue id).

It is derived from the log: applying the log again, or its end to a snapshot, gives the same queue.
Batches arrive whole, so the queue stores *runs*: consecutive messages of one PRODUCE payload that
share a tag take one row, whether they are one message or a thousand. A row takes 36 bytes, or about
7 once it is old and sealed. Sealed runs are compressed and immutable: a snapshot shares them by
reference, so that the event loop never copies them (`editions`).

What a topic keeps for longer than its group lies in blocks before these runs (`kept_blocks`): the
rows of a block are where a REKEEP copied them, and some of their offsets may be gone. Over both lie
the offsets that were erased (`erased_offsets`): nobody is shown what is there. A queue of a
compacted topic begins at offset 0 for ever, whatever of its front is gone: whoever reads the table
from its beginning gets the next row that is left.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from operator import attrgetter, le
from typing import Final, NamedTuple

from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.filters import tag_code
from dledger.broker.kept_blocks import KeptBlock, KeptBlocks, Rows, block_of
from dledger.broker.queue_index import CODES, Runs, SealedRuns, opened, seal
from dledger.broker.queue_part import QueuePart
from dledger.broker.snapshot_codec import Reader, ascends, number
from dledger.common.byte_order import little_endian
from dledger.errors import InvalidArgument, OffsetOutOfRange

_SEALED: Final = 1024
"""How many runs are sealed together; at least this many of the newest stay open."""
_BOUNDS: Final = struct.Struct("<QQII")
"""The first offset of the log's runs and the end, the sealed pieces and the open runs."""
_HAS_BLOCKS: Final = 1 << 31
"""In the number of sealed pieces: what was copied follows."""
_HAS_ERASED: Final = 1 << 30
"""In the same number: what was erased follows, behind that."""


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
    """Positions of a queue's messages; queue offsets count from 0.

    Without gaps from `log_first` on, but for what was erased; before it only what the blocks have
    is left.

    The newest runs are open; older ones are sealed in pieces of about `_SEALED`, cut between
    payloads. The first piece may begin with runs that were dropped: they are freed with the piece.
    """

    __slots__ = (
        "_begins_at_0",
        "_first_entry",
        "_open",
        "_sealed",
        "_sealed_firsts",
        "blocks",
        "copied_below",
        "edition",
        "end",
        "erased",
        "first",
        "has_gaps",
        "log_first",
    )

    def __init__(self, edition: int = 0, *, begins_at_0: bool = False) -> None:
        """*begins_at_0*: Whether it is of a compacted topic."""
        self.edition = edition
        """Which edition of the state this is of; see `editions`."""
        self._begins_at_0 = begins_at_0
        self.first = 0
        """Where a reader may begin: the oldest offset kept, or `end` if none is. Of a compacted
        topic 0, though that message may be gone."""
        self.end = 0
        """The offset that the next message gets."""
        self.log_first = 0
        """Where the log's own runs begin: all offsets from here on are kept, or were erased. Equal
        to `first` if there are no blocks."""
        self.blocks: KeptBlocks | None = None
        """What is kept before the log's runs; None if nothing is."""
        self.erased: ErasedOffsets | None = None
        """Which of all these messages were erased; None if none was."""
        self.has_gaps = False
        """Whether there may be no message at an offset between `first` and `end`."""
        self.copied_below = 0
        """Messages that entries below it stored may have been copied, or let go with that; 0: none
        were, or retention has come so far."""
        self._first_entry: int | None = None
        self._sealed: list[SealedRuns] = []
        self._sealed_firsts = array("Q")
        self._open = Runs()

    def copy(self, edition: int) -> ConsumeQueue:
        """Return a queue that may be changed while this one stays as it is.

        Both share the open runs, which only ever grow: each queue knows its own end.
        """
        other = ConsumeQueue(edition, begins_at_0=self._begins_at_0)
        other.first, other.end = self.first, self.end
        other.log_first, other.blocks = self.log_first, self.blocks
        other.erased, other.has_gaps = self.erased, self.has_gaps
        other.copied_below = self.copied_below
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
        if not self.first <= offset < self.end or (
            self.erased is not None and self.erased.has(offset)
        ):
            raise self._nothing_at(offset)
        if offset < self.log_first:
            position, end = self._kept_stretch(offset)
        else:
            runs, end = self._piece(offset)
            run = runs.at(offset)
            last, count = run + 1, len(runs.firsts)
            while last < count and _continues(runs, run, last):
                last += 1
            if last < count:
                end = runs.firsts[last]
            payload = Payload(runs.indexes[run], runs.starts[run], runs.ends[run])
            position = Position(payload, runs.rows[run] + offset - runs.firsts[run])
        if self.erased is not None:
            end = self.erased.next_from(offset, end)
        return position, end - offset

    def _kept_stretch(self, offset: int) -> tuple[Position, int]:
        """Return the position of a message in a block, and the end of the slice it begins."""
        for block, rows in self._kept_rows(offset, by_tag=False):
            if rows.first == offset:
                payload = Payload(block.entry, block.start, block.stop)
                return Position(payload, rows.row), offset + rows.length
            break
        raise self._nothing_at(offset)

    def _nothing_at(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(offset, first=self.first, last=self.end - 1)

    def _kept_rows(self, offset: int, *, by_tag: bool) -> Iterator[tuple[KeptBlock, Rows]]:
        """Return the rows from *offset* on that are in blocks."""
        return iter(()) if self.blocks is None else self.blocks.rows(offset, by_tag=by_tag)

    def has(self, offset: int) -> bool:
        """Whether there is a message at *offset*: in a gap there is none, though around it."""
        if self.erased is not None and self.erased.has(offset):
            return False
        if self.blocks is not None and offset < self.log_first:
            return self.blocks.at(offset) is not None
        return self.log_first <= offset < self.end

    def count_from(self, offset: int) -> int:
        """Return how many messages there are from *offset* on."""
        gone = 0 if self.erased is None else self.erased.count_from(offset)
        if self.blocks is not None and offset < self.log_first:
            return self.blocks.count_from(offset) + self.end - self.log_first - gone
        return self.end - max(offset, self.log_first) - gone

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.count_from(self.first)

    @property
    def was_copied(self) -> bool:
        """Whether anything was copied that retention has not come to."""
        return self.blocks is not None or self.copied_below > 0

    @property
    def lowest_index(self) -> int | None:
        """The lowest entry that any message lies in; None if there is no message."""
        log = self._first_index()
        if self.blocks is None:
            return log
        kept = self.blocks.lowest_index
        return kept if log is None else min(kept, log)

    def _first_index(self) -> int | None:
        """Return the entry of the oldest message in the log's runs; None if there is none."""
        if self._first_entry is None:
            first = self.log_first if self.erased is None else self.erased.behind(self.log_first)
            if first < self.end:
                runs, _ = self._piece(first)
                self._first_entry = runs.indexes[runs.at(first)]
        return self._first_entry

    def stretches(self, offset: int) -> Iterator[Stretch]:
        """Yield the slices from *offset* on, as of now; none if *offset* was dropped.

        Where there is a gap, the next slice begins behind it. The queue may be changed meanwhile:
        what was dropped or added is then yielded, or not.
        """
        if offset < self.first:
            return
        if offset < self.log_first:
            for block, rows in self._kept_rows(offset, by_tag=False):
                place = (block.entry, block.start, block.stop)
                whole = Stretch(rows.first, rows.length, rows.row, *place)
                if self.erased is None:
                    yield whole
                else:
                    yield from _left_of(whole, self.erased)
            offset = self.log_first
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
                whole = Stretch(offset, end - offset, row, *place)
                if self.erased is None:
                    yield whole
                else:
                    yield from _left_of(whole, self.erased)
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
        if self.erased is not None and self.erased.has(offset):
            raise self._nothing_at(offset)
        if offset < self.log_first:
            found = None if self.blocks is None else self.blocks.at(offset)
            if found is None:
                raise self._nothing_at(offset)
            return found[0].code(found[1])
        runs, _ = self._piece(offset)
        return runs.codes[runs.at(offset)]

    def runs(self, start: int) -> Iterator[Run]:
        """Yield the runs from offset *start*, at least `first`, on.

        The first begins at *start*, or behind the gap that is there.
        """
        if start < self.log_first:
            for _, rows in self._kept_rows(start, by_tag=True):
                whole = Run(first=rows.first, end=rows.first + rows.length, code=rows.code)
                if self.erased is None:
                    yield whole
                else:
                    yield from _runs_left_of(whole, self.erased)
            start = self.log_first
        while start < self.end:
            runs, piece_end = self._piece(start)
            count = len(runs.firsts)
            for run in range(runs.at(start), count):
                end = runs.firsts[run + 1] if run + 1 < count else piece_end
                whole = Run(first=start, end=end, code=runs.codes[run])
                if self.erased is None:
                    yield whole
                else:
                    yield from _runs_left_of(whole, self.erased)
                start = end

    def part(self, first_index: int, last_index: int) -> QueuePart | None:
        """Return the messages in entries [*first_index*, *last_index*]; None if there are none.

        Without those in blocks: they were stored by entries below `copied_below`, and nobody stored
        them again. Nothing is decompressed or copied: a sealed piece at either end may turn out to
        have none.
        """
        start = bisect_left(self._sealed, first_index, key=attrgetter("last_index"))
        stop = bisect_right(self._sealed, last_index, start, key=attrgetter("first_index"))
        count = self._runs_at_its_end()
        low = bisect_left(self._open.indexes, first_index, 0, count)
        high = bisect_right(self._open.indexes, last_index, low, count)
        if self.log_first == self.end or (start == stop and low == high):
            return None
        return QueuePart(
            first=self.log_first,
            entries=(first_index, last_index),
            sealed=tuple(self._sealed[start:stop]),
            ends=tuple(self._begin(number + 1) for number in range(start, stop)),
            runs=self._open,
            bounds=(low, high),
            end=self._open.firsts[high] if high < count else self.end,
            erased=self.erased,
        )

    def drop_before(self, index: int) -> int:
        """Forget the messages in entries below *index*, in blocks too; return how many.

        A sealed piece that is only partly dropped stays as it is; only `log_first` moves.
        """
        if self.blocks is not None or self.erased is not None:
            return self._drop_kept_before(self.blocks or KeptBlocks(), index)
        before = self.log_first
        self._drop_runs_before(index)
        self.first = 0 if self._begins_at_0 else self.log_first
        self.has_gaps = self.first < self.log_first
        return self.log_first - before

    def _drop_kept_before(self, blocks: KeptBlocks, index: int) -> int:
        before, log_first = self.count, self.log_first
        self._drop_runs_before(index)
        gone = [(block.first, block.end) for block in blocks if block.entry < index]
        erased = self._erased_outside(*gone, (log_first, self.log_first))
        self._keep(blocks.without_entries_below(index), erased)
        return before - self.count

    def _drop_runs_before(self, index: int) -> None:
        """Forget the log's runs in entries below *index*."""
        self._first_entry = None
        if index >= self.copied_below:
            self.copied_below = 0
        gone = 0
        while gone < len(self._sealed) and self._sealed[gone].last_index < index:
            gone += 1
        del self._sealed[:gone], self._sealed_firsts[:gone]
        if not self._sealed:
            below = self._open.below(index)
            self._open = self._open.cut(below) if below else self._open
            first = self._begin(0)
        elif below := self._sealed[0].below(index):
            first = self._sealed[0].first_of(below)
        else:
            first = self._sealed_firsts[0]
        self.log_first = max(first, self.log_first)

    # -- what is kept for longer -------------------------------------------------------------------

    def rekeep(
        self, first: int, to: int, payload: Payload, offsets: Sequence[int], *, newest_ms: int
    ) -> int:
        """Let exactly the rows at *offsets* be there of ``[first, to)``, in another payload.

        Args:
            first: What is decided begins here, in blocks or at most where the log's runs do.
            to: It ends before this offset.
            payload: Row *k* of it is the message at the k-th of *offsets*.
            offsets: Ascending, in ``[first, to)``; none: all of them go.
            newest_ms: When the newest of the messages was stored.

        Returns:
            How many messages are gone.

        Raises:
            InvalidArgument: It names a row that is not there, cuts a block, or leaves a hole in the
                log's runs. Nothing is changed.
        """
        if to > self.log_first and not (first <= self.log_first and to <= self.end):
            raise InvalidArgument(
                f"offsets [{first}, {to}) are not before {self.log_first}, nor do they go on to it "
                f"and end at most at {self.end}"
            )
        codes = self._codes_of(to, offsets)
        place = (payload.index, payload.start, payload.end)
        block = block_of(first, to, place, offsets, codes, newest_ms=newest_ms) if offsets else None
        blocks = (self.blocks or KeptBlocks()).with_range(first, to, block)
        before = self.count
        if to > self.log_first:
            self._cut_runs(to)
        self._keep(blocks, self._erased_outside((first, to)))
        return before - self.count

    def _codes_of(self, to: int, offsets: Sequence[int]) -> list[int]:
        """Return the tag code of each of *offsets*; raise InvalidArgument if one is not there."""
        kept = bisect_left(offsets, self.log_first)
        codes = self._codes_in_blocks(offsets[:kept])
        at = len(codes)
        for run in self.runs(self.log_first) if kept == at < len(offsets) else ():
            stop = bisect_left(offsets, min(run.end, to), at)
            if stop > at and offsets[at] < run.first:
                break
            codes += [run.code] * (stop - at)
            at = stop
            if run.end >= to or at == len(offsets):
                break
        if at < len(offsets):
            raise InvalidArgument(f"there is no message at offset {offsets[at]}, or it is gone")
        return codes

    def _codes_in_blocks(self, offsets: Sequence[int]) -> list[int]:
        """Return the tag codes of some offsets before the log's runs, up to the first not there."""
        if self.blocks is None:
            return []
        if (erased := self.erased) is not None:
            offsets = [*takewhile(lambda offset: not erased.has(offset), offsets)]
        return self.blocks.codes_of(offsets)

    def forget_blocks(self) -> int:
        """Forget what is kept before the log's runs; return how many messages that are."""
        before, self.copied_below = self.count, 0
        self._keep(KeptBlocks(), self._erased_outside((0, self.log_first)))
        return before - self.count

    def erase(self, offsets: Sequence[int]) -> int:
        """Let the messages at *offsets*, which ascend, be there no more; return how many were.

        Where none is, or none yet, nothing is done.
        """
        there = [*filter(self.has, offsets)]
        if not there:
            return 0
        erased = ErasedOffsets(there) if self.erased is None else self.erased.including(there)
        self.erased, self._first_entry = erased, None
        blocks, ranges = self.blocks or KeptBlocks(), list[tuple[int, int]]()
        for block in blocks:
            if erased.count_in(block.first, block.end) == block.length:
                blocks = blocks.with_range(block.first, block.end, None)
                ranges.append((block.first, block.end))
        self._keep(blocks, self._erased_outside(*ranges))
        return len(there)

    def _erased_outside(self, *ranges: tuple[int, int]) -> ErasedOffsets | None:
        """Return what was erased and is in none of some ranges of offsets ``[first, end)``."""
        erased = self.erased
        for first, end in ranges:
            erased = None if erased is None else erased.without(first, end)
        return erased

    def _keep(self, blocks: KeptBlocks, erased: ErasedOffsets | None) -> None:
        self.blocks = blocks if len(blocks) else None
        self.erased = erased
        if not self._begins_at_0:
            self.first = blocks.first if len(blocks) else self.log_first
        self.has_gaps = self.first < self.log_first or erased is not None

    def _cut_runs(self, to: int) -> None:
        """Forget the log's runs before offset *to*, at most `end`."""
        runs, _ = self._piece(to - 1)
        self.copied_below = runs.indexes[runs.at(to - 1)] + 1
        gone, self._first_entry = 0, None
        while gone < len(self._sealed) and self._begin(gone + 1) <= to:
            gone += 1
        self.log_first = to
        del self._sealed[:gone], self._sealed_firsts[:gone]
        if self._sealed:
            return
        if to == self.end:
            self._open = Runs()
        elif self._open.firsts[0] < to:
            run = self._open.at(to)
            self._open = self._open.cut(run)
            self._open.rows[0] += to - self._open.firsts[0]
            self._open.firsts[0] = to

    def _runs_at_its_end(self) -> int:
        """Return how many open runs are this queue's; its copy may have added others."""
        return bisect_left(self._open.firsts, self.end)

    def encoded(self) -> Iterator[bytes]:
        """Yield the whole queue for a snapshot: bounds, blocks, sealed pieces, open runs."""
        count = self._runs_at_its_end()
        has = (_HAS_BLOCKS if self.was_copied else 0) | (0 if self.erased is None else _HAS_ERASED)
        yield _BOUNDS.pack(self.log_first, self.end, len(self._sealed) | has, count)
        if self.was_copied:
            yield number(self.copied_below)
            yield from (self.blocks or KeptBlocks()).encode()
        if self.erased is not None:
            yield from self.erased.encode()
        for piece in self._sealed:
            yield from piece.encoded()
        if count:
            yield from map(little_endian, self._open.cut(0, count).columns())

    @classmethod
    def read(cls, source: Reader, *, begins_at_0: bool = False) -> ConsumeQueue:
        """Read a queue from a snapshot; sealed pieces stay sealed. Raises MalformedStateError.

        *begins_at_0*: Whether it is of a compacted topic.
        """
        queue = cls(begins_at_0=begins_at_0)
        queue.log_first, queue.end, sealed, count = source.fields(_BOUNDS)
        blocks = KeptBlocks()
        if sealed & _HAS_BLOCKS:
            queue.copied_below = source.number()
            blocks = KeptBlocks.read(source, queue.log_first)
        erased = ErasedOffsets.read(source, queue.end) if sealed & _HAS_ERASED else None
        queue._keep(blocks, None)
        if erased is not None and not all(map(queue.has, erased)):
            raise source.malformed("an erased offset where no message was")
        queue._keep(blocks, erased)
        pieces = sealed & ~(_HAS_BLOCKS | _HAS_ERASED)
        queue._sealed = [SealedRuns.read(source) for _ in range(pieces)]
        queue._open = Runs([source.items(code, count) for code in CODES])
        queue._sealed_firsts.extend(piece.first for piece in queue._sealed)
        if not queue._is_whole():
            raise source.malformed(f"runs of a queue do not fill [{queue.log_first}, {queue.end})")
        return queue

    def _is_whole(self) -> bool:
        firsts, indexes = self._open.firsts, self._open.indexes
        begins = [*self._sealed_firsts, *firsts[:1], self.end]
        entries = [index for one in self._sealed for index in (one.first_index, one.last_index)]
        if self._sealed:
            first_is_kept = begins[0] <= self.log_first < begins[1]
        else:
            first_is_kept = begins[0] == self.log_first
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
        first = self.log_first
        gone = bisect_right(joined[0], first) - 1 if first < self.end else len(joined[0])
        kept = [column[gone:] for column in joined]
        if kept[0]:  # a sealed run may begin before what is kept of it
            kept[4][0] += first - kept[0][0]
            kept[0][0] = first
        blocks = [] if self.blocks is None else self.blocks.canonical()
        return [first, self.end, *kept, blocks, self.copied_below, list(self.erased or ())]


def _left_of(whole: Stretch, erased: ErasedOffsets) -> Iterator[Stretch]:
    """Yield what is left of a slice."""
    for first, end in erased.pieces(whole.first, whole.first + whole.length):
        yield whole._replace(first=first, length=end - first, row=whole.row + first - whole.first)


def _runs_left_of(whole: Run, erased: ErasedOffsets) -> Iterator[Run]:
    """Yield what is left of a run."""
    for first, end in erased.pieces(whole.first, whole.end):
        yield Run(first=first, end=end, code=whole.code)


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
