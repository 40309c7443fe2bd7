"""The durable watermark: how far the log was synced, so that rot is never mistaken for a torn tail.

A file with two slots, written alternately and each on its own page, because a crash can tear the
slot being written: the other one then still holds the previous watermark. They are followed by the
identity rows of the last segment (`shadow_index`), which the same sync makes durable. ADR 2 says
why there is a watermark. Owned by `CommitLog`; only its writer thread changes it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dledger.errors import CorruptFile
from dledger.files.files import File, Files, Mode
from dledger.files.full import making, telling_full_disk
from dledger.store.format import (
    SLOT_BYTES,
    SLOT_STRIDE_BYTES,
    WATERMARK_BYTES,
    Base,
    Mark,
    decode_mark,
    encode_mark,
)
from dledger.store.shadow_index import ROW_BYTES

NAME = "watermark"
_GROWTH_BYTES = 1 << 16
EMPTY = Mark(sequence=0, base=Base(), index=0, chain=0)


def format_log(files: Files, directory: Path) -> None:
    """Create an empty commit log in *directory*.

    Part of formatting a disk, before the identity is written (`identity.load_or_format`). So on a
    formatted disk a missing watermark means that it was lost, not that there never was one.
    """
    with telling_full_disk(f"make {directory}"):
        files.make_dirs(directory)
    files.fsync_dir(directory.parent)
    temporary = directory / f"{NAME}.new"
    with making(files, temporary, f"make a log in {directory}"):
        with closing(files.open(temporary, Mode.CREATE)) as file:
            file.pwritev([encode_mark(EMPTY).ljust(WATERMARK_BYTES, b"\0")], 0)
            file.fdatasync()
        files.rename(temporary, directory / NAME)
    files.fsync_dir(directory)


class Watermark:
    """The open watermark file; `mark` is what is durable."""

    def __init__(self, file: File, mark: Mark) -> None:
        self._file = file
        self._size = max(file.size(), WATERMARK_BYTES)
        self.mark = mark

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
        return cls(file, _newest(file, path))

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return self._size

    def rows(self) -> bytes:
        """Return the bytes of the identity rows; empty if the disk cannot read them."""
        try:
            return self._file.pread(max(0, self._file.size() - WATERMARK_BYTES), WATERMARK_BYTES)
        except OSError:
            return b""

    def reserve(self, count: int) -> None:
        """Allocate room for *count* rows, filled with zeros, so that no sync has to allocate.

        Raises:
            DiskFull: There is no room.
            OSError: The disk failed.
        """
        missing = WATERMARK_BYTES + count * ROW_BYTES - self._size
        if missing > 0:
            growth = bytes(-(-missing // _GROWTH_BYTES) * _GROWTH_BYTES)
            with telling_full_disk("keep the identities of records"):
                self._file.pwritev([growth], self._size)
            self._size += len(growth)

    def advance(self, *, index: int, chain: int, at: int = 0, rows: bytes = b"") -> None:
        """Move the watermark durably, and write *rows* from row number *at* on with it.

        It may move down, before a truncation.

        Raises:
            DiskFull: A copy-on-write file system has no room; the watermark stays.
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        if rows:
            with telling_full_disk("keep the identities of records"):
                self._file.pwritev([rows], WATERMARK_BYTES + at * ROW_BYTES)
        self._write(self.mark.base, index=index, chain=chain)

    def rebase(self, base: Base, *, index: int, chain: int) -> None:
        """Record durably that the log begins after *base*; *index* is at least the base's index.

        Both slots are written: if only one were, losing it would bring back the old base, and
        recovery would look for segments that have been removed.

        Raises:
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        for _ in range(2):
            self._write(base, index=index, chain=chain)

    def renew(self, rows: bytes) -> None:
        """Write both slots and the rows again, durably, because some of it was damaged.

        Raises:
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        self._file.pwritev([rows], WATERMARK_BYTES)
        self.rebase(self.mark.base, index=self.mark.index, chain=self.mark.chain)

    def is_good(self, files: Files, directory: Path, rows: bytes) -> bool:
        """Whether both slots on the disk are valid, the newest is `mark`, and the rows match."""
        try:
            file = files.open(directory / NAME, Mode.COLD)
            slots = [decode_mark(file.pread(SLOT_BYTES, n * SLOT_STRIDE_BYTES)) for n in (0, 1)]
            found = file.pread(len(rows), WATERMARK_BYTES)
        except (ValueError, OSError):
            return False
        return self.mark in slots and found == rows

    def settle(self) -> None:
        """Make the mark that was read durable, before anything relies on it.

        The process that wrote it may have been killed before its sync, or the sync may have failed.

        Raises:
            OSError: The write or sync failed; nothing may be assumed about the disk.
        """
        self._put(self.mark)

    def _write(self, base: Base, *, index: int, chain: int) -> None:
        mark = Mark(sequence=self.mark.sequence + 1, base=base, index=index, chain=chain)
        self._put(mark)
        self.mark = mark

    def _put(self, mark: Mark) -> None:
        with telling_full_disk("move the watermark"):
            self._file.pwritev([encode_mark(mark)], mark.sequence % 2 * SLOT_STRIDE_BYTES)
        self._file.fdatasync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _newest(file: File, path: Path) -> Mark:
    marks: list[Mark] = []
    reasons: list[str] = []
    for slot in (0, 1):
        try:
            marks.append(decode_mark(file.pread(SLOT_BYTES, slot * SLOT_STRIDE_BYTES)))
        except ValueError as error:
            reasons.append(f"slot {slot}: {error}")
    if not marks:
        raise CorruptFile(str(path), "; ".join(reasons))
    return max(marks, key=lambda mark: mark.sequence)
