"""Faults under a real node: its files and its wall clock, steered by a control file.

The control file is JSON, replaced atomically by the nemesis and looked at on every call; a missing
one means no fault. What has fired is appended to ``<control>.fired``, one line each.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from dledger.files.files import Buffer, DiskUsage, File, Mode, RealFiles
from dledger.replica.log_clock import RealClock

WRITE: Final = "write"
SYNC: Final = "sync"
RENAME: Final = "rename"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The faults of one node.

    Attributes:
        fail: The call that fails with EIO, once: `WRITE`, `SYNC` or `RENAME`; empty: none.
        path: Only for files whose path has this in it.
        loses: Whether the failing sync takes back what was written since the last good one.
        full: Whether no file may grow.
        quota: Whether that is told as a quota (EDQUOT).
        no_inodes: Whether no file can be made.
        slow_s: What each sync takes longer.
        jump_ms: What is added to the wall clock.
    """

    fail: str = ""
    path: str = ""
    loses: bool = False
    full: bool = False
    quota: bool = False
    no_inodes: bool = False
    slow_s: float = 0.0
    jump_ms: int = 0


class ControlFile:
    """The nemesis' end of a control file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fired = path.with_suffix(".fired")

    def set(self, control: Control) -> None:
        """Make *control* true for the next call."""
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(control)), "utf-8")
        temporary.replace(self._path)

    def fired(self) -> int:
        """Return how many calls have failed, or were slow, by a fault so far."""
        return len(self._fired.read_bytes().splitlines()) if self._fired.exists() else 0


class Faults:
    """The node's end: what is wrong now. Used by several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = (-1, -1)
        self._control = Control()
        self._spent = False
        self._lock = Lock()

    def now(self) -> Control:
        """Return the control that holds for this call."""
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_ino)
        except FileNotFoundError:
            return Control()
        with self._lock:
            if version != self._version:
                self._version, self._spent = version, False
                self._control = Control(**json.loads(self._path.read_bytes()))
            return self._control

    def fails(self, call: str, path: Path) -> Control | None:
        """Return the control if this call is the one that must fail; it does so once."""
        control = self.now()
        with self._lock:
            if self._spent or control.fail != call or control.path not in str(path):
                return None
            self._spent = True
        self.note(f"{call} {path}")
        return control

    def note(self, what: str) -> None:
        """Write down that a fault has fired."""
        with self._path.with_suffix(".fired").open("a", encoding="utf-8") as fired:
            fired.write(what + "\n")


class JumpingClock(RealClock):
    """The machine's clocks; the wall clock may be elsewhere. Monotonic time never jumps."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def unix_ms(self) -> int:
        """Return the wall clock and what it has jumped by."""
        return super().unix_ms() + self._faults.now().jump_ms


class FaultyFile:
    """A real file whose calls may fail."""

    def __init__(self, inner: File, path: Path, faults: Faults) -> None:
        self._inner = inner
        self._path = path
        self._faults = faults
        self._unsynced: list[tuple[int, bytes]] = []

    def size(self) -> int:
        """Return the length in bytes."""
        return self._inner.size()

    def pread(self, size: int, offset: int) -> bytes:
        """Return *size* bytes from *offset*."""
        return self._inner.pread(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write, or fail with half of it written, or refuse to grow."""
        size_bytes = sum(map(len, buffers))
        if self._faults.now().full and offset + size_bytes > self._inner.size():
            raise self._full()
        if self._faults.fails(WRITE, self._path) is not None:
            self._inner.pwritev([b"".join(buffers)[: size_bytes // 2]], offset)
            raise OSError(errno.EIO, "chaos: write error", str(self._path))
        if self._faults.now().loses:
            self._unsynced.append((offset, self._inner.pread(size_bytes, offset)))
        self._inner.pwritev(buffers, offset)

    def preallocate(self, size: int) -> None:
        """Reserve, or refuse to grow."""
        if self._faults.now().full and size > self._inner.size():
            raise self._full()
        self._inner.preallocate(size)

    def fdatasync(self) -> None:
        """Sync late, or fail; then the kernel may have dropped what was not on disk yet."""
        if slow_s := self._faults.now().slow_s:
            self._faults.note(f"slow {self._path}")
            time.sleep(slow_s)
        failing = self._faults.fails(SYNC, self._path)
        if failing is None:
            self._inner.fdatasync()
            self._unsynced.clear()
            return
        for offset, before in reversed(self._unsynced if failing.loses else ()):
            self._inner.pwritev([before], offset)
        raise OSError(errno.EIO, "chaos: sync error", str(self._path))

    def drop_cached(self, offset: int, size: int) -> None:
        """Pass the hint on."""
        self._inner.drop_cached(offset, size)

    def close(self) -> None:
        """Close."""
        self._inner.close()

    def _full(self) -> OSError:
        self._faults.note(f"full {self._path}")
        if self._faults.now().quota:
            return OSError(errno.EDQUOT, "chaos: quota exceeded", str(self._path))
        return OSError(errno.ENOSPC, "chaos: no space", str(self._path))


class FaultyFiles(RealFiles):
    """Real files whose calls may fail."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def open(self, path: Path, mode: Mode) -> FaultyFile:
        """Open *path*; a new file needs an inode."""
        if mode is Mode.CREATE and self._faults.now().no_inodes and not path.exists():
            self._faults.note(f"no inode {path}")
            raise OSError(errno.ENOSPC, "chaos: no inode", str(path))
        return FaultyFile(super().open(path, mode), path, self._faults)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, or fail without having done it."""
        if self._faults.fails(RENAME, target) is not None:
            raise OSError(errno.EIO, "chaos: rename error", str(target))
        super().rename(source, target)

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Return what there is; a full disk has nothing free."""
        usage = super().disk_usage(directory)
        return usage._replace(free_bytes=0) if self._faults.now().full else usage
