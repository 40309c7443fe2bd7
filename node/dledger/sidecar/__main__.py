"""The child, as its parent starts it."""

from __future__ import annotations

import sys

from dledger.sidecar.child import main

if __name__ == "__main__":
    sys.exit(main())
