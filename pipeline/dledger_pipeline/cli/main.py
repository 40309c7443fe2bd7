"""The ``dledger-pipeline`` command: runs jobs, prints results, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from dledger.common.memory import keep_blocks
from dledger.common.version import VERSION
from dledger.errors import DledgerError
from dledger_pipeline.cli import group_commands, store_commands, table_commands
from dledger_pipeline.cli.options import Command, add_common_arguments
from dledger_pipeline.cli.stopping import Stopped, stoppable
from dledger_pipeline.errors import (
    NodeUnavailable,
    RangeNotAvailable,
    SparkFailed,
    StoreUnavailable,
    VersionConflict,
    WorkerFailed,
)
from dledger_pipeline.jobs.progress import Progress, served
from dledger_pipeline.jobs.result import Result, in_brief

_EXIT_OK: Final = 0
_EXIT_FAILED: Final = 1
_EXIT_TRY_AGAIN: Final = 4
_EXIT_SIGNAL: Final = 128  # and the signal's number, as shells count
_MAY_PASS: Final = (
    *(NodeUnavailable, StoreUnavailable, SparkFailed, WorkerFailed),
    VersionConflict,  # with another backup of the group, which has ended by then
    RangeNotAvailable,  # at a follower that lags, while the others are down
)
"""What may go well the next time; the operator's Jobs are tried again for nothing else."""
_MAX_MESSAGE: Final = 3000  # beside its type, of MOST_BYTES

_COMMANDS: Final = (
    group_commands.BACKUP,
    *store_commands.COMMANDS,
    group_commands.COMPACT,
    group_commands.ERASE,
    *table_commands.COMMANDS,
)
"""As the help lists them."""

_EPILOG: Final = """\
examples:
  dledger-pipeline backup --endpoint 127.0.0.1:18281,127.0.0.1:18282 --store file:///backups
  dledger-pipeline verify --store file:///backups --deep
  dledger-pipeline restore --store file:///backups --data ./restored --name orders/orders-0
  dledger-pipeline restore --store s3://bucket/dledger --store-endpoint https://s3.example.com \\
      --data ./restored --name orders/orders-0 --to-time 2026-01-31T12:00:00Z
  dledger-pipeline list --store file:///backups
  dledger-pipeline erase --endpoint 127.0.0.1:18281 --store file:///backups --topic prices \\
      --key user-17 --dry-run
  dledger-pipeline erasures --store file:///backups --keep-days 30
  dledger-pipeline gc --store file:///backups --keep-days 30 --dry-run
  dledger-pipeline compact --endpoint 127.0.0.1:18281,127.0.0.1:18282 --again-in 24h
  dledger-pipeline compact --endpoint 127.0.0.1:18281 --store file:///backups --topics prices \\
      --dry-run --json
  dledger-pipeline query --store file:///backups 'SELECT topic, count(*) FROM messages GROUP BY 1'
  dledger-pipeline export --store file:///backups --to file:///lake/messages
  dledger-pipeline export --store file:///backups --to s3://lake/orders --format delta \\
      --topics orders --schema orders.json

stores: file:///absolute/path, s3://bucket/path with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION and DLEDGER_STORE_ENDPOINT from the environment; DLEDGER_MANIFEST_KEY (32 bytes or more)
signs manifests, and refuses those that it did not sign: run `sign` once to start using it
exit codes: 0 done, 1 failed (one line says why), 2 wrong usage, 4 it may help to try again: the
group, the store or Spark cannot be used now, or another backup was published meanwhile; 130 stopped
by Ctrl-C, 143 stopped by SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], Result] = args.run
    keep_blocks()
    try:
        with stoppable(), served(args.progress, args.metrics_port):
            result = run(args)
    except Stopped as error:
        print(f"dledger-pipeline: {error}", file=sys.stderr)
        _tell(args, _failure(error))
        return _EXIT_SIGNAL + error.number
    except (DledgerError, OSError) as error:
        print(f"dledger-pipeline: {error}", file=sys.stderr)
        _tell(args, _failure(error))
        return _EXIT_TRY_AGAIN if isinstance(error, _MAY_PASS) else _EXIT_FAILED
    except BaseException as error:
        _write_result(args, _failure(error))
        raise
    _tell(args, result)
    return _EXIT_OK


def _failure(error: BaseException) -> Result:
    return {"error": {"type": type(error).__name__, "message": str(error)[:_MAX_MESSAGE]}}


def _tell(args: argparse.Namespace, result: Result) -> None:
    """Print the result and keep it in the result file."""
    _write_result(args, result)
    if not args.shows_result and "error" not in result:
        return  # it has printed what was asked for
    if args.json:
        print(json.dumps(result))
    elif "error" not in result:
        for name, value in result.items():
            print(f"{name:16} {_in_words(value)}")


def _in_words(value: object) -> object:
    if isinstance(value, dict):
        return json.dumps(value)
    return ", ".join(value) if isinstance(value, list) else value


def _write_result(args: argparse.Namespace, result: Result) -> None:
    if args.result_file:
        args.result_file.write_text(json.dumps(in_brief(result)), "utf-8")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger-pipeline",
        description="Back up, verify and restore a broker group's log, and compact its topics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dledger-pipeline {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        _add(commands, command)
    return parser


def _add(commands: Any, command: Command) -> None:
    text = command.help_text
    parser = commands.add_parser(
        command.name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=command.run, shows_result=True, progress=Progress(command.name, _say))
    add_common_arguments(parser, needs_store=command.needs_store)
    if command.add_arguments is not None:
        command.add_arguments(parser)
