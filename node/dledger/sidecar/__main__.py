"""The child, as its parent starts it."""

from __future__ import annotations

import dledger.common.grpc_polling  # noqa: F401 - gRPC reads it when it is imported

# isort: split
import sys

from dledger.sidecar.child import main

if __name__ == "__main__":
    sys.exit(main())
