"""``dledger transaction``: lists transactions that nobody ended, and ends them."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from typing import Final

from dledger.cli.admin_options import Action, add_admin_arguments, admin_of, tell
from dledger.client.admin_client import OpenTransaction
from dledger.errors import InvalidArgument

EPILOG: Final = """\
examples:
  dledger transaction list --endpoint 10.0.0.1:20911
  dledger transaction list --topic orders --limit 1000 --endpoint 10.0.0.1:20911 --json
  dledger transaction commit 495000-17 495000-18 --endpoint 10.0.0.1:20911
  dledger transaction rollback --all --topic orders --endpoint 10.0.0.1:20911
  dledger transaction rollback --all --topic orders --endpoint 10.0.0.1:20911 --yes --json

list shows the transactions that their producers began and did not end, those first whose producers
were to be asked first. Producers are asked every 30 s, after 15 times each hour; nothing is ever
dropped. commit delivers the messages, and rollback lets nobody ever get them, whatever their
producers say later: the first end counts. To repeat either is harmless. --all is all that list
shows of a topic; without --yes it only says how many. Exits with 1 if one had another end before,
or could not be ended.
"""
_NOT_DONE: Final = 1
_AT_ONCE: Final = 1_000


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger transaction list``."""
    parser.add_argument("--topic", default="", metavar="NAME", help="only those of this topic")
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="transactions at most")
    add_admin_arguments(parser, EPILOG)


def add_end_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger transaction commit`` and ``rollback``."""
    parser.add_argument("names", nargs="*", metavar="HOUR-SLOT", help="as list shows them")
    parser.add_argument("--all", action="store_true", help="all that are open of --topic")
    parser.add_argument("--topic", default="", metavar="NAME")
    parser.add_argument("--yes", action="store_true", help="with --all: end them, do not count")
    add_admin_arguments(parser, EPILOG)


async def list_open(args: argparse.Namespace) -> int:
    """Print open transactions."""
    if args.limit < 1:
        raise InvalidArgument(f"--limit must be positive: {args.limit}")
    async with admin_of(args) as admin:
        found, more = await admin.transactions(args.topic, limit=args.limit)
    answer = {"transactions": [dataclasses.asdict(each) for each in found], "more": more}
    lines = list(map(_line, found))
    lines.append(f"{len(found)} transactions are open{', and there are more' if more else ''}")
    return tell(args, answer, *lines)


def _line(each: OpenTransaction) -> str:
    since = datetime.datetime.fromtimestamp(each.since_ms / 1000, datetime.UTC)
    state = "waits since a restore" if each.waits else f"asked about {each.checks} times"
    return (
        f"{each.name:>18} {each.topic or '(deleted)'} {each.message_id} of {each.client_id}, "
        f"since {since:%Y-%m-%d %H:%M:%S} UTC, {state}"
    )


async def commit_named(args: argparse.Namespace) -> int:
    """Deliver messages."""
    return await _end(args, commits=True)


async def roll_back_named(args: argparse.Namespace) -> int:
    """Let nobody get messages."""
    return await _end(args, commits=False)


async def _end(args: argparse.Namespace, *, commits: bool) -> int:
    if bool(args.names) == args.all or (args.all and not args.topic):
        raise InvalidArgument("name transactions, or all of a topic: --all --topic NAME")
    async with admin_of(args) as admin:
        names = list(args.names)
        if args.all:
            found, _ = await admin.transactions(args.topic, limit=None)
            names = [each.name for each in found]
            if not args.yes:
                tell(args, {"open": len(names), "ended": []}, f"{len(names)} would be ended: --yes")
                return _NOT_DONE
        ended = [
            each
            for start in range(0, len(names), _AT_ONCE)
            for each in await admin.end_transactions(names[start : start + _AT_ONCE], commits)
        ]
    wanted = "committed" if commits else "rolled-back"
    lines = [
        f"{each.name:>18} "
        + (f"stays: {each.stays_because}" if each.stays_because else _outcome(each.was, wanted))
        for each in ended
    ]
    tell(args, {"ended": [dataclasses.asdict(each) for each in ended]}, *lines)
    return 0 if all(each.was in ("open", wanted) for each in ended) else _NOT_DONE


def _outcome(was: str, wanted: str) -> str:
    if was == "open":
        return wanted
    if was == "unknown":
        return "is not open: there was none, or it ended over an hour ago"
    return f"was {was} before"


ACTIONS: Final = (
    Action("list", "list transactions that nobody ended", add_list_arguments, list_open),
    Action("commit", "deliver their messages", add_end_arguments, commit_named),
    Action("rollback", "let nobody get their messages", add_end_arguments, roll_back_named),
)
