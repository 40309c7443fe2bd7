"""Keeps messages that the group refused permanently, in separate files of the spool's format.

A file ``rejected/<sequence of its first message>.spool`` holds the records with their original
sequences and the group's reason, in the order in which they were refused: lanes do not wait for
each other. It is written and synced before the replay continues after them. A message that goes
back into the spool (`requeue`) gets a second record here, the mark of that; a file all of whose
messages are marked is removed, and no other. Used by `Spool`, `opening` and `looking`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from dledger.files.files import File, Files, Mode
from dledger.files.full import telling_full_disk
from dledger.spool.format import (
    FILE_HEADER_BYTES,
    Gap,
    encode_file_header,
    encode_record,
    scan,
)
from dledger.spool.identity import SpoolIdentity, header_of
from dledger.spool.payload import Message, decode_message, encode_message
from dledger.spool.spool_files import file_name, file_sizes, read_file, rewrite_file, unused_name
from dledger.types import Record

DIRECTORY: Final = "rejected"

Place: TypeAlias = tuple[int, str]
"""By which a rejected message is known: its sequence, which begins again if the state file is lost,
and its id."""


class Rejected(NamedTuple):
    """A rejected message, with the group's reason in *reason*, and its sequence in the spool."""

    sequence: int
    message: Message

    @property
    def place(self) -> Place:
        """By which it is known."""
        return self.sequence, self.message.record.message_id


@dataclass(slots=True)
class _Contents:
    """What a file has: messages, marks of those that went back, and damage."""

    messages: list[Rejected]
    marks: set[Place]
    gaps: list[Gap]
    is_whole: bool
    size_bytes: int


def read_rejected(files: Files, directory: Path, identity: SpoolIdentity) -> Iterator[Rejected]:
    """Yield the rejected messages; damaged and torn records are skipped, as is what went back."""
    contents = _read_all(files, directory / DIRECTORY, identity)
    seen = {place for each in contents.values() for place in each.marks}
    for each in contents.values():
        for one in each.messages:
            if one.place not in seen:
                seen.add(one.place)
                yield one


def sequences_aside(files: Files, directory: Path, identity: SpoolIdentity) -> set[int]:
    """Return all sequences in ``rejected/``, also of what went back: none of them is replayed."""
    contents = _read_all(files, directory / DIRECTORY, identity).values()
    messages = {one.sequence for each in contents for one in each.messages}
    return messages | {sequence for each in contents for sequence, _ in each.marks}


def damage_of_rejected(
    files: Files, directory: Path, identity: SpoolIdentity
) -> Iterator[tuple[Path, Gap]]:
    """Yield the damaged places in ``rejected/``."""
    for name, each in _read_all(files, directory / DIRECTORY, identity).items():
        for gap in each.gaps:
            yield directory / DIRECTORY / name, gap


def _read_all(files: Files, directory: Path, identity: SpoolIdentity) -> dict[str, _Contents]:
    found: dict[str, _Contents] = {}
    for name in files.list(directory):
        with suppress(FileNotFoundError):  # its owner has removed it just now
            found[name] = _contents(read_file(files, directory / name), identity)
    return found


def _contents(data: bytes, identity: SpoolIdentity) -> _Contents:
    scanned = scan(data, stamp=identity.stamp, first=None, start=FILE_HEADER_BYTES)
    is_whole = not (scanned.gaps or scanned.fault)
    result = _Contents([], set(), scanned.gaps, is_whole, len(data))
    for found in scanned.records:
        try:
            one = Rejected(found.sequence, decode_message(found.payload, found.version))
        except ValueError as error:
            result.gaps.append(Gap(found.offset, found.end, 1, 0, str(error)))
            result.is_whole = False
            continue
        if one.message.went_back:
            result.marks.add(one.place)
        else:
            result.messages.append(one)
    return result


def settle_rejected(
    files: Files, directory: Path, identity: SpoolIdentity, *, replayed: int
) -> set[int]:
    """Return the sequences above *replayed* that are durably rejected, and need no replay.

    A killed process may have left them unsynced, and a failed sync may have marked their pages
    clean, so the files are written again and synced first. So are marks of what went back, or it
    would be there twice after a power cut. Raises OSError.
    """
    beyond: set[int] = set()
    is_unsure = False
    for name in files.list(directory / DIRECTORY):
        path = directory / DIRECTORY / name
        data = read_file(files, path)
        records = scan(data, stamp=identity.stamp, first=None, start=FILE_HEADER_BYTES).records
        unsure = {found.sequence for found in records if found.sequence > replayed}
        if unsure or _contents(data, identity).marks:
            rewrite_file(files, path, data)
            beyond |= unsure
            is_unsure = True
    if is_unsure:
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

    def mark(self, went_back: Sequence[Rejected]) -> None:
        """Write that these have gone back into the spool; raises like `append`."""
        self.append([Rejected(one.sequence, _mark_of(one.message)) for one in went_back])

    def remove_finished(self, *, replayed: int) -> None:
        """Remove undamaged files all of whose messages went back, and are not in the spool's way.

        A message above *replayed* is passed over because it is here. A mark stays for as long as
        its message does, so files go one by one. Raises OSError.
        """
        contents = _read_all(self._files, self._directory, self._identity)
        marks = {place for each in contents.values() for place in each.marks}
        went = True
        while went:
            went = False
            for name, each in tuple(contents.items()):
                others = {
                    one.place
                    for other, its in contents.items()
                    for one in its.messages
                    if other != name
                }
                mine = {one.place for one in each.messages}
                is_due = mine <= marks and all(sequence <= replayed for sequence, _ in mine)
                if is_due and each.is_whole and not each.marks & others:
                    self._remove(name, each.size_bytes)
                    del contents[name]
                    went = True

    def _remove(self, name: str, size_bytes: int) -> None:
        path = self._directory / name
        if path == self._path and self._file is not None:
            self._file.close()
            self._file = None
        self._files.remove(path)
        self._files.fsync_dir(self._directory)
        self.size_bytes -= size_bytes

    def _create(self, sequence: int) -> File:
        if not self._files.list(self._directory):
            self._files.make_dirs(self._directory)
            self._files.fsync_dir(self._directory.parent)
        path = self._directory / unused_name(self._files, self._directory, file_name(sequence))
        header = header_of(self._identity, first_sequence=sequence)
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


def _mark_of(message: Message) -> Message:
    record = Record(body=b"", message_id=message.record.message_id)
    return Message(topic=message.topic, client_id=message.client_id, record=record, went_back=True)
