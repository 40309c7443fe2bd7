"""One simulated node: the shipped core on a disk, doing a Ready's duties in the driver's order.

The world around it (scenario or simulator) decides when a started write ends and what becomes
of messages. Invariants are checked after every call into the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Protocol, TypeVar

from dledger.raft import invariants
from dledger.raft.core import Raft, RaftConfig, Ready, RoleChange
from dledger.raft.messages import Message
from dledger.raft.ready import ConfirmedRead
from dledger.types import Entry, HardState, NodeId, SnapshotInfo
from dledger_sim.disk import Disk, ModelDisk, Reader
from dledger_sim.snapshots import ModelSnapshots
from dledger_sim.stalls import while_true

T = TypeVar("T")

_Write = tuple[int | None, tuple[Entry, ...]]
"""Behind which index the log is cut, if at all, and what is added."""


class Bug(Enum):
    """A mistake a driver could make; the simulator must find each."""

    NONE = "none"
    VOTE_BEFORE_SYNC = "a vote leaves before it is durable"
    ACK_BEFORE_SYNC = "an ack leaves before the entries are durable"


class World(Protocol):
    """Where a node lives."""

    def send(self, message: Message) -> None:
        """Carry a message, or lose it."""

    def log_write_started(self, node: SimNode) -> None:
        """Call `SimNode.finish_log_write` some time later."""

    def hard_state_write_started(self, node: SimNode) -> None:
        """Call `SimNode.finish_hard_state_write` some time later."""

    def entries_asked(self, node: SimNode) -> bool:
        """Whether old entries are in memory; if not, call `entries_available` later."""

    def role_changed(self, node: SimNode, change: RoleChange) -> None:
        """Take note."""

    def wrote(self, node: SimNode, entries: Sequence[Entry]) -> None:
        """Take note of entries handed to the disk."""

    def applied(self, node: SimNode, entries: Sequence[Entry]) -> None:
        """Take note of entries handed over for applying."""

    def confirmed(self, node: SimNode, read: ConfirmedRead) -> None:
        """Take note of a confirmed read."""


class SimNode:
    """A node that can crash; between `crash` and `start` it has no `raft`."""

    def __init__(
        self,
        config: RaftConfig,
        disk: Disk,
        world: World,
        *,
        bug: Bug = Bug.NONE,
        snapshots: ModelSnapshots | None = None,
    ) -> None:
        self.snapshots = snapshots
        self.id: NodeId = config.id
        self.disk = disk
        self._config = config
        self._world = world
        self._bug = bug
        self._raft: Raft | None = None

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self._raft is not None

    @property
    def raft(self) -> Raft:
        """The core of the running node."""
        if self._raft is None:
            raise RuntimeError(f"node {self.id} is down")
        return self._raft

    def start(self, rng: Random) -> None:
        """Start the process from what the disk holds."""
        self._hard_states: deque[HardState] = deque()
        self._saving: HardState | None = None
        self._writes: deque[_Write] = deque()
        self._writing: list[_Write] = []
        self._newest_cut = 0
        self._held: tuple[deque[_Held], deque[_Held]] = (deque(), deque())
        self._queued = [0, 0]
        self._done = [0, 0]
        self._raft = Raft(
            self._config,
            hard_state=self.disk.load_hard_state(),
            log=Reader(self.disk, lambda: self._world.entries_asked(self)),
            memberships=self.disk.memberships(),
            rng=rng,
            applied_index=self.disk.first_index - 1,
            snapshots=self.snapshots,
        )
        self._installing: SnapshotInfo | None = None
        self._seen = invariants.check(self._raft)
        self.do(lambda _: None)

    def crash(self, rng: Random) -> None:
        """Stop at once, and lose what the disk had not been made to keep."""
        self._raft = None
        if self._saving is not None and rng.random() < 0.5:
            self.disk.save_hard_state(self._saving)
        self.disk.crash(rng)

    def do(self, action: Callable[[Raft], T]) -> T:
        """Call into the core, check it, and take up the work that it hands over."""
        raft = self.raft
        try:
            return action(raft)
        finally:
            self._check()
            for _ in while_true(raft.has_ready):
                self._take_up(raft.ready())
                self._check()

    @property
    def is_saving(self) -> bool:
        """Whether a hard state is on its way to disk."""
        return self._saving is not None

    @property
    def is_writing(self) -> bool:
        """Whether entries are on their way to disk."""
        return bool(self._writing)

    @property
    def durable_hard_state(self) -> HardState:
        """What the disk holds now."""
        return self.disk.load_hard_state()

    def finish_hard_state_write(self) -> HardState:
        """Let the running hard state write end, and start the next."""
        saved = self._saving
        assert saved is not None, "a hard state is being written"  # noqa: S101
        self.disk.save_hard_state(saved)
        self._saving = None
        self._done[0] += 1
        self.do(lambda raft: raft.hard_state_persisted(saved))
        self._after_write()
        return saved

    def finish_log_write(self) -> tuple[Entry, ...]:
        """Let the running log write end with a sync, and start the next."""
        written = self._writing
        assert written, "entries are being written"  # noqa: S101
        self.disk.sync()
        self._writing = []
        self._done[1] += len(written)
        entries = tuple(entry for _, added in written for entry in added)
        if entries:
            term, index = entries[-1].term, entries[-1].index
            self.do(lambda raft: raft.persisted(term=term, index=index))
        self._after_write()
        return entries

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot that arrived waits to be installed."""
        return self._installing is not None

    def finish_install(self) -> bool:
        """Let the installation end; returns whether the snapshot was good."""
        info, self._installing = self._installing, None
        assert info is not None, "a snapshot has arrived"  # noqa: S101
        assert isinstance(self.disk, ModelDisk), "only the model has snapshots"  # noqa: S101
        assert self.snapshots is not None, "only a node with snapshots takes one"  # noqa: S101
        assert not self._writing, "the writes before it have ended"  # noqa: S101
        memberships = self.snapshots.install(info)
        if memberships is not None:
            self.disk.begin_behind(info.last_index, info.last_term, info.last_chain, memberships)
        self.do(
            lambda raft: raft.snapshot_finished(
                info, installed=memberships is not None, memberships=memberships or ()
            )
        )
        return memberships is not None

    def _check(self) -> None:
        self._seen = invariants.check(self.raft, self._seen)

    def _take_up(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self._queued[0] += 1
            self._hard_states.append(ready.hard_state)
        if ready.entries or ready.cut_behind is not None:
            self._queued[1] += 1
            self._writes.append((ready.cut_behind, ready.entries))
        if ready.cut_behind is not None:
            self._newest_cut = self._queued[1]
        if ready.entries:
            self._world.wrote(self, ready.entries)
        if ready.role_change is not None:
            self._world.role_changed(self, ready.role_change)
        self._send(ready.messages)
        self._hold(ready)
        if ready.committed:
            self._world.applied(self, ready.committed)
        for chunk in ready.chunks:
            assert self.snapshots is not None, "only a node with snapshots takes one"  # noqa: S101
            self.snapshots.receive(chunk)
        self._installing = ready.install or self._installing
        for read in ready.reads:
            self._world.confirmed(self, read)
        self._after_write()

    def _hold(self, ready: Ready) -> None:
        hard_states, writes = self._queued
        if self._bug is Bug.VOTE_BEFORE_SYNC:
            hard_states = 0
        if self._bug is Bug.ACK_BEFORE_SYNC:
            writes = 0
        if ready.after_hard_state:
            self._held[0].append(_Held(hard_states, self._newest_cut, ready.after_hard_state))
        if ready.after_entries:
            self._held[1].append(_Held(hard_states, writes, ready.after_entries))

    def _after_write(self) -> None:
        """Send what rested on writes that are done, and begin those that wait."""
        for held in self._held:
            while held and held[0].hard_states <= self._done[0] and held[0].writes <= self._done[1]:
                self._send(held.popleft().messages)
        if self._hard_states and self._saving is None:
            self._saving = self._hard_states.popleft()
            self._world.hard_state_write_started(self)
        if self._writes and not self._writing:
            self._writing = list(self._writes)
            self._writes.clear()
            for cut_behind, entries in self._writing:
                if cut_behind is not None:
                    self.disk.cut_behind(cut_behind)
                if entries:
                    self.disk.write(entries)
            self._world.log_write_started(self)

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._world.send(message)


class _Held:
    """Messages, and how many hard states and writes must be done before they leave."""

    def __init__(self, hard_states: int, writes: int, messages: Sequence[Message]) -> None:
        self.hard_states, self.writes, self.messages = hard_states, writes, messages
