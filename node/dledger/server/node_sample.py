"""Builds the sample that scrapes see, from what a node's parts say. Pure translation."""

from __future__ import annotations

from dledger.broker.deduplication import MAX_IDS
from dledger.common.metrics import Sample
from dledger.common.status import CAUGHT_UP_ENTRIES, NodeStatus
from dledger.raft import quorum
from dledger.raft.core import Raft
from dledger.replica.driver import Driver
from dledger.server.gateway import Load
from dledger.store.commit_log import CommitLog
from dledger.types import Role


def node_sample(
    status: NodeStatus,
    driver: Driver | None,
    log: CommitLog | None,
    load: Load,
    *,
    free_bytes: int,
    remembered_ids: int,
) -> Sample:
    """Return a node's state as gauges; positions are 0 while it is Unjoined."""
    core = driver.core if driver else None
    leads = core is not None and core.role is Role.LEADER
    others = [row for row in status.members if row.member.id != status.node_id]
    return Sample(
        role=status.role,
        follower_lag_entries={row.member.name: row.lag for row in others if leads},
        ready=status.ready,
        term=status.term,
        has_leader=bool(status.leader_id),
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        last_index=status.last_index,
        synced_index=status.synced_index,
        voters=len(core.membership.voters) if core else 0,
        quorum_margin=quorum_margin(core) if core else None,
        bytes_at_risk=core.uncommitted_bytes if core and leads else None,
        commit_waits_seconds=driver.commit_waits_s() if driver and leads else None,
        queued_bytes=driver.queued_bytes if driver else 0,
        sync_running_seconds=driver.sync_running_s() if driver else 0.0,
        writes_refused=bool(status.writes_refused_reason),
        faulty_entries=status.faulty_entries,
        log_bytes=log.size_bytes if log else 0,
        storage_free_bytes=free_bytes,
        storage_capacity_bytes=status.storage_capacity_bytes,
        held_request_bytes=load.held_request_bytes,
        waiting_polls=load.waiting_polls,
        telemetry_streams=load.telemetry_streams,
        remembered_message_ids=remembered_ids,
        remembered_message_ids_limit=MAX_IDS,
    )


def quorum_margin(core: Raft) -> int | None:
    """Return how many voters more than a majority could commit an entry now; None: not leading.

    Counted are the leader and each voter that it heard within an election timeout and that lacks
    at most 1000 entries; while the voters change, the smaller of the two halves' margins. At 0 the
    loss of one more stops writes; below, they stand still.
    """
    if core.role is not Role.LEADER:
        return None
    silent = core.inactive_voters()
    able = {core.id} | {
        peer
        for peer, progress in core.progress().items()
        if peer not in silent and core.last_index - progress.match_index <= CAUGHT_UP_ENTRIES
    }
    membership = core.membership
    halves = [ids for ids in (membership.voter_ids, membership.outgoing_ids) if ids]
    return min(len(able & ids) - quorum.majority(len(ids)) for ids in halves)
