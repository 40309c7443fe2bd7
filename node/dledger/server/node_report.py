"""What a node reports: its status and the sample that scrapes see. Pure translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dledger.broker.deduplication import MAX_IDS
from dledger.broker.held_messages import HeldMessages
from dledger.broker.state import BrokerState
from dledger.checks.names import DEAD_LETTERS
from dledger.common.features import MemberLevels
from dledger.common.metrics import Sample
from dledger.common.reports import Mark
from dledger.common.status import CAUGHT_UP_ENTRIES, MemberStatus, NodeStatus
from dledger.raft import quorum
from dledger.raft.core import Raft
from dledger.replica.driver import Driver
from dledger.rpc.peer_tls import PeerTls
from dledger.server.client_certificate import ClientCertificate, Shown
from dledger.server.wiring import ClientParts
from dledger.store.commit_log import CommitLog
from dledger.types import Member, NodeId, Role

_GROUPS_SHOWN: Final = 64
"""Consumer groups whose dead letters are series of their own: those with most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node knows about itself, whether or not it has joined a group."""

    node_id: NodeId
    name: str
    group: str
    group_id: str
    not_ready_reason: str
    version: str
    storage_used_bytes: int
    storage_capacity_bytes: int
    recovered_to: int = 0
    feature_level: int = 0
    told_group_id: str = ""
    client_certificate: ClientCertificate | None = None
    held_waiting: int = 0
    topics_full: str = ""
    """Why messages of topics that keep theirs longer, or those of a later time, are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that clients put on one node.

    Attributes:
        held_request_bytes: The room that requests in progress, or held through an election, take.
        waiting_polls: Consumers' long polls waiting for a message.
        telemetry_streams: Open Telemetry streams, one for each connected client.
    """

    held_request_bytes: int
    waiting_polls: int
    telemetry_streams: int


def load_of(parts: ClientParts) -> Load:
    """Return the current load."""
    context = parts.context
    rooms = (context.admission, context.peer_intake, context.produce_intake)
    return Load(
        held_request_bytes=sum(room.taken for room in rooms),
        waiting_polls=len(context.queue_followers) + len(parts.turns) + len(parts.messaging.room),
        telemetry_streams=len(parts.messaging.telemetry),
    )


class PeerView(Protocol):
    """What is known about the other members outside Raft; see `peers.peers.Peers`."""

    @property
    def levels(self) -> MemberLevels:
        """Their feature levels."""

    def connected(self, node_id: NodeId) -> bool:
        """Whether the link to a member is up."""


def node_status(
    facts: Facts,
    driver: Driver | None,
    log: CommitLog | None,
    peers: PeerView,
) -> NodeStatus:
    """Return the status of a node; positions are 0 while it is Unjoined."""
    core = driver.core if driver else None
    refused = driver.writes_refused if driver else None
    apart_ms = (driver.dating.apart_ms or 0) if driver else 0
    shown = _file_shown(facts.client_certificate)
    return NodeStatus(
        node_id=facts.node_id,
        name=facts.name,
        group=facts.group,
        group_id=facts.group_id,
        role=_own_role(core) if core else "unjoined",
        term=core.term if core else 0,
        leader_id=(core.leader or "") if core else "",
        commit_index=core.commit_index if core else 0,
        applied_index=driver.applied_index if driver else 0,
        last_index=core.last_index if core else 0,
        last_term=core.last_term if core else 0,
        synced_index=log.synced_index if log else 0,
        ready=not facts.not_ready_reason,
        not_ready_reason=facts.not_ready_reason,
        members=_members(driver, facts.node_id, peers) if driver else (),
        last_failover=driver.last_failover if driver else None,
        version=facts.version,
        storage_used_bytes=facts.storage_used_bytes,
        storage_capacity_bytes=facts.storage_capacity_bytes,
        writes_refused_reason=str(refused) if refused else facts.topics_full,
        recovered_to=facts.recovered_to,
        faulty_entries=log.faulty_count if log else 0,
        feature_level=facts.feature_level,
        told_group_id=facts.told_group_id,
        commit_waits_ms=int(driver.commit_waits_s() * 1000) if driver else 0,
        now_ms=driver.log_clock.now_ms() if driver and driver.is_serving_leader() else 0,
        epoch=core.epoch[0] if core else 0,
        older_copy=older_copy(core.abstains) if core else "",
        clock_ahead_ms=max(0, apart_ms),
        clock_behind_ms=max(0, -apart_ms),
        log_ahead_ms=max(0, (driver.dating.ahead_ms or 0) if driver else 0),
        client_certificate_fault=facts.client_certificate.fault if facts.client_certificate else "",
        client_certificate_begins_ms=int(shown.begins_s * 1000) if shown else 0,
        client_certificate_ends_ms=int(shown.ends_s * 1000) if shown else 0,
        held_waiting=facts.held_waiting,
    )


def _file_shown(certificate: ClientCertificate | None) -> Shown | None:
    """Return what clients are shown, if it is of a file."""
    return certificate.shown if certificate and certificate.is_mounted else None


def older_copy(owed: Mark | None) -> str:
    """Say what a node whose disk is an older copy of itself owes; "" if it owes nothing."""
    if owed is None:
        return ""
    return (
        f"others know that it had entry {owed.last_index} of term {owed.last_term} and was in "
        f"term {owed.term}; it gives no vote until a leader has sent it what its disk lacks"
    )


def _members(driver: Driver, own_id: NodeId, peers: PeerView) -> tuple[MemberStatus, ...]:
    core = driver.core
    match = {node: progress.match_index for node, progress in core.progress().items()}
    match[own_id] = core.last_index if core.role is Role.LEADER else 0

    def row(member: Member) -> MemberStatus:
        up = member.id == own_id or peers.connected(member.id)
        leads = core.role is Role.LEADER
        return MemberStatus(
            member=member,
            role=_role(member.id, core, up),
            match_index=match.get(member.id, 0),
            lag=core.last_index - match.get(member.id, 0) if leads else 0,
            connected=up,
            voter=member.id not in core.membership.learner_ids,
            feature_level=peers.levels.get(member.id) or 0,
        )

    return tuple(row(member) for member in core.membership.members)


def _own_role(core: Raft) -> str:
    learns = core.id in core.membership.learner_ids
    return "learner" if learns and core.role is Role.FOLLOWER else core.role.value


def _role(member: NodeId, core: Raft, up: bool) -> str:
    if member == core.leader:
        return "leader"
    if up and member in core.membership.learner_ids:
        return "learner"
    return "follower" if up else "unknown"


def dead_letters_in(state: BrokerState) -> dict[str, int]:
    """Return how many dead letters each consumer group has not consumed, of those with most."""
    waiting: dict[str, int] = {}
    for topic in state.topics.named_from(DEAD_LETTERS):
        group = topic.removeprefix(DEAD_LETTERS)
        backlog = state.groups.backlog(group, topic) if state.groups.exists(group) else None
        waiting[group] = backlog.unread + backlog.held if backlog else state.topics.messages(topic)
    most = sorted(waiting, key=lambda group: (-waiting[group], group))
    return {group: waiting[group] for group in most[:_GROUPS_SHOWN]}


def fifo_waiting_in(state: BrokerState) -> dict[str, float]:
    """Return how full consumer groups' fullest FIFO queues are, of those with the fullest."""
    shares = state.groups.waiting_shares()
    most = sorted(shares, key=lambda group: (-shares[group], group))
    return {group: shares[group] for group in most[:_GROUPS_SHOWN]}


def node_sample(
    status: NodeStatus,
    driver: Driver | None,
    log: CommitLog | None,
    load: Load,
    *,
    free_bytes: int,
    remembered_ids: int,
    replayed_lanes: int = 0,
    filter_kept_bytes: int = 0,
    held: HeldMessages | None = None,
    log_ms: int = 0,
    overdue_ms: int = 0,
    dead_letters: Mapping[str, int] = {},
    fifo_waiting: Mapping[str, float] = {},
    peer_tls: PeerTls | None = None,
    client_certificate: ClientCertificate | None = None,
    doors: int | None = None,
) -> Sample:
    """Return a node's state as gauges; positions are 0 while it is Unjoined."""
    core = driver.core if driver else None
    leads = core is not None and core.role is Role.LEADER
    room = driver.room if driver else None
    disk = room.disk if room else None
    others = [row for row in status.members if row.member.id != status.node_id]
    shown = _file_shown(client_certificate)
    is_mounted = client_certificate is not None and client_certificate.is_mounted
    return Sample(
        role=status.role,
        follower_lag_entries={row.member.name: row.lag for row in others if leads},
        dead_letters=dead_letters,
        fifo_waiting=fifo_waiting,
        ready=status.ready,
        term=status.term,
        has_leader=bool(status.leader_id),
        leader_since_timestamp_seconds=_led_since_s(status) if leads else None,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        last_index=status.last_index,
        synced_index=status.synced_index,
        voters=len(core.membership.voters) if core else 0,
        quorum_margin=quorum_margin(core) if core else None,
        bytes_at_risk=core.uncommitted_bytes if core and leads else None,
        commit_waits_seconds=driver.commit_waits_s() if driver and leads else None,
        clock_apart_seconds=_seconds(driver.dating.apart_ms) if driver else None,
        log_ahead_seconds=_seconds(driver.dating.ahead_ms) if driver else None,
        queued_bytes=driver.queued_bytes if driver else 0,
        sync_running_seconds=driver.sync_running_s() if driver else 0.0,
        writes_refused=bool(status.writes_refused_reason),
        faulty_entries=status.faulty_entries,
        abstains=bool(status.older_copy),
        log_bytes=log.size_bytes if log else 0,
        storage_free_bytes=free_bytes,
        storage_capacity_bytes=status.storage_capacity_bytes,
        storage_own_bytes=disk.own_bytes if disk else None,
        storage_new_foreign_bytes=disk.new_foreign_bytes if disk else None,
        storage_watermark_bytes=room.watermark_bytes if room else None,
        storage_drop_below_bytes=room.limits.drop_bytes if room else None,
        storage_refuse_below_bytes=room.limits.refuse_bytes if room else None,
        held_request_bytes=load.held_request_bytes,
        waiting_polls=load.waiting_polls,
        telemetry_streams=load.telemetry_streams,
        door_processes=doors,
        remembered_message_ids=remembered_ids,
        remembered_message_ids_limit=MAX_IDS,
        replayed_lanes=replayed_lanes,
        filter_kept_bytes=filter_kept_bytes,
        transactions_open=held.halves if held else 0,
        transactions_oldest_seconds=_open_for_ms(held, log_ms) / 1000,
        held_messages=held.count if held else 0,
        held_messages_bytes=held.size_bytes if held else 0,
        held_waiting_messages=held.waiting if held else 0,
        held_overdue_seconds=_seconds(overdue_ms) if leads else None,
        peer_certificate_expiry_timestamp_seconds=peer_tls.not_after_s if peer_tls else None,
        peer_plain_text_accepted=peer_tls.takes_plain if peer_tls else None,
        client_certificate_expiry_timestamp_seconds=shown.ends_s if shown else None,
        client_certificate_refused=bool(status.client_certificate_fault) if is_mounted else None,
    )


def _led_since_s(status: NodeStatus) -> float | None:
    """Return when this leader was elected; None until its first entry is committed."""
    record = status.last_failover
    return record.at_ms / 1000 if record and record.term == status.term else None


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def quorum_margin(core: Raft) -> int | None:
    """Return how many voters the group can lose and still commit; None if this node does not lead.

    It counts the leader and each voter that the leader heard from within an election timeout and
    that lags by at most 1000 entries; during a joint membership it is the smaller margin of the two
    sets of voters. At 0 the loss of one more voter stops writes; below 0 they have stopped.
    """
    if core.role is not Role.LEADER:
        return None
    silent = core.inactive_voters()
    able = {core.id} | {
        peer
        for peer, progress in core.progress().items()
        if peer not in silent and core.last_index - progress.match_index <= CAUGHT_UP_ENTRIES
    }
    voter_sets = core.membership.voter_sets
    return min(len(able & ids) - quorum.majority(len(ids)) for ids in voter_sets)


def _open_for_ms(held: HeldMessages | None, log_ms: int) -> int:
    """Return for how long the oldest transaction has been open, by the log's time."""
    oldest_ms = held.open_halves.oldest_ms if held is not None else None
    return 0 if oldest_ms is None else max(0, log_ms - oldest_ms)
