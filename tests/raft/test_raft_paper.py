"""The rules of the Raft paper (extended version) and thesis, one test each, section cited."""

from functools import partial
from typing import Any

import pytest

from dledger.errors import NotLeader, Overloaded, Unavailable
from dledger.raft.core import Raft
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.ready import ConfirmedRead
from dledger.types import HardState, NodeId, Role
from tests.raft.bench import Alone, data_entry

TIMEOUT = 20


def following(**settings: Any) -> Alone:
    """Return node 1 with leader 2 in term 1."""
    node = Alone(**settings)
    node.hear(HeartbeatRequest, term=node.raft.term, commit_index=0, round=1)
    node.settle()
    return node


def leading(**settings: Any) -> Alone:
    """Return node 1 as leader of term 2 with its no-op durable."""
    node = Alone(**settings)
    node.become_leader()
    return node


def confirmed_leader(**settings: Any) -> Alone:
    """Return node 1 as leader of term 2 whose no-op is committed."""
    node = leading(**settings)
    node.ack(node.raft.last_index)
    node.settle()
    return node


# 5.1 Terms


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER])
def test_higher_term_is_adopted_in_any_role(role: Role) -> None:
    """5.1: if one server's term is smaller, it updates it and reverts to follower."""
    node = Alone()
    if role is Role.PRE_CANDIDATE:
        node.do(lambda raft: raft.campaign())
    elif role is Role.CANDIDATE:
        node.become_candidate()
    elif role is Role.LEADER:
        node.become_leader()
    assert node.raft.role is role

    node.append(after=(1, 1), term=9)

    assert (node.raft.term, node.raft.role, node.raft.leader) == (9, Role.FOLLOWER, NodeId("2"))
    assert node.raft.vote is None


def test_leader_of_an_earlier_term_learns_the_later_one() -> None:
    """5.1: a request with a stale term number is rejected, with the current term."""
    node = Alone(term=5)

    node.append(after=(1, 1), term=4)
    node.hear(HeartbeatRequest, term=4, commit_index=0, round=7)
    node.hear(VoteRequest, term=4, last_index=9, last_term=4)

    answers = node.settle()
    assert [(type(m), m.term) for m in answers] == [
        (AppendResponse, 5),
        (HeartbeatResponse, 5),
        (VoteResponse, 5),
    ]
    (appended,) = [m for m in answers if isinstance(m, AppendResponse)]
    assert not appended.success
    assert node.raft.leader is None


def test_answers_of_an_earlier_term_are_ignored() -> None:
    """5.1: they say nothing about this one."""
    node = leading()
    before = node.raft.commit_index

    node.hear(AppendResponse, term=1, success=True, match_index=2)
    node.hear(VoteResponse, term=1, granted=True)

    assert node.raft.commit_index == before


# 5.2 Leader election


def test_node_starts_as_follower() -> None:
    """5.2: when servers start up, they begin as followers."""
    assert Alone().raft.role is Role.FOLLOWER


def test_follower_campaigns_after_an_election_timeout_of_silence() -> None:
    """5.2: no communication over the election timeout begins an election."""
    node = following()

    node.tick(TIMEOUT)
    assert node.role() is Role.FOLLOWER
    node.tick(TIMEOUT // 2)

    assert node.role() is Role.PRE_CANDIDATE


def test_heartbeats_keep_a_follower_quiet() -> None:
    """5.2: a server remains a follower as long as it hears from a leader."""
    node = following()

    for round_number in range(10):
        node.tick(TIMEOUT - 1)
        node.hear(HeartbeatRequest, term=1, commit_index=0, round=round_number)

    assert node.raft.role is Role.FOLLOWER


def test_candidate_enters_the_next_term_and_votes_for_itself() -> None:
    """5.2: it increments its term, votes for itself and asks all others."""
    node = Alone(voters=5)

    node.become_candidate()

    assert (node.raft.term, node.raft.vote) == (2, "1")
    requests = [m for m in node.settle() if isinstance(m, VoteRequest)]
    assert [m.recipient for m in requests] == ["2", "3", "4", "5"]
    assert {(m.term, m.last_index, m.last_term) for m in requests} == {(2, 1, 1)}


def test_candidate_with_a_majority_leads() -> None:
    """5.2: votes from a majority for the same term win."""
    node = Alone(voters=5)
    node.become_candidate()
    node.settle()

    node.hear(VoteResponse, sender="2", term=2, granted=True)
    assert node.role() is Role.CANDIDATE
    node.hear(VoteResponse, sender="3", term=2, granted=True)

    assert node.role() is Role.LEADER


def test_repeated_votes_of_one_node_count_once() -> None:
    """5.2: a majority of servers, not of messages."""
    node = Alone(voters=5)
    node.become_candidate()
    node.settle()

    for _ in range(3):
        node.hear(VoteResponse, sender="2", term=2, granted=True)

    assert node.raft.role is Role.CANDIDATE


def test_votes_of_non_members_do_not_count() -> None:
    """5.2: only voters of the membership in force."""
    node = Alone(voters=3)
    node.become_candidate()
    node.settle()

    node.hear(VoteResponse, sender="9", term=2, granted=True)

    assert node.raft.role is Role.CANDIDATE


def test_one_vote_in_a_term() -> None:
    """5.2: each server votes for at most one candidate in a term, first come first served."""
    node = Alone(term=1)

    node.hear(VoteRequest, sender="2", term=2, last_index=1, last_term=1)
    node.hear(VoteRequest, sender="3", term=2, last_index=9, last_term=1)
    node.hear(VoteRequest, sender="2", term=2, last_index=1, last_term=1)

    votes = [m for m in node.settle() if isinstance(m, VoteResponse)]
    assert [(m.recipient, m.granted) for m in votes] == [("2", True), ("3", False), ("2", True)]


def test_vote_is_remembered_over_a_restart() -> None:
    """5.2, figure 2: votedFor is persistent."""
    node = Alone(term=2, vote="3")

    node.hear(VoteRequest, sender="2", term=2, last_index=9, last_term=1)

    assert [m.granted for m in node.settle() if isinstance(m, VoteResponse)] == [False]


def test_candidate_recognises_the_leader_of_its_term() -> None:
    """5.2: an AppendEntries from a leader of the same term makes it a follower again."""
    node = Alone()
    node.become_candidate()

    node.append(after=(1, 1), term=2)

    assert (node.raft.role, node.raft.leader, node.raft.vote) == (Role.FOLLOWER, "2", "1")


def test_second_leader_of_a_term_is_ignored() -> None:
    """5.2: a term has at most one; whoever else claims to be it is at fault."""
    node = following()

    node.hear(HeartbeatRequest, sender="3", term=1, commit_index=1, round=1)
    node.append(data_entry(1, 2), after=(1, 1), term=1, sender="3")

    assert (node.raft.leader, node.raft.last_index, node.raft.commit_index) == ("2", 1, 0)
    assert node.settle() == []


def test_giving_a_vote_starts_the_wait_anew() -> None:
    """5.2: a follower campaigns if it neither hears a leader nor grants a vote."""
    node = Alone(term=1)
    node.tick(TIMEOUT)

    node.hear(VoteRequest, term=2, last_index=1, last_term=1)
    node.tick(TIMEOUT)

    assert node.raft.role is Role.FOLLOWER


def test_refusing_a_vote_does_not_start_the_wait_anew() -> None:
    """5.2: else a candidate that cannot win could keep those that can from trying."""
    node = Alone(terms=(1,))
    node.tick(TIMEOUT)

    node.hear(VoteRequest, term=2, last_index=1, last_term=1)
    node.tick(TIMEOUT // 2)

    assert node.raft.role is Role.PRE_CANDIDATE


def test_candidate_ignores_the_leader_of_an_earlier_term() -> None:
    """5.2: if the term is smaller, it rejects and continues as candidate."""
    node = Alone()
    node.become_candidate()

    node.append(after=(1, 1), term=1)

    assert node.raft.role is Role.CANDIDATE


def test_campaign_without_result_is_tried_again() -> None:
    """5.2: each candidate times out and starts a new election."""
    node = Alone()
    node.become_candidate()
    node.settle()

    node.tick(TIMEOUT)

    assert node.raft.role is Role.PRE_CANDIDATE
    assert any(isinstance(m, PreVoteRequest) and m.term == 3 for m in node.settle())


def test_candidate_that_a_majority_refused_is_follower_again() -> None:
    """5.2: it cannot win any more, and waits."""
    node = Alone()
    node.become_candidate()
    node.settle()

    node.hear(VoteResponse, sender="2", term=2, granted=False)
    node.hear(VoteResponse, sender="3", term=2, granted=False)

    assert node.raft.role is Role.FOLLOWER


def test_single_voter_elects_itself() -> None:
    """5.2: its own vote is the majority."""
    node = Alone(voters=1)

    node.do(lambda raft: raft.campaign())
    node.settle()

    assert node.raft.role is Role.LEADER
    assert node.raft.commit_index == 2


def test_leader_sends_heartbeats() -> None:
    """5.2: periodically, to all followers."""
    node = leading(heartbeat_ticks=2)

    node.tick(4)

    beats = [m for m in node.settle() if isinstance(m, HeartbeatRequest)]
    assert [(m.recipient, m.round) for m in beats] == [("2", 1), ("3", 1), ("2", 2), ("3", 2)]


# 5.3 Log replication


def test_leader_appends_and_replicates_proposals() -> None:
    """5.3: it appends the command to its log, then issues AppendEntries in parallel."""
    node = leading()
    node.ack(2, sender="2")
    node.ack(2, sender="3")

    where = node.propose(b"a")

    appends = [m for m in node.take().messages if isinstance(m, AppendRequest)]
    assert where == (2, 3)
    assert [m.recipient for m in appends] == ["2", "3"]
    assert all((m.previous_term, m.previous_index) == (2, 2) for m in appends)
    assert all([e.data for e in m.entries] == [b"a"] for m in appends)


def test_entry_commits_once_a_majority_has_it() -> None:
    """5.3: committed when replicated on a majority; then applied in order."""
    node = leading(voters=5)
    node.propose(b"a")
    node.settle()

    node.ack(3, sender="2")
    assert node.raft.commit_index == 0
    node.ack(3, sender="3")
    node.settle()

    assert node.raft.commit_index == 3
    assert [e.index for e in node.committed] == [1, 2, 3]


def test_follower_learns_the_commit_index() -> None:
    """5.3: the leader includes it in AppendEntries and heartbeats."""
    node = following(terms=(1, 1))

    node.append(after=(1, 2), term=1, commit=2)
    assert node.raft.commit_index == 2
    node.hear(HeartbeatRequest, term=1, commit_index=3, round=2)

    assert node.raft.commit_index == 3


def test_commit_index_stays_within_what_the_message_matched() -> None:
    """5.3, figure 2: min(leaderCommit, index of last new entry)."""
    node = Alone(terms=(1, 1, 1))

    node.append(after=(1, 1), term=2, commit=9)

    assert node.raft.commit_index == 1


@pytest.mark.parametrize(
    ("previous", "agree"),
    [((1, 9), (1, 3)), ((2, 3), (1, 3)), ((3, 9), (1, 3))],
    ids=["beyond the log", "another term", "both"],
)
def test_follower_rejects_append_when_previous_entry_differs(
    previous: tuple[int, int], agree: tuple[int, int]
) -> None:
    """5.3: the consistency check; the answer says where the logs may agree."""
    node = Alone(terms=(1, 1))

    node.append(data_entry(3, previous[1] + 1), after=previous, term=3)

    (answer,) = [m for m in node.settle() if isinstance(m, AppendResponse)]
    assert not answer.success
    assert answer.match_index == previous[1]
    assert (answer.conflict_term, answer.conflict_index) == agree


def test_rejection_skips_a_whole_term() -> None:
    """5.3, end: one exchange for each conflicting term, not for each entry."""
    node = Alone(terms=(2, 2, 2, 2))

    node.append(after=(3, 5), term=4)
    node.append(after=(1, 5), term=4)

    answers = [m for m in node.settle() if isinstance(m, AppendResponse)]
    assert [(m.conflict_term, m.conflict_index) for m in answers] == [(2, 5), (1, 1)]


def test_conflicting_entries_are_replaced() -> None:
    """5.3: the follower's entries give way to the leader's."""
    node = Alone(terms=(1, 1))

    node.append(data_entry(2, 2), after=(1, 1), term=2)

    assert (node.raft.last_index, node.raft.last_term) == (2, 2)


def test_entries_that_are_there_already_are_kept() -> None:
    """5.3, figure 2: only a conflict truncates; a late, shorter message must not."""
    node = Alone(terms=(1, 1))

    node.append(data_entry(1, 2), after=(1, 1), term=1)

    assert node.raft.last_index == 3
    (answer,) = [m for m in node.settle() if isinstance(m, AppendResponse)]
    assert answer.match_index == 2


def test_committed_entries_are_not_replaced() -> None:
    """5.4: only a faulty leader could ask for it; it gets no answer."""
    node = Alone(terms=(1, 1))
    node.append(after=(1, 3), term=1, commit=3)
    node.settle()

    node.append(data_entry(2, 2), after=(1, 1), term=2)

    assert node.raft.last_index == 3
    assert not [m for m in node.settle() if isinstance(m, AppendResponse)]


def test_leader_resumes_where_the_logs_may_agree() -> None:
    """5.3: after a rejection it decrements nextIndex and retries."""
    node = leading(terms=(1, 1, 1))

    node.hear(
        AppendResponse,
        term=2,
        success=False,
        match_index=4,
        conflict_term=1,
        conflict_index=2,
    )

    (append,) = [m for m in node.settle() if isinstance(m, AppendRequest)]
    assert (append.previous_term, append.previous_index) == (1, 2)
    assert [e.index for e in append.entries] == [3, 4]


def test_leader_never_overwrites_its_own_log() -> None:
    """5.3, figure 3: leader append-only; a second leader in its term cannot be."""
    node = leading()

    node.append(data_entry(2, 2, b"other"), after=(1, 1), term=2)

    assert node.raft.role is Role.LEADER
    assert node.raft.last_index == 2


# 5.4 Safety


@pytest.mark.parametrize(
    ("log", "granted"),
    [((2, 3), True), ((3, 1), True), ((2, 4), True), ((2, 2), False), ((1, 9), False)],
    ids=["equal", "later term", "longer", "shorter", "longer but earlier term"],
)
def test_vote_goes_only_to_an_up_to_date_log(log: tuple[int, int], granted: bool) -> None:
    """5.4.1: the later last term wins, then the longer log."""
    node = Alone(terms=(1, 2))

    node.hear(VoteRequest, term=5, last_term=log[0], last_index=log[1])

    assert [m.granted for m in node.settle() if isinstance(m, VoteResponse)] == [granted]
    assert node.raft.term == 5


def test_entries_of_earlier_terms_do_not_commit_by_counting() -> None:
    """5.4.2, figure 8: only an entry of the leader's own term does; the rest follows."""
    node = leading(terms=(1, 1))

    node.ack(3)
    assert node.raft.commit_index == 0
    node.ack(4)

    assert node.raft.commit_index == 4


def test_new_leader_appends_a_noop() -> None:
    """8: it commits a blank entry at the start of its term."""
    node = Alone()

    node.become_leader(settle=False)

    (entry,) = node.take().entries
    assert (entry.index, entry.term, entry.kind.name, entry.data) == (2, 2, "NOOP", b"")


def test_follower_does_not_take_proposals() -> None:
    """8: clients are told the leader."""
    node = following()

    with pytest.raises(NotLeader) as refusal:
        node.propose()

    assert refusal.value.leader == "2"


# Thesis 3.10 Leadership transfer


def test_transfer_waits_until_the_target_has_the_log() -> None:
    """Thesis 3.10: the prior leader brings the target up to date, then says TimeoutNow."""
    node = leading()
    node.propose(b"a")

    assert node.do(lambda raft: raft.transfer_leadership(NodeId("3"))) == "3"
    assert not [m for m in node.settle() if isinstance(m, TimeoutNow)]
    node.ack(3, sender="3")

    assert [m.recipient for m in node.settle() if isinstance(m, TimeoutNow)] == ["3"]


def test_target_of_a_transfer_campaigns_at_once_and_past_the_lease() -> None:
    """Thesis 3.10, 4.2.3: its vote requests say that the leader wishes it."""
    target, other = following(), following()

    target.hear(TimeoutNow, term=1)
    request = next(m for m in target.settle() if isinstance(m, VoteRequest))
    other.hear(VoteRequest, sender="3", term=2, last_index=1, last_term=1, transfer=True)

    assert request.transfer
    assert [m.granted for m in other.settle() if isinstance(m, VoteResponse)] == [True]


# Thesis 6.2 Check-quorum, 4.2.3 lease


def test_leader_without_a_quorum_steps_down() -> None:
    """Thesis 6.2: when an election timeout passes without a round to a majority."""
    node = leading()
    node.tick(TIMEOUT - 1)
    assert node.raft.role is Role.LEADER

    node.tick()

    assert (node.raft.role, node.raft.leader, node.raft.term) == (Role.FOLLOWER, None, 2)


def test_leader_with_a_quorum_stays() -> None:
    """Thesis 6.2: one of two followers is enough, whatever it answers."""
    node = leading()

    for round_number in range(5):
        node.tick(TIMEOUT - 1)
        node.hear(HeartbeatResponse, term=2, round=round_number)

    assert node.raft.role is Role.LEADER


def test_vote_request_is_ignored_while_a_leader_is_live() -> None:
    """Thesis 4.2.3: a server that was removed or cut off must not disturb."""
    node = following()

    node.hear(VoteRequest, sender="3", term=7, last_index=9, last_term=6)

    assert (node.raft.term, node.raft.leader) == (1, "2")
    assert node.settle() == []


def test_lease_ends_after_an_election_timeout() -> None:
    """Thesis 4.2.3: within the minimum election timeout of hearing from a leader."""
    node = following()
    node.tick(TIMEOUT)

    node.hear(VoteRequest, sender="3", term=7, last_index=9, last_term=6)

    assert (node.raft.term, node.raft.vote) == (7, "3")


# Thesis 9.6 Pre-vote


def test_pre_vote_changes_no_state() -> None:
    """Thesis 9.6: neither asking nor granting touches term or vote."""
    asking, granting = Alone(), Alone()

    asking.do(lambda raft: raft.campaign())
    granting.hear(PreVoteRequest, term=2, last_index=1, last_term=1)

    assert (asking.raft.term, asking.raft.vote) == (1, None)
    assert (granting.raft.term, granting.raft.vote) == (1, None)
    assert [m.granted for m in granting.settle() if isinstance(m, PreVoteResponse)] == [True]


def test_pre_vote_is_refused_while_a_leader_is_live() -> None:
    """Thesis 9.6: unless it has not heard from a valid leader for an election timeout."""
    node = following()

    node.hear(PreVoteRequest, sender="3", term=2, last_index=9, last_term=1)

    assert [m.granted for m in node.settle() if isinstance(m, PreVoteResponse)] == [False]


def test_pre_vote_is_refused_to_a_log_that_is_behind() -> None:
    """Thesis 9.6: only if it would be willing to grant the vote."""
    node = Alone(terms=(1,))

    node.hear(PreVoteRequest, term=2, last_index=1, last_term=1)

    assert [m.granted for m in node.settle() if isinstance(m, PreVoteResponse)] == [False]


def test_election_starts_only_after_a_majority_would_vote() -> None:
    """Thesis 9.6: a partitioned server does not increase its term."""
    node = Alone(voters=5)
    node.do(lambda raft: raft.campaign())
    node.hear(PreVoteResponse, sender="2", term=2, granted=True)
    assert node.raft.role is Role.PRE_CANDIDATE

    node.hear(PreVoteResponse, sender="3", term=2, granted=True)

    assert (node.raft.role, node.raft.term) == (Role.CANDIDATE, 2)


def test_refused_pre_vote_tells_a_node_that_lags_the_term() -> None:
    """Thesis 9.6: a rejection from a later term makes the asker follow into it."""
    node = Alone()
    node.do(lambda raft: raft.campaign())

    node.hear(PreVoteResponse, term=8, granted=False)

    assert (node.raft.role, node.raft.term) == (Role.FOLLOWER, 8)
    assert node.take().hard_state == HardState(8)


def test_stale_pre_vote_does_not_count() -> None:
    """Thesis 9.6: the answer to another term's question says nothing about this one."""
    node = Alone()
    node.do(lambda raft: raft.campaign())

    node.hear(PreVoteResponse, term=7, granted=True)

    assert node.raft.role is Role.PRE_CANDIDATE


# Thesis 6.4 Reads without log entries


def heartbeat_round(node: Alone) -> int:
    """Return the round of the heartbeats that leave now."""
    return max(m.round for m in node.settle() if isinstance(m, HeartbeatRequest))


def test_read_waits_until_a_quorum_answers_a_round_begun_after_it() -> None:
    """Thesis 6.4, step 3: the leader makes sure that it has not been superseded."""
    node = confirmed_leader()
    index = node.raft.commit_index

    node.do(lambda raft: raft.read_index(7))
    number = heartbeat_round(node)
    assert node.confirmed == []
    node.hear(HeartbeatResponse, term=2, round=number)
    node.settle()

    assert node.confirmed == [ConfirmedRead(7, index)]


def test_read_is_refused_before_an_entry_of_the_own_term_is_committed() -> None:
    """Thesis 6.4, step 1: until then the leader does not know which entries are committed."""
    node = leading()

    with pytest.raises(Unavailable, match="not committed an entry"):
        node.do(lambda raft: raft.read_index(7))


def test_answers_to_an_earlier_round_do_not_confirm_a_read() -> None:
    """Thesis 6.4: the heartbeats must be exchanged after the read began."""
    node = confirmed_leader()
    node.tick(2)
    earlier = heartbeat_round(node)

    node.do(lambda raft: raft.read_index(7))
    node.settle()
    node.hear(HeartbeatResponse, term=2, round=earlier)
    node.hear(HeartbeatResponse, term=2, round=10**9)
    node.settle()

    assert node.confirmed == []


def test_reads_share_a_round() -> None:
    """Thesis 6.4: the cost of a round is amortised over all reads that gathered."""
    node = confirmed_leader()
    for context in (1, 2):
        node.do(partial(Raft.read_index, context=context))
    first = heartbeat_round(node)
    for context in (3, 4):
        node.do(partial(Raft.read_index, context=context))
    assert not [m for m in node.settle() if isinstance(m, HeartbeatRequest)]

    node.hear(HeartbeatResponse, term=2, round=first)
    second = heartbeat_round(node)
    node.hear(HeartbeatResponse, sender="3", term=2, round=second)
    node.settle()

    assert second == first + 1
    assert [read.context for read in node.confirmed] == [1, 2, 3, 4]


def test_regular_heartbeats_ask_again_for_a_lost_round() -> None:
    """Thesis 6.4: any later round confirms as well."""
    node = confirmed_leader()
    node.do(lambda raft: raft.read_index(7))
    node.settle()

    node.tick(2)
    node.hear(HeartbeatResponse, term=2, round=heartbeat_round(node))
    node.settle()

    assert [read.context for read in node.confirmed] == [7]


def test_read_of_a_leader_that_was_superseded_is_never_confirmed() -> None:
    """Thesis 6.4: a stale leader must not answer."""
    node = confirmed_leader()
    node.do(lambda raft: raft.read_index(7))
    number = heartbeat_round(node)

    node.hear(HeartbeatRequest, sender="3", term=3, commit_index=0, round=1)
    node.hear(HeartbeatResponse, term=2, round=number)
    node.settle()

    assert node.confirmed == []
    with pytest.raises(NotLeader):
        node.do(lambda raft: raft.read_index(8))


def test_single_voter_confirms_reads_itself() -> None:
    """Thesis 6.4: it is its own quorum."""
    node = leading(voters=1)

    node.do(lambda raft: raft.read_index(7))
    node.settle()

    assert node.confirmed == [ConfirmedRead(7, node.raft.commit_index)]


def test_waiting_reads_are_bounded() -> None:
    """Beyond the paper: overload is a typed error, never growing memory."""
    node = confirmed_leader(max_waiting_reads=2)
    node.do(lambda raft: raft.read_index(1))
    node.do(lambda raft: raft.read_index(2))

    with pytest.raises(Overloaded, match="2 reads wait"):
        node.do(lambda raft: raft.read_index(3))
    node.hear(HeartbeatResponse, term=2, round=heartbeat_round(node))

    node.do(lambda raft: raft.read_index(3))
