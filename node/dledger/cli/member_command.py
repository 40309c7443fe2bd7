"""``dledger member``: lists, adds and removes the members of a group."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from functools import partial
from typing import Any, Final

from dledger.cli.admin_options import Action, add_admin_arguments, connect, endpoint, tell
from dledger.common.status import MemberStatus, NodeStatus
from dledger.errors import InvalidArgument, Unavailable
from dledger.types import Member, Membership, NodeId

_POLL_S: Final = 0.2

EPILOG: Final = """\
examples:
  dledger member list --endpoint 10.0.0.1:20911
  dledger member add 10.0.0.4:20911 --endpoint 10.0.0.1:20911 --wait
  dledger member add 10.0.0.3:20911 --replace orders-2 --endpoint 10.0.0.1:20911
  dledger member remove orders-3 --endpoint 10.0.0.1:20911 --json

Start a new node with its group's id first (DLEDGER_GROUP_ID; `dledger status` shows it).
An added node is a learner until it has caught up; then it becomes a voter by itself. A node that
lost its disk returns with another id: --replace removes the old one in the same change.
"""


def add_add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger member add``."""
    parser.add_argument(
        "address", type=endpoint, metavar="HOST:PORT", help="the new node's peer port (20911)"
    )
    parser.add_argument(
        "--replace", metavar="MEMBER", help="name or id of a member to remove in the same change"
    )
    parser.add_argument("--wait", action="store_true", help="return once the new node is a voter")
    add_admin_arguments(parser, EPILOG)


def add_remove_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger member remove``."""
    parser.add_argument("member", help="name or id; it can never return with its current disk")
    add_admin_arguments(parser, EPILOG)


async def show(args: argparse.Namespace) -> int:
    """Print the members as the leader, or without one this node, sees them."""
    status = await _leaders_view(args)
    lines = [f"{'NAME':20} {'ROLE':10} {'VOTER':5} {'MATCH':>10} {'LAG':>8}  ID"]
    for row in status.members:
        voter = "yes" if row.voter else "no"
        name = f"{row.member.name:20} {row.role:10} {voter:5}"
        lines.append(f"{name} {row.match_index:10} {row.lag:8}  {row.member.id}")
    return tell(args, [dataclasses.asdict(row) for row in status.members], *lines)


async def add(args: argparse.Namespace) -> int:
    """Add the node at an address as a learner."""
    async with connect(args, args.address) as node:
        new = await node.status()
    known = await _refuse_another_group(new, args)
    member = Member(id=NodeId(new.node_id), name=new.name, address=args.address)
    remove = [await _id_of(args.replace, args)] if args.replace else []
    async with connect(args) as admin:
        members = await admin.change_members(add=[member], remove=remove)
    if args.wait:
        await _wait_until_it_votes(member, args)
    done = "is a member already" if known else "added"
    return _tell_members(args, members, f"{member.name} ({member.id}) {done}", member)


async def remove(args: argparse.Namespace) -> int:
    """Remove a member permanently."""
    node_id = await _id_of(args.member, args)
    async with connect(args) as admin:
        members = await admin.remove_member(node_id)
    return _tell_members(args, members, f"{args.member} removed", None)


def _tell_members(
    args: argparse.Namespace, members: Membership, done: str, added: Member | None
) -> int:
    answer: dict[str, Any] = {
        "voters": [dataclasses.asdict(m) for m in members.voters],
        "learners": [dataclasses.asdict(m) for m in members.learners],
    }
    if added is not None:
        answer["added"] = added.id
    names = ", ".join(member.name for member in members.members)
    return tell(args, answer, f"{done}; members: {names}")


async def _refuse_another_group(new: NodeStatus, args: argparse.Namespace) -> bool:
    """Refuse a node that would not join this group: it would be a member that never starts.

    Returns whether it is a member already.
    """
    async with connect(args) as admin:
        status = await admin.status()
    group_id = status.group_id
    if not new.group_id and new.told_group_id != group_id:
        told = f"group id {new.told_group_id!r}" if new.told_group_id else "no group id"
        raise InvalidArgument(
            f"{new.name!r} is configured with {told}; start it with DLEDGER_GROUP_ID={group_id}"
        )
    return any(row.member.id == new.node_id for row in status.members)


async def _id_of(name_or_id: str, args: argparse.Namespace) -> NodeId:
    """Return the id of a member; an unknown name is returned as an id, for the leader to check."""
    rows = (await _leaders_view(args)).members
    named = [row.member.id for row in rows if row.member.name == name_or_id]
    if len(named) > 1:
        raise InvalidArgument(f"{name_or_id} names several members: {', '.join(named)}; use an id")
    return named[0] if named else NodeId(name_or_id)


async def _leaders_view(args: argparse.Namespace) -> NodeStatus:
    async with connect(args) as admin:
        status = await admin.status()
    leader = next((r.member for r in status.members if r.member.id == status.leader_id), None)
    if leader is None or leader.id == status.node_id:
        return status
    async with connect(args, leader.address, leader.name) as admin:
        return await admin.status()


async def _wait_until_it_votes(member: Member, args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + args.timeout
    row: MemberStatus | None = None
    while loop.time() < deadline_s:
        rows = (await _leaders_view(args)).members
        row = next((row for row in rows if row.member.id == member.id), None)
        if row is not None and row.voter:
            return
        await asyncio.sleep(_POLL_S)
    behind = f"it is {row.lag} entries behind" if row is not None else "it is not a member"
    raise Unavailable(f"{member.name} is not a voter after {args.timeout:g} s: {behind}")


ACTIONS: Final = (
    Action("list", "list the members", partial(add_admin_arguments, epilog=EPILOG), show),
    Action("add", "add a node as learner", add_add_arguments, add),
    Action("remove", "remove a member for good", add_remove_arguments, remove),
)
