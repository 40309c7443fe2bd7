"""Stops and deletes whatever is left of a local cluster, from any state it may be in."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e.cluster import cgroups, mounts, network, processes
from e2e.cluster.layout import API_PORT, NETWORK, ClusterNode, Layout
from e2e.cluster.shell import until

TIMEOUT_S = 20.0
LOG_LINKS = Path("/var/log/containers")
# Where kubelets, containerd and CNI plugins write whatever they are told.
LEFT = ("etc/cni", "var/lib/cni", "var/lib/kubelet", "run/containerd", "run/netns")


def take_down(layout: Layout, nodes: Sequence[ClusterNode]) -> None:
    """Leave no process, mount, interface, cgroup or file of the cluster.

    Who starts containers goes first, then the containers, then who looks after them; only
    when no process is left are mounts released, and only then is anything deleted.
    """
    running = processes.components(layout)
    starters = [
        pid
        for component, pids in running.items()
        if not component.startswith("containerd-")
        for pid in pids
    ]
    processes.kill(starters, "the control plane and kubelets")
    until(f"port {API_PORT} to be free", lambda: _port_is_left(layout), timeout_s=TIMEOUT_S)
    until("all containers to be gone", _kill_containers, timeout_s=TIMEOUT_S)
    until("all runtimes to be gone", lambda: _kill_marked(layout), timeout_s=TIMEOUT_S)
    mounts.delete([layout.run, layout.state])
    network.destroy(nodes)
    cgroups.remove()
    delete_log_links(layout.state)


def _port_is_left(layout: Layout) -> bool:
    # If it is somebody else's, `up` complains about that later.
    return port_is_free(API_PORT) or "kube-apiserver" not in processes.components(layout)


def _kill_containers() -> bool:
    found = processes.contained()
    processes.kill(found, "containers")
    return not found


def _kill_marked(layout: Layout) -> bool:
    found = [pid for pids in processes.components(layout).values() for pid in pids]
    processes.kill(found, "container runtimes")
    return not found


def port_is_free(port: int) -> bool:
    """Say whether nobody listens on a TCP port of this host, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - any listener at all is in the way
            probe.listen(1)
        except OSError:
            return False
    return True


def delete_log_links(state: Path, directory: Path = LOG_LINKS) -> None:
    """Delete the kubelet's links to logs of our pods; it puts them there whatever it is told."""
    if not directory.is_dir():
        return
    for link in directory.iterdir():
        if link.is_symlink() and link.readlink().is_relative_to(state):
            link.unlink()


def delete_what_is_left(layout: Layout, root: Path = Path("/")) -> None:
    """Delete what is ours, or nobody's, of what kubelets and containerd keep elsewhere.

    That is records of our pods' networks and of containers that ran in our directories, sockets on
    which nobody listens, locks of nothing, and directories without content. All else is somebody
    else's, and stays with its directories. So does everything where another kubelet or container
    runtime runs: even an empty directory may be one of its mounts.
    """
    if processes.runtimes():
        return
    netns = root / "run" / "netns"
    if netns.is_dir() and not any(netns.iterdir()):
        mounts.release([netns])
    for record in _records_of_networks(root / "var" / "lib" / "cni" / "results"):
        record.unlink(missing_ok=True)
    for state in (root / "run" / "containerd" / "runc").glob("*/*/state.json"):
        if _rootfs_in(state).is_relative_to(layout.run):
            state.unlink()
    for name in LEFT:
        _delete_nobodys(root / name)


def _delete_nobodys(top: Path) -> None:
    for directory, _, names in os.walk(top, topdown=False):
        for name in names:
            if _is_nobodys(Path(directory, name), alone=len(names) == 1):
                Path(directory, name).unlink()
        if not any(Path(directory).iterdir()):
            Path(directory).rmdir()


def _rootfs_in(state: Path) -> Path:
    """Return where a container of runc had its files; nowhere if *state* is of another version."""
    try:
        return Path(json.loads(state.read_text())["config"]["rootfs"])
    except (KeyError, TypeError, ValueError):
        return Path()


def _records_of_networks(results: Path) -> Iterator[Path]:
    """Yield what CNI keeps of our pods; their loopback devices are named by container alone."""
    for ours in results.glob(f"{NETWORK}-*-eth0"):
        container = ours.name.removeprefix(f"{NETWORK}-").removesuffix("-eth0")
        yield from (ours, ours.with_name(f"cni-loopback-{container}-lo"))


def _is_nobodys(path: Path, *, alone: bool) -> bool:
    if path.name == "cni.lock":
        return alone and path.stat().st_size == 0
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
