"""``dledger held``: messages that are held until they are due, and what waits since a restore."""

from __future__ import annotations

import argparse
import dataclasses
from datetime import UTC, datetime
from typing import Final

from dledger.cli.admin_options import Action, add_admin_arguments, admin_of, tell
from dledger.client.admin_client import HeldMessageView

EPILOG: Final = """\
examples:
  dledger held list --endpoint 10.0.0.1:20911
  dledger held resume --fire --endpoint 10.0.0.1:20911
"""
_LIST_EPILOG: Final = """\
examples:
  dledger held list --endpoint 10.0.0.1:20911
  dledger held list --limit 256 --endpoint 10.0.0.1:20911 --json

The first messages by their times, and how many there are. One that waits was held in the log that
the group was restored from (spec.bootstrap.recovery.held), and is not delivered before `dledger
held resume`.
"""
_RESUME_EPILOG: Final = """\
examples:
  dledger held resume --fire --endpoint 10.0.0.1:20911
  dledger held resume --drop --endpoint 10.0.0.1:20911 --json

After a restore: --fire delivers what waits when it is due, and at once what has been due; --drop
never delivers it. Fire where the group that was backed up is gone, and has not delivered it; drop
where it lives on. What was sent to the restored group itself does not wait. Done twice, the second
time does nothing.
"""
_AT_ONCE: Final = 32


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=_AT_ONCE, metavar="N", help="messages at most")
    add_admin_arguments(parser, _LIST_EPILOG)


def _add_resume_arguments(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--fire", action="store_true", help="deliver what waits, when it is due")
    how.add_argument("--drop", action="store_true", help="never deliver it")
    add_admin_arguments(parser, _RESUME_EPILOG)


async def _list(args: argparse.Namespace) -> int:
    async with admin_of(args) as admin:
        view = await admin.list_held(limit=args.limit)
    waits = f", of which {view.waiting} wait for `dledger held resume`" if view.waiting else ""
    return tell(
        args,
        dataclasses.asdict(view),
        *map(_line, view.first),
        f"{view.messages} messages are held, {view.size_bytes} bytes{waits}",
    )


def _line(each: HeldMessageView) -> str:
    due = datetime.fromtimestamp(each.due_ms / 1000, UTC).isoformat(timespec="milliseconds")
    waits = "; waits for a word" if each.waits else ""
    return f"{due} {each.topic or '(deleted)'} {each.message_id} {each.size_bytes} bytes{waits}"


async def _resume(args: argparse.Namespace) -> int:
    async with admin_of(args) as admin:
        count = await admin.resume_held(drops=args.drop)
    what = "dropped" if args.drop else "to be delivered when they are due"
    return tell(args, {"messages": count, "dropped": args.drop}, f"{count} messages are {what}")


ACTIONS: Final = (
    Action("list", "show what is held until it is due", _add_list_arguments, _list),
    Action("resume", "end the wait of a restored group", _add_resume_arguments, _resume),
)
