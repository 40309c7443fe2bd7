"""Whatever cluster kubectl talks to at present. It is somebody's: nothing here makes or ends it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError, MissingPrerequisite
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.steps import Steps
from e2e.cluster.tools import KubernetesTools


def kubeconfig_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the kubeconfig that kubectl uses; of several, the first."""
    first = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(first) if first else Path(environment.get("HOME", "/root")) / ".kube" / "config"


class CurrentCluster(KubernetesTools):
    """See `e2e.cluster.interface.Cluster`; stories that break nodes are not for this one."""

    kind = "current"
    heavy_node = ""

    def __init__(self, layout: Layout | None = None, steps: Steps | None = None) -> None:
        super().__init__(layout or default_layout(), kubeconfig_path())
        self._steps = steps or Steps()

    def up(self) -> None:
        """Make sure that it answers."""
        if not self.is_up():
            raise MissingPrerequisite(
                f"the cluster of {self.kubeconfig} does not answer, or has no ready node; "
                "see: kubectl config current-context"
            )

    def down(self) -> None:
        """Leave it alone."""
        self._steps.say("the current cluster is not ours: left as it is")

    def purge(self) -> None:
        """Leave it alone."""
        self.down()

    def is_up(self) -> bool:
        """See `Cluster.is_up`."""
        return any(self.nodes_ready().values())

    def status(self) -> dict[str, Any]:
        """Return what ``status`` prints."""
        nodes = self.nodes_ready()
        return self.described(up=any(nodes.values()), nodes=nodes, state="not ours")

    def alias_image(self, name: str, alias: str) -> None:
        """Refuse: only a registry reaches the nodes of an unknown cluster."""
        raise ClusterError(f"cannot call {name} {alias} on the nodes of a cluster that is not ours")

    def cut_off(self, node: str) -> None:
        """Refuse."""
        raise ClusterError(f"node {node} is not ours to break")

    connect = lose_node = return_node = cut_off

    def load_image(self, archive: Path, name: str, nodes: Collection[str] | None = None) -> None:
        """Refuse: only a registry reaches the nodes of an unknown cluster."""
        where = ", ".join(nodes or ["the nodes"])
        raise ClusterError(
            f"cannot put {archive} into {where} of somebody's cluster; "
            f"push {name} to a registry they pull from"
        )

    def recycle_volumes(self) -> None:
        """Do nothing: the cluster has its own ways."""

    def stop_api_server(self) -> None:
        """Refuse."""
        self._refuse("stop the API server")

    def start_api_server(self) -> None:
        """Refuse."""
        self._refuse("start the API server")

    def _refuse(self, what: str) -> None:
        raise ClusterError(f"will not {what} of a cluster that is not ours; use --cluster local")
