"""What a user does when pods, machines and disks go away under writes: nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.world import (
    BrokerGroup,
    Namespace,
    Workload,
)

SDK = ("--endpoint", "orders:8081", "--topic", "demo")
TIMES = 10
WHOLE = {"lost": 0, "duplicates": 0, "outOfOrder": 0}


@pytest.fixture
def traffic(namespace: Namespace, workload_image: Image) -> Workload:
    """Return writes that end when they are told to."""
    return Workload(namespace, workload_image, "traffic", *SDK, "--seconds", "900")


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[Cluster]:
    """Return the cluster; its machines are all there again afterwards, whatever happened."""
    if cluster.kind == "current":
        pytest.skip("breaks machines, which a cluster that is not ours keeps")
    yield cluster
    for name in cluster.status()["nodes"]:
        cluster.kubectl("uncordon", name)


def _is_whole(traffic: Workload) -> dict[str, Any]:
    traffic.stop()
    summary = traffic.summary()
    assert {key: summary[key] for key in WHOLE} == WHOLE, summary
    return summary


def _silence_after(summary: dict[str, Any], at_ms: int, within_ms: int = 8000) -> int:
    """Return the longest silence in milliseconds that ended within so long after a moment."""
    found = [ms for ended, ms in summary["silences"] if at_ms <= ended <= at_ms + within_ms]
    return max(found, default=0)


def _delete(group: BrokerGroup, pod: str) -> None:
    group.namespace.kubectl("delete", "pod", pod, "--wait=false")


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "stop"), [("deleted", _delete), ("killed by SIGKILL", BrokerGroup.kill_pod)]
)
def test_ten_leaders_in_a_row_go_away(
    namespace: Namespace,
    traffic: Workload,
    figures: dict[str, float],
    how: str,
    stop: Callable[[BrokerGroup, str], None],
) -> None:
    """Each leader in turn; the group is whole again before the next."""
    group = namespace.run_group()
    traffic.start()
    traffic.wait_acked(300)
    at_ms = []
    for _ in range(TIMES):
        leader = group.leader()
        at_ms.append(time.time_ns() // 1_000_000)
        stop(group, leader)
        group.other_leader(leader)
        group.wait_available()
    summary = _is_whole(traffic)

    silences = [_silence_after(summary, moment) for moment in at_ms]
    figures[f"leader {how}: median silence of a client, ms"] = statistics.median(silences)
    figures[f"leader {how}: longest silence of a client, ms"] = max(silences)


def test_the_machine_of_the_leader_is_drained(
    namespace: Namespace, traffic: Workload, machines: Cluster, figures: dict[str, float]
) -> None:
    """Leadership moves before the pod goes, and no send fails."""
    group = namespace.run_group()
    traffic.start()
    traffic.wait_acked(300)
    leader = group.leader()
    machine = group.nodes()[leader]["spec"]["nodeName"]
    drain = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
    only = (
        "--pod-selector",
        f"dledger.io/group=orders,statefulset.kubernetes.io/pod-name={leader}",
    )

    machines.kubectl("drain", machine, *drain, *only, timeout_s=70)
    group.other_leader(leader)
    machines.kubectl("uncordon", machine)
    group.wait_available()
    summary = _is_whole(traffic)

    assert summary["failed"] == 0, summary
    figures["longest silence of a client, ms"] = summary["gapMs"]
