"""Creates, reads, removes and sets aside spool files. Used by `Spool`, `opening` and `rejected`.

A file gets its final name once it is preallocated and its header synced. A damaged file is never
removed: after its intact messages were replayed, it moves to ``quarantine/``.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.files.files import Files, Mode
from dledger.files.full import making, telling_full_disk
from dledger.spool.format import FILE_HEADER_BYTES, FileHeader, encode_file_header
from dledger.spool.identity import SpoolIdentity, header_of

QUARANTINE: Final = "quarantine"
NEW_SUFFIX: Final = ".new"
_NAME = re.compile(r"(\d{20})\.spool")


@dataclass(slots=True)
class SpoolFile:
    """One file and its messages [first, last], including lost ones.

    Attributes:
        path: Its path.
        first: Sequence of its first message.
        last: Sequence of its last message; first - 1 while it is empty.
        end: The byte after its last record.
        capacity: Its length in bytes.
        damaged: Whether it is damaged, and so must be kept.
    """

    path: Path
    first: int
    last: int
    end: int
    capacity: int
    damaged: bool = False

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.last - self.first + 1


def file_name(first_sequence: int) -> str:
    """Return the name of the file that starts at this sequence."""
    return f"{first_sequence:020d}.spool"


def first_sequences(files: Files, directory: Path) -> list[int]:
    """Return the first sequences of the spool files in *directory*, ascending."""
    matches = (_NAME.fullmatch(name) for name in files.list(directory))
    return sorted(int(match[1]) for match in matches if match)


def create_file(
    files: Files, directory: Path, identity: SpoolIdentity, *, first: int, capacity: int
) -> SpoolFile:
    """Create a file durably: preallocate, write and sync the header, rename, fsync.

    Raises:
        DiskFull: There is no room for it; nothing was created.
        OSError: Another failure.
    """
    path = directory / file_name(first)
    temporary = path.with_name(path.name + NEW_SUFFIX)
    with making(files, temporary, f"make a spool file of {capacity} bytes"):
        _prepare(files, temporary, header_of(identity, first_sequence=first), capacity)
        files.rename(temporary, path)
    files.fsync_dir(directory)
    return SpoolFile(
        path=path, first=first, last=first - 1, end=FILE_HEADER_BYTES, capacity=capacity
    )


def _prepare(files: Files, path: Path, header: FileHeader, capacity: int) -> None:
    with closing(files.open(path, Mode.CREATE)) as file:
        file.preallocate(capacity)
        file.pwritev([encode_file_header(header)], 0)
        file.fdatasync()


def remove_leftovers(files: Files, directory: Path) -> None:
    """Remove files that a crash left incomplete. Raises OSError."""
    for name in files.list(directory):
        if name.endswith(NEW_SUFFIX):
            files.remove(directory / name)


def set_aside(files: Files, path: Path) -> Path:
    """Move a damaged file into ``quarantine/``; return its new path. Raises DiskFull, OSError."""
    directory = path.parent / QUARANTINE
    with telling_full_disk(f"set {path} aside"):
        files.make_dirs(directory)
        target = directory / unused_name(files, directory, path.name)
        files.rename(path, target)
    files.fsync_dir(directory)
    files.fsync_dir(path.parent)
    return target


def unused_name(files: Files, directory: Path, name: str) -> str:
    """Return *name*, or *name* with the first number that makes it unique in *directory*."""
    taken = set(files.list(directory))
    number = 1
    unused = name
    while unused in taken:
        number += 1
        unused = f"{name}.{number}"
    return unused


def read_file(files: Files, path: Path) -> bytes:
    """Return the contents of a file. Raises OSError."""
    with closing(files.open(path, Mode.READ)) as file:
        return file.pread(file.size(), 0)


def rewrite_file(files: Files, path: Path, data: bytes) -> None:
    """Write a file's contents again, and sync it. Raises OSError."""
    with closing(files.open(path, Mode.UPDATE)) as file:
        file.pwritev([data], 0)
        file.fdatasync()


def file_sizes(files: Files, directory: Path) -> int:
    """Return the total size of the files directly in *directory*, in bytes. Raises OSError."""
    total = 0
    for name in files.list(directory):
        with closing(files.open(directory / name, Mode.READ)) as file:
            total += file.size()
    return total
