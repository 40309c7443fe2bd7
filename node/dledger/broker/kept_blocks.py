"""Blocks: what a queue keeps beyond its group's retention, each in the payload of one REKEEP.

A queue is its blocks, and behind them the log's own runs (`log_runs`)::

    queue    [block][block] .. [block] | runs of the log ............ )end
              ^first                    ^log_first

A block stands for the queue offsets ``[first, end)`` and says which of them are left: row *k* of
its payload is the k-th of these. What is missing is gone for ever, so there are gaps in a block,
and between blocks; the runs of the log have none. Blocks ascend by offset, their entries in no
order: small ones are written anew together with their neighbours. Everything here is immutable, so
that a snapshot shares it (`editions`).
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, count, pairwise
from operator import add, attrgetter
from typing import Final, NamedTuple

from dledger.broker.snapshot_codec import MalformedStateError, Reader, number
from dledger.common.byte_order import TypeCode, from_little_endian, little_endian
from dledger.errors import InvalidArgument

MAX_ROWS: Final = 4_096
"""Rows of a block, at most."""
_BLOCK: Final = struct.Struct("<QQQQqIIIII")
_FASTEST: Final = 1
_TYPES: Final[Mapping[int, TypeCode]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Of numbers of so many bytes each, narrowest first."""
_OPENED: Final = 64
"""Blocks with gaps or tags that are kept decompressed, for all queues together; 64 KB each."""


class Rows(NamedTuple):
    """Offsets ``[first, first + length)`` with one tag, in a block's rows from *row* on."""

    first: int
    length: int
    row: int
    code: int


class KeptBlock(NamedTuple):
    """The rows that are left of queue offsets ``[first, end)``, at least one.

    Attributes:
        first, end: The offsets that it stands for.
        first_row: The offset of its first row.
        entry: The entry of its REKEEP, whose inner payload is at bytes ``[start, stop)``.
        newest_ms: When the newest of its messages was stored, by the log's time.
        start, stop: See *entry*.
        length: How many rows there are.
        gaps: How many offsets are missing before each row, in as few bytes each as the largest
            takes, 1, 2, 4 or 8; empty if none is, behind the first.
        codes: Compressed: the tag code of each row; empty if none has a tag.
    """

    first: int
    end: int
    first_row: int
    entry: int
    newest_ms: int
    start: int
    stop: int
    length: int
    gaps: bytes
    codes: bytes

    @property
    def size_bytes(self) -> int:
        """What it takes in the log, without what the REKEEP says of its rows."""
        return self.stop - self.start

    def encode(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot."""
        *numbers, gaps, codes = self
        yield _BLOCK.pack(*numbers, len(gaps), len(codes))
        yield gaps
        yield codes

    @classmethod
    def read(cls, source: Reader) -> KeptBlock:
        """Read a block from a snapshot. Raises MalformedStateError."""
        *numbers, gaps, codes = source.fields(_BLOCK)
        first, end, first_row, entry, newest_ms, start, stop, length = numbers
        block = cls(
            first=first,
            end=end,
            first_row=first_row,
            entry=entry,
            newest_ms=newest_ms,
            start=start,
            stop=stop,
            length=length,
            gaps=source.raw(gaps),
            codes=source.raw(codes),
        )
        last = block.first_row + block.length
        if not (
            block.first <= block.first_row < last <= block.end
            and 1 <= block.length <= MAX_ROWS
            and block.start < block.stop
        ):
            raise source.malformed(f"a block of {block.length} rows in offsets [{block.first}, ...")
        if gaps or codes:
            _columns_of(block)  # here and not in the middle of an entry: it is wrong for ever
        return block

    def offsets(self) -> Sequence[int]:
        """Return the queue offset of each row, ascending. Raises MalformedStateError."""
        if not self.gaps:
            return range(self.first_row, self.first_row + self.length)
        return _columns_of(self)[0]

    def code(self, row: int) -> int:
        """Return the tag code of a row. Raises MalformedStateError."""
        return _columns_of(self)[1][row] if self.codes else 0

    def row_of(self, offset: int) -> int:
        """Return the row at *offset*; -1 if it is gone."""
        if not self.gaps:
            row = offset - self.first_row
            return row if 0 <= row < self.length else -1
        offsets = self.offsets()
        row = bisect_left(offsets, offset)
        return row if row < len(offsets) and offsets[row] == offset else -1

    def code_by_offset(self) -> dict[int, int]:
        """Return the tag code of each row, by its queue offset. Raises MalformedStateError."""
        if not self.codes:
            return dict.fromkeys(self.offsets(), 0)
        return dict(zip(*_columns_of(self), strict=True))

    def rows(self, offset: int, *, by_tag: bool) -> Iterator[Rows]:
        """Yield the rows from *offset* on, cut at gaps and, if *by_tag*, where the tag changes."""
        offsets = self.offsets()
        row, count = bisect_left(offsets, offset), self.length
        codes = _columns_of(self)[1] if by_tag and self.codes else None
        while row < count:
            last = row + 1
            if not self.gaps and codes is None:
                last = count
            while (
                last < count
                and offsets[last] - offsets[row] == last - row
                and (codes is None or codes[last] == codes[row])
            ):
                last += 1
            yield Rows(offsets[row], last - row, row, 0 if codes is None else codes[row])
            row = last


@lru_cache(maxsize=_OPENED)
def _columns_of(block: KeptBlock) -> tuple[Sequence[int], array[int]]:
    """Return offsets and tag codes of a block's rows; they must not be changed."""
    missing = _gaps_of(block) if block.gaps else bytes(block.length)
    codes = _codes_of(block) if block.codes else array("Q", bytes(8 * block.length))
    last = block.first_row + sum(missing) + block.length - 1
    if missing[0] or last >= block.end:
        raise MalformedStateError(f"a block's rows from {block.first_row} on end at {last}")
    return array("Q", map(add, accumulate(missing), count(block.first_row))), codes


def _gaps_of(block: KeptBlock) -> array[int]:
    size_bytes, more = divmod(len(block.gaps), block.length)
    code = _TYPES.get(size_bytes)
    if more or code is None:
        raise MalformedStateError(f"a block of {block.length} rows with {len(block.gaps)} bytes")
    return from_little_endian(code, block.gaps)


def _codes_of(block: KeptBlock) -> array[int]:
    size_bytes = 8 * block.length
    try:
        found = zlib.decompressobj().decompress(block.codes, size_bytes + 1)
    except zlib.error as error:
        raise MalformedStateError(f"a block of {block.length} rows: {error}") from error
    if len(found) != size_bytes:
        raise MalformedStateError(f"a block of {block.length} rows with {len(found)} bytes of them")
    return from_little_endian("Q", found)


def block_of(
    first: int,
    end: int,
    place: tuple[int, int, int],
    offsets: Sequence[int],
    codes: Sequence[int],
    *,
    newest_ms: int,
) -> KeptBlock:
    """Return the block of some rows, at least one; *place*: entry, start and end of the payload."""
    entry, start, stop = place
    missing = [0, *(later - earlier - 1 for earlier, later in pairwise(offsets))]
    return KeptBlock(
        first=first,
        end=end,
        first_row=offsets[0],
        entry=entry,
        newest_ms=newest_ms,
        start=start,
        stop=stop,
        length=len(offsets),
        gaps=_packed_gaps(missing) if any(missing) else b"",
        codes=zlib.compress(little_endian(array("Q", codes)), _FASTEST) if any(codes) else b"",
    )


def _packed_gaps(missing: Sequence[int]) -> bytes:
    """Return them narrow, and not compressed: zlib needs longer than all else, and saves little."""
    largest = max(missing)
    code = next(code for size_bytes, code in _TYPES.items() if not largest >> 8 * size_bytes)
    return little_endian(array(code, missing))


class KeptBlocks:
    """The blocks of a queue, ascending by offset and apart. Immutable: a change gives others."""

    def __init__(self, blocks: Sequence[KeptBlock] = ()) -> None:
        self._blocks = tuple(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[KeptBlock]:
        return iter(self._blocks)

    @property
    def first(self) -> int:
        """The offset of the first row; there must be one."""
        return self._blocks[0].first_row

    @cached_property
    def lowest_index(self) -> int:
        """The lowest entry that any of the blocks lies in; there must be one."""
        return min(block.entry for block in self._blocks)

    @cached_property
    def _counts(self) -> list[int]:
        """How many rows the blocks from each on have, and 0."""
        counts = accumulate((block.length for block in reversed(self._blocks)), initial=0)
        return list(counts)[::-1]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._counts[0]

    def _number(self, offset: int) -> int:
        """Return the number of the first block that ends behind *offset*."""
        return bisect_right(self._blocks, offset, key=attrgetter("end"))

    def at(self, offset: int) -> tuple[KeptBlock, int] | None:
        """Return the block and the row of *offset*; None if it is gone."""
        number_ = self._number(offset)
        if number_ == len(self._blocks):
            return None
        block = self._blocks[number_]
        row = block.row_of(offset)
        return None if row < 0 else (block, row)

    def codes_of(self, offsets: Sequence[int]) -> list[int]:
        """Return the tag codes of some offsets, ascending, up to the first that is gone."""
        codes = list[int]()
        while len(codes) < len(offsets):
            number_ = self._number(offsets[len(codes)])
            if number_ == len(self._blocks):
                break
            block = self._blocks[number_]
            stop = bisect_left(offsets, block.end, len(codes))
            there = block.code_by_offset()
            for offset in offsets[len(codes) : stop]:
                if offset not in there:
                    return codes
                codes.append(there[offset])
        return codes

    def stored_from(self, stored_ms: int) -> KeptBlock | None:
        """Return the first block with a message stored at *stored_ms* or later; None: none has."""
        number_ = bisect_left(self._blocks, stored_ms, key=attrgetter("newest_ms"))
        return self._blocks[number_] if number_ < len(self._blocks) else None

    def count_from(self, offset: int) -> int:
        """Return how many rows there are from *offset* on."""
        number_ = self._number(offset)
        if number_ == len(self._blocks):
            return 0
        block = self._blocks[number_]
        gone = bisect_left(block.offsets(), offset) if offset > block.first_row else 0
        return self._counts[number_] - gone

    def blocks(self, offset: int) -> Iterator[tuple[KeptBlock, int]]:
        """Yield the blocks with rows from *offset* on, and of each the first such row."""
        for block in self._blocks[self._number(offset) :]:
            row = bisect_left(block.offsets(), offset) if offset > block.first_row else 0
            if row < block.length:
                yield block, row

    def rows(self, offset: int, *, by_tag: bool) -> Iterator[tuple[KeptBlock, Rows]]:
        """Yield the rows from *offset* on, cut at gaps and blocks and, if *by_tag*, at tags."""
        for block in self._blocks[self._number(offset) :]:
            for rows in block.rows(offset, by_tag=by_tag):
                yield block, rows

    def with_range(self, first: int, end: int, block: KeptBlock | None) -> KeptBlocks:
        """Return the blocks with *block*, or nothing, in place of those in ``[first, end)``.

        Raises:
            InvalidArgument: One of them is only partly in there.
        """
        low = self._number(first)
        high = bisect_left(self._blocks, end, low, key=attrgetter("first"))
        for cut in self._blocks[low:high]:
            if not first <= cut.first <= cut.end <= end:
                raise InvalidArgument(
                    f"offsets [{first}, {end}) cut the block of [{cut.first}, {cut.end})"
                )
        new = () if block is None else (block,)
        return KeptBlocks((*self._blocks[:low], *new, *self._blocks[high:]))

    def without_entries_below(self, index: int) -> KeptBlocks:
        """Return the blocks that lie in entry *index* or later ones."""
        return KeptBlocks([block for block in self._blocks if block.entry >= index])

    def encode(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot."""
        yield number(len(self._blocks))
        for block in self._blocks:
            yield from block.encode()

    @classmethod
    def read(cls, source: Reader, end: int) -> KeptBlocks:
        """Read blocks of offsets below *end* from a snapshot. Raises MalformedStateError."""
        blocks = [KeptBlock.read(source) for _ in range(source.number(high=end))]
        bounds = [bound for block in blocks for bound in (block.first, block.end)]
        if sorted(bounds) != bounds or (bounds and bounds[-1] > end):
            raise source.malformed(f"{len(blocks)} blocks that do not ascend to {end}")
        return cls(blocks)

    def canonical(self) -> list[object]:
        """Return everything as plain values, equal on nodes that applied the same log."""
        return [
            [*block[:8], list(block.offsets()), [block.code(row) for row in range(block.length)]]
            for block in self._blocks
        ]
