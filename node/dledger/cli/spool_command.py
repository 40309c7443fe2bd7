"""``dledger spool``: the sidecar that keeps sends on the local disk while the group is away.

Its own way in (`main`), because the parent that ``run`` becomes must be small: nothing that the
other commands import is loaded.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dledger.sidecar import parent
from dledger.sidecar.options import (
    EPILOG,
    add_drain_arguments,
    add_requeue_arguments,
    add_run_arguments,
    add_show_arguments,
    add_status_arguments,
    upstream_of,
)

NAME: Final = "spool"
HELP: Final = "keep sends on the local disk while the group is away"
_EXIT_REFUSED: Final = 1
_EXIT_USAGE: Final = 2
_OF_THE_CHILD: Final = ("grpc", "ngh2", "uvloop", "cryptography")
_TOLD_S: Final = 2.0
"""Between lines that say how far a drain has come."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dledger spool``; *argv* is what follows that; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"dledger {NAME}", description=f"{HELP.capitalize()}.")
    add_arguments(parser)
    args = parser.parse_args(sys.argv[2:] if argv is None else argv)
    code: int = args.run(args)
    return code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, help_text, declare, work in (
        ("run", "serve clients until a signal", add_run_arguments, _run),
        ("status", "say what waits in a directory", add_status_arguments, _status),
        ("show", "show single messages of a directory", add_show_arguments, _show),
        ("requeue", "have refused messages sent again", add_requeue_arguments, _requeue),
        ("drain", "wait until nothing waits", add_drain_arguments, _drain),
    ):
        action = actions.add_parser(name, help=help_text)
        declare(action)
        action.set_defaults(run=work)


def _run(args: argparse.Namespace) -> int:
    for package in _OF_THE_CHILD:
        if find_spec(package) is None:  # or the parent would start one child after the other
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return parent.run(args, _options_of(args))


def _options_of(args: argparse.Namespace) -> list[str]:
    """Return the options of ``run`` as the child gets them."""
    options: list[str] = []
    for name, value in vars(args).items():
        if name == "run" or value is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            options += [option] * value
            continue
        for each in value if isinstance(value, list) else [value]:
            options += (option, str(each))
    return options


def _status(args: argparse.Namespace) -> int:
    """Print what waits."""
    status: Any = _module("status")

    def work(files: Any, directory: Path) -> int:
        found = status.status_of(files, directory)
        return _tell(args, found.as_dict(), status.lines_of(found))

    return _beside(args, work)


def _show(args: argparse.Namespace) -> int:
    """Print single messages."""
    showing: Any = _module("showing")
    looking: Any = importlib.import_module("dledger.spool.looking")

    def work(files: Any, directory: Path) -> int:
        look = looking.Look(files, directory)
        if args.damaged:
            damage = showing.damage_as_dict(look)
            lines = [showing.line_of_damage(one) for one in damage] or ["nothing is damaged"]
            return _tell(args, {"damage": damage}, lines)
        choice = showing.Choice(topic=args.topic, client_id=args.client)
        of = showing.rejected_of if args.rejected else showing.waiting_of
        found, is_more = showing.first_of(of(look, choice), args.limit)
        lines = [showing.line_of(one, body=args.body) for one in found]
        if is_more:
            lines.append(f"and more: these are the first {args.limit} (--limit)")
        answer = {"messages": [one.as_dict(body=args.body) for one in found], "more": is_more}
        return _tell(args, answer, lines or ["nothing is there"])

    return _beside(args, work)


def _requeue(args: argparse.Namespace) -> int:
    """Have rejected messages sent again."""
    asking: Any = _module("asking")
    showing: Any = _module("showing")
    looking: Any = importlib.import_module("dledger.spool.looking")

    def work(files: Any, directory: Path) -> int:
        choice = showing.Choice(topic=args.topic, client_id=args.client)
        look = looking.Look(files, directory)
        chosen = asking.chosen_of(look, args.id, choice, all_of_them=args.all)
        done = asking.requeue(
            files, directory, chosen, max_bytes=args.max_bytes, timeout_s=args.timeout
        )
        lines = [f"{done.went_back} went back, behind what their clients have sent since"]
        if done.asking is not None:
            lines.append(
                f"{done.left} not yet: what has the directory has not taken them up within "
                f"{args.timeout:g} s. It will, or the next one does; remove {done.asking} "
                "to take that back"
            )
        elif done.left:
            lines.append(
                f"{done.left} stay in rejected/: there was no room for them, or another kind of "
                "program sends them; the log of what has the directory says which"
            )
        answer = {"went_back": done.went_back, "left": done.left, "taken": done.asking is None}
        _tell(args, answer, lines)
        return _EXIT_REFUSED if done.left else 0

    return _beside(args, work)


def _drain(args: argparse.Namespace) -> int:
    """Wait until nothing waits."""
    draining: Any = _module("draining")
    upstream_tls: Any = _module("upstream_tls")

    def work(files: Any, directory: Path) -> int:
        tls = upstream_tls.upstream_tls(args)
        way = draining.Way(addresses=upstream_of(args), tls=tls, max_bytes=args.max_bytes)
        progress = _Progress()
        done = draining.drain_now(files, directory, way, timeout_s=args.timeout, tell=progress)
        lines = ["nothing waits" if not done.left else f"{done.left} messages wait still"]
        if done.rejected:
            lines.append(
                f"{done.rejected} were refused by the group for good: "
                f"dledger spool show --dir {args.dir} --rejected has the reasons"
            )
        by = "sidecar" if done.by_sidecar else "here"
        _tell(args, {"left": done.left, "rejected": done.rejected, "by": by}, lines)
        return _EXIT_REFUSED if done.left or done.rejected else 0

    return _beside(args, work)


class _Progress:
    """Says on stderr how many messages wait, now and then."""

    def __init__(self) -> None:
        self._told_s, self._left = -_TOLD_S, 0

    def __call__(self, left: int) -> None:
        now_s = time.monotonic()
        passed_s = now_s - self._told_s
        if passed_s < _TOLD_S:
            return
        rate = f", {(self._left - left) / passed_s:.0f} a second" if self._left > left else ""
        print(f"dledger: {left} messages wait{rate}", file=sys.stderr, flush=True)
        self._told_s, self._left = now_s, left


def _module(name: str) -> Any:
    """Return a module of the sidecar, imported now: the parent that ``run`` becomes has none."""
    return importlib.import_module(f"dledger.sidecar.{name}")


def _beside(args: argparse.Namespace, work: Callable[[Any, Path], int]) -> int:
    """Return what *work* does with a directory; an error of ours is said, and its exit code."""
    files: Any = importlib.import_module("dledger.files.files")
    errors: Any = importlib.import_module("dledger.errors")
    try:
        return work(files.RealFiles(), Path(args.dir))
    except errors.DledgerError as error:
        print(f"dledger: {error}", file=sys.stderr)
        if args.json:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        return _EXIT_USAGE if isinstance(error, errors.InvalidArgument) else _EXIT_REFUSED


def _tell(args: argparse.Namespace, answer: object, lines: Iterable[str]) -> int:
    print(json.dumps(answer) if args.json else "\n".join(lines))
    return 0
