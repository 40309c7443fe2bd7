"""The log as the core sees it: a durable part behind a Protocol, a newer part in memory.

Owned by one Raft. Entries stay in memory until they are both durable and handed over for
applying, so in steady state nothing is read back from disk; while a node applies what it has
missed, only the newest do. Data is never copied.
"""

# ruff: noqa: S101 - assert is for our own mistakes, never for input
from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dledger.common.chain import chains_behind
from dledger.errors import OffsetOutOfRange
from dledger.types import Entry, held_bytes

_LATER_BYTES: Final = 16 << 10
"""What is applied later, if so asked, takes no more memory than this."""


class LogStorage(Protocol):
    """The durable log. The core asks only below the entries that it still holds itself."""

    @property
    def first_index(self) -> int:
        """The oldest index kept; 1 when nothing was compacted."""
        ...

    @property
    def last_index(self) -> int:
        """The newest durable index; read once, at construction."""
        ...

    def term(self, index: int) -> int:
        """Return the term of the entry at *index*; 0 for index 0.

        That of ``first_index - 1`` is known, too: a snapshot says it.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        ...

    def chain(self, index: int) -> int:
        """Return the chain CRC of the entry at *index*; 0 for index 0. No I/O.

        That of ``first_index - 1`` is known, too; also those of damaged entries are.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        ...

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries from [first, last]: at least one, cut at *max_bytes*.

        None: not in memory now; the caller of the core fetches them (never ones that a
        truncation has replaced) and then calls `Raft.entries_available`.
        """
        ...

    def membership_indexes(self) -> Collection[int]:
        """Return where the group's memberships are in the log, those too that are damaged."""
        ...


@dataclass(slots=True)
class _Write:
    """A batch handed to storage: its last entry, and how much of it still stands."""

    term: int
    index: int
    valid_to: int


class RaftLog:
    """Terms, truncation, durability and commitment of one node's log.

    ``applied_index <= commit_index <= last_index`` and ``applied_index <= durable_index <=
    last_index`` always hold. An index counts as durable when storage has confirmed the entry
    that our log has there *now*.
    """

    def __init__(self, reader: LogStorage, applied_index: int, *, max_unapplied_bytes: int) -> None:
        """Begin with what is durable, of which [.., *applied_index*] is applied.

        *max_unapplied_bytes*: see `RaftConfig`.
        """
        self._reader = reader
        self._max_unapplied_bytes = max_unapplied_bytes
        self.last_index = self.durable_index = reader.last_index
        self.last_term = reader.term(reader.last_index)
        self.last_chain = reader.chain(reader.last_index)
        self.commit_index = self.applied_index = applied_index
        assert applied_index <= self.last_index, "the applied entries must be in the log"
        self.apply_blocked = self.apply_paused = self.apply_later = False
        self._tail: list[Entry] = []
        self._tail_chains: list[int] = []
        self._tail_bytes = 0
        self._tail_first = self.last_index + 1
        self._before_tail = self.last_term, self.last_chain
        self._next_write = self.last_index + 1
        self._writes: deque[_Write] = deque()
        self.cut_behind: int | None = None
        """Behind this index storage has to let go; None once it was told."""

    @property
    def first_index(self) -> int:
        """The oldest index kept."""
        return self._reader.first_index

    def membership_indexes(self) -> Collection[int]:
        """Return where storage has memberships of the group, those too that are damaged."""
        return self._reader.membership_indexes()

    def term(self, index: int) -> int:
        """Return the term at *index*; 0 for index 0.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        if index == self.last_index:
            return self.last_term
        if index > self.last_index:
            raise OffsetOutOfRange(index, first=self.first_index, last=self.last_index)
        if index >= self._tail_first:
            return self._tail[index - self._tail_first].term
        if index == self._tail_first - 1:
            return self._before_tail[0]
        return self._reader.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index*; 0 for index 0. Equal ones mean equal logs up to there.

        Raises:
            OffsetOutOfRange: There is no such entry.
        """
        if index == self.last_index:
            return self.last_chain
        if index > self.last_index:
            raise OffsetOutOfRange(index, first=self.first_index, last=self.last_index)
        if index >= self._tail_first:
            return self._tail_chains[index - self._tail_first]
        if index == self._tail_first - 1:
            return self._before_tail[1]
        return self._reader.chain(index)

    def knows(self, index: int) -> bool:
        """Whether we can tell what is at *index*: it is in our log, or right before it."""
        return index <= self.last_index and not self.has_dropped(index + 1)

    def has_dropped(self, index: int) -> bool:
        """Whether our log begins behind *index*; of what is in memory, storage is not asked."""
        return index < self._tail_first and index < self._reader.first_index

    def matches(self, index: int, term: int) -> bool:
        """Whether we have the entry (index, term); (0, 0) is in every log."""
        return self.knows(index) and self.term(index) == term

    def has(self, index: int, term: int) -> bool:
        """Whether everything up to the committed entry (index, term) is in our log."""
        return index <= self.commit_index or self.matches(index, term)

    def is_up_to_date(self, *, last_index: int, last_term: int, last_chain: int) -> bool:
        """Whether a log ending in (last_index, last_term) is up to date for us (Raft 5.4.1).

        One that has our entry there, and another log before it, is not: one of the two is wrong.
        """
        if (last_term, last_index) < (self.last_term, self.last_index):
            return False
        return not self.matches(last_index, last_term) or self.chain(last_index) == last_chain

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """Return the highest (index, term) of ours with both at most the given ones.

        Two logs cannot agree above it, so a whole term of disagreement costs one exchange
        (Raft 5.3, the optimisation at its end). Logarithmic in the length of the log.
        """
        low, high = self.first_index - 1, min(index, self.last_index)
        if high > low and self.term(high) <= term:
            return high, self.term(high)
        while low < high:
            middle = (low + high + 1) // 2
            if self.term(middle) <= term:
                low = middle
            else:
                high = middle - 1
        return low, self.term(low)

    def append(self, entries: Sequence[Entry], chains: Sequence[int] | None = None) -> None:
        """Add entries that follow the last one; *chains* are their chain CRCs if they are known."""
        assert entries[0].index == self.last_index + 1, "entries must be contiguous"
        self._tail.extend(entries)
        self._tail_chains += chains or chains_behind(self.last_chain, entries)
        self._tail_bytes += held_bytes(entries)
        self.last_index = entries[-1].index
        self.last_term = entries[-1].term
        self.last_chain = self._tail_chains[-1]

    def find_conflict(self, entries: Sequence[Entry]) -> int | None:
        """Return the position of the first of *entries* that we do not have; None if we have all.

        Their index is either beyond our log or holds another term there (a conflict).
        """
        if entries and entries[0].index > self.last_index:
            return 0
        for position, entry in enumerate(entries):
            if entry.index > self.last_index or self.term(entry.index) != entry.term:
                return position
        return None

    def truncate(self, first: int) -> None:
        """Drop [first, last]; nothing that is on its way to disk there counts any more."""
        assert first > self.commit_index, "a committed entry is never removed"
        assert first > self.applied_index, "an applied entry is never removed"
        self.last_term, self.last_chain = self.term(first - 1), self.chain(first - 1)
        self.last_index = first - 1
        self._forget(max(0, first - self._tail_first), len(self._tail))
        if first <= self._tail_first:
            self._tail_first, self._before_tail = first, (self.last_term, self.last_chain)
        self._next_write = min(self._next_write, first)
        self.durable_index = min(self.durable_index, first - 1)
        for write in self._writes:
            write.valid_to = min(write.valid_to, first - 1)

    def discard(self, first: int) -> None:
        """Drop [first, last], on the disk as well: nothing comes to take its place there."""
        self.truncate(first)
        self.cut_behind = first - 1

    def install(self, index: int, term: int, chain: int) -> None:
        """Begin anew behind a snapshot that ends in (index, term); no write under way counts."""
        assert index > self.commit_index, "a snapshot never takes entries back"
        self.last_index = self.durable_index = self.commit_index = self.applied_index = index
        self.last_term, self.last_chain = term, chain
        self._forget(0, len(self._tail))
        self._tail_first = self._next_write = index + 1
        self._before_tail = term, chain
        self.apply_blocked = False
        for write in self._writes:
            write.valid_to = 0

    def skip_to(self, index: int) -> None:
        """Take what is below for applied: a snapshot's state has it. The log stays as it is."""
        assert self.applied_index <= index, "an applied entry stays applied"
        assert index <= min(self.commit_index, self.durable_index), "only what may be applied"
        self.applied_index = index
        self.apply_blocked = False
        self._release()

    def slice(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries from [first, last]: at least one, cut at *max_bytes*; None: not now."""
        if first < self._tail_first:
            return self._read(first, min(last, self._tail_first - 1), max_bytes)
        start = first - self._tail_first
        stop = size = 0
        for stop in range(start, last - self._tail_first + 1):
            size += len(self._tail[stop].data)
            if size > max_bytes and stop > start:
                return tuple(self._tail[start:stop])
        return tuple(self._tail[start : stop + 1])

    def has_work(self) -> bool:
        """Whether a cut or entries wait for storage, or entries for being applied."""
        return (
            self._next_write <= self.last_index
            or (self.applied_index < self.commit_index and self.has_committed)
            or self.cut_behind is not None
        )

    def take_writes(self) -> tuple[Entry, ...]:
        """Hand the entries that storage has not been given yet to it."""
        if self._next_write > self.last_index:
            return ()
        entries = tuple(self._tail[self._next_write - self._tail_first :])
        self._next_write = self.last_index + 1
        self._writes.append(_Write(self.last_term, self.last_index, self.last_index))
        return entries

    def persisted(self, term: int, index: int) -> bool:
        """Take a completion; returns whether more of our log is durable than before.

        Writes complete in the order they were handed over. The same (term, index) may be
        under way twice, with a truncation between (A, B, A): then the completion is taken for
        the older one, of which only what was never truncated counts.
        """
        for write in self._writes:
            if write.index == index and write.term == term:
                break
        else:
            return False
        durable = self.durable_index
        while True:
            write = self._writes.popleft()
            self.durable_index = max(self.durable_index, write.valid_to)
            if write.term == term and write.index == index:
                break
        self._release()
        return self.durable_index > durable

    @property
    def told_commit(self) -> int:
        """Return the commit index as a leader tells it: no further than its own disk has the log.

        So who is told an index of a leader's own term knows what that leader has promised.
        """
        return min(self.commit_index, self.durable_index)

    def commit_to(self, index: int) -> bool:
        """Raise the commit index; returns whether it rose."""
        if index <= self.commit_index:
            return False
        assert index <= self.last_index, "the commit index stays within the log"
        self.commit_index = index
        return True

    @property
    def has_committed(self) -> bool:
        """Whether entries can be handed over for applying."""
        ready = self.applied_index < min(self.commit_index, self.durable_index)
        if not ready or self.apply_blocked or self.apply_paused:
            return False
        if not self.apply_later or self._tail_bytes > _LATER_BYTES:
            return True
        return self.applied_index + 1 < self._tail_first  # what is read back comes in many pieces

    def take_committed(self, max_bytes: int) -> tuple[Entry, ...]:
        """Hand over the next entries that are committed and durable here."""
        if self.applied_index == self.commit_index or not self.has_committed:
            return ()
        last = min(self.commit_index, self.durable_index)
        entries = self.slice(self.applied_index + 1, last, max_bytes)
        self.apply_blocked = entries is None
        if entries is None:
            return ()
        self.applied_index = entries[-1].index
        self._release()
        return entries

    def _read(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        entries = self._reader.entries(first, last, max_bytes)
        if entries is not None:
            assert entries[0].index == first, "the reader starts where it was asked to"
            assert entries[-1].term == self.term(entries[-1].index), "the reader is not stale"
        return entries

    def _release(self) -> None:
        """Let go of the entries in memory that are durable and handed over.

        Of those still to be handed over, too, where they are too many: the oldest, which will be
        read back.
        """
        count = max(0, min(self.durable_index, self.applied_index) - self._tail_first + 1)
        excess = self._tail_bytes - self._max_unapplied_bytes
        if excess > 0:
            excess -= held_bytes(self._tail[:count])
            ready = min(self.durable_index, self.commit_index) - self._tail_first + 1
            while excess > 0 and count < ready:
                excess -= self._tail[count].held_bytes
                count += 1
        if count:
            self._before_tail = self._tail[count - 1].term, self._tail_chains[count - 1]
            self._forget(0, count)
            self._tail_first += count

    def _forget(self, start: int, stop: int) -> None:
        self._tail_bytes -= held_bytes(self._tail[start:stop])
        del self._tail[start:stop], self._tail_chains[start:stop]
