"""A node that starts asks what it promised, and abstains while its disk has less (adr 45)."""

from __future__ import annotations

import pytest

from dledger.common.reports import Mark
from dledger.errors import NotLeader
from dledger.raft.core import MAX_TERM_JUMP
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.ready import Contradiction
from dledger.raft.witness import PATIENCE_TIMEOUTS, Witness, is_older
from dledger.types import EntryKind, NodeId, Role
from tests.raft.bench import Alone, data_entry

N1, N2, N3 = NodeId("1"), NodeId("2"), NodeId("3")


def mark(last_term: int, last_index: int, term: int = 0) -> Mark:
    return Mark(last_term=last_term, last_index=last_index, term=term or last_term)


def asking(*, terms: tuple[int, ...] = (2, 2), term: int = 2, vote: str | None = None) -> Alone:
    """Return a node that was started on a disk with these entries, and asks."""
    return Alone(terms=terms, term=term, vote=vote, asks=True)


def answered(node: Alone, **marks: Mark) -> None:
    """Let "2" answer with what it knows; *own* is what it says of itself, *of* of the node."""
    told = {NodeId("1"): marks["of"]} if "of" in marks else {}
    told |= {NodeId("2"): marks["own"]} if "own" in marks else {}
    node.do(lambda raft: raft.answered({N2: told, N3: {}}))


def abstaining(**marks: Mark) -> Alone:
    """Return one whose disk lacks what others know that it had."""
    node = asking()
    answered(node, of=mark(2, 5), **marks)
    assert node.raft.abstains == mark(2, 5)
    return node


def ask_vote(node: Alone, *, term: int, last: tuple[int, int] = (9, 99)) -> list[bool]:
    """Let "3" ask for a pre-vote and a vote; return what was granted."""
    end = {"last_term": last[0], "last_index": last[1], "last_chain": 0}
    node.hear(PreVoteRequest, sender="3", term=term, **end)
    node.hear(VoteRequest, sender="3", term=term, **end)
    found = [m for m in node.settle() if isinstance(m, PreVoteResponse | VoteResponse)]
    return [message.granted for message in found]


def test_while_it_asks_it_is_deaf_and_mute() -> None:
    """No vote, no campaign, no ack: whatever it would say may contradict what it said before."""
    node = asking()

    node.tick(200)
    node.do(lambda raft: raft.campaign())
    node.append(data_entry(3, 4), after=(2, 3), term=3)
    node.hear(HeartbeatRequest, term=3, commit_index=3, round=1)
    node.hear(TimeoutNow, term=3)

    assert ask_vote(node, term=4) == []
    assert node.settle() == []
    assert (node.raft.role, node.raft.term) == (Role.FOLLOWER, 2)


def test_it_takes_over_the_highest_term_and_gives_no_vote_in_it() -> None:
    """It may have voted in that term: for whom is forgotten."""
    node = asking()

    answered(node, of=mark(2, 3, term=7), own=mark(2, 3, term=6))

    assert node.raft.term == 7
    node.do(lambda raft: raft.witness.release())
    assert ask_vote(node, term=7) == [False, False]
    assert ask_vote(node, term=8) == [True, True]


def test_in_its_own_term_it_keeps_a_vote_and_gives_none() -> None:
    """A copy of the term's beginning has none yet; a vote that is known stays as it is."""
    blank, voted = asking(), asking(vote="3")

    answered(blank)
    answered(voted)

    assert ask_vote(blank, term=2) == [False, False]
    assert ask_vote(voted, term=2)[1]


def test_a_vote_that_is_taken_over_is_durable_before_anything_is_said() -> None:
    """Else the next start would know less again."""
    node = asking()

    answered(node, own=mark(2, 3, term=7))

    (ready,) = [node.raft.ready()] if node.raft.has_ready() else []
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (7, N1)


@pytest.mark.parametrize(
    ("own", "promised", "older"),
    [
        (mark(2, 3), mark(2, 3), False),
        (mark(2, 3), mark(2, 4), True),
        (mark(2, 3), mark(1, 9), False),
        (mark(2, 3), mark(3, 2), True),
        (mark(2, 3, term=5), mark(4, 9), False),
        (mark(2, 3, term=5), mark(5, 4), True),
        (mark(2, 3, term=5), mark(2, 3, term=6), True),
        (mark(2, 3, term=5), mark(2, 3, term=5), False),
        (mark(2, 9, term=3), mark(3, 4), True),
    ],
)
def test_older_is_what_no_honest_disk_shows(own: Mark, promised: Mark, older: bool) -> None:
    """A leader of a later term, or adr 14, may have cut what is of terms before the disk's own."""
    assert is_older(own, promised) is older


def test_who_abstains_gives_no_vote_and_stands_for_none() -> None:
    """Neither to who has more, nor asked by a leader to take over."""
    node = abstaining()

    node.tick(200)
    node.do(lambda raft: raft.campaign())
    assert not any(isinstance(m, PreVoteRequest | VoteRequest) for m in node.settle())
    assert ask_vote(node, term=4) == [False, False]
    node.hear(TimeoutNow, sender="3", term=4)
    node.settle()

    assert node.raft.role is Role.FOLLOWER


def test_who_abstains_does_not_say_that_an_entry_was_never_there() -> None:
    """By its word a majority could discard what it had acknowledged (adr 14)."""
    node = abstaining()

    node.hear(DiscardRequest, term=3, index=4, entry_term=2, firm=True)

    (said,) = [m for m in node.settle() if isinstance(m, DiscardResponse)]
    assert not said.lacks


def test_it_takes_part_again_once_a_leader_has_sent_what_it_had() -> None:
    """Not a moment before."""
    node = abstaining()
    node.append(data_entry(2, 4), after=(2, 3), term=2)
    node.settle()
    node.tick()
    assert node.raft.abstains is not None

    node.append(data_entry(2, 5), after=(2, 4), term=2)
    node.tick()
    assert node.raft.abstains is not None, "it is not durable yet"
    node.settle()
    node.tick()

    assert node.raft.abstains is None


def test_an_entry_of_a_later_leader_stands_for_what_it_had() -> None:
    """That leader has all that was committed; what it cut was not."""
    node = abstaining()

    node.append(data_entry(3, 4), after=(2, 3), term=3)
    node.settle()
    node.tick()

    assert node.raft.abstains is None


def test_a_forged_mark_silences_a_member_for_a_bounded_time() -> None:
    """What a leader has committed behind an entry of its own is all that there can be."""
    node = asking()
    answered(node, of=mark(2, 1_000_000))
    node.append(data_entry(2, 4), after=(2, 3), term=2, commit=4)
    node.settle()
    patience = PATIENCE_TIMEOUTS * node.raft.config.election_timeout_ticks

    for _ in range(patience - 1):
        node.hear(HeartbeatRequest, term=2, commit_index=4, round=1)
        node.tick()
        node.settle()
    assert node.raft.abstains is not None
    node.tick()

    assert node.raft.abstains is None


def test_a_mark_of_a_term_out_of_reach_is_not_believed() -> None:
    """It would take the group's terms along, or silence a member for good."""
    node = asking()

    answered(node, of=mark(2 + MAX_TERM_JUMP + 1, 9), own=mark(2, 3, term=MAX_TERM_JUMP * 2))

    assert node.raft.abstains is None
    assert node.raft.term == 2


def test_a_leader_that_returns_stands_for_nothing_less_than_it_wrote() -> None:
    """Who got its newest entries is up; whether they were promised nobody knows."""
    node = asking(vote="1")
    answered(node, own=mark(2, 5))
    assert node.raft.abstains is None

    node.do(lambda raft: raft.campaign())
    assert not any(isinstance(m, PreVoteRequest) for m in node.settle())
    assert ask_vote(node, term=3, last=(2, 4)) == [False, False]
    assert ask_vote(node, term=4, last=(2, 5)) == [True, True]


def test_it_waits_for_who_has_what_it_wrote_for_a_bounded_time() -> None:
    """That one may be gone for good, and the entry was committed nowhere else."""
    node = asking(vote="1")
    answered(node, own=mark(2, 5))

    node.tick(PATIENCE_TIMEOUTS * node.raft.config.election_timeout_ticks)

    assert ask_vote(node, term=30, last=(2, 4))[-1]


def losing() -> Alone:
    """Return one that acknowledged from the page cache, lost power, and is told what it had."""
    node = Alone(terms=(2, 2), term=2, asks=True, may_lose=True)
    answered(node, of=mark(2, 5))
    return node


def test_what_power_took_from_a_buffer_is_not_voted_away_at_once() -> None:
    """The one that has it is up, and must be elected before one that lags as this one does now."""
    node = losing()
    assert node.raft.abstains is None, "it is no older copy: it lost what it may lose"

    node.do(lambda raft: raft.campaign())

    assert not any(isinstance(m, PreVoteRequest) for m in node.settle())
    assert ask_vote(node, term=3, last=(2, 4)) == [False, False]
    assert ask_vote(node, term=4, last=(2, 5)) == [True, True]


def test_a_group_whose_buffers_all_lost_power_waits_for_a_bounded_time() -> None:
    """Nobody has it any more: that is what osBuffer does not promise."""
    node = losing()

    node.tick(PATIENCE_TIMEOUTS * node.raft.config.election_timeout_ticks)

    assert ask_vote(node, term=30, last=(2, 4))[-1]


def test_a_forced_survivor_abstains_no_more() -> None:
    """There is nobody left who could send what it lacks; an administrator decided that."""
    node = abstaining()
    node.tick(20 * node.raft.config.election_timeout_ticks)
    node.settle()

    node.do(lambda raft: raft.force_group(last_term=2, last_index=3))

    assert node.raft.abstains is None


def test_what_others_say_of_it_later_does_not_silence_it() -> None:
    """Only who starts is asked of: a running node knows what it has."""
    node = asking()
    answered(node)

    node.do(lambda raft: raft.note_marks({N1: mark(9, 9), N3: mark(2, 7)}))

    assert node.raft.abstains is None
    assert node.raft.witness.known == {N3: mark(2, 7)}


def leading() -> Alone:
    """Return the leader of term 2, whose entry of that term "2" and "3" have acknowledged."""
    node = Alone(terms=())
    node.become_leader()
    for peer in ("2", "3"):
        node.hear(AppendResponse, sender=peer, term=node.raft.term, success=True, match_index=2)
    node.settle()
    assert node.raft.commit_index == 2
    return node


def propose(node: Alone) -> int:
    _, index = node.do(
        lambda raft: raft.propose(kind=EntryKind.DATA, data=b"", crc32c=0, timestamp_ms=0)
    )
    return index


def test_a_leader_remembers_what_was_acknowledged_to_it() -> None:
    """Also when it leads no more; and who voted has entered the term."""
    node = leading()
    term = node.raft.term

    known = node.do(lambda raft: raft.told_marks())

    assert known[N2] == known[N3] == mark(term, 2)
    deposed = leading()
    assert N3 not in deposed.raft.witness.known
    deposed.hear(HeartbeatRequest, term=term + 1, commit_index=0, round=1)
    assert deposed.raft.witness.known[N3] == mark(term, 2)


def test_a_follower_remembers_how_far_its_leader_has_promised() -> None:
    """A leader tells no more as committed than its own disk has."""
    node = Alone(terms=())
    node.append(data_entry(2, 2), after=(1, 1), term=2, commit=2)
    node.settle()

    assert node.do(lambda raft: raft.told_marks())[N2] == mark(2, 2)


def test_a_leader_tells_as_committed_what_is_on_its_own_disk() -> None:
    """By that followers know what it has promised."""
    node = leading()
    index = propose(node)
    ready = node.raft.ready()
    assert ready.entries
    for peer in ("2", "3"):
        node.hear(AppendResponse, sender=peer, term=node.raft.term, success=True, match_index=index)
    assert node.raft.commit_index == index

    node.tick(node.raft.config.heartbeat_ticks)

    beats = [m for m in node.raft.ready().messages if isinstance(m, HeartbeatRequest)]
    assert {beat.commit_index for beat in beats} == {index - 1}


def test_what_a_member_acknowledged_is_forgotten_when_it_starts_anew() -> None:
    """Found: a follower with less was asked for ever at a place that it had once had."""
    node = leading()
    peer = node.raft.state.leading
    assert peer is not None

    node.do(lambda raft: raft.peer_restarted(N2))

    assert peer.progress[N2].match_index == 0
    (probe,) = [m for m in node.settle() if isinstance(m, AppendRequest)]
    assert (probe.recipient, probe.previous_index, probe.entries) == (N2, 2, ())
    node.hear(
        AppendResponse,
        term=node.raft.term,
        success=False,
        match_index=2,
        conflict_term=1,
        conflict_index=1,
    )
    (again,) = [m for m in node.settle() if isinstance(m, AppendRequest)]
    assert [entry.index for entry in again.entries] == [2]


def test_acks_count_from_where_the_member_was_before() -> None:
    """With an older copy of its disk it gets there again, and only then it is one of a majority."""
    node = leading()
    term = node.raft.term
    for _ in range(3):
        propose(node)
    node.settle()
    node.hear(AppendResponse, term=term, success=True, match_index=4)
    node.do(lambda raft: raft.peer_restarted(N2))
    committed = node.raft.commit_index
    assert committed == 4

    propose(node)
    node.settle()
    node.do(lambda raft: raft.peer_restarted(N3))
    node.hear(AppendResponse, sender="3", term=term, success=True, match_index=1)
    node.hear(AppendResponse, sender="2", term=term, success=True, match_index=3)
    progress = node.raft.progress()[N2]
    assert (progress.match_index, progress.owed_index) == (3, 4)
    assert node.raft.state.leading is not None
    assert node.raft.state.leading.commit_point() == 0

    node.hear(AppendResponse, sender="2", term=term, success=True, match_index=6)

    assert node.raft.commit_index == 6


def test_a_mark_beyond_the_leaders_own_log_holds_nobody_back() -> None:
    """It cannot be the leader's: forged, or a fault's."""
    node = leading()
    node.do(lambda raft: raft.note_marks({N2: mark(node.raft.term, 1_000)}))

    node.do(lambda raft: raft.peer_restarted(N2))

    assert node.raft.progress()[N2].owed_index == 0


def test_a_contradiction_of_what_is_committed_is_told() -> None:
    """It was a silent stop: the node took nothing more, and nobody was told."""
    node = Alone(terms=(2, 2), applied_index=3)

    node.append(data_entry(3, 3), after=(2, 2), term=3)

    ready = node.raft.ready()
    assert isinstance(ready.refused, Contradiction)
    assert (ready.refused.index, node.raft.last_index) == (3, 3)


def test_who_is_no_member_any_more_is_forgotten() -> None:
    """A forced group keeps nothing of those that it left out."""
    witness = Witness({N2: mark(2, 3), N3: mark(2, 2)}, asks=False)

    witness.keep_only([N1, N2])

    assert witness.known == {N2: mark(2, 3)}


def test_a_group_of_one_asks_nobody_and_keeps_its_vote() -> None:
    """Nobody is there to have been told anything."""
    node = Alone(voters=1, terms=(2,), term=2, asks=True)

    node.do(lambda raft: raft.answered({}))

    assert node.raft.vote is None
    with pytest.raises(NotLeader):
        propose(node)
