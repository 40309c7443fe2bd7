"""Writes what the components read: keys, certificates, configuration, and their directories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from e2e.cluster import contents, mounts, pki, render
from e2e.cluster.layout import ClusterNode, Layout


def write(layout: Layout, nodes: Sequence[ClusterNode], pause_image: str) -> None:
    """Write every file and make every directory; nothing of an earlier cluster is there."""
    for directory in (layout.logs, layout.config, layout.pki):
        directory.mkdir(parents=True, mode=0o700)
    for path, text in (*key_files(layout, nodes), *config_files(layout, nodes, pause_image)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    for manifest in contents.volumes(layout, nodes):
        contents.directory(manifest).mkdir(parents=True)
    for node in nodes:
        (layout.node_state(node) / "kubelet").mkdir(parents=True)
        mounts.keep_in_memory(layout.node_state(node) / "containerd")
        layout.node_run(node).mkdir(parents=True)


def key_files(layout: Layout, nodes: Iterable[ClusterNode]) -> Iterable[tuple[Path, str]]:
    """Yield each key and certificate with its path, all signed by one new authority."""
    authority = pki.Authority()
    pairs = {
        "ca": authority.pair,
        "admin": authority.issue("admin", organization="system:masters"),
        "api-server": authority.issue("kube-apiserver", hosts=render.API_SERVER_HOSTS),
        "controller-manager": authority.issue("system:kube-controller-manager"),
        "scheduler": authority.issue("system:kube-scheduler"),
        "kube-proxy": authority.issue("system:kube-proxy"),
    }
    for node in nodes:
        user, hosts = f"system:node:{node.name}", (node.name, node.address)
        pairs[node.name] = authority.issue(user, organization="system:nodes", hosts=hosts)
    for name, pair in pairs.items():
        yield layout.pki / f"{name}.key", pair.key
        yield layout.pki / f"{name}.crt", pair.certificate
    service_accounts = pki.new_key()
    yield layout.pki / "service-accounts.key", pki.private_pem(service_accounts)
    yield layout.pki / "service-accounts.pub", pki.public_pem(service_accounts)


def config_files(
    layout: Layout, nodes: Iterable[ClusterNode], pause_image: str
) -> Iterable[tuple[Path, str]]:
    """Yield each configuration file with its path."""
    config = layout.config
    yield layout.kubeconfig, render.kubeconfig(layout, "admin")
    for user in ("controller-manager", "scheduler", "kube-proxy"):
        yield config / f"{user}.kubeconfig", render.kubeconfig(layout, user)
    for node in nodes:
        name = node.name
        containerd = render.containerd_config(layout, node, pause_image)
        yield config / f"containerd-{name}.toml", containerd
        yield config / f"cni-{name}" / "10-e2e.conflist", render.cni_config(layout, node)
        yield config / f"kubelet-{name}.yaml", render.kubelet_config(layout, node)
        yield config / f"kubelet-{name}.kubeconfig", render.kubeconfig(layout, name)
        yield config / f"kube-proxy-{name}.yaml", render.kube_proxy_config(layout, node)
