"""``dledger group``: lists, creates and deletes consumer groups."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Final

from dledger.cli.admin_options import add_admin_arguments, admin_of, exit_code
from dledger.errors import UnknownGroup

EPILOG: Final = """\
examples:
  dledger group list --endpoint 10.0.0.1:20911
  dledger group create billing --endpoint 10.0.0.1:20911 --json
  dledger group delete billing --endpoint 10.0.0.1:20911
  dledger group delete billing --endpoint 10.0.0.1:20911 --yes

A consumer group is created when a consumer first asks for messages; use create to have it earlier.
Without --yes, delete only shows what would be deleted, and exits with 1. A new group with the name
of a deleted one starts at the oldest messages.
"""


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group list``."""
    add_admin_arguments(parser, EPILOG)


def add_create_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group create``."""
    parser.add_argument("name")
    add_admin_arguments(parser, EPILOG)


def add_delete_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group delete``."""
    parser.add_argument("name")
    parser.add_argument(
        "--yes", action="store_true", help="delete; without this, only show what would be deleted"
    )
    add_admin_arguments(parser, EPILOG)


async def show(args: argparse.Namespace) -> int:
    """Print the groups, with the backlog of each in the topics that it reads."""
    async with admin_of(args) as admin:
        groups = await admin.groups()
    if args.json:
        print(json.dumps([dataclasses.asdict(group) for group in groups]))
        return 0
    print(f"{'NAME':32} {'TOPIC':32} {'UNREAD':>12} {'HELD':>8}")
    for group in groups:
        for each in group.backlogs:
            print(f"{group.name:32} {each.topic:32} {each.unread:12} {each.held:8}")
        if not group.backlogs:
            print(f"{group.name:32} {'-':32} {'-':>12} {'-':>8}")
    return 0


async def create(args: argparse.Namespace) -> int:
    """Create a consumer group."""
    async with admin_of(args) as admin:
        created = await admin.create_group(args.name)
    if args.json:
        print(json.dumps({"name": args.name, "created": created}))
    else:
        print(f"consumer group {args.name} {'created' if created else 'existed already'}")
    return 0


async def delete(args: argparse.Namespace) -> int:
    """Delete a consumer group; without ``--yes`` show what would be deleted, and return 1."""
    async with admin_of(args) as admin:
        found = [group for group in await admin.groups() if group.name == args.name]
        if not found:
            raise UnknownGroup(args.name)
        if args.yes:
            await admin.delete_group(args.name)
    if args.json:
        print(json.dumps({**dataclasses.asdict(found[0]), "deleted": args.yes}))
    elif args.yes:
        print(f"consumer group {args.name} deleted")
    else:
        print(f"consumer group {args.name} reads from {len(found[0].backlogs)} topics")
        for each in found[0].backlogs:
            print(f"  {each.topic}: {each.unread} unread, {each.held} not acknowledged")
        print("to delete it, add --yes")
    return exit_code(args)
