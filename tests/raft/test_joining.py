"""A node that joins: its log names members of the group, but not yet itself (ADR 21).

Those that it names may all have left since, so whoever leads is heard as by an empty disk.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dledger.raft.config import RaftConfig
from dledger.raft.core import Raft
from dledger.raft.membership import MembershipStack
from dledger.raft.messages import (
    DiscardRequest,
    HeartbeatRequest,
    InstallSnapshotRequest,
    Message,
    PreVoteRequest,
    TimeoutNow,
    VoteRequest,
)
from dledger.types import Entry, EntryKind, Membership, NodeId, SnapshotInfo
from dledger_sim.process import founding_entry, member
from tests.raft.bench import Alone, ModelSnapshots, data_entry

ONE, STRANGER = NodeId("1"), NodeId("9")


def group(*voters: str, **fields: Any) -> Membership:
    return Membership.of([member(one) for one in voters], **fields)


FOUNDERS = group("2", "3", "4")


def membership_entry(term: int, index: int, membership: Membership) -> Entry:
    data = membership.encode()
    own = founding_entry(membership)
    assert own.data == data
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.MEMBERSHIP,
        timestamp_ms=0,
        crc32c=own.crc32c,
        data=data,
    )


def joining() -> Alone:
    """Return node 1 with the founders' entry and one more; it heard both from one of them."""
    node = Alone(terms=None)
    node.append(founding_entry(FOUNDERS), data_entry(1, 2), after=(0, 0), term=1)
    node.settle()
    return node


def restarted(node: Alone) -> Raft:
    """Return a core on the same disk."""
    return Raft(
        RaftConfig(id=ONE),
        hard_state=node.disk.hard_state,
        log=node.disk,
        memberships=node.disk.memberships(),
        rng=Random(1),
        snapshots=ModelSnapshots(),
    )


@pytest.mark.found
def test_a_node_that_its_log_does_not_name_hears_whoever_leads() -> None:
    """Raft 6: a server takes entries from a leader that is not in its configuration.

    All whom the log names may be gone, so that nobody is left who could introduce it.
    """
    node = joining()

    node.append(data_entry(2, 3), after=(1, 2), term=2, commit=3, sender="9")
    node.hear(HeartbeatRequest, sender="9", term=2, commit_index=3, round=1)
    node.settle()

    assert (node.raft.leader, node.raft.last_index, node.raft.commit_index) == (STRANGER, 3, 3)


@pytest.mark.found
def test_a_snapshot_of_whoever_leads_is_taken() -> None:
    """Its memberships may be of before the node was added, too."""
    node = joining()
    info = SnapshotInfo(last_index=9, last_term=2, last_chain=7, size_bytes=4, crc32c=1)

    node.hear(InstallSnapshotRequest, sender="9", term=2, info=info, offset=0, data=b"half")

    assert len(node.take().chunks) == 1
    node.do(lambda raft: raft.snapshot_finished(info, installed=True, memberships=[(1, FOUNDERS)]))
    assert node.raft.hears(STRANGER)


@pytest.mark.found
def test_it_joins_again_after_a_restart() -> None:
    """The log says it; nothing that was introduced is remembered."""
    node = joining()

    assert restarted(node).is_joining
    assert restarted(node).hears(STRANGER)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (VoteRequest, {"last_index": 9, "last_term": 9, "transfer": True}),
        (PreVoteRequest, {"last_index": 9, "last_term": 9}),
        (DiscardRequest, {"index": 2, "entry_term": 9, "firm": True}),
        (TimeoutNow, {}),
    ],
)
def test_a_node_that_joins_gives_a_stranger_no_vote(
    kind: type[Message], fields: dict[str, object]
) -> None:
    """Raft 6: only a leader can make it a voter, by an entry that its log then has.

    Who asks for its vote all the same knows it from before its disk was put back to an older copy.
    """
    node = joining()

    node.hear(kind, sender="9", term=2, **fields)

    assert node.settle() == []
    assert (node.raft.term, node.raft.vote) == (1, None)


def test_strangers_are_refused_as_soon_as_its_log_names_it() -> None:
    """And heard again if the entry that names it is overruled."""
    node = joining()
    named = membership_entry(2, 3, group("8", "9", learners=[member("1")]))
    node.append(named, after=(1, 2), term=2, sender="9")
    node.settle()
    assert not node.raft.is_joining
    assert not node.raft.hears(NodeId("7"))
    assert not restarted(node).hears(NodeId("7"))

    node.append(data_entry(3, 3), after=(1, 2), term=3, sender="8")
    node.settle()

    again = restarted(node)
    assert again.is_joining
    assert node.raft.hears(NodeId("7"))


def test_a_node_that_was_removed_does_not_join() -> None:
    """Its log names it, though in no membership that is in force."""
    node = Alone(terms=(1,))
    node.append(membership_entry(1, 3, group("2", "3")), after=(1, 2), term=1, commit=3)
    node.settle()

    assert node.raft.is_removed
    assert not node.raft.is_joining
    assert not node.raft.hears(STRANGER)


def test_of_those_that_its_log_names_the_logs_word_counts() -> None:
    """A member that was removed for good is no stranger; nor one that a forced group left out."""
    node = joining()
    node.append(membership_entry(1, 3, group("2", "3")), after=(1, 2), term=1, commit=3)
    node.append(membership_entry(1, 4, group("2", epoch=1)), after=(1, 3), term=1)
    node.settle()

    assert node.raft.is_joining
    assert not node.raft.hears(NodeId("4"))
    assert not node.raft.hears(NodeId("3"))
    assert node.raft.hears(NodeId("2"))
    assert node.raft.hears(STRANGER)


def test_a_node_with_a_damaged_membership_does_not_join() -> None:
    """That may be the one that names it, as a voter that has promised much."""
    node = joining()
    node.disk.unreadable.add(2)

    assert not restarted(node).is_joining
    assert not restarted(node).hears(STRANGER)


def test_memberships_of_the_group_that_was_restored_are_not_damaged_ones() -> None:
    """A new member of a restored group gets them with the log; they mean nothing in it."""
    ours = group("2", "3", group_id="ours")
    stack = MembershipStack([(1, group("1", "5", group_id="before")), (4, ours)], "ours")

    assert stack.has(1)
    assert not stack.was_member(ONE)
    stack.truncate(4)
    assert (stack.has(1), stack.has(4)) == (True, False)
    stack.replace([(4, ours)])
    assert (stack.has(1), stack.has(4)) == (False, True)


def test_an_empty_log_is_as_before() -> None:
    """A founder's empty disk may be needed for the first leader: it votes."""
    node = Alone(terms=None)

    assert not node.raft.is_joining
    node.hear(VoteRequest, sender="9", term=2, last_index=9, last_term=1)
    node.settle()

    assert node.raft.vote == STRANGER
