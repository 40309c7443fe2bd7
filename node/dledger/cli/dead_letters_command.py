"""``dledger group set`` and ``dledger group dead-letters``: what becomes of what nobody takes."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Final

from dledger.cli.admin_options import add_admin_arguments, admin_of, tell
from dledger.client.admin_client import AdminClient, DeadLettersView, DeadLetterView
from dledger.errors import InvalidArgument

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_GROWING: Final = re.compile(r"(\w+)\.\.(\w+)x([2-9])")
_MOST_DELAYS: Final = 32
_AT_ONCE: Final = 32

SET_EPILOG: Final = """\
examples:
  dledger group set billing --max-attempts 5 --endpoint 10.0.0.1:20911
  dledger group set billing --backoff 1s,10s,1m --endpoint 10.0.0.1:20911
  dledger group set billing --backoff 1s..2hx2 --max-attempts 0 --endpoint 10.0.0.1:20911

What is not named stays as it is. A message that was delivered so often without being acknowledged
is moved to the topic %DLQ%NAME; with --max-attempts 0 none is. The last delay is that of all later
attempts; 1s..2hx2 is written out: 1 s, 2 s, 4 s and so on up to 2 h. Push consumers learn of a new
back-off when they connect anew; attempts are counted by the broker, and count at once.
"""
LETTERS_EPILOG: Final = """\
examples:
  dledger group dead-letters list --group billing --endpoint 10.0.0.1:20911
  dledger group dead-letters resend --group billing --dry-run --endpoint 10.0.0.1:20911
  dledger group dead-letters resend --group billing --limit 1000 --endpoint 10.0.0.1:20911 --json
  dledger group dead-letters drop --group billing --endpoint 10.0.0.1:20911

list shows what the group itself has not consumed of its topic %DLQ%NAME. resend stores the messages
in the topics that they came from, with all that their producers gave them, and drop does not; after
either they count as consumed, and stay in the topic for as long as its retention says. What a
consumer of the group has at the moment is left alone. A resend whose answer is lost may be
repeated: the same dead letter is not stored twice while the broker remembers its id.
"""


def add_set_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group set``."""
    parser.add_argument("name")
    parser.add_argument(
        "--max-attempts", type=int, metavar="N", help="deliveries of a message; 0: without end"
    )
    parser.add_argument(
        "--backoff", type=backoff, default=(), metavar="DELAYS", help="1s,10s,1m or 1s..2hx2"
    )
    add_admin_arguments(parser, SET_EPILOG)


def backoff(text: str) -> tuple[int, ...]:
    """Return delays in milliseconds: a list of them, or FIRST..LASTxFACTOR written out."""
    grows = _GROWING.fullmatch(text)
    if grows is None:
        return tuple(map(_milliseconds, text.split(",")))
    first, last, factor = _milliseconds(grows[1]), _milliseconds(grows[2]), int(grows[3])
    if not 0 < first <= last:
        raise argparse.ArgumentTypeError(f"{text!r} does not grow")
    delays = [first]
    while delays[-1] < last and len(delays) < _MOST_DELAYS:
        delays.append(min(delays[-1] * factor, last))
    return tuple(delays)


def _milliseconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 500ms, 10s, 5m or 2h")
    return int(found[1]) * _UNITS_MS[found[2]]


async def set_group(args: argparse.Namespace) -> int:
    """Set a group's attempts and back-off."""
    if args.max_attempts is None and not args.backoff:
        raise InvalidArgument("nothing to set: name --max-attempts, --backoff or both")
    async with admin_of(args) as admin:
        done = await admin.set_group(
            args.name, max_attempts=args.max_attempts, backoff_ms=args.backoff
        )
    times = f"delivers a message {_times(done.max_attempts)}"
    return tell(
        args,
        {"name": args.name, **dataclasses.asdict(done)},
        f"consumer group {args.name} {times}, before {_times(done.before_max_attempts)}",
        f"  delays {_delays(done.backoff_ms)}, before {_delays(done.before_backoff_ms)}",
    )


def _times(attempts: int) -> str:
    return f"{attempts} times at most" if attempts else "without end"


def _delays(delays_ms: tuple[int, ...]) -> str:
    return ", ".join(f"{each / 1000:g} s" for each in delays_ms)


def add_letters_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger group dead-letters``."""
    parser.add_argument("what", choices=("list", "resend", "drop"))
    parser.add_argument("--group", required=True, metavar="NAME")
    parser.add_argument("--limit", type=int, default=_AT_ONCE, metavar="N", help="messages at most")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    add_admin_arguments(parser, LETTERS_EPILOG)


async def dead_letters(args: argparse.Namespace) -> int:
    """List dead letters, send them back or drop them."""
    if args.limit < 1:
        raise InvalidArgument(f"--limit must be positive: {args.limit}")
    async with admin_of(args) as admin:
        if args.what == "list" or args.dry_run:
            view = await admin.dead_letters(args.group, limit=min(args.limit, _AT_ONCE))
        else:
            view = await _work_off(admin, args)
    done = args.what if not args.dry_run else f"{args.what} (dry run)"
    answer = {"group": args.group, "did": done, **dataclasses.asdict(view)}
    lines = [_line(args, each) for each in view.letters]
    lines.append(f"{len(view.letters)} dead letters{', and there are more' if view.more else ''}")
    return tell(args, answer, *lines)


async def _work_off(admin: AdminClient, args: argparse.Namespace) -> DeadLettersView:
    """Go on until the limit, the end, or one that stays: it would come again at once."""
    settle = admin.resend_dead_letters if args.what == "resend" else admin.drop_dead_letters
    letters: list[DeadLetterView] = []
    while True:
        part = await settle(args.group, limit=min(args.limit - len(letters), _AT_ONCE))
        letters += part.letters
        stays = any(each.kept_because for each in part.letters)
        if not part.more or stays or len(letters) >= args.limit:
            return DeadLettersView(letters=tuple(letters), more=part.more)


def _line(args: argparse.Namespace, each: DeadLetterView) -> str:
    origin = each.moved_from
    came = (
        f"from {origin.topic}, queue {origin.queue_id}, offset {origin.offset}, "
        f"after {origin.attempts} deliveries"
        if origin
        else "sent here by a producer"
    )
    return f"{each.offset:>10} {each.message_id:36} {came}{_outcome(args, each)}"


def _outcome(args: argparse.Namespace, each: DeadLetterView) -> str:
    if args.what == "list" or args.dry_run:
        return "; a consumer has it" if each.held else ""
    if each.kept_because:
        return f"; stays: {each.kept_because}"
    if args.what == "drop":
        return "; dropped"
    before = ", where an earlier call had sent it" if each.was_sent_before else ""
    return f"; sent back to queue {each.sent_to_queue}, offset {each.sent_to_offset}{before}"
