"""Members come and go: whole nodes on real disks and ports, through Admin and the client."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import Client
from dledger.errors import InvalidArgument, NodeRemoved, NotLeader, Refused, Unavailable
from dledger.files.files import RealFiles
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb.dledger_pb2_grpc import AdminStub
from dledger.store.tombstone import load_tombstone
from dledger.types import Member, NodeId
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually, eventually_works


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


async def test_a_learner_gets_the_log_and_becomes_a_voter_by_itself(live: LiveNodes) -> None:
    """Asked of a follower, which names the leader; then the new node is whole and counts."""
    leader = await live.found(0, 1, 2)
    async with live.client(0) as client:
        await client.append("topic", [b"before"], queue_id=0)
    await live.start(3)

    async with live.admin((leader + 1) % 3) as admin:
        members = await admin.add_learner(live.member(3))
    await live.voters(4)

    assert live.nodes[3].node_id in {member.id for member in members.members}
    async with live.client(3) as client:
        read = await eventually_works(lambda: _bodies(client))
    assert read == [b"before"]


async def test_a_removed_follower_stops_and_refuses_to_start(live: LiveNodes) -> None:
    """It hears of its removal, writes the tombstone and ends; so does every later start."""
    leader = await live.found(0, 1, 2)
    removed = (leader + 1) % 3
    node_id = live.nodes[removed].node_id

    async with live.admin(leader) as admin:
        await admin.remove_member(node_id)
    reason = await eventually(lambda: live.ended.get(removed))
    await live.stop(removed)

    assert isinstance(reason, NodeRemoved)
    tombstone = load_tombstone(RealFiles(), live.data(removed))
    assert tombstone is not None
    assert (tombstone.node_id, tombstone.index) == (node_id, reason.index)
    with pytest.raises(NodeRemoved, match="empty data directory"):
        await live.start(removed)
    await live.voters(2)


async def test_a_removed_leader_hands_over_and_stops(live: LiveNodes) -> None:
    """It leads until the group without it is committed, then writes go on elsewhere."""
    leader = await live.found(0, 1, 2)
    others = [number for number in range(3) if number != leader]

    async with live.admin(leader) as admin:
        await admin.remove_member(live.nodes[leader].node_id)
    reason = await eventually(lambda: live.ended.get(leader))
    await live.stop(leader)

    assert isinstance(reason, NodeRemoved)
    await live.voters(2)
    async with live.client(others[0]) as client:
        await client.append("topic", [b"after"])


async def test_a_member_that_missed_its_removal_learns_it_when_it_connects(
    live: LiveNodes,
) -> None:
    """It was down meanwhile: each member refuses its handshake for good, and says why."""
    leader = await live.found(0, 1, 2)
    absent = (leader + 1) % 3
    node_id = live.nodes[absent].node_id
    await live.stop(absent)
    async with live.admin(leader) as admin:
        await admin.remove_member(node_id)

    await live.start(absent)
    reason = await eventually(lambda: live.ended.get(absent))

    assert isinstance(reason, NodeRemoved)
    assert load_tombstone(RealFiles(), live.data(absent)) is not None
    assert await live.leader() == leader


async def test_a_removed_member_cannot_return_with_its_disk(live: LiveNodes) -> None:
    """Its id is refused; a formatted disk has another."""
    leader = await live.found(0, 1, 2)
    removed = live.member((leader + 1) % 3)

    async with live.admin(leader) as admin:
        await admin.remove_member(removed.id)
        with pytest.raises(Refused, match="removed before"):
            await admin.add_learner(removed)


async def test_a_wiped_replica_is_replaced_by_one_change(live: LiveNodes) -> None:
    """Same name and address, another id: refused until the old id goes in the same change (P6)."""
    leader = await live.found(0, 1, 2)
    wiped = (leader + 1) % 3
    before = live.member(wiped)
    async with live.client(leader) as client:
        await client.append("topic", [b"before"], queue_id=0)
    await live.stop(wiped)
    live.wipe(wiped)
    await live.start(wiped)
    after = live.member(wiped)

    assert after.id != before.id
    await eventually(lambda: not live.status(leader).members[wiped].connected)
    assert live.status(wiped).role == "unjoined"
    async with live.admin(leader) as admin:
        with pytest.raises(Refused, match=f"{after.name} is member {before.id}"):
            await admin.add_learner(after)
        await admin.change_members(add=[after], remove=[before.id])
    await live.voters(3)

    async with live.client(wiped) as client:
        assert await eventually_works(lambda: _bodies(client)) == [b"before"]
    async with live.client(leader) as client:
        await client.append("topic", [b"after"], queue_id=0)


async def test_several_members_come_and_go_at_once(live: LiveNodes) -> None:
    """Joint consensus through the real wiring: two in, one out, one change."""
    leader = await live.found(0, 1, 2)
    gone = (leader + 1) % 3
    await live.start(3, 4)

    async with live.admin(leader) as admin:
        members = await admin.change_members(
            add=[live.member(3), live.member(4)], remove=[live.nodes[gone].node_id]
        )
    await live.voters(4)

    assert live.nodes[gone].node_id not in {member.id for member in members.members}
    async with live.client(4) as client:
        await client.append("topic", [b"x"])


async def test_a_learner_that_is_away_does_not_count(live: LiveNodes) -> None:
    """It is shown as one that does not vote; writes need a majority of the voters alone."""
    leader = await live.found(0, 1, 2)
    absent = Member(id=NodeId("away"), name="orders-9", address="127.0.0.1:1")

    async with live.admin(leader) as admin:
        await admin.add_learner(absent)
        status = await admin.status()
    async with live.client(leader) as client:
        await client.append("topic", [b"x"])

    row = next(row for row in status.members if row.member.id == absent.id)
    assert (row.voter, row.connected, row.match_index) == (False, False, 0)


async def test_an_added_learner_says_so_of_itself(live: LiveNodes) -> None:
    """Its own role is learner while it lacks the log; the leader shows how far it is."""
    leader = await live.found(0, 1, 2)
    await live.start(3)
    roles = set()

    async def watch() -> None:
        while True:
            roles.add(live.status(3).role)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with live.admin(leader) as admin:
        await admin.add_learner(live.member(3))
    await live.voters(4)
    await eventually(lambda: "follower" in roles)
    watching.cancel()

    assert roles >= {"unjoined", "learner", "follower"}


async def test_add_learner_and_remove_member_are_calls_of_their_own(live: LiveNodes) -> None:
    """For whoever speaks `dledger.v1` without our client; a follower names the leader."""
    leader = await live.found(0, 1, 2)
    other = live.nodes[(leader + 1) % 3].node_id
    learner = pb.AddLearnerRequest(id="away", name="orders-9", address="127.0.0.1:1")

    async with live.admin(leader) as admin, live.admin((leader + 1) % 3) as follower:
        stub, followers_stub = AdminStub(admin.channel), AdminStub(follower.channel)
        with pytest.raises(NotLeader) as refusal:
            await follower.call(followers_stub.AddLearner, learner)
        added = await admin.call(stub.AddLearner, learner)
        removed = await admin.call(stub.RemoveMember, pb.RemoveMemberRequest(id=other))

    assert refusal.value.leader == live.nodes[leader].node_id
    assert [member.id for member in added.learners] == ["away"]
    assert other not in {member.id for member in removed.voters}
    assert removed.index > added.index


async def test_repeating_a_change_does_nothing(live: LiveNodes) -> None:
    """A client that lost the answer may ask again."""
    leader = await live.found(0, 1, 2)
    removed = live.nodes[(leader + 1) % 3].node_id

    async with live.admin(leader) as admin:
        first = await admin.remove_member(removed)
        last_index = live.status(leader).last_index
        again = await admin.remove_member(removed)

    assert again == first
    assert live.status(leader).last_index == last_index


async def test_removing_a_non_member_is_a_typed_error(live: LiveNodes) -> None:
    """It names the id."""
    leader = await live.found(0, 1, 2)

    async with live.admin(leader) as admin:
        with pytest.raises(InvalidArgument, match="nobody"):
            await admin.remove_member("nobody")


async def test_a_change_that_no_quorum_takes_is_answered_in_bounded_time(
    live: LiveNodes,
) -> None:
    """Unavailable, not a call that hangs."""
    leader = await live.found(0, 1, 2)
    for number in {0, 1, 2} - {leader}:
        await live.stop(number)

    async with live.admin(leader, timeout_s=1) as admin:
        with pytest.raises(Unavailable):
            await admin.add_learner(Member(id=NodeId("x"), name="x", address="127.0.0.1:1"))


async def _bodies(client: Client) -> list[bytes]:
    bodies = [stored.record.body async for stored in client.read("topic", 0)]
    if not bodies:
        raise Unavailable("nothing applied yet")
    return bodies
