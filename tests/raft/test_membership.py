"""Membership changes: pure functions against slow, obvious versions, then one node's rules."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvalidArgument, NotLeader, Refused, Unavailable
from dledger.raft import membership as rules
from dledger.raft.membership_change import CatchUp
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.quorum import Electorate, VoteResult
from dledger.types import Entry, EntryKind, Membership, NodeId, Role
from dledger_sim.process import member
from tests.raft.bench import Alone, data_entry, log_of

IDS = [NodeId(str(number)) for number in range(6)]
SETS = st.frozensets(st.sampled_from(IDS), min_size=1)
ELECTORATES = st.builds(Electorate, SETS, st.one_of(st.just(frozenset()), SETS))
TIMEOUT = 20


def subsets(ids: Collection[NodeId]) -> list[frozenset[NodeId]]:
    return [frozenset(some) for size in range(len(ids) + 1) for some in combinations(ids, size)]


def has_majorities(present: frozenset[NodeId], electorate: Electorate) -> bool:
    """The slow, obvious rule: more than half of each half that there is."""
    halves = [half for half in (electorate.voters, electorate.outgoing) if half]
    return all(2 * len(present & half) > len(half) for half in halves)


# Two halves


@given(SETS, ELECTORATES)
def test_quorum_is_a_majority_of_each_half(
    present: frozenset[NodeId], electorate: Electorate
) -> None:
    """Agrees with counting each half."""
    assert electorate.is_quorum(present) == has_majorities(present, electorate)


@given(st.dictionaries(st.sampled_from(IDS), st.integers(0, 9)), ELECTORATES)
def test_committed_is_the_highest_index_that_both_halves_have(
    match_index: dict[NodeId, int], electorate: Electorate
) -> None:
    """Agrees with trying every index in turn."""
    expected = 0
    for index in range(1, 10):
        having = frozenset(node for node, match in match_index.items() if match >= index)
        if has_majorities(having, electorate):
            expected = index

    assert electorate.committed(match_index) == expected


@given(st.dictionaries(st.sampled_from(IDS), st.booleans()), ELECTORATES)
def test_vote_is_won_by_both_halves_and_lost_by_either(
    votes: dict[NodeId, bool], electorate: Electorate
) -> None:
    """Agrees with asking: is it won now, and could it be won if all others granted?"""
    granted = frozenset(node for node, vote in votes.items() if vote)
    possible = granted | (electorate.everyone - votes.keys())

    result = electorate.vote_result(votes)

    assert (result is VoteResult.WON) == has_majorities(granted, electorate)
    assert (result is VoteResult.LOST) == (not has_majorities(possible, electorate))


# What may follow what


@given(SETS, SETS)
def test_quorums_of_memberships_in_a_row_share_a_voter(
    before: frozenset[NodeId], after: frozenset[NodeId]
) -> None:
    """Raft 6: at no point can the old and the new voters decide apart; every pair of quorums."""
    old = Membership.of(map(member, before), "g")
    joint = rules.begin_change(old, voters=[member(one) for one in after], learners=[])
    steps = [old, joint, *([rules.end_change(joint)] if joint.is_joint else [])]

    assert steps[-1].voter_ids == after
    for one, other in pairwise(steps):
        electorates = [Electorate(m.voter_ids, m.outgoing_ids) for m in (one, other)]
        quorums = [
            [some for some in subsets(IDS) if electorate.is_quorum(some)]
            for electorate in electorates
        ]
        assert all(left & right for left in quorums[0] for right in quorums[1])


def test_learners_change_without_a_joint_membership() -> None:
    """They have no say, so nothing can be decided apart."""
    old = Membership.of([member("1"), member("2")], "g")

    new = rules.begin_change(old, voters=old.voters, learners=[member("3")])

    assert not new.is_joint
    assert new.learner_ids == {"3"}


def test_demoted_voter_counts_until_the_change_is_over() -> None:
    """It is among the old voters, and becomes a learner with the new membership."""
    old = Membership.of([member("1"), member("2")], "g")

    joint = rules.begin_change(old, voters=[member("1")], learners=[member("2")])

    assert joint.learner_ids == frozenset()
    assert rules.end_change(joint).learner_ids == {"2"}
    assert [m.id for m in joint.members] == ["1", "2"]


@pytest.mark.parametrize(("voters", "learners"), [([], ["1"]), (["1", "1"], []), (["1"], ["1"])])
def test_senseless_memberships_are_refused(voters: list[str], learners: list[str]) -> None:
    """No voters, or a node twice."""
    old = Membership.of([member("1")], "g")

    with pytest.raises(InvalidArgument):
        rules.begin_change(
            old, voters=[member(one) for one in voters], learners=[member(one) for one in learners]
        )


# Bytes


def test_membership_without_change_or_learners_has_its_old_bytes() -> None:
    """Founding entries that exist stay what they are."""
    encoded = Membership.of([member("2"), member("1")], "g").encode()

    rows = [{"address": f"{i}:20911", "id": i, "name": f"group-{i}"} for i in ("1", "2")]
    assert encoded == json.dumps({"group": "g", "voters": rows}, separators=(",", ":")).encode()


@given(SETS, st.frozensets(st.sampled_from(IDS)), st.frozensets(st.sampled_from(IDS)))
def test_membership_survives_its_bytes(
    voters: frozenset[NodeId], outgoing: frozenset[NodeId], learners: frozenset[NodeId]
) -> None:
    """What is read back is what was written, and has the same bytes again."""
    one = Membership.of(
        map(member, voters), "g", outgoing=map(member, outgoing), learners=map(member, learners)
    )

    again = Membership.decode(one.encode())

    assert again == one
    assert again.encode() == one.encode()


def test_bytes_without_voters_are_no_membership() -> None:
    """Nobody could decide anything any more."""
    with pytest.raises(ValueError, match="without voters"):
        Membership.decode(b'{"group":"g","voters":[]}')


# Catching up


def test_learner_has_caught_up_when_a_round_was_short() -> None:
    """Thesis 4.2.1: what the leader had when the round began, within an election timeout."""
    rounds = CatchUp(last_index=100, tick=0, limit_ticks=20)

    rounds.heard(match_index=50, last_index=200, tick=10)
    rounds.heard(match_index=100, last_index=300, tick=30)
    assert not rounds.is_done(30)
    rounds.heard(match_index=300, last_index=310, tick=45)

    assert rounds.is_done(45)
    assert rounds.is_done(65)
    assert not rounds.is_done(66)


# One leader


def leader(**settings: Any) -> Alone:
    """Return node 1 as leader of three; its no-op is committed."""
    node = Alone(**settings)
    node.become_leader()
    for peer in ("2", "3"):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    return node


def change(node: Alone, voters: str, learners: str = "") -> None:
    node.do(
        lambda raft: raft.change_membership(
            voters=[member(one) for one in voters.split()],
            learners=[member(one) for one in learners.split()],
        )
    )


def ack_all(node: Alone, peers: str) -> None:
    """Let these acknowledge everything, and the leader's disk end its writes."""
    node.settle()
    for peer in peers.split():
        if node.raft.role is Role.LEADER:
            node.ack(node.raft.last_index, sender=peer)
    node.settle()


def with_learner(**settings: Any) -> Alone:
    """Return a leader of three whose learner 4 has caught up."""
    node = leader(promote_learners=False, **settings)
    change(node, "1 2 3", "4")
    ack_all(node, "2 3 4")
    assert node.raft.caught_up_learners() == {"4"}
    return node


def test_learner_gets_the_log_and_does_not_count() -> None:
    """Thesis 4.2.1: non-voting servers are not counted for majorities."""
    node = with_learner()

    node.propose()
    sent = node.settle()
    node.ack(node.raft.last_index, sender="4")

    assert [m.recipient for m in sent if isinstance(m, AppendRequest)] == ["2", "3", "4"]
    assert node.raft.commit_index == node.raft.last_index - 1
    node.ack(node.raft.last_index, sender="2")
    assert node.raft.commit_index == node.raft.last_index


def test_leader_that_hears_only_learners_steps_down() -> None:
    """Thesis 6.2: they are no quorum."""
    node = with_learner()

    for _ in range(TIMEOUT):
        node.tick()
        node.hear(HeartbeatResponse, sender="4", term=node.raft.term, round=0)
        if node.raft.role is not Role.LEADER:
            break

    assert node.raft.role is Role.FOLLOWER


def test_learner_never_campaigns() -> None:
    """Neither by itself nor when asked."""
    node = Alone(terms=(1,))
    learning = Membership.of([member("2"), member("3")], learners=[member("1")])
    node.append(membership_entry(3, learning), after=(1, 2), term=1, commit=3)
    node.settle()

    node.tick(5 * TIMEOUT)
    node.do(lambda raft: raft.campaign())
    node.hear(TimeoutNow, term=1)

    assert not [m for m in node.settle() if isinstance(m, PreVoteRequest | VoteRequest)]


def membership_entry(index: int, membership: Membership) -> Entry:
    data = membership.encode()
    return Entry(
        term=1, index=index, kind=EntryKind.MEMBERSHIP, timestamp_ms=0, crc32c=0, data=data
    )


def test_learner_that_is_asked_votes() -> None:
    """6: who asks may know a membership in which it is a voter; else no leader could come."""
    node = Alone(terms=(1,))
    learning = Membership.of([member("2"), member("3")], learners=[member("1")])
    node.append(membership_entry(3, learning), after=(1, 2), term=1)
    node.settle()
    node.tick(TIMEOUT)

    node.hear(VoteRequest, term=2, last_index=9, last_term=1)

    assert [m.granted for m in node.settle() if isinstance(m, VoteResponse)] == [True]


def test_learner_that_has_caught_up_is_promoted_by_itself() -> None:
    """Unless the settings say otherwise."""
    node = leader()
    change(node, "1 2 3", "4")
    ack_all(node, "2 3")
    assert node.raft.membership.learner_ids == {"4"}

    node.ack(node.raft.last_index, sender="4")

    assert node.raft.membership.voter_ids == {"1", "2", "3", "4"}
    assert node.raft.membership.outgoing_ids == {"1", "2", "3"}


def test_new_learner_is_sent_entries_at_once() -> None:
    """Else it would wait for the next proposal."""
    node = leader()

    change(node, "1 2 3", "4")

    appends = [m for m in node.settle() if isinstance(m, AppendRequest) and m.recipient == "4"]
    assert [len(m.entries) for m in appends] == [1]


def test_learner_that_lags_is_not_promoted() -> None:
    """It would hold commits up."""
    node = leader()
    change(node, "1 2 3", "4")
    ack_all(node, "2 3")

    node.tick(3)

    assert node.raft.membership.learner_ids == {"4"}
    with pytest.raises(Refused, match="caught up: 4"):
        change(node, "1 2 3 4")


def test_joint_membership_needs_both_majorities() -> None:
    """6: agreement requires separate majorities from both the old and new configurations."""
    node = with_learner()
    change(node, "1 4")
    joint = node.raft.last_index
    assert node.raft.membership.is_joint

    ack_all(node, "2 3")
    assert node.raft.commit_index == joint - 1
    node.ack(joint, sender="4")

    assert node.raft.commit_index == joint


def test_leader_leaves_the_joint_membership_by_itself() -> None:
    """6: once it is committed, it creates the entry of the new one."""
    node = with_learner()
    change(node, "1 4")

    ack_all(node, "2 4")

    assert not node.raft.membership.is_joint
    assert node.raft.membership.voter_ids == {"1", "4"}
    ack_all(node, "4")
    assert node.raft.commit_index == node.raft.last_index


def test_membership_counts_from_when_it_is_in_the_log() -> None:
    """6: a server uses the latest configuration in its log, committed or not."""
    node = with_learner()

    change(node, "1")

    assert node.raft.membership.voter_ids == {"1"}
    assert node.raft.commit_index < node.raft.last_index


def test_one_change_at_a_time() -> None:
    """Thesis 4.1: two that overlap could have quorums apart."""
    node = with_learner()
    change(node, "1 2 4")

    with pytest.raises(Unavailable, match="another membership change"):
        change(node, "1 2 3")


def test_change_waits_for_an_entry_of_the_own_term() -> None:
    """The bug of 2015 in single-server changes, avoided in the same way here."""
    node = Alone()
    node.become_leader()

    with pytest.raises(Unavailable, match="too new"):
        change(node, "1 2 3", "4")


def test_follower_refuses_a_change() -> None:
    """Only the leader appends."""
    with pytest.raises(NotLeader):
        change(Alone(), "1 2 3", "4")


def test_removed_leader_leads_until_the_change_is_committed() -> None:
    """6: it manages a cluster that does not include itself, and then steps down."""
    node = leader()
    change(node, "2 3")
    ack_all(node, "2 3")
    assert not node.raft.membership.is_joint
    final = node.raft.last_index

    node.ack(final, sender="2")
    assert node.raft.role is Role.LEADER
    node.ack(final, sender="3")

    assert (node.raft.role, node.raft.commit_index) == (Role.FOLLOWER, final)
    assert node.raft.is_removed
    assert [m.recipient for m in node.settle() if isinstance(m, TimeoutNow)] == ["2"]


def test_removed_leader_does_not_count_itself() -> None:
    """6: it replicates entries but is not in the majority."""
    node = leader(voters=3)
    change(node, "2 3")
    ack_all(node, "2 3")

    ack_all(node, "2")

    assert node.raft.commit_index == node.raft.last_index - 1


def test_removed_member_is_told_and_then_forgotten() -> None:
    """It gets the entry and the commit index for an election timeout, to know that it is out."""
    node = leader()
    change(node, "1 2")
    ack_all(node, "2 3")
    ack_all(node, "2")
    node.tick(2)

    heartbeats = [m for m in node.settle() if isinstance(m, HeartbeatRequest)]
    assert {m.recipient for m in heartbeats} == {"2", "3"}
    for _ in range(TIMEOUT):
        node.hear(HeartbeatResponse, term=2, round=0)
        node.tick()

    assert set(node.raft.progress()) == {"2"}


def test_removed_member_has_no_say() -> None:
    """6: removed servers must not disrupt the cluster."""
    node = leader()
    change(node, "1 2")
    ack_all(node, "2 3")
    ack_all(node, "2")
    node.do(lambda raft: raft.step_down())

    node.hear(VoteRequest, sender="3", term=9, last_index=99, last_term=9)

    assert node.raft.term == 2


def test_removed_member_cannot_return() -> None:
    """Its disk may lack what it acknowledged; a newly formatted disk is another node."""
    node = leader()
    change(node, "1 2")
    ack_all(node, "2 3")
    ack_all(node, "2")

    with pytest.raises(Refused, match="removed before: 3"):
        change(node, "1 2", "3")


def test_introduced_leader_that_the_own_membership_does_not_know_is_followed() -> None:
    """6: servers accept requests of leaders that are not in their latest configuration."""
    node = Alone()
    node.do(lambda raft: raft.introduce(NodeId("9")))

    node.append(after=(1, 1), term=2, sender="9")

    assert node.raft.leader == "9"
    assert [m.success for m in node.settle() if isinstance(m, AppendResponse)] == [True]


@pytest.mark.found
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (AppendRequest, {"previous_index": 1, "previous_term": 1, "commit_index": 1}),
        (HeartbeatRequest, {"commit_index": 1, "round": 1}),
        (VoteRequest, {"last_index": 9, "last_term": 9, "transfer": True}),
        (PreVoteRequest, {"last_index": 9, "last_term": 9}),
        (DiscardRequest, {"index": 1, "entry_term": 1, "firm": True}),
        (TimeoutNow, {}),
    ],
)
def test_what_a_non_member_says_changes_nothing(
    kind: type[Message], fields: dict[str, object]
) -> None:
    """Nobody has introduced it: no term, no vote, no commit, and no answer (found: S8)."""
    node = Alone()

    node.hear(kind, sender="9", term=2, **fields)

    assert node.settle() == []
    assert (node.raft.term, node.raft.vote, node.raft.leader) == (1, None, None)
    assert node.raft.commit_index == 0


def test_a_leader_that_is_being_removed_is_followed_until_that_is_committed() -> None:
    """It has to replicate its own removal (4.2.2); afterwards it has no say."""
    node = Alone()
    without = membership_entry(2, Membership.of([member("1"), member("3")]))

    node.append(without, after=(1, 1), term=1)
    node.append(data_entry(1, 3), after=(1, 2), term=1, commit=2)
    node.append(data_entry(1, 4), after=(1, 3), term=1)

    assert (node.raft.last_index, node.raft.commit_index) == (3, 2)


def test_a_node_that_knows_no_member_hears_anyone() -> None:
    """A new disk has no membership; `server.bootstrap` decides before who may connect to it."""
    node = Alone(terms=None)

    node.append(*log_of(), after=(0, 0), term=2, sender="9")

    assert node.raft.last_index == 1


def test_introductions_are_bounded() -> None:
    """The oldest gives way; it can be introduced again."""
    node = Alone()
    for number in range(100):
        node.raft.introduce(NodeId(f"n{number}"))

    heard = [number for number in range(100) if node.raft.hears(NodeId(f"n{number}"))]

    assert heard == list(range(36, 100))


def test_removed_voter_campaigns_until_the_change_is_known_to_be_committed() -> None:
    """Thesis 4.2.2: it may be the only one who has the entry, and is needed for a new leader."""
    node = Alone(terms=(1,))
    node.append(membership_entry(3, Membership.of([member("2")])), after=(1, 2), term=1)
    node.settle()

    node.do(lambda raft: raft.campaign())
    assert node.role() is Role.PRE_CANDIDATE
    node.append(after=(1, 3), term=1, commit=3)
    node.do(lambda raft: raft.campaign())

    assert node.role() is Role.FOLLOWER


def test_change_that_is_truncated_brings_the_members_back() -> None:
    """6: a change that no majority has can be undone by the next leader."""
    node = with_learner()
    change(node, "1 4")
    node.settle()
    joint = node.raft.last_index

    node.append(membership_free(joint), after=(2, joint - 1), term=3, sender="3")

    assert node.raft.membership.voter_ids == {"1", "2", "3"}
    assert node.raft.membership.learner_ids == {"4"}


def membership_free(index: int) -> Entry:
    return Entry(term=3, index=index, kind=EntryKind.NOOP, timestamp_ms=0, crc32c=0, data=b"")


def test_transfer_to_a_learner_is_refused() -> None:
    """It could not lead."""
    node = with_learner()

    with pytest.raises(InvalidArgument, match="not another voter"):
        node.do(lambda raft: raft.transfer_leadership(NodeId("4")))


def test_membership_that_is_repaired_takes_its_place_in_the_log() -> None:
    """Below newer ones; one that is known already is not taken twice."""
    group = Membership.of([member("1")]).group_id
    old, new = Membership.of([member("9")], group), Membership.of([member("1")], group)
    stack = rules.MembershipStack([(5, new)], group)

    stack.insert([(2, old), (5, new)])

    assert (stack.index, stack.current) == (5, new)
    assert stack.removal_index(NodeId("9")) == 5
    stack.truncate(5)
    assert (stack.index, stack.current) == (2, old)


def test_member_that_an_uncommitted_change_adds_campaigns_by_that_change() -> None:
    """The newest membership in the log counts, committed or not (6)."""
    group = Membership.of([member("1")]).group_id
    before = Membership.of([member("1")], group)
    after = Membership.of([member("1"), member("2")], group)
    stack = rules.MembershipStack([(1, before), (4, after)], group)

    assert stack.may_campaign(NodeId("2"), 3)
    assert not stack.may_campaign(NodeId("3"), 3)


def test_those_before_an_entry_decided_about_it_also_where_it_is_a_membership() -> None:
    """A membership rests on a majority of those before (ADR 14); where none is known, on nobody."""
    three, five = (Membership.of(member(n) for n in names) for names in ("123", "12345"))
    stack = rules.MembershipStack([(1, three), (5, five)], "")

    before = [stack.electorate_before(index) for index in (1, 2, 5, 6)]

    assert [len(one.everyone) for one in before] == [0, 3, 3, 5]
