"""Replacing a file atomically: temporary, fdatasync, rename, directory fsync."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dledger.errors import CorruptFile, DiskFull, StorageError
from dledger.files.files import Files, Mode

_STEP_BYTES: Final = 4 << 20
_STEP_PIECES: Final = 512
"""A write takes 1,024 buffers."""


def load_file(files: Files, path: Path) -> bytes | None:
    """Return the contents, or None if there is no such file. What it returns is durable.

    The process that wrote it may have been killed between rename and directory fsync. Then the
    name is there, but a power cut would take it back: a vote told from such a file is forgotten.

    Raises:
        CorruptFile: The disk cannot read it back.
        StorageError: The disk cannot sync its name.
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
    """Make *data* the contents of *path*; durable on return, old or new after a crash.

    Raises:
        DiskFull: There is no room; the old contents stay.
        StorageError: The disk failed; old or new contents may be there.
    """
    replace_file_by_parts(files, path, (data,))


def replace_file_by_parts(files: Files, path: Path, parts: Iterable[bytes]) -> None:
    """Do as `replace_file` with *parts*, joined.

    Much is written and synced in steps, so that the log's own syncs need not wait for all of it.
    Parts are taken when they are written, so that they need not be in memory together.

    Raises:
        DiskFull: There is no room; the old contents stay.
        StorageError: The disk failed; old or new contents may be there.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        file = files.open(temporary, Mode.CREATE)
        try:
            position = 0
            for step in _steps(parts):
                file.pwritev(step, position)
                file.fdatasync()
                position += sum(map(len, step))
        finally:
            file.close()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"no room to write {path}") from error
        raise StorageError(f"cannot write {path}: {error}") from error
    try:
        files.rename(temporary, path)
        files.fsync_dir(path.parent)
    except OSError as error:
        raise StorageError(f"cannot replace {path}: {error}") from error


def _steps(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Gather parts for a write and a sync; each part is a small one."""
    step, size_bytes = list[bytes](), 0
    for part in parts:
        if step and (size_bytes + len(part) > _STEP_BYTES or len(step) == _STEP_PIECES):
            yield step
            step, size_bytes = [], 0
        step.append(part)
        size_bytes += len(part)
    if step:
        yield step
