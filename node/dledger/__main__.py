"""The ``dledger`` command."""

from __future__ import annotations

import sys

from dledger.cli.commands import dledger

if __name__ == "__main__":
    sys.exit(dledger())
