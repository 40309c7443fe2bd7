"""What must be true of the group as a whole (Raft figure 3); one node's part is in
`dledger.raft.invariants`.

Each checker is told what happens and raises `ViolationError`.
"""

# ruff: noqa: D205 - the first sentence is long
from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger.raft.membership import memberships_in
from dledger.raft.quorum import Electorate
from dledger.types import Entry, Membership, NodeId
from dledger_sim.disk import Disk

_Slot = tuple[int, int, bytes]


class ViolationError(AssertionError):
    """A promise of Raft is broken."""


class StuckError(ViolationError):
    """Nothing is lost, but nothing goes on; with what is left of the disks it should."""


class ElectionSafety:
    """At most one leader in a term."""

    def __init__(self) -> None:
        self._leaders: dict[int, NodeId] = {}

    def elected(self, node: NodeId, term: int) -> None:
        """Take note of a leader."""
        other = self._leaders.setdefault(term, node)
        if other != node:
            raise ViolationError(f"term {term} has two leaders: {other} and {node}")

    @property
    def terms(self) -> int:
        """How many terms had a leader."""
        return len(self._leaders)


class LogMatching:
    """Logs that agree on one entry agree on all before it.

    It is enough that an entry (index, term) is the same everywhere, and so is its predecessor's
    term; the rest follows by induction.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._logs: dict[NodeId, list[Entry]] = {}

    def started(self, node: NodeId, log: Sequence[Entry]) -> None:
        """Take note of what a node found on its disk."""
        self._logs[node] = []
        self.wrote(node, log)

    def wrote(self, node: NodeId, entries: Sequence[Entry]) -> None:
        """Take note of entries that a node puts into its log, replacing those from there on."""
        log = self._logs[node]
        for entry in entries:
            del log[entry.index - 1 :]
            here = (log[-1].term if log else 0, entry.data)
            there = self._slots.setdefault((entry.index, entry.term), here)
            if here != there:
                raise ViolationError(f"entry {entry.index} of term {entry.term} differs at {node}")
            log.append(entry)

    def log(self, node: NodeId) -> Sequence[Entry]:
        """Return a node's log as it is now; parts may not be on disk yet."""
        return self._logs[node]


class Commitment:
    """State machine safety, leader completeness, and durability of what is committed."""

    def __init__(self, disks: Mapping[NodeId, Disk], *, check_disks: bool = True) -> None:
        self._disks = disks
        self._check_disks = check_disks
        self.entries: list[Entry] = []
        self._terms: list[int] = []
        self._applied: dict[NodeId, int] = {}
        self._electorates: set[Electorate] = set()
        self.membership = Membership()

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Take note of the memberships that enter a log: from now on they may decide."""
        for _, one in memberships_in(entries):
            self._electorates.add(Electorate(one.voter_ids, one.outgoing_ids))

    def started(self, node: NodeId) -> None:
        """Take note of a node that applies from the beginning."""
        self._applied[node] = 0

    def applied(self, node: NodeId, entries: Sequence[Entry], *, term: int) -> None:
        """Take note of what a node applies while it is in *term*."""
        for entry in entries:
            self._in_order(node, entry)
            if entry.index > len(self.entries):
                self._first(entry, term)
            known = self.entries[entry.index - 1]
            if (known.term, known.data) != (entry.term, entry.data):
                raise ViolationError(f"{node} applies another entry {entry.index} than others did")

    def elected(self, node: NodeId, log: Sequence[Entry], *, term: int) -> None:
        """Check that the leader of *term* has everything that was committed in earlier terms.

        A vote may arrive so late that a later term has committed entries already.
        """
        for known, committed_in in zip(self.entries, self._terms, strict=True):
            if committed_in >= term:
                break
            if len(log) < known.index or log[known.index - 1].term != known.term:
                raise ViolationError(f"leader {node} lacks the committed entry {known.index}")

    def applied_index(self, node: NodeId) -> int:
        """Return how far a node has applied since it started."""
        return self._applied[node]

    def _in_order(self, node: NodeId, entry: Entry) -> None:
        if entry.index != self._applied[node] + 1:
            raise ViolationError(f"{node} applies {entry.index} after {self._applied[node]}")
        self._applied[node] = entry.index

    def _first(self, entry: Entry, term: int) -> None:
        """Check that a quorum's disks hold an entry when it is applied for the first time.

        Which membership decided is only known to its leader; it must be one that was written.
        """
        for _, membership in memberships_in([entry]):
            self.membership = membership
        self.entries.append(entry)
        self._terms.append(max([*self._terms[-1:], term]))
        holders = [n for n, d in self._disks.items() if d.holds(entry.index, entry.term)]
        if self._check_disks and not any(one.is_quorum(holders) for one in self._electorates):
            raise ViolationError(
                f"entry {entry.index} is applied, but only {holders} have it on disk"
            )


class Acknowledgements:
    """What was acknowledged to a client stays, and is there once."""

    def __init__(self) -> None:
        self._acknowledged: dict[bytes, int] = {}
        self._highest = 0
        self._reads: list[int] = []

    def read_begins(self) -> int:
        """Take note of a read; returns its number."""
        self._reads.append(self._highest)
        return len(self._reads) - 1

    def read_confirmed(self, number: int, index: int) -> None:
        """Check that a read sees all that was acknowledged before it began (thesis 6.4)."""
        if index < self._reads[number]:
            raise ViolationError(
                f"a read at {index} misses the entry {self._reads[number]}, acknowledged before"
            )

    def acknowledged(self, entry: Entry) -> None:
        """Take note that a client was told that its entry is committed."""
        self._acknowledged[entry.data] = entry.index
        self._highest = max(self._highest, entry.index)

    def __len__(self) -> int:
        """How many there were."""
        return len(self._acknowledged)

    def check(self, log: Sequence[Entry]) -> None:
        """Check against what a node has applied at the end of the run."""
        where: dict[bytes, int] = {}
        for entry in log:
            if entry.data in where and entry.data in self._acknowledged:
                raise ViolationError(f"{entry.data!r} is there twice")
            where[entry.data] = entry.index
        for data, index in self._acknowledged.items():
            if index <= len(log) and where.get(data) != index:
                raise ViolationError(f"the acknowledged entry {index}, {data!r}, is lost")
