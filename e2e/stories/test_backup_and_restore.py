"""What a user keeps when a group is lost with its volumes, and is told when a backup fails."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.backups import (
    PROBE,
    Backup,
    Bookkeeper,
    backed_up,
    delete_with_volumes,
    early_drops,
    has_dropped,
    recovering,
    spark_image,
)
from e2e.harness.s3 import S3Server, credentials
from e2e.harness.world import BrokerGroup, Namespace, eventually, group_manifest

TOPIC, BALLAST = "demo", "ballast"
BALLAST_MESSAGES = 70_000
"""Of 1 KiB: more than `FULL_AT_PERCENT` of `SMALL`, so that nodes drop the oldest."""
SMALL = "512Mi"
"""Segments are a 32nd of it, 16 MiB."""
FULL_AT_PERCENT = 15
"""Room for two whole segments beside the one that is written and the next: the messages of the
story lie in one of them, wherever in a segment they begin. With room for one they went at times."""


@pytest.fixture(scope="session")
def spark(cluster: Cluster) -> Image:
    """Return the image that Spark work runs in, on one node."""
    return spark_image(cluster)


def test_a_group_behind_retention_comes_back_as_it_was_at_a_chosen_time(
    namespace: Namespace, image: Image, spark: Image, figures: dict[str, float]
) -> None:
    """Lost with its volumes after three backups; restored to a time between two of them.

    Every message that nodes kept then is there, in its place and byte for byte, and none that came
    later. Consumers get what they had not acknowledged by then, and nothing that they had.
    """
    server = S3Server.start(namespace)
    store = server.store("orders")
    topics = [{"name": name, "queues": 8} for name in (TOPIC, BALLAST, PROBE)]
    spec = {**backed_up(store, spark, local_threshold="4Mi"), "topics": topics}
    group = namespace.run_group(
        **spec, storage={"size": SMALL}, retention={"diskWatermarkPercent": FULL_AT_PERCENT}
    )
    group_id = group.status()["groupId"]
    client = Bookkeeper(namespace, image, "orders")
    client.start()
    client.write(BALLAST, BALLAST_MESSAGES)
    drop_oldest(group)
    acked = client.write(TOPIC, 1500)["acked"]
    client.take(TOPIC, 800)
    first = completed(namespace, "first", executors=True)
    acked += client.write(TOPIC, 500)["acked"]
    completed(namespace, "second")
    acked += client.write(TOPIC, 500)["acked"]
    client.take(TOPIC, 400)
    client.take(TOPIC, 100, hold=True)
    noted, then = note_between_drops(client, group)
    client.write(TOPIC, 500)
    client.take_in_vain(TOPIC, 300)
    third = completed(namespace, "third")
    claims = delete_with_volumes(group)

    with ThreadPoolExecutor(1) as pool:
        resuming = pool.submit(client.resume, TOPIC)
        applied_ms = time.time_ns() // 1_000_000
        recovery = recovering(store, group_id, time=then.isoformat(timespec="milliseconds"))
        # With as little room it is not to drop at once what it was restored for.
        spec |= {"storage": {"size": SMALL}, "retention": {"diskWatermarkPercent": 95}}
        namespace.apply(group_manifest("orders", **spec, **recovery))
        resumed = resuming.result()
    status = group.wait_available(180)
    compared = client.compare()
    figures["rtoSeconds"] = (max(resumed["receivedAtMs"], resumed["ackedAtMs"]) - applied_ms) / 1000

    assert first["range"]["first"] > 1
    assert "a new base was begun, since" in first["message"]
    assert first["message"] in events(namespace, "BackupCompleted", of="first")
    assert "a new base" not in third["message"]
    assert len(claims) == 3
    assert status["groupId"] != group_id
    assert acked < noted["messages"] == compared["expected"]
    assert (compared["missing"], compared["changed"], compared["extra"]) == (0, 0, 0), compared
    assert compared["goesOn"], compared
    assert resumed["expected"] == acked - 800 - 400
    assert (resumed["lost"], resumed["again"], resumed["foreign"]) == (0, 0, 0), resumed


@pytest.mark.long
def test_a_group_comes_back_from_a_backup_on_a_volume_claim(
    namespace: Namespace, image: Image, spark: Image
) -> None:
    """A file:// store: backed up by the Job's own pod, however little is worth executors."""
    namespace.apply(claim("backups"))
    store: dict[str, str | bool] = {"url": "file:///backups/orders", "claimName": "backups"}
    spec = {**backed_up(store, spark), "replicas": 1}
    group = namespace.run_group(**spec)
    group_id = group.status()["groupId"]
    client = Bookkeeper(namespace, image, "orders")
    client.start()
    acked = client.write(TOPIC, 500)["acked"]
    client.note()

    completed(namespace, "first")
    delete_with_volumes(group)
    namespace.apply(group_manifest("orders", **spec, **recovering(store, group_id)))
    group.wait_available(180)
    compared = client.compare()

    assert acked == compared["expected"]
    assert (compared["missing"], compared["changed"], compared["extra"]) == (0, 0, 0), compared


def note_between_drops(client: Bookkeeper, group: BrokerGroup) -> tuple[dict[str, Any], datetime]:
    """Note what is kept, until nothing was dropped meanwhile; return that, and when it was so."""
    while True:
        before, noted, then = early_drops(group), client.note(), datetime.now(UTC)
        if early_drops(group) == before:
            return noted, then


def drop_oldest(group: BrokerGroup) -> None:
    """Wait until every node, whose files take more than the watermark, has dropped entries."""
    for pod in group.pods():
        what = f"{pod}, with over {FULL_AT_PERCENT} % of its storage used, drops its oldest segment"
        eventually(what, partial(has_dropped, group, pod), 90)


def events(namespace: Namespace, reason: str, *, of: str) -> list[str]:
    """Return the messages of an object's Events."""
    selector = f"reason={reason},involvedObject.name={of}"
    listed = namespace.kubectl("get", "events", "--field-selector", selector, "-o", "json")
    return [item["message"] for item in json.loads(listed)["items"]]


def claim(name: str) -> dict[str, Any]:
    """Return a volume claim of the cluster's default class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def completed(namespace: Namespace, name: str, *, executors: bool = False) -> dict[str, Any]:
    """Back the group up, see that it worked, by executors or without; return the status."""
    backup = Backup(namespace, name)
    backup.apply("orders")
    watched = backup.watch(deadline_s=240)
    assert watched.status["phase"] == "Completed", watched.status
    assert watched.names("driver")
    assert bool(watched.names("executor")) == executors
    return watched.status


def test_a_backup_with_wrong_credentials_fails_with_a_sentence(
    namespace: Namespace, spark: Image
) -> None:
    """It says at once who was refused by what; nothing is written, and the group goes on."""
    server = S3Server.start(namespace)
    wrong = credentials("wrong", "nobody", "guessed")
    spec = {**backed_up(server.store("orders"), spark), "replicas": 1}
    namespace.apply(wrong)
    group = namespace.run_group(**spec)

    backup = Backup(namespace, "denied")
    backup.apply("orders", store=server.store("orders", "wrong"))
    watched = backup.watch(deadline_s=180)
    status = watched.status

    assert status["phase"] == "Failed"
    assert len(watched.names("driver")) == 1
    assert status["message"].startswith("StoreDenied: "), status
    assert "s3://backups/orders" in status["message"]
    assert "credentials" in status["message"]
    assert "manifest" not in status
    assert server.written() == []
    assert group.wait_available()
