"""Which kind of cluster there is to be."""

from __future__ import annotations

import shutil

from e2e.cluster import docker
from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.interface import Cluster
from e2e.cluster.kind import KindCluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.steps import Steps

KINDS = ("auto", "local", "kind", "current")


def open_cluster(kind: str = "auto") -> Cluster:
    """Return a cluster of that kind, started or not.

    Args:
        kind: ``local``, ``kind``, ``current``, or ``auto``: kind where a Docker daemon answers
            and kind is installed, else local, which is said with the reason. Never ``current``,
            which may be anybody's.

    Raises:
        MissingPrerequisite: for an unknown kind.
    """
    chosen = kind
    if kind == "auto":
        chosen, reason = automatic()
        Steps().say(f"--cluster auto takes {chosen}: {reason}")
    if chosen == "local":
        return LocalCluster()
    if chosen == "kind":
        return KindCluster()
    if chosen == "current":
        return CurrentCluster()
    raise MissingPrerequisite(f"cluster {kind!r} is none of {', '.join(KINDS)}")


def automatic() -> tuple[str, str]:
    """Return ``kind`` or ``local``, by what this machine has, and why."""
    if shutil.which("kind") is None:
        return "local", "kind is not installed"
    if trouble := docker.find_trouble():
        return "local", f"kind is installed, but {trouble}"
    return "kind", "kind is installed, and a Docker daemon answers"
