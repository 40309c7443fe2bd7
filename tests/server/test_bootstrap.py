"""Which group a disk belongs to: what handshakes are judged by, and the tombstone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.errors import CorruptFile, MemberRemoved, NodeRemoved, NotTheGroup, Refused
from dledger.files.files import RealFiles
from dledger.peers.handshake import Handshake, PeerAddress
from dledger.raft.view import RaftView
from dledger.server.bootstrap import Bootstrap, authoritative_membership
from dledger.store.tombstone import NAME, Tombstone, load_tombstone, save_tombstone
from dledger.types import Member, Membership, NodeId, Role

MEMBERS = Membership.of(
    [Member(id=NodeId(one), name=one, address=f"{one}:1") for one in ("a", "b", "c")], "g"
)
ADDRESS = PeerAddress(host="10.1.0.1", port=3)
_EMPTY: Any = SimpleNamespace(last_index=0)
TOMBSTONE = Tombstone(group_id="g", node_id=NodeId("a"), index=7, learned_at_ms=1)


class View(RaftView):
    """A core that plays a role, and knows of one removal."""

    def __init__(self, role: Role, removed: NodeId | None = None) -> None:
        self._role = role
        self._removed = removed

    @property
    def role(self) -> Role:
        return self._role

    @property
    def membership(self) -> Membership:
        return MEMBERS

    def removal_index(self, node_id: NodeId) -> int | None:
        return 7 if node_id == self._removed else None


async def nothing() -> None:
    """Take the news that the disk belongs to a group."""


def joining(directory: Path, told_group: str = "g") -> Bootstrap:
    return Bootstrap(
        RealFiles(),
        directory,
        group="g",
        name="b",
        address=ADDRESS,
        told_group=told_group,
        on_joined=nothing,
    )


def hello(sender: str, recipient: NodeId) -> Handshake:
    return Handshake(
        group_id="g",
        sender_id=NodeId(sender),
        sender_name=sender,
        recipient_id=recipient,
        endpoint=ADDRESS,
    )


def test_only_a_leader_knows_all_members() -> None:
    """A follower may lag behind a change, and must not refuse who was added by it (Raft 6)."""
    assert authoritative_membership(View(Role.LEADER)) == MEMBERS
    for role in set(Role) - {Role.LEADER}:
        assert authoritative_membership(View(role)) == Membership()
    assert authoritative_membership(None) == Membership()


async def test_a_follower_hears_an_unknown_node_that_a_leader_refuses(tmp_path: Path) -> None:
    """It may be a member that the follower has not heard of yet."""
    own = joining(tmp_path)
    await own.accept(hello("a", own.node_id), lambda: None)

    await own.accept(hello("unknown", own.node_id), lambda: View(Role.FOLLOWER))

    with pytest.raises(Refused, match="is not a member of group g"):
        await own.accept(hello("unknown", own.node_id), lambda: View(Role.LEADER))


@pytest.mark.found
@pytest.mark.parametrize("told", ["", "another"])
async def test_an_empty_disk_stays_empty_for_another_group(tmp_path: Path, told: str) -> None:
    """Neither a handshake nor a founding takes it there, and nothing is written (found: S8e)."""
    own = joining(tmp_path, told)
    members = (Member(id=own.node_id, name="b", address="b:1"),)

    with pytest.raises(NotTheGroup):
        await own.accept(hello("a", own.node_id), lambda: None)
    with pytest.raises(NotTheGroup):
        await own.bootstrap("g", members)

    assert (own.group_id, joining(tmp_path, told).group_id) == ("", "")
    assert own.founding_of(_EMPTY) is None


async def test_a_disk_that_belongs_to_a_group_stays_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its node is told later; that is said."""
    first = joining(tmp_path)
    await first.accept(hello("a", first.node_id), lambda: None)

    again = joining(tmp_path, "another")

    assert again.group_id == "g"
    expected = "group_id 'another' applies to an empty disk only"
    assert f"this disk belongs to group 'g'; {expected}" in caplog.text


@pytest.mark.parametrize("role", [Role.LEADER, Role.FOLLOWER])
async def test_a_removed_member_is_refused_by_everyone(tmp_path: Path, role: Role) -> None:
    """Removed is for good, so a follower that lags may say it too; the error names the entry."""
    own = joining(tmp_path)
    view = View(role, removed=NodeId("a"))

    with pytest.raises(MemberRemoved, match="by entry 7") as refusal:
        await own.accept(hello("a", own.node_id), lambda: view)

    assert refusal.value.index == 7


async def test_a_buried_node_refuses_to_start(tmp_path: Path) -> None:
    """The sentence says by which entry, where that is written, and what to do."""
    own = joining(tmp_path)
    await own.accept(hello("a", own.node_id), lambda: None)

    reason = await own.bury(7, now_ms=1)

    with pytest.raises(NodeRemoved, match=r"by entry 7 .*removed\.json.*member add") as refusal:
        joining(tmp_path)
    assert str(refusal.value) == str(reason)


def test_a_tombstone_comes_out_as_it_went_in(tmp_path: Path) -> None:
    """Group, node, entry and time."""
    save_tombstone(RealFiles(), tmp_path, TOMBSTONE)

    assert load_tombstone(RealFiles(), tmp_path) == TOMBSTONE
    assert load_tombstone(RealFiles(), tmp_path / "elsewhere") is None


def test_a_damaged_tombstone_still_keeps_the_node_from_starting(tmp_path: Path) -> None:
    """Rot must not bring a removed node back."""
    save_tombstone(RealFiles(), tmp_path, TOMBSTONE)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b'"index": 7', b'"index": 8'))

    with pytest.raises(CorruptFile, match=r"removed\.json"):
        joining(tmp_path)
