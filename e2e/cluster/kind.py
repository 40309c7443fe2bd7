"""The same cluster by kind, where a Docker daemon answers: a control plane and three workers."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import api, docker, image, lock, oci
from e2e.cluster.errors import ClusterError, CommandFailed, MissingPrerequisite
from e2e.cluster.interface import Pid
from e2e.cluster.layout import OUR_IMAGES, POD_RANGE, SERVICE_RANGE, Layout, default_layout
from e2e.cluster.render import to_yaml
from e2e.cluster.shell import run, until
from e2e.cluster.steps import Steps
from e2e.cluster.tools import KubernetesTools, id_of_container

INSTALL = "https://kind.sigs.k8s.io/docs/user/quick-start/#installation"
OLDEST = (0, 22)
"""Its nodes are Kubernetes 1.29, the oldest that the operator is for."""
NODE_IMAGE_ENV = "KIND_NODE_IMAGE"
NAME = "dledger-e2e"
CONTROL_PLANE = f"{NAME}-control-plane"
WORKERS = 3
CREATE_TIMEOUT_S = 600.0
API_TIMEOUT_S = 120.0
MANIFESTS = "/etc/kubernetes/manifests"
API_SERVER = f"{MANIFESTS}/kube-apiserver.yaml"
NOT_PULLED = "failed to pull image"
NO_IMAGE = (
    "Docker cannot pull the nodes' image: name one that it has by KIND_NODE_IMAGE, or, as root on "
    "Debian, run this by `python -m e2e.cluster.kind_image run`, which makes one from packages"
)
FLAGS = {
    "kube-controller-manager": {"node-monitor-grace-period": "20s", "node-monitor-period": "2s"},
    "kube-apiserver": {
        "default-not-ready-toleration-seconds": "30",
        "default-unreachable-toleration-seconds": "30",
    },
}
LIST_PIDS = """
for each in $(grep -l "$1" /proc/[0-9]*/cgroup 2>/dev/null); do
  each=${each%/cgroup}
  inner=$(sed -n 's/^NSpid:.*[[:blank:]]//p' "$each/status" 2>/dev/null) || continue
  test -z "$inner" || echo "${each#/proc/} $inner"
done
"""
"""The processes of container $1: their ids in the node, and in the container."""
API_SERVER_ASIDE = "/etc/kubernetes/kube-apiserver.yaml.stopped"
_CUT = (
    *("INPUT -i eth0 -j DROP", "OUTPUT -o eth0 -j DROP"),
    *("FORWARD -i eth0 -j DROP", "FORWARD -o eth0 -j DROP"),
)
"""The rules by which a node reaches nobody, as iptables prints them."""


def config() -> str:
    """Kind's configuration: three workers in three zones, quick to notice a lost node."""
    workers = [
        {"role": "worker", "labels": {"topology.kubernetes.io/zone": f"zone-{number}"}}
        for number in range(1, WORKERS + 1)
    ]
    kubelet = {"kind": "KubeletConfiguration", "nodeLeaseDurationSeconds": 12}
    return to_yaml(
        {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "name": NAME,
            "networking": {"podSubnet": POD_RANGE, "serviceSubnet": SERVICE_RANGE},
            "kubeadmConfigPatches": [to_yaml(kubelet)],
            "nodes": [{"role": "control-plane"}, *workers],
        }
    )


def with_flags(manifest: str, component: str, flags: Mapping[str, str]) -> str:
    """Return a static pod's YAML with flags added to, or changed in, the command *component*."""
    pod = yaml.safe_load(manifest)
    command = pod["spec"]["containers"][0]["command"]
    if command[0] != component:
        raise ClusterError(f"expected the command {component}, not {command[0]}")
    kept = [word for word in command if word.partition("=")[0].lstrip("-") not in flags]
    added = [f"--{name}={value}" for name, value in flags.items()]
    pod["spec"]["containers"][0]["command"] = [*kept, *added]
    return to_yaml(pod)


class KindCluster(KubernetesTools):
    """See `e2e.cluster.interface.Cluster`.

    Args:
        layout: where its kubeconfig is kept, below the cache.
        steps: told what is being done.
    """

    kind = "kind"
    heavy_node = f"{NAME}-worker{WORKERS}"

    def __init__(self, layout: Layout | None = None, steps: Steps | None = None) -> None:
        chosen = layout or default_layout()
        super().__init__(chosen, chosen.cache / "kind" / "kubeconfig")
        self._steps = steps or Steps()

    @property
    def _lock(self) -> Path:
        return self.layout.cache / "kind.lock"

    @property
    def _uses(self) -> Path:
        return self.layout.cache / "kind.uses"

    def up(self) -> None:
        """See `Cluster.up`. From then on, as long as this process lives, no other takes it down."""
        require_tools()
        with lock.held(self._lock, self._steps):
            self._take_kubeconfig()
            if self.is_up():
                if not self._has_flags():
                    self._shorten_grace()
                lock.use(self._uses)
                self._steps.say(f"the cluster is up already; kubeconfig {self.kubeconfig}")
                return
            lock.require_unused(self._uses)
            self._steps.say(f"to start: kind cluster {NAME} of {1 + WORKERS} nodes in Docker")
            self._delete()
            self._create()
            lock.use(self._uses)
            self._steps.say(f"the cluster is up; kubeconfig {self.kubeconfig}")

    def _take_kubeconfig(self) -> None:
        """Ask for the kubeconfig of a cluster that another cache, or none any more, knows."""
        if NAME in clusters():
            self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            where = ("--name", NAME, "--kubeconfig", self.kubeconfig)
            run("kind", "export", "kubeconfig", *where, check=False)

    def _create(self) -> None:
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        chosen = os.environ.get(NODE_IMAGE_ENV)
        options = ["--image", chosen] if chosen else []
        with self._steps.step("kind create cluster"):
            create = ("kind", "create", "cluster", "--name", NAME, "--config", "-")
            options += ["--wait", "180s", "--kubeconfig", str(self.kubeconfig)]
            try:
                run(*create, *options, input=config(), timeout_s=CREATE_TIMEOUT_S)
            except CommandFailed as failed:
                if NOT_PULLED not in failed.output:
                    raise
                raise MissingPrerequisite(f"{NO_IMAGE}\n{failed}") from failed
        self._shorten_grace()

    def _shorten_grace(self) -> None:
        """Give the control plane its flags; killed meanwhile, the next `up` does it."""
        with self._steps.step("shorter grace for lost nodes"):
            self._set_flags(FLAGS)
        with self._steps.step("nodes and DNS ready"):
            until("the cluster to be ready", self.is_up, timeout_s=API_TIMEOUT_S, interval_s=1.0)

    def _has_flags(self) -> bool:
        return all(map(self._runs_with, FLAGS.values()))

    def _set_flags(self, components: Mapping[str, Mapping[str, str]]) -> None:
        """Give components of the control plane their flags: all at once, for one restart."""
        for component, flags in components.items():
            path = f"{MANIFESTS}/{component}.yaml"
            changed = with_flags(self._in_node(CONTROL_PLANE, "cat", path), component, flags)
            # A write in place could be read half done: the kubelet watches the directory.
            run("docker", "exec", "-i", CONTROL_PLANE, "tee", _aside(component), input=changed)
        moves = [f"mv {_aside(each)} {MANIFESTS}/{each}.yaml" for each in components]
        self._in_node(CONTROL_PLANE, "sh", "-c", " && ".join(moves))
        for component, flags in components.items():
            until(
                f"{component} to run with its new flags",
                partial(self._runs_with, flags),
                timeout_s=API_TIMEOUT_S,
                interval_s=0.5,
            )

    def _runs_with(self, flags: Mapping[str, str]) -> bool:
        """Say whether a process of the control plane has these flags, whole word by whole word."""
        words = self._in_node(
            CONTROL_PLANE, "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; true"
        ).splitlines()
        return all(f"--{name}={value}" in words for name, value in flags.items())

    def is_up(self) -> bool:
        """See `Cluster.is_up`."""
        if not self.kubeconfig.exists() or NAME not in clusters():
            return False
        nodes = self.nodes_ready()
        try:
            dns = self.kubectl(
                *("get", "deployment", "-n", "kube-system", "coredns"),
                *("-o", "jsonpath={.status.readyReplicas}"),
                timeout_s=15,
            )
        except CommandFailed:
            return False
        return sum(nodes.values()) == 1 + WORKERS and dns.strip() not in ("", "0")

    def status(self) -> dict[str, Any]:
        """Return what ``status`` prints."""
        exists = self.kubeconfig.exists() and NAME in clusters()
        nodes = self.nodes_ready() if exists else {}
        return self.described(up=self.is_up(), nodes=nodes, state="Docker containers")

    def down(self) -> None:
        """See `Cluster.down`."""
        _require_docker()
        with lock.held(self._lock, self._steps):
            lock.require_unused(self._uses)
            self._delete()

    def purge(self) -> None:
        """See `Cluster.purge`. The cache goes with it unless another kind of cluster has a part."""
        _require_docker()
        left = "Docker's build cache and the nodes' image, which others may use"
        with lock.held(self._lock, self._steps):
            lock.require_unused(self._uses)
            self._delete()
            with self._steps.step("remove our images, kind's network unless used, and the cache"):
                docker.forget_images(docker.images(OUR_IMAGES))
                if not clusters():
                    run("docker", "network", "rm", "kind", check=False)
                if others := self._others():
                    left += f"; {self.layout.cache} for {others[0]}: `{others[1]}` removes it"
                    shutil.rmtree(self.kubeconfig.parent, ignore_errors=True)
                else:
                    shutil.rmtree(self.layout.cache, ignore_errors=True)
        for path in (self._lock, self._uses):
            path.unlink(missing_ok=True)
        self._steps.say(f"left: {left}")

    def _others(self) -> tuple[str, str] | None:
        """Return who else needs the cache, by which the machine is restored, and what ends that."""
        layout, module = self.layout, "python -m e2e.cluster"
        if (layout.cache / "kind-image").exists():
            return "a Docker of ours", f"{module}.kind_image purge"
        kept = (layout.packages, layout.kernel_settings, layout.state, layout.cache / "buildah")
        if any(each.exists() for each in kept):
            return "a local cluster", f"{module} purge --cluster local"
        return None

    def _delete(self) -> None:
        if NAME in clusters():
            with self._steps.step("kind delete cluster"):
                run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", self.kubeconfig)
        self.kubeconfig.unlink(missing_ok=True)

    def load_image(self, archive: Path, name: str, nodes: Collection[str] | None = None) -> None:
        """See `Cluster.load_image`. The control plane runs none of it."""
        wanted = oci.config_digest(archive)
        chosen = workers() if nodes is None else nodes
        behind = [each for each in chosen if wanted not in self._image_ids(each, name)]
        if not behind:
            return
        with self._steps.step(f"load {name} into {len(behind)} nodes"):
            into = ("--nodes", ",".join(behind))
            run("kind", "load", "image-archive", archive, "--name", NAME, *into)

    def _image_ids(self, node: str, name: str) -> list[str]:
        """Return the ids, which are the digests of their configurations, of images by a name."""
        listing = self._in_node(node, "crictl", "images", "--output", "json", name)
        found = json.loads(listing or "{}").get("images", [])
        return [str(each["id"]) for each in found if name in each.get("repoTags", [])]

    def container_pids(self, namespace: str, pod: str, container: str = "") -> list[Pid]:
        """See `Cluster.container_pids`: as the node knows them, which is a container itself."""
        described = json.loads(self.kubectl("get", "pod", "-n", namespace, pod, "-o", "json"))
        node, container_id = described["spec"]["nodeName"], id_of_container(described, container)
        listed = self._in_node(node, "sh", "-c", LIST_PIDS, "sh", container_id)
        found = sorted(tuple(map(int, line.split()[::-1])) for line in listed.splitlines())
        if not found:
            raise ClusterError(f"{namespace}/{pod}: no process of {container_id[:12]} on {node}")
        return [Pid(number, node) for _, number in found]

    def kill_pid(self, pid: Pid, signal: int = 9) -> None:
        """See `Cluster.kill_pid`: by its node, so that neither root nor its /proc is needed."""
        self._in_node(pid.node, "sh", "-c", f"kill -{signal} {pid.number} 2>/dev/null; true")

    def stop_api_server(self) -> None:
        """See `Cluster.stop_api_server`: its kubelet stops what has no manifest."""
        self._in_node(CONTROL_PLANE, "mv", API_SERVER, API_SERVER_ASIDE)
        until("the API server to stop", lambda: not self._api_answers(), timeout_s=API_TIMEOUT_S)

    def start_api_server(self) -> None:
        """See `Cluster.start_api_server`."""
        back = f"! test -e {API_SERVER_ASIDE} || mv {API_SERVER_ASIDE} {API_SERVER}"
        self._in_node(CONTROL_PLANE, "sh", "-c", back)
        until("the API server to be ready", self._api_answers, timeout_s=API_TIMEOUT_S)

    def alias_image(self, name: str, alias: str) -> None:
        """See `Cluster.alias_image`."""
        for node in workers():
            self._in_node(node, "ctr", "-n", "k8s.io", "images", "tag", "--force", name, alias)

    def cut_off(self, node: str) -> None:
        """See `Cluster.cut_off`: its packets are dropped, so that its routes stay."""
        self._in_node(node, "sh", "-c", " && ".join(f"iptables -I {rule}" for rule in _CUT))

    def connect(self, node: str) -> None:
        """See `Cluster.connect`: however often it was cut off, and however far that came."""
        listed = self._in_node(node, "iptables", "-S").splitlines()
        rules = [rule for line in listed if (rule := line.removeprefix("-A ")) in _CUT]
        if rules:
            self._in_node(node, "sh", "-c", " && ".join(f"iptables -D {rule}" for rule in rules))

    def lose_node(self, node: str) -> None:
        """See `Cluster.lose_node`."""
        run("docker", "stop", "--time", "1", node)
        self.kubectl("delete", "node", node)

    def return_node(self, node: str) -> None:
        """See `Cluster.return_node`."""
        run("docker", "start", node)
        until(f"{node} to be ready", self.is_up, timeout_s=API_TIMEOUT_S)

    def _api_answers(self) -> bool:
        try:
            return self.kubectl("get", "--raw", "/readyz", timeout_s=5) == "ok"
        except CommandFailed:
            return False

    def recycle_volumes(self) -> None:
        """See `Cluster.recycle_volumes`: new volumes are made on demand, so old ones just go."""
        volumes = json.loads(self.kubectl("get", "persistentvolumes", "-o", "json"))
        names = api.released_volumes(volumes)
        if names:  # and whoever made them deletes them at the same time
            self.kubectl("delete", "persistentvolume", "--ignore-not-found", *names)

    def diagnostics(self, dest: Path) -> None:
        """See `Cluster.diagnostics`; with the logs that kind exports."""
        super().diagnostics(dest)
        run("kind", "export", "logs", dest / "kind", "--name", NAME, check=False)

    def _in_node(self, node: str, *command: str) -> str:
        return run("docker", "exec", node, *command)


def workers() -> Sequence[str]:
    """Return the names kind gives to its workers."""
    return [f"{NAME}-worker{number if number > 1 else ''}" for number in range(1, WORKERS + 1)]


def clusters() -> list[str]:
    """Return the names of kind's clusters on this machine."""
    return run("kind", "get", "clusters", check=False).split()


def require_tools() -> None:
    """Raise MissingPrerequisite unless kind and docker are there, and images can be built."""
    _require_docker()
    image.require_builder()


def find_trouble() -> str:
    """Return why kind cannot be used, and what to do; "" if it can."""
    if shutil.which("kind") is None:
        return f"kind is not installed: {INSTALL}"
    said = run("kind", "version", check=False)
    found = re.search(r"\bv(\d+)\.(\d+)", said)
    if found is not None and (int(found.group(1)), int(found.group(2))) < OLDEST:
        return f"{found.group()} of kind makes nodes of a Kubernetes before 1.29; newer: {INSTALL}"
    return ""


def _require_docker() -> None:
    if trouble := find_trouble() or docker.find_trouble():
        raise MissingPrerequisite(f"{trouble}; or use --cluster local")


def _aside(component: str) -> str:
    return f"/etc/kubernetes/{component}.yaml.new"
