"""A seeded run of a whole group: faults, then a quiet time in which it must recover.

Everything random comes from the seed, so that the same seed is the same run.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from crc32c import crc32c

from dledger.errors import DledgerError
from dledger.raft.core import RaftConfig, RoleChange
from dledger.raft.messages import Message
from dledger.raft.ready import ConfirmedRead
from dledger.types import Entry, EntryKind, NodeId, Role
from dledger_sim import describe
from dledger_sim.checkers import (
    Acknowledgements,
    Commitment,
    ElectionSafety,
    LogMatching,
    ViolationError,
)
from dledger_sim.clock import Clock
from dledger_sim.disk import Disk, ModelDisk, StoreDisk
from dledger_sim.faults import Faults
from dledger_sim.network import Network
from dledger_sim.node import Bug, SimNode
from dledger_sim.scenario import founding_entry, member, members

_MS = 1000
_S = 1000 * _MS
_TICK_US = 50 * _MS
_CALM = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is, besides its seed.

    Attributes:
        nodes: How many; drawn if None.
        faults: What goes wrong; drawn if None.
        faulty_s: Simulated seconds with faults.
        recovery_s: Simulated seconds within which the healed group must be whole again.
        bug: A planted mistake.
        check_disks: Whether disks are looked at when an entry is first applied; without that,
            a planted bug must show in what the group does.
        trace: Where to tell what happens, line by line.
    """

    nodes: int | None = None
    faults: Faults | None = None
    faulty_s: int = 10
    recovery_s: int = 12
    bug: Bug = Bug.NONE
    check_disks: bool = True
    trace: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run that broke nothing came to."""

    seed: int
    trace_hash: int
    nodes: int
    events: int
    terms: int
    committed: int
    acknowledged: int


class Simulation:
    """One run. Implements `dledger_sim.node.World`."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self._seed = seed
        self._options = options or Options()
        self._rng = Random(seed)
        self._clock = Clock()
        self._hash = 0
        self._events = 0
        count = self._rng.choice((1, 3, 3, 3, 5))
        faults = Faults.draw(self._rng)
        self._membership = members(self._options.nodes or count)
        self._voters = [voter.id for voter in self._membership.voters]
        self._spares = [member(str(len(self._voters) + n)).id for n in (1, 2)]
        self._ids = [*self._voters, *self._spares]
        self._network = Network(self._ids, self._options.faults or faults, self._rng)
        self._disks = self._format_disks()
        self._elections = ElectionSafety()
        self._matching = LogMatching()
        self._commitment = Commitment(self._disks, check_disks=self._options.check_disks)
        self._acks = Acknowledgements()
        self._nodes = {node_id: self._build(node_id) for node_id in self._ids}
        self._lives = dict.fromkeys(self._ids, 0)
        self._paused_until = dict.fromkeys(self._ids, 0)
        self._proposed: dict[tuple[int, int], NodeId] = {}
        self._proposals = 0

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            AssertionError: A promise is broken (`ViolationError`), or an invariant of one node.
        """
        for node_id in self._ids:
            self._start(node_id)
        self._call(self._ids[0], lambda node: node.do(lambda raft: raft.campaign()))
        self._schedule_faults()
        self._clock.after(0, self._propose_and_again)
        self._clock.run_until(self._options.faulty_s * _S)
        self._recover()
        return Outcome(
            seed=self._seed,
            trace_hash=self._hash,
            nodes=len(self._voters),
            events=self._events,
            terms=self._elections.terms,
            committed=len(self._commitment.entries),
            acknowledged=len(self._acks),
        )

    # What the nodes call

    def send(self, message: Message) -> None:
        """Give a message to the network."""
        if not self._network.reaches(message.sender, message.recipient):
            return
        for delay_us in self._network.delays_us():
            self._clock.after(delay_us, lambda: self._deliver(message))

    def log_write_started(self, node: SimNode) -> None:
        """Let the write end after a while."""
        self._write(node.id, self._network.faults.crash_writing, _finish_log_write)

    def hard_state_write_started(self, node: SimNode) -> None:
        """Let the write end after a while."""
        self._write(node.id, self._network.faults.crash_saving, _finish_hard_state_write)

    def entries_asked(self, node: SimNode) -> bool:
        """Say at random that old entries are not in memory."""
        if self._rng.random() >= self._network.faults.evicted:
            return True
        delay_us = self._sync_us()
        self._later(delay_us, node.id, lambda n: n.do(lambda raft: raft.entries_available()))
        return False

    def role_changed(self, node: SimNode, change: RoleChange) -> None:
        """Check new leaders."""
        self._note(f"{node.id} is {describe.role_change(change)}")
        if change.role is Role.LEADER:
            self._elections.elected(node.id, change.term)
            self._commitment.elected(node.id, self._matching.log(node.id), term=change.term)
            if self._rng.random() < self._network.faults.crash_leader:
                self._crash_after(self._rng.randint(1, 200 * _MS), node.id)

    def wrote(self, node: SimNode, entries: Sequence[Entry]) -> None:
        """Check entries that enter a log."""
        self._matching.wrote(node.id, entries)
        self._commitment.wrote(entries)

    def applied(self, node: SimNode, entries: Sequence[Entry]) -> None:
        """Check applied entries, and tell the clients whose leader this is."""
        self._note(f"{node.id} applies {describe.entries(entries)}")
        self._commitment.applied(node.id, entries, term=node.raft.term)
        for entry in entries:
            if self._proposed.get((entry.term, entry.index)) == node.id:
                self._acks.acknowledged(entry)

    def confirmed(self, node: SimNode, read: ConfirmedRead) -> None:
        """Check a read."""
        self._note(f"{node.id} may read {read.context} at {read.index}")
        self._acks.read_confirmed(read.context, read.index)

    # The nodes' lives

    def _format_disks(self) -> dict[NodeId, Disk]:
        founding = founding_entry(self._membership)
        founded = self._voters[: None if self._rng.random() < 0.5 else 1]
        real = self._rng.random() < 0.5
        disks: dict[NodeId, Disk] = {}
        for node_id in self._ids:
            log = [founding] if node_id in founded else []
            disks[node_id] = StoreDisk(node_id, log) if real else ModelDisk(log)
        return disks

    def _build(self, node_id: NodeId) -> SimNode:
        config = RaftConfig(id=node_id, election_timeout_ticks=10)
        if self._rng.random() < 0.5:
            config = replace(
                config,
                max_append_bytes=64,
                max_inflight_appends=3,
                max_inflight_bytes=128,
                max_catch_up_bytes=64,
                max_uncommitted_bytes=512,
                max_apply_bytes=64,
                max_unapplied_bytes=512,
            )
        return SimNode(config, self._disks[node_id], self, bug=self._options.bug)

    def _start(self, node_id: NodeId) -> None:
        disk = self._disks[node_id]
        last = disk.last_index
        self._note(f"{node_id} starts with {last} entries")
        self._matching.started(node_id, disk.entries(1, last, 1 << 40) if last else ())
        self._commitment.started(node_id)
        self._commitment.wrote(self._matching.log(node_id))
        self._lives[node_id] += 1
        self._nodes[node_id].start(Random(self._rng.random()))
        self._later(self._rng.randint(1, _TICK_US), node_id, self._tick_and_again)

    def _crash(self, node_id: NodeId, down_us: int) -> None:
        if self._network.faults is _CALM:
            return
        self._note(f"{node_id} crashes")
        self._nodes[node_id].crash(self._rng)
        self._lives[node_id] += 1
        self._break_connections(node_id)
        self._clock.after(down_us, lambda: self._restart(node_id))

    def _restart(self, node_id: NodeId) -> None:
        if not self._nodes[node_id].is_up:
            self._start(node_id)

    def _break_connections(self, node_id: NodeId) -> None:
        for other in self._ids:
            if other != node_id and self._rng.random() < 0.8:
                delay_us = self._rng.randint(0, 100 * _MS)
                self._later(delay_us, other, lambda node: _hint(node, node_id))

    def _tick_and_again(self, node: SimNode) -> None:
        node.do(lambda raft: raft.tick())
        self._later(_TICK_US + self._rng.randint(-_MS, _MS), node.id, self._tick_and_again)

    def _later(self, delay_us: int, node_id: NodeId, action: Callable[[SimNode], None]) -> None:
        """Let *action* happen at the node, unless it has crashed by then."""
        life = self._lives[node_id]
        self._clock.after(delay_us, lambda: self._if_alive(node_id, life, action))

    def _if_alive(self, node_id: NodeId, life: int, action: Callable[[SimNode], None]) -> None:
        pause_us = self._paused_until[node_id] - self._clock.now_us
        if life != self._lives[node_id] or not self._nodes[node_id].is_up:
            return
        if pause_us > 0:
            self._clock.after(pause_us, lambda: self._if_alive(node_id, life, action))
        else:
            self._call(node_id, action)

    def _call(self, node_id: NodeId, action: Callable[[SimNode], None]) -> None:
        self._events += 1
        action(self._nodes[node_id])

    def _deliver(self, message: Message) -> None:
        node = self._nodes[message.recipient]
        if node.is_up and self._network.reaches(message.sender, message.recipient):
            self._note(describe.message(message))
            self._introduce(node, message.sender)
            self._later(0, node.id, lambda n: n.do(lambda raft: raft.step(message)))

    def _introduce(self, node: SimNode, sender: NodeId) -> None:
        """Do as the greeting of a node that the recipient does not know (`peers.peers`).

        The recipient asks those whom it hears itself.
        """
        if node.raft.hears(sender):
            return
        for other in self._nodes.values():
            asked = other.is_up and node.raft.was_member(other.id)
            if asked and self._talk(node.id, other.id) and other.raft.membership.get(sender):
                node.raft.introduce(sender)

    def _talk(self, one: NodeId, other: NodeId) -> bool:
        return self._network.reaches(one, other) and self._network.reaches(other, one)

    def _write(self, node_id: NodeId, crashes: float, finish: Callable[[SimNode], None]) -> None:
        """Let a write end after a while, unless the node crashes before."""
        duration_us = self._sync_us()
        self._later(duration_us, node_id, finish)
        if self._rng.random() < crashes:
            self._crash_after(self._rng.randint(1, duration_us), node_id)

    def _sync_us(self) -> int:
        if self._rng.random() < self._network.faults.stall:
            return self._rng.randint(0, 2 * _S)
        return self._rng.randint(100, self._network.faults.sync_ms * _MS)

    # Clients

    def _propose_and_again(self) -> None:
        for node in self._nodes.values():
            if node.is_up and node.raft.role is Role.LEADER:
                self._propose(node)
                self._read(node)
        self._clock.after(self._rng.randint(1, 60 * _MS), self._propose_and_again)

    def _propose(self, node: SimNode) -> None:
        self._proposals += 1
        data = f"{self._proposals}".encode().ljust(self._rng.randint(0, 40), b".")
        try:
            where = node.do(
                lambda raft: raft.propose(
                    kind=EntryKind.DATA, data=data, crc32c=crc32c(data), timestamp_ms=0
                )
            )
        except DledgerError as error:
            self._note(f"{node.id} refuses: {error}")
        else:
            self._proposed[where] = node.id

    def _read(self, node: SimNode) -> None:
        number = self._acks.read_begins()
        try:
            node.do(lambda raft: raft.read_index(number))
        except DledgerError as error:
            self._note(f"{node.id} refuses a read: {error}")

    # Faults

    def _schedule_faults(self) -> None:
        faults = self._network.faults
        for mean_s, action in (
            (faults.crash_s, self._crash_some),
            (faults.partition_s, self._partition),
            (faults.pause_s, self._pause_one),
            (faults.hint_s, self._hint_one),
            (faults.change_s, self._change_one),
            (faults.order_s, self._order_one),
        ):
            if mean_s:
                self._repeat(mean_s, action)

    def _repeat(self, mean_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            if self._network.faults is not _CALM:
                action()
                self._repeat(mean_s, action)

        self._clock.after(int(self._rng.expovariate(1 / mean_s) * _S), again)

    def _crash_some(self) -> None:
        everyone = self._rng.random() < 0.1
        for node_id in self._ids if everyone else [self._rng.choice(self._ids)]:
            self._crash_after(0, node_id)

    def _crash_after(self, delay_us: int, node_id: NodeId) -> None:
        """Crash a node after a delay, and restart it some time later."""
        down_us = self._rng.randint(1, self._rng.choice((10 * _MS, 500 * _MS, 3 * _S)))
        self._later(delay_us, node_id, lambda _: self._crash(node_id, down_us))

    def _partition(self) -> None:
        if len(self._ids) > 1:
            self._note(f"partition: {self._network.partition()}")
            self._clock.after(self._rng.randint(1, 3 * _S), self._network.heal)

    def _pause_one(self) -> None:
        node_id = self._rng.choice(self._ids)
        pause_us = self._rng.randint(1, 2 * _S)
        self._note(f"{node_id} pauses for {pause_us} us")
        self._paused_until[node_id] = self._clock.now_us + pause_us

    def _hint_one(self) -> None:
        node, peer = (self._rng.choice(self._ids) for _ in range(2))
        self._later(0, node, lambda n: _hint(n, peer))

    def _order_one(self) -> None:
        node_id = self._rng.choice(self._ids)
        order = self._rng.choice((_hand_over, _step_down, _campaign))
        self._later(0, node_id, order)

    def _change_one(self) -> None:
        """Ask whoever leads for a new learner, or to remove some members; perhaps the leader."""
        for node in self._nodes.values():
            if node.is_up and node.raft.role is Role.LEADER:
                self._change(node)

    def _change(self, node: SimNode) -> None:
        now = node.raft.membership
        spares = [spare for spare in self._spares if now.get(spare) is None]
        if spares and self._rng.random() < 0.6:
            voters, learners = now.voters, (*now.learners, member(self._rng.choice(spares)))
        else:
            gone = self._rng.sample(now.members, self._rng.randint(1, len(now.members)))
            voters = tuple(one for one in now.voters if one not in gone)
            learners = tuple(one for one in now.learners if one not in gone)
        try:
            node.do(lambda raft: raft.change_membership(voters=voters, learners=learners))
        except DledgerError as error:
            self._note(f"{node.id} refuses a change: {error}")

    # The end

    def _recover(self) -> None:
        """Heal everything; within a time, all nodes must apply something proposed after that."""
        self._note("heal")
        self._network.faults = _CALM
        self._network.heal()
        self._paused_until = dict.fromkeys(self._ids, 0)
        for node_id in self._ids:
            self._restart(node_id)
        before = set(self._proposed)
        end_us = self._clock.now_us + self._options.recovery_s * _S
        if not self._clock.run_until(end_us, lambda: self._is_whole(before)):
            raise ViolationError(f"no progress on all nodes within {self._options.recovery_s} s")
        for node_id in self._ids:
            applied = self._commitment.applied_index(node_id)
            self._acks.check(self._matching.log(node_id)[:applied])

    def _is_whole(self, before: set[tuple[int, int]]) -> bool:
        members = self._commitment.membership.members
        behind = min((self._commitment.applied_index(one.id) for one in members), default=0)
        if not behind:
            return False
        newest = self._commitment.entries[behind - 1]
        slot = (newest.term, newest.index)
        return slot in self._proposed and slot not in before

    def _note(self, line: str) -> None:
        line = f"{self._clock.now_us / _S:.6f} {line}"
        self._hash = zlib.crc32(line.encode(), self._hash)
        if self._options.trace is not None:
            self._options.trace(line)


def _hint(node: SimNode, peer: NodeId) -> None:
    node.do(lambda raft: raft.peer_disconnected(peer))


def _hand_over(node: SimNode) -> None:
    try:
        node.do(lambda raft: raft.transfer_leadership(None))
    except DledgerError:
        return


def _step_down(node: SimNode) -> None:
    node.do(lambda raft: raft.step_down())


def _campaign(node: SimNode) -> None:
    node.do(lambda raft: raft.campaign())


def _finish_log_write(node: SimNode) -> None:
    node.finish_log_write()


def _finish_hard_state_write(node: SimNode) -> None:
    node.finish_hard_state_write()
