"""What stories and the demo do on a cluster: install, apply, kill, wait, and run clients.

Only through kubectl, helm and client pods; every wait has a deadline and says what it waited for.
Those for a client end where it stands still: how fast it is depends on the machine.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from dledger.common.dns import OF_THE_SYSTEM, VARIABLE
from e2e.cluster import Cluster, ClusterError, CommandFailed
from e2e.cluster.image import NODE, SPARK, Image
from e2e.harness import waiting
from e2e.harness.progress import ProgressWatch
from e2e.harness.waiting import HarnessError

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "dledger-operator"
OPERATOR_NAMESPACE: Final = "dledger-system"
OPERATOR: Final = "dledger-operator"
PYTHON: Final = "/opt/dledger/bin/python"
"""In the node's image, and in what is built on it."""
_DELETE_NOW: Final = ("delete", "--force", "--grace-period=0", "--wait=false", "pod")
_HARNESS: Final = "e2e/harness"
_POLL_S: Final = 0.5
_USER: Final = 10001
_PROGRAM_S: Final = 600.0
_LOG_POLL_S: Final = 3.0
"""A kubectl costs a tenth of a second of the processor that the group and its client share."""
_PATIENCE_S: Final = 300.0
"""A client that gets no ack and no message for so long, its pod's start included, is stuck: an
outage takes seconds, and a busy machine is slower, not still."""
_T = TypeVar("_T")


def eventually(
    what: str, probe: Callable[[], _T | None], deadline_s: float, poll_s: float = _POLL_S
) -> _T:
    """Do what `waiting.eventually` does, at kubectl's pace. Raises HarnessError."""
    return waiting.eventually(what, probe, deadline_s, poll_s)


def install_operator(cluster: Cluster, image: Image, *values: str) -> None:
    """Install or upgrade the chart with *image* and ``NAME=VALUE``s, and wait until it runs."""
    # Helm installs the schema but never upgrades it; an operator needs its own.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.helm(
        "upgrade", "--install", OPERATOR, str(CHART),
        "--namespace", OPERATOR_NAMESPACE, "--create-namespace",
        *chart_values(cluster, image, *values), "--wait", "--timeout", "120s",
    )  # fmt: skip


def chart_values(cluster: Cluster, image: Image, *values: str) -> list[str]:
    """Return what helm is told for an operator of *image* with more ``NAME=VALUE``s."""
    repository, _, tag = image.name.rpartition(":")
    node = cluster.heavy_node
    spark = ("--set-string", rf"sparkNodeSelector.kubernetes\.io/hostname={node}") if node else ()
    allowed = f"allowedImages={{{NODE.repository},{SPARK.repository}}}"
    wanted = (f"image.repository={repository}", f"image.tag={tag}", allowed, *values)
    return [*spark, *(word for value in wanted for word in ("--set", value))]


def scale_operator(cluster: Cluster, replicas: int) -> None:
    """Scale the operator and wait until it has that many pods."""
    cluster.kubectl(
        "-n", OPERATOR_NAMESPACE, "scale", "deployment", OPERATOR, f"--replicas={replicas}"
    )
    if replicas:
        wait_operator(cluster)
        return
    eventually("the operator's pods are gone", lambda: not _operator_pods(cluster), 60)


def wait_operator(cluster: Cluster) -> None:
    """Wait until the operator has the pods that it should have, and they are ready."""
    cluster.kubectl(
        "-n", OPERATOR_NAMESPACE, "rollout", "status", f"deployment/{OPERATOR}",
        "--timeout=120s", timeout_s=130,
    )  # fmt: skip


def kill_operator(cluster: Cluster) -> None:
    """Kill the operator as `BrokerGroup.kill_pod` does; its Deployment makes another pod."""
    for pod in _operator_pods(cluster):
        with contextlib.suppress(ClusterError):  # it runs not yet, or not any more
            _kill_processes(cluster, OPERATOR_NAMESPACE, pod)
        cluster.kubectl("-n", OPERATOR_NAMESPACE, *_DELETE_NOW, pod, "--ignore-not-found")


def _operator_pods(cluster: Cluster) -> list[str]:
    where = "jsonpath={.items[*].metadata.name}"
    return cluster.kubectl("-n", OPERATOR_NAMESPACE, "get", "pods", "-o", where).split()


def _kill_processes(cluster: Cluster, namespace: str, pod: str) -> None:
    """Send SIGKILL to a pod's processes, where that is possible."""
    if cluster.kind != "current":
        for pid in cluster.container_pids(namespace, pod):
            cluster.kill_pid(pid)


def group_manifest(name: str, **spec: Any) -> dict[str, Any]:
    """Return a small BrokerGroup."""
    return {
        "apiVersion": "dledger.io/v1",
        "kind": "BrokerGroup",
        "metadata": {"name": name},
        "spec": {
            "replicas": 3,
            "storage": {"size": "512Mi"},
            "topics": [{"name": "demo", "type": "NORMAL", "queues": 8}],
            **spec,
        },
    }


def _order_of_event(event: dict[str, Any]) -> tuple[str, int]:
    """Return what sorts Events as they came: of one second, by the order of their storage."""
    return str(event["firstTimestamp"]), int(event["metadata"]["resourceVersion"])


def _is_another(pod: dict[str, Any], before: Mapping[str, str]) -> bool:
    metadata = pod["metadata"]
    return metadata["name"] in before and metadata["uid"] != before[metadata["name"]]


def _holds(condition: dict[str, Any]) -> bool:
    return bool(condition["status"] == "True")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with restricted Pod Security, where one story happens."""

    cluster: Cluster
    name: str

    def create(self, **extra: str) -> None:
        """Create it, with *extra* labels; fine if it is there."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted", **extra}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.name, "labels": labels},
            }
        )

    def delete(self) -> None:
        """Delete it with everything in it, and give its volumes back."""
        self.cluster.kubectl(
            "delete", "namespace", self.name, "--ignore-not-found", "--timeout=120s", timeout_s=130
        )
        self.cluster.recycle_volumes()

    def begin_delete(self) -> None:
        """Delete it in the background; its volumes stay until `delete` of any namespace."""
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")

    def kubectl(self, *args: str, **options: Any) -> str:
        """Run kubectl in this namespace."""
        return self.cluster.kubectl("-n", self.name, *args, **options)

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply manifests."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def phase(self, pod: str) -> str:
        """Return a pod's phase; "" if there is no such pod."""
        found = self.get("pod", pod) or {}
        return str(found.get("status", {}).get("phase", ""))

    def start_program(
        self,
        program: str,
        name: str,
        image: str,
        command: Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
        **spec: Any,
    ) -> None:
        """Create a pod that runs *command*; *spec* is added to the pod's.

        *program*, a file beside this one, is at /workload, and so are *files*. It finds *modules*,
        which are beside this one, too, in the package where they are here.
        """
        beside = {name: (ROOT / _HARNESS / name).read_text("utf-8") for name in (program, *modules)}
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {**beside, **(files or {})},
        }
        paths = {program: program, **{each: f"{_HARNESS}/{each}" for each in modules}}
        paths |= {each: each for each in files or {}}
        self.apply(config_map, client_pod(name, image, command, paths, **spec))

    def ask(self, pod: str, program: str, command: str, *args: str) -> dict[str, Any]:
        """Run a program in a pod that waits for commands; return what it told last.

        Raises:
            HarnessError: It told nothing, as one that could not begin.
        """
        try:
            text = self.kubectl(
                "exec", pod, "--", PYTHON, program, command, *args, timeout_s=_PROGRAM_S
            )
        except CommandFailed as failed:
            text = failed.output
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if not lines:
            raise HarnessError(f"{program} {command} said nothing of use:\n{text}")
        told: dict[str, Any] = json.loads(lines[-1])
        return told

    def operate(self, name: str, kind: str, *, group: str = "orders", **details: Any) -> None:
        """Create a BrokerOperation; *details* are what its kind takes."""
        block = kind[0].lower() + kind[1:]
        self.apply(
            {
                "apiVersion": "dledger.io/v1",
                "kind": "BrokerOperation",
                "metadata": {"name": name},
                "spec": {"group": group, "kind": kind, block: details},
            }
        )

    def operation(self, name: str) -> dict[str, Any]:
        """Return the status of a BrokerOperation; empty if there is none."""
        found = self.get("brokeroperation", name) or {}
        status: dict[str, Any] = found.get("status", {})
        return status

    def wait_operated(self, name: str, deadline_s: float = 60) -> None:
        """Wait until a BrokerOperation has succeeded."""
        eventually(
            f"operation {name} has succeeded",
            lambda: self.operation(name).get("phase") == "Succeeded" or None,
            deadline_s,
        )

    def group(self, name: str) -> BrokerGroup:
        """Return a handle on a BrokerGroup."""
        return BrokerGroup(self, name)

    def run_group(
        self, name: str = "orders", *, deadline_s: float = 120, **spec: Any
    ) -> BrokerGroup:
        """Apply a small BrokerGroup, and wait until it takes writes and is whole."""
        self.apply(group_manifest(name, **spec))
        group = self.group(name)
        group.wait_available(deadline_s)
        return group


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A BrokerGroup in a namespace."""

    namespace: Namespace
    name: str

    def status(self) -> dict[str, Any]:
        """Return its status; empty if there is none."""
        found = self.namespace.get("brokergroup", self.name) or {}
        status: dict[str, Any] = found.get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """Return one condition; empty if it is not there."""
        conditions = self.status().get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def wait_available(self, deadline_s: float = 120) -> dict[str, Any]:
        """Wait until it takes writes, is whole and has its topics; return the status."""

        def probe() -> dict[str, Any] | None:
            status = self.status()
            true = {c["type"]: c["reason"] for c in status.get("conditions", []) if _holds(c)}
            is_whole = {"Available", "Ready"} <= true.keys() and status.get("leader")
            return status if is_whole and true.get("Progressing") != "TopicsPending" else None

        return eventually(f"group {self.name} is available and ready", probe, deadline_s)

    def change(self, **spec: Any) -> int:
        """Change fields of its spec; return the generation that the change made."""
        patch = json.dumps({"spec": spec})
        self.namespace.kubectl("patch", "brokergroup", self.name, "--type=merge", "-p", patch)
        found = self.namespace.get("brokergroup", self.name) or {}
        return int(found["metadata"]["generation"])

    def wait_settled(self, generation: int, deadline_s: float = 180) -> dict[str, Any]:
        """Wait until nothing is left to do for a spec of that generation; return the status."""

        def probe() -> dict[str, Any] | None:
            status = self.status()
            reasons = {c["type"]: c["reason"] for c in status.get("conditions", [])}
            is_seen = status.get("observedGeneration", 0) >= generation
            is_done = reasons.get("Progressing") == "Complete"
            true = {c["type"] for c in status.get("conditions", []) if _holds(c)}
            is_whole = {"Available", "Ready"} <= true and "Degraded" not in true
            return status if is_seen and is_done and is_whole else None

        return eventually(f"group {self.name} is as asked for", probe, deadline_s)

    def uids(self) -> dict[str, str]:
        """Return the uid of each of its pods, by name."""
        return {name: str(each["metadata"]["uid"]) for name, each in self.nodes().items()}

    def wait_others(
        self,
        before: Mapping[str, str],
        holds: Callable[[dict[str, Any]], bool],
        deadline_s: float,
    ) -> None:
        """Wait until other pods are in the place of *before*, uids by name, and *holds* of each."""

        def probe() -> bool:
            nodes = self.nodes()
            others = [one for one in nodes.values() if _is_another(one, before)]
            return len(others) == len(before) and all(map(holds, others))

        eventually(f"others in the place of {', '.join(before)}", probe, deadline_s)

    def told(self, reason: str) -> list[str]:
        """Return the messages of the group's Events with that reason, in their order."""
        which = f"involvedObject.name={self.name},reason={reason}"
        text = self.namespace.kubectl("get", "events", "--field-selector", which, "-o", "json")
        found = sorted(json.loads(text)["items"], key=_order_of_event)
        return [str(each["message"]) for each in found]

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the manifests of its pods, by name."""
        selector = f"dledger.io/group={self.name},app.kubernetes.io/component=node"
        listed = json.loads(self.namespace.kubectl("get", "pods", "-l", selector, "-o", "json"))
        return {item["metadata"]["name"]: item for item in listed["items"]}

    def leader(self, deadline_s: float = 60) -> str:
        """Return the name of the pod that leads."""

        def probe() -> str | None:
            return self.status().get("leader")

        return eventually(f"group {self.name} has a leader", probe, deadline_s)

    def other_leader(self, before: str, deadline_s: float = 60) -> str:
        """Wait until another pod leads, and return it."""

        def probe() -> str | None:
            leader = self.status().get("leader")
            return leader if leader != before else None

        return eventually(f"group {self.name} has another leader", probe, deadline_s)

    def kill_pod(self, pod: str) -> None:
        """Kill a pod: its processes by SIGKILL where that is possible, then the pod itself."""
        _kill_processes(self.namespace.cluster, self.namespace.name, pod)
        self.namespace.kubectl(*_DELETE_NOW, pod)

    def pods(self) -> list[str]:
        """Return the names of the group's nodes."""
        return sorted(self.nodes())


class Workload:
    """A pod that runs `workload.py` with the unmodified SDK, which only its own image has."""

    def __init__(
        self,
        namespace: Namespace,
        image: Image,
        name: str,
        *args: str,
        files: dict[str, str] | None = None,
    ) -> None:
        self._namespace = namespace
        self.name = name
        self._image = image.name
        self._args = args
        self._files = files or {}

    def start(self) -> None:
        """Create the pod and the ConfigMap with its program."""
        command = [PYTHON, "/workload/workload.py", *self._args]
        self._namespace.start_program(
            "workload.py", self.name, self._image, command, files=self._files
        )

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has printed so far."""
        text = self._namespace.kubectl("logs", self.name, check=False)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def acks(self) -> list[str]:
        """Return the keys it printed (``--print-acks``)."""
        return next(line["acks"] for line in self.lines() if "acks" in line)

    def acked(self) -> int:
        """Return how many messages were acknowledged so far."""
        counts = [line["acked"] for line in self.lines() if "acked" in line]
        return counts[-1] if counts else 0

    def wait_acked(self, count: int) -> int:
        """Wait until at least *count* messages were acknowledged. Raises HarnessError."""
        acked, lines = self.acked(), self.progress()
        while acked < count:
            newest = next(lines, None)
            if newest is None:
                raise HarnessError(f"{self.name} ended with {acked} acks\n{self.tail()}")
            acked = max(acked, int(newest.get("acked", 0)))
        return acked

    def stop(self) -> None:
        """Let it end its producing now, and go on to compare."""
        ends = "import os, signal; os.kill(1, signal.SIGTERM)"
        self._namespace.kubectl("exec", self.name, "--", PYTHON, "-c", ends)

    def end(self) -> None:
        """End it at once, whatever it does."""
        self._namespace.kubectl(*_DELETE_NOW, self.name, check=False)

    def summary(self) -> dict[str, Any]:
        """Wait for the end and return the summary. Raises HarnessError."""
        *_, summary = self.progress()
        return summary

    def tail(self) -> str:
        """Return the last lines it printed."""
        return self._namespace.kubectl("logs", self.name, "--tail=30", check=False)

    def progress(self, patience_s: float = _PATIENCE_S) -> Iterator[dict[str, Any]]:
        """Yield the newest line again and again until the summary, which comes last.

        Raises:
            HarnessError: It failed, or got neither an ack nor a message for *patience_s*.
        """
        watch = ProgressWatch(patience_s, time.monotonic())
        before: dict[str, Any] = {}
        while True:
            newest: dict[str, Any] = next(reversed(self.lines()), {})
            if newest != before:
                yield newest
            elif self._namespace.phase(self.name) == "Failed":
                raise HarnessError(f"{self.name} failed:\n{self.tail()}")
            if newest.get("summary"):
                return
            counts = (newest.get("acked", 0), newest.get("received", 0))
            if watch.is_stuck(counts, time.monotonic()):
                raise HarnessError(
                    f"{self.name} got nothing on for {patience_s:.0f} s\n{self.tail()}"
                )
            before = newest
            time.sleep(_LOG_POLL_S)


def client_pod(
    name: str, image: str, command: Sequence[str], paths: Mapping[str, str], **spec: Any
) -> dict[str, Any]:
    """Return a pod that runs a command of *image*: the node's, or the workload's.

    What the ConfigMap of the same name has is at *paths* below /workload; /tmp can be written.
    *spec* is added to the pod's.
    """
    container = {
        "name": "workload",
        "image": image,
        "command": list(command),
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own emptyDir
            # As docs/clients.md advises: the SDK's import comes before ours, which would set it.
            {"name": VARIABLE, "value": OF_THE_SYSTEM},
        ],
        "volumeMounts": [
            {"name": "program", "mountPath": "/workload"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    items = [{"key": key, "path": path} for key, path in paths.items()]
    program = {"name": "program", "configMap": {"name": name, "items": items}}
    volumes = [program, {"name": "tmp", "emptyDir": {}}]
    return restricted_pod(name, container, volumes, **{"restartPolicy": "Never"} | spec)


def restricted_pod(
    name: str, container: dict[str, Any], volumes: Sequence[dict[str, Any]], **spec: Any
) -> dict[str, Any]:
    """Return a pod of one container as restricted Pod Security wants it; *spec* is added."""
    secured = {
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container | secured],
            "volumes": list(volumes),
            **spec,
        },
    }
