"""``dledger group``: lists, creates and deletes consumer groups."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from typing import Final

from dledger.cli.admin_options import (
    Action,
    add_admin_arguments,
    add_delete_arguments,
    admin_of,
    tell,
    tell_deleted,
)
from dledger.cli.dead_letters_command import (
    add_letters_arguments,
    add_set_arguments,
    dead_letters,
    set_group,
)
from dledger.common.status import FilterBacklog
from dledger.errors import UnknownGroup

EPILOG: Final = """\
examples:
  dledger group list --endpoint 10.0.0.1:20911
  dledger group create billing --endpoint 10.0.0.1:20911 --json
  dledger group delete billing --endpoint 10.0.0.1:20911
  dledger group delete billing --endpoint 10.0.0.1:20911 --yes

A consumer group is created when a consumer first asks for messages; use create to have it earlier.
Where its members ask for different tags of a topic, list shows what is unread for each filter; the
group's number is that of the slowest.
Without --yes, delete only shows what would be deleted, and exits with 1. A new group with the name
of a deleted one starts at the oldest messages.
"""


def add_create_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group create``."""
    parser.add_argument("name")
    add_admin_arguments(parser, EPILOG)


async def show(args: argparse.Namespace) -> int:
    """Print the groups, with the backlog of each in the topics that it reads."""
    async with admin_of(args) as admin:
        groups = await admin.groups()
    lines = [f"{'NAME':32} {'TOPIC':32} {'UNREAD':>12} {'HELD':>8}"]
    for group in groups:
        for each in group.backlogs:
            lines.append(f"{group.name:32} {each.topic:32} {each.unread:12} {each.held:8}")
            lines += map(_filter_line, each.filters)
        if not group.backlogs:
            lines.append(f"{group.name:32} {'-':32} {'-':>12} {'-':>8}")
    return tell(args, [dataclasses.asdict(group) for group in groups], *lines)


def _filter_line(each: FilterBacklog) -> str:
    waits = "  waits for a slower filter" if each.waits else ""
    return f"{'':32} {'  filter ' + each.filter:32} {each.unread:12}{waits}"


async def create(args: argparse.Namespace) -> int:
    """Create a consumer group."""
    async with admin_of(args) as admin:
        created = await admin.create_group(args.name)
    done = f"consumer group {args.name} {'created' if created else 'existed already'}"
    return tell(args, {"name": args.name, "created": created}, done)


async def delete(args: argparse.Namespace) -> int:
    """Delete a consumer group; without ``--yes`` show what would be deleted, and return 1."""
    async with admin_of(args) as admin:
        found = [group for group in await admin.groups() if group.name == args.name]
        if not found:
            raise UnknownGroup(args.name)
        if args.yes:
            await admin.delete_group(args.name)
    would_go = [f"consumer group {args.name} reads from {len(found[0].backlogs)} topics"]
    would_go += [
        f"  {each.topic}: {each.unread} unread, {each.held} not acknowledged"
        for each in found[0].backlogs
    ]
    done = f"consumer group {args.name} deleted"
    return tell_deleted(args, dataclasses.asdict(found[0]), done, would_go)


ACTIONS: Final = (
    Action(
        "list",
        "list consumer groups and their backlogs",
        partial(add_admin_arguments, epilog=EPILOG),
        show,
    ),
    Action("create", "create a consumer group", add_create_arguments, create),
    Action(
        "set",
        "set how often messages are delivered, and when again",
        add_set_arguments,
        set_group,
    ),
    Action(
        "dead-letters",
        "list, send back or drop what was delivered too often",
        add_letters_arguments,
        dead_letters,
    ),
    Action(
        "delete",
        "delete a consumer group with its offsets",
        partial(add_delete_arguments, epilog=EPILOG),
        delete,
    ),
)
