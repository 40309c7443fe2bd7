"""What must be true of a group of real drivers as a whole (Raft figure 3), checked as it happens.

A record's chain CRC covers everything before it, so that two logs are compared by one number.
Each checker is told what happens and raises `ViolationError`; none looks at what it has seen
before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from dledger.broker.command_frame import HEADER_BYTES, CommandType, frame_type
from dledger.broker.commands import Leap, decode
from dledger.broker.lived_time import LivedTime
from dledger.errors import OffsetOutOfRange
from dledger.raft import invariants
from dledger.raft.membership import memberships_in
from dledger.raft.messages import AppendResponse, Message, VoteRequest, VoteResponse
from dledger.raft.quorum import Electorate
from dledger.types import Entry, EntryKind, HardState, Membership, NodeId, Role
from dledger_sim.process import Process


class ViolationError(AssertionError):
    """A promise of Raft is broken."""


class StuckError(ViolationError):
    """Nothing is lost, but nothing goes on; with what is left of the disks it should."""


class OneHistory:
    """Log matching: an (index, term) has one past, wherever it is written or found."""

    def __init__(self) -> None:
        self._chains: dict[tuple[int, int], int] = {}

    def wrote(self, process: Process, entries: Sequence[Entry]) -> None:
        """Check entries that were written to a log."""
        for entry in entries:
            self._check(process, entry.index, entry.term)

    def opened(self, process: Process) -> None:
        """Check what a starting process finds on its disk."""
        last = process.log.last_index
        if last >= process.log.first_index:
            self._check(process, last, process.log.term(last))

    def _check(self, process: Process, index: int, term: int) -> None:
        chain = process.log.chain(index)
        known = self._chains.setdefault((index, term), chain)
        if known != chain:
            raise ViolationError(f"entry {index} of term {term} has another past at {process.id}")


class LogTime:
    """The times of committed DATA entries never fall, and no more is lived than there was.

    Whatever the wall clocks do: what they jump by is a leap, and ages nothing.
    """

    def __init__(self) -> None:
        self._newest = (0, 0)
        self._time = LivedTime()
        self._first_ms: int | None = None

    def applied(self, entry: Entry, world_ms: int) -> None:
        """Check a DATA entry that is applied, for the first time or again.

        Args:
            entry: The entry.
            world_ms: How long the world has been there.
        """
        index, time_ms = self._newest
        if entry.index <= index:
            return
        if entry.timestamp_ms < time_ms:
            raise ViolationError(
                f"entry {entry.index} is of {entry.timestamp_ms} ms, "
                f"and entry {index} before it of {time_ms} ms"
            )
        self._newest = (entry.index, entry.timestamp_ms)
        self._time.advance(entry.timestamp_ms)
        data = entry.data  # a leap is alone in its entry
        if len(data) > HEADER_BYTES and frame_type(data[:HEADER_BYTES]) == CommandType.LEAP:
            leap = decode(CommandType.LEAP, data[HEADER_BYTES:])
            if isinstance(leap, Leap):
                self._time.leap(leap.from_ms, leap.to_ms)
        lived_ms = self._time.lived_ms
        self._first_ms = lived_ms if self._first_ms is None else self._first_ms
        if lived_ms - self._first_ms > world_ms:
            raise ViolationError(
                f"entry {entry.index}: {lived_ms - self._first_ms} ms were lived since the first "
                f"one, in a world of {world_ms} ms"
            )

    def forget_behind(self, index: int) -> None:
        """Forget entries that a lost majority has taken along: their times are nobody's."""
        if self._newest[0] > index:
            self._newest = (index, 0)


class MembershipHistory:
    """A node goes by no membership but one that a leader appended, is in its log, and is newest."""

    def __init__(self) -> None:
        self._appended: dict[tuple[int, int], Membership] = {}
        self._committed: list[int] = []

    def appended(self, entries: Iterable[Entry]) -> None:
        """Take note of what the leader of these entries' term has appended, or who founds."""
        for entry in entries:
            if entry.kind is EntryKind.MEMBERSHIP:
                key = (entry.index, entry.term)
                self._appended.setdefault(key, Membership.decode(entry.data))

    def committed(self, index: int, term: int) -> Membership | None:
        """Take note of a committed entry; returns its membership if it is one."""
        found = self._appended.get((index, term))
        if found is not None:
            self._committed.append(index)
        return found

    def check(self, process: Process) -> None:
        """Check which membership a node goes by."""
        core = process.driver.core
        index, membership = core.membership_index, core.membership
        if index > core.last_index:
            raise ViolationError(f"{process.id} goes by the membership {index} behind its log")
        sure = min(core.applied_index, process.snapshots.index)  # a repair is heard of later
        newest = bisect_right(self._committed, sure)
        if newest and index < self._committed[newest - 1]:
            raise ViolationError(
                f"{process.id} goes by the membership {index}, and its snapshot "
                f"has that of {self._committed[newest - 1]}"
            )
        term = _term_at(process, index)
        forces = core.role is Role.CANDIDATE and membership.epoch > 0
        if (core.role is Role.LEADER or forces) and term == core.term:
            self._appended.setdefault((index, term), membership)
        if index and not self._is_known(index, term, membership):
            raise ViolationError(
                f"{process.id} goes by the membership {index}, which no leader appended"
            )

    def _is_known(self, index: int, term: int | None, membership: Membership) -> bool:
        if term is not None:
            return self._appended.get((index, term)) == membership
        return any(at == index and one == membership for (at, _), one in self._appended.items())


def _term_at(process: Process, index: int) -> int | None:
    """Return the term of an entry; None if a snapshot stands for it, or is just taking over."""
    try:
        return process.driver.core.term_at(index) if index >= process.log.first_index else None
    except OffsetOutOfRange:
        return None


@dataclass(frozen=True, slots=True)
class _Slot:
    term: int
    chain: int
    committed_in: int
    """No leader of a later term may lack it."""


class Commitment:
    """State machine safety, leader completeness, and durability of what is committed."""

    def __init__(self, processes: Collection[Process], memberships: MembershipHistory) -> None:
        self._processes = processes
        self._memberships = memberships
        self._slots: list[_Slot] = []
        self._results: dict[int, tuple[int, int]] = {}
        self._data = [0]
        self._committed_terms: dict[int, int] = {}
        self._newest_committed = 0
        self._last_applied: dict[tuple[NodeId, int], int] = {}
        self._electorates: set[Electorate] = set()
        self.membership: tuple[int, Membership] = (0, Membership())

    @property
    def last_index(self) -> int:
        """The newest index that any node has applied."""
        return len(self._slots)

    def wrote(self, entries: Sequence[Entry]) -> None:
        """Take note of the memberships that enter a log: from now on they may decide."""
        for _, one in memberships_in(entries):
            self._may_decide(one)

    def _may_decide(self, one: Membership) -> None:
        self._electorates.add(Electorate(one.voter_ids, one.outgoing_ids))

    def committed(self, process: Process, before: invariants.Snapshot, counted: Membership) -> None:
        """Check that a node's commit index is of what a leader committed; it may be the leader.

        Args:
            process: Whose.
            before: What it was before.
            counted: The membership in force then. What is committed may bring the next at once.
        """
        now = process.seen
        if Role.LEADER in (before.role, now.role):
            self._by_own_quorum(process, counted)
            for index in range(self._newest_committed + 1, now.commit_index + 1):
                self._committed_terms[index] = process.driver.core.term_at(index)
            self._newest_committed = max(self._newest_committed, now.commit_index)
        term = _term_at(process, now.commit_index)
        known = self._committed_terms.get(now.commit_index, term)
        if now.commit_index > self._newest_committed or term not in (None, known):
            raise ViolationError(
                f"{process.id} commits {now.commit_index} of term {term}, which no leader did"
            )

    def advanced(self, process: Process, before: int, after: int, *, term: int) -> None:
        """Check that *process*, in *term*, has applied what others did, after *before*."""
        log = process.log
        common = min(after, len(self._slots))
        if common > before:
            self._same(process, common)
        if after <= len(self._slots):
            return
        self._may_decide(process.driver.core.membership)  # in force before it is written (Raft 6)
        highest = max([term, *(slot.committed_in for slot in self._slots[-1:])])
        for index in range(len(self._slots) + 1, after + 1):
            self._slots.append(_Slot(log.term(index), log.chain(index), highest))
            membership = self._memberships.committed(index, log.term(index))
            if membership is not None:
                self.membership = (index, membership)
        self._on_disks(after)

    def forget_all_but(self, survivor: Process) -> int:
        """Forget what was committed and a lost majority has taken along; return what is left.

        That is what *survivor* has, which is to be forced: up to where its log is the committed
        one. Behind that it may have entries that were never committed.
        """
        log = survivor.log
        kept = min(len(self._slots), survivor.driver.core.last_index)
        while kept >= log.first_index and not self.is_here(survivor, kept):
            kept -= 1
        del self._slots[kept:]
        self._newest_committed = min(self._newest_committed, kept)
        self._data = [index for index in self._data if index <= kept]
        self._results = {at: one for at, one in self._results.items() if at <= kept}
        self._committed_terms = {at: t for at, t in self._committed_terms.items() if at <= kept}
        return kept

    def _same(self, process: Process, index: int) -> None:
        slot = self._slots[index - 1]
        if index < process.log.first_index:
            return
        if (process.log.term(index), process.log.chain(index)) != (slot.term, slot.chain):
            raise ViolationError(f"{process.id} applies another entry {index} than others did")

    def is_here(self, process: Process, index: int) -> bool:
        """Whether a node's disk can give a committed entry, or needs it no more."""
        log, slot = process.log, self._slots[index - 1]
        if index < log.first_index:
            return True
        there = index <= log.last_index and (log.term(index), log.chain(index)) == (
            slot.term,
            slot.chain,
        )
        return there and not log.is_faulty(index)

    def _on_disks(self, index: int) -> None:
        """Check that a quorum's disks held an entry when it is applied for the first time.

        A disk that was wiped since counts: it had what was committed then. Which membership
        decided is only known to its leader; it must be one that was written.
        """
        term = self._slots[index - 1].term
        holders = [one.id for one in self._processes if one.log.holds(index, term)]
        if not any(one.is_quorum(holders) for one in self._electorates):
            raise ViolationError(f"entry {index} is applied, but only {holders} have it on disk")

    def applied(self, process: Process, entry: Entry, results: Sequence[object]) -> None:
        """Check that a DATA entry comes in order, and has the same effect everywhere."""
        self._in_order(process, entry.index)
        effect = (entry.crc32c, crc32(repr(results).encode()))
        known = self._results.setdefault(entry.index, effect)
        if known != effect:
            raise ViolationError(f"entry {entry.index} has another effect at {process.id}")

    def _by_own_quorum(self, process: Process, counted: Membership) -> None:
        """Check that both halves of the leader's own membership have what it commits (Raft 6)."""
        index = process.seen.commit_index
        term = process.driver.core.term_at(index)
        holders = [one.id for one in self._processes if one.log.holds(index, term)]
        for one in (counted, process.driver.core.membership):
            if Electorate(one.voter_ids, one.outgoing_ids).is_quorum(holders):
                return
        raise ViolationError(
            f"{process.id} commits {index}, and of its members only {holders} have it on disk"
        )

    def _vote_is_kept(self, process: Process, term: int) -> None:
        """Check that a leader cannot forget the vote that it gave itself (Raft 5.2)."""
        kept = process.hard_state_on_disk()
        if kept.term <= term and kept != HardState(term, process.id):
            raise ViolationError(f"{process.id} leads term {term} by a vote that is not kept")

    def _in_order(self, process: Process, index: int) -> None:
        """Check that this is the next DATA entry, in each life; a snapshot stands for others."""
        life = (process.id, process.lives)
        last = max(self._last_applied.get(life, 0), process.snapshots.index)
        if index > self._data[-1]:
            self._data.append(index)
        before = self._data[bisect_left(self._data, index) - 1]
        if not before <= last < index:
            raise ViolationError(f"{process.id} applies {index} behind {last}")
        self._last_applied[life] = index

    def elected(self, process: Process, term: int) -> None:
        """Check that the leader of *term* has everything that was committed in earlier terms.

        A vote may arrive so late that a later term has committed entries already.
        """
        needed = bisect_left(self._slots, term, key=lambda slot: slot.committed_in)
        core = process.driver.core
        self._vote_is_kept(process, term)
        if not needed:
            return
        there = core.last_index >= needed and _term_at(process, needed)
        if there not in (None, self._slots[needed - 1].term):
            raise ViolationError(f"leader {process.id} lacks the committed entry {needed}")
        if process.log.first_index <= needed <= min(process.log.last_index, core.durable_index):
            self._same(process, needed)  # above, the disk may still have what is replaced


class ElectionSafety:
    """At most one leader in a term."""

    def __init__(self) -> None:
        self._leaders: dict[int, NodeId] = {}

    def elected(self, node: NodeId, term: int) -> bool:
        """Take note of a leader; returns whether it is news."""
        if term not in self._leaders:
            self._leaders[term] = node
            return True
        if self._leaders[term] != node:
            raise ViolationError(f"term {term} has two leaders: {self._leaders[term]} and {node}")
        return False

    @property
    def terms(self) -> int:
        """How many terms had a leader."""
        return len(self._leaders)


def check_bounds(process: Process) -> None:
    """Check that what a node keeps in memory has the bounds it was given (promise P11)."""
    core, queued_bytes = process.driver.core, process.driver.queued_bytes
    if queued_bytes > max(process.max_queued_bytes, 1 << 20):
        raise ViolationError(f"{process.id} has {queued_bytes} bytes of commands queued")
    if process.seen.role is not Role.LEADER:
        return
    uncommitted_bytes = core.uncommitted_bytes
    if uncommitted_bytes > core.config.max_uncommitted_bytes + (1 << 20):
        raise ViolationError(f"{process.id} has {uncommitted_bytes} bytes uncommitted")


class Votes:
    """A vote is given to who asked for it, with a log that is not behind (Raft 5.2, 5.4.1)."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, NodeId], tuple[int, int]] = {}

    def asked(self, message: VoteRequest) -> None:
        """Take note of a candidate, and of where its log ends."""
        self._asked[message.term, message.sender] = (message.last_term, message.last_index)

    def check(self, process: Process, before: invariants.Snapshot) -> None:
        """Check whom a node votes for, if that is news."""
        now = process.seen
        if now.vote is None or (now.term, now.vote) == (before.term, before.vote):
            return
        own = (before.last_term, before.last_index)
        if now.vote != process.id and self._asked.get((now.term, now.vote), (0, 0)) < own:
            raise ViolationError(
                f"{process.id} votes in term {now.term} for {now.vote}, whose log is behind"
            )


def check_said(process: Process | None, message: Message) -> None:
    """Check that what leaves is on disk: a vote (Raft 5.2), and entries that are acknowledged."""
    if process is None:
        return
    if isinstance(message, VoteResponse) and message.granted:
        kept = process.hard_state_on_disk()
        if kept.term <= message.term and kept != HardState(message.term, message.recipient):
            raise ViolationError(
                f"{process.id} tells a vote of term {message.term} before it is kept"
            )
    elif isinstance(message, AppendResponse) and message.success:
        log, index = process.log, message.match_index
        if index < log.first_index - 1:
            return  # a snapshot has it
        if index > log.synced_index or log.chain(index) != message.match_chain:
            raise ViolationError(f"{process.id} acknowledges {index}, which is not on its disk")


def _check_counting(process: Process, before: invariants.Snapshot) -> None:
    """Check that a leader commits entries of its own term only (Raft 5.4.2); others follow."""
    now = process.seen
    reigns = before.role is Role.LEADER and now.role is Role.LEADER and before.term == now.term
    if not reigns or now.commit_index > process.log.last_index:
        return
    if process.log.term(now.commit_index) != now.term:
        raise ViolationError(f"leader {process.id} of term {now.term} commits an earlier entry")


def _check_durable(process: Process) -> None:
    """Check that what a core counts as durable is: on its disk, and not another entry."""
    index = process.seen.durable_index
    term = _term_at(process, index)
    if term is not None and not process.log.holds(index, term):
        raise ViolationError(f"{process.id} counts {index} as durable, which is not on its disk")


def check_step(process: Process) -> invariants.Snapshot:
    """Check one node's own invariants after an event; returns what it was before."""
    before, process.seen = process.seen, invariants.check(process.driver.core, process.seen)
    if process.seen.commit_index > before.commit_index:
        _check_counting(process, before)
    if process.seen.durable_index > before.durable_index:
        _check_durable(process)
    check_bounds(process)
    return before
