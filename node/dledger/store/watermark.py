"""The durable watermark: how far the log was synced, so that rot is never taken for a torn tail.

A preallocated file of two slots that are written alternately, each on a page of its own. A crash
while one slot is written leaves the other. Owned by `CommitLog`; its writer calls are serial.
"""

from __future__ import annotations

from pathlib import Path

from dledger.errors import CorruptFile
from dledger.store.files import File, Files, Mode
from dledger.store.format import (
    SLOT_BYTES,
    SLOT_STRIDE_BYTES,
    WATERMARK_BYTES,
    Base,
    Mark,
    decode_mark,
    encode_mark,
)

NAME = "watermark"
EMPTY = Mark(sequence=0, base=Base(), index=0, chain=0)


def format_log(files: Files, directory: Path) -> None:
    """Make *directory* an empty commit log; a later missing watermark is then a lost one.

    Part of formatting a disk, before the identity is written; see `identity.load_or_format`.
    """
    files.make_dirs(directory)
    files.fsync_dir(directory.parent)
    temporary = directory / f"{NAME}.new"
    file = files.open(temporary, Mode.CREATE)
    try:
        file.pwritev([encode_mark(EMPTY).ljust(WATERMARK_BYTES, b"\0")], 0)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, directory / NAME)
    files.fsync_dir(directory)


class Watermark:
    """The open watermark file; `mark` is what is durable."""

    def __init__(self, file: File, mark: Mark, other_base: Base | None) -> None:
        self._file = file
        self.mark = mark
        self._other_base = other_base

    @classmethod
    def open(cls, files: Files, directory: Path, mode: Mode = Mode.UPDATE) -> Watermark:
        """Read the newest valid slot.

        Raises:
            CorruptFile: The file is missing, or neither slot is valid.
        """
        path = directory / NAME
        try:
            file = files.open(path, mode)
        except FileNotFoundError as error:
            raise CorruptFile(str(path), "missing; formatting the disk created it") from error
        *older, newest = _marks(file, path)
        return cls(file, newest, older[0].base if older else None)

    def advance(self, *, index: int, chain: int) -> None:
        """Move the mark, durably. Lower is allowed: that precedes a truncation.

        Raises:
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        self._write(self.mark.base, index=index, chain=chain)

    def rebase(self, base: Base, *, index: int, chain: int) -> None:
        """Let the log begin behind *base* from now on, durably; *index* is at least its index.

        Both slots are written, so that the loss of one never asks for what is dropped next.

        Raises:
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        for _ in range(2):
            self._write(base, index=index, chain=chain)

    def settle(self) -> None:
        """Make durable what was read, before anything is removed or promised on its word.

        The process that wrote it may have been killed before its sync, or its sync may have failed.

        Raises:
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        self._put(self.mark)
        if self._other_base not in {None, self.mark.base}:  # `rebase` was cut short
            self.advance(index=self.mark.index, chain=self.mark.chain)

    def _write(self, base: Base, *, index: int, chain: int) -> None:
        mark = Mark(sequence=self.mark.sequence + 1, base=base, index=index, chain=chain)
        self._put(mark)
        self.mark = mark

    def _put(self, mark: Mark) -> None:
        self._file.pwritev([encode_mark(mark)], mark.sequence % 2 * SLOT_STRIDE_BYTES)
        self._file.fdatasync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _marks(file: File, path: Path) -> list[Mark]:
    """Return the marks of the valid slots, the newest last."""
    marks: list[Mark] = []
    reasons: list[str] = []
    for slot in (0, 1):
        try:
            marks.append(decode_mark(file.pread(SLOT_BYTES, slot * SLOT_STRIDE_BYTES)))
        except ValueError as error:
            reasons.append(f"slot {slot}: {error}")
    if not marks:
        raise CorruptFile(str(path), "; ".join(reasons))
    return sorted(marks, key=lambda mark: mark.sequence)
