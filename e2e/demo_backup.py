"""``make demo-backup``: messages, a backup by Spark, a lost group, a restored one, the proof.

Prints a timeline and writes ``build/demo-backup.json``. Leaves everything running to be looked at;
``make demo-down`` removes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from e2e.backups import Backup, Bookkeeper, backed_up, delete_with_volumes, recovering, spark_image
from e2e.cluster import Cluster, ClusterError, open_cluster
from e2e.cluster.image import Image, build
from e2e.demo import DEMO_LABEL, Timeline, forget_earlier
from e2e.s3 import S3Server
from e2e.world import (
    OPERATOR_NAMESPACE,
    ROOT,
    Group,
    Namespace,
    StoryError,
    group_manifest,
    install_operator,
)

NAMESPACE: Final = "dledger-backup"
GROUP: Final = "orders"
BACKUP: Final = "before-the-loss"
TOPIC: Final = "demo"
_DEMO: Final = "backup"
_RESULT: Final = ROOT / "build" / "demo-backup.json"
_KEYS: Final = (
    *("messages", "missing", "changed", "extra", "logBytes", "objectBytes", "objects"),
    *("driverPods", "executorPods", "groupIdBefore", "groupIdAfter", "backupSeconds"),
    "restoreSeconds",
)


def main() -> int:
    """Run the demo; 0 only if every message came back as it was, and Spark ran executors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="auto", choices=("auto", "local", "kind", "current"))
    parser.add_argument("--messages", type=int, default=100_000)
    args = parser.parse_args()
    timeline = Timeline()
    cluster = open_cluster(args.cluster)
    try:
        result = run(cluster, timeline, args.messages)
    except (ClusterError, StoryError) as error:
        timeline.say(f"failed: {error}")
        diagnostics = ROOT / "build" / "demo-backup-diagnostics"
        cluster.diagnostics(diagnostics)
        print(f"what the cluster says is in {diagnostics}", file=sys.stderr)
        return 1
    return report(result, timeline)


def run(cluster: Cluster, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Play the story and return its figures."""
    cluster.up()
    timeline.say(f"cluster is up ({cluster.kind}); kubectl --kubeconfig {cluster.kubeconfig}")
    forget_earlier(cluster, _DEMO)
    image, spark = images(cluster, timeline)
    install_operator(cluster, image)
    timeline.say(f"operator installed by Helm in namespace {OPERATOR_NAMESPACE}")
    namespace = Namespace(cluster, f"{NAMESPACE}-{int(time.time()):x}")
    namespace.create(**{DEMO_LABEL: _DEMO})
    server = S3Server.start(namespace)
    timeline.say(f"an S3 server with an empty bucket listens in namespace {namespace.name}")
    spec = backed_up(server, spark, GROUP)
    group = apply_group(namespace, timeline, spec)
    before = group.status()["groupId"]
    bookkeeper = Bookkeeper(namespace, image, GROUP)
    written = write(bookkeeper, timeline, messages)
    saved = back_up(namespace, timeline)
    lose(group, timeline)
    spec = {**spec, **recovering(server.store(GROUP), before)}
    began_s = timeline.seconds
    after = apply_group(namespace, timeline, spec).status()["groupId"]
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


def images(cluster: Cluster, timeline: Timeline) -> tuple[Image, Image]:
    """Build and load the node's image and Spark's."""
    image = build()
    cluster.load_image(image.archive, image.name)
    timeline.say(f"image {image.name} is on every node")
    spark = spark_image(cluster)
    timeline.say(f"image {spark.name} is on {cluster.heavy_node}, where Spark runs")
    return image, spark


def apply_group(namespace: Namespace, timeline: Timeline, spec: dict[str, Any]) -> Group:
    """Apply a group and wait until it takes writes and is whole."""
    namespace.apply(group_manifest(GROUP, **spec))
    timeline.say(f"BrokerGroup {GROUP} applied in namespace {namespace.name}")
    group = namespace.group(GROUP)
    status = group.wait_available(300)
    timeline.say(
        f"group {status['groupId']} takes writes; leader {status['leader']}, term {status['term']}"
    )
    return group


def write(bookkeeper: Bookkeeper, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Write the messages and note what is stored."""
    bookkeeper.start()
    written = bookkeeper.write(TOPIC, messages)
    timeline.say(
        f"{written['acked']} messages of 1 KiB written to {written['queues']} queues in "
        f"{written['seconds']} s, and noted: place, id, keys, properties, SHA-256 of the body"
    )
    return written


def back_up(namespace: Namespace, timeline: Timeline) -> dict[str, Any]:
    """Back up by Spark and return the figures.

    Raises:
        StoryError: It failed; with the sentence of its status.
    """
    backup = Backup(namespace, BACKUP)
    began_s = timeline.seconds
    backup.apply(GROUP)
    watched = backup.watch(600, timeline.say)
    status = watched.status
    if status["phase"] != "Completed":
        raise StoryError(f"BrokerBackup {BACKUP}: {status['phase']}: {status.get('message')}")
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


def lose(group: Group, timeline: Timeline) -> None:
    """Delete the group and its volumes."""
    claims = delete_with_volumes(group)
    timeline.say(f"BrokerGroup {GROUP} deleted, and its volumes: {', '.join(claims)}")


def compare(bookkeeper: Bookkeeper, timeline: Timeline) -> dict[str, Any]:
    """Compare what the restored group stores with the notes."""
    compared = bookkeeper.compare()
    timeline.say(f"compared {compared['expected']} notes with {compared['found']} messages")
    if not compared["goesOn"]:
        raise StoryError("the restored group did not put a new message behind the last one")
    timeline.say("a new message takes the next place of its queue")
    return compared


def report(result: dict[str, Any], timeline: Timeline) -> int:
    """Write the figures and print them."""
    same = result["missing"] == result["changed"] == result["extra"] == 0 < result["messages"]
    by_spark = result["driverPods"] > 0 and result["executorPods"] > 0
    passed = same and by_spark and result["groupIdBefore"] != result["groupIdAfter"]
    figures = {key: result[key] for key in _KEYS} | {
        "passed": passed,
        "seconds": round(timeline.seconds, 1),
        "details": result,
        "timeline": timeline.events,
    }
    _RESULT.parent.mkdir(exist_ok=True)
    _RESULT.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print()
    for key in (*_KEYS, "seconds"):
        print(f"  {key:14} {figures[key]}")
    verdict = "every message came back as it was" if passed else "FAILED"
    print(f"\n{verdict}; figures in {_relative(_RESULT)}; `make demo-down` removes everything")
    return 0 if passed else 1


def _relative(path: Path) -> Path:
    return path.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())
