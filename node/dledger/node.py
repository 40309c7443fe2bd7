"""One node's life: identity, founding or joining a group, servers, shutdown.

A node whose disk is empty is Unjoined: it answers Status and waits, until Admin.Bootstrap founds
a group with it, or a member that knows its UUID greets it. Everything real (clock, files, threads,
network) is built here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections.abc import Callable
from typing import Final

from dledger.broker.state import BrokerState
from dledger.config import Settings
from dledger.driver import Driver, DriverConfig
from dledger.engine import NodeEngine
from dledger.errors import DiskFull, MemberRemoved, NotJoined, StorageError
from dledger.founding import Founding
from dledger.http import HealthServer
from dledger.joining import Joining
from dledger.member_change import Changed, MemberChange, carry_out
from dledger.metrics import NodeMetrics
from dledger.node_sample import node_sample
from dledger.node_status import Facts, node_status
from dledger.raft.config import RaftConfig
from dledger.raft.messages import Message
from dledger.refetch import Refetcher
from dledger.retention import RetentionPolicy
from dledger.rpc.admin import AdminServicer
from dledger.rpc.export import CommittedLog
from dledger.rpc.gateway import Gateway, GatewayConfig
from dledger.rpc.hello import Hello, NodeAddress
from dledger.rpc.limits import MAX_CLIENT_FRAME_BYTES, MAX_PEER_FRAME_BYTES
from dledger.rpc.peers import Peers
from dledger.rpc.records import RecordsClient, RecordsServicer
from dledger.rpc.servers import Listener, Servers
from dledger.scrubber import Scrubber
from dledger.snapshots import Snapshots
from dledger.status import NodeStatus
from dledger.store.commit_log import CommitLog
from dledger.store.files import DiskUsage, RealFiles
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY, lock_directory
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.tls import key_and_chain
from dledger.types import HardState, Member, NodeId, Role
from dledger.upkeep import SnapshotPolicy, Upkeep
from dledger.version import VERSION

logger = logging.getLogger(__name__)

_HOUSEKEEPING_S: Final = 1.0
_PUBLISH_S: Final = 1.0
_STALLED_S: Final = 5.0
_RESERVE_BYTES: Final = 16 << 20
"""Free space that segments never take, so that hard state can always be saved."""
_MAX_QUEUED_BYTES: Final = 32 << 20
"""Commands that wait to become an entry, and entries that wait to be committed: each so many."""
_TRANSFER_DEADLINE_S: Final = 3.0
_CALLS_GRACE_S: Final = 1.0


class RealClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return time.time_ns() // 1_000_000


class Node:
    """A node process from start to stop. Implements `PeerEvents` and `AdminBackend`."""

    def __init__(self, settings: Settings, *, on_fatal: Callable[[BaseException], None]) -> None:
        """Open (or format) the data directory.

        Args:
            settings: Checked settings.
            on_fatal: Called once when storage fails while running, or when the group has removed
                this node (NodeRemoved); the process must end.

        Raises:
            StorageError: The directory is locked, foreign or corrupt.
        """
        self._settings = settings
        self._on_fatal = on_fatal
        self._clock = RealClock()
        self._files = RealFiles()
        self._directory = settings.data_dir
        self._lock = lock_directory(self._files, self._directory)
        self._driver: Driver | None = None
        self._log: CommitLog | None = None
        self._upkeep: Upkeep | None = None
        self._state = BrokerState()
        self._metrics = NodeMetrics(settings.group, settings.name)
        self._address = NodeAddress(
            host=settings.advertise_host,
            peer_host=settings.peer_host or settings.advertise_host,
            client_port=settings.client_port,
            client_tls_port=settings.client_tls_port,
            peer_port=settings.peer_port,
        )
        self._joining = Joining(
            self._files,
            self._directory,
            group=settings.group,
            name=settings.name,
            address=self._address,
            on_joined=self._start_driver,
        )
        self._peers = Peers(self.node_id, self)
        self.engine = NodeEngine(
            group=settings.group,
            name=settings.name,
            node_id=self.node_id,
            state=self._state,
            peers=self._peers,
            address=self._address,
        )
        self._stopping = False
        self._burial: asyncio.Task[None] | None = None
        self._usage = shutil.disk_usage(self._directory)
        self._tasks: list[asyncio.Task[None]] = []
        self._health = HealthServer(
            (settings.listen_host, settings.http_port),
            live=self._live_problem,
            ready=self._ready_problem,
            registry=self._metrics.registry,
        )
        self._gateway = Gateway(
            self.engine,
            GatewayConfig(
                auto_create=settings.auto_create_topics,
                default_queues=settings.default_queues,
                leader_follows_clients=settings.leader_follows_clients,
            ),
            metrics=self._metrics,
        )
        self._servers = Servers(self._listeners())

    @property
    def node_id(self) -> NodeId:
        """The UUID of this node's disk."""
        return self._joining.node_id

    def _listeners(self) -> list[Listener]:
        settings = self._settings
        listeners = [
            Listener(
                address=f"{settings.listen_host}:{settings.client_port}",
                handlers=self._gateway.handlers(),
                max_request_bytes=MAX_CLIENT_FRAME_BYTES,
            ),
            Listener(
                address=f"{settings.listen_host}:{settings.peer_port}",
                handlers=[
                    self._peers.handlers(),
                    AdminServicer(self).handler(),
                    RecordsServicer(self._open_records).handler(),
                    *self._gateway.handlers(peer_port=True),
                ],
                max_request_bytes=MAX_PEER_FRAME_BYTES,
            ),
        ]
        if settings.client_tls_port:
            pair = key_and_chain(
                settings.tls_cert_file,
                settings.tls_key_file,
                name=settings.name,
                host=settings.advertise_host,
            )
            listeners.append(
                Listener(
                    address=f"{settings.listen_host}:{settings.client_tls_port}",
                    handlers=self._gateway.handlers(tls=True),
                    max_request_bytes=MAX_CLIENT_FRAME_BYTES,
                    tls=pair,
                )
            )
        return listeners

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the log if there is one, then serve.

        Raises:
            StorageError: The log is corrupt or foreign; this node must not vote.
        """
        if self._joining.group_id:
            await self._start_driver()
        else:
            logger.info("node %s is Unjoined: waiting for Bootstrap", self.node_id)
        loop = asyncio.get_running_loop()
        duties = (self._keep_house(), self._keep_log_short(), self._show())
        self._tasks += [loop.create_task(duty) for duty in duties]
        self._health.start()
        self._gateway.start()
        await self._servers.start()

    async def stop(self) -> None:
        """Hand leadership over, then close the ports, then the log."""
        self._stopping = True
        await self._hand_over()
        self._gateway.drain()
        await self._servers.stop(_CALLS_GRACE_S)
        await self._gateway.close()
        await self._peers.close()
        for task in self._tasks:
            task.cancel()
        if self._driver is not None:
            await self._driver.stop()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
        self._lock.close()
        self._health.close()

    async def _hand_over(self) -> None:
        driver = self._driver
        if driver is None or not driver.is_running or driver.core.role is not Role.LEADER:
            return
        if len(driver.core.membership.voters) == 1:
            return
        chosen = driver.transfer_leadership(None)
        logger.info("shutting down: handing leadership to %s", chosen)
        deadline_s = self._clock.monotonic_s() + _TRANSFER_DEADLINE_S
        while driver.core.role is Role.LEADER and self._clock.monotonic_s() < deadline_s:
            await driver.wait_change(0.1)

    async def _start_driver(self) -> None:
        """Open the log of the joined group and run Raft on it."""
        hard_state_file = HardStateFile(self._files, self._directory)
        hard_state = await asyncio.to_thread(hard_state_file.load)
        log = await asyncio.to_thread(self._open_log)
        founding = self._joining.founding_of(log.last_index)
        if founding is not None:
            hard_state = await asyncio.to_thread(_found, log, hard_state_file, founding)
        snapshots = Snapshots(
            SnapshotFiles(
                self._files, self._directory / SNAPSHOT_DIRECTORY, reserve_bytes=_RESERVE_BYTES
            ),
            group_id=self._joining.group_id,
            log=log,
            state=self._state,
        )
        await asyncio.to_thread(snapshots.load)
        self._log = log
        self._driver = self._build_driver(hard_state_file, hard_state, log, snapshots)
        self._upkeep = self._build_upkeep(self._driver, log, snapshots)
        self.engine.attach(self._driver)
        self._driver.start()
        if founding is not None:
            self._driver.campaign()
        self._look_after(log, self._driver)

    def _look_after(self, log: CommitLog, driver: Driver) -> None:
        """Look for rot, and repair what is found from peers, as long as the node runs."""
        source = RecordsClient(self._peers, self._joining.group_id)
        refetcher = Refetcher(
            log, source, driver, now_s=self._clock.monotonic_s, metrics=self._metrics
        )
        work = [refetcher.run()]
        if self._settings.scrub_bytes_per_s:
            scrubber = Scrubber(
                log,
                bytes_per_s=self._settings.scrub_bytes_per_s,
                on_failed=driver.disk_failed,
                metrics=self._metrics,
            )
            work.append(scrubber.run())
        self._tasks += [asyncio.get_running_loop().create_task(each) for each in work]

    def _build_upkeep(self, driver: Driver, log: CommitLog, snapshots: Snapshots) -> Upkeep:
        settings = self._settings
        return Upkeep(
            driver,
            log,
            self._state,
            snapshots,
            retention=RetentionPolicy(
                hours=settings.retention_hours,
                disk_watermark_percent=settings.disk_watermark_percent,
            ),
            policy=SnapshotPolicy(
                size_bytes=settings.snapshot_bytes, entries=settings.snapshot_entries
            ),
        )

    def _open_log(self) -> CommitLog:
        return CommitLog.open(
            self._files,
            self._directory / LOG_DIRECTORY,
            identity=self._joining.identity,
            segment_bytes=self._settings.segment_bytes,
            reserve_bytes=_RESERVE_BYTES,
            durability=self._settings.durability,
        )

    def _build_driver(
        self,
        hard_state_file: HardStateFile,
        hard_state: HardState,
        log: CommitLog,
        snapshots: Snapshots,
    ) -> Driver:
        settings = self._settings
        return Driver(
            config=DriverConfig(
                tick_s=settings.tick_ms / 1000,
                max_queued_bytes=_MAX_QUEUED_BYTES,
                min_free_bytes=settings.segment_bytes + _RESERVE_BYTES,
            ),
            raft=RaftConfig(
                id=self.node_id,
                group_id=self._joining.group_id,
                heartbeat_ticks=settings.heartbeat_ticks,
                election_timeout_ticks=settings.election_timeout_ticks,
                handicap_ticks=settings.election_handicap_ticks,
                max_uncommitted_bytes=_MAX_QUEUED_BYTES,
            ),
            hard_state_file=hard_state_file,
            hard_state=hard_state,
            log=log,
            state=self._state,
            send=self._peers.send,
            on_membership=self._peers.connect,
            on_removed=self.removed,
            on_fatal=self._on_fatal,
            clock=self._clock,
            rng=random.Random(),
            metrics=self._metrics,
            snapshots=snapshots,
        )

    # -- founding and joining -------------------------------------------------------------------

    async def bootstrap(self, group_id: str, members: tuple[Member, ...]) -> None:
        """Found a group. Raises AlreadyBootstrapped, InvalidArgument."""
        await self._joining.bootstrap(group_id, members)

    def hello_to(self, member: Member) -> Hello:
        """Return the greeting for a stream to *member*."""
        return self._joining.hello_to(member)

    async def hello_from(self, hello: Hello) -> None:
        """Accept a peer's greeting, which may make this node join its group; or raise."""
        if self._stopping:
            raise NotJoined
        await self._joining.accept(hello, lambda: self._driver.core if self._driver else None)

    def check_sender(self, sender: NodeId) -> None:
        """Refuse what a member that was removed since its greeting says. Raises MemberRemoved."""
        index = self._driver.core.removal_index(sender) if self._driver is not None else None
        if index is not None:
            raise MemberRemoved(sender, group_id=self._joining.group_id, index=index)

    def removed(self, index: int) -> None:
        """Take note that committed entry *index* removed this node: it stops for good."""
        if self._burial is None and not self._stopping:
            self._burial = asyncio.get_running_loop().create_task(self._bury(index))

    async def _bury(self, index: int) -> None:
        try:
            reason: StorageError | DiskFull = await self._joining.bury(index, self._clock.unix_ms())
        except (DiskFull, StorageError) as error:
            reason = error
        logger.critical("removed by entry %d, this node stops: %s", index, reason)
        self._on_fatal(reason)

    def receive(self, message: Message) -> None:
        """Take a peer's message."""
        if self._driver is not None:
            self._driver.receive(message)

    def peer_disconnected(self, peer: NodeId) -> None:
        """Pass on that a peer's stream broke."""
        if self._driver is not None and not self._stopping:
            self._driver.peer_disconnected(peer)

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Hand leadership over. Raises NotJoined, NotLeader, InvalidArgument."""
        if self._driver is None:
            raise NotJoined
        return self._driver.transfer_leadership(target)

    async def snapshot(self) -> int:
        """Take a snapshot of the state; return its last index. Raises NotJoined, DiskFull."""
        if self._upkeep is None:
            raise NotJoined
        return await self._upkeep.take_snapshot()

    async def change_members(self, change: MemberChange, *, timeout_s: float) -> Changed:
        """Add learners and remove members; see `member_change.carry_out`. Raises NotJoined too."""
        if self._driver is None:
            raise NotJoined
        return await carry_out(self._driver, change, timeout_s=timeout_s)

    def _open_records(self) -> tuple[str, CommitLog]:
        """Return the group's id and the log, for peers that lack records. Raises NotJoined."""
        if self._log is None:
            raise NotJoined
        return self._joining.group_id, self._log

    def committed_log(self) -> CommittedLog:
        """Return what is committed and on this disk. Raises NotJoined."""
        if self._driver is None or self._log is None:
            raise NotJoined
        return CommittedLog(
            group=self._settings.group,
            group_id=self._joining.group_id,
            log=self._log,
            last_index=min(self._driver.core.commit_index, self._log.synced_index),
        )

    # -- how it is ------------------------------------------------------------------------------

    def status(self) -> NodeStatus:
        """Return this node's view of itself and its group."""
        facts = Facts(
            node_id=self.node_id,
            name=self._settings.name,
            group=self._settings.group,
            group_id=self._joining.group_id,
            not_ready_reason=self._ready_problem(),
            version=VERSION,
            storage_used_bytes=self._usage.used,
            storage_capacity_bytes=self._usage.total,
            recovered_to=self._joining.identity.recovered_to,
        )
        return node_status(facts, self._driver, self._log, self._peers.connected)

    def _live_problem(self) -> str:
        """Say why the process should be restarted; called from the health thread."""
        driver = self._driver
        if driver is None or self._stopping:
            return ""
        stalled_s = self._clock.monotonic_s() - driver.last_tick_s
        return f"the event loop has not run for {stalled_s:.1f} s" if stalled_s > _STALLED_S else ""

    def _ready_problem(self) -> str:
        """Say why this node should get no clients; called from the health thread too."""
        if self._stopping:
            return "shutting down"
        return self.engine.not_ready_reason()

    async def _keep_house(self) -> None:
        """Every second: watch the disk, make the next segment ready."""
        while True:
            self._usage = await asyncio.to_thread(shutil.disk_usage, self._directory)
            if self._driver is not None and self._log is not None:
                self._driver.set_free_bytes(self._usage.free)
                await self._prepare(self._driver, self._log)
            await asyncio.sleep(_HOUSEKEEPING_S)

    async def _prepare(self, driver: Driver, log: CommitLog) -> None:
        try:
            await asyncio.to_thread(log.prepare)
        except StorageError as error:
            driver.disk_failed(error)

    async def _keep_log_short(self) -> None:
        """Every second: take a snapshot and drop old segments, if they are due."""
        while True:
            if self._upkeep is not None:
                usage = self._usage  # of what is ours to use, as `df` counts
                await self._upkeep.run(DiskUsage(usage.used + usage.free, usage.free))
            await asyncio.sleep(_HOUSEKEEPING_S)

    async def _show(self) -> None:
        """Publish gauges every second, also while the disk keeps housekeeping waiting."""
        while True:
            status, load, free = self.status(), self._gateway.load(), self._usage.free
            sample = node_sample(status, self._driver, self._log, load, free_bytes=free)
            self._metrics.publish(sample)
            await asyncio.sleep(_PUBLISH_S)


def _found(log: CommitLog, hard_state_file: HardStateFile, founding: Founding) -> HardState:
    """Write the founding entry behind what the log holds, and the term it belongs to."""
    entry = founding.entry(last_index=log.last_index, last_term=log.term(log.last_index))
    hard_state = HardState(term=entry.term)
    hard_state_file.save(hard_state)
    log.append([entry])
    log.sync()
    return hard_state
