"""Changing who belongs to the group, as an administrator asks for it.

`plan` turns a request into the membership that the Raft core is asked for; `carry_out` asks it and
waits. New members come in as learners; the core makes voters of them once they have caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from dledger.common.words import check_member
from dledger.errors import InvalidArgument, LeadershipLost, NotLeader, Refused, Unavailable
from dledger.replica.bootstrap_record import MAX_MEMBERS
from dledger.replica.driver import Driver
from dledger.types import Member, Membership, NodeId, Role

logger = logging.getLogger(__name__)

_WATCH_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChange:
    """Who is to come, as learners, and who is to go, by id."""

    add: tuple[Member, ...] = ()
    remove: tuple[NodeId, ...] = ()

    def is_done(self, membership: Membership) -> bool:
        """Whether a membership is final and what was asked for."""
        present = {member.id for member in membership.members}
        there = all(member.id in present for member in self.add)
        return there and present.isdisjoint(self.remove) and not membership.is_joint


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The voters and learners that a change is to lead to."""

    voters: tuple[Member, ...]
    learners: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The membership that a change led to, and the index of its entry."""

    membership: Membership
    index: int


def plan(
    current: Membership, change: MemberChange, *, was_member: Callable[[NodeId], bool]
) -> Wanted:
    """Return what a change leads to from the present members.

    A name and an address belong to one member: a wiped disk comes back under its old name with
    another id, and that needs the old id removed in the same change.

    Raises:
        InvalidArgument: The request is empty or malformed, or names a node to remove that never was
            a member.
        Refused: A name or an address is another member's, or there would be too many members.
    """
    _check_shape(change)
    for node_id in change.remove:
        if not was_member(node_id):
            raise InvalidArgument(f"{node_id!r:.120} is no member of group {current.group_id}")
    present = {member.id for member in current.members}
    staying = [m for m in current.members if m.id not in change.remove]
    coming = [m for m in change.add if m.id not in present]
    _refuse_shared(staying, [*coming, *(m for m in change.add if m.id in present)])
    if len(staying) + len(coming) > MAX_MEMBERS:
        raise Refused(f"a group has at most {MAX_MEMBERS} members, learners included")
    return Wanted(
        voters=tuple(m for m in staying if m.id in current.voter_ids),
        learners=(*(m for m in staying if m.id not in current.voter_ids), *coming),
    )


def _check_shape(change: MemberChange) -> None:
    if not change.add and not change.remove:
        raise InvalidArgument("name a member to add or to remove")
    for member in change.add:
        check_member(member)
    ids = [*(member.id for member in change.add), *change.remove]
    if len(set(ids)) != len(ids):
        raise InvalidArgument(f"a node is named twice among {', '.join(sorted(ids))}")


def _refuse_shared(staying: Collection[Member], asked: Collection[Member]) -> None:
    """Refuse a name or an address that belongs to another member, or to two of those asked for."""
    for member in asked:
        for other in (*staying, *asked):
            if other.id == member.id:
                continue
            if other.name == member.name:
                raise Refused(
                    f"{member.name} is member {other.id}: to replace its disk, remove that id and "
                    f"add {member.id} in one change"
                )
            if other.address == member.address:
                raise Refused(f"{member.address} is the address of {other.name} ({other.id})")


async def carry_out(driver: Driver, change: MemberChange, *, timeout_s: float) -> Changed:
    """Change the members; returns once that is committed. Repeating it is harmless.

    Raises:
        NotLeader: Another node leads, or none; nothing happened.
        Unavailable: Another change is under way, or this one was not committed within the time;
            then it goes on by itself.
        LeadershipLost: Leadership ended before the outcome was known.
        InvalidArgument, Refused: See `plan` and `Raft.change_membership`.
    """
    core = driver.core
    if not driver.is_serving_leader():
        raise NotLeader(core.leader)
    wanted = plan(core.membership, change, was_member=core.was_member)
    term, index = core.term, core.membership_index
    if not change.is_done(core.membership):
        term, index = driver.change_membership(voters=wanted.voters, learners=wanted.learners)
        logger.info(
            "group %s: %s by entry %d of term %d", core.config.group_id, change, index, term
        )
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not (change.is_done(core.membership) and core.commit_index >= core.membership_index):
        if (core.role, core.term) != (Role.LEADER, term):
            raise LeadershipLost(f"leadership ended before entry {index} was known to be committed")
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            raise Unavailable(f"the change that entry {index} began is still under way; see Status")
        await driver.wait_change(min(left_s, _WATCH_S))
    return Changed(membership=core.membership, index=core.membership_index)
