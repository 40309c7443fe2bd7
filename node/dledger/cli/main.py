"""The ``dledger`` command: its subcommands, and their errors as exit codes."""

from __future__ import annotations

import dledger.common.grpc_polling  # noqa: F401 - gRPC reads it when it is imported

# isort: split
import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from dledger.cli import (
    dev,
    force_command,
    group_command,
    held_command,
    log_tool,
    member_command,
    message_command,
    node_command,
    spool_command,
    topic_command,
    transaction_command,
)
from dledger.cli.admin_options import Action, add_admin_arguments, connect
from dledger.common.failover import failover_line
from dledger.common.status import CLOCK_APART_MS, NodeStatus
from dledger.common.version import VERSION
from dledger.errors import DledgerError, Unavailable

_EXIT_OK: Final = 0
_EXIT_REFUSED: Final = 1
_EXIT_UNAVAILABLE: Final = 4
_WORTH_TELLING_MS: Final = 1000

_EPILOG: Final = """\
examples:
  dledger dev --nodes 3 --data ./data            a whole group on this machine
  dledger node --config /etc/dledger/node.toml   one node (what the container runs)
  dledger topic create orders --queues 8 --endpoint 127.0.0.1:18281
  dledger topic list --endpoint 127.0.0.1:18281 --json
  dledger group list --endpoint 127.0.0.1:18281
  dledger message erase --topic prices --key user-17 --endpoint 127.0.0.1:18281
  dledger transaction list --endpoint 127.0.0.1:18281
  dledger status --endpoint 127.0.0.1:18281
  dledger member list --endpoint 127.0.0.1:18281
  dledger log verify ./data/node-0
  dledger spool run --upstream orders:8081 --dir /var/spool/dledger

--endpoint: every command accepts a node's peer port (20911; `dev` prints it as adminEndpoints);
topic create and topic list also accept its client port (8081)
exit codes: 0 done, 1 refused, 2 wrong usage, 4 the group cannot be reached, 130 interrupted
of node: 0 stopped by a signal, 1 stopped by an error, 2 wrong configuration, 3 the data directory
cannot be used, 4 stopped by the watchdog, 5 a newer version of dledger is needed
"""


_STATUS_EPILOG: Final = """\
examples:
  dledger status --endpoint 10.0.0.1:20911
  dledger status --endpoint 10.0.0.1:20911 --timeout 2 --json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger",
        description="A Raft-replicated commit log that speaks the RocketMQ 5 protocol.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dledger {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(
        commands, "node", "run one node of a group", node_command.add_arguments, node_command.run
    )
    _command(commands, "dev", "run a whole group on this machine", dev.add_arguments, dev.run)
    _family(commands, "topic", "create, list and delete topics", topic_command)
    _family(
        commands, "group", "list, show, make, set, reset and delete consumer groups", group_command
    )
    _family(commands, "message", "show messages, and erase those of a key", message_command)
    _family(commands, "transaction", "list and end what producers left open", transaction_command)
    _family(commands, "held", "show messages that wait for their time", held_command)
    _family(commands, "member", "list, add and remove members", member_command)
    _command(
        commands,
        "status",
        "show the status of a node",
        partial(add_admin_arguments, epilog=_STATUS_EPILOG),
        _asking(_status),
    )
    _command(
        commands,
        "force-new-group",
        "make one survivor the group, after a majority's disks are lost",
        force_command.add_arguments,
        _asking(force_command.work),
    )
    spool = commands.add_parser(spool_command.NAME, help=spool_command.HELP)
    spool_command.add_arguments(spool)
    _command(commands, "log", "read a data directory offline", log_tool.add_arguments, log_tool.run)
    return parser


def _command(
    commands: Any,
    name: str,
    help_text: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
) -> None:
    parser = commands.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.")
    add_arguments(parser)
    parser.set_defaults(run=run)


def _family(commands: Any, name: str, help_text: str, module: Any) -> None:
    """Add a command whose subcommands are the `ACTIONS` of a module."""
    family = commands.add_parser(
        name,
        help=help_text,
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = family.add_subparsers(required=True, metavar="ACTION")
    action: Action
    for action in module.ACTIONS:
        _command(actions, *action[:3], _asking(action.work))


def _asking(
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    """Return *work* as a function that prints its errors and returns an exit code."""

    def run(args: argparse.Namespace) -> int:
        try:
            return asyncio.run(work(args))
        except Unavailable as error:
            return _failed(args, error, _EXIT_UNAVAILABLE)
        except DledgerError as error:
            return _failed(args, error, _EXIT_REFUSED)

    return run


async def _status(args: argparse.Namespace) -> int:
    async with connect(args) as admin:
        status = await admin.status()
    if args.json:
        print(json.dumps(dataclasses.asdict(status)))
        return _EXIT_OK
    ready = "ready" if status.ready else f"not ready: {status.not_ready_reason}"
    print(f"{status.name} ({status.node_id}) of group {status.group} {status.group_id or '-'}")
    print(f"  {status.role}, term {status.term}, {ready}")
    last = f"last {status.last_index} of term {status.last_term}"
    print(f"  commit {status.commit_index}, applied {status.applied_index}, {last}")
    if status.older_copy:
        print(f"  its disk is an older copy: {status.older_copy}")
    if status.epoch:
        print(f"  epoch {status.epoch}: the group was forced from one survivor")
    if status.commit_waits_ms >= _WORTH_TELLING_MS:
        waits_s = status.commit_waits_ms / 1000
        print(f"  entries in its log have waited {waits_s:.1f} s for a majority")
    if status.client_certificate_fault:
        print(f"  clients' certificate: {status.client_certificate_fault}")
    for line in (*_waiting_lines(status), *clock_lines(status)):
        print(f"  {line}")
    print(f"  version {status.version}, feature level {status.feature_level}")
    for row in status.members:
        # Only the leader knows the other members' progress.
        far = f" match {row.match_index} lag {row.lag}" if status.role == "leader" else ""
        level = row.feature_level or "unknown"
        print(f"  {row.member.name:20} {row.role:10}{far} level {level}")
    if status.role != "leader":
        print("  only the leader knows each member's progress: `dledger member list` asks it")
    if status.last_failover is not None:
        print(f"  {failover_line(status.last_failover)}")
    return _EXIT_OK


def _waiting_lines(status: NodeStatus) -> list[str]:
    """Return what is to be told of messages that wait since a restore."""
    count = status.held_waiting
    return [f"{count} restored messages wait for a word: `dledger held list`"] if count else []


def clock_lines(status: NodeStatus) -> list[str]:
    """Return what is to be told of a node's clock, and of its log's time; usually nothing."""
    lines = []
    if status.clock_apart_ms > CLOCK_APART_MS:
        side = "ahead of" if status.clock_ahead_ms else "behind"
        lines.append(
            f"its clock is {status.clock_apart_ms / 1000:.1f} s {side} the group's date: nothing "
            "goes by it alone, but set it right"
        )
    if status.log_ahead_ms > CLOCK_APART_MS:
        lines.append(
            f"the log's time is {status.log_ahead_ms / 1000:.1f} s ahead of the group's date, and "
            "runs at 7/8 until they meet"
        )
    return lines


def _failed(args: argparse.Namespace, error: DledgerError, code: int) -> int:
    """Print the error on stderr; with ``--json`` also on stdout, for programs."""
    print(f"dledger: {error}", file=sys.stderr)
    if args.json:
        print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
    return code
