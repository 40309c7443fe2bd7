"""A bounded, durable queue of messages on local disk, which a producer writes in an outage.

All calls that use the disk are serialized on one thread (`worker`); any thread may read `depth`,
`waiting` and the sizes. ``docs/internals/outage-spool.md`` has the file format, and what a crash
during each write leaves.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from dledger.errors import DiskFull, SpoolFull, StorageError
from dledger.files.files import File, Files, Mode
from dledger.files.full import is_full
from dledger.spool.format import FILE_HEADER_BYTES, Gap, encode_record
from dledger.spool.identity import SpoolIdentity
from dledger.spool.payload import Message, encode_message
from dledger.spool.reader import Chunk, Reader, Spooled
from dledger.spool.rejected import Rejected, RejectedFile, read_rejected
from dledger.spool.requeue import Requests, sent_anew
from dledger.spool.spool_files import (
    QUARANTINE,
    SpoolFile,
    create_file,
    file_sizes,
    set_aside,
)
from dledger.spool.spool_scan import SpoolScan, damage_of
from dledger.spool.state import StateFile

MAX_FILE_RECORDS: Final = 32_768
"""Half of the ids that the group remembers for a client, so a file can be replayed twice safely."""

_SENDERS: Final = {True: "sidecar", False: "SpoolingProducer"}
_log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """The limit of all files of a spool together, and the length of one file."""

    max_bytes: int
    file_bytes: int


class Kept(NamedTuple):
    """How many messages, from the first on, are durable, and why the others are not."""

    messages: int
    refusal: SpoolFull | None


class Spool:
    """An open spool; `opening.open_spool` makes one.

    Attributes:
        client_id: The client id that its own messages are sent with; it never changes.
        token: By which the group knows its lanes, as hexadecimal digits.
        depth: Messages that wait to be replayed, by topic.
        waiting: Their total number.
        waiting_bytes: The bytes of their records.
        disk_bytes: The disk space that the spool uses.
        lanes: The lanes that have messages waiting.
        ages: Since when messages wait.
        tried: How many of them the group may have already.
        damage: The damage found since it was opened.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        lock: File,
        identity: SpoolIdentity,
        state: StateFile,
        found: SpoolScan,
        rejected: set[int],
        limits: Limits,
    ) -> None:
        self.client_id = identity.client_id
        self.token = identity.token.hex()
        self.depth: Counter[str] = found.depth
        self.waiting = found.depth.total()
        self.waiting_bytes = found.size_bytes
        self.lanes, self.ages, self.tried = found.lanes, found.ages, found.tried
        self.damage = list(found.damage)
        self._files, self._directory, self._lock = files, directory, lock
        self._identity, self._state, self._limits = identity, state, limits
        self._replayed, self._accepted = found.replayed, found.accepted
        self._spool_files = found.files
        self._rejected = rejected
        self._rejected_file = RejectedFile(files, directory, identity)
        self._requests = Requests(files, directory)
        self._set_aside_bytes = file_sizes(files, directory / QUARANTINE)
        self._active: File | None = None
        self._error: StorageError | None = None
        self._reader = Reader(
            files,
            self._spool_files,
            stamp=identity.stamp,
            replayed=found.replayed,
            blame=self._blame,
        )
        self._remove_replayed()
        self._reopen_last()

    @property
    def of_lanes(self) -> int:
        """How many of the messages that wait are of lanes, and so a sidecar's to send."""
        return sum(lane.depth for *_, lane in self.lanes)

    @property
    def disk_bytes(self) -> int:
        """The length of all files, including those of rejected and damaged messages."""
        spooled = sum(file.capacity for file in self._spool_files)
        return spooled + self._rejected_file.size_bytes + self._set_aside_bytes

    # -- writing --------------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> Kept:
        """Write and sync messages in order; return how many are durable and will be replayed.

        Raises:
            StorageError: The disk failed now or before; the messages may or may not be kept.
            InvalidArgument: A message cannot be encoded; none was written.
        """
        self._check_usable()
        placed = [self.lanes.place(message) for message in messages]
        try:
            return self._append_all(placed, [encode_message(message) for message in placed])
        finally:
            self.lanes.drop_empty(placed)

    def _append_all(self, messages: Sequence[Message], payloads: Sequence[bytes]) -> Kept:
        done = 0
        try:
            while done < len(messages):
                done += self._append_some(messages[done:], payloads[done:])
        except DiskFull as error:
            return Kept(done, self._full(str(error)))
        except SpoolFull as error:
            return Kept(done, error)
        except OSError as error:
            raise self._fail("write", error) from error
        return Kept(done, None)

    def _append_some(self, messages: Sequence[Message], payloads: Sequence[bytes]) -> int:
        """Write and sync as many as fit in one file, at least one."""
        sequence = self._accepted + 1
        records = [
            encode_record(payload, sequence=sequence + number, stamp=self._identity.stamp)
            for number, payload in enumerate(payloads[:MAX_FILE_RECORDS])
        ]
        file, handle = self._with_room(len(records[0]))
        fitting = _fitting(records, file)
        self._write(file, handle, records[:fitting])
        size_bytes = sum(map(len, records[:fitting]))
        file.last += fitting
        file.end += size_bytes
        self._accepted = file.last
        self.depth.update(message.topic for message in messages[:fitting])
        self.lanes.count(messages[:fitting])
        for number, message in enumerate(messages[:fitting]):
            self.ages.add(sequence + number, message.record.born_at_ms)
            self.tried += message.tried
        self.waiting += fitting
        self.waiting_bytes += size_bytes
        self._state.mark(accepted=self._accepted)
        return fitting

    def _write(self, file: SpoolFile, handle: File, records: Sequence[bytes]) -> None:
        """Write and sync; if the disk is full, undo the write and seal the file."""
        try:
            handle.pwritev(records, file.end)
            handle.fdatasync()
        except OSError as error:
            if not is_full(error):
                raise
            self._give_up(file, handle, sum(map(len, records)))
            raise DiskFull(f"no room to spool {len(records)} messages: {error}") from error

    def _give_up(self, file: SpoolFile, handle: File, size_bytes: int) -> None:
        """Zero what a failed write left, if possible, and never write to this file again."""
        try:
            handle.pwritev([bytes(size_bytes)], file.end)
            handle.fdatasync()
        except OSError as error:
            _log.warning("spool %s: cannot undo a write that found no room: %s", file.path, error)
        self._seal()
        if not file.count:  # the next file needs its name
            self._spool_files.remove(file)
            self._files.remove(file.path)

    def _with_room(self, size_bytes: int) -> tuple[SpoolFile, File]:
        """Return a file with room for a record of this size. Raises SpoolFull, DiskFull."""
        if self._active is not None:
            file = self._spool_files[-1]
            if file.capacity - file.end >= size_bytes and file.count < MAX_FILE_RECORDS:
                return file, self._active
            self._seal()
        capacity = max(self._limits.file_bytes, FILE_HEADER_BYTES + size_bytes)
        if self.disk_bytes + capacity > self._limits.max_bytes:
            raise self._full(f"its limit is {self._limits.max_bytes} bytes")
        first = self._accepted + 1
        file = create_file(
            self._files, self._directory, self._identity, first=first, capacity=capacity
        )
        self._spool_files.append(file)
        self._active = self._files.open(file.path, Mode.UPDATE)
        return file, self._active

    def _full(self, why: str) -> SpoolFull:
        kept = self._rejected_file.size_bytes + self._set_aside_bytes
        remains = f", {kept} of them rejected or damaged messages" if kept else ""
        return SpoolFull(
            f"spool {self._directory} is full: {why}; it has {self.waiting} messages and "
            f"{self.disk_bytes} bytes{remains}"
        )

    def _seal(self) -> None:
        if self._active is not None:
            self._active.close()
            self._active = None

    def _reopen_last(self) -> None:
        """Continue in the last file if it is undamaged."""
        last = self._spool_files[-1] if self._spool_files else None
        if last is not None and not last.damaged:
            self._active = self._files.open(last.path, Mode.UPDATE)

    # -- replaying ------------------------------------------------------------------------------

    def read(self, *, max_records: int, max_bytes: int) -> Chunk | None:
        """Return the next messages to replay, each once; None if there are none now."""
        chunk = self._reader.take(max_records=max_records, max_bytes=max_bytes)
        if chunk is None:
            return None
        messages = tuple(m for m in chunk.messages if m.sequence not in self._rejected)
        return Chunk(messages=messages, last=chunk.last)

    def reject(self, refused: Sequence[tuple[Spooled, str]]) -> Path:
        """Write messages that the group refused, with their reasons, to a file; return its path.

        Raises:
            DiskFull: There is no room for them; they stay in the spool.
            StorageError: The disk failed.
        """
        self._check_usable()
        try:
            return self._rejected_file.append(
                [
                    Rejected(spooled.sequence, replace(spooled.message, reason=why))
                    for spooled, why in refused
                ]
            )
        except OSError as error:
            raise self._fail("keep rejected messages in", error) from error

    def read_rejected(self) -> tuple[Rejected, ...]:
        """Return all rejected messages that are still on disk. Raises StorageError."""
        try:
            return tuple(read_rejected(self._files, self._directory, self._identity))
        except OSError as error:
            raise StorageError(f"cannot read rejected messages: {error}") from error

    @property
    def is_asked(self) -> bool:
        """Whether somebody asks for rejected messages to be sent again."""
        try:
            return self._requests.any
        except OSError:  # a disk that fails is found out by what writes to it
            return False

    def asked_back(self, *, of_lanes: bool) -> list[Rejected]:
        """Return the rejected messages that somebody has asked to be sent again.

        Args:
            of_lanes: Whether those of lanes are meant, or the spool's own. Each kind has a program
                that replays it, so none goes back while some of the other wait.

        Raises:
            StorageError: The disk failed.
        """
        try:
            wanted = self._requests.read()
            found = [one for one in self.read_rejected() if one.place in wanted] if wanted else []
        except OSError as error:
            raise self._fail("read what is asked back of", error) from error
        others = self.waiting - self.of_lanes if of_lanes else self.of_lanes
        asked = [one for one in found if bool(one.message.client_id) is of_lanes and not others]
        if len(asked) < len(found):
            left = len(found) - len(asked)
            _log.warning("%d stay in rejected/: a %s sends them", left, _SENDERS[not of_lanes])
        return asked

    def put_back(self, asked: Sequence[Rejected]) -> Kept:
        """Append what `asked_back` returned, under new sequences; mark it, and forget the asking.

        In this order, so that a crash leaves nothing out: it may leave a message there twice, which
        the group knows by its id.

        Raises:
            StorageError: The disk failed.
        """
        kept = self.append([sent_anew(one.message) for one in asked])
        if kept.refusal is not None:
            left = len(asked) - kept.messages
            _log.warning("%d of %d stay in rejected/: %s", left, len(asked), kept.refusal)
        try:
            if kept.messages:
                self._rejected_file.mark(asked[: kept.messages])
            self._requests.finish()
            self._rejected_file.remove_finished(replayed=self._replayed)
        except DiskFull as error:
            _log.warning("what went back stays in rejected/ as well: %s", error)
            self._requests.finish()
        except OSError as error:
            raise self._fail("note what went back into", error) from error
        return kept

    def forget_finished(self) -> None:
        """Remove files in ``rejected/`` all of whose messages went back. Raises StorageError."""
        try:
            self._rejected_file.remove_finished(replayed=self._replayed)
        except OSError as error:
            raise self._fail("tidy", error) from error

    def advance(self, chunk: Chunk) -> None:
        """Save that *chunk* was stored or rejected; remove the files that are finished.

        Raises:
            StorageError: The disk failed.
        """
        self._check_usable()
        try:
            self._state.save(replayed=chunk.last, accepted=self._accepted)
            self._replayed = chunk.last
            self._remove_replayed()
        except OSError as error:
            raise self._fail("remember what was replayed of", error) from error
        self._forget(chunk.messages)

    def _forget(self, messages: Sequence[Spooled]) -> None:
        """Subtract replayed messages from the counts; at the end of the spool, reset them."""
        self.depth.subtract(spooled.message.topic for spooled in messages)
        self.depth = +self.depth
        self.lanes.forget([spooled.message for spooled in messages])
        self.tried -= sum(spooled.message.tried for spooled in messages)
        self.ages.forget(self._replayed)
        self.waiting -= len(messages)
        self.waiting_bytes -= sum(spooled.size_bytes for spooled in messages)
        if self._replayed == self._accepted:  # lost messages were counted too
            self.depth = Counter()
            self.lanes.clear()
            self.waiting = self.waiting_bytes = self.tried = 0

    def _remove_replayed(self) -> None:
        while self._spool_files and self._spool_files[0].last <= self._replayed:
            file = self._spool_files[0]
            if len(self._spool_files) == 1:
                self._seal()
            if file.damaged:
                try:
                    target = set_aside(self._files, file.path)
                except DiskFull as error:
                    _log.warning("spool file %s has damage and stays: %s", file.path, error)
                    return  # the next message that is replayed tries again
                self._set_aside_bytes += file.capacity
                _log.warning("spool file %s has damage; it is kept as %s", file.path, target)
            else:
                self._files.remove(file.path)
            del self._spool_files[0]

    def _blame(self, file: SpoolFile, gap: Gap) -> None:
        """Report damage that the scan at opening did not find."""
        file.damaged = True
        damage = damage_of(file.path, gap, self._replayed)
        if damage is not None and all(damage.last != known.last for known in self.damage):
            _log.error("%s", damage)
            self.damage.append(damage)

    def close(self) -> None:
        """Save the state and release the directory. Raises StorageError if that fails."""
        try:
            if self._error is None:
                self._state.save(replayed=self._replayed, accepted=self._accepted)
        except OSError as error:
            raise self._fail("close", error) from error
        finally:
            self._seal()
            self._state.close()
            self._rejected_file.close()
            self._lock.close()

    # -- failing --------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, what: str, error: OSError) -> StorageError:
        """Refuse all calls from now on: after a failed sync the disk's contents are unknown."""
        self._error = StorageError(
            f"cannot {what} spool {self._directory}: {error}; open it again once the disk works"
        )
        _log.critical("%s", self._error)
        return self._error


def _fitting(records: Sequence[bytes], file: SpoolFile) -> int:
    """Return how many of *records* fit in *file*."""
    room_bytes, room = file.capacity - file.end, MAX_FILE_RECORDS - file.count
    count = 0
    for record in records[:room]:
        room_bytes -= len(record)
        if room_bytes < 0:
            break
        count += 1
    return count
