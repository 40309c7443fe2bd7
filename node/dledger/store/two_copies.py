"""A small state file that is kept twice, in two files, so that one damaged byte costs nothing.

Written one after the other, each whole and durable before the next: whatever rests on the contents
is said only after the second. So at any moment at least one file is whole, and what was said is in
both. The copies never take turns: of two that do, losing the newer one would bring the older back,
and with it a vote that was forgotten. Reading takes the newer whole copy and writes the other again
before anything rests on it. Used for the hard state and the identity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from dledger.errors import CorruptFile, DiskFull, StorageError
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files

logger = logging.getLogger(__name__)

_SECOND: Final = ".copy"
OnMended = Callable[[str], None]
"""Told the name of a copy that was written again, because it was damaged, missing or older."""
_T = TypeVar("_T")


def both(path: Path) -> tuple[Path, Path]:
    """Return the two files of what is kept at *path*."""
    return path, path.with_name(path.name + _SECOND)


class TwoCopies(Generic[_T]):
    """What two files hold, of which each is replaced atomically.

    Args:
        path: The first file; the second lies beside it.
        encode: Returns a file's contents.
        decode: Parses them; raises CorruptFile or NewerFormat, and names the path.
        rank: Of two values of one disk's history, the later one's is the higher.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        encode: Callable[[_T], bytes],
        decode: Callable[[bytes, Path], _T],
        rank: Callable[[_T], Any],
    ) -> None:
        self._files = files
        self.paths = both(path)
        self._encode, self._decode, self._rank = encode, decode, rank

    def exists(self) -> bool:
        """Whether there is a file, whole or not."""
        names = self._files.list(self.paths[0].parent)
        return any(path.name in names for path in self.paths)

    def read(self) -> _T | None:
        """Return what the newer whole copy holds; None if there is no file. Nothing is written.

        Raises:
            CorruptFile: No copy is whole, or two that are cannot be of one history.
            NewerFormat: A newer version wrote one of them.
            StorageError: The directory cannot be synced.
        """
        return self._newest(self._found())

    def load(self, on_mended: OnMended = lambda _: None) -> _T | None:
        """Return the same; the other copy is as new on return, and was told if it was not before.

        Raises:
            CorruptFile, NewerFormat: As in `read`.
            StorageError: The disk failed.
        """
        found = self._found()
        newest = self._newest(found)
        if newest is None:
            return None
        for path, copy in zip(self.paths, found, strict=True):
            if copy != newest:
                self._mend(path, newest, _why(copy))
                on_mended(path.name)
        return newest

    def save(self, value: _T) -> None:
        """Make both copies *value*, one after the other; durable on return.

        Raises:
            DiskFull: There is no room. The first may be written: nothing may rest on that before
                a later call returns.
            StorageError: The disk failed.
        """
        data = self._encode(value)
        for path in self.paths:
            replace_file(self._files, path, data)

    def _found(self) -> list[_T | CorruptFile | None]:
        return [self._load(path) for path in self.paths]

    def _load(self, path: Path) -> _T | CorruptFile | None:
        try:
            data = load_file(self._files, path)
            return None if data is None else self._decode(data, path)
        except CorruptFile as error:
            return error

    def _newest(self, found: list[_T | CorruptFile | None]) -> _T | None:
        whole = [copy for copy in found if copy is not None and not isinstance(copy, CorruptFile)]
        damaged = [copy for copy in found if isinstance(copy, CorruptFile)]
        if not whole:
            if damaged:
                raise CorruptFile(str(self.paths[0]), "; ".join(str(error) for error in damaged))
            return None
        newest = max(whole, key=self._rank)
        if any(copy != newest and self._rank(copy) == self._rank(newest) for copy in whole):
            raise CorruptFile(str(self.paths[0]), "it and its copy contradict each other")
        return newest

    def _mend(self, path: Path, value: _T, why: str) -> None:
        """Write one copy again. Without room it goes: an older one must not be read once more."""
        try:
            replace_file(self._files, path, self._encode(value))
        except DiskFull:
            logger.error("%s is %s, and there is no room to write it again", path, why)
            self._remove(path)
        else:
            logger.warning("%s was %s; it was written again from its other copy", path, why)

    def _remove(self, path: Path) -> None:
        try:
            if path.name in self._files.list(path.parent):
                self._files.remove(path)
            self._files.fsync_dir(path.parent)
        except OSError as error:
            raise StorageError(f"cannot remove {path}: {error}") from error


def _why(copy: object) -> str:
    if copy is None:
        return "missing"
    return f"damaged ({copy.reason})" if isinstance(copy, CorruptFile) else "older"
