"""Unmodified clients in pods of the cluster, driven from here as `make clients` drives them."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.clients.builds import MissingTool, ensure, folder_of
from e2e.clients.stage import User, using
from e2e.cluster.image import Image
from e2e.cluster.layout import default_layout
from e2e.cluster.tools import find_kubectl
from e2e.harness.world import PYTHON, Namespace, client_pod, eventually

_IN_POD: Final = "/tmp/driver"  # noqa: S108 - the pod's own emptyDir
_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "python": (PYTHON, f"{_IN_POD}/driver.py"),
    "go": (f"{_IN_POD}/driver",),
    "java": (
        *("java", "-Xmx256m", "-Duser.home=/tmp"),
        *("-cp", f"{_IN_POD}/classes:{_IN_POD}/lib/*", "Driver"),
    ),
}
_NAME: Final = "fresh"
_BATCH: Final = 32
_AWAIT_S: Final = 2
_EMPTY_POLLS: Final = 8
"""Without a message, one after the other: a client asks one queue a poll, and goes round."""


@dataclass(frozen=True, slots=True)
class SdkPod:
    """A pod for the client of one language; its image has what that needs to run."""

    namespace: Namespace
    language: str
    image: Image
    node: str = ""

    @property
    def name(self) -> str:
        """The pod's."""
        return f"sdk-{self.language}"

    def start(self, deadline_s: float = 120) -> None:
        """Create the pod and put the driver into it. Raises MissingTool."""
        ensure(default_layout(), self.language)
        folder = folder_of(default_layout(), self.language)
        placed = {"nodeSelector": {"kubernetes.io/hostname": self.node}} if self.node else {}
        self.namespace.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}},
            client_pod(self.name, self.image.name, ["sleep", "infinity"], {}, **placed),
        )
        eventually(
            f"pod {self.name} runs",
            lambda: self.namespace.phase(self.name) == "Running",
            deadline_s,
        )
        self.namespace.kubectl("cp", str(folder), f"{self.name}:{_IN_POD}", timeout_s=180)

    async def read_as_new(self, endpoint: str, topic: str) -> list[str]:
        """Take and acknowledge all that a consumer group gets that was never there.

        Returns:
            What the messages' bodies begin with, in the order in which they came.
        """
        cluster = self.namespace.cluster
        command = (
            *(str(find_kubectl(default_layout())), f"--kubeconfig={cluster.kubeconfig}"),
            *("-n", self.namespace.name, "exec", "-i", self.name, "--"),
            *_COMMANDS[self.language],
        )
        with tempfile.TemporaryDirectory(prefix=f"{self.name}-") as work:
            async with using(self.language, command, [endpoint], Path(work)) as user:
                await user.simple(_NAME, topic, f"{self.name}-{uuid.uuid4()}", await_s=_AWAIT_S)
                return await _take_all(user)


def available(pods: Sequence[SdkPod]) -> list[SdkPod]:
    """Start the pods; return those whose language this machine can build."""
    started = []
    for pod in pods:
        try:
            pod.start()
        except MissingTool as lack:
            print(f"{pod.language} is left out: {lack}")
        else:
            started.append(pod)
    return started


def read_by_each(pods: Sequence[SdkPod], endpoint: str, topic: str) -> dict[str, list[str]]:
    """Have each language read the topic beside the others; return what it got."""

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(pod.read_as_new(endpoint, topic) for pod in pods))

    found = asyncio.run(all_of_them())
    return {pod.language: texts for pod, texts in zip(pods, found, strict=True)}


async def _take_all(user: User) -> list[str]:
    texts, empty = list[str](), 0
    while empty < _EMPTY_POLLS:
        messages = await user.receive(_NAME, _BATCH, invisible_s=60)
        await asyncio.gather(*(user.ack(_NAME, each) for each in messages))
        texts += [each.text for each in messages]
        empty = 0 if messages else empty + 1
    return texts
