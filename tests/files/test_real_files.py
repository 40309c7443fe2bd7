"""The same store on the operating system's files, and one process per directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.errors import CorruptFile, DirectoryLocked, DiskFull, WrongIdentity
from dledger.files.files import Files, Mode, RealFiles
from dledger.files.memory_files import MemoryFiles
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import Identity, join, load_or_format, lock_directory
from dledger.store.two_copies import both
from dledger.types import HardState, NodeId
from tests.store.harness import entries, entry, everything, format_disk


def open_log(directory: Path, identity: Identity) -> CommitLog:
    return CommitLog.open(
        RealFiles(),
        directory / "log",
        identity=identity,
        segment_bytes=1 << 20,
        reserve_bytes=0,
    )


def test_log_and_hard_state_are_there_after_a_restart(tmp_path: Path) -> None:
    """Several segments, a truncation, a large entry and a spare; then everything again."""
    files = RealFiles()
    identity = format_disk(files, tmp_path)
    log = open_log(tmp_path, identity)
    log.prepare()
    log.append(entries(1, 3000, size=1000))
    log.append([entry(2500, term=2, data=b"L" * (3 << 20)), entry(2501, term=2)])
    log.sync()
    HardStateFile(files, tmp_path).save(HardState(2, NodeId("wähler")))
    expected = everything(log)
    log.close()

    reopened = open_log(tmp_path, load_or_format(files, tmp_path, "orders-0"))

    assert everything(reopened) == expected
    assert reopened.synced_index == 2501
    assert HardStateFile(files, tmp_path).load() == HardState(2, NodeId("wähler"))


def test_more_buffers_than_one_system_call_takes(tmp_path: Path) -> None:
    """IOV_MAX is 1024; a group of more is still one write for the caller."""
    file = RealFiles().open(tmp_path / "f", Mode.CREATE)

    file.pwritev([bytes([i % 251]) for i in range(5000)], 3)

    assert file.pread(6000, 3) == bytes(i % 251 for i in range(5000))


def test_writers_and_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Readers in threads see whole entries while the writer appends and truncates."""
    log = open_log(tmp_path, format_disk(RealFiles(), tmp_path))
    log.append(entries(1, 50, size=3000))
    errors: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                assert [e.index for e in log.read(20, 50, 1 << 20)] == list(range(20, 51))
                assert log.term(log.first_index) == 1
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for term in range(2, 40):
        log.append(entries(51, 60 + term, term, size=2000))
        log.sync()
        log.prepare()
    done.set()
    for thread in threads:
        thread.join()

    assert errors == []


def test_formatting_gives_a_fresh_id_once(tmp_path: Path) -> None:
    """The id stays; the group is joined once."""
    files = RealFiles()
    fresh = load_or_format(files, tmp_path / "a", "orders-0")
    other = load_or_format(files, tmp_path / "b", "orders-0")

    joined = join(files, tmp_path / "a", fresh, "gruppe-ß")

    assert fresh.node_id != other.node_id
    assert fresh.group_id == ""
    assert load_or_format(files, tmp_path / "a", "orders-0") == joined
    assert joined == Identity(node_id=fresh.node_id, group_id="gruppe-ß", name="orders-0")
    assert join(files, tmp_path / "a", joined, "gruppe-ß") == joined


def test_disk_of_another_name_or_group_is_refused(tmp_path: Path) -> None:
    """Both values are in the message."""
    files = RealFiles()
    joined = join(files, tmp_path, load_or_format(files, tmp_path, "orders-0"), "g1")

    with pytest.raises(WrongIdentity, match="name orders-0, but this is name orders-1"):
        load_or_format(files, tmp_path, "orders-1")
    with pytest.raises(WrongIdentity, match="group g1, but this is group g2"):
        join(files, tmp_path, joined, "g2")


def test_log_without_identity_is_not_formatted_over(tmp_path: Path) -> None:
    """A lost identity file is damage, not an empty disk."""
    files = RealFiles()
    log = open_log(tmp_path, format_disk(files, tmp_path))
    log.append([entry(1)])
    for path in both(tmp_path / "identity.json"):
        path.unlink()

    with pytest.raises(CorruptFile, match=r"identity.json: missing, but log/0+1.seg exists"):
        load_or_format(files, tmp_path, "orders-0")


def test_vote_without_identity_is_not_formatted_over(tmp_path: Path) -> None:
    """A node that voted has an identity."""
    files = RealFiles()
    format_disk(files, tmp_path)
    HardStateFile(files, tmp_path).save(HardState(1, None))
    for path in both(tmp_path / "identity.json"):
        path.unlink()

    with pytest.raises(CorruptFile, match="a hard state exists"):
        load_or_format(files, tmp_path, "orders-0")


def test_foreign_files_do_not_keep_a_disk_from_being_formatted(tmp_path: Path) -> None:
    """A fresh ext4 volume has lost+found; an interrupted format left its own files."""
    files = RealFiles()
    (tmp_path / "lost+found").mkdir()
    interrupted = load_or_format(files, tmp_path, "orders-0")
    for path in both(tmp_path / "identity.json"):
        path.unlink()

    assert load_or_format(files, tmp_path, "orders-0").node_id != interrupted.node_id


def test_two_processes_cannot_use_one_directory(tmp_path: Path) -> None:
    """The second is told which directory; closing the first frees it."""
    files = RealFiles()
    held = lock_directory(files, tmp_path)

    with pytest.raises(DirectoryLocked, match=str(tmp_path)):
        lock_directory(files, tmp_path)

    held.close()
    lock_directory(files, tmp_path).close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB of its own."""
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or not mount or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_really_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    """The kernel's own ENOSPC: the log is unchanged, a vote can be saved, room brings it back."""
    files = RealFiles()
    ballast = small_disk / "ballast"
    identity = format_disk(files, small_disk / "data")
    log = open_log(small_disk / "data", identity)
    log.append(entries(1, 100, size=1000))
    ballast.write_bytes(bytes(1 << 20))
    expected = everything(log)

    with pytest.raises(DiskFull):
        log.append(entries(101, 2000, size=1000))

    assert everything(log) == expected
    HardStateFile(files, small_disk / "data").save(HardState(3, NodeId("voted")))
    ballast.unlink()
    log.append(entries(101, 1500, size=1000))
    log.sync()
    log.close()
    reopened = open_log(small_disk / "data", identity)
    assert reopened.last_index == 1500
    reopened.close()


def test_a_read_that_the_kernel_cuts_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer bytes than asked for mean the end of the file, and nothing else."""
    file = RealFiles().open(tmp_path / "f", Mode.CREATE)
    file.pwritev([bytes(range(100))], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 7), offset))

    assert file.pread(50, 10) == bytes(range(10, 60))
    assert file.pread(50, 90) == bytes(range(90, 100))


def test_a_write_that_the_kernel_cuts_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the byte where it stopped, across buffers."""
    file = RealFiles().open(tmp_path / "f", Mode.CREATE)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwrite(fd, data[0][:3], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))

    file.pwritev([bytes(range(40)), bytes(range(40, 60))], 5)

    assert file.pread(100, 5) == bytes(range(60))


@pytest.fixture(params=["real", "memory"])
def either_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    """A file system and an empty directory of it: the one in memory is held to the same rules."""
    return (RealFiles() if request.param == "real" else MemoryFiles()), tmp_path


def test_a_lock_has_one_holder_until_it_is_closed(either_files: tuple[Files, Path]) -> None:
    """The file stays; a second close does not take the lock from the next holder."""
    files, directory = either_files
    held = files.lock(directory / "lock")
    with pytest.raises(BlockingIOError):
        files.lock(directory / "lock")

    held.close()
    next_holder = files.lock(directory / "lock")
    held.close()

    with pytest.raises(BlockingIOError):
        files.lock(directory / "lock")
    next_holder.close()


def test_what_is_closed_or_gone_is_an_error(either_files: tuple[Files, Path]) -> None:
    """Never an empty read."""
    files, directory = either_files
    file = files.open(directory / "f", Mode.CREATE)
    file.close()
    files.remove(directory / "f")

    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)
    with pytest.raises(FileNotFoundError):
        files.remove(directory / "f")
    with pytest.raises(FileNotFoundError):
        files.open(directory / "f", Mode.READ)


def test_made_directories_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of each that is new is synced in its parent, from the outermost missing one on."""
    files, synced = RealFiles(), list[Path]()
    monkeypatch.setattr(files, "fsync_dir", synced.append)

    files.make_dirs(tmp_path / "a" / "b")
    files.make_dirs(tmp_path / "a" / "b")

    assert sorted(synced) == [tmp_path, tmp_path / "a"]
