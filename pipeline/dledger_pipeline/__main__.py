"""The ``dledger-pipeline`` command."""

from __future__ import annotations

import sys

from dledger_pipeline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
