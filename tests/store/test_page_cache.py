"""What is synced leaves the page cache (ADR 16); mincore(2) says what is in it."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from dledger.files.files import Mode, RealFiles
from dledger.store.commit_log import CommitLog
from tests.store.harness import entries, everything, format_disk

MIB = 1 << 20


def cached_bytes(path: Path) -> int:
    """Return how much of a file the page cache has, by pages."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(
            ctypes.byref(first), ctypes.c_size_t(len(mapped)), ctypes.byref(pages)
        )
        del first
    assert not failed
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory on a file system that drops pages when told to."""
    path = tmp_path / "probe"
    path.write_bytes(bytes(MIB))
    file = RealFiles().open(path, Mode.UPDATE)
    file.fdatasync()
    file.drop_cached(0, MIB)
    if cached_bytes(path):
        pytest.skip("this file system keeps its pages")
    return tmp_path


def open_log(directory: Path) -> CommitLog:
    identity = format_disk(RealFiles(), directory)
    return CommitLog.open(
        RealFiles(), directory / "log", identity=identity, segment_bytes=32 * MIB, reserve_bytes=0
    )


def append_synced(log: CommitLog, *, first: int, count: int) -> None:
    """Append so many entries of 1 MiB, each with a sync of its own."""
    for one in entries(first, first + count - 1, size=MIB):
        log.append([one])
        log.sync()


def test_what_is_synced_leaves_but_for_the_newest(directory: Path) -> None:
    """So the next writes take pages that are free already."""
    log = open_log(directory)

    append_synced(log, first=1, count=20)

    (segment,) = (directory / "log").glob("*.seg")
    assert cached_bytes(segment) < 10 * MIB
    assert everything(log) == entries(1, 20, size=MIB)


def test_the_newest_are_still_in_memory(directory: Path) -> None:
    """Readers at the end of the log do not wait for the disk."""
    log = open_log(directory)

    append_synced(log, first=1, count=20)

    assert list(log.recent(1, 20, 32 * MIB) or ()) == entries(1, 20, size=MIB)


def test_a_sealed_segment_leaves_wholly(directory: Path) -> None:
    """Also what came since it was last dropped from; but its last page, and what came with it."""
    log = open_log(directory)

    append_synced(log, first=1, count=40)

    sealed, _ = sorted((directory / "log").glob("*.seg"))
    assert cached_bytes(sealed) < 2 * MIB


def test_what_is_not_synced_stays(directory: Path) -> None:
    """A hint about bytes that are still on their way to the disk loses none."""
    path = directory / "f"
    file = RealFiles().open(path, Mode.CREATE)
    file.pwritev([b"x" * MIB], 0)

    file.drop_cached(0, MIB)

    assert file.pread(MIB, 0) == b"x" * MIB


def test_a_truncated_end_is_dropped_when_written_anew(directory: Path) -> None:
    """What is behind the cut counts from there."""
    log = open_log(directory)
    append_synced(log, first=1, count=20)

    for one in entries(5, 20, term=2, size=MIB):
        log.append([one])
        log.sync()

    (segment,) = (directory / "log").glob("*.seg")
    assert cached_bytes(segment) < 10 * MIB


def test_a_system_that_takes_no_hint_is_no_failure(tmp_path: Path) -> None:
    """The log goes on without."""
    file = RealFiles().open(tmp_path / "f", Mode.CREATE)
    file.close()

    file.drop_cached(0, MIB)
