"""What one node has on disk, and what a crash leaves of it.

Two kinds behind one Protocol: a plain model for scenarios, and the shipped store on crashable
files in memory. A write is two steps, as in the driver: written, then synced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import Protocol

from dledger.common.chain import chains_behind
from dledger.files.memory_files import MemoryFiles
from dledger.raft.membership import memberships_in
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.types import Entry, HardState, Membership, NodeId

_DIRECTORY = Path("/data")
_GROUP = "simulated"
_SEGMENT_BYTES = 16 << 10


class Disk(Protocol):
    """Everything a node finds again after a restart."""

    @property
    def first_index(self) -> int:
        """The oldest index kept."""
        ...

    @property
    def last_index(self) -> int:
        """The newest index written."""
        ...

    def term(self, index: int) -> int:
        """Return the term at *index*; 0 for index 0."""
        ...

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index*; 0 for index 0."""
        ...

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries from [first, last]: at least one, cut at *max_bytes*."""
        ...

    def memberships(self) -> Sequence[tuple[int, Membership]]:
        """Return (index, membership) of the membership entries, ascending."""
        ...

    def membership_indexes(self) -> Collection[int]:
        """Return where they are, those too that are damaged."""
        ...

    def load_hard_state(self) -> HardState:
        """Return the durable term and vote."""
        ...

    def save_hard_state(self, hard_state: HardState) -> None:
        """Make the term and vote durable."""
        ...

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries, truncating at the first; they are durable only after `sync`."""
        ...

    def cut_behind(self, last: int) -> None:
        """Remove what is behind *last*, durably."""
        ...

    def sync(self) -> None:
        """Make everything written durable."""
        ...

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable."""
        ...

    def crash(self, rng: Random) -> None:
        """Lose what was not synced, or keep a random part of it; then recover."""
        ...


class Reader:
    """The core's LogStorage over a disk; *in_memory* says whether entries can be read at once."""

    def __init__(self, disk: Disk, in_memory: Callable[[], bool]) -> None:
        self._disk = disk
        self._in_memory = in_memory

    @property
    def first_index(self) -> int:
        """The oldest index kept."""
        return self._disk.first_index

    @property
    def last_index(self) -> int:
        """The newest index written."""
        return self._disk.last_index

    def term(self, index: int) -> int:
        """Return the term at *index*; 0 for index 0."""
        return self._disk.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index*; 0 for index 0."""
        return self._disk.chain(index)

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries from [first, last], or None if they are not in memory."""
        return self._disk.entries(first, last, max_bytes) if self._in_memory() else None

    def membership_indexes(self) -> Collection[int]:
        """Return where the memberships are, those too that are damaged."""
        return self._disk.membership_indexes()


class ModelDisk:
    """The obvious disk: a list of entries, and the list of writes since the last sync.

    It may begin behind a snapshot; the memberships that this holds are kept beside the list.

    Attributes:
        unreadable: The indexes of memberships that are damaged.
    """

    def __init__(self, entries: Sequence[Entry] = (), hard_state: HardState | None = None) -> None:
        self._entries = list(entries)
        self._chains = chains_behind(0, entries)
        self._durable = list(entries)
        self._unsynced: list[tuple[Entry, ...]] = []
        self._hard_state = hard_state or HardState()
        self._base_index = self._base_term = self._base_chain = 0
        self._base_memberships: list[tuple[int, Membership]] = []
        self.unreadable: set[int] = set()

    @property
    def first_index(self) -> int:
        """The oldest index kept."""
        return self._base_index + 1

    @property
    def last_index(self) -> int:
        """The newest index written."""
        return self._base_index + len(self._entries)

    def begin_behind(
        self, index: int, term: int, chain: int, memberships: Sequence[tuple[int, Membership]]
    ) -> None:
        """Drop the entries that a snapshot covers; all of them, if ours are others."""
        known = index <= self.last_index and self.term(index) == term
        kept = self._entries[index - self._base_index :] if known else []
        self._base_index, self._base_term, self._base_chain = index, term, chain
        self._base_memberships = list(memberships)
        self._entries, self._durable = kept, list(kept)
        self._chains = chains_behind(chain, kept)
        self._unsynced.clear()

    def term(self, index: int) -> int:
        """Return the term at *index*; 0 for index 0."""
        if index == self._base_index:
            return self._base_term
        return self._entries[index - self._base_index - 1].term

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index*; 0 for index 0."""
        if index == self._base_index:
            return self._base_chain
        return self._chains[index - self._base_index - 1]

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries from [first, last]: at least one, cut at *max_bytes*."""
        room = max_bytes
        found = self._entries[first - self._base_index - 1 : last - self._base_index]
        for count, entry in enumerate(found):
            room -= entry.size_bytes
            if room < 0:
                return tuple(found[: max(1, count)])
        return tuple(found)

    def memberships(self) -> Sequence[tuple[int, Membership]]:
        """Return (index, membership) of the membership entries, ascending."""
        known = (*self._base_memberships, *memberships_in(self._entries))
        return [pair for pair in known if pair[0] not in self.unreadable]

    def membership_indexes(self) -> Collection[int]:
        """Return where they are, those too that are damaged."""
        return {index for index, _ in self.memberships()} | self.unreadable

    def load_hard_state(self) -> HardState:
        """Return the durable term and vote."""
        return self._hard_state

    def save_hard_state(self, hard_state: HardState) -> None:
        """Make the term and vote durable."""
        self._hard_state = hard_state

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries, truncating at the first; they are durable only after `sync`."""
        self._unsynced.append(tuple(entries))
        _overwrite(self._entries, entries, self._base_index)
        del self._chains[entries[0].index - self._base_index - 1 :]
        self._chains += chains_behind(self.chain(entries[0].index - 1), entries)

    def cut_behind(self, last: int) -> None:
        """Remove what is behind *last*, durably; what was written before it is, too."""
        self.sync()
        kept = last - self._base_index
        del self._entries[kept:], self._chains[kept:], self._durable[kept:]

    def sync(self) -> None:
        """Make everything written durable."""
        self._unsynced.clear()
        self._durable = list(self._entries)

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable."""
        at = index - self._base_index - 1
        return at < 0 or (at < len(self._durable) and self._durable[at].term == term)

    def crash(self, rng: Random) -> None:
        """Keep the synced entries and a random prefix of the writes since."""
        kept = rng.randint(0, len(self._unsynced))
        for position, entries in enumerate(self._unsynced[:kept]):
            torn = position == kept - 1
            written = entries[: rng.randint(1, len(entries))] if torn else entries
            _overwrite(self._durable, written, self._base_index)
        self._unsynced.clear()
        self._entries = list(self._durable)
        self._chains = chains_behind(self._base_chain, self._entries)


class StoreDisk:
    """The shipped commit log and hard state file, on files in memory that crash."""

    def __init__(self, node_id: NodeId, entries: Sequence[Entry] = ()) -> None:
        self._files = MemoryFiles()
        empty = load_or_format(self._files, _DIRECTORY, node_id, new_id=lambda: node_id)
        self._identity = join(self._files, _DIRECTORY, empty, _GROUP)
        self._open()
        if entries:
            self.write(entries)
            self.sync()

    @property
    def first_index(self) -> int:
        """The oldest index kept."""
        return self._log.first_index

    @property
    def last_index(self) -> int:
        """The newest index written."""
        return self._log.last_index

    def term(self, index: int) -> int:
        """Return the term at *index*; 0 for index 0."""
        return self._log.term(index)

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index*; 0 for index 0."""
        return self._log.chain(index)

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """Return entries from [first, last]: at least one, cut at *max_bytes*."""
        return self._log.read(first, last, max_bytes)

    def memberships(self) -> Sequence[tuple[int, Membership]]:
        """Return (index, membership) of the membership entries, ascending."""
        return self._log.memberships()

    def membership_indexes(self) -> Collection[int]:
        """Return where they are, those too that are damaged."""
        return self._log.membership_indexes()

    def load_hard_state(self) -> HardState:
        """Return the durable term and vote."""
        return self._hard_state_file.load()

    def save_hard_state(self, hard_state: HardState) -> None:
        """Make the term and vote durable."""
        self._hard_state_file.save(hard_state)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries, truncating at the first; they are durable only after `sync`."""
        self._log.append(entries)

    def cut_behind(self, last: int) -> None:
        """Remove what is behind *last*, durably."""
        self._log.cut_behind(last)

    def sync(self) -> None:
        """Make everything written durable."""
        self._log.sync()

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable."""
        return index <= self._log.synced_index and self._log.term(index) == term

    def crash(self, rng: Random) -> None:
        """Cut the power, then recover as a starting node does."""
        self._files.crash(rng)
        self._open()

    def _open(self) -> None:
        self._log = CommitLog.open(
            self._files,
            _DIRECTORY / LOG_DIRECTORY,
            identity=self._identity,
            segment_bytes=_SEGMENT_BYTES,
            cache_bytes=0,
        )
        self._hard_state_file = HardStateFile(self._files, _DIRECTORY)


def _overwrite(log: list[Entry], entries: Sequence[Entry], base_index: int) -> None:
    at = entries[0].index - base_index - 1
    assert 0 <= at <= len(log), "a log has no gaps"  # noqa: S101
    del log[at:]
    log.extend(entries)
