"""What a request to change members leads to, before the core is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.errors import InvalidArgument, LeadershipLost, Refused, Unavailable
from dledger.replica.member_change import Changed, MemberChange, Wanted, carry_out, plan
from dledger.types import Member, Membership, NodeId, Role
from tests.waiting import eventually


def member(number: int, *, disk: str = "") -> Member:
    name = f"orders-{number}"
    return Member(id=NodeId(f"{name}{disk}"), name=name, address=f"10.0.0.{number}:20911")


A, B, C, D, E = (member(number) for number in range(5))
CURRENT = Membership.of([A, B, C], "g", learners=[D])
REMOVED = NodeId("removed-before")


def planned(*, add: tuple[Member, ...] = (), remove: tuple[NodeId, ...] = ()) -> Wanted:
    known = {one.id for one in CURRENT.members} | {REMOVED}
    change = MemberChange(add=add, remove=remove)
    return plan(CURRENT, change, was_member=lambda node_id: node_id in known)


def test_new_members_come_in_as_learners() -> None:
    """They vote when they have caught up, which is the core's to decide."""
    assert planned(add=(E,)) == Wanted(voters=(A, B, C), learners=(D, E))


def test_removed_members_go_from_voters_and_learners() -> None:
    """Both at once."""
    assert planned(remove=(B.id, D.id)) == Wanted(voters=(A, C), learners=())


def test_a_wiped_disk_takes_its_old_place_by_one_change() -> None:
    """The old id goes, the new one learns, under the same name and address."""
    wiped = member(2, disk="-new")

    assert planned(add=(wiped,), remove=(C.id,)) == Wanted(voters=(A, B), learners=(D, wiped))


def test_a_wiped_disk_is_refused_while_its_old_id_stays() -> None:
    """Two disks under one name would leave it open which of them is meant."""
    with pytest.raises(Refused, match=r"orders-2 is member orders-2: .*remove that id"):
        planned(add=(member(2, disk="-new"),))


def test_an_address_belongs_to_one_member() -> None:
    """Otherwise one of the two would be asked in the other's place."""
    with pytest.raises(Refused, match=r"10\.0\.0\.1:20911 is the address of orders-1"):
        planned(add=(Member(id=NodeId("x"), name="x", address=B.address),))


def test_two_of_a_name_are_refused_also_among_the_new() -> None:
    """The check covers what comes with it."""
    with pytest.raises(Refused, match="orders-4"):
        planned(add=(E, member(4, disk="-other")))


def test_what_is_so_already_is_no_error() -> None:
    """A request may be repeated: a member is added, a removed one removed."""
    assert planned(add=(B,)) == Wanted(voters=(A, B, C), learners=(D,))
    assert planned(remove=(REMOVED,)) == Wanted(voters=(A, B, C), learners=(D,))


def test_removing_a_non_member_is_refused_by_its_id() -> None:
    """A typing mistake is not taken for something that is so already."""
    with pytest.raises(InvalidArgument, match="'nobody' is no member of group g"):
        planned(remove=(NodeId("nobody"),))


@pytest.mark.parametrize(
    "change",
    [
        MemberChange(),
        MemberChange(add=(E, E)),
        MemberChange(add=(B,), remove=(B.id,)),
        MemberChange(add=(Member(id=NodeId(""), name="x", address="x:1"),)),
        MemberChange(add=(Member(id=NodeId("x"), name="", address="x:1"),)),
        MemberChange(add=(Member(id=NodeId("x"), name="x", address=""),)),
    ],
)
def test_malformed_requests_are_refused(change: MemberChange) -> None:
    """Nothing, the same twice, or a member without id, name or address."""
    with pytest.raises(InvalidArgument):
        plan(CURRENT, change, was_member=lambda _: True)


def test_a_group_has_at_most_nine_members() -> None:
    """Learners included."""
    with pytest.raises(Refused, match="at most 9"):
        planned(add=tuple(member(number) for number in range(4, 10)))


def test_a_change_is_done_when_the_membership_is_final_and_as_asked() -> None:
    """Not while the voters before still count."""
    change = MemberChange(add=(E,), remove=(C.id,))
    final = Membership.of([A, B], "g", learners=[D, E])

    assert change.is_done(final)
    assert not change.is_done(Membership.of([A, B], "g", outgoing=[A, B, C], learners=[D, E]))
    assert not change.is_done(Membership.of([A, B], "g", learners=[D]))
    assert not change.is_done(Membership.of([A, B, C], "g", learners=[D, E]))


class Leader:
    """A driver that leads, whose core appends at once; a test says when it commits."""

    def __init__(self) -> None:
        self.core = SimpleNamespace(
            membership=CURRENT,
            membership_index=1,
            commit_index=1,
            role=Role.LEADER,
            term=3,
            leader=A.id,
            config=SimpleNamespace(group_id="g"),
            was_member=lambda _: True,
        )
        self.looks = 0

    def is_serving_leader(self) -> bool:
        return True

    def change_membership(self, *, voters: Any, learners: Any) -> tuple[int, int]:
        """Append the change: it is in force, and on no other disk."""
        self.core.membership = Membership.of(voters, "g", learners=learners)
        self.core.membership_index = 7
        return 3, 7

    async def wait_change(self, timeout_s: float) -> None:
        self.looks += 1
        await asyncio.sleep(0)


async def looked(leader: Any) -> None:
    """Wait until somebody has looked at the leader a few times more."""
    enough = leader.looks + 3
    await eventually(lambda: leader.looks >= enough)


async def test_a_change_is_done_once_it_is_committed() -> None:
    """In force is not enough: until then the members before may decide without it."""
    leader: Any = Leader()
    change = asyncio.create_task(carry_out(leader, MemberChange(remove=(D.id,)), timeout_s=60))
    await looked(leader)
    assert not change.done()

    leader.core.commit_index = 7

    assert await change == Changed(membership=Membership.of([A, B, C], "g"), index=7)


async def test_a_change_is_not_done_when_leadership_ends_before_its_commit() -> None:
    """The next leader may never have had it."""
    leader: Any = Leader()
    change = asyncio.create_task(carry_out(leader, MemberChange(remove=(D.id,)), timeout_s=60))
    await looked(leader)

    leader.core.role, leader.core.term = Role.FOLLOWER, 4

    with pytest.raises(LeadershipLost, match="before entry 7 was known to be committed"):
        await change


async def test_a_change_that_is_so_already_still_waits_for_its_commit() -> None:
    """Repeating a request tells the same as the first one would have."""
    leader: Any = Leader()
    leader.change_membership(voters=[A, B, C], learners=[])

    with pytest.raises(Unavailable, match="entry 7 began is still under way"):
        await carry_out(leader, MemberChange(remove=(D.id,)), timeout_s=0)
