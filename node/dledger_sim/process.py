"""One node of a simulated group: its disk, and the life of its process.

What `dledger.server.node` wires to real clocks, files and threads is wired to simulated ones
here: the same driver, disk, log view, commit log, hard state file and broker state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, cast

from crc32c import crc32c

from dledger.broker.deduplication import DeduplicationWindow
from dledger.broker.state import BrokerState
from dledger.common.limits import MAX_IDS_OF_CLIENT
from dledger.common.metrics import NodeMetrics
from dledger.common.work_thread import Done
from dledger.errors import NodeRemoved, StorageError
from dledger.peers.handshake import ClientAddress
from dledger.peers.peers import Peers
from dledger.raft import invariants
from dledger.raft.config import RaftConfig
from dledger.raft.messages import Message
from dledger.replica import snapshot_backoff
from dledger.replica.compactor import Compactor
from dledger.replica.driver import Driver, DriverConfig
from dledger.replica.firing import Firing
from dledger.replica.maintenance import Maintenance, SnapshotPolicy
from dledger.replica.proposer import EntrySizes
from dledger.replica.repair import LogRepairer, Source
from dledger.replica.retention import RetentionPolicy
from dledger.replica.room_keeper import RoomConfig
from dledger.replica.scrubber import Scrubber
from dledger.replica.snapshots import Snapshots
from dledger.rocketmq.half_checks import HalfChecks
from dledger.server.config import ELECTION_TIMEOUT_TICKS, HEARTBEAT_TICKS
from dledger.server.engine import NodeEngine
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import NAME as HARD_STATE
from dledger.store.hard_state import HardStateFile, decode_hard_state, newer
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.store.identity import NAME as IDENTITY
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.store.two_copies import both
from dledger.store.witness_file import WitnessFile
from dledger.types import Entry, EntryKind, HardState, Member, Membership, NodeId
from dledger_sim.disk import SimFiles
from dledger_sim.loop import Clock, ProcessLoop
from dledger_sim.options import Options

GROUP: Final = "simulated"
_DIRECTORY: Final = Path("/data")
LOG: Final = _DIRECTORY / LOG_DIRECTORY
START_MS: Final = 1_700_000_000_000
"""What a right wall clock says when the simulation begins."""
_HOUSEKEEPING_S: Final = 1.0
_SPREAD: Final = 0.5
_WATERMARK_PERCENT: Final = 85
_SEGMENT_TO_RESERVE: Final = 4
"""What a shipped node keeps in reserve of its volume: 16 MiB, where segments have 64."""


def members(count: int) -> Membership:
    """Return a membership of nodes "1" to *count*."""
    return Membership.of(member(str(number + 1)) for number in range(count))


def member(name: str) -> Member:
    """Return the node of this number as a member."""
    return Member(id=NodeId(name), name=f"group-{name}", address=f"{name}:20911")


def founding_entry(membership: Membership) -> Entry:
    """Return the first entry of a group's log."""
    data = membership.encode()
    return Entry(
        term=1,
        index=1,
        kind=EntryKind.MEMBERSHIP,
        timestamp_ms=0,
        crc32c=crc32c(data),
        data=data,
    )


class World(Protocol):
    """What is around a process."""

    clock: Clock
    options: Options

    def send(self, message: Message) -> None:
        """Carry a message, or lose it."""

    def job_us(self, process: Process) -> tuple[int, int]:
        """Draw how long a job takes, and when within that time it runs."""

    def records(self, process: Process) -> Source:
        """Return where a node can ask for entries that its disk has lost."""

    def half_checks(self, process: Process) -> HalfChecks:
        """Return what asks producers about transactions while a process leads."""

    def opened(self, process: Process) -> None:
        """Take note of what a starting process finds on its disk."""

    def wrote(self, process: Process, entries: Sequence[Entry]) -> None:
        """Take note of entries that were written to a log."""

    def applied(self, process: Process, entry: Entry, results: Sequence[object]) -> None:
        """Take note of an entry that was applied, and what it gave."""

    def stepped(self, process: Process) -> None:
        """Check a process that has just done something."""

    def refused(self, process: Process, reason: str) -> None:
        """Take note that a node refused a message of a member, as the work of a fault."""

    def died(self, process: Process, error: BaseException) -> None:
        """Take note that a process ended itself."""


class _ProcessClock:
    """A process's own clocks: the wall clock may be wrong, and jump."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset_ms = 0
        self.drift = 0.0

    def monotonic_s(self) -> float:
        return self._clock.now_us / 1_000_000

    def unix_ms(self) -> int:
        gone_ms = self._clock.now_us // 1000
        return START_MS + gone_ms + round(gone_ms * self.drift) + self.offset_ms


class _Metrics(NodeMetrics):
    """Nobody reads them; what is refused is told."""

    def __init__(self, on_refused: Callable[[str], None]) -> None:
        super().__init__(GROUP, "simulated")
        self._on_refused = on_refused

    def refused(self, reason: str) -> None:
        self._on_refused(reason)


class LoopWorker:
    """A `Worker` whose work is a job of the simulated loop."""

    def __init__(self, _: str) -> None:
        self._key = Executor()

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Let the loop do it: it draws how long that takes."""
        job = asyncio.get_running_loop().run_in_executor(self._key, work)
        job.add_done_callback(lambda ended: done(ended.exception()))

    async def close(self) -> None:
        """Do nothing: what was given ends by itself, or with the process."""


class ObservedLog(CommitLog):
    """A commit log that tells what is written to it."""

    on_written: Callable[[Sequence[Entry]], None]

    def append(self, entries: Sequence[Entry]) -> None:
        """Write, then tell."""
        super().append(entries)
        self.on_written(entries)

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is durable here."""
        if index < self.first_index:
            return True
        return index <= self.synced_index and self.term(index) == term


class ObservedState:
    """A broker state that tells what is applied. Implements `driver.StateMachine`."""

    def __init__(
        self, on_applied: Callable[[Entry, Sequence[object]], None], dedupe: DeduplicationWindow
    ) -> None:
        self.broker = BrokerState(dedupe)
        self._on_applied = on_applied

    @property
    def leapt_ms(self) -> int:
        """The broker's."""
        return self.broker.leapt_ms

    def apply(self, entry: Entry) -> Sequence[object]:
        """Apply, then tell."""
        results = self.broker.apply(entry)
        self._on_applied(entry, results)
        return results


class Process:
    """A node; between `crash` and `start` it has a disk only."""

    STATE_FILES: Final = (HARD_STATE, IDENTITY)

    def __init__(
        self, member: Member, world: World, rng: Random, *, founding: Entry | None
    ) -> None:
        self.member = member
        self.id: NodeId = member.id
        self._world = world
        self._rng = rng
        volume_bytes = world.options.volume_kib << 10
        segment_bytes = world.options.segment_bytes if volume_bytes else 0
        self._reserve_bytes = segment_bytes // _SEGMENT_TO_RESERVE
        self.files = SimFiles(volume_bytes=volume_bytes, quota=world.options.quota)
        self._metrics = _Metrics(partial(world.refused, self))
        self.clock = _ProcessClock(world.clock)
        self.is_up = False
        self.retired = False
        self.lives = 0
        tight = 16 if world.options.tight else 64 << 10
        self.max_queued_bytes = (world.options.queue_kib or tight) << 10
        self._format(founding)

    def _format(self, founding: Entry | None) -> None:
        empty = load_or_format(self.files, _DIRECTORY, self.member.name, new_id=lambda: self.id)
        self._identity = join(self.files, _DIRECTORY, empty, GROUP)
        self.log = self._open_log()
        if founding is not None:
            self.log.append([founding])
            self.log.sync()

    def _open_log(self) -> ObservedLog:
        options = self._world.options
        log = ObservedLog.open(
            self.files,
            LOG,
            identity=self._identity,
            segment_bytes=options.segment_bytes,
            cache_bytes=2048 if options.tight else 64 << 20,
            reserve_bytes=self._reserve_bytes,
            durability="osBuffer" if options.os_buffer else "sync",
        )
        assert isinstance(log, ObservedLog)  # noqa: S101 - open is a class method
        log.on_written = lambda entries: self._world.wrote(self, entries)
        return log

    # Its life

    def start(self) -> None:
        """Start the process from what the disk holds.

        Raises:
            StorageError: It refuses to start.
        """
        self.lives += 1
        self.loop = ProcessLoop(
            self._world.clock,
            job_us=partial(self._world.job_us, self),
            after_step=partial(self._world.stepped, self),
        )
        self._identity = load_or_format(self.files, _DIRECTORY, self.member.name, new_id=_lost)
        hard_state_file = HardStateFile(self.files, _DIRECTORY)
        hard_state = hard_state_file.load()
        witness_file = WitnessFile(self.files, _DIRECTORY)
        marks = witness_file.load()
        self.log = self._open_log()
        self.state = ObservedState(
            lambda entry, got: self._world.applied(self, entry, got),
            DeduplicationWindow(
                max_ids_of_client=self._world.options.remembered_ids or MAX_IDS_OF_CLIENT
            ),
        )
        self.snapshots = Snapshots(
            SnapshotFiles(
                self.files,
                _DIRECTORY / SNAPSHOT_DIRECTORY,
                reserve_bytes=self._reserve_bytes,
            ),
            group_id=self._identity.group_id,
            log=self.log,
            state=self.state.broker,
        )
        self.snapshots.load()
        self.driver = Driver(
            config=DriverConfig(
                max_queued_bytes=self.max_queued_bytes,
                room=self._room(),
                entries=self._entry_sizes(),
            ),
            raft=self._raft_config(),
            hard_state_file=hard_state_file,
            hard_state=hard_state,
            log=self.log,
            state=self.state,
            send=self._world.send,
            on_membership=_ignore_membership,
            on_fatal=self._fatal,
            on_removed=self._removed,
            clock=self.clock,
            rng=Random(self._rng.random()),
            metrics=self._metrics,
            snapshots=self.snapshots,
            thread=LoopWorker,
            incarnation=f"{self.id}.{self.lives}",
            witness_file=witness_file,
            marks=marks,
            asks=self.lives > 1,
        )
        self._upkeep = Maintenance(
            self.driver,
            self.log,
            self.state.broker,
            self.snapshots,
            retention=self._retention(),
            policy=SnapshotPolicy(
                size_bytes=4096, entries=self._world.options.snapshot_entries, rest_rounds=0
            ),
            metrics=self._metrics,
            usage=lambda: self.files.disk_usage(_DIRECTORY),
            now_s=self.clock.monotonic_s,
            spread=lambda: _SPREAD,
            secret=self.id.encode(),
        )
        self.is_up = True
        self.seen = invariants.check(self.driver.core)
        self.membership_seen = self.driver.core.membership
        self._world.opened(self)
        self.loop.run(self.driver.start)
        self._keep_doing(self._check_disk)
        self._keep_doing(self._keep_log_short)
        self._keep_doing(self.driver.witness.keep)
        refetcher = LogRepairer(
            self.log,
            self._world.records(self),
            self.driver,
            now_s=self.clock.monotonic_s,
            metrics=self._metrics,
        )
        self._keep_doing(refetcher.run)
        if self._world.options.timed:
            self._keep_doing(Firing(engine_of(self), self._metrics).run)
        if self._world.options.halves:
            self._keep_doing(self._world.half_checks(self).run)
        scrubber = Scrubber(
            self.log, bytes_per_s=1 << 20, on_failed=self.driver.disk_failed, metrics=self._metrics
        )
        self._keep_doing(scrubber.run)

    def _keep_doing(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self.loop.run(lambda: self.loop.create_task(work()))

    def _raft_config(self) -> RaftConfig:
        config = RaftConfig(
            id=self.id,
            group_id=self._identity.group_id,
            heartbeat_ticks=HEARTBEAT_TICKS,
            election_timeout_ticks=ELECTION_TIMEOUT_TICKS,
            may_lose=self._world.options.os_buffer,
        )
        if self._world.options.uncommitted_kib:
            size_bytes = self._world.options.uncommitted_kib << 10
            config = replace(config, max_uncommitted_bytes=size_bytes)
        if not self._world.options.tight:
            return config
        return replace(
            config,
            max_append_bytes=1024,
            max_inflight_appends=3,
            max_inflight_bytes=4096,
            max_catch_up_bytes=2048,
            max_uncommitted_bytes=16 << 10,
            max_apply_bytes=2048,
            max_unapplied_bytes=4096,
        )

    def _room(self) -> RoomConfig:
        """Return how much of the log is kept, and thresholds for disks as small as these."""
        options = self._world.options
        percent = 80 if options.kept_kib else _WATERMARK_PERCENT if options.volume_kib else 0
        return RoomConfig(
            segment_bytes=options.segment_bytes,
            least_segment_bytes=options.segment_bytes // (16 if options.volume_kib else 1),
            small_files_bytes=self._reserve_bytes,
            budget_bytes=(options.kept_kib or options.volume_kib) << 10,
            percent=percent,
        )

    def _entry_sizes(self) -> EntrySizes:
        size_bytes = self._world.options.entry_kib << 10
        if not size_bytes:
            return EntrySizes()
        return EntrySizes(
            worth_bytes=size_bytes // 16, early_bytes=size_bytes // 4, max_bytes=size_bytes
        )

    def _retention(self) -> RetentionPolicy:
        return RetentionPolicy(hours=self._world.options.kept_hours)

    async def _check_disk(self) -> None:
        while True:
            await self._upkeep.measure()
            try:
                await asyncio.to_thread(self.log.prepare)
            except StorageError as error:
                self.driver.disk_failed(error)
            await asyncio.sleep(_HOUSEKEEPING_S)

    async def _keep_log_short(self) -> None:
        while True:
            await self._upkeep.run()
            await asyncio.sleep(_HOUSEKEEPING_S)

    @property
    def compactor(self) -> Compactor:
        """What serves rounds of compaction, in this life."""
        return self._upkeep.compactor

    @property
    def rest_s(self) -> float:
        """How long after its start a node takes no snapshot that died in the midst of the last."""
        if not self.is_up:
            return 0.0
        unfinished = self.snapshots.unfinished
        return snapshot_backoff.wait_s(unfinished, _SPREAD, for_room=self.driver.room.is_short)

    def crash(self) -> None:
        """Cut the power: jobs under way may be done in part, and unsynced writes are lost."""
        self._end()
        self.files.crash(self._rng)

    def kill(self) -> None:
        """Kill the process; the operating system keeps what was written."""
        self._end()
        self.files.kill()

    def _end(self) -> None:
        self.is_up = False
        for job in self.loop.kill():
            if self._rng.random() < 0.7:
                self.files.cut_after(self._rng.randint(0, 8))
                job.run()
        self.files.cut_after(0)

    def hard_state_on_disk(self) -> HardState:
        """Return term and vote as each whole copy of them would have it after a power cut."""
        kept = []
        for path in both(_DIRECTORY / HARD_STATE):
            with suppress(ValueError, KeyError):
                kept.append(decode_hard_state(self.files.after_power_cut(path)))
        return min(kept, key=newer)

    def state_file(self, name: str) -> list[bytearray]:
        """Return the bytes of each copy that there is of a file that is kept twice."""
        here = self.files.list(_DIRECTORY)
        paths = both(_DIRECTORY / name)
        return [self.files.contents(path) for path in paths if path.name in here]

    def membership(self) -> tuple[int, Membership]:
        """Return the members that this node goes by, or would after a start, and since when."""
        if self.is_up:
            return self.driver.core.membership_index, self.driver.core.membership
        memberships = self.log.memberships()
        return memberships[-1] if memberships else (0, Membership())

    def _removed(self, index: int) -> None:
        """End for good, as a node does that has written its tombstone."""
        self.retired = True
        self._world.died(
            self, NodeRemoved(self.id, group_id=GROUP, index=index, path=str(_DIRECTORY))
        )

    def _fatal(self, error: BaseException) -> None:
        """Die of a failed disk; whatever else it is, is a fault of ours or a rule that broke."""
        if not isinstance(error, StorageError):
            raise error
        self._world.died(self, error)


def engine_of(process: Process, peers: Peers | None = None) -> NodeEngine:
    """Return what asks a node as its services do; who else is there only *peers* know."""
    engine = NodeEngine(
        group=GROUP,
        name=process.member.name,
        node_id=process.id,
        state=process.state.broker,
        peers=peers or cast("Any", None),
        clients=ClientAddress(host=process.id, port=0, tls_port=0),
    )
    engine.attach(process.driver)
    return engine


def _lost() -> NodeId:
    raise StorageError("the identity is gone")


def _ignore_membership(membership: Membership) -> None:
    """Links do not depend on who is a member: messages may come from anyone."""
    del membership
