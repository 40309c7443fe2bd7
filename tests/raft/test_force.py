"""A group that is forced from one survivor: when, what it leaves behind, and who is left out.

Whole stories, with crashes between the two writes of it, are in ``scenarios/forced.txt``.
"""

from __future__ import annotations

from typing import Any

import pytest

from dledger.errors import Refused, Unavailable
from dledger.raft.force import SILENT_TIMEOUTS, TERM_STEP
from dledger.raft.membership import MembershipStack, begin_change, end_change, promoted
from dledger.raft.messages import HeartbeatRequest, VoteRequest
from dledger.types import Membership, NodeId, Role
from dledger_sim.process import member
from tests.raft.bench import Alone

SILENCE = SILENT_TIMEOUTS * 20
ONE, TWO, FOUR = NodeId("1"), NodeId("2"), NodeId("4")
OLD = Membership.of([member("1"), member("2"), member("3")])
ALONE = Membership.of([member("1")], epoch=1)
GROWN = Membership.of([member("1"), member("4")], epoch=1)


def survivor(**settings: Any) -> Alone:
    """Return node 1 with entries up to 4, which has heard nobody for long enough."""
    node = Alone(terms=(1, 1, 2), **settings)
    node.tick(SILENCE)
    node.settle()
    return node


def force(node: Alone, term: int = 2, index: int = 4) -> tuple[int, int]:
    return node.do(lambda raft: raft.force_group(last_term=term, last_index=index))


def test_the_survivor_is_the_group_with_all_that_it_had() -> None:
    """Entries that nobody knew to be committed are, behind a membership of the next epoch."""
    node = survivor()
    assert node.raft.commit_index == 0

    term, index = force(node)
    node.settle()

    assert (node.raft.role, node.raft.term, index) == (Role.LEADER, term, 5)
    assert node.raft.membership == ALONE
    assert node.raft.epoch == (1, 5)
    assert [entry.index for entry in node.committed] == [1, 2, 3, 4, 5, 6]


def test_the_term_is_out_of_reach_of_those_left_out() -> None:
    """Of two that claim to lead the group, the forced one has the higher term."""
    node = survivor()

    term, _ = force(node)

    assert term >= 2 + TERM_STEP


def test_it_leads_only_once_its_own_vote_is_durable() -> None:
    """5.2: a vote that a crash takes back must not have decided."""
    node = survivor()

    force(node)
    assert node.role() is Role.CANDIDATE
    node.save_own_vote()

    assert node.role() is Role.LEADER


def test_nothing_is_committed_before_the_membership_is_durable() -> None:
    """Nor is the epoch told: who stops because of it could not come back."""
    node = survivor()

    force(node)
    node.save_own_vote()
    assert (node.raft.commit_index, node.raft.epoch) == (0, (0, 0))
    node.sync()
    node.settle()

    assert node.raft.epoch == (1, 5)


@pytest.mark.parametrize(("term", "index"), [(2, 3), (2, 5), (1, 4), (3, 4)])
def test_another_last_entry_than_was_seen_is_refused(term: int, index: int) -> None:
    """The administrator chose among survivors by it; the refusal says what there is."""
    node = survivor()

    with pytest.raises(Refused, match=r"is 4 of term 2, not "):
        force(node, term, index)

    assert node.raft.membership == OLD


def test_a_leader_that_was_heard_lately_is_not_forced_away() -> None:
    """A heartbeat begins the wait anew, and so does a start."""
    node = Alone(terms=(1, 1, 2))
    node.tick(SILENCE - 1)
    with pytest.raises(Refused, match=f"{SILENCE - 1} ticks ago"):
        force(node)
    node.tick()
    node.hear(HeartbeatRequest, term=node.raft.term + 1, round=1, commit_index=0)

    with pytest.raises(Refused, match=r"heard a leader \(2\)"):
        force(node)

    assert node.raft.membership == OLD


def test_a_leader_is_not_forced() -> None:
    """It can change its members."""
    node = Alone()
    node.become_leader()

    with pytest.raises(Refused, match="leads the group"):
        force(node, node.raft.last_term, node.raft.last_index)


def test_a_damaged_log_is_not_made_the_group() -> None:
    """It would be the only copy, and cannot be given to anyone."""
    node = survivor()
    node.do(lambda raft: raft.log_repaired(whole=False))

    with pytest.raises(Refused, match="damaged"):
        force(node)


def test_a_node_that_still_writes_is_not_forced() -> None:
    """What is kept must be on the disk."""
    node = Alone(terms=(1, 1))
    node.append(*Alone(terms=(1, 1, 1)).disk.stored(4, 4), after=(1, 3), term=1)
    node.take()
    node.tick(SILENCE)

    with pytest.raises(Unavailable, match="still writing"):
        force(node, 1, 4)


def test_a_node_that_its_own_log_does_not_name_is_not_forced() -> None:
    """As one that was removed, or has joined and has nothing yet."""
    node = Alone(terms=None)
    node.tick(SILENCE)

    with pytest.raises(Refused, match="not a member"):
        force(node, 0, 0)


def test_who_was_left_out_is_not_heard_even_before_the_entry_is_committed() -> None:
    """After a restart the survivor knows no commit index; a majority of the old could cut it."""
    node = survivor()
    term, index = force(node)
    node.save_own_vote()

    node.hear(VoteRequest, term=term + 1, last_term=term + 1, last_index=9, transfer=True)
    node.append(after=(1, 3), term=term + 1)

    assert (node.raft.role, node.raft.term, node.raft.last_index) == (Role.LEADER, term, index + 1)
    assert not node.raft.hears(TWO)


def test_a_node_is_behind_if_its_log_names_it_in_earlier_epochs_only() -> None:
    """The survivor's log has the epoch; a fresh disk is not named before it."""
    stack = MembershipStack([(1, OLD), (5, ALONE), (7, GROWN)], "")

    assert stack.is_behind(TWO, 1)
    assert not stack.is_behind(TWO, 0)
    assert not stack.is_behind(ONE, 1)
    assert not stack.is_behind(FOUR, 1)
    assert stack.is_behind(FOUR, 2)
    assert not MembershipStack([(1, OLD)], "").is_behind(FOUR, 1)


def test_a_fresh_disk_that_is_still_behind_was_not_left_out() -> None:
    """It reads the old memberships first, and finds itself in none of them."""
    catching_up = MembershipStack([(1, OLD)], "")

    assert not catching_up.is_behind(FOUR, 1)
    assert not catching_up.is_fenced(FOUR)


def test_the_fence_outlives_the_log_that_it_came_by() -> None:
    """A snapshot has all memberships, and so has who installs it."""
    node = survivor()
    force(node)
    node.settle()

    node.raft.memberships.replace([(1, OLD), (5, ALONE)])

    assert node.raft.removal_index(TWO) == 5
    assert node.raft.memberships.is_fenced(TWO)
    assert not node.raft.hears(TWO)


def test_the_epoch_goes_on_through_every_later_change() -> None:
    """One that lost it would hear those who were left out."""
    learning = begin_change(ALONE, voters=[member("1")], learners=[member("4")])
    joint = promoted(learning, [FOUR])

    assert joint.is_joint
    assert [one.epoch for one in (learning, joint, end_change(joint))] == [1, 1, 1]
    assert Membership.decode(joint.encode()) == joint


def test_a_group_is_forced_again_after_it_has_grown() -> None:
    """The epoch rises, and the first survivor may be among those that are left out."""
    node = survivor()
    force(node)
    node.settle()
    node.raft.memberships.append([(7, GROWN)])
    stack = MembershipStack([(1, OLD), (5, ALONE), (7, GROWN), (9, _forced_again())], "")

    assert stack.is_behind(ONE, 2)
    assert stack.is_fenced(ONE)
    assert stack.is_fenced(TWO)
    assert not stack.is_fenced(FOUR)


def _forced_again() -> Membership:
    return Membership.of([member("4")], epoch=2)


@pytest.mark.parametrize("epoch", ['"1"', "-1", "true", "1.5", "null", str(1 << 62)])
def test_an_epoch_that_is_none_is_no_membership(epoch: str) -> None:
    """It decides who is heard."""
    data = OLD.encode()[:-1] + f',"epoch":{epoch}}}'.encode()

    with pytest.raises(ValueError, match="not a membership"):
        Membership.decode(data)


def test_a_group_that_was_never_forced_writes_no_epoch() -> None:
    """Its entries have the bytes that they always had."""
    assert b"epoch" not in OLD.encode()
