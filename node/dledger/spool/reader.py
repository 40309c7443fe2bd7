"""Reads spooled messages back in order, one file at a time, and reports damage found then.

Owned by `Spool`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dledger.files.files import Files, Mode
from dledger.spool.format import FILE_HEADER_BYTES, Found, Gap, scan
from dledger.spool.payload import Message, decode_message
from dledger.spool.spool_files import SpoolFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A message in the spool; *size_bytes* is the size of its record."""

    sequence: int
    message: Message
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Messages to replay together; once they are done, everything up to *last* is done."""

    messages: tuple[Spooled, ...]
    last: int


class Reader:
    """Reads each file once, behind the writer. Calls to both must be serialized.

    *spool_files* is the writer's own list; *blame* is called for every gap, even a known one.
    """

    def __init__(
        self,
        files: Files,
        spool_files: Sequence[SpoolFile],
        *,
        stamp: bytes,
        replayed: int,
        blame: Callable[[SpoolFile, Gap], None],
    ) -> None:
        self._files = files
        self._spool_files = spool_files
        self._stamp = stamp
        self._blame = blame
        self._buffer: deque[Spooled] = deque()
        self._read = replayed
        self._path: Path | None = None
        self._offset = 0

    def take(self, *, max_records: int, max_bytes: int) -> Chunk | None:
        """Return the next messages, at least one even if too large; None at the end."""
        if not self._buffer and not self._refill():
            return None
        taken: list[Spooled] = []
        size_bytes = 0
        while self._buffer and len(taken) < max_records:
            size_bytes += self._buffer[0].size_bytes
            if taken and size_bytes > max_bytes:
                break
            taken.append(self._buffer.popleft())
        last = self._buffer[0].sequence - 1 if self._buffer else self._read
        return Chunk(messages=tuple(taken), last=last)

    def _refill(self) -> bool:
        """Buffer the unread messages of the next file; False if there are none."""
        file = next((file for file in self._spool_files if file.last > self._read), None)
        if file is None:
            return False
        if file.path != self._path:
            self._path, self._offset, first = file.path, FILE_HEADER_BYTES, file.first
        else:
            first = self._read + 1
        for found in self._scan(file, first):
            if found.sequence > self._read:
                self._decode(file, found)
        self._read, self._offset = file.last, file.end
        return True

    def _decode(self, file: SpoolFile, found: Found) -> None:
        try:
            message = decode_message(found.payload, found.version)
        except ValueError as error:
            gap = Gap(found.offset, found.end, found.sequence, found.sequence, str(error))
            self._blame(file, self._placed(gap))
            return
        size_bytes = found.end - found.offset
        self._buffer.append(
            Spooled(sequence=found.sequence, message=message, size_bytes=size_bytes)
        )

    def _scan(self, file: SpoolFile, first: int) -> list[Found]:
        try:
            data, fault = self._contents(file), "the rest of the file is missing"
        except OSError as error:
            data, fault = b"", f"cannot be read: {error}"
        found = scan(data, stamp=self._stamp, first=first, limit=file.last + 1)
        for gap in found.gaps:
            self._blame(file, self._placed(gap))
        last = found.records[-1].sequence if found.records else first - 1
        if last < file.last:
            rest = Gap(found.end, len(data), last + 1, file.last, found.fault or fault)
            self._blame(file, self._placed(rest))
        return found.records

    def _placed(self, gap: Gap) -> Gap:
        """Convert a gap's offsets in the data that was read to offsets in the file."""
        return gap._replace(offset=gap.offset + self._offset, end=gap.end + self._offset)

    def _contents(self, file: SpoolFile) -> bytes:
        with closing(self._files.open(file.path, Mode.READ)) as handle:
            return handle.pread(file.end - self._offset, self._offset)
