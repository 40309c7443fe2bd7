"""Every disk that a power cut may leave, not a random one: for the crash enumerator.

`MemoryFiles.crash` draws one outcome; `PowerFiles.images` lists them all, under the assumptions of
docs/internals/storage-format.md: each 512-byte sector is any of its versions since it was last
synced, each file has any of its lengths since then, each directory operation happened or not. After
a sync that failed, a later one makes durable only what was written again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from math import prod
from pathlib import Path

from dledger.files.files import Buffer, DiskUsage, File, Files, Mode

SECTOR_BYTES = 512
_ZERO = bytes(SECTOR_BYTES)

Content = tuple[int, tuple[bytes, ...]]
"""A file's length in bytes, and its sectors, the last one padded with zeros."""

Image = frozenset[tuple[Path, Content]]
"""A whole disk at rest: what is in it is durable."""

EMPTY: Image = frozenset()


class TooManyImagesError(AssertionError):
    """A history leaves more images than can be tried: make it smaller."""


class _Inode:
    """The newest contents, and for each sector and the length what the disk may have instead."""

    def __init__(self, content: Content = (0, ())) -> None:
        self.size, sectors = content
        self.sectors = list(sectors)
        self._old: dict[int, list[bytes]] = {}
        self._old_sizes: list[int] = []
        self._dropped: set[int] = set()
        self._contents: list[Content] | None = None

    def copy(self) -> _Inode:
        copied = _Inode((self.size, tuple(self.sectors)))
        copied._old = {number: list(old) for number, old in self._old.items()}
        copied._old_sizes, copied._dropped = list(self._old_sizes), set(self._dropped)
        return copied

    def read(self, size: int, offset: int) -> bytes:
        stop = min(offset + size, self.size)
        first = offset // SECTOR_BYTES
        data = b"".join(self.sectors[first : -(-stop // SECTOR_BYTES)])
        return data[offset - first * SECTOR_BYTES : stop - first * SECTOR_BYTES]

    def write(self, data: bytes, offset: int) -> None:
        self.grow(offset + len(data))
        at = offset
        while at < offset + len(data):
            number, start = divmod(at, SECTOR_BYTES)
            piece = data[at - offset : at - offset + SECTOR_BYTES - start]
            before = self.sectors[number]
            after = before[:start] + piece + before[start + len(piece) :]
            self._replace(number, before, after)
            at += len(piece)

    def _replace(self, number: int, before: bytes, after: bytes) -> None:
        self._dropped.discard(number)
        if after != before:
            self._old.setdefault(number, []).append(before)
            self.sectors[number] = after
            self._contents = None

    def grow(self, size: int) -> None:
        if size > self.size:
            self._old_sizes.append(self.size)
            self.size = size
            missing = -(-size // SECTOR_BYTES) - len(self.sectors)
            self.sectors += [_ZERO] * missing
            self._contents = None

    def sync(self) -> None:
        self._old = {number: self._old[number] for number in self._dropped}
        self._old_sizes.clear()
        self._contents = None

    def fail_sync(self) -> None:
        """Behave as Linux does: the pages count as clean, on the disk or not."""
        self._dropped.update(self._old)

    def count(self) -> int:
        """Return an upper bound of `len(contents())`."""
        return (len(self._old_sizes) + 1) * prod(len(old) + 1 for old in self._old.values())

    def contents(self) -> list[Content]:
        """Return what the disk may have, the newest first."""
        if self._contents is None:
            sizes = dict.fromkeys((self.size, *self._old_sizes))
            found = (content for size in sizes for content in self._of_size(size))
            self._contents = list(dict.fromkeys(found))
        return self._contents

    def _of_size(self, size: int) -> Iterator[Content]:
        count = -(-size // SECTOR_BYTES)
        versions = [
            dict.fromkeys((new, *self._old.get(number, ())))
            for number, new in enumerate(self.sectors[:count])
        ]
        for sectors in product(*versions):
            yield size, _cut(sectors, size)


def _cut(sectors: tuple[bytes, ...], size: int) -> tuple[bytes, ...]:
    """Return the sectors with zeros behind byte *size*, which is in the last one."""
    used = size % SECTOR_BYTES
    if not used:
        return sectors
    return (*sectors[:-1], sectors[-1][:used].ljust(SECTOR_BYTES, b"\0"))


_Names = dict[Path, _Inode]
_Changes = dict[Path, _Inode | None]


class PowerFiles(Files):
    """A file system in memory.

    Attributes:
        before: Called before each call that changes the disk.
        calls: What was done so far, one line for each of these calls.
        failing_call: The number of the call that fails with EIO; those behind it work.
    """

    def __init__(
        self, image: Image = EMPTY, before: Callable[[PowerFiles], None] | None = None
    ) -> None:
        self.calls: list[str] = []
        self.before = before
        self.failing_call = -1
        self._names: _Names = {path: _Inode(content) for path, content in sorted(image)}
        self._durable = dict(self._names)
        self._pending: list[tuple[Path, _Changes]] = []
        self._locks: set[Path] = set()

    def images(self, limit: int) -> Iterator[Image]:
        """Yield each disk that a power cut now may leave; some of them may be the same.

        Raises:
            TooManyImagesError: There are more than *limit*.
        """
        disks = [self._names_if(chosen) for chosen in product((1, 0), repeat=len(self._pending))]
        count = sum(prod(inode.count() for inode in names.values()) for names in disks)
        if count > limit:
            raise TooManyImagesError(f"{count} images behind {self.calls[-1:]}, at most {limit}")
        for names in disks:
            paths = list(names)
            for contents in product(*(names[path].contents() for path in paths)):
                yield frozenset(zip(paths, contents, strict=True))

    def _names_if(self, chosen: Sequence[int]) -> _Names:
        names = dict(self._durable)
        for (_, changes), happened in zip(self._pending, chosen, strict=True):
            if happened:
                _apply(names, changes)
        return names

    def fork(self, before: Callable[[PowerFiles], None]) -> PowerFiles:
        """Return what the next process has after a kill: all that was written, durable or not."""
        inodes: dict[_Inode, _Inode] = {}
        changed = [changes.values() for _, changes in self._pending]
        for inode in chain(self._names.values(), self._durable.values(), *changed):
            if inode is not None and inode not in inodes:
                inodes[inode] = inode.copy()
        forked = type(self)(EMPTY, before)
        forked.calls = list(self.calls)
        forked._names = {path: inodes[inode] for path, inode in self._names.items()}
        forked._durable = {path: inodes[inode] for path, inode in self._durable.items()}
        forked._pending = [
            (directory, {path: inode and inodes[inode] for path, inode in changes.items()})
            for directory, changes in self._pending
        ]
        return forked

    def open(self, path: Path, mode: Mode) -> PowerFile:
        """Open *path*; CREATE always makes a new inode."""
        if mode is Mode.CREATE:
            self.change(f"create {path.name}")
            self._rename_all(path.parent, {path: _Inode()})
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return PowerFile(self, path.name, self._names[path])

    def rename(self, source: Path, target: Path) -> None:
        """Give *source* the name *target*, replacing it atomically."""
        self.change(f"rename {source.name} -> {target.name}")
        self._rename_all(target.parent, {source: None, target: self._names[source]})

    def remove(self, path: Path) -> None:
        """Remove a file."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.change(f"remove {path.name}")
        self._rename_all(path.parent, {path: None})

    def list(self, directory: Path) -> list[str]:
        """Return the names of files and directories in *directory*, sorted."""
        depth = len(directory.parts)
        return sorted({path.parts[depth] for path in self._names if directory in path.parents})

    def make_dirs(self, directory: Path) -> None:
        """Do nothing: directories exist when a file is in them."""

    def fsync_dir(self, directory: Path) -> None:
        """Make creations, renames and removals in *directory* durable."""
        if not self.change(f"fsync_dir {directory.name}"):
            return
        for parent, changes in self._pending:
            if parent == directory:
                _apply(self._durable, changes)
        self._pending = [change for change in self._pending if change[0] != directory]

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Return that there is room."""
        return DiskUsage(1 << 40, 1 << 40)

    def lock(self, path: Path) -> PowerFile:
        """Refuse a second holder; nothing here ever lets a lock go."""
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        self._locks.add(path)
        return self.open(path, Mode.UPDATE if path in self._names else Mode.CREATE)

    def change(self, call: str) -> bool:
        """Let the power go before *call*, write it down, and say whether to do it.

        Raises:
            OSError: It is the one that fails.
        """
        if self.before:
            self.before(self)
        self.calls.append(call)
        if len(self.calls) == self.failing_call:
            raise OSError(errno.EIO, os.strerror(errno.EIO), call)
        return True

    def _rename_all(self, directory: Path, changes: _Changes) -> None:
        _apply(self._names, changes)
        self._pending.append((directory, changes))


class PowerFile(File):
    """An open file of `PowerFiles`."""

    def __init__(self, files: PowerFiles, name: str, inode: _Inode) -> None:
        self._files, self._name, self._inode = files, name, inode

    def size(self) -> int:
        """Return the length in bytes."""
        return self._inode.size

    def pread(self, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*; fewer only at the end of the file."""
        return self._inode.read(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all *buffers*."""
        data = b"".join(buffers)
        try:
            self._files.change(f"pwritev {self._name} {len(data)} bytes at {offset}")
        except OSError:
            self._inode.write(data[: len(data) // 2], offset)
            raise
        self._inode.write(data, offset)

    def preallocate(self, size: int) -> None:
        """Make the file *size* bytes long."""
        self._files.change(f"preallocate {self._name} {size} bytes")
        self._inode.grow(size)

    def fdatasync(self) -> None:
        """Make contents and length durable, but not the name."""
        try:
            done = self._files.change(f"fdatasync {self._name}")
        except OSError:
            self._inode.fail_sync()
            raise
        if done:
            self._inode.sync()

    def drop_cached(self, offset: int, size: int) -> None:
        """Do nothing: reads see what was written."""

    def close(self) -> None:
        """Do nothing."""


def _apply(names: _Names, changes: _Changes) -> None:
    for path, inode in changes.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def newest(files: PowerFiles) -> Image:
    """Return the disk as the running process sees it."""
    return frozenset(
        (path, (inode.size, tuple(inode.sectors))) for path, inode in files._names.items()
    )


def differences(image: Image, other: Image) -> list[str]:
    """Say where *image* is not what *other* is, for the message of a failed check."""
    ours, theirs = dict(image), dict(other)
    return [
        _difference(path, ours.get(path), theirs.get(path))
        for path in sorted({*ours, *theirs})
        if ours.get(path) != theirs.get(path)
    ]


def _difference(path: Path, ours: Content | None, theirs: Content | None) -> str:
    if ours is None or theirs is None:
        return f"{path.name} is {'missing' if ours is None else 'there'}"
    old = [n for n, (a, b) in enumerate(zip(ours[1], theirs[1], strict=False)) if a != b]
    return f"{path.name} has {ours[0]} bytes of {theirs[0]}, and old sectors {old}"
