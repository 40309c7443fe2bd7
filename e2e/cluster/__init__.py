"""The clusters that the stories run on: one interface, three ways to have one.

``python -m e2e.cluster --help`` is the same on the command line.
"""

from __future__ import annotations

from e2e.cluster.choose import open_cluster
from e2e.cluster.errors import ClusterError, CommandFailed, MissingPrerequisite, TimedOut
from e2e.cluster.interface import Cluster

__all__ = [
    "Cluster",
    "ClusterError",
    "CommandFailed",
    "MissingPrerequisite",
    "TimedOut",
    "open_cluster",
]
