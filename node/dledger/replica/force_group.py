"""Makes this node the only member of its group, as an administrator asks after a lost majority.

Called by the Admin service. The rules about this node alone are in `raft.force`; here are those
about the other members that answer: while they and this node are a quorum, they elect a leader by
themselves, and nothing is to be forced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from dledger.errors import Refused, Unavailable
from dledger.raft.force import check_force
from dledger.raft.view import RaftView
from dledger.replica.driver import Driver
from dledger.types import Member, NodeId

logger = logging.getLogger(__name__)

_WATCH_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """What the administrator asks for, and what he saw when he decided it.

    Attributes:
        group_id: The group.
        node_id: The survivor.
        last_term: The term of its last entry.
        last_index: The index of that entry.
    """

    group_id: str
    node_id: NodeId
    last_term: int
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What another member of the group said when it was asked.

    Attributes:
        member: As this node's membership has it.
        leader_id: Whom it follows, or itself if it leads; empty if it knows no leader.
        last_term: The term of its last entry.
        last_index: The index of that entry.
        epoch: How often the group was forced, as far as it knows.
    """

    member: Member
    leader_id: str
    last_term: int
    last_index: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What was done.

    Attributes:
        term: The term of this node now.
        index: The entry that made it the group.
        epoch: How often the group was forced.
        committed_index: What was known to be committed before; -1: an earlier call did it.
        removed: The members that were removed.
    """

    term: int
    index: int
    epoch: int
    committed_index: int
    removed: tuple[Member, ...]


def check_named(force: Force, *, group_id: str, node_id: NodeId) -> None:
    """Check that this node and its group are meant. Raises Refused, with what they are."""
    if not group_id:
        raise Refused(f"node {node_id} has joined no group: its disk is empty")
    if force.group_id != group_id:
        raise Refused(f"node {node_id} belongs to group {group_id!r}, not {force.group_id!r:.120}")
    if force.node_id != node_id:
        raise Refused(f"this is node {node_id}, not {force.node_id!r:.120}")


def check_reached(core: RaftView, reached: Collection[Reached]) -> None:
    """Check that the members that answer could not go on by themselves, and know no more.

    Raises:
        Refused: One knows a leader, or a later epoch, or has more of the log; or with this node
            they are a quorum.
    """
    for one in reached:
        who = f"{one.member.name} ({one.member.id}) answers"
        if one.epoch > core.epoch[0]:
            raise Refused(f"{who}: the group was forced before, to its epoch {one.epoch}")
        if one.leader_id:
            raise Refused(f"{who}, and node {one.leader_id} leads it: the group is not lost")
    there = {core.id, *(one.member.id for one in reached)}
    if core.memberships.electorate.is_quorum(there):
        names = ", ".join(sorted(one.member.name for one in reached)) or "no other is needed"
        raise Refused(
            f"the members that answer are a majority with node {core.id}: {names}; they elect a "
            "leader by themselves, or say in their logs why not"
        )
    for one in reached:
        if (one.last_term, one.last_index) > (core.last_term, core.last_index):
            raise Refused(
                f"{one.member.name} ({one.member.id}) answers and has more of the log: its last "
                f"entry is {one.last_index} of term {one.last_term}, that of node {core.id} is "
                f"{core.last_index} of term {core.last_term}; force that node, or stop it for good"
            )


async def carry_out(
    driver: Driver,
    force: Force,
    *,
    survey: Callable[[Collection[Member]], Awaitable[Collection[Reached]]],
    timeout_s: float,
) -> Forced:
    """Make this node the group; returns once that is committed and it leads. Idempotent.

    Args:
        driver: This node's.
        force: What was asked for; see `check_named`, which the caller has called.
        survey: Asks these members, and returns the answers of those that are there.
        timeout_s: How long to wait for the disk.

    Raises:
        Refused: See `raft.force.check_force` and `check_reached`; nothing happened.
        Unavailable: A write is under way, and nothing happened; or this was not done in time, and
            may still be.
    """
    core = driver.core
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    index, committed_index = force.last_index + 1, -1
    if not _is_done(core, index):
        check_force(core, last_term=force.last_term, last_index=force.last_index)
        others = [one for one in core.membership.members if one.id != core.id]
        check_reached(core, await survey(others))
        committed_index = core.commit_index
        term, index = driver.force_group(last_term=force.last_term, last_index=force.last_index)
        logger.warning(
            "group %s: node %s makes itself the group by entry %d of term %d; its log up to entry "
            "%d is kept, of which %d were not known to be committed; removed: %s",
            force.group_id, core.id, index, term, force.last_index,
            force.last_index - committed_index, ", ".join(f"{m.name} ({m.id})" for m in others),
        )  # fmt: skip
    before = core.memberships.before(index)
    while core.commit_index < index or not (committed_index < 0 or driver.is_serving_leader()):
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0 or not driver.is_running:
            raise Unavailable(f"entry {index} is not durable yet: ask again, or see Status")
        await driver.wait_change(min(left_s, _WATCH_S))
    now = core.memberships.at(index)
    return Forced(
        term=core.term,
        index=index,
        epoch=now.epoch if now is not None else core.epoch[0],
        committed_index=committed_index,
        removed=tuple(one for one in before.members if one.id != core.id),
    )


def _is_done(core: RaftView, index: int) -> bool:
    """Whether the entry at *index* has made this node the group, by an earlier call."""
    found = core.memberships.at(index)
    if found is None or [one.id for one in found.members] != [core.id]:
        return False
    return found.epoch > core.memberships.before(index).epoch
