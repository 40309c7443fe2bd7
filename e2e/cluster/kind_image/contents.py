"""The images that a node brings: Kubernetes' and the two that stand in for kind's, as one archive.

All but pause and CoreDNS are one image with one layer, under the names that kubeadm asks for: the
programs that it starts by name, and what kube-proxy and routes need of Debian.
"""

from __future__ import annotations

import io
import platform
import shutil
import tarfile
from pathlib import Path

from e2e.cluster import golang, oci
from e2e.cluster.layout import Layout
from e2e.cluster.render import Manifest, to_yaml
from e2e.cluster.shell import run

AGENT = f"dledger.io/e2e-{golang.KINDNODE.name}:1"
_PROGRAMS = (
    *("iptables", "iptables-save", "iptables-restore"),
    *("ip6tables", "ip6tables-save", "ip6tables-restore", "conntrack", "ip"),
)
_TABLES = f"usr/lib/{platform.machine()}-linux-gnu/xtables"


def names_by_image(listed: str, pause: str) -> dict[str, list[str]]:
    """Return the names that each of our images gets: by what it is, from what kubeadm lists.

    Args:
        listed: what ``kubeadm config images list`` prints.
        pause: the name of the pause image in the runtime's configuration.
    """
    names: dict[str, list[str]] = {"coredns": [], "pause": [pause], "kubernetes": [AGENT]}
    for name in listed.split():
        what = name.rpartition("/")[2].partition(":")[0]
        names.setdefault(what if what in names else "kubernetes", []).append(name)
    return names


def archive(layout: Layout, rootfs: Path, names: dict[str, list[str]]) -> bytes:
    """Return an archive with all images."""
    machine = platform.machine()
    layers = {
        "pause": oci.program_layer(golang.built(layout, golang.PAUSE).read_bytes()),
        "coredns": oci.program_layer(golang.built(layout, golang.COREDNS).read_bytes()),
        "kubernetes": _kubernetes(layout, rootfs),
    }
    entry = {"kubernetes": [], "pause": ["/program"], "coredns": ["/program"]}
    return oci.several(
        [(names[what], layer, entry[what]) for what, layer in layers.items()], machine=machine
    )


def _kubernetes(layout: Layout, rootfs: Path) -> bytes:
    """Return a layer with every program that a static pod or a DaemonSet starts by name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for path in sorted(find_needed(rootfs)):
            opened.add(rootfs / path, arcname=str(path), recursive=False)
        main = golang.built(layout, golang.KUBERNETES)
        opened.add(main, arcname="usr/local/bin/kubernetes")
        for name in golang.KUBERNETES.aliases:
            link = tarfile.TarInfo(f"usr/local/bin/{name}")
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, "kubernetes", 0o777
            opened.addfile(link)
        for program in (golang.ETCD, golang.KINDNODE):
            opened.add(golang.built(layout, program), arcname=f"usr/local/bin/{program.name}")
    return out.getvalue()


def find_needed(rootfs: Path) -> set[Path]:
    """Return paths below a Debian: what kube-proxy runs, with links and libraries."""
    found: set[Path] = set()
    for name in _PROGRAMS:
        program = shutil.which(name, path=f"{rootfs}/usr/sbin:{rootfs}/usr/bin:{rootfs}/sbin")
        # An absolute link of Debian's alternatives leads out of the tree: `which` does not find it.
        _follow(rootfs, Path(program) if program else rootfs / "usr" / "sbin" / name, found)
    for extension in sorted((rootfs / _TABLES).glob("*.so")):
        _follow(rootfs, extension, found)
    for path in sorted(found):
        if not (rootfs / path).is_symlink():
            listed = run("chroot", rootfs, "ldd", f"/{path}", check=False)
            for word in listed.split():
                if word.startswith("/"):
                    _follow(rootfs, rootfs / word[1:], found)
    found |= {Path("lib"), Path("lib64"), Path("sbin"), Path("bin"), Path("etc/alternatives")}
    return {path for path in found if (rootfs / path).exists() or (rootfs / path).is_symlink()}


def _follow(rootfs: Path, path: Path, found: set[Path]) -> None:
    """Add a path, and what it links to, with merged directories in their real place."""
    parent = Path(*path.relative_to(rootfs).parts[:-1])
    real = (rootfs / parent).resolve().relative_to(rootfs) if parent.parts else parent
    here = real / path.name
    if here in found:
        return
    found.add(here)
    if (rootfs / here).is_symlink():
        target = (rootfs / here).readlink()
        inside = (
            rootfs / target.relative_to("/") if target.is_absolute() else rootfs / real / target
        )
        _follow(rootfs, Path(str(inside)), found)


def network() -> str:
    """Return the manifest that kind applies for a cluster's network: our agent on every node."""
    named = {"name": golang.KINDNODE.name, "namespace": "kube-system"}
    labels = {"app": golang.KINDNODE.name}
    mounted = {"cni": "/etc/cni/net.d", "volumes": "/var/local-volumes"}
    container = {
        "name": "agent",
        "image": AGENT,
        "imagePullPolicy": "Never",
        "command": ["/usr/local/bin/kindnode"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "PATH", "value": "/usr/sbin:/usr/bin:/sbin:/bin"},
        ],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounted.items()],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
    }
    pod = {
        "hostNetwork": True,
        "serviceAccountName": golang.KINDNODE.name,
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, path in mounted.items()
        ],
    }
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {**named, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return to_yaml(*_account(named), daemon_set)


def _account(named: dict[str, str]) -> list[Manifest]:
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": named["name"]}
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "persistentvolumeclaims"], "verbs": ["list"]},
        {
            "apiGroups": [""],
            "resources": ["persistentvolumes"],
            "verbs": ["list", "create", "delete"],
        },
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": named["name"]},
            "rules": rules,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": named["name"]},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
    ]


def storage() -> str:
    """Return the manifest that kind applies for volumes: the class, which our agent serves."""
    return to_yaml(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "standard",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": f"dledger.io/{golang.KINDNODE.name}",
            "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Delete",
        }
    )
