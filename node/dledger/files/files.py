"""The file interface of store and spool, and its implementation on the operating system.

Store and spool do all their I/O through `Files`, so that tests can replace it: `memory_files` is an
implementation that loses unsynced data in a crash. Errors are plain `OSError`; callers translate
them, those that say that there is no room by `full`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview
_IOV_MAX = 1024


class Mode(Enum):
    """How a file is opened; COLD reads from the disk instead of the page cache."""

    READ = os.O_RDONLY
    COLD = os.O_RDONLY | os.O_CLOEXEC
    UPDATE = os.O_RDWR
    CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC


class DiskUsage(NamedTuple):
    """The size of the file system, and its free space for unprivileged users, in bytes."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file. Safe to use from several threads: every call names its offset."""

    def size(self) -> int:
        """Return the length in bytes."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all *buffers*, one after the other, at *offset*; an error may leave a part."""

    def preallocate(self, size: int) -> None:
        """Make the file *size* bytes long and reserve the space; new bytes are zero."""

    def fdatasync(self) -> None:
        """Make contents and length durable."""

    def drop_cached(self, offset: int, size: int) -> None:
        """Drop synced bytes from the page cache. A hint: it never fails."""

    def close(self) -> None:
        """Close; a second close does nothing. An unreferenced file closes itself."""


class Files(Protocol):
    """A file system. Names become durable by `fsync_dir` of the directory that holds them."""

    def open(self, path: Path, mode: Mode) -> File:
        """Open *path*.

        Raises:
            FileNotFoundError: It does not exist and *mode* does not create it.
        """

    def rename(self, source: Path, target: Path) -> None:
        """Give *source* the name *target*, replacing it atomically."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def list(self, directory: Path) -> list[str]:
        """Return the names in *directory*, sorted; none if it does not exist."""

    def make_dirs(self, directory: Path) -> None:
        """Create *directory* and its parents, durably, where they are missing."""

    def fsync_dir(self, directory: Path) -> None:
        """Make creations, renames and removals in *directory* durable."""

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Return the usage of the file system that holds *directory*."""

    def lock(self, path: Path) -> File:
        """Lock *path*, creating it if missing, until the returned file is closed.

        Raises:
            BlockingIOError: Another process, or an open file of this one, holds the lock.
        """


class RealFile:
    """A file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self._fd).st_size

    def pread(self, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*; fewer only at the end of the file."""
        data = os.pread(self._fd, size, offset)
        while data and len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all *buffers* at *offset*: one system call, unless the write is short."""
        if len(buffers) > _IOV_MAX:
            buffers = [b"".join(buffers)]
        written = os.pwritev(self._fd, buffers, offset)
        if written < sum(map(len, buffers)):
            self._write_rest(memoryview(b"".join(buffers)), written, offset)

    def _write_rest(self, data: memoryview, written: int, offset: int) -> None:
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], offset + written)

    def preallocate(self, size: int) -> None:
        """Reserve *size* bytes on the disk."""
        os.posix_fallocate(self._fd, 0, size)

    def fdatasync(self) -> None:
        """Make contents and length durable."""
        os.fdatasync(self._fd)

    def drop_cached(self, offset: int, size: int) -> None:
        """Drop whole clean pages from the page cache."""
        with suppress(OSError):
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor, which also releases its lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class ColdFile(RealFile):
    """A file that is read from the disk, not the page cache, to find damage on the disk."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*, after dropping their clean pages from the cache."""
        self.drop_cached(offset, size)
        return super().pread(size, offset)


class RealFiles:
    """The operating system's files."""

    def open(self, path: Path, mode: Mode) -> File:
        """Open *path*; created files are readable by their owner and group only."""
        kind = ColdFile if mode is Mode.COLD else RealFile
        return kind(os.open(path, mode.value, 0o640))

    def rename(self, source: Path, target: Path) -> None:
        """Give *source* the name *target*, replacing it atomically."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def list(self, directory: Path) -> list[str]:
        """Return the names in *directory*, sorted; none if it does not exist."""
        try:
            return sorted(child.name for child in directory.iterdir())
        except FileNotFoundError:
            return []

    def make_dirs(self, directory: Path) -> None:
        """Create *directory* and its parents, durably, where they are missing."""
        missing = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for each in missing:
            self.fsync_dir(each.parent)

    def fsync_dir(self, directory: Path) -> None:
        """Make creations, renames and removals in *directory* durable."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Return the usage of the file system that holds *directory*."""
        stat = os.statvfs(directory)
        return DiskUsage(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)

    def lock(self, path: Path) -> RealFile:
        """Take an exclusive flock; the kernel releases it when the process ends."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        file = RealFile(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
