"""Every way in which a disk says that it has no room: DiskFull, nothing lost, goes on by itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.errors import DiskFull
from dledger.files.atomic import replace_file
from dledger.files.full import is_full
from dledger.files.memory_files import MemoryFiles
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base
from dledger.store.hard_state import HardStateFile
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.store.snapshot_files import SnapshotFiles, info_of
from dledger.types import Entry, HardState, NodeId
from tests.store.harness import DATA, GROUP, LOG, Disk, entries, everything, format_disk

_TAKES_ROOM = ("create", "make_dirs", "preallocate", "pwritev", "rename")
_NUMBERS = (errno.ENOSPC, errno.EDQUOT)


class FillingFiles(MemoryFiles):
    """Files whose disk is full from one call on, of those that take room, until `heal`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.full_from, self.number = 0, 1 << 40, errno.ENOSPC

    def strike(self, operation: str, path: Path) -> None:
        """Fail if this call takes room and there is none."""
        super().strike(operation, path)
        if operation in _TAKES_ROOM:
            self.calls += 1
            if self.calls > self.full_from:
                raise OSError(self.number, os.strerror(self.number), str(path))

    def heal(self) -> None:
        """Give it room again."""
        super().heal()
        self.full_from = 1 << 40


def test_no_block_no_inode_and_no_quota_are_lack_of_room() -> None:
    """And nothing else is."""
    assert [is_full(OSError(number, "")) for number in (*_NUMBERS, errno.EIO, errno.EROFS)] == [
        True,
        True,
        False,
        False,
    ]
    assert not is_full(ValueError())


class Story:
    """A node's disk from its founding on: what it does in a life, each step repeatable."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.disk.files = self.files = FillingFiles()
        self.refusals = 0
        self.disk.identity = format_disk(self.files)
        self.log: CommitLog = self.disk.open()
        self.votes = HardStateFile(self.files, DATA)
        self.snapshots = SnapshotFiles(self.files, DATA / "snapshots", reserve_bytes=0)
        self.files.calls = 0

    def steps(self) -> list[Callable[[], object]]:
        """Return the steps, in order."""
        log, snapshots = self.log, self.snapshots
        taken, sent = _snapshot(20, base=8), _snapshot(30, base=18)
        data = b"".join(encode_snapshot(sent))
        return [
            lambda: self._write(entries(1, 6, size=1000)),
            lambda: self.votes.save(HardState(2, NodeId("a"))),
            log.prepare,
            lambda: self._write(entries(7, 20, size=1000)),
            lambda: self._write(entries(10, 26, term=2, size=700)),  # cuts across segments
            lambda: log.cut_behind(24),
            snapshots.begin,
            lambda: snapshots.save(taken),
            lambda: log.drop_before(9),
            lambda: self._write(entries(25, 31, term=2, size=9000)),
            lambda: snapshots.receive(info_of(sent, data), 0, data),
            lambda: snapshots.install(info_of(sent, data), sent),
            lambda: self.votes.save(HardState(3, None)),
            lambda: self._write(entries(32, 40, term=3, size=500)),
        ]

    def _write(self, batch: list[Entry]) -> None:
        """Write and sync; a batch that found no room is written whole again, as a node does."""
        self.log.append(batch)
        self.log.sync()

    def run(self) -> None:
        """Take each step; one that finds no room is taken again once there is."""
        for step in self.steps():
            try:
                step()
            except DiskFull:
                self.refusals += 1
                self.files.heal()
                step()
        self.files.heal()


def _snapshot(applied: int, *, base: int) -> Snapshot:
    return Snapshot(
        group_id=GROUP,
        applied=Base(index=applied, term=2, chain=7),
        base=Base(index=base, term=1, chain=5),
        memberships=(),
        body=bytes(3000),
    )


def _kept(log: CommitLog) -> list[Entry]:
    return [log.read(index, index, 0)[0] for index in range(log.first_index, log.last_index + 1)]


@pytest.mark.found
@pytest.mark.parametrize("number", _NUMBERS, ids=errno.errorcode.get)
def test_a_disk_that_is_full_from_any_call_on_loses_nothing_and_goes_on(number: int) -> None:
    """Each call of a node's life that takes room is the first that finds none.

    Found by hand: an index file's temporary file was opened outside of what knew ENOSPC, and
    nothing knew EDQUOT: all nodes of a group ended within a second.
    """
    plain = Story()
    plain.run()
    expected = _kept(plain.log)
    assert plain.files.calls > 80
    assert not plain.refusals

    refused = 0
    for nth in range(plain.files.calls):
        story = Story()
        story.files.full_from, story.files.number = nth, number
        story.run()
        refused += story.refusals
        assert _kept(story.log) == expected, nth
        story.files.kill()
        log = story.disk.open()
        assert _kept(log) == expected, nth
        assert HardStateFile(story.files, DATA).load() == HardState(3, None)
        assert len(SnapshotFiles(story.files, DATA / "snapshots", reserve_bytes=0).load(GROUP)) == 2
        assert not [name for name in story.disk.names() if name.endswith(".new")], nth

    assert refused > 60  # the rest is what a node can do without: a spare, an index at its start


@pytest.mark.parametrize("number", _NUMBERS, ids=errno.errorcode.get)
def test_an_empty_disk_without_room_is_refused_by_name(number: int) -> None:
    """And is formatted once there is room, from any call on."""
    whole = FillingFiles()
    format_disk(whole)
    for nth in range(whole.calls):
        files = FillingFiles()
        files.full_from, files.number = nth, number
        with pytest.raises(DiskFull):
            format_disk(files)
        files.heal()
        assert format_disk(files) == Disk().identity


def test_a_disk_without_inodes_takes_entries_again_once_there_are_some() -> None:
    """A new segment, and the index file of the one before, are files of their own."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3, size=1000))
    disk.files.inodes = sum(len(disk.files.list(at)) for at in (DATA, LOG)) - 1

    with pytest.raises(DiskFull, match="index file"):
        log.append(entries(4, 9, size=1000))
    disk.files.inodes += 4
    log.append(entries(4, 9, size=1000))
    log.sync()

    assert everything(log) == entries(1, 9, size=1000)


def test_a_quota_that_is_used_up_is_a_full_disk() -> None:
    """However much of the disk is free."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3, size=1000))
    disk.files.quota_bytes = 20_000

    with pytest.raises(DiskFull, match=os.strerror(errno.EDQUOT)):
        log.append(entries(4, 90, size=1000))
    assert disk.files.disk_usage(LOG).free_bytes > 1 << 30
    disk.files.quota_bytes = 1 << 30
    log.append(entries(4, 90, size=1000))

    assert everything(log) == entries(1, 90, size=1000)


def test_a_file_that_found_no_room_leaves_nothing_that_takes_some() -> None:
    """Its temporary file goes; the old contents stay."""
    files = MemoryFiles()
    path = DATA / "small"
    replace_file(files, path, b"old")
    files.quota_bytes = 10

    with pytest.raises(DiskFull):
        replace_file(files, path, b"new and long")

    assert files.list(DATA) == ["small"]
    assert files.contents(path) == b"old"
