"""The options of `dledger spool`; the standard library alone, since the parent reads them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Final

_GIB: Final = 1 << 30

EPILOG: Final = """\
examples:
  dledger spool run --listen 127.0.0.1:8081 --upstream orders:8081 --dir /var/spool/dledger
  dledger spool run --upstream orders:8081 --dir /var/spool/dledger --topic orders:NORMAL
  dledger spool run --upstream orders:8082 --upstream-tls --upstream-ca-file ca.crt --dir ./spool
  dledger spool status --dir /var/spool/dledger
  dledger spool show --dir /var/spool/dledger --rejected
  dledger spool requeue --dir /var/spool/dledger --all
  dledger spool drain --dir /var/spool/dledger --timeout 300

The application's SDK is given the address of --listen in place of the group's. Whoever reaches that
address sends as whom it likes: keep it on loopback, or in the pod.
exit codes of run: 0 stopped by a signal, 2 wrong usage or an address that is taken
"""
SHOW_EPILOG: Final = """\
examples:
  dledger spool show --dir /var/spool/dledger --topic orders --limit 10
  dledger spool show --dir /var/spool/dledger --rejected --body
  dledger spool show --dir /var/spool/dledger --damaged --json

Reads alone, also beside the process that uses the directory: what it shows may be stored meanwhile.
exit codes: 0 shown, 1 the directory cannot be read, 2 wrong usage
"""
REQUEUE_EPILOG: Final = """\
examples:
  dledger spool requeue --dir /var/spool/dledger 01E8D3A91C00F6A0B100000001
  dledger spool requeue --dir /var/spool/dledger --all --topic orders

Remove the reason first, which `dledger spool show --rejected` tells: what the group refuses again
is set aside again. The messages go behind all that their clients have sent to their topics since.
Beside a running sidecar that one does it; without one this command does, and the next start of the
sidecar, or `dledger spool drain`, brings them to the group.
exit codes: 0 all went back, 1 some did not, 2 wrong usage, or an id that is not in rejected/
"""
DRAIN_EPILOG: Final = """\
examples:
  dledger spool drain --dir /var/spool/dledger --timeout 300
  dledger spool drain --dir /var/spool/dledger --upstream orders:8081

Beside a running sidecar it waits for that one. Without one it brings the messages to the group
itself; a sidecar that is started meanwhile passes calls on, without a spool.
exit codes: 0 nothing waits, 1 not within the time, or the group refused some for good (they are in
rejected/), or the directory cannot be used, 2 wrong usage, or no --upstream where no sidecar runs
"""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger spool run``."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--listen", default="127.0.0.1:8081", metavar="HOST:PORT", help="for clients in plain text"
    )
    parser.add_argument(
        "--listen-tls", metavar="HOST:PORT", help="for clients with TLS; none unless given"
    )
    parser.add_argument(
        "--tls-cert-file",
        metavar="FILE",
        help="PEM chain of the TLS port; self-signed unless given",
    )
    parser.add_argument("--tls-key-file", metavar="FILE", help="its key, PEM")
    _add_upstream_arguments(parser, is_required=True)
    parser.add_argument("--dir", required=True, help="the spool's directory, on a disk that stays")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME:TYPE",
        help="a topic that may be sent to even if the group was away since the first start",
    )
    _add_max_bytes(parser)
    parser.add_argument(
        "--advertise",
        metavar="HOST",
        help="what clients dial, by its IPv4 address; unless given, the host of --listen",
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serves dledger_spool_* to Prometheus"
    )
    parser.add_argument(
        "--log-level",
        default=os.environ.get("DLEDGER_LOG_LEVEL", "INFO"),
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )


def _add_upstream_arguments(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    parser.add_argument(
        "--upstream",
        required=is_required,
        action="append",
        metavar="HOST:PORT",
        help="a client port (8081) of the group, or its Service; may be repeated"
        + ("" if is_required else "; asked for where no sidecar runs"),
    )
    parser.add_argument(
        "--upstream-tls",
        action="store_true",
        help="speak TLS to the group, to its port 8082",
    )
    parser.add_argument(
        "--upstream-ca-file",
        metavar="FILE",
        help="PEM of the authorities that the group's certificate is believed of; the public ones "
        "unless given",
    )
    parser.add_argument(
        "--upstream-cert-file",
        metavar="FILE",
        help="PEM chain to show to the group; none unless given",
    )
    parser.add_argument("--upstream-key-file", metavar="FILE", help="its key, PEM")
    parser.add_argument(
        "--upstream-name",
        metavar="NAME",
        help="the name in the group's certificate, if it is not the host of --upstream",
    )


def upstream_of(args: argparse.Namespace) -> list[str]:
    """Return the addresses of all ``--upstream``, each of which may name several."""
    return [each for option in args.upstream or () for each in option.split(",")]


def _add_max_bytes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-bytes", type=int, default=_GIB, help="limit of the directory (default: 1 GiB)"
    )


def _add_directory(parser: argparse.ArgumentParser, epilog: str = EPILOG) -> None:
    parser.epilog, parser.formatter_class = epilog, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dir", required=True, help="the spool's directory")
    parser.add_argument("--json", action="store_true", help="one line for programs")


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger spool status``."""
    _add_directory(parser)


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger spool show``."""
    _add_directory(parser, SHOW_EPILOG)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--rejected", action="store_true", help="what the group refused, and why; not what waits"
    )
    kinds.add_argument(
        "--damaged", action="store_true", help="where damage of the disk lost something"
    )
    _add_filters(parser)
    parser.add_argument(
        "--limit", type=_count, default=100, metavar="N", help="show so many (default: 100)"
    )
    parser.add_argument("--body", action="store_true", help="show the bodies, too")


def add_requeue_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger spool requeue``."""
    _add_directory(parser, REQUEUE_EPILOG)
    parser.add_argument("id", nargs="*", metavar="ID", help="of a message in rejected/")
    parser.add_argument("--all", action="store_true", help="all that is in rejected/")
    _add_filters(parser)
    _add_max_bytes(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long a running sidecar is waited for (default: 10)",
    )


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger spool drain``."""
    _add_directory(parser, DRAIN_EPILOG)
    _add_upstream_arguments(parser, is_required=False)
    _add_max_bytes(parser)
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="wait for ever unless given"
    )


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="of this topic alone")
    parser.add_argument("--client", metavar="CLIENT_ID", help="of this client alone")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 host loses its brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"expected HOST:PORT, not {address!r}")
    return host.strip("[]"), int(port)


def addresses_in(args: argparse.Namespace) -> Sequence[str]:
    """Return the addresses to listen on: plain text, then TLS."""
    return [address for address in (args.listen, args.listen_tls) if address]
