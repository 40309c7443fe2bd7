"""``dledger message``: erases the messages of a key, and lists what was erased.

The key is on the command line and in the request, and in nothing that is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from functools import partial
from typing import Final

from dledger.cli.admin_options import Action, add_admin_arguments, admin_of, tell
from dledger.client import ErasedView, ErasuresView

EPILOG: Final = """\
examples:
  dledger message erase --topic prices --key user-17 --endpoint 10.0.0.1:20911
  dledger message erase --topic prices --key user-17 --endpoint 10.0.0.1:20911 --yes --json
  dledger message erasures --endpoint 10.0.0.1:20911

erase takes the messages of one key of a compacted topic out of sight, on all nodes: no consumer or
reader is shown them any more. Without --yes it only counts them, and exits with 1. What is stored
after it began stays: stop whoever writes the key first. It may be repeated.

Of what compaction had let go before, backups still show what they have: `dledger-pipeline erase`
with the store of the backups erases that, too.

Their bytes stay in the log until its retention has passed the command, and in backups until these
expire. erasures lists what may still lie in the log; what is not listed any more is gone from it.
"""
_NOT_DONE: Final = 1
_IN_BACKUPS: Final = (
    "  older messages of it may be shown by backups: `dledger-pipeline erase` takes them, too"
)


def add_erase_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger message erase``."""
    parser.add_argument("--topic", required=True, metavar="NAME", help="a compacted topic")
    parser.add_argument("--key", required=True, help="exactly this key")
    parser.add_argument("--yes", action="store_true", help="erase; without this, only count")
    add_admin_arguments(parser, EPILOG)


async def erase(args: argparse.Namespace) -> int:
    """Erase a key's messages; without ``--yes`` count them, and return 1."""
    async with admin_of(args) as admin:
        done = await admin.erase(args.topic, args.key, only_count=not args.yes)
        told = await admin.erasures()
    view = {"topic": args.topic, "erased": args.yes, **dataclasses.asdict(done)}
    found = f"topic {args.topic} has {done.messages} messages of this key"
    if not args.yes:
        lines = [found, "to erase them, add --yes"] if done.messages else [found]
        tell(args, view, *lines)
        return _NOT_DONE
    return tell(args, view, *_done_lines(args.topic, done, told))


def _done_lines(topic: str, done: ErasedView, told: ErasuresView) -> list[str]:
    if not done.messages:
        return [
            f"topic {topic} has no message of this key",
            f"  what was let go of it before lies in the log {_for_long(told.retention_hours)}",
            _IN_BACKUPS,
        ]
    at_ms = next((each.at_ms for each in told.erasures if each.entry == done.erase_entry), None)
    long = until(at_ms, told.retention_hours)
    return [
        f"{done.messages} messages of this key are erased from topic {topic}",
        f"  their bytes lie below entry {done.erase_entry} in the log {long}, and in older backups",
        _IN_BACKUPS,
    ]


def _for_long(hours: int) -> str:
    return f"for {hours} hours at most" if hours else "for ever: the group keeps all"


def until(at_ms: int | None, hours: int) -> str:
    """Return until when the log has what was erased at *at_ms*, in words; None: it has it no more.

    Retention counts *hours*, 0: for ever, in which the group was up, and drops whole segments.
    """
    if at_ms is None:
        return "no more"
    if not hours:
        return "for ever: the group keeps all"
    then = datetime.datetime.fromtimestamp(at_ms / 1000 + 3600 * hours, datetime.UTC)
    return f"until about {then:%Y-%m-%d %H:%M} UTC"


async def show(args: argparse.Namespace) -> int:
    """Print what was erased and may still lie in the log."""
    async with admin_of(args) as admin:
        told = await admin.erasures()
    lines = [f"{'TOPIC':32} {'MESSAGES':>10} {'ERASED BY ENTRY':>16}  IN THE LOG"]
    lines += [
        f"{each.topic or '(several)':32} {each.messages:10} {each.entry:16}  "
        f"{until(each.at_ms, told.retention_hours)}"
        for each in told.erasures
    ]
    return tell(args, dataclasses.asdict(told), *lines)


ACTIONS: Final = (
    Action("erase", "erase the messages of a key", add_erase_arguments, erase),
    Action(
        "erasures",
        "list what was erased and may still lie in the log",
        partial(add_admin_arguments, epilog=EPILOG),
        show,
    ),
)
