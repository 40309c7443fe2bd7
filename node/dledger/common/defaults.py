"""Defaults that a node's settings share with the parts which are told them; each stands once.

A setting that no part has a default of its own for stands in `server.config` alone.
"""

from __future__ import annotations

from typing import Final

TICK_MS: Final = 50  # the grain of all timeouts: a tenth of the shortest election timeout
SEGMENT_BYTES: Final = 64 << 20  # what retention drops at once; 160 files for 10 GiB
WATERMARK_PERCENT: Final = 85  # as RocketMQ's brokers; the rest is for what comes until segments go
QUEUES: Final = 8  # of a topic that is made on first use: what RocketMQ's brokers make
RETENTION_HOURS: Final = 72  # as RocketMQ's brokers: a weekend
GROUP_RETENTION_HOURS: Final = 720  # 30 days: who comes back later is a new group
