"""A real Kubernetes on this machine, without Docker and without a registry.

etcd and the control plane run on the host, each node's containerd, kubelet and kube-proxy in a
network namespace. The order of what happens is here; what the components are told is in `render`.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.cluster import (
    api,
    cgroups,
    golang,
    lock,
    mounts,
    network,
    oci,
    packages,
    pki,
    processes,
    render,
)
from e2e.cluster.errors import ClusterError, MissingPrerequisite
from e2e.cluster.layout import API_PORT, NODES, Layout, Node, default_layout
from e2e.cluster.shell import run, tail, until
from e2e.cluster.steps import Steps
from e2e.cluster.tools import KubernetesTools

API_TIMEOUT_S = 90.0
NODES_TIMEOUT_S = 120.0
PORT_TIMEOUT_S = 20.0
IMPORT_TIMEOUT_S = 300.0
DNS_PATH = "/apis/apps/v1/namespaces/kube-system/daemonsets/coredns"


class LocalCluster(KubernetesTools):
    """See `e2e.cluster.interface.Cluster`.

    Args:
        layout: where its state, sockets and built programs are.
        steps: told what is being done.
    """

    kind = "local"

    def __init__(self, layout: Layout | None = None, steps: Steps | None = None) -> None:
        chosen = layout or default_layout()
        super().__init__(chosen, chosen.kubeconfig)
        self.nodes = NODES
        self._steps = steps or Steps()

    # --- up ----------------------------------------------------------------------------------

    def up(self) -> None:
        """See `Cluster.up`."""
        require_root()
        with lock.held(self.layout.lock, self._steps):
            if self.is_up():
                self._steps.say(f"the cluster is up already; kubeconfig {self.kubeconfig}")
                return
            for line in self.intentions():
                self._steps.say(line)
            network.lay_blackholes()
            self._provide_programs()
            self._teardown()
            self._require_free()
            self._start()
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
            f"to start: etcd, API server, controller manager, scheduler; {names} as network "
            "namespaces, each with containerd, kubelet, kube-proxy; CoreDNS",
            f"state {self.layout.state}, sockets {self.layout.run}, cache {self.layout.cache}, "
            f"addresses {', '.join(network.RANGES)}",
        ]

    def _provide_programs(self) -> None:
        packages.ensure(self.layout, packages.CLUSTER_PACKAGES, self._steps)
        for program in golang.CLUSTER_PROGRAMS:
            golang.ensure(self.layout, program, self._steps)
        for program in (golang.PAUSE, golang.COREDNS):
            self._image(program)

    def _require_free(self) -> None:
        foreign = network.foreign_routes()
        if foreign:
            raise MissingPrerequisite(
                f"this machine routes {', '.join(foreign)}, which the cluster needs for itself; "
                "remove those routes, or use another machine"
            )
        if not port_is_free(API_PORT):
            raise MissingPrerequisite(
                f"port {API_PORT} is in use by something else; stop it (see: ss -ltnp)"
            )

    def _start(self) -> None:
        with self._steps.step("write keys and configuration"):
            self._write_files()
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

    def _write_files(self) -> None:
        for directory in (self.layout.logs, self.layout.config, self.layout.pki):
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        for path, text in self._files():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
        for manifest in render.volumes(self.layout, self.nodes):
            Path(manifest["spec"]["local"]["path"]).mkdir(parents=True)
        for node in self.nodes:
            (self.layout.node_state(node) / "kubelet").mkdir(parents=True)
            mounts.keep_in_memory(self.layout.node_state(node) / "containerd")
            self.layout.node_run(node).mkdir(parents=True)

    def _files(self) -> Iterable[tuple[Path, str]]:
        yield from key_files(self.layout, self.nodes)
        config, pause = self.layout.config, self._image(golang.PAUSE)[0]
        for user in ("controller-manager", "scheduler", "kube-proxy"):
            yield config / f"{user}.kubeconfig", render.kubeconfig(self.layout, user)
        yield self.kubeconfig, render.kubeconfig(self.layout, "admin")
        for node in self.nodes:
            name = node.name
            yield (
                config / f"containerd-{name}.toml",
                render.containerd_config(self.layout, node, pause),
            )
            yield config / f"cni-{name}" / "10-e2e.conflist", render.cni_config(self.layout, node)
            yield config / f"kubelet-{name}.yaml", render.kubelet_config(self.layout, node)
            yield config / f"kubelet-{name}.kubeconfig", render.kubeconfig(self.layout, name)
            yield config / f"kube-proxy-{name}.yaml", render.kube_proxy_config(self.layout, node)

    def _start_runtime(self, node: Node) -> None:
        component = f"containerd-{node.name}"
        command = render.containerd(self.layout, node)
        self._spawn(component, render.in_namespace(node, command))
        with self._steps.step(f"container runtime and system images of {node.name}"):
            self._await(f"{component} to answer", lambda: self._answers(node), (component,), 60.0)
            for program in (golang.PAUSE, golang.COREDNS):
                name, archive = self._image(program)
                self._import(node, archive, name)

    def _answers(self, node: Node) -> bool:
        return self.layout.containerd_socket(node).exists() and bool(
            self._ctr(node, "version", check=False)
        )

    def _start_node(self, node: Node) -> None:
        kubelet = render.kubelet(self.layout, node)
        self._spawn(f"kubelet-{node.name}", render.in_namespace(node, kubelet))
        kube_proxy = render.kube_proxy(self.layout, node)
        self._spawn(f"kube-proxy-{node.name}", render.in_namespace(node, kube_proxy))

    def _apply_contents(self) -> None:
        with self._steps.step("storage class, volumes and DNS"):
            manifests = [
                *render.dns(self._image(golang.COREDNS)[0]),
                render.storage_class(),
                *render.volumes(self.layout, self.nodes),
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

        missed: set[str] = set()

        def check() -> bool:
            nonlocal missed
            if condition():
                return True
            # A process that is being replaced by `exec` shows no environment for a moment.
            absent = self._absent(needed)
            self._require_none(absent & missed)
            missed = absent
            return False

        until(what, check, timeout_s=timeout_s, detail=lambda: self._log_ends(needed))

    def _absent(self, needed: Iterable[str]) -> set[str]:
        return set(needed) - processes.components(self.layout).keys()

    def _require_none(self, dead: set[str]) -> None:
        if dead:
            names = sorted(dead)
            raise ClusterError(f"{', '.join(names)} ended by itself\n{self._log_ends(names)}")

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
        running = processes.components(self.layout)
        return {
            "kind": self.kind,
            "up": self.is_up(),
            "kubeconfig": str(self.kubeconfig),
            "nodes": {node.name: node.name in self._ready_names() for node in self.nodes},
            "components": {each: running.get(each, []) for each in self._components()},
            "state": str(self.layout.state),
            "cache": str(self.layout.cache),
        }

    def _components(self) -> list[str]:
        control_plane = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        kinds = ("containerd", "kubelet", "kube-proxy")
        return control_plane + [f"{kind}-{node.name}" for node in self.nodes for kind in kinds]

    def _ready_names(self) -> list[str]:
        return api.ready_nodes(self.layout)

    def _nodes_ready(self) -> bool:
        return len(self._ready_names()) == len(self.nodes)

    def _dns_ready(self) -> bool:
        return api.daemon_set_ready(api.get(self.layout, DNS_PATH), len(self.nodes))

    # --- down --------------------------------------------------------------------------------

    def down(self) -> None:
        """See `Cluster.down`. The blackhole routes stay."""
        require_root()
        with lock.held(self.layout.lock, self._steps), self._steps.step("take the cluster down"):
            network.lay_blackholes()
            self._teardown()

    def purge(self) -> None:
        """Leave nothing: the cluster, the cache, the packages we installed, the routes."""
        require_root()
        with lock.held(self.layout.lock, self._steps):
            with self._steps.step("take the cluster down"):
                self._teardown()
            packages.remove(self.layout, self._steps)
            with self._steps.step(f"delete {self.layout.cache}"):
                mounts.delete([self.layout.cache])
            network.lift_blackholes()
        self.layout.lock.unlink(missing_ok=True)

    def _teardown(self) -> None:
        """Stop and delete whatever is left of a cluster, from any state.

        Who starts containers goes first, then the containers, then who looks after them; only
        when no process is left are mounts released, and only then is anything deleted.
        """
        running = processes.components(self.layout)
        runtimes = {name: ids for name, ids in running.items() if name.startswith("containerd-")}
        others = [pid for name, ids in running.items() if name not in runtimes for pid in ids]
        processes.kill(others, "the control plane and kubelets")
        until(f"port {API_PORT} to be free", self._port_is_ours_to_take, timeout_s=PORT_TIMEOUT_S)
        until("all containers to be gone", self._kill_containers, timeout_s=PORT_TIMEOUT_S)
        until("all container runtimes to be gone", self._kill_rest, timeout_s=PORT_TIMEOUT_S)
        mounts.delete([self.layout.run, self.layout.state])
        network.destroy(self.nodes)
        cgroups.remove()
        delete_dead_log_links(self.layout.state)

    def _port_is_ours_to_take(self) -> bool:
        # Somebody else's server on that port is for `_require_free` to complain about.
        return port_is_free(API_PORT) or "kube-apiserver" not in processes.components(self.layout)

    def _kill_containers(self) -> bool:
        found = processes.contained()
        processes.kill(found, "containers")
        return not found

    def _kill_rest(self) -> bool:
        found = [pid for ids in processes.components(self.layout).values() for pid in ids]
        processes.kill(found, "container runtimes")
        return not found

    # --- images ------------------------------------------------------------------------------

    def load_image(self, archive: Path, name: str) -> None:
        """See `Cluster.load_image`."""
        with self._steps.step(f"load {name} into {len(self.nodes)} nodes"):
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: self._import(node, archive, name), self.nodes))

    def _image(self, program: golang.Program) -> tuple[str, Path]:
        """Return name and archive of a system image, written once for each version."""
        version = golang.key(program)
        name = f"dledger.io/e2e-{program.name}:{version}"
        path = self.layout.images / f"{program.name}-{version}.tar"
        if not path.exists():
            self.layout.images.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            content = golang.built(self.layout, program).read_bytes()
            partial.write_bytes(oci.archive(name, content, machine=platform.machine()))
            partial.rename(path)
        return name, path

    def _import(self, node: Node, archive: Path, name: str) -> None:
        wanted = oci.manifest_digest(archive)
        if wanted is not None and self._digest(node, name) == wanted:
            return
        self._import_missing(node, archive)
        until(
            f"{node.name}'s kubelet to see {name}; is that the image's name in {archive}?",
            lambda: self._managed(node, name),
            timeout_s=10.0,
        )

    def _import_missing(self, node: Node, archive: Path) -> None:
        """Import an archive, but not those layers that came with an earlier image."""
        present = set(self._ctr(node, "content", "ls", "--quiet").split())
        if not present & oci.blobs(archive):
            self._ctr(node, "images", "import", str(archive))
            return
        thin = self.layout.node_run(node) / "import.tar"
        oci.write_without(archive, present, thin)
        try:
            self._ctr(node, "images", "import", str(thin))
        finally:
            thin.unlink()

    def _digest(self, node: Node, name: str) -> str | None:
        return oci.listed_digest(self._ctr(node, "images", "ls", f"name=={name}"), name)

    def _managed(self, node: Node, name: str) -> bool:
        listed = self._ctr(node, "images", "ls", f"name=={name}")
        return oci.listed_digest(listed, name) is not None and "io.cri-containerd.image=managed" in listed

    def _ctr(self, node: Node, *args: str, check: bool = True) -> str:
        address = f"--address={self.layout.containerd_socket(node)}"
        options = (address, "--namespace=k8s.io")
        return run("ctr", *options, *args, check=check, timeout_s=IMPORT_TIMEOUT_S)

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

    def partition_node(self, node: str) -> None:
        """See `Cluster.partition_node`."""
        network.set_link(self._node(node), up=False)
        network.route_services(self.nodes)

    def heal_node(self, node: str) -> None:
        """See `Cluster.heal_node`."""
        network.set_link(self._node(node), up=True)
        network.route_services(self.nodes)

    def _node(self, name: str) -> Node:
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
        known = {each["metadata"]["name"]: each for each in render.volumes(self.layout, self.nodes)}
        ours = [known[name] for name in names if name in known]
        self.kubectl("delete", "persistentvolume", *names)
        for manifest in ours:
            directory = Path(manifest["spec"]["local"]["path"])
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        self.kubectl("create", "-f", "-", input=render.to_yaml(*ours))

    def diagnostics(self, dest: Path) -> None:
        """See `Cluster.diagnostics`; with the logs of all components."""
        super().diagnostics(dest)
        if self.layout.logs.exists():
            shutil.copytree(self.layout.logs, dest / "components", dirs_exist_ok=True)


def require_root() -> None:
    """Raise MissingPrerequisite unless we are root."""
    if os.geteuid() != 0:
        raise MissingPrerequisite(
            "the local cluster makes network namespaces and cgroups: run this as root (sudo), "
            "or use --cluster kind where there is Docker"
        )


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


def key_files(layout: Layout, nodes: Iterable[Node]) -> Iterable[tuple[Path, str]]:
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


def delete_dead_log_links(state: Path, directory: Path = Path("/var/log/containers")) -> None:
    """Delete the kubelet's links to logs of our pods; it puts them there whatever it is told."""
    if not directory.is_dir():
        return
    for link in directory.iterdir():
        if link.is_symlink() and link.readlink().is_relative_to(state):
            link.unlink()
