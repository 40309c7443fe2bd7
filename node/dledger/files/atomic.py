"""Replaces a file atomically: temporary file, fdatasync, rename, directory fsync.

Used for every small file of the store and the spool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from dledger.errors import CorruptFile, StorageError
from dledger.files.files import Files, Mode
from dledger.files.full import making

_STEP_BYTES: Final = 4 << 20
_STEP_PIECES: Final = 512
"""A vectored write takes at most 1,024 buffers."""


def load_file(files: Files, path: Path) -> bytes | None:
    """Return the contents, or None if there is no such file. What it returns is durable.

    The process that wrote it may have been killed between rename and directory fsync. Then the
    name exists but may be lost in a power failure, and with it a vote that was already sent. So
    the directory is synced here.

    Raises:
        CorruptFile: It cannot be read.
        StorageError: Its directory cannot be synced.
    """
    try:
        file = files.open(path, Mode.READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorruptFile(str(path), f"cannot be opened: {error}") from error
    try:
        data = file.pread(file.size(), 0)
    except OSError as error:
        raise CorruptFile(str(path), f"cannot be read: {error}") from error
    finally:
        file.close()
    try:
        files.fsync_dir(path.parent)
    except OSError as error:
        raise StorageError(f"cannot sync the name of {path}: {error}") from error
    return data


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replace the contents of *path*; durable on return. After a crash they are old or new.

    Raises:
        DiskFull: There is no room; the old contents stay.
        StorageError: The disk failed; old or new contents may be there.
    """
    replace_file_by_parts(files, path, (data,))


def replace_file_by_parts(files: Files, path: Path, parts: Iterable[bytes]) -> None:
    """Replace the contents of *path* by *parts*, joined; see `replace_file`.

    Large contents are written and synced in steps, so that the log's own syncs need not wait for
    all of it. Each part is requested when it is written, so they are not all in memory at once.

    Raises:
        DiskFull: There is no room; the old contents stay.
        StorageError: The disk failed; old or new contents may be there.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        with making(files, temporary, f"write {path}"):
            _write_steps(files, temporary, parts)
            files.rename(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error
    try:
        files.fsync_dir(path.parent)
    except OSError as error:
        raise StorageError(f"cannot replace {path}: {error}") from error


def _write_steps(files: Files, path: Path, parts: Iterable[bytes]) -> None:
    position = 0
    with closing(files.open(path, Mode.CREATE)) as file:
        for step in _steps(parts):
            file.pwritev(step, position)
            file.fdatasync()
            position += sum(map(len, step))


def _steps(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group small parts into steps of one write and one sync."""
    step, size_bytes = list[bytes](), 0
    for part in parts:
        if step and (size_bytes + len(part) > _STEP_BYTES or len(step) == _STEP_PIECES):
            yield step
            step, size_bytes = [], 0
        step.append(part)
        size_bytes += len(part)
    if step:
        yield step
