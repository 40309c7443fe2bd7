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
    OPERATOR_NAMESPACE,
    BrokerGroup,
    Namespace,
    Workload,
    eventually,
)
from e2e.stories.traffic import SDK, check_whole, end

TIMES = 10


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


def _silence_after(summary: dict[str, Any], at_ms: int, within_ms: int = 8000) -> int:
    """Return the longest silence in milliseconds that ended within so long after a moment."""
    found = [ms for ended, ms in summary["silences"] if at_ms <= ended <= at_ms + within_ms]
    return max(found, default=0)


def _wait_remade(group: BrokerGroup, pod: str, before: str) -> None:
    eventually(
        f"another pod in the place of {pod}",
        lambda: group.uids().get(pod, before) != before or None,
        60,
    )


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
        before = group.uids()[leader]
        at_ms.append(time.time_ns() // 1_000_000)
        stop(group, leader)
        group.other_leader(leader)
        # Until a pod that was told to stop has stopped, the group looks whole.
        _wait_remade(group, leader, before)
        group.wait_available()
    summary = end(traffic)

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
    summary = end(traffic, failed=0)

    figures["longest silence of a client, ms"] = summary["gapMs"]


@pytest.mark.long
def test_the_machine_of_the_leader_is_cut_off_for_a_minute(
    namespace: Namespace, traffic: Workload, machines: Cluster
) -> None:
    """Writes go on without it, and it follows when it is back."""
    group = namespace.run_group()
    leader = _not_met_by_clients(namespace, group)
    machines.kubectl("cordon", group.nodes()[leader]["spec"]["nodeName"])  # no place for the client
    traffic.start()
    traffic.wait_acked(300)
    if group.leader() != leader:
        namespace.operate("lead-there", "TransferLeader", to=leader)
        namespace.wait_operated("lead-there")

    machines.cut_off(group.nodes()[leader]["spec"]["nodeName"])
    try:
        group.other_leader(leader)
        acked, at_ms = traffic.acked(), time.time_ns() // 1_000_000
        eventually(
            "a minute has passed at the client",
            lambda: traffic.lines()[-1].get("atMs", 0) >= at_ms + 60_000 or None,
            120,
        )
        assert traffic.acked() > acked + 300
    finally:
        machines.connect(group.nodes()[leader]["spec"]["nodeName"])
    group.wait_available(240)
    end(traffic)


@pytest.mark.long
def test_a_machine_that_is_gone_for_good_is_made_up_for(
    namespace: Namespace, traffic: Workload, machines: Cluster, figures: dict[str, float]
) -> None:
    """Its Node is deleted; the member gets another claim elsewhere, and votes again."""
    group = namespace.run_group()
    traffic.start()
    traffic.wait_acked(300)
    pod = _on_a_machine_of_its_own(namespace, group)
    machine = group.nodes()[pod]["spec"]["nodeName"]
    old_id = next(row["id"] for row in group.status()["members"] if row["name"] == pod)

    lost_s = time.monotonic()
    machines.lose_node(machine)
    try:
        eventually(
            "another disk votes in its place",
            lambda: _is_new(group, pod, old_id) or None,
            240,
        )
        figures["seconds until it voted again"] = time.monotonic() - lost_s
        end(traffic)
    finally:
        machines.return_node(machine)


def _on_a_machine_of_its_own(namespace: Namespace, group: BrokerGroup) -> str:
    """Return a member whose machine has neither the client nor the operator."""
    busy = namespace.kubectl("get", "pod", "traffic", "-o", "jsonpath={.spec.nodeName}").split()
    busy += _operators_machines(namespace)
    return next(
        name for name, each in group.nodes().items() if each["spec"]["nodeName"] not in busy
    )


def _not_met_by_clients(namespace: Namespace, group: BrokerGroup) -> str:
    """Return a member on another machine than the operator, which clients do not go through.

    The SDK keeps to the address that sorts first, and waits there if that is cut off
    (docs/clients.md).
    """

    def address(name: str) -> str:
        client = f"{name}-client"
        return namespace.kubectl("get", "service", client, "-o", "jsonpath={.spec.clusterIP}")

    busy, nodes = _operators_machines(namespace), group.nodes()
    return next(
        name
        for name in sorted(nodes, key=address)[1:]
        if nodes[name]["spec"]["nodeName"] not in busy
    )


def _operators_machines(namespace: Namespace) -> list[str]:
    where = "jsonpath={.items[*].spec.nodeName}"
    pods = namespace.cluster.kubectl("-n", OPERATOR_NAMESPACE, "get", "pods", "-o", where)
    return pods.split()


def _is_new(group: BrokerGroup, pod: str, old_id: str) -> bool:
    status = group.status()
    ids = {row["name"]: row["id"] for row in status["members"]}
    found = {row["type"]: row["status"] for row in status["conditions"]}
    whole = (found["Degraded"], found["Ready"]) == ("False", "True")
    return whole and ids.get(pod, "") not in ("", old_id)


@pytest.mark.long
def test_a_majority_of_disks_is_lost_and_the_survivor_goes_on(
    namespace: Namespace, workload_image: Image
) -> None:
    """Two of three disks are gone; what the third has is all there, and writes go on."""
    group = namespace.run_group()
    writes = ("--messages", "1500", "--consumer", "none", "--print-acks")
    first = Workload(namespace, workload_image, "before", *SDK, *writes)
    first.start()
    assert first.summary()["acked"] >= 1500
    acks = "\n".join(first.acks())
    group_id, survivor = group.status()["groupId"], group.leader()
    lost = [name for name in group.pods() if name != survivor]

    namespace.kubectl("delete", "pvc", *(f"data-{name}" for name in lost), "--wait=false")
    for name in lost:
        group.kill_pod(name)
    eventually(
        "the majority is known to be lost",
        lambda: group.condition("Degraded").get("reason") == "MajorityLost" or None,
        120,
    )
    namespace.operate("look", "ForceNewGroup", groupId="")
    survivors = eventually(
        "the survivor is shown", lambda: namespace.operation("look").get("survivors"), 60
    )
    namespace.operate("force", "ForceNewGroup", groupId=group_id)
    namespace.wait_operated("force", 240)
    group.wait_available(240)
    second = Workload(
        namespace, workload_image, "after", *SDK, "--messages", "500", "--expect",
        "/workload/acks", files={"acks": acks},
    )  # fmt: skip
    second.start()
    summary = second.summary()

    assert [row["pod"] for row in survivors] == [survivor]
    check_whole(summary)
    assert summary["acked"] >= 500
