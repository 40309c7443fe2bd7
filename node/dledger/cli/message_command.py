"""``dledger message``: shows messages, erases those of a key, and lists what was erased.

A key that is erased is on the command line and in the request, and in nothing that is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

from dledger.cli.admin_options import Action, add_admin_arguments, admin_of, in_json, tell
from dledger.client import ErasedView, ErasuresView, StoredRecord, Typed
from dledger.errors import InvalidArgument
from dledger.types import NO_PRIORITY

EPILOG: Final = """\
examples:
  dledger message show --topic orders --queue 3 --offset 4711 --endpoint 10.0.0.1:20911
  dledger message show --topic orders --id 01A3… --endpoint 10.0.0.1:20911 --json
  dledger message show --topic orders --key user-17 --endpoint 10.0.0.1:20911
  dledger message erase --topic prices --key user-17 --endpoint 10.0.0.1:20911
  dledger message erase --topic prices --key user-17 --endpoint 10.0.0.1:20911 --yes --json
  dledger message erasures --endpoint 10.0.0.1:20911

show looks through a topic, or one --queue of it, from the oldest message on, for an id or a key; it
reads all that the topic keeps. With --json a line has one object; a body that is no UTF-8 is in
body_base64. It exits with 1 if nothing was found.

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


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger message show``."""
    parser.add_argument("--topic", required=True, metavar="NAME")
    parser.add_argument("--queue", type=int, metavar="ID", help="only this queue; else all")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--id", default="", help="messages with this id")
    what.add_argument("--key", default="", help="messages with this key")
    what.add_argument("--offset", type=int, help="the message at this offset of --queue")
    add_admin_arguments(parser, EPILOG)


async def show(args: argparse.Namespace) -> int:
    """Print messages; return 1 if there are none. Raises InvalidArgument without their queue."""
    first, end = 0, 0
    if args.offset is not None:
        if args.queue is None:
            raise InvalidArgument("an offset is of one queue: name it with --queue")
        first, end = args.offset, args.offset + 1
    found = 0
    async with admin_of(args) as admin:
        queues = range((await admin.describe_topic(args.topic)).queues)
        for queue_id in queues if args.queue is None else (args.queue,):
            async for stored in admin.find_messages(
                args.topic,
                queue_id,
                message_id=args.id,
                key=args.key,
                start_offset=first,
                end_offset=end,
            ):
                found += 1
                _print(args, queue_id, stored)
    if not found:
        print(f"dledger: topic {args.topic} has no such message", file=sys.stderr)
    return 0 if found else _NOT_DONE


def _print(args: argparse.Namespace, queue_id: int, stored: StoredRecord) -> None:
    record = stored.record
    if args.json:
        view = {
            "queue": queue_id,
            "offset": stored.offset,
            "entry": stored.index,
            "stored_at_ms": stored.stored_at_ms,
            "born_at_ms": record.born_at_ms,
            "id": record.message_id,
            "tag": record.tag,
            "keys": list(record.keys),
            "properties": dict(record.properties),
            **({} if stored.typed is None else dataclasses.asdict(stored.typed)),
        }
        print(json.dumps({**view, **in_json(record.body)}), flush=True)
        return
    at = datetime.datetime.fromtimestamp(stored.stored_at_ms / 1000, datetime.UTC)
    print(f"queue {queue_id}, offset {stored.offset}, stored {at:%Y-%m-%d %H:%M:%S} UTC")
    print(f"  id {record.message_id}")
    if record.tag:
        print(f"  tag {record.tag}")
    for key in record.keys:
        print(f"  key {key}")
    for name, value in record.properties.items():
        print(f"  {name} = {value}")
    for line in _typed_lines(stored.typed or Typed()):
        print(f"  {line}")
    print(f"  {record.body.decode(errors='backslashreplace')}", flush=True)


def _typed_lines(typed: Typed) -> Iterator[str]:
    """Yield what a message has that only some types of topics know."""
    if typed.message_group:
        yield f"message group {typed.message_group}"
    if typed.deliver_at_ms:
        at = datetime.datetime.fromtimestamp(typed.deliver_at_ms / 1000, datetime.UTC)
        yield f"not delivered before {at:%Y-%m-%d %H:%M:%S} UTC"
    if typed.priority != NO_PRIORITY:
        yield f"priority {typed.priority}"
    moved = typed.moved_from
    if moved is not None:
        yield (
            f"moved here from topic {moved.topic}, queue {moved.queue_id}, offset {moved.offset}, "
            f"after {moved.attempts} deliveries"
        )


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


async def show_erasures(args: argparse.Namespace) -> int:
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
    Action("show", "show messages by their id, key or offset", add_show_arguments, show),
    Action("erase", "erase the messages of a key", add_erase_arguments, erase),
    Action(
        "erasures",
        "list what was erased and may still lie in the log",
        partial(add_admin_arguments, epilog=EPILOG),
        show_erasures,
    ),
)
