"""``dledger force-new-group``: one survivor of a lost majority becomes the group, if confirmed."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from typing import Any, Final

from dledger.cli.admin_options import add_admin_arguments, connect, tell, tls_to
from dledger.client import AdminClient, ForcedGroup
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError, InvalidArgument
from dledger.types import Member

_NOT_DONE: Final = 1
_OTHERS_S: Final = 2.0

EPILOG: Final = """\
examples:
  dledger force-new-group --endpoint 10.0.0.1:20911 --group-id 7e5b...
  dledger force-new-group --endpoint 10.0.0.1:20911 --group-id 7e5b... --confirm 7e5b... --json

Only when a majority's disks are lost for good. If one of them may come back, wait for it instead.
Ask the survivor with the newest last entry: highest term, then highest index (`dledger status` of
each). It prints what it found and what may be lost, and asks for the group's id; without a terminal
give it by --confirm. Exit code 1: refused, or not confirmed, and nothing was done. Asking again for
what was done does nothing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger force-new-group``."""
    parser.add_argument("--group-id", required=True, metavar="ID", help="the survivor's group")
    parser.add_argument(
        "--confirm", metavar="ID", help="the group's id once more, instead of typing it in"
    )
    add_admin_arguments(parser, EPILOG, port="the survivor's peer port (20911)")


async def work(args: argparse.Namespace) -> int:
    """Show the survivor and the other members, ask for confirmation, and force the group."""
    async with connect(args) as admin:
        found = await admin.status()
        if found.group_id != args.group_id:
            raise InvalidArgument(
                f"{found.name} ({found.node_id}) belongs to group {found.group_id or '-'}, "
                f"not {args.group_id}"
            )
        others = await _others(args, found)
        view = _view(found, others)
        if not args.json:
            print("\n".join(_found_lines(found, others)), flush=True)
        confirmed = args.confirm if args.confirm is not None else await _typed(args)
        if confirmed != args.group_id:
            why = "not confirmed; nothing was done: type the group's id, or add --confirm ID"
            tell(args, {**view, "forced": None}, why)
            return _NOT_DONE
        done = await admin.force_new_group(
            args.group_id,
            found.node_id,
            expected_last_term=found.last_term,
            expected_last_index=found.last_index,
        )
    return tell(args, {**view, "forced": dataclasses.asdict(done)}, *_done_lines(found, done))


async def _typed(args: argparse.Namespace) -> str:
    """Return what somebody types at the terminal; empty if there is none."""
    if args.json or not sys.stdin.isatty():
        return ""
    return (await asyncio.to_thread(input, "type the group's id to go on: ")).strip()


async def _others(
    args: argparse.Namespace, found: NodeStatus
) -> list[tuple[Member, NodeStatus | None]]:
    """Ask the other members how they are; None for one that does not answer."""
    members = [row.member for row in found.members if row.member.id != found.node_id]
    said = await asyncio.gather(*(_asked(args, member) for member in members))
    return list(zip(members, said, strict=True))


async def _asked(args: argparse.Namespace, member: Member) -> NodeStatus | None:
    try:
        tls = await asyncio.to_thread(tls_to, args, member.address, member.name)
        async with AdminClient(member.address, timeout_s=_OTHERS_S, tls=tls) as admin:
            return await admin.status()
    except DledgerError:
        return None


def _view(found: NodeStatus, others: list[tuple[Member, NodeStatus | None]]) -> dict[str, Any]:
    return {
        "survivor": _position(found),
        "others": [
            {
                "id": member.id,
                "name": member.name,
                "answers": said is not None and said.node_id == member.id,
                "now": _position(said) if said is not None else None,
            }
            for member, said in others
        ],
    }


def _position(status: NodeStatus) -> dict[str, Any]:
    return {
        "id": status.node_id,
        "name": status.name,
        "role": status.role,
        "lastTerm": status.last_term,
        "lastIndex": status.last_index,
        "commitIndex": status.commit_index,
        "epoch": status.epoch,
    }


def _found_lines(found: NodeStatus, others: list[tuple[Member, NodeStatus | None]]) -> list[str]:
    tail = found.last_index - found.commit_index
    return [
        f"survivor {found.name} ({found.node_id}), {found.role}, of group {found.group_id}:",
        (
            f"  last entry {found.last_index} of term {found.last_term}; "
            f"it knows of {found.commit_index} that they are committed"
        ),
        "other members, which are removed for good:",
        *(f"  {member.name} ({member.id}): {_said(member, said)}" for member, said in others),
        "what becomes of the log:",
        (
            f"  its entries up to {found.last_index} are kept. The {tail} behind "
            f"{found.commit_index} become committed, also those that were never acknowledged"
        ),
        (
            "  what only lost disks had is lost, acknowledged or not. How much that is cannot be "
            "known from here: if a backup reaches further, restore it instead"
        ),
        "  a disk of a removed member never returns. Start none of them again",
    ]


def _said(member: Member, said: NodeStatus | None) -> str:
    if said is None:
        return "does not answer"
    if said.node_id != member.id:
        return f"another disk is there ({said.node_id})"
    leader = f", follows {said.leader_id}" if said.leader_id else ""
    return f"answers: last entry {said.last_index} of term {said.last_term}{leader}"


def _done_lines(found: NodeStatus, done: ForcedGroup) -> list[str]:
    again = " (by an earlier call)" if done.committed_index < 0 else ""
    removed = ", ".join(f"{member.name} ({member.id})" for member in done.removed)
    return [
        (
            f"{found.name} is the group now{again}: entry {done.index}, term {done.term}, "
            f"epoch {done.epoch}; removed: {removed or 'nobody'}"
        ),
        "add members with empty disks by `dledger member add`, or let the operator do it",
    ]
