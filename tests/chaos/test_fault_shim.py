"""The shim: each fault fires where it should, once, and only while the control file says so."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from dledger.files.files import Mode
from dledger.replica.log_clock import RealClock
from e2e.chaos.shim import (
    RENAME,
    SYNC,
    WRITE,
    Control,
    ControlFile,
    Faults,
    FaultyFile,
    FaultyFiles,
    JumpingClock,
)


class Shim:
    """Both ends of a control file, and one open file of 8 synced bytes."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"
        self.control = ControlFile(directory / "control.json")
        self.faults = Faults(directory / "control.json")
        self.files = FaultyFiles(self.faults)
        self.file: FaultyFile = self.files.open(self.path, Mode.CREATE)
        self.file.pwritev([b"original"], 0)
        self.file.fdatasync()

    def contents(self) -> bytes:
        """Return what the file holds."""
        return self.file.pread(self.file.size(), 0)


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    """Return a shim without faults."""
    return Shim(tmp_path)


def test_without_a_control_file_nothing_fails(shim: Shim) -> None:
    """A node that is left alone is the shipped one."""
    shim.file.pwritev([b"new"], 0)
    shim.file.fdatasync()

    assert shim.contents() == b"newginal"
    assert shim.control.fired() == 0


def test_a_write_fails_once_and_leaves_half(shim: Shim) -> None:
    """A torn write is the worst that may be there."""
    shim.control.set(Control(fail=WRITE))

    with pytest.raises(OSError, match="write error") as raised:
        shim.file.pwritev([b"NEW", b"DATA"], 0)

    assert raised.value.errno == errno.EIO
    assert shim.contents() == b"NEWginal"
    assert shim.control.fired() == 1
    shim.file.pwritev([b"again"], 0)


def test_a_failed_sync_may_take_back_what_was_written(shim: Shim) -> None:
    """The kernel marks pages clean that never reached the disk; they may be dropped."""
    shim.control.set(Control(fail=SYNC, loses=True))
    shim.file.pwritev([b"lost"], 2)
    shim.file.pwritev([b"gone"], 0)

    with pytest.raises(OSError, match="sync error"):
        shim.file.fdatasync()

    assert shim.contents() == b"original"


def test_a_failed_sync_may_leave_what_was_written(shim: Shim) -> None:
    """It may also be there: nobody knows."""
    shim.control.set(Control(fail=SYNC))
    shim.file.pwritev([b"kept"], 0)

    with pytest.raises(OSError, match="sync error"):
        shim.file.fdatasync()

    assert shim.contents() == b"keptinal"


def test_a_failed_rename_leaves_the_old_name(shim: Shim) -> None:
    """The target is not replaced."""
    shim.control.set(Control(fail=RENAME))

    with pytest.raises(OSError, match="rename error"):
        shim.files.rename(shim.path, shim.path.with_name("other"))

    assert shim.path.exists()


def test_a_fault_hits_only_the_files_it_names(shim: Shim) -> None:
    """So that a log may fail and the hard state not."""
    shim.control.set(Control(fail=SYNC, path="hard-state"))

    shim.file.fdatasync()

    assert shim.control.fired() == 0


def test_a_full_disk_lets_nothing_grow_and_everything_be_overwritten(shim: Shim) -> None:
    """As a file system without free blocks does; it says so, too."""
    shim.control.set(Control(full=True))

    shim.file.pwritev([b"ORIGINAL"], 0)
    with pytest.raises(OSError, match="no space"):
        shim.file.pwritev([b"more"], 8)
    with pytest.raises(OSError, match="no space"):
        shim.file.preallocate(100)

    assert shim.files.disk_usage(shim.path.parent).free_bytes == 0
    shim.control.set(Control())
    shim.file.preallocate(100)
    assert shim.files.disk_usage(shim.path.parent).free_bytes > 0


def test_a_quota_lets_nothing_grow_and_says_so_in_its_own_word(shim: Shim) -> None:
    """EDQUOT, as NFS and project quotas do."""
    shim.control.set(Control(full=True, quota=True))

    with pytest.raises(OSError, match="quota") as raised:
        shim.file.pwritev([b"more"], 8)

    assert raised.value.errno == errno.EDQUOT


def test_without_an_inode_no_file_is_made_and_those_there_are_grow(shim: Shim) -> None:
    """ENOSPC where a file is made."""
    shim.control.set(Control(no_inodes=True))

    with pytest.raises(OSError, match="inode") as raised:
        shim.files.open(shim.path.with_name("new"), Mode.CREATE)
    shim.files.open(shim.path, Mode.CREATE)
    shim.file.pwritev([b"more"], 8)

    assert raised.value.errno == errno.ENOSPC
    assert shim.control.fired() == 1


def test_a_slow_sync_takes_longer(shim: Shim) -> None:
    """And succeeds."""
    shim.control.set(Control(slow_s=0.2))
    started_s = time.monotonic()

    shim.file.fdatasync()

    assert time.monotonic() - started_s >= 0.2


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(shim: Shim) -> None:
    """Raft's time is monotonic; timestamps come from the wall clock."""
    clock, real = JumpingClock(shim.faults), RealClock()
    shim.control.set(Control(jump_ms=-3_600_000))

    assert real.unix_ms() - clock.unix_ms() >= 3_599_000
    assert abs(real.monotonic_s() - clock.monotonic_s()) < 60
