"""Reading no faster than a node's clients can bear."""

from __future__ import annotations

import time


class Pace:
    """Sleeps behind each piece that was read, so that they come at no more than a given rate.

    Time that the reader itself took counts; what it did not use is not made up for later.
    """

    def __init__(self, bytes_per_s: float) -> None:
        """Begin now; 0 bytes a second is no limit."""
        self._s_per_byte = 1 / bytes_per_s if bytes_per_s else 0.0
        self._due_s = time.monotonic()

    def has_read(self, size_bytes: int) -> None:
        """Sleep until *size_bytes* more may have been read."""
        self._due_s += size_bytes * self._s_per_byte
        now_s = time.monotonic()
        if now_s < self._due_s:
            time.sleep(self._due_s - now_s)
        else:
            self._due_s = now_s
