"""What is read from the machine: routes, mounts, cgroups, processes, answers of the API."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import api, cgroups, mounts, network, processes, teardown
from e2e.cluster.layout import NETWORK, NODES, default_layout

MOUNTINFO = """\
22 1 254:0 / / rw - ext4 /dev/vda rw
40 22 0:30 / /run/e2e/node-1/netns rw - tmpfs tmpfs rw
41 22 0:31 / /run/e2e/with\\040blank rw - tmpfs tmpfs rw
42 22 0:32 / /run/e2e-other rw - tmpfs tmpfs rw
43 40 0:33 / /run/e2e/node-1/netns/cni-1 rw - nsfs nsfs rw
"""
V1_MOUNTS = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
V2_MOUNTS = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"


def test_routes_that_cover_part_of_a_range_are_found() -> None:
    """A VPN's route for all of 10/8 is in the way; a default route is not."""
    assert network.overlapping(["default", "10.0.0.0/8", "192.168.0.0/16", "10.96.3.4"]) == [
        "10.0.0.0/8",
        "10.96.3.4",
    ]


def test_every_range_is_a_blackhole_first() -> None:
    """A request to a cluster address must not leave the machine while there is no cluster."""
    lines = network.blackhole_commands()

    assert len(lines) == len(network.RANGES)
    assert all("blackhole" in line and "metric" in line for line in lines)


def test_every_node_knows_the_way_to_all_other_pods() -> None:
    """And only to those: its own are on its own bridge."""
    lines = network.node_commands(NODES[0], NODES)

    ranges = [line.split()[2] for line in lines if line.startswith("route add 10.")]
    assert ranges == [node.pod_range for node in NODES[1:]]


def test_mounts_are_released_from_the_inside_out() -> None:
    """Only ours, and the last mounted first."""
    assert mounts.below(MOUNTINFO, [Path("/run/e2e")]) == [
        Path("/run/e2e/node-1/netns/cni-1"),
        Path("/run/e2e/with blank"),
        Path("/run/e2e/node-1/netns"),
    ]


def test_available_memory_is_read_in_kibibytes() -> None:
    """From the line of /proc/meminfo that counts what can be freed."""
    assert mounts.available_kib("MemTotal: 9 kB\nMemAvailable:   7 kB\n") == 7


def test_pods_live_in_v1_hierarchies_where_there_are_any() -> None:
    """A v2 beside them has no controllers, but runc leaves cgroups there all the same."""
    assert cgroups.hierarchies(V1_MOUNTS) == [Path("/sys/fs/cgroup/memory")]
    assert cgroups.hierarchies(V2_MOUNTS) == [Path("/sys/fs/cgroup")]
    assert Path("/sys/fs/cgroup/unified") in cgroups.all_mounted(V1_MOUNTS)


def test_a_component_is_known_by_the_mark_of_its_state_directory() -> None:
    """Another cluster's components, or a shell that sets our variables, are not ours."""
    environ = b"HOME=/root\0DLEDGER_E2E_COMPONENT=/state:kubelet-node-1\0"

    assert processes.component_of(environ, Path("/state")) == "kubelet-node-1"
    assert processes.component_of(environ, Path("/stat")) is None
    assert processes.component_of(b"", Path("/state")) is None


def test_containers_are_known_by_their_cgroup() -> None:
    """In v1 and in v2; a cgroup whose name merely begins alike is another's."""
    assert processes.in_cgroup("4:memory:/dledger-e2e/node-1/kubepods/pod1/abc\n3:cpu:/\n")
    assert processes.in_cgroup("0::/dledger-e2e/node-2/kubepods/pod1/abc\n")
    assert not processes.in_cgroup("4:memory:/dledger-e2e-other/node-1\n0::/\n")


def test_a_containers_processes_are_found_whatever_names_its_cgroup() -> None:
    """The systemd driver decorates the id, the cgroupfs driver does not."""
    texts = {7: "0::/kubepods/cri-containerd-abc.scope\n", 5: "4:cpu:/x/abc\n", 9: "0::/def\n"}

    assert processes.of_container(texts, "abc") == [5, 7]


def test_a_killed_process_is_dead_though_nobody_has_reaped_it() -> None:
    """A zombie holds no port and no file."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert processes.alive(child.pid)
        processes.kill([child.pid], "the child")
        assert not processes.alive(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_signal_to_a_process_that_is_gone_is_no_error() -> None:
    """It is as dead as was wanted."""
    child = subprocess.Popen(["true"])
    child.wait()

    processes.send(child.pid, signal.SIGKILL)


def test_we_are_none_of_the_processes_that_may_be_killed() -> None:
    """A cluster's own environment may have been handed down to us."""
    assert os.getpid() not in set(processes.pids())


@pytest.mark.parametrize(("status", "names"), [("True", ["a"]), ("False", []), ("Unknown", [])])
def test_a_node_is_ready_when_its_condition_says_so(status: str, names: list[str]) -> None:
    """Unknown is what a lost node is."""
    node = {
        "metadata": {"name": "a"},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }

    assert api.nodes_ready({"items": [node]}) == names


def test_volumes_are_recycled_when_their_claim_is_gone_only() -> None:
    """Data of a bound claim is never touched."""
    phases = ("Available", "Bound", "Released", "Failed")
    items = [{"metadata": {"name": each}, "status": {"phase": each}} for each in phases]

    assert api.released_volumes({"items": items}) == ["Released", "Failed"]


def test_only_links_to_our_pods_logs_are_deleted(tmp_path: Path) -> None:
    """The directory belongs to every kubelet of the machine."""
    (tmp_path / "ours").symlink_to("/state/node-1/pod-logs/x.log")
    (tmp_path / "theirs").symlink_to("/var/log/pods/x.log")

    teardown.delete_log_links(Path("/state"), tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["theirs"]


def _socket_at(path: Path) -> socket.socket:
    """Listen at a path, and make its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


def _container_in(rootfs: Path) -> None:
    """Leave what runc keeps of a container that was killed."""
    state = Path("run/containerd/runc/k8s.io", rootfs.parent.name, "state.json")
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"config": {"rootfs": str(rootfs)}}))


def test_what_kubelets_and_containerd_leave_goes_with_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write these whatever their configuration says."""
    monkeypatch.setattr(processes, "runtimes", list)
    results = tmp_path / "var/lib/cni/results"
    for name in ("etc/cni/net.d", "var/lib/cni/results", "var/lib/kubelet/pods", "run/netns"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/cni/net.d/cni.lock").touch()
    for name in (f"{NETWORK}-4a-eth0", "cni-loopback-4a-lo"):
        (results / name).write_text("{}")
    monkeypatch.chdir(tmp_path)  # a socket's path has 107 bytes at most
    for name in ("var/lib/kubelet/device-plugins/kubelet.sock", "run/containerd/s/68c1"):
        _socket_at(Path(name)).close()
    _container_in(default_layout().run / "node-1/4a/rootfs")

    teardown.delete_what_is_left(default_layout(), Path())

    for name in teardown.LEFT:
        assert not (tmp_path / name).exists()


def test_a_dead_kubelet_is_none_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours are killed a moment before, and nobody may have reaped them yet."""
    (tmp_path / "17").mkdir()
    (tmp_path / "17/comm").write_text("kubelet\n")
    (tmp_path / "17/cmdline").touch()
    monkeypatch.setattr(processes, "PROC", tmp_path)

    assert processes.runtimes() == []


def test_nothing_is_deleted_where_another_kubelet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods' empty directories are in use."""
    (tmp_path / "proc/17").mkdir(parents=True)
    (tmp_path / "proc/17/comm").write_text("kubelet\n")
    (tmp_path / "proc/17/cmdline").write_text("kubelet\0")
    (tmp_path / "var/lib/kubelet/pods/a/volumes").mkdir(parents=True)
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")

    teardown.delete_what_is_left(default_layout(), tmp_path)

    assert (tmp_path / "var/lib/kubelet/pods/a/volumes").exists()


def test_what_is_somebody_elses_stays_with_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container runtime of the machine's own: its sockets answer, its networks have its names."""
    monkeypatch.setattr(processes, "runtimes", list)
    results = tmp_path / "var/lib/cni/results"
    for name in ("etc/cni/net.d", "var/lib/cni/results", "var/lib/kubelet/pki"):
        (tmp_path / name).mkdir(parents=True)
    for path in (results / "podman-4a-eth0", results / "cni-loopback-4a-lo"):
        path.write_text("{}")
    theirs = ("etc/cni/net.d/cni.lock", "etc/cni/net.d/87-podman.conflist", "var/lib/kubelet/pki/k")
    for name in theirs:
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    _container_in(Path("/var/lib/containers/5b/rootfs"))
    other = Path("run/containerd/runc/moby/6c/state.json")
    other.parent.mkdir(parents=True)
    other.write_text('{"of": "another version"}')
    before = {path for path in tmp_path.rglob("*") if not path.is_dir()}

    with _socket_at(Path("run/containerd/containerd.sock")):
        teardown.delete_what_is_left(default_layout(), Path())

    assert {path for path in tmp_path.rglob("*") if not path.is_dir()} >= before
    assert (tmp_path / "run/containerd/containerd.sock").exists()
