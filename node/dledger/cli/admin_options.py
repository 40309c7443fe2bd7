"""Options and output shared by the commands that ask a node."""

from __future__ import annotations

import argparse
from typing import Final

from dledger.client import AdminClient
from dledger.common.limits import MAX_ANSWER_BYTES

_NOT_DONE: Final = 1
PEER_PORT: Final = "any member's peer port (20911)"
ANY_PORT: Final = "any member's peer port (20911) or client port (8081)"


def add_admin_arguments(
    parser: argparse.ArgumentParser, epilog: str, *, port: str = PEER_PORT
) -> None:
    """Declare --endpoint, --timeout and --json; *epilog* is shown after the options."""
    parser.add_argument("--endpoint", required=True, type=endpoint, metavar="HOST:PORT", help=port)
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = epilog
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def admin_of(args: argparse.Namespace) -> AdminClient:
    """Return a client of the named node; its limit allows lists of everything in a group."""
    return AdminClient(args.endpoint, timeout_s=args.timeout, max_answer_bytes=MAX_ANSWER_BYTES)


def exit_code(args: argparse.Namespace) -> int:
    """Return the exit code of a command that acts only with ``--yes``."""
    return 0 if args.yes else _NOT_DONE


def endpoint(text: str) -> str:
    """Return an address with a port: without one gRPC would use 443.

    Raises:
        argparse.ArgumentTypeError: It is not HOST:PORT.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:20911")
    return text


def positive(text: str) -> int:
    """Return an integer above 0. Raises argparse.ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
