"""The event loop of one replica: the only place that orders disk, network and apply.

The Raft core decides what must happen (`Ready`). The driver carries it out in the order that Raft
requires: it persists before it sends (`persistence`), and applies only committed entries. The
server creates one driver for each replica; the services reach it through `server.engine`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Protocol
from uuid import uuid4

from dledger.common import defaults
from dledger.common.metrics import NodeMetrics
from dledger.common.reports import Mark
from dledger.common.status import FailoverRecord
from dledger.common.work_thread import Worker, WorkThread
from dledger.errors import DiskFull, DledgerError, NewerCommand, NotLeader
from dledger.raft.config import RaftConfig
from dledger.raft.core import Raft
from dledger.raft.messages import HeartbeatRequest, InstallSnapshotRequest, Message
from dledger.raft.ready import Ready, RoleChange
from dledger.replica.apply_pace import ApplyPace
from dledger.replica.dating import Dating
from dledger.replica.entry_cache import EntryCache
from dledger.replica.installation import Installation
from dledger.replica.leader_health import CommitWatch, StallLimits, StallWatch, last_words
from dledger.replica.log_clock import Clock, LogClock
from dledger.replica.persistence import Persister, is_small
from dledger.replica.proposals import Command
from dledger.replica.proposer import EntrySizes, Proposer
from dledger.replica.reads import AppliedWaiters, PendingReads
from dledger.replica.repair import first_needed, is_stuck_behind
from dledger.replica.reports import ReportRequest, ReportResponse, Reports
from dledger.replica.role_observer import ChangeSignal, RefusalLog, RoleObserver
from dledger.replica.room_keeper import Measured, RoomConfig, RoomKeeper
from dledger.replica.snapshots import Memberships, Snapshots
from dledger.replica.witness_keeper import WitnessKeeper
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.witness_file import WitnessFile
from dledger.types import (
    Entry,
    EntryKind,
    HardState,
    Member,
    Membership,
    NodeId,
    Role,
    SnapshotInfo,
)

logger = logging.getLogger(__name__)


class StateMachine(Protocol):
    """What committed entries mean; see `broker.state.BrokerState`."""

    def apply(self, entry: Entry) -> Sequence[object]:
        """Apply one DATA entry; return one result per command, with errors as values."""

    @property
    def leapt_ms(self) -> int:
        """How much of the log's time its leaps have skipped, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConfig:
    """Timings and limits of one driver."""

    tick_s: float = defaults.TICK_MS / 1000  # in seconds
    stall: StallLimits = field(default_factory=StallLimits)
    max_queued_bytes: int = 64 << 20  # four of the largest requests
    room: RoomConfig = field(default_factory=RoomConfig)
    entries: EntrySizes = field(default_factory=EntrySizes)


class Driver:
    """Runs one Raft core on one commit log.

    It calls *on_fatal* when nothing that this node sends can be trusted any more, and
    *on_removed*, once and with the entry's index, when a committed change has removed this node
    from its group. *admit* raises FeatureNotReady for a command that some member does not support.
    *marks* is what *witness_file* had; *asks*: the disk was a member's before this start, so the
    others are asked before this node takes part (`raft.witness`).

    Attributes:
        log_clock: The leader's: Unix milliseconds that never go back.
        dating: How the log's time and this node's clock stand to the group's date.
        reports: What the members say of themselves, once a second.
        witness: What they are known to have had; its `keep` is a task of the caller's.
    """

    def __init__(
        self,
        *,
        config: DriverConfig,
        raft: RaftConfig,
        hard_state_file: HardStateFile,
        hard_state: HardState,
        log: CommitLog,
        state: StateMachine,
        send: Callable[[Message], None],
        on_membership: Callable[[Membership], None],
        on_fatal: Callable[[BaseException], None],
        clock: Clock,
        rng: Random,
        metrics: NodeMetrics,
        snapshots: Snapshots,
        on_removed: Callable[[int], None] = lambda _: None,
        admit: Callable[[Command, Membership], None] = lambda _, __: None,
        thread: Callable[[str], Worker] = WorkThread,
        incarnation: str = "",
        witness_file: WitnessFile | None = None,
        marks: Mapping[NodeId, Mark] | None = None,
        asks: bool = False,
    ) -> None:
        self._config = config
        self._state = state
        self._send = send
        self._on_membership = on_membership
        self._on_fatal = on_fatal
        self._admit = admit
        self._on_removed: Callable[[int], None] | None = on_removed
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._readers = ThreadPoolExecutor(2, "log-reader")
        self.view = EntryCache(
            log, self._readers, on_loaded=self._entries_loaded, on_error=self.disk_failed
        )
        self._snapshots = snapshots
        snapshots.attach(
            applied_index=lambda: self._applied_index,
            on_loaded=self._entries_loaded,
            on_error=self.disk_failed,
        )
        self._applied_index = snapshots.logged_index
        self.core = Raft(
            raft,
            hard_state=hard_state,
            log=self.view,
            memberships=snapshots.memberships(),
            rng=rng,
            applied_index=self._applied_index,
            snapshots=snapshots,
            asks=asks,
            marks=marks,
        )
        self._id = raft.id
        self.reports = Reports(
            raft.id, clock=clock, send=send, incarnation=incarnation or uuid4().hex
        )
        self._log = log
        self.core.log_repaired(whole=log.is_whole)
        self._membership = self.core.membership
        self._is_member = self._membership.get(raft.id) is not None
        self.log_clock = LogClock(clock)
        self.log_clock.applied(snapshots.now_ms, state.leapt_ms)
        self.room = RoomKeeper(
            raft.id,
            config=config.room,
            reports=self.reports,
            voter_sets=lambda: self.core.memberships.current.voter_sets,
            allocated_bytes=lambda: log.allocated_bytes,
            now_s=clock.monotonic_s,
        )
        self._proposer = Proposer(
            self.core,
            room=self.room,
            clock=clock,
            log_clock=self.log_clock,
            metrics=metrics,
            max_queued_bytes=config.max_queued_bytes,
            sizes=config.entries,
        )
        self.dating = Dating(
            self.core,
            clock=clock,
            log_clock=self.log_clock,
            reports=self.reports,
            metrics=metrics,
            leap=self._proposer.leap,
        )
        self._refusals = RefusalLog(raft.id, clock=clock, metrics=metrics)
        self._roles = RoleObserver(
            self.core, clock=clock, log_clock=self.log_clock, metrics=metrics
        )
        self._led_by: NodeId | None = None
        self._reads = PendingReads()
        self._applied = AppliedWaiters()
        self._wake_scheduled = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._running = False
        self._persister = Persister(
            log=log,
            hard_state_file=hard_state_file,
            send=send,
            events=self,
            now_s=clock.monotonic_s,
            metrics=metrics,
            thread=thread,
        )
        self.witness = WitnessKeeper(
            self.core,
            self.reports,
            file=witness_file,
            metrics=metrics,
            wake=self._wake,
            on_failed=self.disk_failed,
        )
        self._installation = Installation(
            snapshots,
            self._persister,
            finished=self._snapshot_finished,
            failed=self.disk_failed,
        )
        self.applied_bytes = 0
        self._stall = StallWatch(config.stall)
        self._commits = CommitWatch()
        self._changes = ChangeSignal()
        self._applied_listeners: list[Callable[[], None]] = []
        self._pace = ApplyPace(self.core, self._applied)
        self.last_tick_s = clock.monotonic_s()

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start ticking; call on the event loop.

        The first tick comes after a random fraction of a tick. Otherwise nodes that start at the
        same instant, as after a power failure, would split the vote whenever they draw the same
        timeout.
        """
        self._running = True
        self._on_membership(self._membership)
        first_s = self._rng.random() * self._config.tick_s
        self._tick_handle = asyncio.get_running_loop().call_later(first_s, self._tick)
        self._wake()

    async def stop(self) -> None:
        """Stop ticking, wait for running writes to finish, and fail all waiting callers."""
        self._running = False
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._proposer.refuse(NotLeader(None))
        self._reads.fail_all(NotLeader(None))
        await self._persister.close()
        if self._installation is not None:
            await self._installation.close()
        await asyncio.to_thread(self._readers.shutdown)

    # -- calls from the services -----------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether this node takes part: started, not stopped, and its disk has not failed."""
        return self._running

    @property
    def applied_index(self) -> int:
        """The newest index whose effects are in the state machine."""
        return self._applied_index

    @property
    def queued_bytes(self) -> int:
        """Bytes of commands that wait to become part of an entry."""
        return self._proposer.queue.size_bytes

    @property
    def writes_refused(self) -> DiskFull | None:
        """Why this node refuses user data, or would if it led; None if it has room."""
        return self.room.shortage

    def sync_running_s(self) -> float:
        """Return how long the current write and sync has taken so far; 0 if there is none."""
        since_s = self._persister.busy_since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def commit_waits_s(self) -> float:
        """Return for how long this leader's log has had uncommitted entries without progress.

        0 if every entry is committed, or if this node does not lead.
        """
        return self._commits.waited_s(self._clock.monotonic_s())

    @property
    def last_failover(self) -> FailoverRecord | None:
        """The newest change of leader that this node won."""
        return self._roles.last_failover

    def is_serving_leader(self) -> bool:
        """Whether this node leads and has applied an entry of its own term.

        Before that its state machine may lack entries that the old leader acknowledged.
        """
        return self._running and self._roles.serves

    def submit(
        self, command: Command, *, grows: bool, line: str = "", producer: str = ""
    ) -> asyncio.Future[object]:
        """Queue one framed command; the future returns the result of applying it.

        Commands of one line, and those of one producer, enter the log in the order of submission;
        lines are served in turn. The future may also raise NotLeader (neither this command nor any
        submitted after it has entered the log), LeadershipLost (the outcome is unknown; retry with
        the same idempotency key), and any error from applying the command.

        Args:
            command: A framed command (`broker.commands`), or one that stays open until it is taken.
            grows: Whether it stores user data. Such commands wait while room is made for them, and
                are refused where no message may go for it; all others pass them (`room_keeper`).
            line: The queue it waits in, named after a connection; empty: the node's own.
            producer: The producer, on whichever connection; empty: none.

        Raises:
            NotLeader: This node does not lead.
            Overloaded: A bounded queue is full.
            DiskFull: The disk has no room for more user data; the future raises it, too.
            FeatureNotReady: Not every member supports this command yet.
        """
        self.check(grows=grows)
        self._admit(command, self.core.memberships.current)
        result = self._proposer.push(command, line=line, producer=producer, grows=grows)
        self._wake()
        return result

    def check(self, *, grows: bool) -> None:
        """Raise NotLeader or DiskFull if `submit` would."""
        if not self.is_serving_leader():
            raise NotLeader(self.core.leader)
        if grows and self.room.refusal is not None:
            raise DiskFull(str(self.room.refusal))

    async def propose(self, command: bytes, *, grows: bool) -> object:
        """Commit one framed command and return the result of applying it; raises like `submit`."""
        return await self.submit(command, grows=grows)

    async def read_index(self) -> int:
        """Return an index at which a read is linearizable: it covers all acknowledged writes.

        Raises:
            NotLeader: This node does not lead, or has just stepped down.
            Unavailable: The leader is too new to know what is committed.
            Overloaded: Too many reads are waiting.
        """
        if not self._running:
            raise NotLeader(None)
        context, confirmed = self._reads.begin()
        try:
            self.core.read_index(context)
            self._wake()
            return await confirmed
        finally:
            self._reads.end(context)

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """Wait until *index* is applied here. Raises Unavailable after *timeout_s*, Overloaded."""
        if self._applied_index < index:
            self._pace.due()
            self._wake()
            await self._applied.wait(index, timeout_s)

    def receive(self, message: Message) -> None:
        """Handle one message from a peer."""
        if isinstance(message, ReportRequest | ReportResponse):
            self._take_report(message)
            return
        if not self._takes_steps():
            return
        if type(message) is InstallSnapshotRequest and self._is_backlogged():
            return
        if type(message) is HeartbeatRequest:
            self._pace.due()
        self._roles.receiving(message)
        self.core.step(message)
        self._wake_if_due()

    def _take_report(self, message: ReportRequest | ReportResponse) -> None:
        """Handle a report; while a snapshot replaces the log as well, since no step is taken."""
        core = self.core
        membership = core.memberships.current
        is_member = membership.get(message.sender) is not None
        is_heard = is_member or not membership.members
        if self._running and (is_heard or (core.is_joining and core.hears(message.sender))):
            self.reports.receive(message, term=core.state.term)

    def _takes_steps(self) -> bool:
        return self._running and not self._installation.replaces_log

    def _is_backlogged(self) -> bool:
        """Whether a snapshot chunk arrives faster than the disk writes; the leader resends it."""
        return self._snapshots.is_backlogged

    def peer_disconnected(self, peer: NodeId) -> None:
        """Report that a peer's connection broke; if it is the leader, an election starts early."""
        if not self._running:
            return
        if peer == self.core.leader:
            self._roles.leader_lost("ConnectionLost")
        self.core.peer_disconnected(peer)
        self._wake()

    def campaign(self) -> None:
        """Start an election now: the group was just bootstrapped on this node."""
        self._roles.leader_lost("Bootstrap")
        self.core.campaign()
        self._wake()

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Hand leadership to *target* (or the best follower). Raises NotLeader, InvalidArgument."""
        chosen = self.core.transfer_leadership(target)
        self._wake()
        return chosen

    def change_membership(
        self, *, voters: Collection[Member], learners: Collection[Member]
    ) -> tuple[int, int]:
        """Begin a membership change; see `Raft.change_membership` for the errors it raises."""
        begun = self.core.change_membership(voters=voters, learners=learners)
        self._wake()
        return begun

    def force_group(self, *, last_term: int, last_index: int) -> tuple[int, int]:
        """Make this node the only member of its group; see `Raft.force_group`."""
        begun = self.core.force_group(last_term=last_term, last_index=last_index)
        self._wake()
        return begun

    async def wait_change(self, timeout_s: float) -> None:
        """Return when role, leader, readiness or members change, or after *timeout_s*."""
        await self._changes.wait(timeout_s)

    def on_applied(
        self, listener: Callable[[], None], awaited: Callable[[], bool] = lambda: True
    ) -> None:
        """Call *listener* after each batch of applied entries.

        A follower applies a little later what nobody has *awaited*; see `apply_pace`.
        """
        self._applied_listeners.append(listener)
        self._pace.listens(awaited)

    def measured(self, found: Measured) -> None:
        """Take a look at the disk: accept, hold or refuse user data by it."""
        self.room.measured(found, retrying=self._persister.retrying)
        if self._proposer.queue.count:
            self._wake()

    def hand_over_for_room(self) -> bool:
        """Transfer leadership if this disk has no room and another member has; see `room.heir`."""
        target = self.room.heir() if self.is_serving_leader() else None
        if target is None or self.core.transfer_target is not None:
            return False
        try:
            self.transfer_leadership(target)
        except DledgerError as error:
            logger.info("this disk has no room, and leadership cannot move: %s", error)
            return False
        self.room.handed_over(target)
        logger.warning(
            "transferring leadership to %s, whose disk has room: %s", target, self.room.ours()
        )
        return True

    # -- the loop --------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._running:
            return
        loop = asyncio.get_running_loop()
        self._tick_handle = loop.call_later(self._config.tick_s, self._tick)
        now_s = self.last_tick_s = self._clock.monotonic_s()
        self._watch_disk(now_s)
        core = self.core
        members = (each.id for each in core.memberships.current.members)
        self.reports.tick(now_s, members, term=core.state.term)
        self.witness.tick(now_s)
        if self._takes_steps():
            core.tick()
            self.dating.look(
                now_s, serves=self.is_serving_leader(), applied_index=self._applied_index
            )
        self._commits.look(now_s, core.awaits_commit_behind)
        self._proposer.look(now_s)
        self._wake_if_due()

    def _watch_disk(self, now_s: float) -> None:
        since_s = self._persister.busy_since_s
        if since_s is not None and (self._persister.retrying or self.core.role is not Role.LEADER):
            since_s = None
        is_behind = since_s is not None and self.core.commit_index > self.core.durable_index
        if self._stall.exceeded(now_s, busy_since_s=since_s, is_behind=is_behind):
            logger.warning(
                "the disk has not synced for %.1f s: stepping down", self.sync_running_s()
            )
            self.core.step_down()

    def _wake(self) -> None:
        if not self._wake_scheduled and self._running:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _wake_if_due(self) -> None:
        """Wake up only if needed after a message, a tick or a sync: most change nothing."""
        if not self._wake_scheduled and (self._proposer.queue.count or self.core.has_ready()):
            self._wake()

    def _run(self) -> None:
        """Carry out what is due. No installation begins meanwhile: it is a task."""
        self._wake_scheduled = False
        if not self._takes_steps():
            return
        try:
            while self._running:
                if self._proposer.queue.count:
                    self._proposer.propose(disk_idle=self._persister.idle)
                if self._pace.later or self.core.state.role is Role.FOLLOWER:
                    self._pace.look()
                if not self.core.has_ready():
                    break
                ready = self.core.ready()
                self._handle(ready)
                if ready.committed:
                    self._wake_if_due()  # votes and heartbeats get a turn, however much is to apply
                    if self._pace.is_due and not self._wake_scheduled:
                        self._pace.settled()
                    break
        except NewerCommand as error:
            self.outdated(error)
        except Exception as error:
            logger.critical("internal error (a bug in this program)", exc_info=error)
            self._fail("cannot continue after a step that failed halfway", error)

    def _handle(self, ready: Ready) -> None:
        committed = ready.committed
        if ready.entries:
            self.room.writes(ready.entries)
        # A short apply comes first: the writer would only wait for this thread (ADR 38).
        writes_behind = bool(ready.entries and committed) and is_small(committed)
        if not writes_behind:
            self._persister.submit(ready)
        if committed:
            self._apply(committed)
            self._applied.applied(self._applied_index)
        if writes_behind:
            self._persister.submit(ready)
        if self._installation is not None and (ready.chunks or ready.install is not None):
            self._installation.take(ready)
        if ready.reads:
            self._reads.confirmed(ready.reads)
        self._note_membership()
        if ready.role_change is not None or not self._roles.knows_start:
            self._note_role(ready.role_change)
        if ready.refused is not None:
            self._refusals.note(ready.refused)

    # -- reports from the disk -------------------------------------------------------------------

    def hard_state_durable(self, hard_state: HardState) -> None:
        """Count this node's own vote, if it was waiting for this write."""
        self.core.hard_state_persisted(hard_state)
        self._wake()

    def entries_durable(self, term: int, index: int) -> None:
        """Count this node towards the majority for these entries."""
        self.room.wrote(index)
        if self.room.refusal is not None:
            self.room.write_succeeded(retrying=self._persister.retrying)
        self.core.persisted(term=term, index=index)
        self._wake_if_due()

    def cut_durable(self) -> None:
        """Check whether the log is whole after the truncation; if so, this node may campaign."""
        self.log_repaired(())

    def disk_full(self, error: DiskFull) -> None:
        """Refuse writes; pending entries are written once there is room.

        Callers waiting for an entry get LeadershipLost (outcome unknown); when they retry they get
        DiskFull. A voter with every entry on disk has room, and is asked to lead instead.
        """
        self.room.write_refused(error)
        self._proposer.outcome_lost()
        target = self.core.transfer_candidate()
        if target is not None and self.core.progress()[target].match_index >= self.core.last_index:
            self.transfer_leadership(target)

    def disk_failed(self, error: BaseException) -> None:
        """Stop sending: after a failed write or sync nothing this node says can be trusted.

        The one exception is TimeoutNow to another voter, which depends on no write.
        """
        self._fail("storage failed", error)

    def outdated(self, error: NewerCommand) -> None:
        """Stop: the group's log has an entry that this version does not know. None is skipped."""
        self._fail("this version is too old for its group", error)

    def _fail(self, why: str, error: BaseException) -> None:
        if self._running:
            self._running = False
            self._persister.stop()
            logger.critical("%s; stopping this node: %s", why, error)
            timeout_now = last_words(self.core)
            if timeout_now is not None:
                self._send(timeout_now)
            self._proposer.refuse(NotLeader(None))
            self._reads.fail_all(NotLeader(None))
            self._on_fatal(error)

    def log_repaired(self, entries: Sequence[Entry]) -> None:
        """Note entries that can be read again, and check whether the log is whole."""
        if self._installation is not None and self._installation.replaces_log:
            asyncio.get_running_loop().call_later(self._config.tick_s, self.log_repaired, entries)
        elif self._running:
            self.core.log_repaired(entries, whole=self._log.is_whole)
            self._note_membership()
            self._wake()

    def entries_lost(self, damaged: Sequence[range]) -> None:
        """Ask the leader for a snapshot if it has dropped a damaged entry that this node needs.

        Without a leader, ask the other members whether the first of them was ever committed.
        """
        needed = first_needed(damaged, self._applied_index)
        if self._takes_steps() and needed is not None:
            self.core.entry_lost(needed)
            if needed == first_needed(self._log.faulty, self._applied_index):
                self.core.ask_discard(needed)
            self._wake()

    def hand_over_damaged(self) -> None:
        """Transfer leadership if a candidate exists, because this log stays damaged."""
        if not self._running or self.core.role is not Role.LEADER:
            return
        if is_stuck_behind(self._log.faulty, self.core):
            logger.warning("no follower can get the damaged entries from here: stepping down")
            self.core.step_down()
            self._wake()
        elif self.core.transfer_target is None:
            try:
                self.transfer_leadership(None)
            except DledgerError as error:
                logger.warning("the log is damaged, but leadership cannot move: %s", error)

    # -- apply -----------------------------------------------------------------------------------

    def _apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.applied_bytes += len(entry.data)
            applies = entry.kind is EntryKind.DATA and entry.index > self._snapshots.index
            results = self._state.apply(entry) if applies else ()
            self.log_clock.applied(entry.timestamp_ms, self._state.leapt_ms)
            self._applied_index = entry.index
            self._proposer.waiters.applied(entry.term, entry.index, results)
            if entry.kind is EntryKind.MEMBERSHIP:
                self._changes.notify()
            if self._roles.applied(entry.term):
                self._changes.notify()
        for listener in self._applied_listeners:
            listener()

    def _snapshot_finished(self, info: SnapshotInfo, memberships: Memberships | None) -> None:
        """Restart the log after *info*; the state may be ahead of it (`snapshots`)."""
        if memberships is not None:
            self._applied_index = info.last_index
            self._applied.applied(info.last_index)
            self.log_clock.applied(self._snapshots.now_ms, self._state.leapt_ms)
        self.core.snapshot_finished(
            info,
            installed=memberships is not None,
            memberships=memberships or (),
            last_index=self._log.last_index,
        )
        self.core.log_repaired(whole=self._log.is_whole)
        for listener in self._applied_listeners:
            listener()
        self._wake()

    # -- membership and role ---------------------------------------------------------------------

    def _note_membership(self) -> None:
        membership = self.core.memberships.current
        if membership is not self._membership:
            self._membership = membership
            self._is_member = membership.get(self._id) is not None
            self._on_membership(membership)
        if self._is_member:
            return
        removal_index = self.core.removal_index(self._id)
        if removal_index is not None and self._on_removed is not None:
            on_removed, self._on_removed = self._on_removed, None
            on_removed(removal_index)

    def _note_role(self, change: RoleChange | None) -> None:
        before = self._roles.changed(change)
        if before is None:
            return
        if self.core.role is Role.LEADER:
            self.room.leads(self._led_by)
        elif self.core.leader is not None:
            self._led_by = self.core.leader
        if before is Role.LEADER:
            self._reads.fail_all(NotLeader(self.core.leader))
            self._proposer.refuse(NotLeader(self.core.leader))
        self._changes.notify()

    def _entries_loaded(self) -> None:
        self.core.entries_available()
        self._wake()
