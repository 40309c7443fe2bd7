"""``make demo-backup``: messages, a backup by Spark, a lost group, a restored one, the proof.

Prints a timeline and writes ``build/demo-backup.json``. Leaves everything running to be looked at;
``make demo-down`` removes it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from e2e.cluster import Cluster
from e2e.demo.demos import (
    Timeline,
    apply_group,
    bring_up,
    conclude,
    fresh_namespace,
    install,
    load_image,
    play,
)
from e2e.harness.backups import (
    Backup,
    Bookkeeper,
    backed_up,
    delete_with_volumes,
    recovering,
    spark_image,
)
from e2e.harness.s3 import S3Server
from e2e.harness.waiting import HarnessError
from e2e.harness.world import ROOT, BrokerGroup, Namespace

NAMESPACE: Final = "dledger-backup"
GROUP: Final = "orders"
BACKUP: Final = "before-the-loss"
TOPIC: Final = "demo"
_DEMO: Final = "backup"
_WRITABLE_S: Final = 300.0
_KEYS: Final = (
    *("messages", "missing", "changed", "extra", "logBytes", "objectBytes", "objects"),
    *("driverPods", "executorPods", "groupIdBefore", "groupIdAfter", "backupSeconds"),
    "restoreSeconds",
)


def main() -> int:
    """Run the demo; 0 only if every message came back as it was, and Spark ran executors."""
    diagnostics = ROOT / "build" / "demo-backup-diagnostics"
    return play(__doc__, messages=100_000, diagnostics=diagnostics, run=run, report=report)


def run(cluster: Cluster, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Play the story and return its figures."""
    bring_up(cluster, timeline, _DEMO)
    image = load_image(cluster, timeline)
    spark = spark_image(cluster)
    timeline.say(f"image {spark.name} is on {cluster.heavy_node}, where Spark runs")
    install(cluster, timeline, image)
    namespace = fresh_namespace(cluster, NAMESPACE, _DEMO)
    server = S3Server.start(namespace)
    timeline.say(f"an S3 server with an empty bucket listens in namespace {namespace.name}")
    spec = backed_up(server.store(GROUP), spark)
    group = apply_group(namespace, timeline, GROUP, deadline_s=_WRITABLE_S, **spec)
    before = group.status()["groupId"]
    bookkeeper = Bookkeeper(namespace, image, GROUP)
    written = write(bookkeeper, timeline, messages)
    saved = back_up(namespace, timeline)
    lose(group, timeline)
    spec = {**spec, **recovering(server.store(GROUP), before)}
    began_s = timeline.seconds
    restored = apply_group(namespace, timeline, GROUP, deadline_s=_WRITABLE_S, **spec)
    after = restored.status()["groupId"]
    restored_s = timeline.seconds - began_s
    differences = compare(bookkeeper, timeline)
    return {
        **differences,
        **saved,
        "messages": written["messages"],
        "groupIdBefore": before,
        "groupIdAfter": after,
        "restoreSeconds": round(restored_s, 1),
        "write": written,
    }


def write(bookkeeper: Bookkeeper, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Write the messages and note what is stored.

    Raises:
        HarnessError: That is not what was acknowledged.
    """
    bookkeeper.start()
    written = bookkeeper.write(TOPIC, messages)
    written |= bookkeeper.note()
    if written["messages"] != written["acked"]:
        raise HarnessError(f"{written['acked']} were acknowledged, {written['messages']} are kept")
    timeline.say(
        f"{written['acked']} messages of 1 KiB written to {written['queues']} queues in "
        f"{written['seconds']} s, and noted: place, id, keys, properties, SHA-256 of the body"
    )
    return written


def back_up(namespace: Namespace, timeline: Timeline) -> dict[str, Any]:
    """Back up by Spark and return the figures.

    Raises:
        HarnessError: It failed; with the sentence of its status.
    """
    backup = Backup(namespace, BACKUP)
    began_s = timeline.seconds
    backup.apply(GROUP)
    watched = backup.watch(600, timeline.say)
    status = watched.status
    if status["phase"] != "Completed":
        raise HarnessError(f"BrokerBackup {BACKUP}: {status['phase']}: {status.get('message')}")
    timeline.say(f"manifest {status['manifest']} is the backup")
    return {
        "logBytes": status["bytes"],
        "objectBytes": status["objectBytes"],
        "objects": status["objects"],
        "driverPods": len(watched.names("driver")),
        "executorPods": len(watched.names("executor")),
        "backupSeconds": round(timeline.seconds - began_s, 1),
        "backup": status,
    }


def lose(group: BrokerGroup, timeline: Timeline) -> None:
    """Delete the group and its volumes."""
    claims = delete_with_volumes(group)
    timeline.say(f"BrokerGroup {GROUP} deleted, and its volumes: {', '.join(claims)}")


def compare(bookkeeper: Bookkeeper, timeline: Timeline) -> dict[str, Any]:
    """Compare what the restored group stores with the notes."""
    compared = bookkeeper.compare()
    timeline.say(f"compared {compared['expected']} notes with {compared['found']} messages")
    if not compared["goesOn"]:
        raise HarnessError("the restored group did not put a new message behind the last one")
    timeline.say("a new message takes the next place of its queue")
    return compared


def report(result: dict[str, Any], timeline: Timeline) -> int:
    """Write the figures and print them."""
    same = result["missing"] == result["changed"] == result["extra"] == 0
    # `expected` counts the notes: where none was taken, nothing can differ from them.
    same = same and 0 < result["messages"] == result["expected"]
    by_spark = result["driverPods"] > 0 and result["executorPods"] > 0
    return conclude(
        ROOT / "build" / "demo-backup.json",
        {key: result[key] for key in _KEYS},
        timeline,
        passed=same and by_spark and result["groupIdBefore"] != result["groupIdAfter"],
        verdict="every message came back as it was",
        details={"details": result},
    )


if __name__ == "__main__":
    sys.exit(main())
