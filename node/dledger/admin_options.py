"""What the commands have in common that ask a node at its peer port."""

from __future__ import annotations

import argparse
from typing import Final

from dledger.channel import MAX_ANSWER_BYTES
from dledger.client import AdminClient

_NOT_DONE: Final = 1


def add_admin_arguments(parser: argparse.ArgumentParser, epilog: str) -> None:
    """Declare which node to ask, for how long, and how to print; *epilog* has the examples."""
    parser.add_argument(
        "--endpoint", required=True, metavar="HOST:PORT", help="any member's peer port (20911)"
    )
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = epilog
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def admin_of(args: argparse.Namespace) -> AdminClient:
    """Return a client of the node that was named; it takes lists of as many as a group may have."""
    return AdminClient(args.endpoint, timeout_s=args.timeout, max_answer_bytes=MAX_ANSWER_BYTES)


def exit_code(args: argparse.Namespace) -> int:
    """Return how a command ends that only says what would go unless it was told ``--yes``."""
    return 0 if args.yes else _NOT_DONE
