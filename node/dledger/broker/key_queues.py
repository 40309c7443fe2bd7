"""Which queue of a compacted topic a message goes to: its key decides, for ever."""

from __future__ import annotations

from crc32c import crc32c


def queue_of_key(key: bytes, queues: int) -> int:
    """Return the queue of a compacted topic with *queues* queues that a key, in UTF-8, is in."""
    return crc32c(key) % queues
