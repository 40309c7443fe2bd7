"""The options of `dledger spool run`; the standard library alone, since the parent reads them."""

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
  dledger spool status --dir /var/spool/dledger

The application's SDK is given the address of --listen in place of the group's. Whoever reaches that
address sends as whom it likes: keep it on loopback, or in the pod.
exit codes of run: 0 stopped by a signal, 2 wrong usage or an address that is taken
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
    parser.add_argument(
        "--upstream",
        required=True,
        action="append",
        metavar="HOST:PORT",
        help="a client port (8081) of the group, or its Service; may be repeated",
    )
    parser.add_argument("--dir", required=True, help="the spool's directory, on a disk that stays")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME:TYPE",
        help="a topic that may be sent to even if the group was away since the first start",
    )
    parser.add_argument(
        "--max-bytes", type=int, default=_GIB, help="limit of the directory (default: 1 GiB)"
    )
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


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger spool status``."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dir", required=True, help="the spool's directory")
    parser.add_argument("--json", action="store_true", help="one line for programs")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 host loses its brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"expected HOST:PORT, not {address!r}")
    return host.strip("[]"), int(port)


def addresses_in(args: argparse.Namespace) -> Sequence[str]:
    """Return the addresses to listen on: plain text, then TLS."""
    return [address for address in (args.listen, args.listen_tls) if address]
