"""A real Kubernetes on this machine, without Docker and without a registry.

etcd and the control plane run on the host, each node's containerd, kubelet and kube-proxy in a
network namespace. The order of what happens is here; what the components are told is in `render`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.cluster import (
    api,
    base,
    cgroups,
    contents,
    files,
    golang,
    kernel,
    lock,
    mounts,
    network,
    packages,
    processes,
    render,
    teardown,
)
from e2e.cluster.errors import ClusterError, MissingPrerequisite
from e2e.cluster.kind_image.places import Places
from e2e.cluster.layout import API_PORT, NODES, ClusterNode, Layout, default_layout
from e2e.cluster.runtime import Runtime, system_image
from e2e.cluster.shell import tail, until
from e2e.cluster.steps import Steps
from e2e.cluster.tools import KubernetesTools

API_TIMEOUT_S = 90.0
NODES_TIMEOUT_S = 120.0
RUNTIME_TIMEOUT_S = 60.0
ABSENT_S = 2.0
"""For how long a component shows no process before it is taken for ended."""
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
DNS_PATH = "/apis/apps/v1/namespaces/kube-system/daemonsets/coredns"


class LocalCluster(KubernetesTools):
    """See `e2e.cluster.interface.Cluster`.

    Args:
        layout: where its state, sockets and built programs are.
        steps: told what is being done.
    """

    kind = "local"
    heavy_node = NODES[-1].name

    def __init__(self, layout: Layout | None = None, steps: Steps | None = None) -> None:
        chosen = layout or default_layout()
        super().__init__(chosen, chosen.kubeconfig)
        self.nodes = NODES
        self._steps = steps or Steps()

    # --- up ----------------------------------------------------------------------------------

    def up(self) -> None:
        """See `Cluster.up`. From then on, as long as this process lives, no other takes it down."""
        require_root()
        with lock.held(self.layout.lock, self._steps):
            if self.is_up():
                lock.use(self.layout.uses)
                self._steps.say(f"the cluster is up already; kubeconfig {self.kubeconfig}")
                return
            lock.require_unused(self.layout.uses)
            for line in self.intentions():
                self._steps.say(line)
            network.lay_blackholes()
            self._provide_programs()
            teardown.take_down(self.layout, self.nodes)
            self._require_free()
            self._start()
            lock.use(self.layout.uses)
            self._steps.say(f"the cluster is up; kubeconfig {self.kubeconfig}")

    def intentions(self) -> list[str]:
        """Say what `up` will install, build and start, and where its state will lie."""
        absent = packages.missing(packages.CLUSTER_PACKAGES)
        unbuilt = [
            each.name
            for each in golang.CLUSTER_PROGRAMS
            if not golang.built(self.layout, each).exists()
        ]
        names = ", ".join(node.name for node in self.nodes)
        return [
            f"Debian packages to install: {', '.join(absent) or 'none'}",
            f"Go programs to build: {', '.join(unbuilt) or 'none'}",
            "to start: etcd, API server, controller manager, scheduler, CoreDNS",
            f"to start, each in a network namespace: {names} (containerd, kubelet, kube-proxy)",
            f"state {self.layout.state}, sockets {self.layout.run}, cache {self.layout.cache}",
            f"addresses {', '.join(network.RANGES)}",
        ]

    def _provide_programs(self) -> None:
        packages.ensure(self.layout, packages.CLUSTER_PACKAGES, self._steps)
        for program in golang.CLUSTER_PROGRAMS:
            golang.ensure(self.layout, program, self._steps)
        for program in (golang.PAUSE, golang.COREDNS):
            system_image(self.layout, program)

    def _require_free(self) -> None:
        foreign = network.foreign_routes()
        if foreign:
            raise MissingPrerequisite(
                f"this machine routes {', '.join(foreign)}, which the cluster needs for itself; "
                "remove those routes, or use another machine"
            )
        if not teardown.port_is_free(API_PORT):
            raise MissingPrerequisite(
                f"port {API_PORT} is in use by something else; stop it (see: ss -ltnp)"
            )

    def _start(self) -> None:
        with self._steps.step("write keys and configuration"):
            files.write(self.layout, self.nodes, system_image(self.layout, golang.PAUSE)[0])
        kernel.remember(self.layout)
        with self._steps.step("network and cgroups"):
            network.build(self.nodes)
            cgroups.create(self.nodes)
        with ThreadPoolExecutor() as pool:
            self._spawn("etcd", render.etcd(self.layout))
            self._spawn("kube-apiserver", render.api_server(self.layout))
            runtimes = [pool.submit(self._start_runtime, node) for node in self.nodes]
            self._await_api_server()
            self._spawn("kube-controller-manager", render.controller_manager(self.layout))
            self._spawn("kube-scheduler", render.scheduler(self.layout))
            for node, runtime in zip(self.nodes, runtimes, strict=True):
                runtime.result()
                self._start_node(node)
            pool.submit(self._apply_contents).result()
        self._await_nodes()

    def _start_runtime(self, node: ClusterNode) -> None:
        component = f"containerd-{node.name}"
        command = render.containerd(self.layout, node)
        self._spawn(component, render.in_namespace(node, command))
        with self._steps.step(f"container runtime and system images of {node.name}"):
            runtime = Runtime(self.layout, node)
            answer = f"{component} to answer"
            self._await(answer, runtime.answers, (component,), RUNTIME_TIMEOUT_S)
            for program in (golang.PAUSE, golang.COREDNS):
                name, archive = system_image(self.layout, program)
                runtime.load(archive, name)

    def _start_node(self, node: ClusterNode) -> None:
        component, before = f"kubelet-{node.name}", _identity(DEVICE_PLUGINS)
        self._spawn(component, render.in_namespace(node, render.kubelet(self.layout, node)))
        # All kubelets of a machine have this one path: each removes what is there, then listens.
        # One that does so between another's two steps ends that one.
        self._await(
            f"{component} to listen for device plugins",
            lambda: _identity(DEVICE_PLUGINS) not in {None, before},
            (component,),
            RUNTIME_TIMEOUT_S,
        )
        kube_proxy = render.kube_proxy(self.layout, node)
        self._spawn(f"kube-proxy-{node.name}", render.in_namespace(node, kube_proxy))

    def _apply_contents(self) -> None:
        with self._steps.step("storage class, volumes and DNS"):
            manifests = [
                *contents.dns(system_image(self.layout, golang.COREDNS)[0]),
                contents.storage_class(),
                *contents.volumes(self.layout, self.nodes),
            ]
            self.kubectl("create", "-f", "-", input=render.to_yaml(*manifests))

    def _await_api_server(self) -> None:
        with self._steps.step("API server ready"):
            self._await(
                "the API server to be ready",
                lambda: api.ready(self.layout),
                ("etcd", "kube-apiserver"),
                API_TIMEOUT_S,
            )

    def _await_nodes(self) -> None:
        with self._steps.step(f"{len(self.nodes)} nodes and DNS ready"):
            self._await(
                "all nodes and DNS to be ready",
                lambda: self._nodes_ready() and self._dns_ready(),
                self._components(),
                NODES_TIMEOUT_S,
            )

    def _spawn(self, component: str, command: list[str]) -> None:
        processes.spawn(self.layout, component, command)

    def _await(
        self, what: str, condition: Callable[[], bool], needed: Iterable[str], timeout_s: float
    ) -> None:
        """Wait for a condition, but not longer than the components live that it needs."""
        missed_s: dict[str, float] = {}

        def check() -> bool:
            nonlocal missed_s
            if condition():
                return True
            # A process that is being replaced by `exec` shows no environment for a moment: a long
            # one, where the program is read from a cold disk.
            absent, now_s = set(needed) - processes.components(self.layout).keys(), time.monotonic()
            missed_s = {each: missed_s.get(each, now_s) for each in absent}
            if dead := sorted(each for each in absent if now_s - missed_s[each] >= ABSENT_S):
                raise ClusterError(f"{', '.join(dead)} ended by itself\n{self._log_ends(dead)}")
            return False

        until(what, check, timeout_s=timeout_s, detail=lambda: self._log_ends(needed))

    def _log_ends(self, components: Iterable[str]) -> str:
        logs = [self.layout.log(each) for each in components]
        return "\n".join(f"--- {log}\n{tail(log)}" for log in logs)

    # --- is it up ----------------------------------------------------------------------------

    def is_up(self) -> bool:
        """See `Cluster.is_up`."""
        running = processes.components(self.layout)
        return (
            all(each in running for each in self._components())
            and api.ready(self.layout)
            and self._nodes_ready()
            and self._dns_ready()
        )

    def status(self) -> dict[str, Any]:
        """Return what ``status`` prints."""
        running, ready = processes.components(self.layout), api.ready_nodes(self.layout)
        return self.described(
            up=self.is_up(),
            nodes={node.name: node.name in ready for node in self.nodes},
            components={each: running.get(each, []) for each in self._components()},
            state=str(self.layout.state),
        )

    def _components(self) -> list[str]:
        control_plane = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        kinds = ("containerd", "kubelet", "kube-proxy")
        return control_plane + [f"{kind}-{node.name}" for node in self.nodes for kind in kinds]

    def _nodes_ready(self) -> bool:
        return len(api.ready_nodes(self.layout)) == len(self.nodes)

    def _dns_ready(self) -> bool:
        return api.daemon_set_ready(api.get(self.layout, DNS_PATH), len(self.nodes))

    # --- down --------------------------------------------------------------------------------

    def down(self) -> None:
        """See `Cluster.down`. The blackhole routes stay."""
        require_root()
        with lock.held(self.layout.lock, self._steps):
            lock.require_unused(self.layout.uses)
            with self._steps.step("take the cluster down"):
                network.lay_blackholes()
                teardown.take_down(self.layout, self.nodes)
                kernel.restore(self.layout)

    def purge(self) -> None:
        """Leave nothing: the cluster, the cache, the packages we installed, the routes."""
        require_root()
        if Places(self.layout).run.exists():  # its images are in the cache, and in use
            raise MissingPrerequisite(
                "a Docker of ours runs for kind; first `python -m e2e.cluster.kind_image purge`"
            )
        with lock.held(self.layout.lock, self._steps):
            lock.require_unused(self.layout.uses)
            with self._steps.step("take the cluster down"):
                teardown.take_down(self.layout, self.nodes)
                kernel.restore(self.layout)
            teardown.delete_what_is_left(self.layout)
            packages.remove(self.layout, self._steps)
            with self._steps.step(f"delete {self.layout.cache}"):
                base.forget()
                mounts.delete([self.layout.cache])
            network.lift_blackholes()
        self.layout.uses.unlink(missing_ok=True)
        self.layout.lock.unlink(missing_ok=True)

    # --- images ------------------------------------------------------------------------------

    def load_image(self, archive: Path, name: str, nodes: Collection[str] | None = None) -> None:
        """See `Cluster.load_image`."""
        chosen = self.nodes if nodes is None else [self._node(each) for each in nodes]
        with (
            self._steps.step(f"load {name} into {', '.join(node.name for node in chosen)}"),
            ThreadPoolExecutor() as pool,
        ):
            list(pool.map(lambda node: Runtime(self.layout, node).load(archive, name), chosen))

    # --- trouble, on request -----------------------------------------------------------------

    def stop_api_server(self) -> None:
        """See `Cluster.stop_api_server`."""
        found = processes.components(self.layout).get("kube-apiserver", [])
        processes.kill(found, "the API server")

    def start_api_server(self) -> None:
        """See `Cluster.start_api_server`."""
        if "kube-apiserver" not in processes.components(self.layout):
            self._spawn("kube-apiserver", render.api_server(self.layout))
        self._await_api_server()

    def alias_image(self, name: str, alias: str) -> None:
        """See `Cluster.alias_image`."""
        for node in self.nodes:
            Runtime(self.layout, node).alias(name, alias)

    def cut_off(self, node: str) -> None:
        """See `Cluster.cut_off`: the host's end of its cable is down."""
        network.set_cable(self._node(node), up=False)

    def connect(self, node: str) -> None:
        """See `Cluster.connect`."""
        network.set_cable(self._node(node), up=True)

    def lose_node(self, node: str) -> None:
        """See `Cluster.lose_node`: a kubelet makes its Node only when it starts.

        What it ran goes on, reaching nobody, until the kubelet is back and finds it unwanted.
        """
        self.cut_off(node)
        kubelet = processes.components(self.layout).get(f"kubelet-{node}", [])
        processes.kill(kubelet, f"the kubelet of {node}")
        self.kubectl("delete", "node", node)

    def return_node(self, node: str) -> None:
        """See `Cluster.return_node`."""
        found = self._node(node)
        self.connect(node)
        if f"kubelet-{node}" not in processes.components(self.layout):
            kubelet = render.kubelet(self.layout, found)
            self._spawn(f"kubelet-{node}", render.in_namespace(found, kubelet))
        self._await_nodes()

    def _node(self, name: str) -> ClusterNode:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"no node {name!r}; there are {[node.name for node in self.nodes]}")

    def recycle_volumes(self) -> None:
        """See `Cluster.recycle_volumes`."""
        volume_list = api.get(self.layout, "/api/v1/persistentvolumes")
        if volume_list is None:
            raise ClusterError("the API server does not answer; are its volumes to be recycled?")
        names = api.released_volumes(volume_list)
        if not names:
            return
        every = contents.volumes(self.layout, self.nodes)
        ours = [each for each in every if each["metadata"]["name"] in names]
        self.kubectl("delete", "persistentvolume", *names)
        for manifest in ours:
            directory = contents.directory(manifest)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        self.kubectl("create", "-f", "-", input=render.to_yaml(*ours))

    def diagnostics(self, dest: Path) -> None:
        """See `Cluster.diagnostics`; with the logs of all components."""
        super().diagnostics(dest)
        if self.layout.logs.exists():
            shutil.copytree(self.layout.logs, dest / "components", dirs_exist_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one at the same path; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def require_root() -> None:
    """Raise MissingPrerequisite unless we are root."""
    if os.geteuid() != 0:
        raise MissingPrerequisite(
            "the local cluster makes network namespaces and cgroups: run this as root (sudo), "
            "or use --cluster kind where there is Docker"
        )
