"""Which kind of cluster there is to be."""

from __future__ import annotations

import shutil

from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.interface import Cluster
from e2e.cluster.kind import KindCluster, docker_answers
from e2e.cluster.local import LocalCluster

KINDS = ("auto", "local", "kind", "current")


def open_cluster(kind: str = "auto") -> Cluster:
    """Return a cluster of that kind, started or not.

    Args:
        kind: ``local``, ``kind``, ``current``, or ``auto``: kind where a Docker daemon answers
            and kind is installed, else local. Never ``current``, which may be anybody's.

    Raises:
        MissingPrerequisite: for an unknown kind.
    """
    chosen = automatic() if kind == "auto" else kind
    if chosen == "local":
        return LocalCluster()
    if chosen == "kind":
        return KindCluster()
    if chosen == "current":
        return CurrentCluster()
    raise MissingPrerequisite(f"cluster {kind!r} is none of {', '.join(KINDS)}")


def automatic() -> str:
    """Return ``kind`` or ``local``, by what this machine has."""
    return "kind" if shutil.which("kind") is not None and docker_answers() else "local"
