"""Files in memory whose process can be cut off in the middle of a job, between any two calls."""

from __future__ import annotations

import errno
from pathlib import Path

from dledger.files.memory_files import MemoryFiles

_CAPACITY_BYTES = 1 << 40


class SimFiles(MemoryFiles):
    """`MemoryFiles` that count calls down to the moment the power fails."""

    def __init__(self) -> None:
        super().__init__(capacity_bytes=_CAPACITY_BYTES)
        self._calls_left: int | None = None

    def cut_after(self, calls: int) -> None:
        """Let every call fail after the next *calls*, until `crash` or `kill`."""
        self._calls_left = calls

    def fill(self, room_bytes: int) -> None:
        """Leave room for no more than this."""
        self.capacity_bytes = self._used_bytes() + room_bytes

    def empty(self) -> None:
        """Give the room back."""
        self.capacity_bytes = _CAPACITY_BYTES

    def after_power_cut(self, path: Path) -> bytes:
        """Return what a file holds that is replaced by renaming, if the power fails now."""
        return bytes(self._disk_names[path].data)

    def strike(self, operation: str, path: Path) -> None:
        """Raise once the power is cut, or if an injected fault wants this call to fail."""
        if self._calls_left is not None:
            if self._calls_left == 0:
                raise OSError(errno.EIO, "the power is cut", str(path))
            self._calls_left -= 1
        super().strike(operation, path)

    def _forget_process(self) -> None:
        self._calls_left = None
        super()._forget_process()
