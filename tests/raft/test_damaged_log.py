"""A node whose log has damaged entries: a voter as any other, but no candidate."""

from __future__ import annotations

from dledger.raft.messages import (
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.types import Role
from dledger_sim.alone import Alone


def test_it_does_not_campaign_until_it_is_whole() -> None:
    """A leader must be able to send what it has."""
    node = Alone()
    node.raft.log_repaired(whole=False)

    node.raft.campaign()
    assert node.raft.role is Role.FOLLOWER
    node.hear(TimeoutNow, term=1)
    assert node.raft.role is Role.FOLLOWER

    node.raft.log_repaired(whole=True)
    node.raft.campaign()
    assert node.raft.role is Role.PRE_CANDIDATE


def test_it_votes_by_the_log_that_it_promised() -> None:
    """A damaged entry counts as present: who lacks it does not get the vote (Raft 5.4.1)."""
    node = Alone(terms=(1, 1))
    node.raft.log_repaired(whole=False)

    node.hear(VoteRequest, term=2, last_index=2, last_term=1)
    assert [m.granted for m in node.take().after_hard_state if isinstance(m, VoteResponse)] == [
        False
    ]

    node.hear(VoteRequest, term=3, last_index=3, last_term=1)
    assert [m.granted for m in node.take().after_hard_state if isinstance(m, VoteResponse)] == [
        True
    ]
