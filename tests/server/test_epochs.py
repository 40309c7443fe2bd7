"""A node that a forced group left out finds that in its own log, and stops."""

from __future__ import annotations

from typing import cast

import pytest

from dledger.errors import LeftOut, MemberRemoved, NotMember
from dledger.peers.handshake import Handshake, PeerAddress
from dledger.raft.membership import MembershipStack
from dledger.raft.view import RaftView
from dledger.server.epochs import Epochs
from dledger.types import Membership, NodeId
from dledger_sim.process import member

OLD = Membership.of([member("1"), member("2"), member("3")], "g")
FORCED = Membership.of([member("1")], "g", epoch=1)


class Core:
    """A core with these memberships, committed up to an index."""

    def __init__(self, node_id: str, *memberships: tuple[int, Membership], commit: int) -> None:
        self._id, self._commit = NodeId(node_id), commit
        self._stack = MembershipStack(memberships, "g")

    @property
    def epoch(self) -> tuple[int, int]:
        return self._stack.epoch(self._commit)

    def is_behind(self, epoch: int) -> bool:
        return self._stack.is_behind(self._id, epoch)


class Node:
    """What a node of group "g" makes of epochs, and by which entry it was removed."""

    def __init__(self, core: Core | None, node_id: str = "2", group_id: str = "g") -> None:
        self.removed_by: list[int] = []
        self.epochs = Epochs(
            NodeId(node_id),
            group_id=lambda: group_id,
            core=lambda: cast("RaftView | None", core),
            removed=self.removed_by.append,
        )


def hello(*, epoch: int = 0, index: int = 0, group_id: str = "g") -> Handshake:
    return Handshake(
        group_id=group_id,
        sender_id=NodeId("1"),
        sender_name="orders-0",
        recipient_id=NodeId("2"),
        endpoint=PeerAddress(host="10.0.0.1", port=1),
        epoch=epoch,
        epoch_index=index,
    )


def test_a_node_that_was_left_out_refuses_the_caller_that_tells_it_and_stops() -> None:
    """By the entry that did it."""
    node = Node(Core("2", (1, OLD), commit=1))

    with pytest.raises(MemberRemoved, match="node 2 was removed from group g by entry 9"):
        node.epochs.check(hello(epoch=1, index=9))

    assert node.removed_by == [9]


def test_a_node_that_was_left_out_stops_when_it_is_refused_with_the_epoch() -> None:
    """The other direction: it called."""
    node = Node(Core("2", (1, OLD), commit=1))

    node.epochs.learn(1, 9)

    assert node.removed_by == [9]


@pytest.mark.parametrize(
    ("core", "why"),
    [
        (Core("1", (1, OLD), (9, FORCED), commit=9), "the survivor's log has the epoch"),
        (Core("4", (1, OLD), commit=1), "a fresh disk that is catching up is named nowhere"),
        (Core("4", commit=0), "a fresh disk that has nothing yet"),
        (None, "a disk that has joined no group"),
    ],
)
def test_nobody_else_stops(core: Core | None, why: str) -> None:
    """A mistake here would cost a member its disk."""
    node = Node(core)

    node.epochs.check(hello(epoch=1, index=9))
    node.epochs.learn(1, 9)

    assert node.removed_by == [], why


def test_another_groups_epoch_is_nobodys_business() -> None:
    """A group restored from a backup has a new id, and epochs of its own."""
    node = Node(Core("2", (1, OLD), commit=1))

    node.epochs.check(hello(epoch=1, index=9, group_id="h"))

    assert node.removed_by == []


def test_a_refused_caller_of_an_earlier_epoch_is_told_ours() -> None:
    """A node that the survivor never heard of is only known by its epoch."""
    node = Node(Core("1", (1, OLD), (9, FORCED), commit=9), "1")
    error = NotMember(NodeId("7"), name="x", group_id="g")

    told = node.epochs.refusal(hello(), error)

    assert isinstance(told, LeftOut)
    assert (told.epoch, told.index) == (1, 9)
    assert str(error) in str(told)


def test_an_epoch_that_is_not_committed_is_told_to_nobody() -> None:
    """Who stops because of it could not come back if it was lost."""
    node = Node(Core("1", (1, OLD), (9, FORCED), commit=8), "1")
    error = NotMember(NodeId("7"), name="x", group_id="g")

    assert node.epochs.known() == (0, 0)
    assert node.epochs.refusal(hello(), error) is error


@pytest.mark.parametrize("caller", [hello(epoch=1, index=9), hello(group_id="h")])
def test_a_caller_of_our_epoch_or_another_group_gets_the_plain_refusal(caller: Handshake) -> None:
    """There is nothing to learn."""
    node = Node(Core("1", (1, OLD), (9, FORCED), commit=9), "1")
    error = NotMember(NodeId("7"), name="x", group_id="g")

    assert node.epochs.refusal(caller, error) is error
