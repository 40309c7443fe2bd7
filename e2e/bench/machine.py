"""Facts of the machine that bound every figure: processor, memory, versions, the disk's limit."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from e2e.bench.figures import latency_figures, send_times
from e2e.bench.rows import Row
from e2e.cluster.shell import run

ROOT: Final = Path(__file__).resolve().parents[2]
_SPAN_BYTES: Final = 64 << 20
_WRITE_BYTES: Final = (64 << 10, 256 << 10, 1 << 20)
_WRITERS: Final = (1, 3)
MACHINE: Final = "machine"
DISK: Final = "disk"
SYNC: Final = "sync"
_PACED_BYTES: Final = 256 << 10
_PACED_PER_S: Final = 100
_STEAL: Final = 7
_T = TypeVar("_T")


def facts() -> dict[str, Any]:
    """Return what a reader has to know of the machine."""
    return {
        "cpu": _cpu_model(Path("/proc/cpuinfo").read_text("utf-8")),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model(cpuinfo: str) -> str:
    names = (line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line)
    return next(names, "unknown")


class Stolen:
    """Which part of the cores' time the hypervisor gave to others, since this was made."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._times()

    def percent(self) -> float:
        """Return it, in percent of all cores' time."""
        stolen, total = (now - then for now, then in zip(self._times(), self._before, strict=True))
        return round(100 * stolen / total, 1) if total else 0.0

    def _times(self) -> tuple[int, int]:
        """Return (steal, all), in ticks: the 8th figure of the first line, and all of it."""
        ticks = [int(figure) for figure in self._stat.read_text("ascii").split("\n")[0].split()[1:]]
        return ticks[_STEAL], sum(ticks[: _STEAL + 1])  # guests' time is in the user's already


class Busy:
    """What the cores worked for everybody, since this was made."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._ticks()

    def seconds(self) -> float:
        """Return it, in seconds of a core."""
        return (self._ticks() - self._before) / os.sysconf("SC_CLK_TCK")

    def _ticks(self) -> int:
        """Return all that is neither idle nor waiting for a disk nor stolen."""
        first = self._stat.read_text("ascii").split("\n")[0]
        user, nice, system, _, _, irq, soft_irq = map(int, first.split()[1 : _STEAL + 1])
        return user + nice + system + irq + soft_irq


def commit() -> str:
    """Return the checked-out commit, ``+`` behind it when files were changed."""
    short = _git("rev-parse", "--short=12", "HEAD").strip()
    return short + ("+" if _git("status", "--porcelain", "--untracked-files=no").strip() else "")


def _git(*arguments: str) -> str:
    return run("git", "-C", ROOT, *arguments)


def disk_rows(directory: Path, seconds: float) -> list[Row]:
    """Measure the disk: one writer, and three at once as the nodes on this machine are."""
    cases = [(size, writers) for writers in _WRITERS for size in _WRITE_BYTES]
    return [_disk_row(directory, size, writers, seconds) for size, writers in cases]


def _disk_row(directory: Path, size: int, writers: int, seconds: float) -> Row:
    rates = _at_once(writers, directory, lambda path: synced_rate(path, size, seconds))
    who = "one writer" if writers == 1 else f"{writers} writers, each"
    return Row(
        kind=DISK,
        system=MACHINE,
        name=f"write + fdatasync, {size >> 10} KiB, {who}",
        size_bytes=size,
        window=writers,
        figures={"each_mb_s": sum(rates) / writers, "total_mb_s": sum(rates)},
    )


def sync_row(directory: Path, seconds: float) -> Row:
    """Measure how long syncs take where the disk has time: no latency of a node is below that.

    Three writers at once, each 100 times a second, as three nodes write at half load; each sync
    counts from when it was due.
    """
    writers = max(_WRITERS)
    found = _at_once(writers, directory, lambda path: sync_latencies_us(path, seconds))
    rate = f"{_PACED_BYTES >> 10} KiB {_PACED_PER_S} times a second"
    return Row(
        kind=SYNC,
        system=MACHINE,
        name=f"write + fdatasync of {rate}, {writers} writers",
        size_bytes=_PACED_BYTES,
        window=writers,
        figures=latency_figures([latency for some in found for latency in some]),
    )


def sync_latencies_us(path: Path, seconds: float) -> list[float]:
    """Return how long each write with its fdatasync took, from when it was due."""
    with _preallocated(path) as fd:
        data, began_s = os.urandom(_PACED_BYTES), time.monotonic()
        latencies: list[float] = []
        for number, offset_s in enumerate(send_times(_PACED_PER_S, seconds)):
            due_s = began_s + offset_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            os.pwrite(fd, data, number * _PACED_BYTES % _SPAN_BYTES)
            os.fdatasync(fd)
            latencies.append((time.monotonic() - due_s) * 1e6)
        return latencies


def synced_rate(path: Path, size: int, seconds: float) -> float:
    """Return MB/s of writes of *size* bytes, each followed by fdatasync, in preallocated space."""
    with _preallocated(path) as fd:
        data, written, began_s = os.urandom(size), 0, time.monotonic()
        while time.monotonic() < began_s + seconds:
            os.pwrite(fd, data, written % _SPAN_BYTES)
            os.fdatasync(fd)
            written += size
        return written / (time.monotonic() - began_s) / 1e6


def _at_once(writers: int, directory: Path, measure: Callable[[Path], _T]) -> list[_T]:
    """Return what *measure* gives for files of its own, so many at once; they are removed."""
    files = [directory / f"disk-probe-{number}" for number in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        found = list(pool.map(measure, files))
    for path in files:
        path.unlink()
    return found


@contextmanager
def _preallocated(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.pwrite(fd, bytes(_SPAN_BYTES), 0)
        os.fsync(fd)
        yield fd
    finally:
        os.close(fd)
