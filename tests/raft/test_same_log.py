"""Log matching, checked: what a leader sends names the chain CRC of what stands before it.

In Raft two logs with an entry of one term at one index are equal up to there (5.3). So a difference
there is a bug, a bad memory or a forger, and is never acknowledged, committed or voted for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger.raft.core import MAX_TERM_JUMP
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    InstallSnapshotRequest,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.ready import Divergence, TermJump
from dledger.types import MAX_NUMBER, Entry, NodeId, SnapshotInfo
from tests.raft.bench import Alone, ModelSnapshots, data_entry, log_of
from tests.raft.chains import chain_behind

pytestmark = pytest.mark.found

FORGED = data_entry(1, 3, b"FORGED")
TRUE = data_entry(1, 3, b"true")


def chain_of(*behind: Entry) -> int:
    """Return the chain CRC of the log of `follower` with these entries behind entry 2."""
    return chain_behind(0, [*log_of(1), *behind])


def follower(*behind: Entry) -> Alone:
    """Return a follower in term 1 with a founding entry, entry 2 and then these."""
    node = Alone(terms=(1,))
    if behind:
        node.append(*behind, after=(1, 2), term=1)
    node.settle()
    return node


def acknowledged(node: Alone) -> list[int]:
    return [m.match_index for m in node.settle() if isinstance(m, AppendResponse) and m.success]


def refused(node: Alone) -> object:
    """Take one Ready; return what it says was refused."""
    return node.take().refused


def test_entries_behind_a_forged_one_are_not_taken() -> None:
    """The true leader's next append shows it, before anything of it counts (found: S8c)."""
    node = follower(FORGED)

    node.append(data_entry(1, 4), after=(1, 3), term=1, commit=4, chain=chain_of(TRUE))

    assert refused(node) == Divergence(NodeId("2"), 3, chain_of(FORGED), chain_of(TRUE))
    assert acknowledged(node) == []
    assert (node.raft.last_index, node.raft.commit_index) == (3, 0)


@pytest.mark.parametrize("more", [(), (data_entry(1, 4), data_entry(1, 5))])
def test_the_true_entry_in_place_of_a_forged_one_is_not_acknowledged(
    more: tuple[Entry, ...],
) -> None:
    """By term and index it is here already; that alone would have committed the forged one."""
    node = follower(FORGED)

    node.append(TRUE, *more, after=(1, 2), term=1, commit=5)

    assert isinstance(refused(node), Divergence)
    assert acknowledged(node) == []
    assert (node.raft.last_index, node.raft.commit_index) == (3, 0)


def test_a_heartbeat_commits_nothing_of_another_log() -> None:
    """Its commit index is that of the leader's log, and says which log that is."""
    node = follower(FORGED)
    fields: dict[str, Any] = {"commit_index": 3, "round": 1}

    node.hear(HeartbeatRequest, term=1, **fields, commit_chain=chain_of(TRUE))
    assert isinstance(refused(node), Divergence)
    assert node.raft.commit_index == 0

    node.hear(HeartbeatRequest, term=1, **fields, commit_chain=chain_of(FORGED))
    assert node.raft.commit_index == 3


def test_a_heartbeat_behind_our_end_commits_nothing() -> None:
    """Nothing shows that what we have is what was committed (as after a lost tail)."""
    node = follower()

    node.hear(HeartbeatRequest, term=1, commit_index=7, round=1, commit_chain=123)

    assert node.raft.commit_index == 0


def test_pipelined_appends_and_repeated_ones_are_the_same_log() -> None:
    """An append may overlap with what is here, on its way to disk or durable; it all agrees."""
    node = follower(TRUE)
    three = [data_entry(1, index, b"%d" % index) for index in (4, 5, 6)]
    node.append(three[0], after=(1, 3), term=1)
    node.append(three[1], after=(1, 4), term=1)
    node.append(*three, after=(1, 3), term=1)
    node.append(TRUE, *three, after=(1, 2), term=1, commit=6)

    assert acknowledged(node) == [4, 5, 6, 6]
    assert node.raft.commit_index == 6


def test_a_conflict_of_terms_is_resolved_as_ever() -> None:
    """Another term at an index is no mystery: a leader was overruled."""
    node = follower(data_entry(1, 3, b"old"), data_entry(1, 4))
    new = data_entry(2, 3, b"new")

    node.append(new, after=(1, 2), term=2, commit=3)

    assert acknowledged(node) == [3]
    assert node.disk.chain(3) == chain_of(new)


@pytest.mark.parametrize("at", [0, 1])
def test_an_entry_that_is_not_the_leaders_is_refused_when_it_comes(at: int) -> None:
    """A bad memory changed it behind every CRC: the leader's log has another one there."""
    node = follower()
    sent = [TRUE, data_entry(1, 4)]
    mangled = [replace(one, data=b"?", crc32c=7) if n == at else one for n, one in enumerate(sent)]

    node.append(*mangled, after=(1, 2), term=1, last_chain=chain_of(*sent))
    assert isinstance(refused(node), Divergence)
    assert (acknowledged(node), node.raft.last_index) == ([], 2)

    node.append(*sent, after=(1, 2), term=1)
    assert acknowledged(node) == [4]


def test_an_acknowledgement_of_another_log_does_not_count() -> None:
    """A forged entry that a follower took is no vote for the true one in its place (found: S8c)."""
    node = Alone(terms=(1,))
    node.become_leader()
    last = node.raft.last_index
    fields: dict[str, Any] = {"term": 2, "success": True, "match_index": last}

    node.hear(AppendResponse, **fields, match_chain=node.disk.chain(last) ^ 1)
    assert isinstance(refused(node), Divergence)
    assert node.raft.commit_index == 0

    node.hear(AppendResponse, **fields, match_chain=node.disk.chain(last))
    assert node.raft.commit_index == last


def test_a_leader_names_what_stands_before_its_entries() -> None:
    """To each follower, at the place where its entries go."""
    node = Alone(terms=(1, 1))
    node.become_leader()
    node.ack(4)
    node.propose(b"next")
    log = node.disk

    appends = [m for m in [*node.sent, *node.settle()] if isinstance(m, AppendRequest)]

    assert {m.previous_index for m in appends} == {3, 4}
    entries = [*log_of(1, 1), *log.stored(4, log.last_index)]
    for m in appends:
        last_index = m.previous_index + len(m.entries)
        assert m.previous_chain == chain_behind(0, entries[: m.previous_index])
        assert m.last_chain == chain_behind(0, entries[:last_index])


def test_a_snapshot_of_another_log_is_not_installed_over_what_is_committed() -> None:
    """Nor taken for what we have: its last entry is named with its chain CRC."""
    node = Alone(terms=(1,), snapshots=ModelSnapshots())
    node.append(TRUE, after=(1, 2), term=1, commit=3)
    node.settle()
    info = SnapshotInfo(
        last_index=3, last_term=1, last_chain=chain_of(FORGED), size_bytes=9, crc32c=0
    )

    node.hear(InstallSnapshotRequest, term=1, info=info, offset=0, data=b"x" * 9)

    assert isinstance(refused(node), Divergence)
    assert (node.settle(), node.installs) == ([], [])


def test_a_snapshot_does_not_commit_another_log() -> None:
    """What is here by term and index is replaced by it, if it is not the same."""
    node = Alone(terms=(1,), snapshots=ModelSnapshots())
    node.append(FORGED, after=(1, 2), term=1)
    info = SnapshotInfo(
        last_index=3, last_term=1, last_chain=chain_of(TRUE), size_bytes=9, crc32c=0
    )

    node.hear(InstallSnapshotRequest, term=1, info=info, offset=0, data=b"x" * 9)
    node.settle()

    assert (node.raft.commit_index, node.installs) == (0, [info])


@pytest.mark.parametrize(
    ("request_type", "response_type"),
    [(VoteRequest, VoteResponse), (PreVoteRequest, PreVoteResponse)],
)
def test_nobody_votes_for_another_log_with_the_same_last_entry(
    request_type: type[Message], response_type: type[VoteResponse]
) -> None:
    """Else a forged entry could come to lead, and be replicated to those who have the true one."""
    fields = {"term": 2, "last_index": 3, "last_term": 1}
    granted = []
    for chain in (chain_of(FORGED), chain_of(TRUE)):
        node = follower(TRUE)
        node.do(lambda raft: raft.peer_disconnected(NodeId("2")))
        node.hear(request_type, sender="3", **fields, last_chain=chain)
        granted += [m.granted for m in node.settle() if isinstance(m, response_type)]

    assert granted == [False, True]


# Terms


@pytest.mark.parametrize("jump", [MAX_TERM_JUMP + 1, MAX_NUMBER - 2])
def test_a_term_out_of_reach_changes_nothing(jump: int) -> None:
    """One such message, from any member, made a group unable to elect for good (found: S5)."""
    node = follower()

    node.hear(HeartbeatRequest, term=1 + jump, commit_index=0, round=1)
    assert refused(node) == TermJump(NodeId("2"), 1 + jump)
    node.hear(PreVoteResponse, term=1 + jump, granted=False)
    node.hear(VoteRequest, term=1 + jump, last_index=9, last_term=9, transfer=True)

    assert node.settle() == []
    assert node.raft.term == 1


def test_a_term_within_reach_is_followed() -> None:
    """A node that was away for long, or was restored, catches up with any group at once."""
    node = follower()

    node.hear(HeartbeatRequest, term=1 + MAX_TERM_JUMP, commit_index=0, round=1)

    assert (node.raft.term, node.raft.leader) == (1 + MAX_TERM_JUMP, "2")


def test_one_member_with_a_wrong_term_costs_an_election_each_time() -> None:
    """And no more: the group goes on from the term that it was taken to."""
    node = follower()
    node.hear(HeartbeatRequest, term=MAX_TERM_JUMP, commit_index=0, round=1)
    node.do(lambda raft: raft.peer_disconnected(NodeId("2")))

    node.become_leader()

    assert node.raft.term == MAX_TERM_JUMP + 1


def test_an_entry_that_was_changed_on_its_way_is_another_log() -> None:
    """Everything that a record says is part of the chain, so all of it is the same everywhere."""
    for change in ({"timestamp_ms": 1}, {"crc32c": 7}, {"data": b"truth"}, {"term": 2}):
        assert chain_of(replace(TRUE, **change)) != chain_of(TRUE)
