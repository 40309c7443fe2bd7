"""What an acknowledgement of Kafka or NATS JetStream promises: each can be told either. Pure."""

from __future__ import annotations

from enum import Enum


class Promise(Enum):
    """Where a message is once it is acknowledged; the value stands in the rows."""

    SYNCED = "synced"
    """On the disks of a majority, or of all that are in sync: what ours always promises."""
    PAGE_CACHE = "page cache"
    """In their memory, until the kernel writes it: the default of both."""
