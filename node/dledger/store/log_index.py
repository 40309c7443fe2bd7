"""The in-memory index of the log: terms, chain CRCs, memberships and record positions.

No I/O and no locks: owned by `CommitLog`, which guards every call.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dledger.errors import OffsetOutOfRange
from dledger.store.faulty_ranges import FaultyRanges
from dledger.store.format import Base, EncodedRecords
from dledger.store.segment import Segment, TermRuns
from dledger.store.shadow_index import encode_rows, identities
from dledger.types import Entry, Membership


class SealedSegment(NamedTuple):
    """A segment that is complete and immutable: entries [first_index, last_index]."""

    first_index: int
    last_index: int
    size_bytes: int


class LogIndex:
    """The log's entries without their data.

    Attributes:
        base: The entry before the first one kept.
        last_index: The newest entry written; the index of the base if there is none.
        segments: Ascending; the last may be empty.
        memberships: (index, membership) of all MEMBERSHIP entries that could be read, ascending.
        special: The indexes of all MEMBERSHIP entries, damaged ones too.
        faulty: The entries whose records are damaged.
    """

    def __init__(
        self,
        base: Base,
        segments: list[Segment],
        runs: TermRuns,
        *,
        special: Iterable[int],
        faulty: FaultyRanges,
    ) -> None:
        self.base = base
        self.last_index = segments[-1].last_index if segments else base.index
        self.segments = segments
        self.runs = runs
        self.memberships: list[tuple[int, Membership]] = []
        self.special = set(special)
        self.faulty = faulty

    @property
    def first_index(self) -> int:
        """The oldest entry kept."""
        return self.base.index + 1

    def term(self, index: int) -> int:
        """Return the term of the entry at *index*, in [base, last]; 0 for index 0.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        if index == self.base.index:
            return self.base.term
        if index == 0:
            return 0
        self.check_range(index, index)
        return self.runs.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC of the record at *index*, in [base, last]; 0 for index 0.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        if index == self.base.index:
            return self.base.chain
        if index == 0:
            return 0
        self.check_range(index, index)
        return self.segment_of(index).chain(index)

    def check_range(self, first: int, last: int) -> None:
        """Raise OffsetOutOfRange unless the log holds [first, last]."""
        oldest, newest = self.base.index + 1, self.last_index
        for index in (first, last):
            if not oldest <= index <= newest:
                raise OffsetOutOfRange(index, first=oldest, last=newest)

    def segment_of(self, index: int) -> Segment:
        """Return the segment that holds *index*, which the caller knows to be in the log."""
        firsts = bisect_right(self.segments, index, key=lambda segment: segment.first_index)
        return self.segments[firsts - 1]

    def mend(self, index: int, membership: Membership | None) -> None:
        """Mark the record at *index* as repaired; *membership* is what it holds, if anything."""
        self.faulty.discard(index, index)
        if membership is not None and index not in dict(self.memberships):
            insort(self.memberships, (index, membership), key=lambda pair: pair[0])

    def rows(self, segment: Segment, first: int, last: int) -> bytes:
        """Return the identity rows of [first, last] as far as *segment* holds them."""
        return encode_rows(identities(segment, self.runs, self.special, first=first, last=last))

    def add(
        self,
        encoded: EncodedRecords,
        entries: Sequence[Entry],
        memberships: Sequence[tuple[int, Membership]],
    ) -> None:
        """Add *entries*, which were written at the end of the last segment."""
        self.segments[-1].add(encoded)
        for entry in entries:
            self.runs.append(entry.index, entry.term)
        self.memberships += memberships
        self.special.update(dict(memberships))
        self.last_index = entries[-1].index

    def forget_behind(self, last: int) -> None:
        """Forget the entries after *last*; their segments stay, until `cut_segments`."""
        self.last_index = last
        self.runs.truncate(last)
        self.memberships = [pair for pair in self.memberships if pair[0] <= last]
        self.special = {index for index in self.special if index <= last}
        self.faulty.truncate(last)

    def cut_segments(self, last: int) -> list[Segment]:
        """Forget the segments that begin after *last*, and return them."""
        keep = bisect_right(self.segments, last, key=lambda segment: segment.first_index)
        dropped = self.segments[keep:]
        del self.segments[keep:]
        return dropped

    def sealed(self) -> list[SealedSegment]:
        """Return all segments but the last, oldest first."""
        return [
            SealedSegment(one.first_index, one.last_index, one.capacity_bytes)
            for one in self.segments[:-1]
        ]

    def base_before(self, index: int) -> Base:
        """Return the base that the log would have without the sealed segments below *index*."""
        keep = bisect_right(self.segments, index, key=lambda segment: segment.first_index)
        before = self.segments[keep - 1].first_index - 1 if keep else self.base.index
        return Base(index=before, term=self.term(before), chain=self.chain(before))

    def rebase(self, base: Base) -> list[Segment]:
        """Forget everything up to *base*, the end of a segment; return the segments that go."""
        self.runs.forget_before(base.index + 1)
        self.memberships = [pair for pair in self.memberships if pair[0] > base.index]
        self.special = {index for index in self.special if index > base.index}
        self.faulty.forget_before(base.index + 1)
        self.base = base
        keep = [segment for segment in self.segments if segment.first_index > base.index]
        dropped = self.segments[: len(self.segments) - len(keep)]
        self.segments = keep
        return dropped

    def restart(self, base: Base) -> list[Segment]:
        """Forget everything: the log is empty after *base*; return the segments that go."""
        dropped, self.segments = self.segments, []
        self.runs = TermRuns()
        self.memberships, self.special, self.faulty = [], set(), FaultyRanges()
        self.base, self.last_index = base, base.index
        return dropped
