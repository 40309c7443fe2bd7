"""What must be true of a Raft at every moment, and from one moment to the next.

Run by tests and the simulator after every step; a failure is a bug of ours, hence `assert`.
Sources: Raft figures 2 and 3; what spans several nodes is checked by the simulator.
"""

# ruff: noqa: S101 - this file is made of asserts
from __future__ import annotations

from typing import NamedTuple

from dledger.raft.core import Raft
from dledger.raft.progress import Progress, ProgressState
from dledger.types import HardState, NodeId, Role


class Snapshot(NamedTuple):
    """What of a Raft is checked by itself and compared with the moment before."""

    role: Role
    term: int
    vote: NodeId | None
    leader: NodeId | None
    last_index: int
    last_term: int
    durable_index: int
    commit_index: int
    applied_index: int
    durable_hard_state: HardState
    is_silent: bool


def check(raft: Raft, before: Snapshot | None = None) -> Snapshot:
    """Check a state, and that it may follow the one before it, one event earlier.

    Most events change nothing that is compared; then only a leader's followers are looked at.

    Args:
        raft: Whose state.
        before: What the last call returned; None if there was none in this run.

    Raises:
        AssertionError: An invariant does not hold; the message names it.
    """
    now = _snapshot(raft)
    if now != before:
        _check_indexes(now)
        _check_role(raft, now)
        if before is not None:
            _check_step(before, now)
            if now.is_silent:
                _check_silence(before, now, raft.id)
    _check_followers(raft, now)
    return now


def _snapshot(raft: Raft) -> Snapshot:
    return Snapshot(
        raft.role,
        raft.term,
        raft.vote,
        raft.leader,
        raft.last_index,
        raft.last_term,
        raft.durable_index,
        raft.commit_index,
        raft.applied_index,
        raft.durable_hard_state,
        raft.witness.is_silent,
    )


def _check_step(before: Snapshot, after: Snapshot) -> None:
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


def _check_indexes(now: Snapshot) -> None:
    assert 0 <= now.applied_index <= now.commit_index, "only committed entries are applied"
    assert now.applied_index <= now.durable_index, "only durable entries are applied"
    assert now.commit_index <= now.last_index, "commit stays within the log"
    assert now.durable_index <= now.last_index, "durability stays within the log"
    assert now.term >= now.last_term, "no entry is of a term we have not seen"
    assert now.term >= now.durable_hard_state.term, "what is durable is not ahead of us"


def _check_silence(before: Snapshot, after: Snapshot, own: NodeId) -> None:
    """What its disk may have forgotten, a node does not vote by (`witness`)."""
    assert after.role is Role.FOLLOWER, "who has to ask, or abstains, only follows"
    kept = before.vote if after.term == before.term else None
    assert after.vote in (kept, None, own), "who has to ask, or abstains, gives no vote"


def _check_role(raft: Raft, now: Snapshot) -> None:
    if now.role is Role.LEADER:
        assert now.leader == raft.id, "a leader knows that it leads"
        assert now.durable_hard_state == HardState(now.term, raft.id), (
            "a leader's own vote is durable"
        )
        assert now.last_term == now.term, "a leader's log ends in its own term"
    else:
        assert now.leader != raft.id, "only a leader leads"
    if now.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        assert now.leader is None, "who campaigns knows no leader"
    if now.role is Role.CANDIDATE:
        assert now.vote == raft.id, "a candidate votes for itself"


def _check_followers(raft: Raft, now: Snapshot) -> None:
    if now.role is Role.LEADER:
        for peer, progress in raft.progress().items():
            assert peer != raft.id, "a leader does not replicate to itself"
            _check_progress(raft, progress)
        return
    assert not raft.progress(), "only a leader follows its followers"
    if now.role is not Role.FOLLOWER:
        assert raft.may_campaign, "only a voter campaigns"


def _check_progress(raft: Raft, progress: Progress) -> None:
    assert 0 <= progress.match_index < progress.next_index, "match is below next"
    assert progress.next_index <= raft.last_index + 1, "next stays within the log"
    if progress.inflight:
        _check_inflight(raft, progress)
    else:
        assert progress.inflight_bytes == 0, "bytes in flight add up"


def _check_inflight(raft: Raft, progress: Progress) -> None:
    assert progress.state is ProgressState.REPLICATE, "a probe is alone"
    newest, total_bytes, size_bytes = progress.match_index, 0, 0
    for index, size_bytes in progress.inflight:
        assert index > newest, "what is in flight is in order and not acknowledged"
        newest = index
        total_bytes += size_bytes
    assert newest < progress.next_index, "what is in flight was sent"
    assert progress.inflight_bytes == total_bytes, "bytes in flight add up"
    config = raft.config
    assert len(progress.inflight) <= config.max_inflight_appends, "messages in flight are bounded"
    before_last = total_bytes - size_bytes
    assert before_last < max(1, config.max_inflight_bytes), "bytes in flight are bounded"


def _check_same_term(before: Snapshot, after: Snapshot) -> None:
    assert before.vote in (None, after.vote), "one vote in a term"
    assert before.leader is None or after.leader in (None, before.leader), "one leader in a term"
    if before.role is Role.LEADER:
        assert after.last_index >= before.last_index, "a leader only appends"
