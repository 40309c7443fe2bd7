"""Turns off gRPC's event engine in our own processes. Import it before gRPC, which reads it once.

With the event engine, Python's default since gRPC 1.80, incoming data passes through two more
threads, and a unary call takes a fifth more CPU on each side (ADR 15). Only our commands import
this: an application that uses our client decides for its own process.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "GRPC_EXPERIMENTS"
WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"

os.environ.setdefault(VARIABLE, WITHOUT_EVENT_ENGINE)
