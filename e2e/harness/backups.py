"""What backup stories and `make demo-backup` do on a cluster, beside what `world` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from e2e.cluster import Cluster
from e2e.cluster.image import SPARK, Image, build
from e2e.harness.waiting import HarnessError
from e2e.harness.world import PYTHON, BrokerGroup, Namespace, eventually

EXECUTORS: Final = {"max": 1, "cores": 1, "memory": "1536Mi"}
PROBE: Final = "probe"
"""The topic that shows when a group takes writes again."""
_KEEPER: Final = "/workload/e2e/harness/bookkeeper.py"
_SUBSCRIBER: Final = "/workload/subscriber.py"
_NOTES: Final = "/tmp/notes"  # noqa: S108 - in the client's pod
_TAKEN: Final = "/tmp/taken"  # noqa: S108 - likewise
_IN_VAIN: Final = "/tmp/taken-in-vain"  # noqa: S108 - likewise
_DRIVERS: Final = "batch.kubernetes.io/job-name"
_POLL_S: Final = 1.0

_EARLY_DROPS: Final = """
import urllib.request
page = urllib.request.urlopen("http://127.0.0.1:8080/metrics", timeout=10).read().decode()
print([line for line in page.splitlines() if line.startswith("dledger_early_dropped_messages_")])
"""
_FIRST_ENTRY: Final = """
import asyncio, base64, json, os, sys
from dledger.client import AdminClient, MutualTls
from dledger.errors import Refused

async def main():
    trusted, chain, key = map(base64.b64decode, json.loads(sys.argv[1]))
    name = os.environ["DLEDGER_NAME"]
    tls = MutualTls(name=name, trusted=trusted, chain=chain, key=key)
    client = AdminClient("127.0.0.1:20911", tls=tls)
    try:
        await client.export_size(1)
        print("kept")
    except Refused as error:
        print("dropped:", error)
    finally:
        await client.close()

asyncio.run(main())
"""

Say = Callable[[str], None]


def spark_image(cluster: Cluster) -> Image:
    """Build the image that Spark work runs in and put it into the cluster's heavy node."""
    image = build(SPARK)
    cluster.load_image(image.archive, image.name, [cluster.heavy_node])
    return image


def backed_up(
    store: dict[str, str | bool], image: Image, *, local_threshold: str = "1"
) -> dict[str, Any]:
    """Return what the spec of a group says that is backed up to *store*, mostly by executors."""
    return {
        "backup": {"store": store},
        "spark": {"image": image.name, "executors": EXECUTORS, "localThreshold": local_threshold},
    }


class Bookkeeper:
    """A pod in which `bookkeeper.py` and `subscriber.py` run; see there.

    Their notes last as long as the pod.
    """

    def __init__(self, namespace: Namespace, image: Image, group: str) -> None:
        self._namespace = namespace
        self._image = image.name
        self._endpoint = f"{group}:8081"
        self.name = "bookkeeper"

    def start(self, deadline_s: float = 60) -> None:
        """Create the pod, which waits for commands."""
        command = ["sleep", "infinity"]
        modules = ("bookkeeper.py", "rocketmq_calls.py")
        self._namespace.start_program(
            "subscriber.py", self.name, self._image, command, modules=modules
        )
        eventually(
            f"pod {self.name} runs",
            lambda: self._namespace.phase(self.name) == "Running",
            deadline_s,
        )

    def write(self, topic: str, messages: int) -> dict[str, Any]:
        """Write messages of 1 KiB."""
        return self._run(_KEEPER, "write", "--topic", topic, "--messages", str(messages))

    def note(self) -> dict[str, Any]:
        """Note all that the group stores, but for the probe's messages."""
        return self._run(_KEEPER, "note", "--notes", _NOTES, "--without", PROBE)

    def compare(self) -> dict[str, Any]:
        """Compare all that the group stores with the notes; write one more message."""
        return self._run(_KEEPER, "compare", "--notes", _NOTES, "--without", PROBE)

    def take(self, topic: str, messages: int, *, hold: bool = False) -> dict[str, Any]:
        """Receive so many messages of a topic, and acknowledge them unless told to *hold* them."""
        return self._take(topic, messages, _TAKEN, *(("--hold",) if hold else ()))

    def take_in_vain(self, topic: str, messages: int) -> dict[str, Any]:
        """Receive and acknowledge what a restore to an earlier time gives back."""
        return self._take(topic, messages, _IN_VAIN)

    def _take(self, topic: str, messages: int, taken: str, *more: str) -> dict[str, Any]:
        asked = ("--topic", topic, "--messages", str(messages), "--taken", taken)
        return self._run(_SUBSCRIBER, "take", *asked, *more)

    def resume(self, topic: str) -> dict[str, Any]:
        """Go on with the topic as soon as the group is there, until all that was noted came."""
        files = ("--notes", _NOTES, "--taken", _TAKEN)
        return self._run(_SUBSCRIBER, "resume", "--topic", topic, "--probe", PROBE, *files)

    def _run(self, program: str, command: str, *args: str) -> dict[str, Any]:
        where = ("--endpoint", self._endpoint)
        result = self._namespace.ask(self.name, program, command, *where, *args)
        if "error" in result:
            raise HarnessError(f"{program} {command}: {result['error']}")
        return result


@dataclass(frozen=True, slots=True)
class Backup:
    """A BrokerBackup in a namespace."""

    namespace: Namespace
    name: str

    def apply(self, group: str, **spec: Any) -> None:
        """Ask for a backup of a group."""
        self.namespace.apply(
            {
                "apiVersion": "dledger.io/v1",
                "kind": "BrokerBackup",
                "metadata": {"name": self.name},
                "spec": {"group": group, **spec},
            }
        )

    def status(self) -> dict[str, Any]:
        """Return its status; empty if there is none."""
        found = self.namespace.get("brokerbackup", self.name) or {}
        status: dict[str, Any] = found.get("status", {})
        return status

    def watch(self, deadline_s: float, say: Say = lambda _: None) -> Watched:
        """Wait for its end, and tell of each change of its phase and its pods."""
        seen: dict[str, str] = {}

        def news(what: str, now: str) -> None:
            if seen.get(what) != now:
                seen[what] = now
                say(f"{what}: {now}")

        def probe() -> dict[str, Any] | None:
            status = self.status()
            for pod, (role, phase) in self._pods().items():
                news(f"{role} pod {pod}", phase)
            if "phase" in status:
                news(f"BrokerBackup {self.name}", f"{status['phase']}: {status.get('message', '')}")
            return status if status.get("phase") in ("Completed", "Failed") else None

        status = eventually(f"BrokerBackup {self.name} has ended", probe, deadline_s, _POLL_S)
        pods = [what.split(" pod ") for what in seen if " pod " in what]
        return Watched(status, tuple((role, pod) for role, pod in pods))

    def _pods(self) -> dict[str, tuple[str, str]]:
        """Return role and phase of each pod of its Job and of Spark's."""
        listed = self.namespace.kubectl(
            "get", "pods", "-l", "app.kubernetes.io/component=backup", "-o", "json"
        )
        return {
            pod["metadata"]["name"]: (
                "driver" if _DRIVERS in pod["metadata"]["labels"] else "executor",
                _phase(pod),
            )
            for pod in json.loads(listed)["items"]
        }


@dataclass(frozen=True, slots=True)
class Watched:
    """A backup that has ended: its last status, and role and name of each pod that was seen."""

    status: dict[str, Any]
    pods: tuple[tuple[str, str], ...]

    def names(self, role: str) -> list[str]:
        """Return the names of the drivers or of the executors."""
        return [name for each, name in self.pods if each == role]


def _phase(pod: dict[str, Any]) -> str:
    node = pod["spec"].get("nodeName", "no node")
    return f"{pod['status'].get('phase', 'Unknown')} on {node}"


def has_dropped(group: BrokerGroup, pod: str) -> bool | None:
    """Say that a node has dropped the group's first entry, or None; asked in its own pod."""
    # A node's own certificate does not do: what a backup may ask for is a backup's.
    secret = group.namespace.kubectl("get", "secret", f"{group.name}-backup-tls", "-o", "json")
    files = json.loads(secret)["data"]
    shown = json.dumps([files[name] for name in ("ca.crt", "tls.crt", "tls.key")])
    said = group.namespace.kubectl("exec", pod, "--", PYTHON, "-c", _FIRST_ENTRY, shown)
    return said.startswith("dropped") or None


def early_drops(group: BrokerGroup) -> list[str]:
    """Return the lines in which each node counts what went for want of room."""
    kubectl = group.namespace.kubectl
    return [kubectl("exec", pod, "--", PYTHON, "-c", _EARLY_DROPS) for pod in group.pods()]


def delete_with_volumes(group: BrokerGroup, deadline_s: float = 120) -> list[str]:
    """Delete a group, then its claims and what was on their volumes; return the claims' names."""
    namespace = group.namespace
    namespace.kubectl("delete", "brokergroup", group.name, "--timeout=60s", timeout_s=70)
    eventually(f"the pods of {group.name} are gone", lambda: not group.pods(), deadline_s)
    listed = namespace.kubectl("get", "pvc", "-l", f"dledger.io/group={group.name}", "-o", "name")
    claims = sorted(listed.split())
    namespace.kubectl("delete", *claims, "--timeout=60s", timeout_s=70)
    namespace.cluster.recycle_volumes()
    return [claim.partition("/")[2] for claim in claims]


def recovering(store: dict[str, Any], group_id: str, **target: Any) -> dict[str, Any]:
    """Return what the spec of a group says that starts from a backup, up to a *target* if any."""
    recovery = {"store": store, "groupId": group_id, **({"target": target} if target else {})}
    return {"bootstrap": {"recovery": recovery}}
