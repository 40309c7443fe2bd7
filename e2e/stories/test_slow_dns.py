"""What a user keeps while the DNS beyond the cluster does not answer: everything, as fast."""

from __future__ import annotations

import time

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.backups import Backup, backed_up, spark_image
from e2e.harness.cluster_dns import seconds_of_a_lookup_beyond, swallowing_dns
from e2e.harness.s3 import S3Server
from e2e.harness.world import BrokerGroup, Namespace, Workload
from e2e.stories.traffic import SDK, check_whole, end

LOOKUP_S = 2.0
GAP_MS = 1000
"""More than a failover without it may differ from the next one, and less than a lookup takes."""
BACKUP_S = 15.0
ROUNDS = 2


@pytest.mark.long
def test_a_dns_that_swallows_what_is_not_the_clusters_costs_nothing(
    namespace: Namespace, workload_image: Image, cluster: Cluster, figures: dict[str, float]
) -> None:
    """Given a forwarder that is silent, a failover and a backup take as long as without it."""
    server, spark = S3Server.start(namespace), spark_image(cluster)
    spec = backed_up(server.store("orders"), spark, local_threshold="1Gi")
    group = namespace.run_group(**spec)

    figures["gapMs"] = gap_ms(namespace, group, workload_image, "before")
    figures["backupSeconds"] = backup_s(namespace, "before")
    with swallowing_dns(namespace, workload_image.name):
        figures["lookupSeconds"] = seconds_of_a_lookup_beyond(namespace)
        figures["gapMsSwallowed"] = gap_ms(namespace, group, workload_image, "swallowed")
        figures["backupSecondsSwallowed"] = backup_s(namespace, "swallowed")

    assert figures["lookupSeconds"] > LOOKUP_S, "nothing was swallowed"
    assert figures["gapMsSwallowed"] < figures["gapMs"] + GAP_MS
    assert figures["backupSecondsSwallowed"] < figures["backupSeconds"] + BACKUP_S


def gap_ms(namespace: Namespace, group: BrokerGroup, image: Image, name: str) -> float:
    """Return the shorter of two failovers: an election may be split, or the machine busy."""
    return min(_gap_ms(namespace, group, image, f"{name}-{each}") for each in range(ROUNDS))


def _gap_ms(namespace: Namespace, group: BrokerGroup, image: Image, name: str) -> float:
    """Kill the leader's pod under an SDK's writes; return the longest silence of its acks."""
    traffic = Workload(namespace, image, f"traffic-{name}", *SDK, "--seconds", "240")
    traffic.start()
    traffic.wait_acked(500)
    before = group.leader()
    group.kill_pod(before)
    group.other_leader(before)
    group.wait_available()
    summary = end(traffic)
    assert check_whole(summary)["acked"] >= 500
    return float(summary["gapMs"])


def backup_s(namespace: Namespace, name: str) -> float:
    """Back the group up; return how long that took."""
    backup, began_s = Backup(namespace, f"backup-{name}"), time.monotonic()
    backup.apply("orders")
    watched = backup.watch(deadline_s=240)
    assert watched.status["phase"] == "Completed", watched.status
    return time.monotonic() - began_s
