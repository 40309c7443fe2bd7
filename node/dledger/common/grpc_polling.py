"""How gRPC waits for sockets in a process of ours; to be imported before gRPC, which looks then.

With its event engine, Python's default since release 1.80, what arrives passes through two threads
more, and a unary call alone costs a fifth more CPU at either end (ADR 15). For commands only: in
whose process a client of ours runs decides for itself.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "GRPC_EXPERIMENTS"
WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"

os.environ.setdefault(VARIABLE, WITHOUT_EVENT_ENGINE)
