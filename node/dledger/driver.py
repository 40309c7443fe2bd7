"""The loop of one node: the only place that orders disk, network and apply.

The Raft core says what must happen (`Ready`); the driver makes it happen in the order that the
promises need: persist before you speak, apply only what is committed. The event loop never waits
on a disk: one thread writes and syncs the log, one the hard state. While a sync runs, what arrives
is gathered, and goes down with the next one (group commit).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from crc32c import crc32c

from dledger.errors import DiskFull, DledgerError, NotLeader, StorageError
from dledger.failover import FailoverRecord, FailoverTimer
from dledger.log_view import LogView
from dledger.metrics import NodeMetrics
from dledger.proposals import Proposal, ProposalQueue, Waiters
from dledger.raft.core import Raft, RaftConfig, Ready
from dledger.raft.messages import AppendRequest, HeartbeatRequest, Message, TimeoutNow
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.types import Entry, EntryKind, HardState, Membership, NodeId, Role

logger = logging.getLogger(__name__)

_PIPELINE_ENTRIES: Final = 4
_EARLY_BATCH_BYTES: Final = 256 << 10
_DISK_RETRY_S: Final = 0.5


class Clock(Protocol):
    """Time as the driver needs it."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""

    def unix_ms(self) -> int:
        """Return the wall clock, Unix milliseconds; may jump."""


class StateMachine(Protocol):
    """What committed entries mean; see `broker.state.BrokerState`."""

    def apply(self, entry: Entry) -> Sequence[object]:
        """Apply one DATA entry; return one result a command, errors as values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConfig:
    """Timings and bounds of one node's loop."""

    tick_s: float = 0.05
    disk_stall_s: float = 1.0
    max_queued_bytes: int = 64 << 20
    min_free_bytes: int = 64 << 20


class Driver:
    """Runs one Raft core on one commit log."""

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
    ) -> None:
        self._config = config
        self._hard_state_file = hard_state_file
        self._log = log
        self._state = state
        self._send = send
        self._on_membership = on_membership
        self._on_fatal = on_fatal
        self._clock = clock
        self._metrics = metrics
        self._log_writer = ThreadPoolExecutor(1, "log-writer")
        self._hard_state_writer = ThreadPoolExecutor(1, "hard-state-writer")
        self._readers = ThreadPoolExecutor(2, "log-reader")
        self.view = LogView(
            log, self._readers, on_loaded=self._entries_loaded, on_error=self._fatal
        )
        self.core = Raft(
            raft,
            hard_state=hard_state,
            log=self.view,
            memberships=log.memberships(),
            rng=rng,
        )
        self._membership = self.core.membership
        self._queue = ProposalQueue(config.max_queued_bytes)
        self._waiters = Waiters()
        self._timer = FailoverTimer(raft.id)
        self._wake_scheduled = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._running = False
        self._sequence = 0
        self._hard_state_pending: deque[tuple[int, HardState]] = deque()
        self._hard_state_busy = False
        self._hard_state_durable = 0
        self._log_pending: list[tuple[int, tuple[Entry, ...]]] = []
        self._log_busy_since: float | None = None
        self._log_retry: asyncio.TimerHandle | None = None
        self._log_durable = 0
        self._held_votes: deque[tuple[int, tuple[Message, ...]]] = deque()
        self._held_acks: deque[tuple[int, tuple[Message, ...]]] = deque()
        self._applied_index = 0
        self._leader_term_applied = 0
        self._clock_base: tuple[float, int] = (clock.monotonic_s(), clock.unix_ms())
        self._last_timestamp_ms = 0
        self._role: tuple[Role, int, NodeId | None] = (Role.FOLLOWER, 0, None)
        self._change_waiters: set[asyncio.Future[None]] = set()
        self._applied_listeners: list[Callable[[], None]] = []
        self.last_tick_s = clock.monotonic_s()
        self.writes_refused: DiskFull | None = None

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start ticking; call on the event loop."""
        self._running = True
        self._on_membership(self._membership)
        self._schedule_tick()
        self._wake()

    async def stop(self) -> None:
        """Stop ticking, let the running writes end, fail those who wait."""
        self._running = False
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        if self._log_retry is not None:
            self._log_retry.cancel()
        self._queue.fail_all(NotLeader(None))
        self._waiters.fail_all()
        for executor in (self._log_writer, self._hard_state_writer, self._readers):
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)

    # -- what the servicers see -----------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        """The newest index whose effects are in the state machine."""
        return self._applied_index

    @property
    def last_failover(self) -> FailoverRecord | None:
        """The newest change of leader that this node won."""
        return self._timer.record

    @property
    def storage_backlog(self) -> int:
        """Writes that wait for the disk."""
        return len(self._log_pending)

    def is_serving_leader(self) -> bool:
        """Whether this node leads and has applied an entry of its own term.

        Before that its state machine may lack entries that the old leader acknowledged.
        """
        return self.core.role is Role.LEADER and self._leader_term_applied == self.core.term

    def now_ms(self) -> int:
        """Return the leader's log clock: Unix milliseconds that never go back.

        The wall clock is read when leadership starts; from then on monotonic time is added.
        """
        base_s, base_ms = self._clock_base
        elapsed_ms = int((self._clock.monotonic_s() - base_s) * 1000)
        return max(self._last_timestamp_ms, base_ms + elapsed_ms)

    async def propose(self, command: bytes, *, grows: bool) -> object:
        """Commit one framed command and return what applying it gave.

        Args:
            command: A framed command (`broker.commands`).
            grows: Whether it stores user data; such commands are refused while the disk is full.

        Raises:
            NotLeader: This node does not lead.
            LeadershipLost: Outcome unknown; retry with the same idempotency key.
            Overloaded: A bounded queue is full.
            DiskFull: The disk has no room for more user data.
            DledgerError: What applying the command refused.
        """
        if not self.is_serving_leader():
            raise NotLeader(self.core.leader)
        if grows and self.writes_refused is not None:
            raise self.writes_refused
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._queue.push(Proposal(command, result))
        self._wake()
        return await result

    def receive(self, message: Message) -> None:
        """Take one message from a peer."""
        if not self._running:
            return
        if isinstance(message, AppendRequest | HeartbeatRequest) and message.term >= self.core.term:
            self._timer.heard_from_leader(message.sender, self._clock.monotonic_s())
        elif isinstance(message, TimeoutNow):
            self._timer.leader_lost("Transfer", self._clock.monotonic_s())
        self.core.step(message)
        self._wake()

    def peer_disconnected(self, peer: NodeId) -> None:
        """Pass on that a peer's connection broke; if it leads, an election starts early."""
        if peer == self.core.leader and self._running:
            self._timer.leader_lost("ConnectionLost", self._clock.monotonic_s())
            self.core.peer_disconnected(peer)
            self._wake()

    def campaign(self) -> None:
        """Start an election now: the group was just founded here."""
        self.core.campaign()
        self._wake()

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Hand leadership to *target* (or the best follower). Raises NotLeader, InvalidArgument."""
        chosen = self.core.transfer_leadership(target)
        self._wake()
        return chosen

    async def wait_change(self, timeout_s: float) -> None:
        """Return when role, term, leader or readiness to serve changes, or after *timeout_s*."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change_waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            return
        finally:
            self._change_waiters.discard(waiter)

    def on_applied(self, listener: Callable[[], None]) -> None:
        """Call *listener* after each batch of applied entries."""
        self._applied_listeners.append(listener)

    def set_free_bytes(self, free_bytes: int) -> None:
        """Refuse or take user data, by the room that is left on the disk."""
        minimum = self._config.min_free_bytes
        if free_bytes < minimum:
            if self.writes_refused is None:
                logger.warning("disk full: %d bytes free, %d needed", free_bytes, minimum)
            self.writes_refused = DiskFull(
                f"the disk of the leader has {free_bytes} bytes free and keeps {minimum} in "
                "reserve; free some space or grow the volume, writes resume by themselves"
            )
        elif self.writes_refused is not None and self._log_retry is None:
            logger.warning("disk has room again: %d bytes free; writes resume", free_bytes)
            self.writes_refused = None

    # -- the loop -------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_handle = loop.call_later(self._config.tick_s, self._tick)

    def _tick(self) -> None:
        if not self._running:
            return
        self._schedule_tick()
        now_s = self._clock.monotonic_s()
        self.last_tick_s = now_s
        self._watch_disk(now_s)
        self.core.tick()
        self._wake()

    def _watch_disk(self, now_s: float) -> None:
        busy_since = self._log_busy_since
        if busy_since is None or now_s - busy_since < self._config.disk_stall_s:
            return
        if self.core.role is Role.LEADER:
            logger.warning("the disk has not synced for %.1f s: stepping down", now_s - busy_since)
            self.core.step_down()

    def _wake(self) -> None:
        if not self._wake_scheduled and self._running:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._wake_scheduled = False
        if not self._running:
            return
        self._propose_queued()
        while self.core.has_ready():
            self._handle(self.core.ready())

    def _propose_queued(self) -> None:
        while self._queue and self._may_propose():
            batch = self._queue.take_batch()
            if not batch:
                continue
            data = b"".join([proposal.command for proposal in batch])
            try:
                term, index = self.core.propose(
                    kind=EntryKind.DATA,
                    data=data,
                    crc32c=crc32c(data),
                    timestamp_ms=self.now_ms(),
                )
            except DledgerError as error:
                for proposal in batch:
                    if not proposal.result.done():
                        proposal.result.set_exception(error)
                return
            self._waiters.add(term, index, batch)
            self._metrics.batch_commands.observe(len(batch))

    def _may_propose(self) -> bool:
        if self._log_busy_since is None and not self._log_pending:
            return not self.core.has_ready()
        return (
            self._queue.size_bytes >= _EARLY_BATCH_BYTES
            and len(self._waiters) < _PIPELINE_ENTRIES
        )

    def _handle(self, ready: Ready) -> None:
        self._sequence += 1
        if ready.hard_state is not None:
            self._hard_state_pending.append((self._sequence, ready.hard_state))
            self._write_hard_state()
        if ready.entries:
            self._log_pending.append((self._sequence, ready.entries))
            self._write_log()
        for message in ready.messages:
            self._send(message)
        if ready.after_hard_state:
            self._held_votes.append((self._sequence, ready.after_hard_state))
        if ready.after_entries:
            self._held_acks.append((self._sequence, ready.after_entries))
        self._release_held()
        self._apply(ready.committed)
        self._note_membership()
        self._note_role()

    # -- disk -----------------------------------------------------------------------------------

    def _write_hard_state(self) -> None:
        if self._hard_state_busy or not self._hard_state_pending:
            return
        sequence, hard_state = self._hard_state_pending[-1]  # the newest one covers the older
        self._hard_state_pending.clear()
        self._hard_state_busy = True
        future = asyncio.get_running_loop().run_in_executor(
            self._hard_state_writer, self._hard_state_file.save, hard_state
        )
        future.add_done_callback(lambda done: self._hard_state_written(done, sequence, hard_state))

    def _hard_state_written(
        self, done: asyncio.Future[None], sequence: int, hard_state: HardState
    ) -> None:
        self._hard_state_busy = False
        error = done.exception()
        if error is not None:
            self._fatal(error)
            return
        self._hard_state_durable = sequence
        self.core.hard_state_persisted(hard_state)
        self._write_hard_state()
        self._release_held()
        self._wake()

    def _write_log(self) -> None:
        if self._log_busy_since is not None or not self._log_pending:
            return
        batch, self._log_pending = self._log_pending, []
        self._log_busy_since = self._clock.monotonic_s()
        if any(entries[0].index <= self._log.last_index for _, entries in batch):
            self.view.forget_from(min(entries[0].index for _, entries in batch))
        future = asyncio.get_running_loop().run_in_executor(
            self._log_writer, _append_and_sync, self._log, [entries for _, entries in batch]
        )
        future.add_done_callback(lambda done: self._log_written(done, batch))

    def _log_written(
        self, done: asyncio.Future[int], batch: list[tuple[int, tuple[Entry, ...]]]
    ) -> None:
        started_s, self._log_busy_since = self._log_busy_since, None
        error = done.exception()
        if isinstance(error, DiskFull):
            self._retry_log_write(error, batch)
            return
        if error is not None:
            self._fatal(error)
            return
        self._metrics.sync_seconds.observe(self._clock.monotonic_s() - (started_s or 0.0))
        self._metrics.sync_bytes.inc(sum(e.size_bytes for _, entries in batch for e in entries))
        self._log_durable = batch[-1][0]
        newest = batch[-1][1][-1]
        self.core.persisted(term=newest.term, index=newest.index)
        self._write_log()
        self._release_held()
        self._wake()

    def _retry_log_write(
        self, error: DiskFull, batch: list[tuple[int, tuple[Entry, ...]]]
    ) -> None:
        """Keep what could not be written and try again: space may return."""
        if self.writes_refused is None:
            logger.error("disk full while writing the log: %s", error)
        self.writes_refused = error
        self._log_pending[:0] = batch
        if not self._running:
            return
        if self.core.role is Role.LEADER:
            self.core.step_down()
            self._wake()
        self._log_busy_since = self._clock.monotonic_s()
        self._log_retry = asyncio.get_running_loop().call_later(_DISK_RETRY_S, self._retry_now)

    def _retry_now(self) -> None:
        self._log_retry = None
        self._log_busy_since = None
        self._write_log()

    def _release_held(self) -> None:
        """Send what rested on writes that are durable now. Persist before you speak."""
        hard_state_durable = self._hard_state_durable_up_to()
        while self._held_votes and self._held_votes[0][0] <= hard_state_durable:
            self._send_all(self._held_votes.popleft()[1])
        durable = min(hard_state_durable, self._log_durable_up_to())
        while self._held_acks and self._held_acks[0][0] <= durable:
            self._send_all(self._held_acks.popleft()[1])

    def _hard_state_durable_up_to(self) -> int:
        clean = not self._hard_state_busy and not self._hard_state_pending
        return self._sequence if clean else self._hard_state_durable

    def _log_durable_up_to(self) -> int:
        clean = self._log_busy_since is None and not self._log_pending
        return self._sequence if clean else self._log_durable

    def _send_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._send(message)

    # -- apply ----------------------------------------------------------------------------------

    def _apply(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        for entry in entries:
            self._apply_one(entry)
        for listener in self._applied_listeners:
            listener()

    def _apply_one(self, entry: Entry) -> None:
        self._last_timestamp_ms = max(self._last_timestamp_ms, entry.timestamp_ms)
        results = self._state.apply(entry) if entry.kind is EntryKind.DATA else ()
        self._applied_index = entry.index
        self._waiters.applied(entry.term, entry.index, results)
        if entry.term == self.core.term and entry.term != self._leader_term_applied:
            self._leader_term_applied = entry.term
            self._first_commit_of_term()

    def _first_commit_of_term(self) -> None:
        if self.core.role is not Role.LEADER:
            return
        record = self._timer.first_commit(self._clock.monotonic_s())
        if record is not None:
            self._metrics.elections.labels(cause=record.cause).inc()
            logger.info("failover complete: %s", record)
        self._notify_change()

    # -- membership and role -----------------------------------------------------------------------------

    def _note_membership(self) -> None:
        if self.core.membership is not self._membership:
            self._membership = self.core.membership
            self._on_membership(self._membership)

    def _note_role(self) -> None:
        role = (self.core.role, self.core.term, self.core.leader)
        if role == self._role:
            return
        before, self._role = self._role, role
        now_s = self._clock.monotonic_s()
        logger.info(
            "node %s: %s -> %s, term %d, leader %s, last index %d",
            self.core.id, before[0].value, role[0].value, role[1], role[2], self.core.last_index,
        )  # fmt: skip
        if role[0] is Role.LEADER:
            self._clock_base = (now_s, max(self._clock.unix_ms(), self._last_timestamp_ms))
            self._timer.elected(role[1], now_s, self._clock.unix_ms())
        elif role[0] is Role.PRE_CANDIDATE:
            self._timer.leader_lost("ElectionTimeout", now_s)
        if before[0] is Role.LEADER:
            self._queue.fail_all(NotLeader(self.core.leader))
            self._waiters.fail_all()
        self._notify_change()

    def _notify_change(self) -> None:
        for waiter in self._change_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _entries_loaded(self) -> None:
        self.core.entries_available()
        self._wake()

    def _fatal(self, error: BaseException) -> None:
        """Stop speaking: after a failed write or rot nothing this node says can be trusted."""
        if self._running:
            self._running = False
            logger.critical("storage failed, this node stops: %s", error)
            self._queue.fail_all(StorageError(str(error)))
            self._waiters.fail_all()
            self._on_fatal(error)


def _append_and_sync(log: CommitLog, batches: Sequence[tuple[Entry, ...]]) -> int:
    """Write what follows on in one go, overlaps one by one, then sync once."""
    run: list[Entry] = []
    for entries in batches:
        if run and entries[0].index != run[-1].index + 1:
            log.append(run)
            run = []
        run.extend(entries)
    log.append(run)
    log.sync()
    return log.synced_index
