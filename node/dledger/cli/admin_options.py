"""Options and output shared by the commands that ask a node."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from dledger.client import AdminClient, Client
from dledger.common.limits import MAX_ANSWER_BYTES
from dledger.errors import InvalidArgument
from dledger.rpc.mutual_tls import DIRECTORY_ENV, Identity, MutualTls, identity_of, speaks_tls

_NOT_DONE: Final = 1
_NAME_ENV: Final = "DLEDGER_NAME"
_STDIN: Final = Path("-")
_OWN: Final = "127.0.0.1:20911"
PEER_PORT: Final = "any member's peer port (20911)"
ANY_PORT: Final = "any member's peer port (20911) or client port (8081)"


def add_admin_arguments(
    parser: argparse.ArgumentParser, epilog: str, *, port: str = PEER_PORT
) -> None:
    """Declare --endpoint, --timeout and --json, and what is shown to a peer port over TLS.

    *epilog* is shown after the options.
    """
    is_node = bool(os.environ.get(_NAME_ENV))  # in a node's pod its own port is meant
    parser.add_argument(
        "--endpoint",
        default=_OWN if is_node else None,
        required=not is_node,
        type=endpoint,
        metavar="HOST:PORT",
        help=f"{port}; in a node's pod by default {_OWN}",
    )
    parser.add_argument(
        "--tls-dir",
        type=Path,
        default=os.environ.get(DIRECTORY_ENV) or None,
        metavar="DIR",
        help="ca.crt, tls.crt and tls.key for peer ports that speak TLS, or - for a Secret with "
        f"them as JSON on the standard input [{DIRECTORY_ENV}]; without it, plain text",
    )
    parser.add_argument(
        "--tls-name",
        default="",
        metavar="NAME",
        help="the name of the node at --endpoint, if its certificate does not have that host",
    )
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = epilog
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_delete_arguments(parser: argparse.ArgumentParser, epilog: str) -> None:
    """Declare the name to delete, --yes, and the options of `add_admin_arguments`."""
    parser.add_argument("name")
    parser.add_argument(
        "--yes", action="store_true", help="delete; without this, only show what would be deleted"
    )
    add_admin_arguments(parser, epilog)


def tls_to(args: argparse.Namespace, address: str, name: str = "") -> MutualTls | None:
    """Return what to show the node *name* at ``HOST:PORT``; None for plain text.

    Raises:
        InvalidArgument: The directory lacks a file, or one cannot be read.
    """
    if args.tls_dir is None:
        return None
    own = os.environ.get(_NAME_ENV, "")
    if not name and address == args.endpoint:
        is_own = address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")
        name = args.tls_name or (own if is_own else "")
    if not hasattr(args, "identity"):  # the standard input is there once
        args.identity = identity_of(args.tls_dir, own) if args.tls_dir != _STDIN else _given()
    return cast("Identity", args.identity).way(address, name)


def _given() -> Identity:
    """Return what the Secret on the standard input has. Raises InvalidArgument."""
    with tempfile.TemporaryDirectory() as directory:  # for this user alone
        try:
            data = json.load(sys.stdin)["data"]
            for name in ("ca.crt", "tls.crt", "tls.key", "mode", "group"):
                if name in data:
                    (Path(directory) / name).write_bytes(base64.b64decode(data[name]))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument("the standard input is no Secret in JSON") from error
        return identity_of(Path(directory))


def connect(args: argparse.Namespace, address: str = "", name: str = "") -> AdminClient:
    """Return a client of the node *name* at ``HOST:PORT``; by default of the one asked for."""
    address = address or args.endpoint
    return AdminClient(address, timeout_s=args.timeout, tls=tls_to(args, address, name))


def admin_of(args: argparse.Namespace) -> AdminClient:
    """Return a client of the named node; its limit allows lists of everything in a group."""
    tls = tls_to(args, args.endpoint)
    return AdminClient(
        args.endpoint, timeout_s=args.timeout, max_answer_bytes=MAX_ANSWER_BYTES, tls=tls
    )


def client_of(args: argparse.Namespace, address: str, name: str = "") -> Client:
    """Return a client of a peer port, or of a client port, which has no TLS of peers."""
    tls = tls_to(args, address, name)
    if tls is not None and speaks_tls(address) is False:
        tls = None
    return Client(address, timeout_s=args.timeout, tls=tls)


def tell(args: argparse.Namespace, answer: object, *lines: str) -> int:
    """Print *answer* as JSON if ``--json`` is given, else *lines*; return the exit code."""
    print(json.dumps(answer) if args.json else "\n".join(lines))
    return 0


def tell_deleted(
    args: argparse.Namespace, view: dict[str, Any], done: str, would_go: Iterable[str]
) -> int:
    """Print what was deleted, or without ``--yes`` what would be; return the exit code."""
    lines = (done,) if args.yes else (*would_go, "to delete it, add --yes")
    tell(args, {**view, "deleted": args.yes}, *lines)
    return 0 if args.yes else _NOT_DONE


def in_json(body: bytes) -> dict[str, str]:
    """Return a message's body as a field of JSON."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


class Action(NamedTuple):
    """A subcommand of a family such as ``dledger topic``."""

    name: str
    help_text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


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
