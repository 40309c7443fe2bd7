"""What lack of room looks like, told in one place: no block left, no inode left, a quota used up.

A disk says it when a file is made, written, preallocated, renamed, or its directory made, and not
only when data is written. Everything of store and spool that does one of these tells it by this
module, as `DiskFull`: nothing happened, and the same call works once there is room. A failed *sync*
of what counts already is never just that: what was written before may be lost, so it stays the
failure of the disk that it is. The sync of a file that has no name yet may be: the file is thrown
away.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dledger.errors import DiskFull
from dledger.files.files import Files

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""EDQUOT is what NFS, and the quotas of users, groups and projects, say for ENOSPC."""


def is_full(error: BaseException | None) -> bool:
    """Whether an error of the operating system says that there is no room."""
    return isinstance(error, OSError) and error.errno in _FULL


def refuse_full_disk(error: OSError, what: str) -> None:
    """Raise `DiskFull` if that is what the error of a call that takes room says."""
    if is_full(error):
        raise DiskFull(f"no room to {what}: {error}") from error


@contextmanager
def telling_full_disk(what: str) -> Iterator[None]:
    """Raise `DiskFull` instead of an error that says that there is no room."""
    try:
        yield
    except OSError as error:
        refuse_full_disk(error, what)
        raise


@contextmanager
def making(files: Files, temporary: Path, what: str) -> Iterator[None]:
    """Make a file under its temporary name and give it its own; without room nothing is left of it.

    Raises:
        DiskFull: There is no room; the temporary file is gone.
        OSError: Another failure, for which it stays.
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            with suppress(OSError):
                files.remove(temporary)
        refuse_full_disk(error, what)
        raise
