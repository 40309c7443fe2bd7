"""A small file system of its own for one node, so that its disk can really be full.

A tmpfs, which needs root. It fills up by a ballast file beside the node's data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from e2e.cluster.errors import CommandFailed
from e2e.cluster.shell import run

_SIZE_BYTES: Final = 512 << 20
_INODES: Final = 20_000
_BALLAST: Final = "ballast"
_INODE: Final = "inode-"


class Volume:
    """One mounted directory; only who mounted it unmounts it."""

    def __init__(self, path: Path, *, size_bytes: int = _SIZE_BYTES) -> None:
        self._path, self._size_bytes = path, size_bytes
        self._mounted = False

    @staticmethod
    def is_possible(scratch: Path) -> bool:
        """Whether this process may mount; tried, since being root is not enough in a container."""
        scratch.mkdir(parents=True, exist_ok=True)
        volume = Volume(scratch)
        try:
            volume.mount()
        except (OSError, CommandFailed):
            return False
        volume.unmount()
        return True

    def mount(self) -> None:
        """Mount it, empty. Raises OSError, CommandFailed."""
        self._path.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes},nr_inodes={_INODES},mode=0750"
        run("mount", "-t", "tmpfs", "-o", options, "tmpfs", self._path)
        self._mounted = True

    def unmount(self) -> None:
        """Unmount it; what was on it is gone."""
        if self._mounted:
            run("umount", "--lazy", self._path)
            self._mounted = False

    def fill(self, free_bytes: int) -> None:
        """Take all room but *free_bytes*."""
        stat = os.statvfs(self._path)
        take_bytes = stat.f_bavail * stat.f_frsize - free_bytes
        if take_bytes > 0:
            with (self._path / _BALLAST).open("ab") as ballast:
                os.posix_fallocate(ballast.fileno(), ballast.tell(), take_bytes)

    def fill_to(self, percent: int) -> None:
        """Take room until so much of the file system is used."""
        self.fill(self._size_bytes * (100 - percent) // 100)

    @property
    def has_inodes(self) -> bool:
        """Whether a file can be made."""
        return os.statvfs(self._path).f_favail > 0

    def take_inodes(self) -> None:
        """Take all inodes."""
        for number in range(os.statvfs(self._path).f_favail + 1):
            try:
                (self._path / f"{_INODE}{number}").touch()
            except OSError:
                return

    def empty(self) -> None:
        """Give the room and the inodes back."""
        (self._path / _BALLAST).unlink(missing_ok=True)
        for path in self._path.glob(f"{_INODE}*"):
            path.unlink()
