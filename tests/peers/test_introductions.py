"""Who a member is that this node does not know: what its members say, asked now and then."""

from __future__ import annotations

import pytest

from dledger.errors import Unavailable
from dledger.peers import introductions
from dledger.peers.introductions import Introductions
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Member, NodeId

A, B, NEW = NodeId("a"), NodeId("b"), NodeId("new")
FOUND = Member(id=NEW, name="orders-3", address="orders-3:20911")


class Members:
    """What each member answers, and how often it was asked."""

    def __init__(self) -> None:
        self.answers: dict[NodeId, bytes] = {}
        self.asked: list[NodeId] = []
        self.introductions = Introductions(self._ask, lambda: "g")

    async def _ask(self, node_id: NodeId, method: str, request: bytes, timeout_s: float) -> bytes:
        assert (method, request, timeout_s) == ("/dledger.v1.Admin/Status", b"", 1.0)
        self.asked.append(node_id)
        if node_id not in self.answers:
            raise Unavailable("no answer")
        return self.answers[node_id]

    async def find(self, node_id: NodeId = NEW) -> Member | None:
        return await self.introductions.find(node_id, (A, B))


def status(
    node_id: str = "b", group_id: str = "g", count: int = 1, address: str = FOUND.address
) -> bytes:
    response = pb.StatusResponse(node_id=node_id, group_id=group_id)
    for _ in range(count):
        response.members.add(member=pb.Member(id=NEW, name=FOUND.name, address=address))
    return response.SerializeToString()


async def test_the_word_of_one_member_is_enough() -> None:
    """Others may be away, or lag."""
    members = Members()
    members.answers = {B: status()}

    assert await members.find() == FOUND
    assert await members.find(NodeId("unknown")) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff" * 20,
        status(node_id="x"),
        status(group_id="another"),
        status(address="no address"),
        status(address="a\nb:1"),
        status(count=9000),
    ],
)
async def test_who_answers_in_a_members_place_introduces_nobody(answer: bytes) -> None:
    """Its address may be another's by now; and an answer is input."""
    members = Members()
    members.answers = {B: answer}

    assert await members.find() is None


async def test_members_are_not_asked_for_every_unknown_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they said a moment ago is good for all; then they are asked again."""
    members = Members()
    for number in range(100):
        await members.find(NodeId(f"unknown-{number}"))
    assert members.asked == [A, B]

    monkeypatch.setattr(introductions, "_EVERY_S", 0.0)
    members.answers = {A: status(node_id="a")}
    assert await members.find() == FOUND
