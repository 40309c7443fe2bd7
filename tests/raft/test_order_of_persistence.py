"""What may leave, count or be applied only after what is durable. One test for each rule."""

from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    PreVoteRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.types import HardState, NodeId, Role
from tests.raft.bench import Alone, data_entry


def test_vote_leaves_only_after_term_and_vote_are_durable() -> None:
    """A vote that is forgotten could be given twice."""
    node = Alone()

    node.hear(VoteRequest, term=2, last_index=1, last_term=1)

    ready = node.take()
    assert ready.hard_state == HardState(2, NodeId("2"))
    assert [type(m) for m in ready.after_hard_state] == [VoteResponse]
    assert ready.messages == ready.after_entries == ()


def test_vote_that_is_durable_already_is_not_written_again() -> None:
    """A repeated request costs no write."""
    node = Alone(term=2, vote="2")

    node.hear(VoteRequest, term=2, last_index=1, last_term=1)

    ready = node.take()
    assert ready.hard_state is None
    assert [m.granted for m in ready.after_hard_state if isinstance(m, VoteResponse)] == [True]


def test_vote_in_a_term_that_is_durable_already_is_written_before_it_leaves() -> None:
    """The term was entered without one: after a restart it would be given a second time."""
    node = Alone(term=2)

    node.hear(VoteRequest, term=2, last_index=1, last_term=1)

    ready = node.take()
    assert ready.hard_state == HardState(2, NodeId("2"))
    assert [m.granted for m in ready.after_hard_state if isinstance(m, VoteResponse)] == [True]


def test_refused_vote_leaves_only_after_the_term_is_durable() -> None:
    """It speaks for a term that must not be forgotten."""
    node = Alone(terms=(1,))

    node.hear(VoteRequest, term=2, last_index=1, last_term=1)

    ready = node.take()
    assert ready.hard_state == HardState(2)
    assert [m.granted for m in ready.after_hard_state if isinstance(m, VoteResponse)] == [False]


def test_vote_request_leaves_only_after_the_own_vote_is_durable() -> None:
    """A candidate that forgets its vote could vote for another in its own term."""
    node = Alone()

    node.become_candidate()

    ready = node.take()
    assert ready.hard_state == HardState(2, NodeId("1"))
    assert [type(m) for m in ready.after_hard_state] == [VoteRequest, VoteRequest]
    assert all(isinstance(m, PreVoteRequest) for m in ready.messages)


def test_own_vote_counts_only_after_it_is_durable() -> None:
    """A majority of durable votes, ours included."""
    node = Alone(voters=3)
    node.become_candidate()
    saved = node.take().hard_state
    assert saved is not None

    node.hear(VoteResponse, sender="2", term=2, granted=True)
    node.hear(VoteResponse, sender="3", term=2, granted=True)
    assert node.role() is Role.CANDIDATE
    node.do(lambda raft: raft.hard_state_persisted(saved))

    assert node.role() is Role.LEADER


def test_single_voter_leads_only_after_its_vote_is_durable() -> None:
    """Nobody else could remember it."""
    node = Alone(voters=1)
    node.become_candidate()
    node.take()
    assert node.role() is Role.CANDIDATE

    node.save_hard_state()

    assert node.role() is Role.LEADER


def test_stale_hard_state_completion_is_not_the_own_vote() -> None:
    """What became durable is an earlier term's vote."""
    node = Alone()
    node.become_candidate()
    first = node.take().hard_state
    assert first is not None
    node.tick(20)
    node.become_candidate()
    node.take()
    node.hear(VoteResponse, sender="2", term=node.raft.term, granted=True)

    node.do(lambda raft: raft.hard_state_persisted(first))

    assert node.raft.role is Role.CANDIDATE


def test_success_leaves_only_after_the_entries_are_durable() -> None:
    """The leader counts it as a copy on disk."""
    node = Alone()

    node.append(data_entry(2, 2), after=(1, 1), term=2)

    ready = node.take()
    assert ready.hard_state == HardState(2)
    assert [e.index for e in ready.entries] == [2]
    assert [type(m) for m in ready.after_entries] == [AppendResponse]
    assert ready.messages == ready.after_hard_state == ()


def test_success_for_entries_under_way_waits_for_them_too() -> None:
    """A repeated request is not answered from memory."""
    node = Alone()
    node.append(data_entry(1, 2), after=(1, 1), term=1)
    node.take()

    node.append(data_entry(1, 2), after=(1, 1), term=1)

    ready = node.take()
    assert ready.entries == ()
    assert [m.match_index for m in ready.after_entries if isinstance(m, AppendResponse)] == [2]


def test_success_names_the_request_not_the_end_of_the_log() -> None:
    """Behind the request's entries the logs may differ."""
    node = Alone(terms=(1, 1, 1))

    node.append(after=(1, 2), term=2)

    assert [m.match_index for m in node.settle() if isinstance(m, AppendResponse)] == [2]


def test_ack_for_entries_that_were_replaced_before_writing_is_withdrawn() -> None:
    """It would claim an entry that no disk of ours ever held."""
    node = Alone()
    node.append(data_entry(2, 2), after=(1, 1), term=2, sender="2")

    node.append(data_entry(3, 2), after=(1, 1), term=3, sender="3")

    ready = node.take()
    assert [(m.recipient, m.term) for m in ready.after_entries] == [("3", 3)]
    assert [(e.index, e.term) for e in ready.entries] == [(2, 3)]


def test_rejected_append_leaves_only_after_the_term_is_durable() -> None:
    """It needs no entries, but it speaks for the term."""
    node = Alone()

    node.append(after=(2, 9), term=2)

    ready = node.take()
    assert ready.hard_state == HardState(2)
    assert [type(m) for m in ready.after_hard_state] == [AppendResponse]
    assert ready.messages == ready.after_entries == ()


def test_heartbeat_response_leaves_only_after_the_term_is_durable() -> None:
    """It tells the leader that we follow it in this term."""
    node = Alone()

    node.hear(HeartbeatRequest, term=2, commit_index=0, round=1)

    ready = node.take()
    assert ready.hard_state == HardState(2)
    assert [type(m) for m in ready.after_hard_state] == [HeartbeatResponse]
    assert ready.messages == ()


def test_heartbeat_response_does_not_wait_for_entries() -> None:
    """A slow disk must not look like a dead node."""
    node = Alone()
    node.append(data_entry(1, 2), after=(1, 1), term=1)

    node.hear(HeartbeatRequest, term=1, commit_index=0, round=1)

    assert [type(m) for m in node.take().after_hard_state] == [HeartbeatResponse]


def test_answer_to_an_earlier_term_leaves_only_after_ours_is_durable() -> None:
    """The old leader steps down for a term that exists."""
    node = Alone()
    node.hear(VoteRequest, term=5, last_index=0, last_term=0)

    node.append(after=(1, 1), term=4)

    ready = node.take()
    assert ready.hard_state == HardState(5)
    assert [type(m) for m in ready.after_hard_state] == [VoteResponse, AppendResponse]


def test_leader_sends_entries_before_its_own_sync() -> None:
    """Thesis 10.2.1: followers write while the leader does."""
    node = Alone()
    node.become_leader()
    node.ack(2)
    node.take()

    node.propose(b"a")

    ready = node.take()
    assert [e.index for e in ready.entries] == [3]
    assert [type(m) for m in ready.messages] == [AppendRequest]


def test_leader_counts_itself_only_after_its_own_sync() -> None:
    """Its copy counts like any other: once it is on disk."""
    node = Alone(voters=3)
    node.become_leader(settle=False)
    node.take()

    node.ack(2)
    assert node.raft.commit_index == 0
    node.sync()

    assert node.raft.commit_index == 2


def test_followers_alone_can_commit() -> None:
    """A majority that does not include the leader is one."""
    node = Alone(voters=3)
    node.become_leader(settle=False)
    node.take()

    node.ack(2, sender="2")
    node.ack(2, sender="3")

    assert node.raft.commit_index == 2
    assert node.raft.durable_index == 1


def test_entries_are_applied_only_when_committed_and_durable_here() -> None:
    """Otherwise a restarted node could lack what it had shown."""
    node = Alone(voters=3)
    node.become_leader(settle=False)
    node.take()
    node.ack(2, sender="2")
    node.ack(2, sender="3")
    node.take()
    assert [e.index for e in node.committed] == [1]

    node.sync()
    node.take()

    assert [e.index for e in node.committed] == [1, 2]


def test_durable_but_uncommitted_entries_are_not_applied() -> None:
    """They may still be replaced."""
    node = Alone()
    node.append(data_entry(1, 2), after=(1, 1), term=1, commit=1)

    node.settle()

    assert [e.index for e in node.committed] == [1]


def test_stale_completion_for_a_replaced_entry_does_not_count() -> None:
    """The slot's old entry is on disk; its new one is not."""
    node = Alone()
    node.append(data_entry(2, 2), after=(1, 1), term=2, sender="2")
    node.take()
    node.append(data_entry(3, 2), after=(1, 1), term=3, sender="3", commit=2)
    node.take()

    node.sync()

    assert node.raft.durable_index == 1
    assert [e.index for e in node.committed] == [1]


def test_stale_completion_does_not_count_though_the_same_entry_is_back() -> None:
    """A, B, A: the older write of A is done, but B is still to be written over it."""
    node = Alone()
    for term, entry_term in ((2, 2), (3, 3), (4, 2)):
        node.append(data_entry(entry_term, 2), after=(1, 1), term=term)
        node.take()

    node.sync()
    assert node.raft.durable_index == 1
    node.sync()
    assert node.raft.durable_index == 1
    node.sync()

    assert node.raft.durable_index == 2


def test_completion_counts_up_to_what_was_replaced() -> None:
    """The part of a write below the cut stands."""
    node = Alone()
    node.append(data_entry(2, 2), data_entry(2, 3), after=(1, 1), term=2, sender="2")
    node.take()
    node.append(data_entry(3, 3), after=(2, 2), term=3, sender="3")
    node.take()

    node.sync()

    assert node.raft.durable_index == 2


def test_write_of_entries_that_overtook_the_term_is_made_good_at_restart() -> None:
    """The log and the hard state are written by different threads; a crash may split them."""
    node = Alone(terms=(5,), term=3, vote="2")

    assert (node.raft.term, node.raft.vote) == (5, None)
    assert node.take().hard_state == HardState(5)


def test_order_to_campaign_needs_no_sync() -> None:
    """TimeoutNow rests on the leader's term alone, which is durable since its election."""
    node = Alone()
    node.become_leader()
    node.ack(2)

    node.do(lambda raft: raft.transfer_leadership(None))

    assert any(isinstance(m, TimeoutNow) for m in node.take().messages)


def test_what_may_be_applied_later_is_handed_over_at_once_if_there_is_much() -> None:
    """Or when nobody wants to wait any more; it is committed and durable all the same."""
    node = Alone(terms=())
    node.do(lambda raft: raft.apply_later(later=True))
    node.append(data_entry(1, 2), after=(1, 1), term=1, commit=1)
    node.settle()
    handed_over = len(node.committed)

    node.append(data_entry(1, 3), after=(1, 2), term=1, commit=2)
    node.settle()
    assert len(node.committed) == handed_over

    node.append(data_entry(1, 4, bytes(16 << 10)), after=(1, 3), term=1, commit=3)
    node.settle()
    assert [entry.index for entry in node.committed] == [1, 2, 3]

    node.append(after=(1, 4), term=1, commit=4)
    node.settle()
    assert node.committed[-1].index == 4

    node.append(data_entry(1, 5), after=(1, 4), term=1, commit=5)
    node.settle()
    assert node.committed[-1].index == 4
    node.do(lambda raft: raft.apply_later(later=False))
    node.settle()
    assert node.committed[-1].index == 5


def test_what_is_read_back_is_not_applied_later() -> None:
    """A node that is far behind gets it in pieces; one with each heartbeat would take for ever."""
    node = Alone(terms=(1, 1, 1), max_apply_bytes=1)
    node.do(lambda raft: raft.apply_later(later=True))

    node.hear(HeartbeatRequest, term=1, commit_index=4, round=1)
    node.settle()

    assert [entry.index for entry in node.committed] == [1, 2, 3, 4]
