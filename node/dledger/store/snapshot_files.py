"""The directory ``snapshots``: a node's own snapshots, and the one that its leader is sending.

The file ``taking`` exists while a snapshot is being taken and counts the attempts in a row. A
process that dies during one leaves it there.

Two snapshots are kept: if the newest rots, the one before it still works, because the log reaches
back to it. All calls but `newest` block on the disk. They must not overlap, except for `read`,
which may run concurrently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.errors import CorruptFile, DiskFull, OffsetOutOfRange, StorageError
from dledger.files.atomic import load_file, replace_file, replace_file_by_parts
from dledger.files.files import File, Files, Mode
from dledger.files.full import refuse_full_disk
from dledger.store.snapshot_file import Snapshot, decode_snapshot, encode_snapshot
from dledger.types import SnapshotInfo

_log = logging.getLogger(__name__)

SNAPSHOT_DIRECTORY: Final = "snapshots"
SNAPSHOT_SUFFIX: Final = ".snap"
_INCOMING: Final = "incoming"
_TAKING: Final = "taking"
_KEPT: Final = 2


class SnapshotFiles:
    """Owns the directory."""

    def __init__(self, files: Files, directory: Path, *, reserve_bytes: int) -> None:
        """Manage *directory*, which is created when it is first needed.

        Args:
            files: The file system.
            directory: The ``snapshots`` directory.
            reserve_bytes: Free disk space that a snapshot from a leader never uses.
        """
        self._files = files
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._whole: list[tuple[SnapshotInfo, str]] = []
        self._incoming: File | None = None
        self._unfinished = self._incoming_bytes = 0
        self._written = _Tally()

    @property
    def disk_bytes(self) -> int:
        """What the files take, those being written or received included; from any thread."""
        whole = sum(info.size_bytes for info, _ in self._whole)
        return whole + self._written.size_bytes + self._incoming_bytes

    @property
    def unfinished(self) -> int:
        """How many attempts in a row ended with the death of the process, as found by `load`."""
        return self._unfinished

    @property
    def newest(self) -> SnapshotInfo | None:
        """The newest intact snapshot, as a leader offers it to followers, if there is one."""
        return self._whole[-1][0] if self._whole else None

    def holds(self, info: SnapshotInfo) -> bool:
        """Whether this snapshot is still kept."""
        return any(known == info for known, _ in self._whole)

    def load(self, group_id: str, *, restored_from: str = "") -> list[Snapshot]:
        """Return the intact snapshots, oldest first; remove unfinished files.

        Damaged snapshots are left out; the next `save` removes them. A disk to which a backup of
        group *restored_from* was restored may hold a snapshot of that group.

        Raises:
            CorruptFile: A snapshot is intact, but belongs to another group.
            StorageError: The disk failed.
        """
        self._whole.clear()
        found: list[Snapshot] = []
        with _storage_errors(f"read {self._directory}"):
            for name in self._files.list(self._directory):
                if name == _TAKING:
                    self._unfinished = self._load_tries()
                elif not name.endswith(SNAPSHOT_SUFFIX):
                    self._files.remove(self._directory / name)
                elif (snapshot := self._load(name)) is not None:
                    found.append(snapshot)
        for snapshot, (_, name) in zip(found, self._whole, strict=True):
            if snapshot.group_id not in (group_id, restored_from):
                reason = f"it is of group {snapshot.group_id!r}"
                raise CorruptFile(str(self._directory / name), reason)
        return found

    def _load(self, name: str) -> Snapshot | None:
        path = self._directory / name
        try:
            data = load_file(self._files, path) or b""
            snapshot = decode_snapshot(data)
        except (CorruptFile, ValueError) as error:
            _log.error("ignoring snapshot %s, which is damaged: %s", path, error)
            return None
        self._whole.append((info_of(snapshot, data), name))
        return snapshot

    def _load_tries(self) -> int:
        """Return the number of attempts in the file ``taking``; 1 if it cannot be read."""
        try:
            return max(int(load_file(self._files, self._directory / _TAKING) or b""), 1)
        except (CorruptFile, ValueError):
            return 1

    def begin(self) -> None:
        """Record durably that a snapshot is being taken; `save` removes the record.

        Raises:
            DiskFull: The disk is full; no snapshot should be started.
            StorageError: The disk failed.
        """
        self._make_directory()
        replace_file(self._files, self._directory / _TAKING, b"%d" % (self._unfinished + 1))

    def save(self, snapshot: Snapshot, body: Iterable[bytes] | None = None) -> int:
        """Save a snapshot durably, keep only the previous one beside it; return its size in bytes.

        Args:
            snapshot: The snapshot.
            body: The pieces of its state, if not in the snapshot; each is written once encoded.

        Raises:
            DiskFull: The disk is full; nothing changed.
            StorageError: The disk failed.
        """
        name = _name(snapshot)
        written = self._written = _Tally()
        self._make_directory()
        try:
            pieces = written.of(encode_snapshot(snapshot, body))
            replace_file_by_parts(self._files, self._directory / name, pieces)
        except DiskFull:
            self._written = _Tally()
            self._remove([_TAKING])
            raise
        info = written.info(snapshot)
        self._written = _Tally()
        self._add(info, name)
        self._remove([_TAKING])
        self._unfinished = 0
        self._keep(_KEPT)
        return info.size_bytes

    def read(self, info: SnapshotInfo, offset: int, size: int) -> bytes:
        """Return bytes of a snapshot.

        Raises:
            OffsetOutOfRange: It was removed.
            StorageError: The disk cannot read it back.
        """
        name = next((name for known, name in self._whole if known == info), None)
        if name is None:
            raise OffsetOutOfRange(offset, first=0, last=-1)
        try:
            with _storage_errors(f"read snapshot {name}"):
                file = self._files.open(self._directory / name, Mode.READ)
                try:
                    return file.pread(size, offset)
                finally:
                    file.close()
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise OffsetOutOfRange(offset, first=0, last=-1) from error
            raise

    # Receiving a snapshot from the leader.

    def receive(self, info: SnapshotInfo, offset: int, data: bytes) -> None:
        """Write a piece of a snapshot to a temporary file; offset 0 starts over.

        Raises:
            DiskFull: There is no room for the whole snapshot.
            StorageError: The disk failed.
        """
        try:
            with _storage_errors("receive a snapshot"):
                if offset == 0:
                    self._begin(info)
                if self._incoming is not None:
                    self._incoming.pwritev([data], offset)
                    self._incoming_bytes = offset + len(data)
        except DiskFull:
            self.discard()
            raise

    def _begin(self, info: SnapshotInfo) -> None:
        self.discard()
        self._make_directory()
        free_bytes = self._files.disk_usage(self._directory).free_bytes
        if free_bytes < info.size_bytes + self._reserve_bytes:
            raise DiskFull(f"no room for a snapshot of {info.size_bytes} bytes: {free_bytes} free")
        self._incoming = self._files.open(self._directory / _INCOMING, Mode.CREATE)

    def received(self, info: SnapshotInfo) -> Snapshot | None:
        """Return the received snapshot if it is complete and is *info*; else None.

        Raises:
            StorageError: The disk failed.
        """
        if self._incoming is None:
            return None
        with _storage_errors("read the received snapshot"):
            data = self._incoming.pread(info.size_bytes, 0)
        try:
            snapshot = decode_snapshot(data)
        except ValueError as error:
            _log.error("the received snapshot is damaged: %s", error)
            return None
        return snapshot if info_of(snapshot, data) == info else None

    def install(self, info: SnapshotInfo, snapshot: Snapshot) -> None:
        """Make the `received` snapshot the newest, durably.

        The older ones stay until `settle`, because until then the log on disk continues them and
        not the new one.

        Raises:
            DiskFull: There is no room for its name; the same call works once there is.
            StorageError: The disk failed; so it did if there is no room for what it had taken.
        """
        name = _name(snapshot)
        if self._incoming is not None:
            with _storage_errors(f"sync snapshot {name}", takes_room=False):
                self._incoming.fdatasync()
            with _storage_errors(f"install snapshot {name}"):
                self._files.rename(self._directory / _INCOMING, self._directory / name)
            self._close_incoming()
        with _storage_errors(f"sync the name of snapshot {name}", takes_room=False):
            self._files.fsync_dir(self._directory)
        self._add(info, name)

    def settle(self) -> None:
        """Remove all but the newest: the log no longer reaches back to the others."""
        self._keep(1)

    def discard(self) -> None:
        """Drop the snapshot that was being received."""
        self._close_incoming()
        self._remove([_INCOMING])

    def _close_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        self._incoming_bytes = 0
        if incoming is not None:
            incoming.close()

    def _make_directory(self) -> None:
        with _storage_errors(f"make {self._directory}"):
            self._files.make_dirs(self._directory)
            self._files.fsync_dir(self._directory.parent)

    def _add(self, info: SnapshotInfo, name: str) -> None:
        self._whole = [*(pair for pair in self._whole if pair[1] != name), (info, name)]

    def _keep(self, count: int) -> None:
        self._whole = self._whole[-count:]
        kept = {name for _, name in self._whole}
        names = self._files.list(self._directory)
        snapshots = [name for name in names if name.endswith(SNAPSHOT_SUFFIX)]
        self._remove([name for name in snapshots if name not in kept])

    def _remove(self, names: list[str]) -> None:
        with _storage_errors("remove old snapshots"):
            for name in sorted(set(names) & set(self._files.list(self._directory))):
                self._files.remove(self._directory / name)


def _name(snapshot: Snapshot) -> str:
    return f"{snapshot.applied.index:020d}{SNAPSHOT_SUFFIX}"


@contextmanager
def _storage_errors(what: str, *, takes_room: bool = True) -> Iterator[None]:
    """Raise DiskFull for lack of room, unless what failed is a sync; else StorageError."""
    try:
        yield
    except OSError as error:
        if takes_room:
            refuse_full_disk(error, what)
        raise StorageError(f"cannot {what}: {error}") from error


class _Tally:
    """Counts the bytes written to a file and computes their CRC32C."""

    def __init__(self) -> None:
        self.size_bytes = self._crc = 0

    def of(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield *parts* unchanged, and count them."""
        for part in parts:
            self.size_bytes += len(part)
            self._crc = crc32c(part, self._crc)
            yield part

    def info(self, snapshot: Snapshot) -> SnapshotInfo:
        """Return the name that Raft uses for the snapshot whose file was counted."""
        return SnapshotInfo(
            last_index=snapshot.base.index,
            last_term=snapshot.base.term,
            last_chain=snapshot.base.chain,
            size_bytes=self.size_bytes,
            crc32c=self._crc,
        )


def info_of(snapshot: Snapshot, data: bytes) -> SnapshotInfo:
    """Return the name that Raft uses for the snapshot whose file holds *data*."""
    tally = _Tally()
    for _ in tally.of([data]):
        pass
    return tally.info(snapshot)
