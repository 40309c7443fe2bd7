"""A node's disk: `MemoryFiles` that can be cut off, filled up, copied and put back.

Also the ways in which a file system says that it is full: no block left, no inode left, a quota.
"""

from __future__ import annotations

import errno
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Final

from dledger.files.files import DiskUsage
from dledger.files.memory_files import MemoryFiles

_WITHOUT_END: Final = 1 << 40
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def says_full(error: BaseException) -> bool:
    """Whether an error, or one that it comes from, is a file system's word for being full."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        seen = seen.__cause__
    return False


class SimFiles(MemoryFiles):
    """`MemoryFiles` that count calls down to the moment the power fails.

    Args:
        volume_bytes: The size of the file system; 0: without end.
        quota: Whether it is filled up by a quota (EDQUOT), which `disk_usage` does not show.
    """

    def __init__(self, *, volume_bytes: int = 0, quota: bool = False) -> None:
        self.volume_bytes = volume_bytes or _WITHOUT_END
        super().__init__(capacity_bytes=self.volume_bytes)
        self._quota = quota
        self._calls_left: int | None = None

    # What is wrong with it

    def cut_after(self, calls: int) -> None:
        """Let every call fail after the next *calls*, until `crash` or `kill`."""
        self._calls_left = calls

    def fill(self, room_bytes: int) -> None:
        """Leave room for no more than this: to others' files, or by a quota of the node's own."""
        limit_bytes = min(self.volume_bytes, self._used_bytes() + room_bytes)
        if self._quota:
            self.quota_bytes = limit_bytes
        else:
            self.capacity_bytes = limit_bytes

    def take_inodes(self, left: int) -> None:
        """Let others' files leave no more than this many inodes."""
        self.inodes = len(self._names) + left

    def empty(self) -> None:
        """Give room and inodes back."""
        self.capacity_bytes = self.quota_bytes = self.volume_bytes
        self.inodes = _WITHOUT_END

    def image(self, rng: Random) -> SimFiles:
        """Return a copy as a snapshot of the volume has it: what a power cut would leave now."""
        copied = deepcopy(self)
        copied.crash(rng)
        copied.heal()
        copied.empty()
        return copied

    # What it holds

    @property
    def own_bytes(self) -> int:
        """What the node's own files take."""
        return self._used_bytes()

    @property
    def has_neighbours(self) -> bool:
        """Whether others' files are on it."""
        return self.capacity_bytes < self.volume_bytes

    def after_power_cut(self, path: Path) -> bytes:
        """Return what a file holds that is replaced by renaming, if the power fails now."""
        return bytes(self._disk_names[path].data)

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Return the size of the file system, and what nobody's files take of it."""
        return super().disk_usage(directory)._replace(total_bytes=self.volume_bytes)

    # Calls that fail

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
