"""The examples of docs/examples/kubernetes with an application in them, and what that has sent.

The manifests are applied as they stand: filled in are images, names, and what the application is.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster.layout import default_layout
from e2e.cluster.tools import find_kubectl
from e2e.harness.waiting import HarnessError
from e2e.harness.world import PYTHON, ROOT, Namespace, eventually

EXAMPLES: Final = ROOT / "docs/examples/kubernetes"
PROGRAM: Final = "numbered_sends.py"
_OF_THE_EXAMPLES: Final = ("registry.example.com/dledger:0.1.0", "registry.example.com/shop:1.0")
_PATIENCE_S: Final = 120.0


def example(name: str, image: str, applications: str = "", **names: str) -> list[dict[str, Any]]:
    """Return the manifests of an example with images, and with others for some of its names."""
    text = (EXAMPLES / name).read_text("utf-8")
    for before, after in zip(_OF_THE_EXAMPLES, (image, applications), strict=True):
        text = text.replace(before, after)
    return [_rename(each, names) for each in yaml.safe_load_all(text)]


def _rename(part: Any, names: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {key: _rename(value, names) for key, value in part.items()}
    if isinstance(part, list):
        return [_rename(each, names) for each in part]
    return names.get(part, part) if isinstance(part, str) else part


def running_program(stateful_set: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    """Return a StatefulSet whose application is `numbered_sends`, and the program beside it."""
    spec = stateful_set["spec"]["template"]["spec"]
    (application,) = spec["containers"]
    endpoint = next(e["value"] for e in application["env"] if e["name"] == "ROCKETMQ_ENDPOINT")
    application["command"] = [PYTHON, f"/program/{PROGRAM}", endpoint, topic]
    application["volumeMounts"].append({"name": "program", "mountPath": "/program"})
    name = f"{stateful_set['metadata']['name']}-program"
    spec["volumes"].append({"name": "program", "configMap": {"name": name}})
    text = (Path(__file__).with_name(PROGRAM)).read_text("utf-8")
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {PROGRAM: text},
    }
    return [program, stateful_set]


@dataclass(frozen=True, slots=True)
class Sends:
    """What a run of the application has sent until now.

    Attributes:
        run: Its name.
        sent: How many sends of each thread have ended.
        failed: Thread, number, error, and Unix milliseconds of each that failed.
        longest_s: The longest that one took.
        is_last: Whether it ends here.
    """

    run: str
    sent: tuple[int, ...]
    failed: tuple[tuple[int, int, str, int], ...]
    longest_s: float
    is_last: bool

    @classmethod
    def of_line(cls, line: str) -> Sends:
        """Return what a line says. Raises HarnessError: the application did not start."""
        said = json.loads(line)
        if "startup" in said:
            raise HarnessError(f"the application did not start: {said['startup']}")
        failed = tuple((thread, number, error, ms) for thread, number, error, ms in said["failed"])
        last = bool(said.get("isLast"))
        return cls(said["run"], tuple(said["sent"]), failed, float(said["longestS"]), last)

    def acks(self) -> list[str]:
        """Return the keys of what was answered OK."""
        failed = {(thread, number) for thread, number, *_ in self.failed}
        return [
            f"{self.run}/{thread}/{number}"
            for thread, count in enumerate(self.sent)
            for number in range(count)
            if (thread, number) not in failed
        ]


class Application:
    """A pod's `numbered_sends`, whose lines are read as they come: they are gone with the pod."""

    def __init__(self, namespace: Namespace, pod: str, lines: Path) -> None:
        self._namespace, self._pod, self._lines = namespace, pod, lines

    def sends(self) -> Sends | None:
        """Return what it has said last; None: nothing yet."""
        text = self._lines.read_text("utf-8")
        lines = [line for line in text.splitlines(keepends=True) if line.startswith("{")]
        whole = [line for line in lines if line.endswith("\n")]
        return Sends.of_line(whole[-1]) if whole else None

    def go_on(self, count: int) -> Sends:
        """Wait for that many sends more, answered OK or not; return all."""
        before = self.sends()
        target = count + (sum(before.sent) if before else 0)

        def probe() -> Sends | None:
            found = self.sends()
            return found if found and sum(found.sent) >= target else None

        return eventually(f"{count} sends more of {self._pod}", probe, _PATIENCE_S)

    def wait_end(self) -> Sends:
        """Wait for its last words."""

        def probe() -> Sends | None:
            found = self.sends()
            return found if found and found.is_last else None

        return eventually(f"the last words of {self._pod}", probe, _PATIENCE_S)


@contextmanager
def follow(namespace: Namespace, pod: str, container: str) -> Iterator[Application]:
    """Read what the application in a pod says, from its start until it ends."""

    def is_running() -> bool:
        statuses = (namespace.get("pod", pod) or {}).get("status", {}).get("containerStatuses", [])
        states = {each["name"]: each["state"] for each in statuses}
        return "running" in states.get(container, {})

    eventually(f"{container} of {pod} runs", is_running, _PATIENCE_S)
    kubectl = str(find_kubectl(default_layout()))
    command = [kubectl, f"--kubeconfig={namespace.cluster.kubeconfig}"]
    command += ["-n", namespace.name, "logs", "--follow", pod, "-c", container]
    with (
        tempfile.NamedTemporaryFile("w") as lines,
        subprocess.Popen(command, stdout=lines, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            yield Application(namespace, pod, Path(lines.name))
        finally:
            process.terminate()
