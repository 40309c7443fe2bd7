"""``dledger topic``: lists, creates and deletes topics."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Final

from dledger.cli.admin_options import ANY_PORT, add_admin_arguments, admin_of, exit_code, positive
from dledger.client import Client, TopicView
from dledger.errors import NotLeader

EPILOG: Final = """\
examples:
  dledger topic create orders --queues 8 --endpoint 10.0.0.1:20911
  dledger topic list --endpoint 10.0.0.1:8081 --json
  dledger topic delete orders --endpoint 10.0.0.1:20911
  dledger topic delete orders --endpoint 10.0.0.1:20911 --yes --json

A peer port (20911) serves all three, a client port (8081) create and list. Without --yes, delete
only shows what would be deleted, and exits with 1. A topic that is created again starts at offset
0.
"""


def add_create_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic create``."""
    parser.add_argument("name")
    parser.add_argument("--type", default="NORMAL", help="message type (default NORMAL)")
    parser.add_argument("--queues", type=positive, default=8, help="number of queues (default 8)")
    add_admin_arguments(parser, EPILOG, port=ANY_PORT)


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic list``."""
    add_admin_arguments(parser, EPILOG, port=ANY_PORT)


def add_delete_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic delete``."""
    parser.add_argument("name")
    parser.add_argument(
        "--yes", action="store_true", help="delete; without this, only show what would be deleted"
    )
    add_admin_arguments(parser, EPILOG)


async def create(args: argparse.Namespace) -> int:
    """Create a topic."""
    try:
        created = await _create(args, args.endpoint)
    except NotLeader as error:  # a peer port does not forward it to the leader
        created = await _create(args, await _leader_address(args, error))
    if args.json:
        print(json.dumps({"name": args.name, "created": created}))
    else:
        print(f"topic {args.name} {'created' if created else 'existed already'}")
    return 0


async def _create(args: argparse.Namespace, endpoint: str) -> bool:
    async with Client(endpoint, timeout_s=args.timeout) as client:
        return await client.create_topic(args.name, args.type, args.queues)


async def _leader_address(args: argparse.Namespace, error: NotLeader) -> str:
    """Return the peer address of the leader that *error* names. Raises *error* if unknown."""
    async with admin_of(args) as admin:
        members = (await admin.status()).members
    for row in members:
        if row.member.id == error.leader:
            return row.member.address
    raise error


async def show(args: argparse.Namespace) -> int:
    """Print the topics as this node knows them."""
    async with Client(args.endpoint, timeout_s=args.timeout) as client:
        topics = await client.topics()
    if args.json:
        print(json.dumps([dataclasses.asdict(topic) for topic in topics]))
        return 0
    print(f"{'NAME':32} {'TYPE':8} {'QUEUES':>6} {'MESSAGES':>12}")
    for topic in topics:
        print(f"{topic.name:32} {topic.type:8} {topic.queues:6} {topic.messages:12}")
    return 0


async def delete(args: argparse.Namespace) -> int:
    """Delete a topic; without ``--yes`` show what would be deleted, and return 1."""
    async with admin_of(args) as admin:
        topic = await admin.describe_topic(args.name)
        messages = await admin.delete_topic(topic) if args.yes else topic.messages
    if args.json:
        view = dataclasses.asdict(dataclasses.replace(topic, messages=messages))
        print(json.dumps({**view, "deleted": args.yes}))
    elif args.yes:
        print(f"topic {topic.name} deleted, with {messages} messages")
    else:
        print(_would_go(topic))
        print("to delete it, add --yes")
    return exit_code(args)


def _would_go(topic: TopicView) -> str:
    lines = [f"topic {topic.name} has {topic.queues} queues and {topic.messages} messages"]
    lines += [
        f"  consumer group {each.group}: {each.unread} unread, {each.held} not acknowledged"
        for each in topic.backlogs
    ]
    if topic.messages and not topic.backlogs:
        lines.append("  no consumer group has read any of them")
    return "\n".join(lines)
