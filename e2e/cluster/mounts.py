"""Finds and releases mounts below our own directories."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.shell import run

MOUNTINFO = Path("/proc/self/mountinfo")
MEMINFO = Path("/proc/meminfo")
NEEDED_MEMORY_KIB = 10 * 2**20
UMOUNT_BATCH = 50


def below(mountinfo: str, directories: Sequence[Path]) -> list[Path]:
    """Return the mount points at or below the directories, the last mounted first.

    Args:
        mountinfo: the text of ``/proc/self/mountinfo``; it escapes blanks in octal.
        directories: absolute.
    """
    points = [Path(_unescape(line.split()[4])) for line in mountinfo.splitlines()]
    ours = [each for each in points if any(each.is_relative_to(top) for top in directories)]
    return ours[::-1]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def available_kib(meminfo: str) -> int:
    """Return the memory that can be had without swapping, from the text of ``/proc/meminfo``."""
    return next(int(line.split()[1]) for line in meminfo.splitlines() if "MemAvailable:" in line)


def keep_in_memory(directory: Path) -> None:
    """Make a directory whose content is kept in memory, if there is plenty; else a plain one.

    Images are written and deleted as a whole: on a busy disk either takes half a minute.
    """
    directory.mkdir(parents=True)
    if available_kib(MEMINFO.read_text()) >= NEEDED_MEMORY_KIB:
        run("mount", "-t", "tmpfs", "-o", "mode=700", "dledger-e2e", directory)


def release(directories: Sequence[Path]) -> None:
    """Unmount everything at or below the directories.

    Raises:
        ClusterError: when a mount stays.
    """
    points = below(MOUNTINFO.read_text(), directories)
    for start in range(0, len(points), UMOUNT_BATCH):
        run("umount", *points[start : start + UMOUNT_BATCH], check=False)
    for point in below(MOUNTINFO.read_text(), directories):
        run("umount", "--lazy", point, check=False)
    left = below(MOUNTINFO.read_text(), directories)
    if left:
        raise ClusterError(f"still mounted, will not delete anything: {left}")


def delete(directories: Sequence[Path]) -> None:
    """Release the directories' mounts, then delete them with all they hold.

    The order is the point: a volume that is still mounted would be emptied through its mount.
    """
    release(directories)
    for directory in directories:
        if directory.exists():
            shutil.rmtree(directory)
