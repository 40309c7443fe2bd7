"""What the core promises beyond the paper."""

import random
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import InvalidArgument, NotLeader, Overloaded, Refused
from dledger.raft.core import Cause, Raft, RaftConfig
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.types import Entry, EntryKind, HardState, NodeId, Role
from tests.raft.bench import Alone, ListDisk, ModelSnapshots, data_entry, log_of

TIMEOUT = 20


def following(**config: Any) -> Alone:
    node = Alone(**config)
    node.hear(HeartbeatRequest, term=node.raft.term, commit_index=0, round=1)
    node.settle()
    return node


def leading(**config: Any) -> Alone:
    """Return node 1 as leader of term 2; both followers have acknowledged its no-op."""
    node = Alone(**config)
    node.become_leader()
    for peer in ("2", "3"):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    return node


def appends(messages: list[Message], to: str = "2") -> list[AppendRequest]:
    return [m for m in messages if isinstance(m, AppendRequest) and m.recipient == to]


# Founding and membership


def test_node_with_an_empty_log_never_campaigns() -> None:
    """It waits to be founded or to be found."""
    node = Alone(terms=None)

    node.do(lambda raft: raft.campaign())
    node.tick(10 * TIMEOUT)
    node.hear(TimeoutNow, term=1)

    assert node.raft.role is Role.FOLLOWER
    assert not any(isinstance(m, PreVoteRequest | VoteRequest) for m in node.settle())


def test_node_with_an_empty_log_votes_and_appends() -> None:
    """Without that, the first election of a group could not be won."""
    node = Alone(terms=None)

    node.hear(PreVoteRequest, term=2, last_index=1, last_term=1)
    node.hear(VoteRequest, term=2, last_index=1, last_term=1)
    node.append(*log_of(), after=(0, 0), term=2)

    answers = node.settle()
    assert [m.granted for m in answers if isinstance(m, PreVoteResponse | VoteResponse)] == [
        True,
        True,
    ]
    assert [m.match_index for m in answers if isinstance(m, AppendResponse)] == [1]
    assert node.raft.membership.voter_ids == {"1", "2", "3"}


def test_answers_of_non_members_are_ignored() -> None:
    """A wiped disk is another node, and does not count."""
    node = Alone()
    node.become_leader()
    last = node.raft.last_index

    node.ack(last, sender="9")
    node.hear(HeartbeatResponse, sender="9", term=7, round=1)

    assert (node.raft.term, node.raft.commit_index) == (2, 0)


def test_messages_for_another_node_are_ignored() -> None:
    """A new disk may answer under an old address."""
    node = Alone()
    message = HeartbeatRequest(
        sender=NodeId("2"), recipient=NodeId("9"), term=7, commit_index=0, commit_chain=0, round=1
    )

    node.do(lambda raft: raft.step(message))

    assert node.raft.term == 1


def test_truncation_brings_the_membership_before_back() -> None:
    """A membership counts from when it is appended, so it goes with its entry."""
    node = Alone(terms=None)
    node.append(*log_of(), after=(0, 0), term=2)
    before = node.raft.membership.voters

    node.append(data_entry(3, 1), after=(0, 0), term=3)

    assert (len(before), len(node.raft.membership.voters)) == (3, 0)


def test_append_with_a_membership_that_cannot_be_read_is_ignored() -> None:
    """Nothing of it is taken, and nothing is acknowledged."""
    node = Alone(terms=None)
    bad = Entry(term=1, index=1, kind=EntryKind.MEMBERSHIP, timestamp_ms=0, crc32c=0, data=b"\xff{")

    node.append(bad, after=(0, 0), term=1)

    assert node.raft.last_index == 0
    assert node.settle() == []


@pytest.mark.parametrize(
    "entries",
    [
        (data_entry(2, 3),),
        (data_entry(2, 2), data_entry(2, 4)),
        (data_entry(2, 2), data_entry(1, 3)),
        (data_entry(9, 2),),
        (data_entry(0, 2),),
    ],
    ids=["gap before", "gap within", "terms fall", "term from the future", "no term"],
)
def test_malformed_appends_are_ignored(entries: tuple[Entry, ...]) -> None:
    """No leader sends them; they must not reach the log."""
    node = Alone()

    node.append(*entries, after=(1, 1), term=2)

    assert node.raft.last_index == 1
    assert not [m for m in node.settle() if isinstance(m, AppendResponse)]


# Priority


def test_settings_that_cannot_work_are_refused() -> None:
    """A handicap is bounded, and heartbeats come more often than elections."""
    wrong: list[dict[str, Any]]
    wrong = [{"handicap_ticks": -1}, {"handicap_ticks": 81}, {"heartbeat_ticks": 20}]
    for config in wrong:
        with pytest.raises(ValueError, match="ticks"):
            RaftConfig(id=NodeId("1"), **config)


def test_node_of_low_priority_campaigns_if_nobody_else_does() -> None:
    """It waits longer, and then decays to an ordinary node."""
    node = following(handicap_ticks=40)

    node.tick(TIMEOUT + 40)
    assert node.role() is Role.FOLLOWER
    node.tick(TIMEOUT // 2)

    assert node.role() is Role.PRE_CANDIDATE


# Windows


def test_failed_pre_votes_back_off() -> None:
    """A node that cannot win asks less and less often, up to a bound, and changes no term by it."""
    node = Alone(election_timeout_ticks=20)
    asked = []
    for tick in range(600):
        node.tick()
        if any(isinstance(m, PreVoteRequest) for m in node.settle()):
            asked.append(tick)
            for peer in ("2", "3"):
                node.hear(PreVoteResponse, sender=peer, term=1, granted=False)
    waits = [later - earlier for earlier, later in pairwise(asked)]

    assert waits[0] <= TIMEOUT // 2
    assert all(TIMEOUT <= wait <= 2 * TIMEOUT for wait in waits[2:])
    assert len(set(waits)) > 3
    assert node.raft.term == 1


def test_windows_are_bounded_for_every_follower() -> None:
    """However slow the followers are: messages and bytes in flight, per follower."""
    node = leading(max_inflight_appends=4, max_inflight_bytes=100, max_append_bytes=30)
    for _ in range(50):
        node.propose(b"x" * 20)
        node.settle()

    for peer in node.raft.progress().values():
        assert len(peer.inflight) <= 4
        assert peer.inflight_bytes <= 100 + 30


# Proposals


def test_membership_proposals_are_refused() -> None:
    """They go through the steps of a change."""
    node = leading()

    with pytest.raises(Refused, match="membership"):
        node.do(
            lambda raft: raft.propose(kind=EntryKind.MEMBERSHIP, data=b"", crc32c=0, timestamp_ms=0)
        )


def test_too_much_uncommitted_data_is_overload() -> None:
    """Memory is bounded; room returns with the commit."""
    node = leading(max_uncommitted_bytes=100)
    node.propose(b"x" * 60)
    node.propose(b"x" * 40)

    full = not node.raft.has_room
    with pytest.raises(Overloaded, match="100 bytes wait for commit"):
        node.propose(b"x")
    node.settle()
    node.ack(node.raft.last_index)

    assert (full, node.raft.has_room) == (True, True)
    node.propose(b"x" * 100)


def test_committed_data_counts_until_it_is_durable_here() -> None:
    """A leader with a stalled disk must not grow, though its followers commit."""
    node = leading(max_uncommitted_bytes=100)
    node.propose(b"x" * 100)
    node.take()
    node.ack(node.raft.last_index, sender="2")
    node.ack(node.raft.last_index, sender="3")
    assert node.raft.commit_index == node.raft.last_index

    with pytest.raises(Overloaded):
        node.propose(b"x")
    node.sync()

    node.propose(b"x")


def test_too_many_uncommitted_entries_are_overload() -> None:
    """However small they are; room returns with the commit."""
    node = leading(max_uncommitted_entries=3)
    for _ in range(3):
        node.propose(b"")

    with pytest.raises(Overloaded, match="3 entries wait for commit; at most 3 may"):
        node.propose(b"")
    node.settle()
    node.ack(node.raft.last_index)

    node.propose(b"")


def test_the_proposal_that_crosses_the_bound_is_let_in() -> None:
    """Whoever asked for room before it knew the size must not be refused with it."""
    node = leading(max_uncommitted_bytes=100)
    node.propose(b"x" * 99)
    assert node.raft.has_room

    node.propose(b"x" * 1000)

    with pytest.raises(Overloaded):
        node.propose(b"x")


def test_data_is_never_copied() -> None:
    """The bytes proposed are the bytes written, sent and applied."""
    node = leading()
    data = bytes(1000)

    node.propose(data)

    ready = node.take()
    assert ready.entries[0].data is data
    assert appends(list(ready.messages))[0].entries[0].data is data


# Pipelining and recovery from loss


def test_pipeline_is_bounded_by_messages() -> None:
    """Entries beyond the window wait for acks."""
    node = leading(max_inflight_appends=2, max_append_bytes=1)
    for _ in range(3):
        node.propose()

    assert [m.entries[0].index for m in appends(node.settle())] == [3, 4]
    node.ack(3)

    assert [m.entries[0].index for m in appends(node.settle())] == [5]


def test_pipeline_is_bounded_by_bytes() -> None:
    """Large entries fill the window before the count does."""
    node = leading(max_inflight_bytes=100, max_append_bytes=60)
    for _ in range(4):
        node.propose(b"x" * 60)

    assert [m.entries[0].index for m in appends(node.settle())] == [3, 4]


def test_lost_append_is_found_by_the_next_one() -> None:
    """The follower rejects what does not join, and the leader resumes there."""
    node = leading(max_append_bytes=1)
    node.propose()
    node.propose()
    node.settle()

    node.hear(
        AppendResponse, term=2, success=False, match_index=3, conflict_term=2, conflict_index=2
    )

    assert [m.entries[0].index for m in appends(node.settle())] == [3]


def test_lost_last_append_is_found_after_a_heartbeat() -> None:
    """An empty append asks where the follower stands; it costs no data."""
    node = leading()
    node.propose()
    node.settle()

    node.hear(HeartbeatResponse, term=2, round=1)
    node.hear(HeartbeatResponse, term=2, round=2)

    (probe,) = appends(node.settle())
    assert (probe.previous_index, probe.entries) == (3, ())


def test_stale_rejection_does_not_slow_the_pipeline() -> None:
    """A duplicate of an old answer says nothing new."""
    node = leading()
    node.propose()
    node.settle()
    node.ack(3)

    node.hear(
        AppendResponse, term=2, success=False, match_index=3, conflict_term=1, conflict_index=1
    )

    assert not appends(node.settle())
    assert node.raft.progress()[NodeId("2")].next_index == 4


def test_ack_beyond_the_log_is_ignored() -> None:
    """No honest follower sends it."""
    node = leading()

    node.ack(99)

    assert node.raft.progress()[NodeId("2")].match_index == 2


def test_broken_connection_to_a_follower_resends_after_its_next_answer() -> None:
    """What was in flight is lost with the stream."""
    node = leading()
    node.propose()
    node.settle()

    node.do(lambda raft: raft.peer_disconnected(NodeId("2")))
    assert not node.settle()
    node.hear(HeartbeatResponse, term=2, round=1)
    assert [m.entries for m in appends(node.settle())] == [()]
    node.ack(2)

    assert [m.entries[0].index for m in appends(node.settle())] == [3]


# Entries that are not in memory


def test_follower_far_behind_waits_for_the_driver_to_load() -> None:
    """The loop never reads a disk; the driver does, and says so."""
    memory = [False]
    node = Alone(terms=(1, 1, 1), in_memory=lambda: memory[0])
    node.become_leader()
    node.hear(
        AppendResponse, term=2, success=False, match_index=4, conflict_term=1, conflict_index=1
    )
    assert not appends(node.settle())

    memory[0] = True
    node.do(lambda raft: raft.entries_available())

    assert [e.index for e in appends(node.settle())[0].entries] == [2, 3, 4]


def test_applying_waits_for_the_driver_to_load() -> None:
    """After a restart, committed entries come from disk."""
    memory = [False]
    node = following(terms=(1, 1), in_memory=lambda: memory[0])
    node.append(after=(1, 3), term=1, commit=3)
    node.settle()
    assert node.committed == []
    assert not node.raft.has_ready()

    memory[0] = True
    node.do(lambda raft: raft.entries_available())
    node.settle()

    assert [e.index for e in node.committed] == [1, 2, 3]


def test_applying_is_bounded_by_bytes() -> None:
    """A long replay comes in portions."""
    node = following(max_apply_bytes=1)
    node.append(*[data_entry(1, index, b"x") for index in (2, 3)], after=(1, 1), term=1, commit=3)

    node.settle()

    assert [e.index for e in node.committed] == [1, 2, 3]


def test_applying_goes_on_where_it_was() -> None:
    """What a snapshot holds is not applied again."""
    node = following(terms=(1, 1), applied_index=2)

    node.append(after=(1, 3), term=1, commit=3)
    node.settle()

    assert [e.index for e in node.committed] == [3]


# Connection loss


def test_lost_connection_to_the_leader_starts_a_pre_vote_early() -> None:
    """Within a quarter of the election timeout."""
    node = following()

    node.do(lambda raft: raft.peer_disconnected(NodeId("2")))
    node.tick(TIMEOUT // 4)

    assert node.raft.role is Role.PRE_CANDIDATE
    change = node.take().role_change
    assert change is not None
    assert change.cause is Cause.CONNECTION_LOST


def test_lost_connection_ends_the_lease() -> None:
    """Two followers that saw it break may elect at once."""
    node = following()
    node.do(lambda raft: raft.peer_disconnected(NodeId("2")))

    node.hear(PreVoteRequest, sender="3", term=2, last_index=1, last_term=1)

    assert [m.granted for m in node.settle() if isinstance(m, PreVoteResponse)] == [True]


def test_lost_connection_to_another_follower_means_nothing() -> None:
    """Only the leader's silence matters."""
    node = following()

    node.do(lambda raft: raft.peer_disconnected(NodeId("3")))
    node.tick(TIMEOUT // 4)

    assert (node.raft.role, node.raft.leader) == (Role.FOLLOWER, "2")


def hinted() -> Alone:
    """Return a follower of 2 whose connection broke; its wait is longer than a tick."""
    node = following()
    while True:
        node.do(lambda raft: raft.peer_disconnected(NodeId("2")))
        node.tick()
        if node.raft.role is Role.FOLLOWER:
            return node
        node.hear(HeartbeatRequest, term=1, commit_index=0, round=2)


def test_heartbeat_after_a_lost_connection_ends_the_alarm() -> None:
    """The leader lives: it was only the stream."""
    node = hinted()

    node.hear(HeartbeatRequest, term=1, commit_index=0, round=3)
    node.tick(TIMEOUT)

    assert (node.raft.role, node.raft.leader) == (Role.FOLLOWER, "2")


def test_append_after_a_lost_connection_does_not_end_the_alarm() -> None:
    """It may have been on its way when the leader died; it is taken all the same."""
    node = hinted()

    node.append(data_entry(1, 2), after=(1, 1), term=1)
    assert [m.match_index for m in node.settle() if isinstance(m, AppendResponse)] == [2]
    node.hear(PreVoteRequest, sender="3", term=2, last_index=2, last_term=1)
    assert [m.granted for m in node.settle() if isinstance(m, PreVoteResponse)] == [True]
    node.tick(TIMEOUT // 4)

    assert node.raft.role is Role.PRE_CANDIDATE


def test_heartbeat_in_the_tick_of_the_lost_connection_does_not_end_the_alarm() -> None:
    """It, too, may have been on its way."""
    node = following()
    node.do(lambda raft: raft.peer_disconnected(NodeId("2")))

    node.hear(HeartbeatRequest, term=1, commit_index=0, round=2)
    node.hear(PreVoteRequest, sender="3", term=2, last_index=1, last_term=1)

    assert [m.granted for m in node.settle() if isinstance(m, PreVoteResponse)] == [True]


# Transfer and stepping down


def test_proposals_are_refused_while_leadership_is_handed_over() -> None:
    """The target could never catch up with a moving end."""
    node = leading()
    node.do(lambda raft: raft.transfer_leadership(NodeId("2")))

    assert not node.raft.has_room
    with pytest.raises(Overloaded, match="handed over"):
        node.propose()


def test_transfer_is_given_up_after_an_election_timeout() -> None:
    """A target that does not answer must not stop the group."""
    node = leading()
    node.do(lambda raft: raft.transfer_leadership(NodeId("2")))

    for round_number in range(TIMEOUT):
        node.tick()
        node.hear(HeartbeatResponse, sender="3", term=2, round=round_number)

    assert node.raft.transfer_target is None
    node.propose()


def test_transfer_without_target_takes_the_most_caught_up() -> None:
    """It needs the least to take over."""
    node = leading()
    node.propose()
    node.settle()
    node.ack(3, sender="3")

    assert node.do(lambda raft: raft.transfer_leadership(None)) == "3"


@pytest.mark.parametrize("target", ["1", "9"])
def test_transfer_to_no_other_voter_is_refused(target: str) -> None:
    """Neither to itself nor to a non-member."""
    node = leading()

    with pytest.raises(InvalidArgument):
        node.do(lambda raft: raft.transfer_leadership(NodeId(target)))


def test_transfer_in_a_group_of_one_is_refused() -> None:
    """There is no one to hand over to."""
    node = Alone(voters=1)
    node.do(lambda raft: raft.campaign())
    node.settle()

    with pytest.raises(InvalidArgument):
        node.do(lambda raft: raft.transfer_leadership(None))


def test_only_a_leader_hands_over() -> None:
    """A follower names the leader."""
    node = following()

    with pytest.raises(NotLeader):
        node.do(lambda raft: raft.transfer_leadership(None))


def test_stepping_down_asks_the_best_follower_to_take_over() -> None:
    """A leader with a stalled disk must not hold the group up."""
    node = leading()
    node.propose()
    node.settle()
    node.ack(3, sender="3")

    node.do(lambda raft: raft.step_down())

    assert node.raft.role is Role.FOLLOWER
    assert [m.recipient for m in node.settle() if isinstance(m, TimeoutNow)] == ["3"]
    node.tick(2 * TIMEOUT)
    assert node.raft.role is Role.FOLLOWER


def test_stepping_down_as_follower_does_nothing() -> None:
    """There is nothing to give up."""
    node = following()

    node.do(lambda raft: raft.step_down())

    assert not node.raft.has_ready()


def test_campaign_as_leader_does_nothing() -> None:
    """It is won already."""
    node = leading()

    node.do(lambda raft: raft.campaign())

    assert node.raft.role is Role.LEADER


def test_heartbeat_timing_is_checked() -> None:
    """A heartbeat interval at or above the election timeout could never work."""
    with pytest.raises(ValueError, match="heartbeat_ticks"):
        RaftConfig(id=NodeId("1"), heartbeat_ticks=20)


# Whatever arrives

NUMBERS = st.integers(-2, 6)
ENTRIES = st.lists(
    st.builds(
        Entry,
        term=NUMBERS,
        index=NUMBERS,
        kind=st.sampled_from(EntryKind),
        timestamp_ms=st.just(0),
        crc32c=st.just(0),
        data=st.sampled_from([b"", b"x", log_of()[0].data]),
    ),
    max_size=3,
).map(tuple)
ENVELOPE = {
    "sender": st.sampled_from([NodeId(name) for name in "1239"]),
    "recipient": st.sampled_from([NodeId("1"), NodeId("2")]),
    "term": NUMBERS,
}
MESSAGES = st.one_of(
    st.builds(PreVoteRequest, **ENVELOPE, last_index=NUMBERS, last_term=NUMBERS),
    st.builds(PreVoteResponse, **ENVELOPE, granted=st.booleans()),
    st.builds(VoteRequest, **ENVELOPE, last_index=NUMBERS, last_term=NUMBERS),
    st.builds(VoteResponse, **ENVELOPE, granted=st.booleans()),
    st.builds(
        AppendRequest,
        **ENVELOPE,
        previous_index=NUMBERS,
        previous_term=NUMBERS,
        commit_index=NUMBERS,
        entries=ENTRIES,
    ),
    st.builds(
        AppendResponse,
        **ENVELOPE,
        success=st.booleans(),
        match_index=NUMBERS,
        conflict_term=NUMBERS,
        conflict_index=NUMBERS,
    ),
    st.builds(HeartbeatRequest, **ENVELOPE, commit_index=NUMBERS, round=NUMBERS),
    st.builds(HeartbeatResponse, **ENVELOPE, round=NUMBERS),
    st.builds(TimeoutNow, **ENVELOPE),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["empty", "follower", "leader"]), st.lists(MESSAGES, max_size=12))
def test_no_message_raises_or_breaks_an_invariant(start: str, messages: list[Message]) -> None:
    """Bytes from a peer are input: whatever they say, the node stays whole."""
    node = Alone(terms=None if start == "empty" else (1, 2))
    if start == "leader":
        node.become_leader()

    for message in messages:
        node.do(partial(Raft.step, message=message))
        node.tick()
        node.settle()


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6))
def test_reordered_and_repeated_appends_end_in_the_same_log(
    order: list[int], repeats: list[int]
) -> None:
    """Any order, any number of times, as long as each arrives at last."""
    entries = [data_entry(2, index, bytes([index])) for index in range(2, 8)]
    node = following()

    for at in [*order, *repeats, *range(6)]:
        previous = (2, at + 1) if at else (1, 1)
        node.append(entries[at], after=previous, term=2, commit=at + 2)
        node.settle()

    assert [e.data for e in node.committed[1:]] == [e.data for e in entries]


def test_same_seed_takes_the_same_course() -> None:
    """All chance comes from the random source that is passed in."""

    def course() -> list[Role]:
        raft = Raft(
            RaftConfig(id=NodeId("1")),
            hard_state=HardState(1),
            log=ListDisk(log_of()),
            memberships=ListDisk(log_of()).memberships(),
            rng=random.Random(5),
            snapshots=ModelSnapshots(),
        )
        roles = []
        for _ in range(100):
            raft.tick()
            roles.append(raft.role)
        return roles

    assert course() == course()
