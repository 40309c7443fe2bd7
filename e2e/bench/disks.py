"""Disks that can be made to hang: a file system of its own for each node, frozen as a whole.

A frozen file system takes no write and no sync until it is thawed; who tries waits in the kernel,
where not even SIGKILL reaches. Needs root, loop devices and the tools of e2fsprogs and util-linux.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.cluster.shell import run
from e2e.harness.nodes import NodeSpec

_TOOLS: Final = ("mkfs.ext4", "mount", "umount", "fsfreeze")
_SIZE_BYTES: Final = 4 << 30


def why_not() -> str:
    """Return what is missing on this machine; empty when disks can be frozen here."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    return f"needs {', '.join(missing)}" if missing else ""


class Disks:
    """One file system for each node, in a sparse file, mounted where its data goes."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self._mounts = [spec.directory for spec in specs]
        self._mounted: list[Path] = []
        self._frozen: set[Path] = set()

    def mount(self) -> None:
        """Make and mount them. Raises CommandFailed."""
        for mount in self._mounts:
            mount.mkdir(parents=True, exist_ok=True)
            image = mount.with_suffix(".img")
            with image.open("wb") as file:
                file.truncate(_SIZE_BYTES)
            run("mkfs.ext4", "-q", "-F", image)
            run("mount", "-o", "loop", image, mount)
            self._mounted.append(mount)

    def freeze(self, index: int) -> None:
        """Let one node's disk hang."""
        self._frozen.add(self._mounts[index])
        run("fsfreeze", "--freeze", self._mounts[index])

    def thaw(self) -> None:
        """Let every disk go on."""
        for mount in sorted(self._frozen):
            run("fsfreeze", "--unfreeze", mount, check=False)
        self._frozen.clear()

    def unmount(self) -> None:
        """Thaw, unmount and remove them."""
        self.thaw()
        for mount in self._mounted:
            run("umount", mount)
            mount.with_suffix(".img").unlink()
        self._mounted.clear()
