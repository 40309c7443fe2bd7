"""Where things are: directories, addresses and names. Values only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "dle2e"
BRIDGE_ADDRESS = "10.200.0.1"
NODE_RANGE = "10.200.0.0/24"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
DNS_DOMAIN = "cluster.local"
API_PORT = 6443
ETCD_PORT = 12379
ETCD_PEER_PORT = 12380
CGROUP = "dledger-e2e"
NETWORK = "dledger-e2e"
STORAGE_CLASS = "local"
NODE_IMAGE = "dledger.io/dledger"
SPARK_IMAGE = "dledger.io/dledger-spark"
WORKLOAD_IMAGE = "dledger.io/dledger-workload"
OUR_IMAGES = (NODE_IMAGE, SPARK_IMAGE, WORKLOAD_IMAGE)
VOLUMES_PER_NODE = 12


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One Kubernetes node: a network namespace, and a veth pair from there to the bridge."""

    index: int

    @property
    def name(self) -> str:
        """The node's name in Kubernetes."""
        return f"node-{self.index}"

    @property
    def zone(self) -> str:
        """Its ``topology.kubernetes.io/zone``: each node is a zone, so that spreading shows."""
        return f"zone-{self.index}"

    @property
    def namespace(self) -> str:
        """The network namespace."""
        return f"dle2e-{self.index}"

    @property
    def veth(self) -> str:
        """The host's end of the pair; the node's end is ``eth0``."""
        return f"dle2e-veth{self.index}"

    @property
    def address(self) -> str:
        """The node's address on the bridge."""
        return f"10.200.0.{10 + self.index}"

    @property
    def pod_range(self) -> str:
        """The addresses of its pods."""
        return f"10.244.{self.index}.0/24"

    @property
    def cgroup(self) -> str:
        """The cgroup below which all of its pods live, in every hierarchy."""
        return f"{CGROUP}/{self.name}"


NODES = tuple(ClusterNode(index) for index in (1, 2, 3))


@dataclass(frozen=True, slots=True)
class Layout:
    """Three directories: state and run last until ``down``, the cache survives that."""

    state: Path
    run: Path
    cache: Path

    @property
    def lock(self) -> Path:
        """Held by whoever starts or stops the cluster."""
        return self.run.with_name(f"{self.run.name}.lock")

    @property
    def uses(self) -> Path:
        """Shared by all processes that use the running cluster."""
        return self.run.with_name(f"{self.run.name}.uses")

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def config(self) -> Path:
        """Configuration files of the components."""
        return self.state / "config"

    @property
    def logs(self) -> Path:
        """One file for each component and tool."""
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "kubeconfig"

    @property
    def binaries(self) -> Path:
        """What was built from Go modules."""
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        """Image archives."""
        return self.cache / "images"

    @property
    def packages(self) -> Path:
        """The record of Debian packages that we installed, for ``purge``."""
        return self.cache / "apt-installed.json"

    @property
    def kernel_settings(self) -> Path:
        """The machine's settings from before the kubelets changed them, for ``down``."""
        return self.cache / "kernel-settings.json"

    def log(self, component: str) -> Path:
        """The log file of one component."""
        return self.logs / f"{component}.log"

    def node_state(self, node: ClusterNode) -> Path:
        """One node's disk: images, pods, kubelet."""
        return self.state / node.name

    def node_run(self, node: ClusterNode) -> Path:
        """One node's sockets and container state."""
        return self.run / node.name

    def containerd_socket(self, node: ClusterNode) -> Path:
        """Where one node's containerd listens."""
        return self.node_run(node) / "containerd.sock"

    def volumes(self, node: ClusterNode) -> Path:
        """The directories behind one node's local volumes."""
        return self.state / "volumes" / node.name


def default_layout(environment: Mapping[str, str] = os.environ) -> Layout:
    """The layout on this machine.

    ``DLEDGER_E2E_STATE`` and ``XDG_CACHE_HOME`` name the directories in which ours are made; ours
    are deleted as a whole. Only one local cluster can run on a machine, wherever its state is:
    addresses and interfaces are fixed.
    """
    home = environment.get("HOME") or "/root"
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(home) / ".cache")
    return Layout(
        state=Path(environment.get("DLEDGER_E2E_STATE") or "/var/lib") / "dledger-e2e",
        run=Path("/run/dledger-e2e"),
        cache=cache / "dledger-e2e",
    )
