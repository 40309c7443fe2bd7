"""A member's log, driver and maintenance: opened when a node starts as a member, or becomes one.

Owned by the node, which gives it files, clock and network.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger.broker.state import BrokerState
from dledger.common.features import MemberLevels
from dledger.common.metrics import NodeMetrics
from dledger.common.reports import Mark
from dledger.common.watchdog import Watchdog
from dledger.errors import StorageError
from dledger.files.files import DiskUsage, Files
from dledger.peers.peers import Peers
from dledger.peers.records import RecordsClient
from dledger.raft.config import RaftConfig
from dledger.replica.driver import Driver, DriverConfig
from dledger.replica.founding import found_group
from dledger.replica.log_clock import Clock
from dledger.replica.maintenance import Maintenance, SnapshotPolicy
from dledger.replica.repair import LogRepairer
from dledger.replica.retention import RetentionPolicy
from dledger.replica.room import SMALL_FILES_BYTES, segment_bytes_for
from dledger.replica.room_keeper import RoomConfig
from dledger.replica.scrubber import Scrubber
from dledger.replica.snapshots import Snapshots
from dledger.server.bootstrap import Bootstrap
from dledger.server.config import Settings
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.store.witness_file import WitnessFile
from dledger.types import HardState, NodeId

_MAX_QUEUED_BYTES: Final = 32 << 20
"""Limit of the commands waiting to become an entry, and that of uncommitted entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDependencies:
    """What a replica needs from its node.

    Attributes:
        usage: How full the file system of the data directory is, without what is root's alone.
        watchdog: The process's watchdog; it is told about long work.
        on_fatal: Called when nothing that this node sends can be trusted any more.
        returns: Whether the disk was a member's before this process: not one that joins just now.
        levels: The members' feature levels; commands above the lowest stay out of the log.
        on_removed: Called with the index of the entry that removed this node from its group.
    """

    settings: Settings
    files: Files
    directory: Path
    joining: Bootstrap
    peers: Peers
    state: BrokerState
    returns: bool
    metrics: NodeMetrics
    clock: Clock
    levels: MemberLevels
    usage: Callable[[], DiskUsage]
    watchdog: Watchdog
    on_fatal: Callable[[BaseException], None]
    on_removed: Callable[[int], None]


class Replica:
    """A member's log, driver and maintenance; *founds*: this start bootstraps the group."""

    def __init__(
        self,
        given: MemberDependencies,
        log: CommitLog,
        driver: Driver,
        maintenance: Maintenance,
        snapshots: Snapshots,
        *,
        founds: bool,
    ) -> None:
        self._given, self._founds = given, founds
        self.log, self.driver, self.maintenance = log, driver, maintenance
        self.snapshots = snapshots

    @classmethod
    async def open(cls, given: MemberDependencies) -> Replica:
        """Recover the log of the joined group, or bootstrap the group.

        Raises:
            StorageError: The log is corrupt or another node's; this node must not vote.
        """
        hard_state_file = HardStateFile(given.files, given.directory)
        mended: list[str] = []
        hard_state = await asyncio.to_thread(hard_state_file.load, mended.append)
        given.metrics.mended_state_files.inc(len(mended))
        witness_file = WitnessFile(given.files, given.directory)
        marks = await asyncio.to_thread(witness_file.load)
        log = await asyncio.to_thread(_open_log, given)
        founding = await asyncio.to_thread(given.joining.founding_of, log)
        if founding is not None:
            hard_state = await asyncio.to_thread(
                found_group,
                log,
                hard_state_file,
                founding,
                recovered_to=given.joining.identity.recovered_to,
                held=given.settings.restored_held,
            )
        snapshots = _snapshots(given, log)
        await asyncio.to_thread(snapshots.load)
        driver = _driver(
            given,
            hard_state_file,
            hard_state,
            log,
            snapshots,
            witness_file=witness_file,
            marks=marks,
        )
        maintenance = _maintenance(given, driver, log, snapshots)
        await maintenance.measure()  # before the first command: a disk is small until it was seen
        return cls(given, log, driver, maintenance, snapshots, founds=founding is not None)

    def start(self) -> None:
        """Run Raft on the log."""
        self.driver.start()
        if self._founds:
            self.driver.campaign()

    async def stop(self) -> None:
        """Wait for running writes to finish, then close the log."""
        await self.driver.stop()
        await asyncio.to_thread(self.log.close)

    def take_over(self, settings: Settings) -> None:
        """Go by settings that changed while the node runs; see `live_settings.LIVE`."""
        self.maintenance.retain_by(_retention(settings))
        self.driver.room.configure(
            budget_bytes=settings.storage_bytes, percent=settings.disk_watermark_percent
        )

    async def prepare(self) -> None:
        """Prepare the next segment."""
        try:
            await asyncio.to_thread(self.log.prepare)
        except StorageError as error:
            self.driver.disk_failed(error)

    def repairs(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks that look for bit rot, and that fetch damaged entries from peers."""
        given, log, driver = self._given, self.log, self.driver
        source = RecordsClient(given.peers, given.joining.group_id)
        refetcher = LogRepairer(
            log, source, driver, now_s=given.clock.monotonic_s, metrics=given.metrics
        )
        work = [refetcher.run(), driver.witness.keep()]
        if given.settings.scrub_bytes_per_s:
            scrubber = Scrubber(
                log,
                bytes_per_s=given.settings.scrub_bytes_per_s,
                on_failed=driver.disk_failed,
                metrics=given.metrics,
            )
            work.append(scrubber.run())
        return work


def _retention(settings: Settings) -> RetentionPolicy:
    return RetentionPolicy(
        hours=settings.retention_hours,
        group_hours=settings.group_retention_hours,
    )


def _open_log(given: MemberDependencies) -> CommitLog:
    return CommitLog.open(
        given.files,
        given.directory / LOG_DIRECTORY,
        identity=given.joining.identity,
        segment_bytes=_first_segment_bytes(given),
        reserve_bytes=SMALL_FILES_BYTES,
        durability=given.settings.durability,
    )


def _first_segment_bytes(given: MemberDependencies) -> int:
    """Return the size of segments until the other members' volumes are known."""
    total_bytes, settings = given.usage().total_bytes, given.settings
    volume_bytes = min(settings.storage_bytes or total_bytes, total_bytes)
    return segment_bytes_for([volume_bytes], most=settings.segment_bytes)


def _snapshots(given: MemberDependencies, log: CommitLog) -> Snapshots:
    files = SnapshotFiles(
        given.files, given.directory / SNAPSHOT_DIRECTORY, reserve_bytes=SMALL_FILES_BYTES
    )
    return Snapshots(
        files,
        group_id=given.joining.group_id,
        restored_from=given.joining.identity.recovered_from,
        log=log,
        state=given.state,
        watchdog=given.watchdog,
    )


def _driver(
    given: MemberDependencies,
    hard_state_file: HardStateFile,
    hard_state: HardState,
    log: CommitLog,
    snapshots: Snapshots,
    *,
    witness_file: WitnessFile,
    marks: Mapping[NodeId, Mark],
) -> Driver:
    settings = given.settings
    given.levels.count_on(lambda: given.state.level)
    return Driver(
        config=DriverConfig(
            tick_s=settings.tick_ms / 1000,
            max_queued_bytes=_MAX_QUEUED_BYTES,
            room=RoomConfig(
                segment_bytes=settings.segment_bytes,
                budget_bytes=settings.storage_bytes,
                percent=settings.disk_watermark_percent,
            ),
        ),
        raft=RaftConfig(
            id=given.joining.node_id,
            group_id=given.joining.group_id,
            heartbeat_ticks=settings.heartbeat_ticks,
            election_timeout_ticks=settings.election_timeout_ticks,
            handicap_ticks=settings.election_handicap_ticks,
            may_lose=settings.durability == "osBuffer",
            max_uncommitted_bytes=_MAX_QUEUED_BYTES,
        ),
        hard_state_file=hard_state_file,
        hard_state=hard_state,
        log=log,
        state=given.state,
        send=given.peers.send,
        on_membership=given.peers.connect,
        admit=given.levels.admit,
        on_removed=given.on_removed,
        on_fatal=given.on_fatal,
        clock=given.clock,
        rng=random.Random(),
        metrics=given.metrics,
        snapshots=snapshots,
        witness_file=witness_file,
        marks=marks,
        asks=given.returns,
    )


def _maintenance(
    given: MemberDependencies, driver: Driver, log: CommitLog, snapshots: Snapshots
) -> Maintenance:
    settings = given.settings
    return Maintenance(
        driver,
        log,
        given.state,
        snapshots,
        retention=_retention(settings),
        policy=SnapshotPolicy(
            size_bytes=settings.snapshot_bytes, entries=settings.snapshot_entries
        ),
        metrics=given.metrics,
        usage=given.usage,
        now_s=given.clock.monotonic_s,
    )
