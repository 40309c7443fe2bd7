"""What the commands have in common that ask a node at its peer port."""

from __future__ import annotations

import argparse


def add_admin_arguments(parser: argparse.ArgumentParser, epilog: str) -> None:
    """Declare which node to ask, for how long, and how to print; *epilog* has the examples."""
    parser.add_argument(
        "--endpoint", required=True, metavar="HOST:PORT", help="any member's peer port (20911)"
    )
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = epilog
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
