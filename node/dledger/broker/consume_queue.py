"""A consume queue: the position in the commit log of each message of one (topic, queue id).

It is derived from the log: applying the log again, or its end to a snapshot, gives the same queue.
Batches arrive whole, so the queue stores runs of messages (`log_runs`).

What a topic keeps for longer than its group lies in blocks before these runs (`kept_blocks`): the
rows of a block are where a REKEEP copied them, and some of their offsets may be gone. Over both lie
the offsets that were erased (`erased_offsets`): nobody is shown what is there. A queue of a
compacted topic begins at offset 0 for ever, whatever of its front is gone: whoever reads the table
from its beginning gets the next row that is left.

A queue of a FIFO topic knows the message group of each message beside (`group_codes`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.group_codes import GroupCodes
from dledger.broker.kept_blocks import KeptBlock, KeptBlocks, Rows, block_of
from dledger.broker.log_runs import LogRuns
from dledger.broker.queue_index import Runs
from dledger.broker.queue_part import QueuePart
from dledger.broker.queue_positions import Payload, Position, Run, Stretch
from dledger.broker.snapshot_codec import Reader, number
from dledger.errors import InvalidArgument, OffsetOutOfRange

_BOUNDS: Final = struct.Struct("<QQII")
"""The first offset of the log's runs and the end, the sealed pieces and the open runs."""
_HAS_BLOCKS: Final = 1 << 31
"""In the number of sealed pieces: what was copied follows."""
_HAS_ERASED: Final = 1 << 30
"""In the same number: what was erased follows, behind that."""
_HAS_GROUPS: Final = 1 << 29
"""In the same number: the codes of message groups follow, behind that."""


class ConsumeQueue(LogRuns):
    """Positions of a queue's messages; queue offsets count from 0.

    Without gaps from `log_first` on, but for what was erased; before it only what the blocks have
    is left. It is the log's runs and no more where a topic keeps nothing for longer.
    """

    __slots__ = (
        "_begins_at_0",
        "_first_entry",
        "blocks",
        "copied_below",
        "edition",
        "erased",
        "first",
        "groups",
        "has_gaps",
    )

    def __init__(
        self, edition: int = 0, *, begins_at_0: bool = False, has_groups: bool = False
    ) -> None:
        """*begins_at_0*: Whether it is of a compacted topic; *has_groups*: of a FIFO topic."""
        super().__init__()
        self.edition = edition
        """Which edition of the state this is of; see `editions`."""
        self._begins_at_0 = begins_at_0
        self.first = 0
        """Where a reader may begin: the oldest offset kept, or `end` if none is. Of a compacted
        topic 0, though that message may be gone."""
        self.blocks: KeptBlocks | None = None
        """What is kept before the log's runs; None if nothing is."""
        self.erased: ErasedOffsets | None = None
        """Which of all these messages were erased; None if none was."""
        self.groups = GroupCodes() if has_groups else None
        """The message group of each message; whoever appends some adds theirs. None if the topic is
        not FIFO."""
        self.has_gaps = False
        """Whether there may be no message at an offset between `first` and `end`."""
        self.copied_below = 0
        """Messages that entries below it stored may have been copied, or let go with that; 0: none
        were, or retention has come so far."""
        self._first_entry: int | None = None

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
        other.groups = None if self.groups is None else self.groups.copy()
        return other

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

    def stored_from(self, entry: int, stored_ms: int) -> int:
        """Return the first offset of what was stored in *entry* or later ones; `end` if none was.

        Of what was copied, whose entries are others now, it is where the first block begins of
        which a message was stored at *stored_ms* or later.
        """
        block = None if self.blocks is None else self.blocks.stored_from(stored_ms)
        return self.log_stored_from(entry) if block is None else max(block.first_row, self.first)

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
        them again.
        """
        return self._part(first_index, last_index, self.erased)

    def drop_before(self, index: int) -> int:
        """Forget the messages in entries below *index*, in blocks too; return how many.

        A sealed piece that is only partly dropped stays as it is; only `log_first` moves.
        """
        self._first_entry = None
        if index >= self.copied_below:
            self.copied_below = 0
        if self.blocks is not None or self.erased is not None:
            return self._drop_kept_before(self.blocks or KeptBlocks(), index)
        before = self.log_first
        self._drop_runs_before(index)
        self.first = 0 if self._begins_at_0 else self.log_first
        self.has_gaps = self.first < self.log_first
        if self.groups is not None:
            self.groups.drop_before(self.first)
        return self.log_first - before

    def _drop_kept_before(self, blocks: KeptBlocks, index: int) -> int:
        before, log_first = self.count, self.log_first
        self._drop_runs_before(index)
        gone = [(block.first, block.end) for block in blocks if block.entry < index]
        erased = self._erased_outside(*gone, (log_first, self.log_first))
        self._keep(blocks.without_entries_below(index), erased)
        return before - self.count

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
            self._first_entry = None
            self.copied_below = self._cut_runs(to) + 1
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
        if self.groups is not None:
            self.groups.drop_before(self.first)

    def encoded(self) -> Iterator[bytes]:
        """Yield the whole queue for a snapshot: bounds, blocks, sealed pieces, open runs."""
        count = self._runs_at_its_end()
        has = (_HAS_BLOCKS if self.was_copied else 0) | (0 if self.erased is None else _HAS_ERASED)
        has |= 0 if self.groups is None else _HAS_GROUPS
        yield _BOUNDS.pack(self.log_first, self.end, len(self._sealed) | has, count)
        if self.was_copied:
            yield number(self.copied_below)
            yield from (self.blocks or KeptBlocks()).encode()
        if self.erased is not None:
            yield from self.erased.encode()
        if self.groups is not None:
            yield from self.groups.encode(self.first, self.end)
        yield from self._encode_runs(count)

    @classmethod
    def read(
        cls, source: Reader, *, begins_at_0: bool = False, has_groups: bool = False
    ) -> ConsumeQueue:
        """Read a queue from a snapshot; sealed pieces stay sealed. Raises MalformedStateError.

        *begins_at_0*: Whether it is of a compacted topic; *has_groups*: of a FIFO topic.
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
        if bool(sealed & _HAS_GROUPS) != has_groups:
            raise source.malformed("a queue with message groups that has none, or the reverse")
        if has_groups:
            queue.groups = GroupCodes.read(source, first=queue.first, end=queue.end)
        queue._read_runs(source, sealed & ~(_HAS_BLOCKS | _HAS_ERASED | _HAS_GROUPS), count)
        return queue

    def canonical(self) -> list[object]:
        """Return the whole queue as plain values, equal on nodes that applied the same log."""
        blocks = [] if self.blocks is None else self.blocks.canonical()
        runs = self._canonical_runs()
        parts = [self.log_first, self.end, *runs, blocks, self.copied_below]
        parts.append(list(self.erased or ()))
        if self.groups is not None:
            parts.append(list(self.groups.some(self.first, self.end)))
        return parts


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
