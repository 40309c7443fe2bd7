"""Discarding a damaged entry without a leader: only what a majority of the others never had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from dledger.raft.messages import (
    AppendRequest,
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    Message,
    VoteRequest,
)
from dledger.types import EntryKind, HardState, Membership, NodeId, Role
from dledger_sim.process import members
from tests.raft.bench import Alone, ModelSnapshots, data_entry

LOST = 3
"""The damaged entry: (term 2, index 3), behind the founding one and one of term 1."""


def damaged(*, voters: int = 3) -> Alone:
    """Return a node without a leader that has lost the last two of its four entries."""
    node = Alone(voters=voters, terms=(1, 2, 2))
    node.raft.log_repaired(whole=False)
    return node


def answer(node: Alone, sender: str, *, firm: bool, lacks: bool = True, term: int = 3) -> None:
    """Let another voter's answer arrive."""
    node.hear(
        DiscardResponse,
        sender=sender,
        term=term,
        index=LOST,
        entry_term=2,
        firm=firm,
        lacks=lacks,
    )


def asked(node: Alone) -> list[tuple[str, int, bool]]:
    """Return whom the node asked since the last time, in which term, and whether firmly."""
    sent = [m for m in node.settle() if isinstance(m, DiscardRequest)]
    assert all((m.index, m.entry_term) == (LOST, 2) for m in sent)
    return [(m.recipient, m.term, m.firm) for m in sent]


def asked_firmly(*, voters: int = 3) -> Alone:
    """Return such a node after the others would have let it."""
    node = damaged(voters=voters)
    node.do(lambda raft: raft.ask_discard(LOST))
    for peer in range(2, voters + 1):
        answer(node, str(peer), firm=False)
    assert node.raft.term == 3
    return node


def test_what_a_majority_of_the_others_lacks_is_discarded() -> None:
    """Seed 6260: first without consequences, then in a term that all have entered."""
    node = damaged()

    node.do(lambda raft: raft.ask_discard(LOST))
    assert asked(node) == [("2", 3, False), ("3", 3, False)]
    assert node.raft.term == 2
    answer(node, "2", firm=False)
    answer(node, "3", firm=False)
    assert asked(node) == [("2", 3, True), ("3", 3, True)]
    assert (node.raft.term, node.raft.last_index) == (3, 4)
    answer(node, "2", firm=True)
    assert node.raft.last_index == 4
    answer(node, "3", firm=True)

    assert (node.raft.last_index, node.raft.last_term) == (2, 1)
    assert node.raft.role is Role.FOLLOWER


def test_the_question_leaves_when_the_term_is_durable() -> None:
    """Persist before you speak."""
    node = asked_firmly()

    ready = node.take()

    assert ready.hard_state == HardState(3)
    assert not any(isinstance(m, DiscardRequest) and m.firm for m in ready.messages)
    assert [m.recipient for m in ready.after_hard_state] == ["2", "3"]


def test_what_we_gave_away_takes_its_place() -> None:
    """What a later leader sends goes where the damaged entry was, and nothing of it is left."""
    node = asked_firmly()
    answer(node, "2", firm=True)
    answer(node, "3", firm=True)

    node.append(data_entry(4, 3), after=(1, 2), term=4, commit=3)
    node.settle()

    assert (node.raft.last_term, node.raft.durable_index) == (4, 3)
    assert [entry.term for entry in node.committed] == [1, 1, 4]


@pytest.mark.parametrize("voters", [3, 4, 5])
def test_our_own_lack_does_not_count(voters: int) -> None:
    """The entry may have been committed by us and those who do not say that they lack it."""
    needed = voters // 2 + 1
    others = [str(peer) for peer in range(2, voters + 1)]
    for lacking in combinations(others, needed - 1):
        node = asked_firmly(voters=voters)
        for peer in lacking:
            answer(node, peer, firm=True)
        assert node.raft.last_index == 4
        for peer in set(others) - set(lacking):
            answer(node, peer, firm=True, lacks=False)
        assert node.raft.last_index == 4


def test_answers_to_another_question_do_not_count() -> None:
    """Of an earlier round, of another entry, or those that bind nobody."""
    node = asked_firmly()

    answer(node, "2", firm=False)
    answer(node, "3", firm=False)
    for index, entry_term in ((LOST, 1), (LOST + 1, 2)):
        for peer in ("2", "3"):
            node.hear(
                DiscardResponse,
                sender=peer,
                term=3,
                index=index,
                entry_term=entry_term,
                firm=True,
                lacks=True,
            )

    assert node.raft.last_index == 4


def test_what_was_acknowledged_to_a_leader_of_that_term_is_kept() -> None:
    """It may count the entry as ours; also after its connection broke."""
    node = asked_firmly()
    node.append(after=(2, 4), term=3)
    node.do(lambda raft: raft.peer_disconnected(node.raft.leader or node.raft.id))
    assert node.raft.leader is None

    answer(node, "2", firm=True)
    answer(node, "3", firm=True)

    assert node.raft.last_index == 4


def test_a_later_term_ends_the_question() -> None:
    """What was promised for one term says nothing of another."""
    node = asked_firmly()
    node.hear(VoteRequest, term=4, last_index=1, last_term=1)

    answer(node, "2", firm=True, term=4)
    answer(node, "3", firm=True, term=4)

    assert node.raft.last_index == 4


def test_who_has_a_leader_waits_for_its_entries() -> None:
    """A leader replaces what it does not have."""
    node = damaged()
    node.hear(HeartbeatRequest, term=2, commit_index=0, round=1)

    node.do(lambda raft: raft.ask_discard(LOST))

    assert asked(node) == []


def test_what_is_committed_is_never_discarded() -> None:
    """It was on a majority, whatever anyone says now."""
    node = Alone(terms=(1, 2, 2))
    node.append(after=(2, 4), term=2, commit=LOST)
    node.do(lambda raft: raft.peer_disconnected(node.raft.leader or node.raft.id))

    node.do(lambda raft: raft.ask_discard(LOST))

    assert asked(node) == []


def replies(node: Alone) -> Sequence[DiscardResponse]:
    """Return what the node answered, in its next Readys."""
    return [m for m in node.settle() if isinstance(m, DiscardResponse)]


def ask(node: Alone, *, index: int, entry_term: int, firm: bool = True, term: int = 9) -> None:
    """Let another node's question arrive."""
    node.hear(DiscardRequest, term=term, index=index, entry_term=entry_term, firm=firm)


@pytest.mark.parametrize(
    ("index", "entry_term", "lacks"),
    [(4, 2, False), (4, 3, True), (5, 2, True), (1, 1, False), (3, 1, True), (0, 0, False)],
)
def test_it_lacks_what_is_not_in_its_log(index: int, entry_term: int, lacks: bool) -> None:
    """By index and term; a damaged entry is there."""
    node = damaged()

    ask(node, index=index, entry_term=entry_term)

    assert [reply.lacks for reply in replies(node)] == [lacks]


def test_what_a_snapshot_took_in_may_be_in_it() -> None:
    """Compacted entries were committed, and nobody knows their terms any more."""
    node = Alone(terms=(1, 1), applied_index=3, snapshots=ModelSnapshots())
    node.disk.begin_behind(3, 1, node.disk.chain(3), Alone().disk.memberships())

    ask(node, index=2, entry_term=2)

    assert [reply.lacks for reply in replies(node)] == [False]


def test_a_firm_answer_leaves_when_its_term_is_durable() -> None:
    """Nothing is taken from leaders of earlier terms after it."""
    node = Alone()

    ask(node, index=5, entry_term=2)
    ready = node.take()

    assert ready.hard_state == HardState(9)
    assert [(m.term, m.lacks) for m in _responses(ready.after_hard_state)] == [(9, True)]
    assert not _responses(ready.messages)
    node.settle()
    node.append(data_entry(2, 2), after=(1, 1), term=8)
    assert node.raft.last_index == 1


def test_a_question_without_consequences_has_none() -> None:
    """As a pre-vote: no term is entered."""
    node = Alone()

    ask(node, index=5, entry_term=2, firm=False)

    assert [(reply.term, reply.lacks) for reply in replies(node)] == [(9, True)]
    assert node.raft.term == 1


def test_who_hears_a_leader_does_not_let_go_of_anything() -> None:
    """The leader may have the entry, and send it any moment; it is not deposed either."""
    node = Alone()
    node.hear(HeartbeatRequest, term=2, commit_index=0, round=1)
    node.settle()

    ask(node, index=5, entry_term=2, firm=False)
    ask(node, index=5, entry_term=2)

    assert [(reply.firm, reply.lacks) for reply in replies(node)] == [(False, False)]
    assert node.raft.term == 2


def test_an_outdated_question_is_answered_with_the_term() -> None:
    """Who asks again does so in a later one."""
    node = Alone(term=5)

    ask(node, index=5, entry_term=2, term=3)

    assert [(reply.term, reply.lacks) for reply in replies(node)] == [(5, False)]


def test_a_membership_behind_the_entry_has_no_say_and_goes_with_it() -> None:
    """It rests on a majority of those before it, who would have the entry as well."""
    node = damaged()
    data = members(5).encode()
    joined = replace(data_entry(2, 5, data), kind=EntryKind.MEMBERSHIP)
    node.append(joined, after=(2, 4), term=2)
    node.do(lambda raft: raft.peer_disconnected(NodeId("2")))
    node.settle()
    assert len(node.raft.membership.voters) == 5

    node.do(lambda raft: raft.ask_discard(LOST))
    assert asked(node) == [("2", 3, False), ("3", 3, False)]
    for firm in (False, True):
        for peer in ("2", "3"):
            answer(node, peer, firm=firm)

    assert node.raft.last_index == 2
    assert len(node.raft.membership.voters) == 3


def test_nobody_is_asked_while_a_membership_before_the_entry_is_unknown() -> None:
    """Who decided about the entry is not known then, and too few may be asked."""
    node = damaged()
    node.disk.unreadable.add(2)

    node.do(lambda raft: raft.ask_discard(LOST))
    assert asked(node) == []
    _repaired(node, members(5))
    node.do(lambda raft: raft.ask_discard(LOST))

    assert [recipient for recipient, _, _ in asked(node)] == ["2", "3", "4", "5"]


def test_a_damaged_membership_can_be_the_entry_itself() -> None:
    """A majority of those before it would have it, whatever it says."""
    node = damaged()
    node.disk.unreadable.add(LOST)

    node.do(lambda raft: raft.ask_discard(LOST))

    assert asked(node) == [("2", 3, False), ("3", 3, False)]


@pytest.mark.parametrize("firm", [False, True])
def test_a_question_is_void_once_others_turn_out_to_have_decided(firm: bool) -> None:
    """A repair brings a membership between question and answer: it is asked anew."""
    node = asked_firmly() if firm else damaged()
    if not firm:
        node.do(lambda raft: raft.ask_discard(LOST))
    node.settle()
    _repaired(node, members(5))

    answer(node, "2", firm=firm)
    answer(node, "3", firm=firm)

    assert (node.raft.last_index, node.raft.term) == (4, 3 if firm else 2)
    assert asked(node) == []


def _repaired(node: Alone, membership: Membership) -> None:
    """Let entry 2 of the log turn out to be a membership."""
    entry = replace(data_entry(1, 2, membership.encode()), kind=EntryKind.MEMBERSHIP)
    node.do(lambda raft: raft.log_repaired([entry], whole=False))


def test_storage_lets_go_with_the_core() -> None:
    """Else a restart, or a snapshot, would bring back what was discarded."""
    node = asked_firmly()
    node.settle()
    answer(node, "2", firm=True)
    answer(node, "3", firm=True)

    ready = node.take()
    node.sync()

    assert (ready.cut_behind, ready.entries) == (LOST - 1, ())
    assert node.disk.last_index == LOST - 1
    assert node.take().cut_behind is None


def _responses(messages: Sequence[Message]) -> list[DiscardResponse]:
    return [m for m in messages if isinstance(m, DiscardResponse)]


def test_an_append_request_is_no_answer() -> None:
    """A leader that comes meanwhile is followed, and its entries replace ours."""
    node = asked_firmly()

    node.hear(
        AppendRequest,
        term=3,
        previous_index=2,
        previous_term=1,
        commit_index=0,
        entries=(data_entry(3, 3),),
    )
    answer(node, "2", firm=True)
    answer(node, "3", firm=True)

    assert (node.raft.last_term, node.raft.last_index) == (3, 3)
