"""Keeps messages that the group refused permanently, in separate files of the spool's format.

A file ``rejected/<sequence of its first message>.spool`` holds the records with their original
sequences and the group's reason. It is written and synced before the replay continues after them.
This program never removes it. Used by `Spool` and `opening`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dledger.files.files import File, Files, Mode
from dledger.files.full import telling_full_disk
from dledger.spool.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    encode_file_header,
    encode_record,
    scan,
)
from dledger.spool.identity import SpoolIdentity
from dledger.spool.payload import Message, decode_message, encode_message
from dledger.spool.spool_files import file_name, file_sizes, read_file, rewrite_file, unused_name

DIRECTORY: Final = "rejected"


class Rejected(NamedTuple):
    """A rejected message, with the group's reason in *reason*, and its sequence in the spool."""

    sequence: int
    message: Message


def read_rejected(files: Files, directory: Path, identity: SpoolIdentity) -> Iterator[Rejected]:
    """Yield the rejected messages, file by file; damaged and torn records are skipped."""
    for name in files.list(directory / DIRECTORY):
        data = read_file(files, directory / DIRECTORY / name)
        records = scan(data, stamp=identity.stamp, first=1, start=FILE_HEADER_BYTES).records
        for found in records:
            with suppress(ValueError):
                yield Rejected(found.sequence, decode_message(found.payload, found.version))


def settle_rejected(
    files: Files, directory: Path, identity: SpoolIdentity, *, replayed: int
) -> set[int]:
    """Return the sequences above *replayed* that are durably rejected, and need no replay.

    A killed process may have left them unsynced, and a failed sync may have marked their pages
    clean, so the files are written again and synced first. Raises OSError.
    """
    beyond: set[int] = set()
    for name in files.list(directory / DIRECTORY):
        path = directory / DIRECTORY / name
        data = read_file(files, path)
        records = scan(data, stamp=identity.stamp, first=1, start=FILE_HEADER_BYTES).records
        unsure = [found for found in records if found.sequence > replayed]
        if unsure:
            rewrite_file(files, path, data)
            beyond.update(found.sequence for found in unsure)
    if beyond:
        files.fsync_dir(directory / DIRECTORY)
    return beyond


class RejectedFile:
    """The file that this process writes, created when needed. Calls must be serialized."""

    def __init__(self, files: Files, directory: Path, identity: SpoolIdentity) -> None:
        self._files = files
        self._directory = directory / DIRECTORY
        self._identity = identity
        self._file: File | None = None
        self._path = self._directory
        self._end = 0
        self.size_bytes = file_sizes(files, self._directory)

    def append(self, rejected: Sequence[Rejected]) -> Path:
        """Write and sync; return the file.

        Raises:
            DiskFull: There is no room; a later call overwrites the partial write.
            OSError: The disk failed.
        """
        data = b"".join(
            encode_record(encode_message(message), sequence=sequence, stamp=self._identity.stamp)
            for sequence, message in rejected
        )
        with telling_full_disk("keep a rejected message"):
            file = self._file or self._create(rejected[0].sequence)
            file.pwritev([data], self._end)
            file.fdatasync()
        self._end += len(data)
        self.size_bytes += len(data)
        return self._path

    def _create(self, sequence: int) -> File:
        if not self._files.list(self._directory):
            self._files.make_dirs(self._directory)
            self._files.fsync_dir(self._directory.parent)
        path = self._directory / unused_name(self._files, self._directory, file_name(sequence))
        header = FileHeader(
            client_id=self._identity.client_id,
            stamp=self._identity.stamp,
            token=self._identity.token,
            first_sequence=sequence,
        )
        file = self._files.open(path, Mode.CREATE)
        try:
            file.pwritev([encode_file_header(header)], 0)
            self._files.fsync_dir(self._directory)
        except OSError:
            file.close()
            self._files.remove(path)
            raise
        self._file, self._path, self._end = file, path, FILE_HEADER_BYTES
        self.size_bytes += FILE_HEADER_BYTES
        return file

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
