"""``dledger topic``: lists, creates, describes, grows, keeps and deletes topics."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from typing import Final

from dledger.broker.topics import NORMAL
from dledger.cli.admin_options import (
    ANY_PORT,
    Action,
    add_admin_arguments,
    add_delete_arguments,
    admin_of,
    client_of,
    positive,
    tell,
    tell_deleted,
)
from dledger.cli.topic_table import add_table_arguments, show_table
from dledger.client import Compaction, TopicInfo, TopicView
from dledger.errors import InvalidArgument, NotLeader

HOUR_MS: Final = 3_600_000
EPILOG: Final = """\
examples:
  dledger topic create orders --queues 8 --endpoint 10.0.0.1:20911
  dledger topic create prices --compacted --tombstone-hours 48 --endpoint 10.0.0.1:20911
  dledger topic list --endpoint 10.0.0.1:8081 --json
  dledger topic describe prices --endpoint 10.0.0.1:20911
  dledger topic grow orders --queues 16 --endpoint 10.0.0.1:20911
  dledger topic retain orders --hours 2160 --endpoint 10.0.0.1:20911
  dledger topic retain orders --hours 0 --endpoint 10.0.0.1:20911
  dledger topic retain orders --as-group --endpoint 10.0.0.1:20911
  dledger topic delete orders --endpoint 10.0.0.1:20911
  dledger topic delete orders --endpoint 10.0.0.1:20911 --yes --json

A peer port (20911) serves all six, a client port (8081) create and list. A topic never gets fewer
queues; clients use new ones once they ask for its routes again, 30 s later at most with the SDKs.
A compacted topic keeps the newest message of each key for ever: each message has exactly one key,
which chooses its queue. That is chosen when it is made, and it neither grows nor has a retention.
retain keeps a topic's messages for longer than the group's retention, 0: for ever; --as-group lets
go at once what only that had kept. Without --yes, delete only shows what would be deleted, and
exits with 1. A topic that is created again starts at offset 0; while clients use it and topics are
made on their first use, that is at once, which delete says.
"""


def add_create_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic create``."""
    parser.add_argument("name")
    parser.add_argument("--type", default=NORMAL.name, help="message type (default %(default)s)")
    parser.add_argument("--queues", type=positive, default=8, help="number of queues (default 8)")
    parser.add_argument(
        "--compacted", action="store_true", help="keep the newest message of each key for ever"
    )
    parser.add_argument(
        "--min-lag-hours",
        type=positive,
        metavar="HOURS",
        help="with --compacted: how long a message stays at least (default 1)",
    )
    parser.add_argument(
        "--tombstone-hours",
        type=positive,
        metavar="HOURS",
        help="with --compacted: how long a tombstone stays at least (default 24)",
    )
    add_admin_arguments(parser, EPILOG, port=ANY_PORT)


async def create(args: argparse.Namespace) -> int:
    """Create a topic. Raises InvalidArgument if the options do not go together."""
    args.compaction = _compaction(args)
    try:
        created = await _create(args, args.endpoint)
    except NotLeader as error:  # a peer port does not forward it to the leader
        created = await _create(args, *await _leader_address(args, error))
    done = f"topic {args.name} {'created' if created else 'existed already'}"
    return tell(args, {"name": args.name, "created": created}, done)


async def _create(args: argparse.Namespace, endpoint: str, name: str = "") -> bool:
    async with client_of(args, endpoint, name) as client:
        return await client.create_topic(args.name, args.type, args.queues, args.compaction)


def _compaction(args: argparse.Namespace) -> Compaction | None:
    hours = {"min_lag_ms": args.min_lag_hours, "tombstone_ms": args.tombstone_hours}
    given = {name: each * HOUR_MS for name, each in hours.items() if each is not None}
    if args.compacted:
        return Compaction(**given)
    if given:
        raise InvalidArgument("--min-lag-hours and --tombstone-hours are of a --compacted topic")
    return None


async def _leader_address(args: argparse.Namespace, error: NotLeader) -> tuple[str, str]:
    """Return peer address and name of the leader that *error* names. Raises *error* if unknown."""
    async with admin_of(args) as admin:
        members = (await admin.status()).members
    for row in members:
        if row.member.id == error.leader:
            return row.member.address, row.member.name
    raise error


def add_grow_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic grow``."""
    parser.add_argument("name")
    parser.add_argument("--queues", type=positive, required=True, help="number of queues in all")
    add_admin_arguments(parser, EPILOG)


async def grow(args: argparse.Namespace) -> int:
    """Give a topic more queues."""
    async with admin_of(args) as admin:
        before = await admin.grow_topic(args.name, args.queues)
    view = {"name": args.name, "queues": args.queues, "before": before}
    return tell(args, view, f"topic {args.name} has {args.queues} queues; it had {before}")


def add_retain_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic retain``."""
    parser.add_argument("name")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--hours", type=int, help="for so many hours; 0: for ever")
    how.add_argument("--as-group", action="store_true", help="as long as the group keeps all")
    add_admin_arguments(parser, EPILOG)


async def retain(args: argparse.Namespace) -> int:
    """Set a topic's own retention, or end it."""
    hours = None if args.as_group else args.hours
    async with admin_of(args) as admin:
        before = await admin.set_topic_retention(args.name, hours)
    view = {"name": args.name, "hours": hours, "before": before}
    done = f"topic {args.name} keeps its messages {in_words(hours)}; before, {in_words(before)}"
    return tell(args, view, done)


def in_words(hours: int | None) -> str:
    """Return for how long messages are kept, in words."""
    if hours is None:
        return "as long as the group does"
    return f"for {hours} hours" if hours else "for ever"


async def show(args: argparse.Namespace) -> int:
    """Print the topics as this node knows them."""
    async with client_of(args, args.endpoint) as client:
        topics = await client.topics()
    lines = [f"{'NAME':32} {'TYPE':8} {'QUEUES':>6} {'MESSAGES':>12} {'KEPT':>10}"]
    lines += [
        f"{t.name:32} {t.type:8} {t.queues:6} {t.messages:12} {_in_short(t):>10}" for t in topics
    ]
    return tell(args, [dataclasses.asdict(topic) for topic in topics], *lines)


def _in_short(topic: TopicInfo) -> str:
    if topic.compaction is not None:
        return "compacted"
    hours = topic.retention_hours
    if hours is None:
        return "as group"
    return f"{hours} h" if hours else "for ever"


def add_describe_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic describe``."""
    parser.add_argument("name")
    add_admin_arguments(parser, EPILOG)


async def describe(args: argparse.Namespace) -> int:
    """Print a topic as the leader sees it."""
    async with admin_of(args) as admin:
        topic = await admin.describe_topic(args.name)
    lines = [
        f"topic {topic.name}: type {topic.type}, {topic.queues} queues, {topic.messages} messages",
        f"  {_retention_in_words(topic)}",
        *_backlogs(topic),
    ]
    return tell(args, dataclasses.asdict(topic), *lines)


def _retention_in_words(topic: TopicView) -> str:
    if topic.compaction is None:
        return f"its messages are kept {in_words(topic.retention_hours)}"
    lag, tombstone = (
        f"{time_ms / HOUR_MS:g} h"
        for time_ms in (topic.compaction.min_lag_ms, topic.compaction.tombstone_ms)
    )
    return (
        "compacted: the newest message of each key is kept for ever, any message for at least "
        f"{lag}, a tombstone for at least {tombstone}"
    )


def _backlogs(topic: TopicView) -> list[str]:
    return [
        f"  consumer group {each.group}: {each.unread} unread, {each.held} not acknowledged"
        for each in topic.backlogs
    ]


async def delete(args: argparse.Namespace) -> int:
    """Delete a topic; without ``--yes`` show what would be deleted, and return 1."""
    async with admin_of(args) as admin:
        topic = await admin.describe_topic(args.name)
        messages = await admin.delete_topic(topic) if args.yes else topic.messages
    view = dataclasses.asdict(dataclasses.replace(topic, messages=messages))
    done = "\n".join((f"topic {topic.name} deleted, with {messages} messages", *_used(topic)))
    return tell_deleted(args, view, done, _would_go(topic))


def _would_go(topic: TopicView) -> list[str]:
    lines = [f"topic {topic.name} has {topic.queues} queues and {topic.messages} messages"]
    lines += _backlogs(topic)
    if topic.messages and not topic.backlogs:
        lines.append("  no consumer group has read any of them")
    return [*lines, *_used(topic)]


def _used(topic: TopicView) -> list[str]:
    """Return what becomes of clients that use a topic while it is deleted."""
    if not topic.in_use:
        return []
    again = f"their next use makes it again, with {topic.made_again_queues} queues"
    then = again + " (autoCreateTopics)" if topic.made_again_queues else "they are refused then"
    return [f"  clients used it in the last two minutes: {then}"]


ACTIONS: Final = (
    Action("create", "create a topic", add_create_arguments, create),
    Action("list", "list topics", partial(add_admin_arguments, epilog=EPILOG, port=ANY_PORT), show),
    Action("describe", "show one topic", add_describe_arguments, describe),
    Action("grow", "give a topic more queues", add_grow_arguments, grow),
    Action("retain", "keep a topic's messages longer", add_retain_arguments, retain),
    Action(
        "delete",
        "delete a topic with its messages",
        partial(add_delete_arguments, epilog=EPILOG),
        delete,
    ),
    Action("table", "show a compacted topic as a table", add_table_arguments, show_table),
)
