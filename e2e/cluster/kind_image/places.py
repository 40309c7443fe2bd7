"""Where things of this kind of cluster are, and what they are called. Values only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import base, golang
from e2e.cluster.layout import Layout

NAMESPACE = "dle2e-kind"
"""The network namespace in which Docker runs, and whoever asks the cluster."""
NODE_REPOSITORY = "dledger.io/e2e-kind-node"
BASE_REPOSITORY = "dledger.io/e2e-kind-base"
PROGRAMS = (
    golang.KUBERNETES,
    golang.KUBECTL,
    golang.KUBEADM,
    golang.ETCD,
    golang.COREDNS,
    golang.PAUSE,
    golang.CRICTL,
    golang.KIND,
    golang.KINDNODE,
)
PACKAGES = (
    *("systemd", "dbus", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux"),
    *("mount", "kmod", "libseccomp2", "pigz", "e2fsprogs", "ca-certificates", "curl", "jq"),
    *("procps", "containerd", "runc", "containernetworking-plugins", "socat"),
)
"""Of a node beside Debian's minimum: what kind's own image has, and a runtime."""
DEBIAN = base.Base(BASE_REPOSITORY, PACKAGES)


@dataclass(frozen=True, slots=True)
class Places:
    """Below the cache, but for the sockets."""

    layout: Layout

    @property
    def top(self) -> Path:
        """All of it; is deleted as a whole."""
        return self.layout.cache / "kind-image"

    @property
    def docker_program(self) -> Path:
        """Debian's package, unpacked."""
        return self.top / "docker"

    @property
    def docker_data(self) -> Path:
        """Docker's images and containers."""
        return self.top / "docker-data"

    @property
    def run(self) -> Path:
        """Docker's socket and pid file."""
        return Path("/run/dledger-e2e-kind")

    @property
    def socket(self) -> Path:
        """Where Docker listens."""
        return self.run / "docker.sock"

    @property
    def runc(self) -> Path:
        """The runtime's wrapper, where this machine lacks capabilities."""
        return self.top / "runc-with-what-there-is"

    @property
    def path(self) -> Path:
        """A directory with kind and Docker's client, to be first on the PATH; open to all."""
        return self.run / "bin"

    @property
    def config(self) -> Path:
        """Docker's configuration: without it Docker would read the machine's."""
        return self.top / "daemon.json"

    @property
    def client_config(self) -> Path:
        """What Docker's client keeps: else it would write into the user's home, and read there."""
        return self.top / "client"

    @property
    def strays(self) -> Path:
        """The record of what Docker was about to make elsewhere."""
        return self.top / "strays.json"

    @property
    def lock(self) -> Path:
        """Held by whoever makes, starts or ends any of it."""
        return self.layout.cache / "kind-image.lock"

    @property
    def uses(self) -> Path:
        """Shared by all whose command runs there."""
        return self.layout.cache / "kind-image.uses"

    @property
    def rootfs(self) -> Path:
        """A node's files while they are put together."""
        return self.top / "rootfs"


def tag() -> str:
    """Return the tag of the nodes' image: it changes with all that the image is made from."""
    digest = hashlib.sha256(" ".join((*map(golang.key, PROGRAMS), DEBIAN.name)).encode())
    for name in ("contents.py", "node.py", "../oci.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]
