"""What must be true of a Raft at every moment, and from one moment to the next.

Run by tests and the simulator after every step; a failure is a bug of ours, hence `assert`.
Sources: Raft figures 2 and 3; what spans several nodes is checked by the simulator.
"""

# ruff: noqa: S101 - this file is made of asserts
from __future__ import annotations

from dataclasses import dataclass

from dledger.raft.core import Raft
from dledger.raft.progress import Progress, ProgressState
from dledger.types import HardState, NodeId, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What of a Raft is compared with the moment before."""

    role: Role
    term: int
    vote: NodeId | None
    leader: NodeId | None
    last_index: int
    commit_index: int
    applied_index: int
    durable_hard_state: HardState


def snapshot(raft: Raft) -> Snapshot:
    """Return what `check_step` compares."""
    return Snapshot(
        role=raft.role,
        term=raft.term,
        vote=raft.vote,
        leader=raft.leader,
        last_index=raft.last_index,
        commit_index=raft.commit_index,
        applied_index=raft.applied_index,
        durable_hard_state=raft.durable_hard_state,
    )


def check(raft: Raft) -> None:
    """Check one state.

    Raises:
        AssertionError: An invariant does not hold; the message names it.
    """
    _check_indexes(raft)
    _check_role(raft)
    for peer, progress in raft.progress().items():
        assert peer != raft.id, "a leader does not replicate to itself"
        _check_progress(raft, progress)


def check_step(before: Snapshot, after: Snapshot) -> None:
    """Check a state against the one before it, one event earlier in the same run.

    Raises:
        AssertionError: An invariant does not hold; the message names it.
    """
    assert after.term >= before.term, "the term never falls"
    assert after.commit_index >= before.commit_index, "the commit index never falls"
    assert after.applied_index >= before.applied_index, "the applied index never falls"
    assert after.durable_hard_state.term >= before.durable_hard_state.term, (
        "the durable term never falls"
    )
    assert after.last_index >= before.commit_index, "no committed entry is removed"
    if after.term == before.term:
        _check_same_term(before, after)
    if after.role is Role.LEADER and before.role is not Role.LEADER:
        assert before.role is Role.CANDIDATE, "only a candidate becomes leader"
        assert before.term == after.term, "an election is won in the candidate's own term"


def _check_indexes(raft: Raft) -> None:
    assert 0 <= raft.applied_index <= raft.commit_index, "only committed entries are applied"
    assert raft.applied_index <= raft.durable_index, "only durable entries are applied"
    assert raft.commit_index <= raft.last_index, "commit stays within the log"
    assert raft.durable_index <= raft.last_index, "durability stays within the log"
    assert raft.term >= raft.last_term, "no entry is of a term we have not seen"
    assert raft.term >= raft.durable_hard_state.term, "what is durable is not ahead of us"


def _check_role(raft: Raft) -> None:
    if raft.role is Role.LEADER:
        assert raft.leader == raft.id, "a leader knows that it leads"
        assert raft.durable_hard_state == HardState(raft.term, raft.id), (
            "a leader's own vote is durable"
        )
        assert raft.last_term == raft.term, "a leader's log ends in its own term"
    else:
        assert raft.leader != raft.id, "only a leader leads"
        assert not raft.progress(), "only a leader follows its followers"
    if raft.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        assert raft.leader is None, "who campaigns knows no leader"
    if raft.role is Role.CANDIDATE:
        assert raft.vote == raft.id, "a candidate votes for itself"
    if raft.role not in (Role.FOLLOWER, Role.LEADER):
        assert raft.may_campaign, "only a voter campaigns"


def _check_progress(raft: Raft, progress: Progress) -> None:
    config = raft.config
    assert 0 <= progress.match_index < progress.next_index, "match is below next"
    assert progress.next_index <= raft.last_index + 1, "next stays within the log"
    indexes = [index for index, _ in progress.inflight]
    assert indexes == sorted(indexes), "messages in flight are in order"
    assert all(progress.match_index < i < progress.next_index for i in indexes), (
        "what is in flight is neither acknowledged nor unsent"
    )
    sizes = [size for _, size in progress.inflight]
    assert progress.inflight_bytes == sum(sizes), "bytes in flight add up"
    assert len(sizes) <= config.max_inflight_appends, "messages in flight are bounded"
    assert sum(sizes[:-1]) < max(1, config.max_inflight_bytes), "bytes in flight are bounded"
    if progress.state is not ProgressState.REPLICATE:
        assert not sizes, "a probe is alone"


def _check_same_term(before: Snapshot, after: Snapshot) -> None:
    assert before.vote in (None, after.vote), "one vote in a term"
    assert before.leader is None or after.leader in (None, before.leader), "one leader in a term"
    if before.role is Role.LEADER:
        assert after.last_index >= before.last_index, "a leader only appends"
