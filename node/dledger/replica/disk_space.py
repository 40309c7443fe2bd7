"""Whether there is room for user data: refused before the disk is full, taken again by itself."""

from __future__ import annotations

import logging

from dledger.errors import DiskFull

logger = logging.getLogger(__name__)


class DiskSpaceGuard:
    """The room on one node's disk, as the leader's answers depend on it.

    Args:
        min_free_bytes: What user data leaves free, for hard state, segments under way and acks.
    """

    def __init__(self, min_free_bytes: int) -> None:
        self._min_free_bytes = min_free_bytes
        self.refusal: DiskFull | None = None
        """Why user data is refused; None: it is taken."""

    def check(self) -> None:
        """Raise DiskFull if user data is refused."""
        if self.refusal is not None:
            raise DiskFull(str(self.refusal))

    def measured(self, free_bytes: int, *, retrying: bool) -> None:
        """Take what is free now; *retrying*: a write waits for room, so there is not enough yet."""
        if free_bytes < self._min_free_bytes:
            if self.refusal is None:
                logger.warning(
                    "disk full: %d bytes free, %d needed", free_bytes, self._min_free_bytes
                )
            self.refusal = DiskFull(
                f"the disk of the leader has {free_bytes} bytes free and keeps "
                f"{self._min_free_bytes} in reserve; free some space or grow the volume, "
                "writes resume by themselves"
            )
        elif self.refusal is not None and not retrying:
            logger.warning("disk has room again: %d bytes free; writes resume", free_bytes)
            self.refusal = None

    def write_refused(self, error: DiskFull) -> None:
        """Take a write that found no room."""
        if self.refusal is None:
            logger.error("disk full while writing the log: %s", error)
        self.refusal = error

    def write_succeeded(self, *, retrying: bool) -> None:
        """Take a write that found room."""
        if not retrying:
            self.refusal = None
