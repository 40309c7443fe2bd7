"""Files in memory that can crash: `crash` keeps what was synced and a random part of the rest.

Used by tests and by the simulator. 512-byte sectors persist independently, in any order, and so do
the directory operations since the last `fsync_dir` (a rename as a whole). Directories themselves
are durable at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dledger.files.files import Buffer, DiskUsage, Mode

SECTOR_BYTES = 512


@dataclass(slots=True)
class Fault:
    """An injected fault: calls of *operation* on names that end in *suffix* raise OSError.

    Attributes:
        operation: A method of `File` or `Files`, such as ``fdatasync`` or ``rename``; ``create`` is
            an ``open`` that makes a file.
        errno: Such as `errno.EIO` or `errno.ENOSPC`.
        suffix: End of the file's name; "" matches every file.
        skip: How many matching calls succeed first.
        times: How many matching calls then fail.
        partial_bytes: For ``pwritev``: how much is written before it fails.
    """

    operation: str
    errno: int
    suffix: str = ""
    skip: int = 0
    times: int = 1
    partial_bytes: int = 0

    def strikes(self, operation: str, path: Path) -> bool:
        """Count one call; return whether it fails."""
        if operation != self.operation or not path.name.endswith(self.suffix) or not self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class _Inode:
    """The contents that the process sees, and those on the disk where they differ."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._disk: dict[int, bytes] = {}
        self._dropped: dict[int, bytes] = {}
        self._disk_size = 0

    def write(self, data: Buffer, offset: int) -> None:
        end = offset + len(data)
        self.grow(end)
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self._remember(sector)
        self.data[offset:end] = data

    def grow(self, size: int) -> None:
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))

    def _remember(self, sector: int) -> None:
        if sector in self._dropped:
            self._disk[sector] = self._dropped.pop(sector)
        elif sector not in self._disk:
            start = sector * SECTOR_BYTES
            self._disk[sector] = bytes(self.data[start : start + SECTOR_BYTES])

    def sync(self) -> None:
        self._disk.clear()
        self._disk_size = len(self.data)

    def fail_sync(self) -> None:
        """Fail like Linux: the pages are marked clean, and never reach the disk."""
        self._dropped.update(self._disk)
        self._disk.clear()

    def crash(self, rng: Random) -> None:
        odds = rng.choice((0.0, 0.5, 0.9, 1.0))
        for sector, old in self._disk.items():
            if rng.random() >= odds:
                self._restore(sector, old)
        for sector, old in self._dropped.items():
            self._restore(sector, old)
        if rng.random() >= odds:
            del self.data[self._disk_size :]
        self._disk.clear()
        self._dropped.clear()
        self._disk_size = len(self.data)

    def _restore(self, sector: int, old: bytes) -> None:
        start = sector * SECTOR_BYTES
        length = min(SECTOR_BYTES, len(self.data) - start)
        self.data[start : start + length] = old.ljust(length, b"\0")[:length]


class MemoryFile:
    """A file handle; it is invalid after a crash."""

    def __init__(self, files: MemoryFiles, path: Path, inode: _Inode) -> None:
        self._files, self._path, self._inode = files, path, inode
        self._life = files.lives
        self._open = True

    def size(self) -> int:
        """Return the length in bytes."""
        return len(self._inode.data)

    def pread(self, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*; fewer only at the end of the file."""
        self._enter("pread")
        return bytes(self._inode.data[offset : offset + size])

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all *buffers*; an injected fault may leave a part of them."""
        data = b"".join(buffers)
        try:
            self._enter("pwritev")
        except _InjectedError as error:
            self._inode.write(data[: error.partial_bytes], offset)
            raise
        self._files.check_room(offset + len(data) - self.size())
        self._inode.write(data, offset)

    def preallocate(self, size: int) -> None:
        """Make the file *size* bytes long if the capacity allows."""
        self._enter("preallocate")
        self._files.check_room(size - self.size())
        self._inode.grow(size)

    def fdatasync(self) -> None:
        """Make contents and length durable; after an injected fault they never will be."""
        try:
            self._enter("fdatasync")
        except _InjectedError:
            self._inode.fail_sync()
            raise
        self._inode.sync()

    def drop_cached(self, offset: int, size: int) -> None:
        """Do nothing: there is no cache."""

    def close(self) -> None:
        """Close and release the lock, if any."""
        if self._open:
            self._open = False
            self._files.unlock(self)

    def _enter(self, operation: str) -> None:
        if not self._open or self._life != self._files.lives:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._files.strike(operation, self._path)


class _InjectedError(OSError):
    partial_bytes = 0


class MemoryFiles:
    """A file system in memory.

    Attributes:
        capacity_bytes: The limit of all files together; beyond it, ENOSPC.
        quota_bytes: The limit of their owner; beyond it, EDQUOT.
        inodes: How many files there may be; a further one is ENOSPC when it is made.
        lives: How many processes have used it: one more than there were crashes.
    """

    def __init__(
        self, *, capacity_bytes: int = 1 << 40, quota_bytes: int = 1 << 40, inodes: int = 1 << 40
    ) -> None:
        self.capacity_bytes, self.quota_bytes, self.inodes = capacity_bytes, quota_bytes, inodes
        self.lives = 1
        self._names: dict[Path, _Inode] = {}
        self._disk_names: dict[Path, _Inode] = {}
        self._pending: list[tuple[Path, dict[Path, _Inode | None]]] = []
        self._locks: dict[Path, MemoryFile] = {}
        self._faults: list[Fault] = []

    def open(self, path: Path, mode: Mode) -> MemoryFile:
        """Open *path*; CREATE always makes a new inode, and is the operation ``create``, too."""
        self.strike("open", path)
        if mode is Mode.CREATE:
            self.strike("create", path)
            if path not in self._names and len(self._names) >= self.inodes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            self._change(path.parent, {path: _Inode()})
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return MemoryFile(self, path, self._names[path])

    def rename(self, source: Path, target: Path) -> None:
        """Give *source* the name *target*, replacing it atomically."""
        self.strike("rename", target)
        self._change(target.parent, {source: None, target: self._names[source]})

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self.strike("remove", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._change(path.parent, {path: None})

    def list(self, directory: Path) -> list[str]:
        """Return the names of files and directories in *directory*, sorted."""
        inside = f"{directory}/"
        names = (str(path) for path in self._names)
        return sorted({n[len(inside) :].split("/", 1)[0] for n in names if n.startswith(inside)})

    def make_dirs(self, directory: Path) -> None:
        """Do nothing but fail as injected: directories exist when a file is in them."""
        self.strike("make_dirs", directory)

    def fsync_dir(self, directory: Path) -> None:
        """Make creations, renames and removals in *directory* durable."""
        self.strike("fsync_dir", directory)
        for parent, changes in self._pending:
            if parent == directory:
                _apply(self._disk_names, changes)
        self._pending = [change for change in self._pending if change[0] != directory]

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Return the capacity and the free part of it."""
        self.strike("disk_usage", directory)
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - self._used_bytes()))

    def lock(self, path: Path) -> MemoryFile:
        """Lock *path* until the returned file is closed or the process crashes."""
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        if path not in self._names:
            self.open(path, Mode.CREATE)
        self._locks[path] = self.open(path, Mode.UPDATE)
        return self._locks[path]

    def unlock(self, file: MemoryFile) -> None:
        """Release the lock that *file* holds, if it holds one."""
        self._locks = {path: held for path, held in self._locks.items() if held is not file}

    def inject(self, fault: Fault) -> None:
        """Make calls fail from now on."""
        self._faults.append(fault)

    def heal(self) -> None:
        """Forget all injected faults."""
        self._faults.clear()

    def strike(self, operation: str, path: Path) -> None:
        """Raise OSError if an injected fault applies to this call."""
        for fault in self._faults:
            if fault.strikes(operation, path):
                injected = _InjectedError(fault.errno, os.strerror(fault.errno), str(path))
                injected.partial_bytes = fault.partial_bytes
                raise injected

    def check_room(self, growth_bytes: int) -> None:
        """Raise ENOSPC if the files would exceed the capacity, EDQUOT if they would the quota."""
        if growth_bytes <= 0:
            return
        wanted = self._used_bytes() + growth_bytes
        for limit, number in (
            (self.capacity_bytes, errno.ENOSPC),
            (self.quota_bytes, errno.EDQUOT),
        ):
            if wanted > limit:
                raise OSError(number, os.strerror(number))

    def crash(self, rng: Random) -> None:
        """Simulate a power failure: keep what was synced and a random part of the rest."""
        for _, changes in self._pending:
            if rng.random() < 0.5:
                _apply(self._disk_names, changes)
        self._names = dict(self._disk_names)
        self._pending.clear()
        for inode in self._names.values():
            inode.crash(rng)
        self._forget_process()

    def kill(self) -> None:
        """Kill the process only: the operating system keeps everything that was written."""
        self._forget_process()

    def _forget_process(self) -> None:
        self._locks.clear()
        self._faults.clear()
        self.lives += 1

    def snapshot(self) -> MemoryFiles:
        """Return a copy of the disk on which everything written so far is durable."""
        copied = MemoryFiles(capacity_bytes=self.capacity_bytes)
        for path, inode in self._names.items():
            file = copied.open(path, Mode.CREATE)
            file.pwritev([inode.data], 0)
            file.fdatasync()
            copied.fsync_dir(path.parent)
        return copied

    def contents(self, path: Path) -> bytearray:
        """Return the bytes of a file, to be read or damaged; changes are durable at once."""
        return self._names[path].data

    def _used_bytes(self) -> int:
        return sum(len(inode.data) for inode in self._names.values())

    def _change(self, directory: Path, changes: dict[Path, _Inode | None]) -> None:
        _apply(self._names, changes)
        self._pending.append((directory, changes))


def _apply(names: dict[Path, _Inode], changes: dict[Path, _Inode | None]) -> None:
    for path, inode in changes.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
