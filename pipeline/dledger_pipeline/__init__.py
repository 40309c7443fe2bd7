"""Back up, verify and restore the committed log of a broker group, and compact its topics."""

from __future__ import annotations

import dledger  # noqa: F401 - it chooses how gRPC resolves names, which looks when it is imported
