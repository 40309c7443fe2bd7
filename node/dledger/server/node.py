"""One node's life cycle: identity, bootstrapping or joining a group, servers, shutdown.

A node with an empty disk is Unjoined: it answers Status and waits until Admin.Bootstrap creates a
group with it, or until a member that knows its UUID opens a stream to it. Everything real (clock,
files, threads, network) is built here. Called by the ``dledger node`` command.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from dledger.broker.state import BrokerState
from dledger.calls.service import handlers_of
from dledger.common.features import FEATURES, Features, MemberLevels
from dledger.common.http import HealthServer
from dledger.common.metrics import NodeMetrics
from dledger.common.status import NodeStatus
from dledger.common.version import VERSION
from dledger.common.watchdog import Watchdog
from dledger.errors import (
    DiskFull,
    DledgerError,
    MemberRemoved,
    NewerCommand,
    NotJoined,
    NotMember,
    StorageError,
    WrongGroup,
)
from dledger.files.files import DiskUsage, RealFiles
from dledger.link.follower import RelayLinks
from dledger.link.leader import RelayPort
from dledger.peers.handshake import ClientAddress, Handshake, PeerAddress
from dledger.peers.introductions import Introductions
from dledger.peers.peers import Peers
from dledger.peers.records import RecordsServicer
from dledger.peers.survey import survey
from dledger.raft.messages import Message
from dledger.replica import force_group
from dledger.replica.compacting import Claim
from dledger.replica.compactor import Compacted
from dledger.replica.driver import Driver
from dledger.replica.firing import Firing
from dledger.replica.force_group import Force, Forced, check_named
from dledger.replica.log_clock import RealClock
from dledger.replica.member_change import Changed, MemberChange, carry_out
from dledger.requests.config import RequestConfig
from dledger.rpc.peer_tls import PeerTls
from dledger.server.bootstrap import Bootstrap
from dledger.server.client_tasks import ClientTasks
from dledger.server.config import Settings
from dledger.server.door_batches import DoorBatches
from dledger.server.engine import NodeEngine
from dledger.server.epochs import Epochs
from dledger.server.loop_profile import LoopProfile
from dledger.server.node_report import (
    Facts,
    dead_letters_in,
    fifo_waiting_in,
    load_of,
    node_sample,
    node_status,
)
from dledger.server.peer_front import PeerFront
from dledger.server.ports import client_certificate, listeners
from dledger.server.replica import MemberDependencies, Replica
from dledger.server.servers import Doors, Servers
from dledger.server.wiring import services_of, wire
from dledger.services.admin import AdminServicer
from dledger.services.compaction import CompactionServicer
from dledger.services.dead_letter_admin import DeadLetterAdminServicer
from dledger.services.export import CommittedLog
from dledger.services.group_admin import GroupAdminServicer
from dledger.services.held_admin import HeldAdminServicer
from dledger.services.topic_admin import TopicAdminServicer
from dledger.services.transaction_admin import TransactionAdminServicer
from dledger.store.commit_log import CommitLog
from dledger.store.identity import lock_directory
from dledger.types import Member, NodeId, Role

logger = logging.getLogger(__name__)

_HOUSEKEEPING_S: Final = 1.0
_LEAST_REST_S: Final = 0.05
_PUBLISH_S: Final = 1.0
_STALLED_S: Final = 5.0
_TRANSFER_DEADLINE_S: Final = 3.0
_CALLS_GRACE_S: Final = 1.0
_DRAIN_LOOK_S: Final = 0.1


class Node:
    """A node process from start to stop. Implements `PeerEvents` and `AdminBackend`."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_fatal: Callable[[BaseException], None],
        features: Features = FEATURES,
        state: BrokerState | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Open (or format) the data directory.

        Args:
            settings: Checked settings.
            on_fatal: Called once when storage fails while running, when the group has removed
                this node (NodeRemoved), or when this version is too old for it (NewerCommand,
                NewerFormat); the process must end.
            features: The features that this version supports.
            state: An empty state with the same features; one of this version by default.
            watchdog: The process's watchdog, which the caller starts; None for none.

        Raises:
            StorageError: The directory is locked, belongs to another node, or is corrupt.
        """
        self._settings = settings
        self._on_fatal = on_fatal
        self._watchdog = watchdog or Watchdog()
        self._clock = RealClock()
        self._files = RealFiles()
        self._directory = settings.data_dir
        self._lock = lock_directory(self._files, self._directory)
        self._replica: Replica | None = None
        self._state = state if state is not None else BrokerState(features=features)
        self._metrics = NodeMetrics(settings.group, settings.name)
        self._peer_tls = (
            PeerTls(Path(settings.peer_tls_dir), settings.name) if settings.peer_tls_dir else None
        )
        clients = ClientAddress(
            host=settings.advertise_host,
            port=settings.client_port,
            tls_port=settings.client_tls_port,
        )
        self._joining = Bootstrap(
            self._files,
            self._directory,
            group=settings.group,
            name=settings.name,
            address=PeerAddress(
                host=settings.peer_host or settings.advertise_host, port=settings.peer_port
            ),
            told_group=settings.group_id,
            feature_level=features.level,
            on_joined=self._start_replica,
            on_mended=lambda _: self._metrics.mended_state_files.inc(),
        )
        self._epochs = Epochs(
            self.node_id,
            group_id=lambda: self._joining.group_id,
            core=lambda: self._driver.core if self._driver else None,
            removed=self._end,
        )
        self._levels = MemberLevels(self.node_id, features)
        self._peers = Peers(self.node_id, self, self._levels, clients=clients, tls=self._peer_tls)
        self._introductions = Introductions(self._peers.ask, lambda: self._joining.group_id)
        self.engine = NodeEngine(
            group=settings.group,
            name=settings.name,
            node_id=self.node_id,
            state=self._state,
            peers=self._peers,
            clients=clients,
            told_group=settings.group_id,
        )
        self._stopping = self._closing = False
        self._burial: asyncio.Task[None] | None = None
        self._usage = _usage(self._directory)
        self._tasks: list[asyncio.Task[None]] = []
        self._loop_turns = LoopProfile(self._metrics.loop_turn_seconds.observe)
        self._health = HealthServer(
            (settings.listen_host, settings.http_port),
            live=self._live_problem,
            ready=self._ready_problem,
            registry=self._metrics.registry,
        )
        self._parts = wire(
            self.engine,
            RequestConfig(
                auto_create_topics=settings.auto_create_topics,
                default_queues=settings.default_queues,
                group_retention_hours=settings.group_retention_hours,
                retention_hours=settings.retention_hours,
                leader_follows_clients=settings.leader_follows_clients,
            ),
            metrics=self._metrics,
            peer_tls=self._peer_tls,
            links=RelayLinks(self._peers.replication_address, self._peer_tls),
            ask=self._peers.ask,
        )
        self._client_tasks = ClientTasks(self._parts)
        self._firing = Firing(self.engine, self._metrics)
        self._front = (
            PeerFront(settings.listen_host, settings.peer_port)
            if self._peer_tls and self._peer_tls.takes_plain
            else None
        )
        self._admin = AdminServicer(self)
        services = self._peer_services()
        self._client_certificate = client_certificate(settings)
        ports = listeners(
            settings,
            self._parts,
            services,
            peer_tls=self._peer_tls,
            front=self._front,
            certificate=self._client_certificate,
        )
        doors = Doors(
            processes=settings.door_processes,
            batches=DoorBatches(self._parts),
            on_restart=self._metrics.door_restarts.inc,
        )
        self._servers = Servers(ports, doors if settings.door_processes else None)
        self._peers.replication.bind(settings.listen_host, settings.replication_port)

    @property
    def node_id(self) -> NodeId:
        """The UUID of this node's disk."""
        return self._joining.node_id

    def _peer_services(self) -> list[grpc.GenericRpcHandler]:
        return [
            self._peers.handlers(),
            RelayPort(
                handlers_of(services_of(self._parts, peer_port=True)), self._peers.replication
            ).handler(),
            self._admin.handler(),
            TopicAdminServicer(self.engine, self._parts.context.resolver, self._metrics).handler(),
            GroupAdminServicer(self.engine, self._parts.messaging.clients.is_alive).handler(),
            DeadLetterAdminServicer(self.engine).handler(),
            TransactionAdminServicer(self.engine).handler(),
            HeldAdminServicer(self.engine).handler(),
            CompactionServicer(self).handler(),
            RecordsServicer(self._open_records).handler(),
        ]

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the log if there is one, then serve.

        Raises:
            StorageError: The log is corrupt or another node's; this node must not vote.
        """
        if self._joining.group_id:
            await self._start_replica(returns=True)
        else:
            logger.info("node %s: %s", self.node_id, self.engine.not_ready_reason())
        loop = asyncio.get_running_loop()
        duties = (
            self._check_disk(),
            self._keep_log_short(),
            self._publish_metrics(),
            self._firing.run(),
        )
        self._tasks += [loop.create_task(duty) for duty in duties]
        if self._peer_tls is not None:
            self._tasks.append(loop.create_task(self._keep_fresh(self._peer_tls)))
        self._loop_turns.start()
        self._health.start()
        self._client_tasks.start()
        await self._peers.replication.start()
        await self._servers.start()
        if self._front is not None:
            self._front.start()

    async def stop(self, *, drain: bool = False) -> None:
        """Transfer leadership, then close the ports, then the log.

        With *drain*, go on serving for `drain_s` seconds before the ports close.
        """
        self._stopping = True
        await self._hand_over()
        if drain:
            await self._drain()
        self._closing = True
        self._client_tasks.drain()
        self._admin.close()
        await self._servers.stop(_CALLS_GRACE_S)
        if self._front is not None:
            self._front.close()
        await self._client_tasks.close()
        await self._peers.close()
        self._loop_turns.stop()
        for task in self._tasks:
            task.cancel()
        if self._replica is not None:
            await self._replica.stop()
        self._lock.close()
        self._health.close()

    async def _hand_over(self) -> None:
        driver = self._driver
        if driver is None or not driver.is_running or driver.core.transfer_candidate() is None:
            return
        chosen = driver.transfer_leadership(None)
        logger.info("shutting down: transferring leadership to %s", chosen)
        deadline_s = self._clock.monotonic_s() + _TRANSFER_DEADLINE_S
        while driver.core.role is Role.LEADER and self._clock.monotonic_s() < deadline_s:
            await driver.wait_change(0.1)

    async def _drain(self) -> None:
        """Serve as a follower until clients are led elsewhere; what is led here again goes on."""
        clock = self._clock
        deadline_s = clock.monotonic_s() + self._settings.drain_s
        while self._driver is not None and (left_s := deadline_s - clock.monotonic_s()) > 0:
            await self._driver.wait_change(min(left_s, _DRAIN_LOOK_S))
            if self._driver.core.role is Role.LEADER:
                await self._hand_over()

    async def _start_replica(self, *, returns: bool = False) -> None:
        """Open the log of the joined group and run Raft on it.

        *returns*: the disk was a member's before this start.
        """
        given = MemberDependencies(
            settings=self._settings,
            files=self._files,
            directory=self._directory,
            joining=self._joining,
            peers=self._peers,
            state=self._state,
            returns=returns,
            metrics=self._metrics,
            clock=self._clock,
            levels=self._levels,
            usage=self._look_at_disk,
            watchdog=self._watchdog,
            on_fatal=self._on_fatal,
            on_removed=self._end,
        )
        replica = self._replica = await Replica.open(given)
        self.engine.attach(replica.driver)
        replica.start()
        self._tasks += map(asyncio.get_running_loop().create_task, replica.repairs())

    @property
    def _driver(self) -> Driver | None:
        return self._replica.driver if self._replica is not None else None

    @property
    def _log(self) -> CommitLog | None:
        return self._replica.log if self._replica is not None else None

    def take_over(self, settings: Settings) -> None:
        """Go by settings that changed while this node runs; see `live_settings.LIVE`."""
        self._settings = settings
        resolver = self._parts.context.resolver
        resolver.auto_creates = settings.auto_create_topics
        resolver.group_retention_hours = settings.group_retention_hours
        resolver.retention_hours = settings.retention_hours
        if self._replica is not None:
            self._replica.take_over(settings)

    # -- bootstrap and joining ------------------------------------------------------------------

    async def bootstrap(self, group_id: str, members: tuple[Member, ...]) -> None:
        """Bootstrap a group. Raises AlreadyBootstrapped, InvalidArgument."""
        await self._joining.bootstrap(group_id, members)

    def handshake_to(self, member: Member) -> Handshake:
        """Return the handshake for a stream to *member*."""
        return self._joining.handshake_to(member, self._epochs.known())

    async def handshake_from(self, handshake: Handshake) -> Member | None:
        """Accept a peer's handshake, by which this node may join its group; or raise.

        Returns the sender as a member, according to this node's log or to a member in that log;
        None while this node knows no member, or joins and nobody that it knows answers for it.
        """
        if self._closing:
            raise NotJoined
        self._epochs.check(handshake)
        try:
            return await self._accepted(handshake)
        except DledgerError as error:
            raise self._epochs.refusal(handshake, error) from error

    async def _accepted(self, handshake: Handshake) -> Member | None:
        await self._joining.accept(handshake, lambda: self._driver.core if self._driver else None)
        core = self._driver.core if self._driver else None
        if core is None or not core.membership.voters:
            return None
        sender = core.known_member(handshake.sender_id)
        if sender is None:
            others = [one.id for one in core.membership.members if one.id != self.node_id]
            sender = await self._introductions.find(handshake.sender_id, others)
            if sender is None:
                if core.is_joining and core.hears(handshake.sender_id):
                    return None
                group_id = self._joining.group_id
                raise NotMember(handshake.sender_id, name=handshake.sender_name, group_id=group_id)
            logger.info("learned of a new member: %s", sender)
            core.introduce(sender.id)
        return sender

    def check_sender(self, sender: NodeId) -> None:
        """Refuse messages of a former member. Raises MemberRemoved, NotMember."""
        core, group_id = self._driver.core if self._driver else None, self._joining.group_id
        if core is None or core.hears(sender):
            return
        index = core.removal_index(sender)
        if index is not None:
            epoch, _ = self._epochs.known()
            raise MemberRemoved(sender, group_id=group_id, index=index, epoch=epoch)
        raise NotMember(sender, name=sender, group_id=group_id)

    def left_out(self, epoch: int, index: int) -> None:
        """Stop this node permanently if the forced group of *epoch* left it out."""
        self._epochs.learn(epoch, index)

    def removed(self, index: int, epoch: int) -> None:
        """Stop this node permanently: a member says that committed entry *index* removed it."""
        if self._epochs.is_binding(epoch):
            self._end(index)
        else:
            logger.error("a node of epoch %d, which was left out, says we were removed", epoch)

    def _end(self, index: int) -> None:
        """Stop this node permanently: committed entry *index* removed it."""
        if self._burial is None and not self._closing:
            self._burial = asyncio.get_running_loop().create_task(self._write_tombstone(index))

    async def _write_tombstone(self, index: int) -> None:
        try:
            reason: StorageError | DiskFull = await self._joining.bury(index, self._clock.unix_ms())
        except (DiskFull, StorageError) as error:
            reason = error
        logger.critical("removed by entry %d; stopping this node: %s", index, reason)
        self._on_fatal(reason)

    def receive(self, message: Message) -> None:
        """Handle a peer's message."""
        if self._driver is not None:
            self._driver.receive(message)

    def outdated(self, error: NewerCommand) -> None:
        """Stop: a peer sent an entry that this version does not know."""
        if self._driver is not None:
            self._driver.outdated(error)

    def peer_disconnected(self, peer: NodeId) -> None:
        """Report to the driver that a peer's stream broke."""
        if self._driver is not None and not self._closing:
            self._driver.peer_disconnected(peer)

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Transfer leadership. Raises NotJoined, NotLeader, InvalidArgument."""
        if self._driver is None:
            raise NotJoined
        return self._driver.transfer_leadership(target)

    async def snapshot(self) -> int:
        """Take a snapshot of the state; return its last index. Raises NotJoined, DiskFull."""
        if self._replica is None:
            raise NotJoined
        return await self._replica.maintenance.take_snapshot()

    async def change_members(self, change: MemberChange, *, timeout_s: float) -> Changed:
        """Add learners and remove members; see `member_change.carry_out`. Raises NotJoined too."""
        if self._driver is None:
            raise NotJoined
        return await carry_out(self._driver, change, timeout_s=timeout_s)

    async def force_new_group(self, force: Force, *, timeout_s: float) -> Forced:
        """Make this node its group; see `force_group.carry_out`. Raises Refused, Unavailable."""
        check_named(force, group_id=self._joining.group_id, node_id=self.node_id)
        if self._driver is None:
            raise NotJoined
        ask = partial(survey, group_id=force.group_id, ask=self._peers.ask)
        return await force_group.carry_out(self._driver, force, survey=ask, timeout_s=timeout_s)

    async def compact(self, group_id: str, claim: Claim, *, timeout_s: float) -> Compacted:
        """Let go of what a claim of that group says; see `Compactor.compact`. Raises NotJoined."""
        if self._replica is None:
            raise NotJoined
        if group_id != self._joining.group_id:
            raise WrongGroup(ours=self._joining.group_id, theirs=group_id)
        return await self._replica.maintenance.compactor.compact(claim, timeout_s=timeout_s)

    def _open_records(self) -> tuple[str, CommitLog]:
        """Return the group's id and the log, for peers that lack records. Raises NotJoined."""
        if self._log is None:
            raise NotJoined
        return self._joining.group_id, self._log

    def committed_log(self) -> CommittedLog:
        """Return the entries that are committed and on this disk. Raises NotJoined."""
        if self._replica is None:
            raise NotJoined
        log, core, state = self._replica.log, self._replica.driver.core, self.engine.state
        return CommittedLog(
            group=self._settings.group,
            group_id=self._joining.group_id,
            log=log,
            last_index=min(core.commit_index, log.synced_index),
            kept_from=max(state.first_index, log.first_index),
            applied_index=max(self._replica.driver.applied_index, state.applied_index),
            topics=state.topics,
            snapshot=self._replica.snapshots.pieces,
        )

    # -- status and health ----------------------------------------------------------------------

    def status(self) -> NodeStatus:
        """Return this node's view of itself and its group."""
        facts = Facts(
            node_id=self.node_id,
            name=self._settings.name,
            group=self._settings.group,
            group_id=self._joining.group_id,
            not_ready_reason=self._ready_problem(),
            version=VERSION,
            storage_used_bytes=self._usage.total_bytes - self._usage.free_bytes,
            storage_capacity_bytes=self._usage.total_bytes,
            recovered_to=self._joining.identity.recovered_to,
            feature_level=self._levels.own,
            told_group_id=self._settings.group_id,
            client_certificate=self._client_certificate,
            held_waiting=self.engine.state.held.waiting,
            topics_full=self.engine.state.topics.full or self.engine.state.held.full,
        )
        return node_status(facts, self._driver, self._log, self._peers)

    async def wait_change(self, timeout_s: float) -> None:
        """Return when role, leader or members change, or after *timeout_s*."""
        if self._driver is None:
            await asyncio.sleep(timeout_s)
        else:
            await self._driver.wait_change(timeout_s)

    def _live_problem(self) -> str:
        """Return why the process should be restarted; empty: no reason. On the health thread."""
        driver = self._driver
        if driver is None or self._stopping or self._watchdog.is_patient:
            return ""
        stalled_s = self._clock.monotonic_s() - driver.last_tick_s
        return f"the event loop has not run for {stalled_s:.1f} s" if stalled_s > _STALLED_S else ""

    def _ready_problem(self) -> str:
        """Return why this node should get no clients; empty: no reason. On the health thread."""
        if self._stopping:
            return "shutting down"
        return self.engine.not_ready_reason() or self._servers.problem

    async def _check_disk(self) -> None:
        """Every second: check the disk, and prepare the next segment."""
        while True:
            if self._replica is not None:
                await self._replica.maintenance.measure()
                await self._replica.prepare()
            else:
                await asyncio.to_thread(self._look_at_disk)
            await asyncio.sleep(_HOUSEKEEPING_S)

    def _look_at_disk(self) -> DiskUsage:
        """Return how full the disk is. Blocks."""
        self._usage = _usage(self._directory)
        return self._usage

    async def _keep_log_short(self) -> None:
        """Take a snapshot and drop old segments, if due: every second, and when room is wanted."""
        loop = asyncio.get_running_loop()
        while True:
            next_s = loop.time() + _HOUSEKEEPING_S
            if self._replica is not None:
                await self._replica.maintenance.run()
            while self._replica is not None and await self._room_wanted(next_s):
                await self._replica.maintenance.run(by_need=True)
            await asyncio.sleep(max(0.0, next_s - loop.time()))

    async def _room_wanted(self, until_s: float) -> bool:
        """Return whether room is wanted on the disk before *until_s*; never at once."""
        await asyncio.sleep(_LEAST_REST_S)
        if self._replica is None or asyncio.get_running_loop().time() >= until_s:
            return False
        wanted = self._replica.driver.room.wanted
        try:
            async with asyncio.timeout_at(until_s):
                await wanted.wait()
        except TimeoutError:
            return False
        wanted.clear()
        return True

    async def _publish_metrics(self) -> None:
        """Publish gauges every second, even while maintenance waits for the disk."""
        while True:
            if self._client_certificate is not None:
                self._client_certificate.refresh()
            status, load, free = self.status(), load_of(self._parts), self._usage.free_bytes
            sample = node_sample(
                status,
                self._driver,
                self._log,
                load,
                free_bytes=free,
                remembered_ids=self.engine.state.topics.remembered_ids,
                replayed_lanes=self.engine.state.topics.replayed_lanes,
                filter_kept_bytes=self.engine.state.groups.kept_bytes,
                held=self.engine.state.held,
                log_ms=self.engine.state.now_ms,
                overdue_ms=self._firing.overdue_ms,
                dead_letters=dead_letters_in(self.engine.state) if self.engine.is_leader() else {},
                fifo_waiting=fifo_waiting_in(self.engine.state) if self.engine.is_leader() else {},
                peer_tls=self._peer_tls,
                client_certificate=self._client_certificate,
                doors=self._servers.serving_doors,
            )
            self._metrics.publish(sample)
            await asyncio.sleep(_PUBLISH_S)

    async def _keep_fresh(self, tls: PeerTls) -> None:
        """Every second: take new certificates, and refuse plain text once that is asked for."""
        took_plain = tls.takes_plain
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            await asyncio.to_thread(tls.refresh)
            if took_plain and not tls.takes_plain:
                took_plain = False
                logger.info("peers and Admin speak TLS alone from now on")
                if self._front is not None:
                    self._front.refuse_plain()
                self._peers.refuse_plain()


def _usage(directory: Path) -> DiskUsage:
    """Return how full a file system is: of what is ours to use, as `df` counts."""
    found = shutil.disk_usage(directory)
    return DiskUsage(found.used + found.free, found.free)
