"""What a user keeps in a compacted topic: the newest value of each key, on whatever disks."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.backups import (
    Backup,
    Bookkeeper,
    backed_up,
    delete_with_volumes,
    recovering,
    spark_image,
)
from e2e.harness.s3 import S3Server
from e2e.harness.world import Namespace, eventually, group_manifest
from e2e.stories.sdk_pods import SdkPod, available, read_by_each
from e2e.stories.test_backup_and_restore import (
    BALLAST,
    BALLAST_MESSAGES,
    FULL_AT_PERCENT,
    SMALL,
    drop_oldest,
    events,
)

TABLE: Final = "prices"
KEYS, VERSIONS = 500, 6
READER: Final = "reader"
PROGRAM: Final = "/workload/keyed_table.py"
ROUND_S: Final = 300.0


@pytest.mark.long
def test_a_table_outlives_its_log_its_nodes_and_its_group(
    namespace: Namespace, cluster: Cluster, image: Image, workload_image: Image
) -> None:
    """Keyed writes, rounds by the schedule with executors, new disks, retention, and a restore.

    A consumer that was never there then gets one value a key, the newest, in each language.
    """
    server, spark = S3Server.start(namespace), spark_image(cluster)
    languages = available(
        [
            SdkPod(namespace, "python", workload_image),
            SdkPod(namespace, "go", image),
            SdkPod(namespace, "java", spark, cluster.heavy_node),
        ]
    )
    store = server.store("orders")
    compacted = {"enabled": True, "minLagHours": 0, "tombstoneHours": 0}
    topics = [
        {"name": TABLE, "queues": 4, "compaction": compacted},
        {"name": BALLAST, "queues": 8},
    ]
    spec: dict[str, Any] = {**backed_up(store, spark, local_threshold="1"), "topics": topics}
    small: dict[str, Any] = {
        "storage": {"size": SMALL},
        "retention": {"hours": 72, "diskWatermarkPercent": FULL_AT_PERCENT},
    }
    group = namespace.run_group(**spec, **small)
    group_id = group.status()["groupId"]
    table = Table(namespace, image)
    table.start()
    wrote = [table.write(KEYS, versions=VERSIONS)]
    back_up(namespace, "before")
    asked = ask_for_a_round(namespace, "asked")
    wrote += [table.write(KEYS, versions=1, first=VERSIONS + 1)]
    group.change(compaction={"schedule": "* * * * *"})
    scheduled = wait_for_a_scheduled_round(namespace)
    group.change(compaction={"schedule": ""})
    for pod in group.pods():
        replace_disk(namespace, pod)
    replaced = table.read(KEYS, version=VERSIONS + 1)
    ballast = Bookkeeper(namespace, image, "orders")
    ballast.start()
    ballast.write(BALLAST, BALLAST_MESSAGES)
    drop_oldest(group)
    settled = ask_for_a_round(namespace, "settled")
    kept = table.read(KEYS, version=VERSIONS + 1)
    back_up(namespace, "after")
    delete_with_volumes(group)
    namespace.apply(from_backup(spec, recovering(store, group_id)))
    group.wait_available(180)
    came_back = table.read(KEYS, version=VERSIONS + 1)
    by_language = read_by_each(languages, "orders:8081", TABLE)

    assert asked["compaction"]["letGo"] + asked["compaction"]["later"] == KEYS * (VERSIONS - 1)
    assert scheduled["startedAt"]
    assert settled["compaction"]["later"] == 0, "without a schedule nothing waits for retention"
    assert "OperationSucceeded" in events_of(namespace, "asked")
    for said in (replaced["client"], replaced["consumer"]):
        assert said["older"] == 0, "with a schedule, older values may wait for retention to go"
    for said in (*wrote, kept, came_back):
        assert said["ok"], (wrote, replaced, kept, came_back)
    newest = sorted(f"key-{n} {VERSIONS + 1}" for n in range(KEYS))
    for language, texts in by_language.items():
        assert sorted(text.rpartition(" ")[0] for text in texts) == newest, language


@pytest.mark.long
def test_a_round_for_nothing_is_refused_by_name(namespace: Namespace) -> None:
    """No Job is made that would only say so, and the group is as it was."""
    group = namespace.run_group(topics=[{"name": "orders", "queues": 4}])

    namespace.apply(round_manifest("nothing"))
    status = wait_round(namespace, "nothing")

    assert status["phase"] == "Failed"
    assert status["conditions"][0]["reason"] == "NoCompactedTopic"
    assert group.condition("CompactionReady")["reason"] == "CompactionNotConfigured"


class Table:
    """A pod in which `keyed_table.py` runs; see there."""

    def __init__(self, namespace: Namespace, image: Image) -> None:
        self._namespace = namespace
        self._image = image.name

    def start(self, deadline_s: float = 60) -> None:
        """Create the pod, which waits for commands."""
        modules = ("rocketmq_calls.py",)
        self._namespace.start_program(
            "keyed_table.py", READER, self._image, ["sleep", "infinity"], modules=modules
        )
        eventually(
            f"pod {READER} runs", lambda: self._namespace.phase(READER) == "Running", deadline_s
        )

    def write(self, keys: int, *, versions: int, first: int = 1) -> dict[str, Any]:
        """Write so many versions of each key."""
        return self._run(
            *("write", "--keys", str(keys), "--versions", str(versions), "--first", str(first))
        )

    def read(self, keys: int, *, version: int) -> dict[str, Any]:
        """Read the table from nothing; each key is to have this version."""
        return self._run("read", "--keys", str(keys), "--version", str(version))

    def _run(self, command: str, *args: str) -> dict[str, Any]:
        where = ("--endpoint", "orders:8081", "--topic", TABLE)
        return self._namespace.ask(READER, PROGRAM, command, *where, *args)


def round_manifest(name: str) -> dict[str, Any]:
    """Return a BrokerOperation that asks for a round of compaction."""
    return {
        "apiVersion": "dledger.io/v1",
        "kind": "BrokerOperation",
        "metadata": {"name": name},
        "spec": {"group": "orders", "kind": "Compact", "deadlineSeconds": 3600},
    }


def ask_for_a_round(namespace: Namespace, name: str) -> dict[str, Any]:
    """Run a round now, by executors; return its status. One that runs already is waited for."""
    eventually("no round is under way", lambda: not unfinished_rounds(namespace), ROUND_S)
    namespace.apply(round_manifest(name))
    status = wait_round(namespace, name)
    assert status["phase"] == "Succeeded", status
    return status


def wait_round(namespace: Namespace, name: str) -> dict[str, Any]:
    """Wait until a round has ended; return its status."""

    def probe() -> dict[str, Any] | None:
        status = namespace.operation(name)
        return status if status.get("phase") in ("Succeeded", "Failed") else None

    return eventually(f"round {name} has ended", probe, ROUND_S)


def wait_for_a_scheduled_round(namespace: Namespace) -> dict[str, Any]:
    """Wait until a round that the schedule made has succeeded; return its status.

    `status.compaction` tells of the newest round, which is the next one a minute later.
    """

    def probe() -> dict[str, Any] | None:
        scheduled = [
            status
            for name, status in rounds(namespace).items()
            if name.startswith("orders-compaction-") and status.get("phase") == "Succeeded"
        ]
        return scheduled[0] if scheduled else None

    return eventually("a scheduled round has succeeded", probe, ROUND_S)


def rounds(namespace: Namespace) -> dict[str, dict[str, Any]]:
    """Return the status of each round that there is, by name."""
    listed = json.loads(namespace.kubectl("get", "brokeroperations", "-o", "json"))["items"]
    return {
        one["metadata"]["name"]: one.get("status", {})
        for one in listed
        if one["spec"]["kind"] == "Compact"
    }


def unfinished_rounds(namespace: Namespace) -> list[str]:
    """Return the names of rounds that run or wait."""
    ended = ("Succeeded", "Failed")
    return [name for name, one in rounds(namespace).items() if one.get("phase") not in ended]


def back_up(namespace: Namespace, name: str) -> None:
    """Back the group up, and see that it worked."""
    backup = Backup(namespace, name)
    backup.apply("orders")
    watched = backup.watch(deadline_s=240)
    assert watched.status["phase"] == "Completed", watched.status


def replace_disk(namespace: Namespace, pod: str) -> None:
    """Give up a node's disk: all of the table is copied to a new one."""
    name = f"replace-{pod}"
    namespace.operate(name, "ReplaceMember", member=pod)
    namespace.wait_operated(name, 240)


def from_backup(spec: dict[str, Any], recovery: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of the group that starts from its backup."""
    roomy = {"storage": {"size": SMALL}, "retention": {"diskWatermarkPercent": 95}}
    return group_manifest("orders", **spec, **roomy, **recovery)


def events_of(namespace: Namespace, name: str) -> set[str]:
    """Return the reasons of a BrokerOperation's Events."""
    reasons = ("OperationStarted", "OperationSucceeded", "OperationFailed")
    return {reason for reason in reasons if events(namespace, reason, of=name)}
