"""What all kinds of cluster share: kubectl, helm, and questions answered through them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from e2e.cluster import api, golang, processes
from e2e.cluster.errors import ClusterError, CommandFailed
from e2e.cluster.interface import Pid
from e2e.cluster.layout import Layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

OLDEST_KUBECTL = (1, 31)
DIAGNOSTIC_TIMEOUT_S = 30.0
NODES_TIMEOUT_S = 15.0
DIAGNOSTICS = {
    "resources.txt": ("get", "all,pvc,pdb,networkpolicy,configmap,lease", "-A", "-o", "wide"),
    "cluster.txt": ("get", "nodes,pv,storageclass,crd", "-o", "wide"),
    "dledger.yaml": ("get", "bg,bgb", "-A", "-o", "yaml"),
    "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
    "nodes-described.txt": ("describe", "nodes"),
    "pods-described.txt": ("describe", "pods", "-A"),
    "pods.yaml": ("get", "pods", "-A", "-o", "yaml"),
}


def is_new_kubectl(version_json: str) -> bool:
    """Say whether ``kubectl version --client -o json`` printed a version that we can use."""
    found = re.search(r'"gitVersion": *"v(\d+)\.(\d+)', version_json)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= OLDEST_KUBECTL


@cache
def find_kubectl(layout: Layout) -> Path:
    """Return the machine's kubectl if it is new enough, else our own, built once."""
    found = find_there(layout, golang.KUBECTL)
    if found is None or found == golang.built(layout, golang.KUBECTL):
        return golang.ensure(layout, golang.KUBECTL, Steps())
    return found


def find_there(layout: Layout, program: golang.Program) -> Path | None:
    """Return the program that is used, ours or the machine's; None: one is to be built."""
    own, machines = golang.built(layout, program), shutil.which(program.name)
    if program == golang.HELM and machines is not None:
        return Path(machines)
    if own.exists():
        return own
    if program == golang.KUBECTL and machines is not None:
        said = run(machines, "version", "--client", "-o", "json", check=False)
        return Path(machines) if is_new_kubectl(said) else None
    return None


class KubernetesTools:
    """kubectl and helm bound to one kubeconfig.

    Args:
        layout: where built programs are.
        kubeconfig: whose cluster this is.
    """

    kind: str

    def __init__(self, layout: Layout, kubeconfig: Path) -> None:
        self.layout = layout
        self.kubeconfig = kubeconfig

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name subprocess uses
        check: bool = True,
        timeout_s: float = 60,
    ) -> str:
        """See `Cluster.kubectl`."""
        flags = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self._kube_cache}")
        kubectl = find_kubectl(self.layout)
        return run(kubectl, *flags, *args, input=input, check=check, timeout_s=timeout_s)

    def helm(self, *args: str) -> str:
        """See `Cluster.helm`. The machine's helm is as good as ours."""
        found = find_there(self.layout, golang.HELM)
        helm = found or golang.ensure(self.layout, golang.HELM, Steps())
        # Its plugins, repositories and caches are the user's; none of them is needed.
        home = self.layout.cache / "helm"
        homes = {f"HELM_{kind}_HOME": str(home) for kind in ("CACHE", "CONFIG", "DATA")}
        homes["KUBECACHEDIR"] = str(self._kube_cache)
        return run(helm, f"--kubeconfig={self.kubeconfig}", *args, env=homes, timeout_s=600)

    @property
    def _kube_cache(self) -> Path:
        """Where what the API server serves is remembered: else below the user's ~/.kube."""
        return self.layout.cache / "kube"

    def nodes_ready(self) -> dict[str, bool]:
        """Return whether each node is ready, by name; none if the API server does not answer."""
        try:
            text = self.kubectl("get", "nodes", "-o", "json", timeout_s=NODES_TIMEOUT_S)
        except CommandFailed:
            return {}
        found = json.loads(text)
        ready = api.nodes_ready(found)
        names = [str(node["metadata"]["name"]) for node in found["items"]]
        return {name: name in ready for name in names}

    def described(
        self,
        *,
        up: bool,
        nodes: Mapping[str, bool],
        state: str,
        components: Mapping[str, Sequence[int]] | None = None,
    ) -> dict[str, Any]:
        """Return the status as `Cluster.status` documents it."""
        return {
            "kind": self.kind,
            "up": up,
            "kubeconfig": str(self.kubeconfig),
            "nodes": nodes,
            "components": components or {},
            "state": state,
            "cache": str(self.layout.cache),
        }

    def container_pids(self, namespace: str, pod: str, container: str = "") -> list[Pid]:
        """See `Cluster.container_pids`."""
        described = self.kubectl("get", "pod", "-n", namespace, pod, "-o", "json")
        container_id = id_of_container(json.loads(described), container)
        found = processes.container_pids(container_id)
        if not found:
            raise ClusterError(
                f"{namespace}/{pod}: no process of container {container_id[:12]} on this machine; "
                "do the nodes run elsewhere, in a virtual machine for instance?"
            )
        return [Pid(number) for number in found]

    def kill_pid(self, pid: Pid, signal: int = 9) -> None:
        """See `Cluster.kill_pid`. Asks sudo where the process is another user's."""
        try:
            processes.send(pid.number, signal)
        except PermissionError:
            run("sudo", "-n", "kill", f"-{signal}", str(pid.number))

    def diagnostics(self, dest: Path) -> None:
        """See `Cluster.diagnostics`."""
        dest.mkdir(parents=True, exist_ok=True)
        for name, args in DIAGNOSTICS.items():
            (dest / name).write_text(self._try_kubectl(*args))
        for namespace, pod in self._pods():
            for suffix, extra in (("", ()), (".previous", ("--previous",))):
                logs = self._try_kubectl(
                    "logs", "-n", namespace, pod, "--all-containers", "--prefix", *extra
                )
                if logs:
                    (dest / f"{namespace}.{pod}{suffix}.log").write_text(logs)

    def _pods(self) -> list[tuple[str, str]]:
        template = r'{range .items[*]}{.metadata.namespace} {.metadata.name}{"\n"}{end}'
        rows = self._try_kubectl("get", "pods", "-A", "-o", f"jsonpath={template}").splitlines()
        return [(row.split()[0], row.split()[1]) for row in rows if len(row.split()) == 2]

    def _try_kubectl(self, *args: str) -> str:
        try:
            return self.kubectl(*args, check=False, timeout_s=DIAGNOSTIC_TIMEOUT_S)
        except (CommandFailed, subprocess.SubprocessError, OSError):
            return ""


def id_of_container(pod: dict[str, Any], name: str = "") -> str:
    """Return the id of a pod's container: a sidecar too, or the first that is none.

    Raises:
        ClusterError: when that container has never started.
    """
    name = name or pod["spec"]["containers"][0]["name"]
    found = pod["status"]
    for status in [*found.get("containerStatuses", []), *found.get("initContainerStatuses", [])]:
        if status["name"] == name and status.get("containerID"):
            return str(status["containerID"]).partition("://")[2]
    raise ClusterError(f"pod {pod['metadata']['name']}: container {name} has not started")
