"""What a user keeps when pods, the control plane or the whole group go away."""

from __future__ import annotations

import time

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.world import (
    Namespace,
    Workload,
    eventually,
    group_manifest,
    install_operator,
    scale_operator,
)
from e2e.stories.traffic import SDK


def test_every_acknowledged_message_survives_the_leaders_pod(
    namespace: Namespace, workload_image: Image
) -> None:
    """Given traffic, when the leader's pod is killed, then writes go on and nothing is lost."""
    group = namespace.run_group()
    traffic = Workload(namespace, workload_image, "traffic", *SDK, "--messages", "4000")
    traffic.start()
    traffic.wait_acked(1000)
    before = group.leader()

    group.kill_pod(before)
    after = group.other_leader(before)
    summary = traffic.summary()

    assert (summary["lost"], summary["duplicates"], summary["outOfOrder"]) == (0, 0, 0), summary
    assert summary["acked"] >= 4000
    assert after != before
    assert group.status()["lastFailover"]["from"] == before
    group.wait_available()


def test_writes_go_on_without_operator_and_api_server(
    namespace: Namespace, workload_image: Image, cluster: Cluster
) -> None:
    """With the control plane gone, a leader killed by SIGKILL costs under 5 s of writes."""
    group = namespace.run_group()
    traffic = Workload(namespace, workload_image, "traffic", *SDK, "--seconds", "240")
    traffic.start()
    traffic.wait_acked(300)
    pids = cluster.container_pids(namespace.name, group.leader())
    assert pids

    scale_operator(cluster, 0)
    cluster.stop_api_server()
    try:
        killed_ms = time.time_ns() // 1_000_000
        for pid in pids:
            cluster.kill_pid(pid)
        time.sleep(12)  # the outage itself: nothing can be asked while there is no API server
        back_ms = time.time_ns() // 1_000_000
    finally:
        cluster.start_api_server()
        scale_operator(cluster, 1)
    traffic.stop()
    summary = traffic.summary()

    during = [
        line["acked"]
        for line in traffic.lines()
        if killed_ms + 5000 < line.get("atMs", 0) < back_ms
    ]
    assert during[-1] > during[0], "no writes while the control plane was away"
    assert summary["gapMs"] < 5000, summary
    assert (summary["lost"], summary["duplicates"], summary["outOfOrder"]) == (0, 0, 0), summary


def test_a_group_whose_pods_are_all_deleted_reads_everything_back(
    namespace: Namespace, workload_image: Image
) -> None:
    """Whole-group restart while producing: the same group id, everything acknowledged there."""
    group = namespace.run_group()
    group_id = group.status()["groupId"]
    traffic = Workload(namespace, workload_image, "traffic", *SDK, "--seconds", "240")
    traffic.start()
    traffic.wait_acked(500)

    namespace.kubectl("delete", "pod", *group.pods(), "--timeout=60s", timeout_s=70)
    acked = traffic.acked()
    eventually("writes go on", lambda: traffic.acked() > acked + 300, 90)
    traffic.stop()
    summary = traffic.summary()

    assert (summary["lost"], summary["duplicates"], summary["outOfOrder"]) == (0, 0, 0), summary
    assert group.wait_available()["groupId"] == group_id


def test_a_deleted_group_comes_back_with_its_data(
    namespace: Namespace, workload_image: Image
) -> None:
    """Delete and apply again: the volumes are kept, the group id and every message return."""
    group = namespace.run_group()
    group_id = group.status()["groupId"]
    writes = ("--messages", "1500", "--consumer", "none", "--print-acks")
    first = Workload(namespace, workload_image, "before", *SDK, *writes)
    first.start()
    assert first.summary()["acked"] >= 1500
    acks = "\n".join(first.acks())

    namespace.kubectl("delete", "brokergroup", "orders", "--timeout=60s", timeout_s=70)
    eventually("its pods are gone", lambda: not group.pods(), 90)
    claims = namespace.kubectl("get", "pvc", "-o", "name").split()
    namespace.apply(group_manifest("orders"))
    status = group.wait_available()
    second = Workload(
        namespace, workload_image, "after", *SDK, "--expect", "/workload/acks", files={"acks": acks}
    )
    second.start()
    summary = second.summary()

    assert len(claims) == 3
    assert status["groupId"] == group_id
    assert summary["expected"] >= 1500
    assert (summary["lost"], summary["duplicates"]) == (0, 0), summary


def test_upgrading_the_operator_restarts_no_broker(
    namespace: Namespace, image: Image, cluster: Cluster
) -> None:
    """The operator comes and goes; the pods of its groups stay the same."""
    group = namespace.run_group()
    before = namespace.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")

    scale_operator(cluster, 0)
    install_operator(cluster, image)
    scale_operator(cluster, 1)
    group.wait_available()

    after = namespace.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
    assert sorted(after.split()) == sorted(before.split())
