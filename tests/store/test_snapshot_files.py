"""Snapshot files: old or new after any crash, damage is noticed, received ones are checked."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
from crc32c import crc32c

from dledger.errors import CorruptFile, DiskFull, OffsetOutOfRange, StorageError
from dledger.files.files import Buffer, Mode
from dledger.files.memory_files import Fault, MemoryFile, MemoryFiles
from dledger.store.format import Base
from dledger.store.snapshot_file import Snapshot, decode_snapshot, encode_snapshot
from dledger.store.snapshot_files import SnapshotFiles, info_of
from dledger.types import Member, Membership, NodeId, SnapshotInfo
from tests.store.harness import DATA, GROUP

_DIRECTORY = DATA / "snapshots"
_MEMBERS = Membership.of([Member(id=NodeId("n1"), name="orders-0", address="a:1")], GROUP)


def _encoded(snapshot: Snapshot) -> bytes:
    return b"".join(encode_snapshot(snapshot))


def _snapshot(index: int, *, size: int = 2000, group_id: str = GROUP) -> Snapshot:
    return Snapshot(
        group_id=group_id,
        applied=Base(index=index, term=3, chain=77),
        base=Base(index=index // 2, term=2, chain=66),
        memberships=((1, _MEMBERS), (index, _MEMBERS)),
        body=bytes([index % 256]) * size,
    )


def _open(files: MemoryFiles) -> SnapshotFiles:
    files.make_dirs(DATA)
    return SnapshotFiles(files, _DIRECTORY, reserve_bytes=1000)


def _info(snapshot: Snapshot) -> SnapshotInfo:
    return info_of(snapshot, _encoded(snapshot))


def _receive(snapshots: SnapshotFiles, snapshot: Snapshot, info: SnapshotInfo) -> None:
    data = _encoded(snapshot)
    for offset in range(0, len(data), 700):
        snapshots.receive(info, offset, data[offset : offset + 700])


def test_a_snapshot_is_what_was_encoded() -> None:
    """All fields come back; equal snapshots give equal bytes."""
    snapshot = _snapshot(8)

    assert decode_snapshot(_encoded(snapshot)) == snapshot
    assert _encoded(_snapshot(8)) == _encoded(snapshot)


def test_every_truncated_or_flipped_file_is_refused() -> None:
    """The CRC covers everything but the magic word, the version and itself."""
    data = _encoded(_snapshot(8, size=50))

    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            decode_snapshot(data[:size])
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(ValueError, match=r"."):
            decode_snapshot(bytes(flipped))


def test_two_snapshots_are_kept() -> None:
    """The newest and the one before, oldest first."""
    files = MemoryFiles()
    snapshots = _open(files)
    for index in (5, 8, 12):
        snapshots.save(_snapshot(index))

    assert [found.applied.index for found in _open(files).load(GROUP)] == [8, 12]


def test_a_damaged_newest_one_is_left_out() -> None:
    """It does not push out the whole one when the next is written."""
    files = MemoryFiles()
    snapshots = _open(files)
    for index in (5, 8):
        snapshots.save(_snapshot(index))
    files.contents(_DIRECTORY / f"{8:020d}.snap")[100] ^= 1

    again = _open(files)
    found = again.load(GROUP)
    again.save(_snapshot(9))

    assert [one.applied.index for one in found] == [5]
    assert [one.applied.index for one in _open(files).load(GROUP)] == [5, 9]


def test_a_snapshot_of_another_group_is_refused() -> None:
    """Its directory was copied from elsewhere."""
    files = MemoryFiles()
    _open(files).save(_snapshot(5, group_id="other"))

    with pytest.raises(CorruptFile, match="it is of group 'other'"):
        _open(files).load(GROUP)


def _cut_anywhere(work: Callable[[SnapshotFiles], object]) -> list[list[int]]:
    """Save snapshot 5, then cut the power within *work*: what is left, cut later each time."""
    left = []
    for calls in range(1, 40):
        files = MemoryFiles()
        snapshots = _open(files)
        snapshots.save(_snapshot(5))
        for operation in ("open", "pwritev", "fdatasync", "rename", "fsync_dir", "remove"):
            files.inject(Fault(operation, errno.EIO, skip=calls - 1, times=1 << 30))
        try:
            work(snapshots)
            finished = True
        except StorageError:
            finished = False
        files.crash(Random(calls))
        files.heal()
        left.append([found.applied.index for found in _open(files).load(GROUP)])
        if finished:
            break
    return left


def test_a_power_cut_while_a_snapshot_is_written_leaves_the_old_one() -> None:
    """And the new one once it is whole."""
    left = _cut_anywhere(lambda snapshots: snapshots.save(_snapshot(8)))

    assert all(found in ([5], [5, 8]) for found in left)
    assert left[-1] == [5, 8]


def test_a_power_cut_while_a_snapshot_is_installed_leaves_the_old_one() -> None:
    """Pieces that were received before it are gone."""

    def work(snapshots: SnapshotFiles) -> None:
        snapshot = _snapshot(8)
        info = _info(snapshot)
        _receive(snapshots, snapshot, info)
        received = snapshots.received(info)
        assert received is not None
        snapshots.install(info, received)

    left = _cut_anywhere(work)

    assert all(found in ([5], [5, 8]) for found in left)
    assert left[-1] == [5, 8]


def test_a_received_snapshot_is_the_newest_and_then_the_only_one() -> None:
    """The log does not reach back to the older ones any more."""
    snapshots = _open(MemoryFiles())
    snapshots.save(_snapshot(5))
    info = _info(_snapshot(8))
    _receive(snapshots, _snapshot(8), info)
    received = snapshots.received(info)
    assert received is not None

    snapshots.install(info, received)
    snapshots.settle()

    assert snapshots.newest == info
    assert snapshots.load(GROUP) == [_snapshot(8)]
    assert snapshots.read(info, 8, 4) == _encoded(_snapshot(8))[8:12]


def test_what_arrived_damaged_or_incomplete_is_no_snapshot() -> None:
    """It is asked for anew."""
    snapshots = _open(MemoryFiles())
    info = _info(_snapshot(8))

    _receive(snapshots, _snapshot(8), replace(info, crc32c=info.crc32c ^ 1))
    assert snapshots.received(replace(info, crc32c=info.crc32c ^ 1)) is None
    snapshots.receive(info, 0, _encoded(_snapshot(8))[:700])
    assert snapshots.received(info) is None
    snapshots.discard()
    assert snapshots.received(info) is None


def test_a_snapshot_that_does_not_fit_is_refused_before_it_is_written() -> None:
    """Some room is always left for the hard state."""
    files = MemoryFiles(capacity_bytes=2500)
    snapshots = _open(files)

    with pytest.raises(DiskFull, match="no room for a snapshot of"):
        _receive(snapshots, _snapshot(8), _info(_snapshot(8)))
    assert snapshots.received(_info(_snapshot(8))) is None


def test_a_full_disk_leaves_the_old_snapshot_and_no_rest_of_the_new_one() -> None:
    """The next one is tried when there is room."""
    files = MemoryFiles()
    snapshots = _open(files)
    snapshots.save(_snapshot(5))
    files.inject(Fault("pwritev", errno.ENOSPC))

    with pytest.raises(DiskFull):
        snapshots.save(_snapshot(8))

    assert files.list(_DIRECTORY) == [f"{5:020d}.snap"]
    assert [found.applied.index for found in snapshots.load(GROUP)] == [5]


def test_a_removed_snapshot_cannot_be_read() -> None:
    """Whoever was being sent it gets a newer one."""
    snapshots = _open(MemoryFiles())
    for index in (5, 8, 12):
        snapshots.save(_snapshot(index))

    assert not snapshots.holds(_info(_snapshot(5)))
    with pytest.raises(OffsetOutOfRange):
        snapshots.read(_info(_snapshot(5)), 0, 10)


def test_a_file_of_another_length_is_refused() -> None:
    """Though its CRC fits: the end says how long it is, and the head how long its parts are."""
    whole = _encoded(_snapshot(8, size=50))
    data = b"more".join((whole[:-12], whole[-12:-4]))
    forged = data + crc32c(data).to_bytes(4, "little")

    with pytest.raises(ValueError, match=f"{len(forged)} bytes, the end says {len(whole)}"):
        decode_snapshot(forged)


def test_a_state_goes_to_the_disk_as_it_is_made() -> None:
    """Its pieces are never in memory together, and the file is that of the whole state."""
    files, snapshot = MemoryFiles(), _snapshot(8, size=9 << 20)
    snapshots, made, path = _open(files), [0], _DIRECTORY / f"{8:020d}.snap.new"
    ahead: list[int] = []

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(snapshot.body), 1 << 20):
            ahead.append(made[-1] - (len(files.contents(path)) if start >= 5 << 20 else 0))
            made.append(start + (1 << 20))
            yield bytes(snapshot.body[start : start + (1 << 20)])

    snapshots.save(replace(snapshot, body=b""), pieces())

    assert max(ahead) <= 5 << 20
    assert bytes(files.contents(_DIRECTORY / f"{8:020d}.snap")) == _encoded(snapshot)


def test_a_snapshot_that_goes_while_it_is_opened_was_removed() -> None:
    """The reader is another thread; what the disk cannot read back is an error of its own."""
    files = MemoryFiles()
    snapshots = _open(files)
    snapshots.save(_snapshot(5))
    files.inject(Fault("pread", errno.EIO))
    with pytest.raises(StorageError, match="cannot read snapshot"):
        snapshots.read(_info(_snapshot(5)), 0, 10)

    files.remove(_DIRECTORY / f"{5:020d}.snap")

    with pytest.raises(OffsetOutOfRange):
        snapshots.read(_info(_snapshot(5)), 0, 10)


def test_a_piece_without_a_beginning_is_not_kept() -> None:
    """The rest of a snapshot that was discarded: no file is made of it."""
    files = MemoryFiles()
    snapshots = _open(files)

    snapshots.receive(_info(_snapshot(8)), 700, b"late")

    assert files.list(_DIRECTORY) == []
    assert snapshots.received(_info(_snapshot(8))) is None


def test_a_large_snapshot_is_written_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sync has more than 4 MiB to wait for, so the log's own syncs get in between."""
    unsynced, write, sync = [0], MemoryFile.pwritev, MemoryFile.fdatasync

    def pwritev(file: MemoryFile, buffers: Sequence[Buffer], offset: int) -> None:
        unsynced[-1] += sum(map(len, buffers))
        write(file, buffers, offset)

    def fdatasync(file: MemoryFile) -> None:
        sync(file)
        unsynced.append(0)

    monkeypatch.setattr(MemoryFile, "pwritev", pwritev)
    monkeypatch.setattr(MemoryFile, "fdatasync", fdatasync)
    snapshot, snapshots = _snapshot(8, size=9 << 20), _open(MemoryFiles())

    assert snapshots.save(snapshot) == sum(unsynced)

    assert max(unsynced) <= 4 << 20
    assert unsynced[-1] == 0
    assert snapshots.load(GROUP) == [snapshot]


def test_a_try_that_did_not_end_leaves_a_mark_that_counts() -> None:
    """Also over a power cut; one that ended takes all marks away, for good."""
    files = MemoryFiles()
    for tries in (1, 2, 3):
        snapshots = _open(files)
        snapshots.load(GROUP)
        assert snapshots.unfinished == tries - 1
        snapshots.begin()
        files.crash(Random(tries))

    snapshots = _open(files)
    snapshots.load(GROUP)
    snapshots.begin()
    snapshots.save(_snapshot(8))

    assert snapshots.unfinished == 0
    again = _open(files)
    assert [found.applied.index for found in again.load(GROUP)] == [8]
    assert again.unfinished == 0


def test_a_mark_that_cannot_be_read_is_one_try() -> None:
    """Better one wait in vain than one death more."""
    files = MemoryFiles()
    snapshots = _open(files)
    snapshots.begin()
    files.open(_DIRECTORY / "taking", Mode.CREATE).pwritev([b"?"], 0)

    snapshots = _open(files)
    snapshots.load(GROUP)

    assert snapshots.unfinished == 1


def test_a_disk_without_room_is_no_death() -> None:
    """It has a name of its own, and the node lives on: no mark stays behind."""
    files = MemoryFiles()
    snapshots = _open(files)
    snapshots.begin()
    files.inject(Fault("pwritev", errno.ENOSPC, suffix=".snap.new"))

    with pytest.raises(DiskFull):
        snapshots.save(_snapshot(8))

    again = _open(files)
    again.load(GROUP)
    assert again.unfinished == 0
