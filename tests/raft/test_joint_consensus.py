"""Raft 6, one decision at a time: while voters change, the new voters decide nothing alone.

Nor do the old ones. In all of these the old voters are 1, 2 and 3, the new ones 1 and 4.
"""

from __future__ import annotations

import pytest

from dledger.errors import Unavailable
from dledger.raft.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    PreVoteResponse,
    VoteResponse,
)
from dledger.raft.ready import ConfirmedRead
from dledger.types import Role
from dledger_sim.process import member
from tests.raft.bench import Alone

TIMEOUT = 20
NEW_ONLY, OLD_ONLY = ("4",), ("2", "3")


def joint_leader(*, settle: bool = True) -> Alone:
    """Return node 1 as leader whose newest entry, still uncommitted, begins the change."""
    node = Alone(promote_learners=False)
    node.become_leader()
    for peer in ("2", "3"):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    change(node, "1 2 3", learners="4")
    node.settle()
    for peer in ("2", "3", "4"):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    change(node, "1 4")
    if settle:
        node.settle()
    assert node.raft.membership.is_joint
    return node


def change(node: Alone, voters: str, learners: str = "") -> None:
    node.do(
        lambda raft: raft.change_membership(
            voters=[member(one) for one in voters.split()],
            learners=[member(one) for one in learners.split()],
        )
    )


def joint_candidate() -> Alone:
    """Return node 1, which holds the joint membership and has just begun to ask for pre-votes."""
    node = joint_leader()
    node.do(lambda raft: raft.step_down())
    node.settle()
    node.do(lambda raft: raft.campaign())
    node.settle()
    return node


@pytest.mark.parametrize("ackers", [NEW_ONLY, OLD_ONLY])
def test_an_entry_does_not_commit_by_one_half_alone(ackers: tuple[str, ...]) -> None:
    """6: agreement requires separate majorities from both configurations."""
    node = joint_leader()
    joint = node.raft.last_index

    for peer in ackers:
        node.ack(joint, sender=peer)
    assert node.raft.commit_index == joint - 1
    for peer in (*NEW_ONLY, *OLD_ONLY):
        node.ack(joint, sender=peer)

    assert node.raft.commit_index >= joint


@pytest.mark.parametrize("voters", [NEW_ONLY, OLD_ONLY])
def test_a_pre_vote_is_not_won_by_one_half_alone(voters: tuple[str, ...]) -> None:
    """6: the same holds for elections."""
    node = joint_candidate()
    term = node.raft.term + 1

    for peer in voters:
        node.hear(PreVoteResponse, sender=peer, term=term, granted=True)
    assert node.role() is Role.PRE_CANDIDATE
    for peer in (*NEW_ONLY, *OLD_ONLY):
        node.hear(PreVoteResponse, sender=peer, term=term, granted=True)

    assert node.role() is Role.CANDIDATE


@pytest.mark.parametrize("voters", [NEW_ONLY, OLD_ONLY])
def test_an_election_is_not_won_by_one_half_alone(voters: tuple[str, ...]) -> None:
    """6: two leaders of one term would be possible, one for each half."""
    node = joint_candidate()
    for peer in (*NEW_ONLY, *OLD_ONLY):
        node.hear(PreVoteResponse, sender=peer, term=node.raft.term + 1, granted=True)
    node.settle()
    term = node.raft.term

    for peer in voters:
        node.hear(VoteResponse, sender=peer, term=term, granted=True)
    assert node.role() is Role.CANDIDATE
    for peer in (*NEW_ONLY, *OLD_ONLY):
        node.hear(VoteResponse, sender=peer, term=term, granted=True)

    assert node.role() is Role.LEADER


@pytest.mark.parametrize("heard", [NEW_ONLY, OLD_ONLY])
def test_a_leader_that_hears_one_half_alone_steps_down(heard: tuple[str, ...]) -> None:
    """Thesis 6.2: it can commit nothing."""
    node = joint_leader()

    for _ in range(2 * TIMEOUT):
        node.tick()
        for peer in heard:
            node.hear(HeartbeatResponse, sender=peer, term=node.raft.term, round=0)
        if node.raft.role is not Role.LEADER:
            break

    assert node.raft.role is Role.FOLLOWER


@pytest.mark.parametrize("answering", [NEW_ONLY, OLD_ONLY])
def test_a_read_is_not_confirmed_by_one_half_alone(answering: tuple[str, ...]) -> None:
    """Thesis 6.4: the other half may have elected another leader."""
    node = joint_leader()
    node.do(lambda raft: raft.read_index(7))
    number = newest_round(node.settle())

    for peer in answering:
        node.hear(HeartbeatResponse, sender=peer, term=node.raft.term, round=number)
    node.settle()
    assert node.confirmed == []
    for peer in (*NEW_ONLY, *OLD_ONLY):
        node.hear(HeartbeatResponse, sender=peer, term=node.raft.term, round=number)
    node.settle()

    assert node.confirmed == [ConfirmedRead(7, node.raft.commit_index)]


def test_a_removed_member_is_served_until_its_removal_is_committed_and_a_while_longer() -> None:
    """Thesis 4.2.2 asks for no more; but it is to hear that it is out, however slow the commit."""
    node = joint_leader()
    for peer in (*NEW_ONLY, *OLD_ONLY):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    assert not node.raft.membership.is_joint

    wait(node, 3 * TIMEOUT)
    assert set(node.raft.progress()) == {"2", "3", "4"}
    node.ack(node.raft.last_index, sender="4")
    wait(node, TIMEOUT - 1)
    assert set(node.raft.progress()) == {"2", "3", "4"}
    wait(node, 2)

    assert set(node.raft.progress()) == {"4"}


def wait(node: Alone, ticks: int) -> None:
    """Let time pass while the new voter is heard."""
    for _ in range(ticks):
        node.hear(HeartbeatResponse, sender="4", term=node.raft.term, round=0)
        node.tick()
        node.settle()


def newest_round(sent: list[Message]) -> int:
    return max(message.round for message in sent if isinstance(message, HeartbeatRequest))


def test_a_change_to_voters_without_a_live_quorum_is_refused() -> None:
    """6: the new voters must be able to agree, or neither the change nor its undoing commits."""
    node = Alone(promote_learners=False)
    node.become_leader()
    for peer in ("2", "3"):
        node.ack(node.raft.last_index, sender=peer)
    for _ in range(TIMEOUT):
        node.do(lambda raft: raft.tick())
        node.ack(node.raft.last_index, sender="3")
    node.settle()

    with pytest.raises(Unavailable, match="not heard from: 2; bring them back"):
        change(node, "2 3")

    change(node, "1 3")
    assert node.raft.membership.is_joint
