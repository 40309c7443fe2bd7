"""The ``dledger`` command."""

from __future__ import annotations

import sys

from dledger.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
