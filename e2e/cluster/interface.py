"""What a story may ask of a cluster, whatever it is made of."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Pid(NamedTuple):
    """A process: its id on this machine, or on a node that has processes of its own."""

    number: int
    node: str = ""


class Cluster(Protocol):
    """A Kubernetes cluster with three nodes.

    Attributes:
        kind: ``local``, ``kind`` or ``current``.
        heavy_node: the node that has the images which one node is enough for, such as Spark's.
        kubeconfig: the administrator's.
    """

    kind: str
    heavy_node: str
    kubeconfig: Path

    def up(self) -> None:
        """Start the cluster, from whatever state it is in; at once if it is healthy."""

    def down(self) -> None:
        """Stop the cluster and delete its state; fine if there is none."""

    def purge(self) -> None:
        """Stop the cluster and take away all that having one put on this machine."""

    def status(self) -> dict[str, Any]:
        """Return ``kind``, ``up``, ``kubeconfig``, ``nodes`` (name -> ready) and more."""

    def is_up(self) -> bool:
        """Say whether API server, nodes and DNS all work."""

    def load_image(self, archive: Path, name: str, nodes: Collection[str] | None = None) -> None:
        """Put the image of an OCI archive into every node that does not have that digest.

        Args:
            archive: an ``oci-archive`` file.
            name: the image's full name with its tag, as in the archive.
            nodes: only into these.
        """

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name subprocess uses
        check: bool = True,
        timeout_s: float = 60,
    ) -> str:
        """Run kubectl against this cluster and return what it prints."""

    def helm(self, *args: str) -> str:
        """Run helm against this cluster and return what it prints."""

    def stop_api_server(self) -> None:
        """Take the API server away; running pods need nothing else of the control plane."""

    def start_api_server(self) -> None:
        """Bring the API server back; returns when it is ready again."""

    def container_pids(self, namespace: str, pod: str, container: str = "") -> list[Pid]:
        """Return the processes of a pod's container, its first process first.

        Without a name it is the container that the pod's spec lists first, sidecars left out.

        Asks the API server; the ids stay good while it is away.
        """

    def kill_pid(self, pid: Pid, signal: int = 9) -> None:
        """Send a signal to a process that `container_pids` named; gone already is no error."""

    def alias_image(self, name: str, alias: str) -> None:
        """Give an image that every node has a second name, as a new version would have."""

    def cut_off(self, node: str) -> None:
        """Take a node's network away: what runs there goes on and reaches nobody."""

    def connect(self, node: str) -> None:
        """Give a node its network back; fine if it has it."""

    def lose_node(self, node: str) -> None:
        """Take a node away for good: its kubelet, what runs there, and its Node."""

    def return_node(self, node: str) -> None:
        """Give the cluster a node of that name again, with an empty Node; fine if it is there."""

    def recycle_volumes(self) -> None:
        """Empty every volume whose claim is gone and offer it anew. Call it when a story ends."""

    def diagnostics(self, dest: Path) -> None:
        """Collect in *dest* what explains a failed story; what cannot be had is left out."""
