"""Makes and removes the cgroups that the nodes' pods live in, in cgroup v1 and v2."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.layout import CGROUP, ClusterNode

MOUNTS = Path("/proc/mounts")
UNIFIED = Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def hierarchies(mounts: str) -> list[Path]:
    """Return where cgroups must be made, from the text of ``/proc/mounts``.

    Every mounted v1 hierarchy; or, on a machine with v2 only, its one mount. A v2 hierarchy
    mounted beside v1 carries no controllers, and nothing of ours goes there.
    """
    rows = [line.split() for line in mounts.splitlines()]
    first = [Path(row[1]) for row in rows if row[2] == "cgroup"]
    return first or [Path(row[1]) for row in rows if row[2] == "cgroup2"]


def all_mounted(mounts: str) -> list[Path]:
    """Return every cgroup mount: runc makes cgroups of its own in a v2 beside v1, too."""
    rows = [line.split() for line in mounts.splitlines()]
    return [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def create(nodes: Sequence[ClusterNode]) -> None:
    """Make each node's cgroup in every hierarchy, ready for children."""
    for hierarchy in hierarchies(MOUNTS.read_text()):
        for node in nodes:
            group = hierarchy
            for part in Path(node.cgroup).parts:
                _delegate(group)
                group /= part
                group.mkdir(exist_ok=True)
                _copy_cpuset(group)
            _delegate(group)


def _delegate(group: Path) -> None:
    """In v2, let children of *group* use its controllers."""
    control = group / "cgroup.subtree_control"
    if not control.exists() or not (group / "cgroup.controllers").exists():
        return
    offered = (group / "cgroup.controllers").read_text().split()
    for controller in V2_CONTROLLERS:
        if controller in offered:
            control.write_text(f"+{controller}")


def _copy_cpuset(group: Path) -> None:
    """In v1, a new cpuset is empty and nothing can enter it until it is filled."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = group / name
        if (group / "tasks").exists() and file.exists() and not file.read_text().strip():
            file.write_text((group.parent / name).read_text())


def remove() -> None:
    """Remove our cgroups from every hierarchy; one that is still busy stays."""
    for hierarchy in all_mounted(MOUNTS.read_text()):
        top = hierarchy / CGROUP
        if not top.exists():
            continue
        below = sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True)
        for group in [*below, top]:
            with contextlib.suppress(OSError):
                group.rmdir()
