"""What a user keeps when a group is lost with its volumes, and is told when a backup fails."""

from __future__ import annotations

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
from e2e.harness.s3 import S3Server, credentials
from e2e.harness.world import Namespace, group_manifest

MESSAGES = 3000


@pytest.fixture(scope="session")
def spark(cluster: Cluster) -> Image:
    """Return the image that Spark work runs in, on one node."""
    return spark_image(cluster)


def test_a_group_lost_with_its_volumes_comes_back_from_a_backup(
    namespace: Namespace, image: Image, spark: Image
) -> None:
    """Backed up by Spark with an executor pod, restored into a new group: every message is there.

    In its place, with its id, keys, properties and body; and the next message goes behind the last.
    """
    server = S3Server.start(namespace)
    spec = backed_up(server, spark, "orders")
    group = namespace.run_group(**spec)
    group_id = group.status()["groupId"]
    bookkeeper = Bookkeeper(namespace, image, "orders")
    bookkeeper.start()
    written = bookkeeper.write("demo", MESSAGES)

    backup = Backup(namespace, "whole")
    backup.apply("orders")
    watched = backup.watch(deadline_s=240)
    claims = delete_with_volumes(group)
    restored = {**spec, **recovering(server.store("orders"), group_id)}
    namespace.apply(group_manifest("orders", **restored))
    status = group.wait_available(180)
    compared = bookkeeper.compare()

    assert written["acked"] == written["messages"] == MESSAGES
    assert watched.status["phase"] == "Completed", watched.status
    assert watched.names("driver")
    assert watched.names("executor")
    assert any("/manifests/" in path for path in server.written())
    assert len(claims) == 3
    assert status["groupId"] != group_id
    assert (compared["missing"], compared["changed"], compared["extra"]) == (0, 0, 0), compared
    assert compared["goesOn"], compared


def test_a_backup_with_wrong_credentials_fails_with_a_sentence(
    namespace: Namespace, spark: Image
) -> None:
    """It says at once who was refused by what; nothing is written, and the group goes on."""
    server = S3Server.start(namespace)
    wrong = credentials("wrong", "nobody", "guessed")
    spec = {**backed_up(server, spark, "orders"), "replicas": 1}
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
