"""The runs of a queue in the log itself: what was stored there, in the order of its offsets.

*Runs* are consecutive messages of one PRODUCE payload that share a tag; each takes one row, whether
it is one message or a thousand. A row takes 36 bytes, or about 7 once it is old and sealed
(`queue_index`). Sealed runs are compressed and immutable: a snapshot shares them by reference, so
that the event loop never copies them (`editions`).

A `consume_queue.ConsumeQueue` is such runs, with what was copied and what was erased.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter, le
from typing import Final

from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.filters import tag_code
from dledger.broker.queue_index import CODES, Runs, SealedRuns, opened, seal
from dledger.broker.queue_part import QueuePart
from dledger.broker.queue_positions import Payload
from dledger.broker.snapshot_codec import Reader, ascends
from dledger.common.byte_order import little_endian

_SEALED: Final = 1024
"""How many runs are sealed together; at least this many of the newest stay open."""


class LogRuns:
    """Runs without gaps, in offsets ``[log_first, end)``.

    The newest runs are open; older ones are sealed in pieces of about `_SEALED`, cut between
    payloads. The first piece may begin with runs that were dropped: they are freed with the piece.
    """

    __slots__ = ("_open", "_sealed", "_sealed_firsts", "end", "log_first")

    def __init__(self) -> None:
        self.end = 0
        """The offset that the next message gets."""
        self.log_first = 0
        """Where the runs begin."""
        self._sealed: list[SealedRuns] = []
        self._sealed_firsts = array("Q")
        self._open = Runs()

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

    def _part(
        self, first_index: int, last_index: int, erased: ErasedOffsets | None
    ) -> QueuePart | None:
        """Return the messages in entries [*first_index*, *last_index*]; None if there are none.

        Nothing is decompressed or copied: a sealed piece at either end may turn out to
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
            erased=erased,
        )

    def log_stored_from(self, entry: int) -> int:
        """Return the first offset in *entry* or later ones; `end` if there is none."""
        number = bisect_left(self._sealed, entry, key=attrgetter("last_index"))
        if number < len(self._sealed):
            piece = self._sealed[number]
            return max(piece.first_of(piece.below(entry)), self.log_first)
        count = self._runs_at_its_end()
        run = bisect_left(self._open.indexes, entry, 0, count)
        return self._open.firsts[run] if run < count else self.end

    def _drop_runs_before(self, index: int) -> None:
        """Forget the runs in entries below *index*."""
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

    def _cut_runs(self, to: int) -> int:
        """Forget the runs before offset *to*, at most `end`; return the last one's entry."""
        runs, _ = self._piece(to - 1)
        last, gone = runs.indexes[runs.at(to - 1)], 0
        while gone < len(self._sealed) and self._begin(gone + 1) <= to:
            gone += 1
        self.log_first = to
        del self._sealed[:gone], self._sealed_firsts[:gone]
        if self._sealed:
            return last
        if to == self.end:
            self._open = Runs()
        elif self._open.firsts[0] < to:
            run = self._open.at(to)
            self._open = self._open.cut(run)
            self._open.rows[0] += to - self._open.firsts[0]
            self._open.firsts[0] = to
        return last

    def _runs_at_its_end(self) -> int:
        """Return how many open runs are this queue's; its copy may have added others."""
        return bisect_left(self._open.firsts, self.end)

    def _encode_runs(self, count: int) -> Iterator[bytes]:
        """Yield the sealed pieces and the *count* open runs for a snapshot."""
        for piece in self._sealed:
            yield from piece.encoded()
        if count:
            yield from map(little_endian, self._open.cut(0, count).columns())

    def _read_runs(self, source: Reader, pieces: int, count: int) -> None:
        """Read what `_encode_runs` wrote; sealed pieces stay sealed. Raises MalformedStateError."""
        self._sealed = [SealedRuns.read(source) for _ in range(pieces)]
        self._open = Runs([source.items(code, count) for code in CODES])
        self._sealed_firsts.extend(piece.first for piece in self._sealed)
        if not self._is_whole():
            raise source.malformed(f"runs of a queue do not fill [{self.log_first}, {self.end})")

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

    def _canonical_runs(self) -> list[list[int]]:
        """Return the columns as plain values, equal on nodes that applied the same log."""
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
        return kept


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
