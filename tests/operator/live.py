"""The operator's process beside a real API server, and groups whose nodes are played.

What the API server tests have in common: the chart's contents, an operator with the rights of the
chart and nothing more, and stories that give pods addresses, since there are no kubelets.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import golang
from tests.operator.api_server import ApiServer
from tests.operator.fake_nodes import FakeGroup
from tests.waiting import eventually_async

ROOT: Final = Path(__file__).parents[2]
SYSTEM: Final = "dledger-system"
NODE_IMAGE: Final = "dledger:test"
SPARK_IMAGE: Final = "dledger-spark:test"


def rendered(*values: str) -> list[dict[str, Any]]:
    """Return everything that the chart installs with these values (``key=value``)."""
    helm = golang.provide(golang.HELM)
    text = subprocess.run(
        [
            *(helm, "template", "dledger-operator", ROOT / "charts/dledger-operator"),
            *("--include-crds", "--namespace", SYSTEM, "--kube-version", "1.34"),
            *(word for value in values for word in ("--set", value)),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [*filter(None, yaml.safe_load_all(text))]


def chart(*more: str) -> list[dict[str, Any]]:
    """Return the chart's contents, but for its Deployment, and the namespace they are in.

    With *more* values than those of the images.
    """
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    values = (f"nodeImage={NODE_IMAGE}", f"sparkImage={SPARK_IMAGE}", *more)
    return [namespace, *(made for made in rendered(*values) if made["kind"] != "Deployment")]


def group(name: str = "orders", **spec: Any) -> dict[str, Any]:
    """Return a BrokerGroup to apply."""
    metadata = {"name": name}
    return {
        "apiVersion": "dledger.io/v1",
        "kind": "BrokerGroup",
        "metadata": metadata,
        "spec": spec,
    }


def volumes_of_class(name: str, *, grows: bool) -> list[dict[str, Any]]:
    """Return a StorageClass and three volumes of it."""
    made = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "allowVolumeExpansion": grows,
    }
    spec = {
        "capacity": {"storage": "50Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "hostPath": {"path": "/data"},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "spec": spec}
    return [made, *({**volume, "metadata": {"name": f"{name}-{n}"}} for n in range(3))]


class Operator:
    """An operator process with the rights of the chart's service account.

    Without other *args* its groups have no certificates: most stories are not about them, and
    their nodes speak plain text.
    """

    def __init__(
        self, server: ApiServer, identity: str, *args: str, gives_certificates: bool = False
    ) -> None:
        args = (*(() if gives_certificates else ("--peer-tls", "off")), *args)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        kubeconfig = server.kubeconfig_for(SYSTEM, "dledger-operator")
        path = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "node")])
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dledger_operator", "--image", NODE_IMAGE),
                *("--spark-image", SPARK_IMAGE),
                *("--kubeconfig", kubeconfig, "--listen", f"127.0.0.1:{self._port}"),
                *("--namespace", SYSTEM, "--identity", identity, *args),
            ],
            env={**os.environ, "PYTHONPATH": path},
        )

    def get(self, path: str) -> str:
        """Return a page of its HTTP port; empty while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}") as page:
                text: str = page.read().decode()
        except OSError:
            return ""
        return text

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is the process that was started."""
        return self._process.poll() is None

    def metric(self, name: str) -> list[float]:
        """Return the values of a metric's series; none while it does not answer."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return [float(line.rsplit(" ", 1)[1]) for line in lines]

    def kill(self) -> None:
        """End it at once, in the middle of what it does."""
        self._process.kill()
        self._process.wait(20)

    def stop(self) -> int:
        """End it as Kubernetes does, and return its exit code."""
        self._process.terminate()
        return self._process.wait(20)


class Story:
    """A group of the story's own, with nodes behind its pods."""

    def __init__(self, server: ApiServer, namespace: str, name: str, nodes: int = 3) -> None:
        self.server = server
        self.namespace = namespace
        self.name = name
        octet = abs(hash(namespace)) % 250 + 1
        self.nodes = FakeGroup(name, first_octet=octet, size=nodes)

    async def kubectl(self, *args: str, manifest: Any = None) -> str:
        """Run kubectl in the namespace."""
        run = self.server.kubectl
        done = await asyncio.to_thread(run, *args, "-n", self.namespace, manifest=manifest)
        return done.stdout

    async def tried(self, *args: str) -> bool:
        """Run kubectl in the namespace; False if it fails."""
        try:
            await self.kubectl(*args)
        except AssertionError:
            return False
        return True

    async def get(self, *args: str) -> Any:
        """Return what kubectl gets, or nothing."""
        text = await self.kubectl("get", *args, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text else {}

    async def list(self, *args: str) -> list[dict[str, Any]]:
        """Return the objects kubectl lists."""
        items: list[dict[str, Any]] = (await self.get(*args)).get("items", [])
        return items

    async def apply(self, **spec: Any) -> None:
        """Apply the group."""
        await self.kubectl("apply", "-f", "-", manifest=group(self.name, **spec))

    async def status(self) -> dict[str, Any]:
        """Return its status."""
        status: dict[str, Any] = (await self.get("bg", self.name)).get("status", {})
        return status

    async def condition(self, kind: str) -> str:
        """Return a condition as status/reason."""
        rows = (await self.status()).get("conditions", [])
        found = [f"{row['status']}/{row['reason']}" for row in rows if row["type"] == kind]
        return found[0] if found else "absent"

    async def message(self, kind: str) -> str:
        """Return what a condition says."""
        rows = (await self.status()).get("conditions", [])
        return str(next((row["message"] for row in rows if row["type"] == kind), ""))

    async def until_condition(self, kind: str, expected: str, deadline_s: float = 60) -> None:
        """Wait for a condition to be status/reason."""
        end_s = time.monotonic() + deadline_s
        while (found := await self.condition(kind)) != expected:
            assert time.monotonic() < end_s, f"{kind} is {found}, not {expected}"
            await asyncio.sleep(0.2)

    async def run_pods(self) -> None:
        """Give each pod its node's address and say it is ready, as a kubelet would."""
        for ordinal in range(3):
            pod = f"{self.name}-{ordinal}"
            await eventually_async(functools.partial(self.get, "pod", pod), f"pod {pod}")
            await self.run_pod(ordinal)

    async def run_pod(self, ordinal: int, *, uid: str = "", ready: bool = True) -> bool:
        """Give a pod its node's address, and say that it is ready; one that is gone needs neither.

        Args:
            ordinal: Of the pod.
            uid: Of the very pod that is meant; empty for any.
            ready: Whether to say so, or that it is not.

        Returns:
            Whether the pod was there.
        """
        status = {
            "phase": "Running",
            "podIP": self.nodes.ip(ordinal),
            "podIPs": [{"ip": self.nodes.ip(ordinal)}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        only = {"metadata": {"uid": uid}} if uid else {}
        patch = json.dumps({**only, "status": status})
        pod = f"{self.name}-{ordinal}"
        return await self.tried(
            *("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch)
        )

    async def secret(self, name: str) -> dict[str, bytes]:
        """Return the files of a Secret, once there is one."""
        found = await eventually_async(lambda: self.get("secret", name), f"Secret {name}")
        return {key: base64.b64decode(text) for key, text in found["data"].items()}

    async def up_encrypted(self, **spec: Any) -> None:
        """Bring the group up with nodes that have what their pods would mount."""
        await self.apply(**spec)
        files = await self.secret(f"{self.name}-peer-tls")
        for ordinal in range(3):
            chain, key = (files[f"{self.name}-{ordinal}.{kind}"] for kind in ("crt", "key"))
            await self.nodes.encrypt(ordinal, trusted=files["ca.crt"], chain=chain, key=key)
        await self.run_pods()
        await self.until_condition("Available", "True/LeaderElected")

    async def up(self, **spec: Any) -> None:
        """Apply the group and bring it up."""
        await self.apply(**spec)
        await self.run_pods()
        await self.until_condition("Available", "True/LeaderElected")


@contextlib.asynccontextmanager
async def new_story(
    server: ApiServer, namespace: str, name: str, nodes: int = 3
) -> AsyncIterator[Story]:
    """Run a story of a group, for which there are so many nodes, while the block runs."""
    made = Story(server, namespace, name, nodes)
    await made.nodes.start()
    try:
        yield made
    finally:
        await made.nodes.stop()
        await made.kubectl("delete", "bg", "--all", "--wait=false")


def replace_operator(server: ApiServer, operators: list[Operator]) -> None:
    """Kill the last of the operator's processes, and start another one."""
    operators[-1].kill()
    operators.append(Operator(server, "first"))


async def leading(operator: Operator, expected: int) -> bool:
    """Whether the operator acts (1) or waits (0)."""
    return operator.metric("dledger_operator_leading ") == [expected]
