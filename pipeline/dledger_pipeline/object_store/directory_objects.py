"""Objects as files below a directory, such as a mounted volume; several hosts may share it.

An object is written to the same folder under a name that begins with a dot, synced, and then linked
or renamed, so that it is complete and durable under its own name. A link fails if the name is
taken, which makes `create` atomic; a lock file makes `replace` atomic. What a killed writer leaves
begins with a dot and is not an object. Used by `store` only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from dledger_pipeline.errors import (
    AlreadyExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)
from dledger_pipeline.object_store.stored import Listed, Removal, Stored, check_size

_LOCK: Final = ".lock"
_NO_FILE: Final = (errno.ELOOP, errno.EISDIR)
"""Of opening a link, and a folder."""
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{32}")


class DirectoryObjects:
    """Objects below *root*, which is created when the first is written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, name: str, max_bytes: int) -> Stored:
        """Return an object; its version is the hash of its bytes."""
        with self._reported(name), self._opened(name) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            check_size(name, size_bytes, max_bytes)
            data = _read(file, size_bytes)
        return Stored(data=data, version_of=partial(_version, data))

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""
        with self._reported(name), self._opened(name) as file:
            return os.fstat(file.fileno()).st_size

    def put(self, name: str, data: memoryview) -> None:
        """Write an object, replacing one of the same name."""
        with self._reported(name), self._written(name, data) as (temporary, path):
            temporary.replace(path)

    def create(self, name: str, data: memoryview) -> None:
        """Write an object unless there is one."""
        with self._reported(name), self._written(name, data) as (temporary, path):
            try:
                path.hardlink_to(temporary)
            except FileExistsError as error:
                raise AlreadyExists(name) from error

    def replace(self, name: str, data: memoryview, version: str) -> None:
        """Write an object if it has this version; one writer at a time, on all hosts."""
        with self._reported(name), self._locked():
            try:
                with self._opened(name) as file:
                    found = _version(file.read())
            except FileNotFoundError:
                found = ""
            if found != version:
                raise VersionConflict(name)
            self.put(name, data)

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects below the folder, in any order."""
        with self._reported(prefix):
            for path, found in self._files(self._root / prefix):
                if not path.name.startswith("."):
                    yield Listed(
                        name=path.relative_to(self._root).as_posix(),
                        size_bytes=found.st_size,
                        modified_s=found.st_mtime,
                    )

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the root."""
        with self._reported(""):
            if self._root.is_dir():
                yield from (path.name for path in self._root.iterdir() if path.is_dir())

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if it is not there."""
        with self._reported(name):
            (self._root / name).unlink(missing_ok=True)

    def delete_old(self, name: str, before_s: float) -> Removal:
        """Remove an object unless it was written since, while nobody replaces it."""
        path = self._root / name
        with self._reported(name), self._locked():
            try:
                if path.lstat().st_mtime >= before_s:
                    return Removal.YOUNG
            except FileNotFoundError:
                return Removal.GONE
            path.unlink()
        return Removal.GONE

    def sweep(self, before_s: float) -> int:
        """Remove temporary files that killed writers left before then; return how many."""
        with self._reported(""):
            left = [
                path
                for path, found in self._files(self._root)
                if _TEMPORARY.fullmatch(path.name) and found.st_mtime < before_s
            ]
            for path in left:
                path.unlink(missing_ok=True)
        return len(left)

    def _files(self, directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the regular files below *directory*; what goes meanwhile is left out."""
        for path in directory.rglob("*"):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISREG(found.st_mode):
                    yield path, found

    @contextmanager
    def _opened(self, name: str) -> Iterator[io.BufferedReader]:
        """Open an object, which must be a regular file, not a link or a pipe."""
        descriptor = os.open(self._root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123, a descriptor has no path
            _check_regular(descriptor, f"{self._root}/{name}")
            yield file

    @contextmanager
    def _written(self, name: str, data: memoryview) -> Iterator[tuple[Path, Path]]:
        """Yield a synced temporary file and the object's path; sync the folder at the end."""
        path = self._root / name
        _make_durable_directory(path.parent)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with open(temporary, "wb", buffering=0, opener=_made) as file:
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            yield temporary, path
            _sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of all writers: on a file, not on what a link or a pipe of its name is."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._root / _LOCK, flags, 0o640)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise StoreError(f"{self._root}/{_LOCK} is not a file") from error
            raise
        try:
            _check_regular(descriptor, f"{self._root}/{_LOCK}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Raise the store's error for the operating system's."""
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissing(name) from error
        except PermissionError as error:
            raise StoreDenied(f"{self._root}/{name}", str(error)) from error
        except OSError as error:
            raise StoreUnavailable(f"{self._root}/{name}: {error}") from error


def _check_regular(descriptor: int, path: str) -> None:
    """Refuse what is no regular file. Raises StoreError."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise StoreError(f"{path} is not a file")


def _made(path: str, flags: int) -> int:
    """Open a new object; it holds messages, so it is not readable by everyone."""
    return os.open(path, flags, 0o640)


def _read(file: io.BufferedReader, size_bytes: int) -> pa.Buffer:
    """Return the file's bytes, in memory that Arrow keeps for the next object."""
    data = pa.allocate_buffer(size_bytes)
    return data.slice(0, file.readinto(memoryview(data)))


def _version(data: bytes | pa.Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


def _make_durable_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_durable_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
