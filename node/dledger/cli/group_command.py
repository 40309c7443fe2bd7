"""``dledger group``: lists, shows, creates, resets and deletes consumer groups."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
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
from dledger.client import Place
from dledger.common.status import FilterBacklog
from dledger.errors import UnknownGroup

EPILOG: Final = """\
examples:
  dledger group list --endpoint 10.0.0.1:20911
  dledger group show billing --endpoint 10.0.0.1:20911
  dledger group create billing --endpoint 10.0.0.1:20911 --json
  dledger group create audit --from newest --max-attempts 5 --endpoint 10.0.0.1:20911
  dledger group reset billing --topic orders --to 2026-11-28T06:00:00Z --dry-run \
      --endpoint 10.0.0.1:20911
  dledger group reset billing --topic orders --queue 3 --to 4711 --endpoint 10.0.0.1:20911
  dledger group delete billing --endpoint 10.0.0.1:20911
  dledger group delete billing --endpoint 10.0.0.1:20911 --yes

A consumer group is created when a consumer first asks for messages; use create to have it earlier.
--from says where it begins in every topic that it will read: oldest (the default), newest, or a
time; --max-attempts after how many deliveries a message is a dead letter, as set does. Where its
members ask for different tags of a topic, list shows what is unread for each filter; the group's
number is that of the slowest.
reset lets a group go on from elsewhere in a topic: oldest, newest, a time, or an offset. What its
members hold of the topic then is theirs no more: their acknowledgements are refused, and what lies
behind the new place is delivered again, beginning with the first attempt. --dry-run only shows it.
Without --yes, delete only shows what would be deleted, and exits with 1. A new group with the name
of a deleted one starts at the oldest messages.
"""
_OLDEST: Final = "oldest"
_NEWEST: Final = "newest"


def time_of(text: str) -> int:
    """Return a time in Unix milliseconds; without a zone it is in UTC. Raises ValueError."""
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return round(found.timestamp() * 1000)


def beginning(text: str) -> Place:
    """Return where a group begins. Raises argparse.ArgumentTypeError."""
    if text == _OLDEST:
        return Place()
    if text == _NEWEST:
        return Place(newest=True)
    try:
        return Place(stored_ms=time_of(text))
    except ValueError:
        said = f"{text!r} is not oldest, newest or a time such as 2026-11-28T06:00:00Z"
        raise argparse.ArgumentTypeError(said) from None


def place(text: str) -> Place:
    """Return where a group goes on; digits are an offset. Raises argparse.ArgumentTypeError."""
    if text.isascii() and text.isdigit():
        return Place(offset=int(text))
    try:
        return beginning(text)
    except argparse.ArgumentTypeError:
        said = f"{text!r} is not oldest, newest, an offset or a time such as 2026-11-28T06:00:00Z"
        raise argparse.ArgumentTypeError(said) from None


def add_create_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group create``."""
    parser.add_argument("name")
    parser.add_argument(
        "--from",
        dest="begin",
        type=beginning,
        default=_OLDEST,
        metavar="PLACE",
        help="oldest, newest, or a time: where it begins [oldest]",
    )
    parser.add_argument(
        "--max-attempts",
        type=int,
        metavar="N",
        help="deliveries of a message; 0: without end [17]",
    )
    add_admin_arguments(parser, EPILOG)


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group show``."""
    parser.add_argument("name")
    add_admin_arguments(parser, EPILOG)


def add_reset_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group reset``."""
    parser.add_argument("name")
    parser.add_argument("--topic", required=True, metavar="NAME")
    parser.add_argument("--queue", type=int, metavar="ID", help="only this queue; else all")
    parser.add_argument(
        "--to", required=True, type=place, metavar="PLACE", help="oldest, newest, a time, an offset"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    add_admin_arguments(parser, EPILOG)


async def show_all(args: argparse.Namespace) -> int:
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


async def show(args: argparse.Namespace) -> int:
    """Print one group: how far it is in each queue, who holds what, and which filters it uses."""
    async with admin_of(args) as admin:
        group = await admin.group(args.name)
    view = {"name": args.name, **dataclasses.asdict(group)}
    begins = "at the oldest messages"
    if group.begins_at_ms:
        at = datetime.datetime.fromtimestamp(group.begins_at_ms / 1000, datetime.UTC)
        begins = f"with what was stored from {at:%Y-%m-%d %H:%M:%S} UTC on"
    lines = [f"consumer group {args.name} begins {begins}"]
    lines.append(f"{'TOPIC':32} {'QUEUE':>5} {'COMMITTED':>12} {'END':>12} {'LAG':>12} {'HELD':>8}")
    lines += [
        f"{each.topic:32} {each.queue_id:5} {each.committed:12} {each.end:12} {each.lag:12} "
        f"{each.held:8}"
        for each in group.queues
    ]
    if group.members:
        lines.append(f"{'MEMBER':64} {'HELD':>8}")
        lines += [
            f"{each.client_id or '(simple consumers)':64} {each.held:8}"
            f"{'' if each.alive or not each.client_id else '  silent'}"
            for each in group.members
        ]
    lines += [f"filter of {each.topic}: {each.filter}" for each in group.filters]
    return tell(args, view, *lines)


async def create(args: argparse.Namespace) -> int:
    """Create a consumer group."""
    async with admin_of(args) as admin:
        created = await admin.create_group(args.name, args.begin)
        if created and args.max_attempts is not None:
            await admin.set_group(args.name, max_attempts=args.max_attempts)
    done = f"consumer group {args.name} {'created' if created else 'existed already'}"
    if not created and args.begin != Place():
        done += "; it goes on where it is: dledger group reset moves it"
    if not created and args.max_attempts is not None:
        done += "; its attempts stay as they are: dledger group set changes them"
    return tell(args, {"name": args.name, "created": created}, done)


async def reset(args: argparse.Namespace) -> int:
    """Let a group go on from another place of a topic."""
    async with admin_of(args) as admin:
        queues = await admin.seek_group(
            args.name, args.topic, args.to, queue_id=args.queue, only_look=args.dry_run
        )
    view = {
        "name": args.name,
        "topic": args.topic,
        "reset": not args.dry_run,
        "queues": [dataclasses.asdict(each) for each in queues],
    }
    would = "would go" if args.dry_run else "goes"
    lines = [
        f"consumer group {args.name} {would} on in topic {args.topic}:",
        f"{'QUEUE':>5} {'BEFORE':>12} {'NOW':>12} {'UNREAD':>12} {'LEASES ENDED':>12}",
    ]
    for each in queues:
        moved = "" if each.asked == each.offset else f"  {each.asked} is not kept any more"
        lines.append(
            f"{each.queue_id:5} {each.before:12} {each.offset:12} {each.unread:12} "
            f"{each.held:12}{moved}"
        )
    return tell(args, view, *lines)


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
        show_all,
    ),
    Action("show", "show one group's progress, members and filters", add_show_arguments, show),
    Action("create", "create a consumer group", add_create_arguments, create),
    Action("reset", "let a group go on from elsewhere in a topic", add_reset_arguments, reset),
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
