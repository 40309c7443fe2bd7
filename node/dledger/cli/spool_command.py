"""``dledger spool``: the sidecar that keeps sends on the local disk while the group is away.

Its own way in (`main`), because the parent that ``run`` becomes must be small: nothing that the
other commands import is loaded.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dledger.sidecar import parent
from dledger.sidecar.options import EPILOG, add_run_arguments, add_status_arguments

NAME: Final = "spool"
HELP: Final = "keep sends on the local disk while the group is away"
_EXIT_REFUSED: Final = 1
_OF_THE_CHILD: Final = ("grpc", "ngh2", "uvloop", "cryptography")


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
    running = actions.add_parser("run", help="serve clients until a signal")
    add_run_arguments(running)
    running.set_defaults(run=_run)
    telling = actions.add_parser("status", help="say what waits in a directory")
    add_status_arguments(telling)
    telling.set_defaults(run=_status)


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
        for each in value if isinstance(value, list) else [value]:
            options += (f"--{name.replace('_', '-')}", str(each))
    return options


def _status(args: argparse.Namespace) -> int:
    """Print what waits; what it takes to read a spool is imported now."""
    status: Any = importlib.import_module("dledger.sidecar.status")
    files: Any = importlib.import_module("dledger.files.files")
    errors: Any = importlib.import_module("dledger.errors")
    try:
        found = status.status_of(files.RealFiles(), Path(args.dir))
    except errors.DledgerError as error:
        print(f"dledger: {error}", file=sys.stderr)
        if args.json:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        return _EXIT_REFUSED
    if args.json:
        print(json.dumps(found.as_dict()))
    else:
        print("\n".join(status.lines_of(found)))
    return 0
