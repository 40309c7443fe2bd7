"""What a user does to make a group larger or smaller under writes: `kubectl scale`."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.world import BrokerGroup, Namespace, Workload, eventually
from e2e.stories.traffic import SDK, end

REMOVED = "dledger.io/removed-member"
DEADLINE_S = 300.0
"""For one change of the size; a step of it takes some seconds, and a new pod has to start."""


@pytest.fixture
def traffic(namespace: Namespace, workload_image: Image) -> Workload:
    """Return writes that end when they are told to."""
    return Workload(namespace, workload_image, "traffic", *SDK, "--seconds", "1800")


def _scale(group: BrokerGroup, replicas: int) -> float:
    """Scale a group, wait until it is done, and return the seconds that took."""
    began_s = time.monotonic()
    how = ("scale", f"brokergroup/{group.name}", f"--replicas={replicas}")
    group.namespace.kubectl(*how)
    found = group.namespace.get("brokergroup", group.name) or {}
    group.wait_settled(int(found["metadata"]["generation"]), DEADLINE_S)
    took_s = time.monotonic() - began_s
    wanted = [f"{group.name}-{n}" for n in range(replicas)]

    def others_are_gone() -> bool:
        names = [row["name"] for row in group.status()["members"]]
        return names == wanted == group.pods()

    eventually(f"members and pods are {wanted}", others_are_gone, 60)
    return took_s


def _claims(group: BrokerGroup) -> dict[str, dict[str, Any]]:
    listed = json.loads(group.namespace.kubectl("get", "pvc", "-o", "json"))["items"]
    return {each["metadata"]["name"]: each["metadata"] for each in listed}


@pytest.mark.long
def test_a_group_is_scaled_out_and_in_under_writes(
    namespace: Namespace, traffic: Workload, figures: dict[str, float]
) -> None:
    """From one to three to five and back, and out again over the claims that were kept."""
    group = namespace.run_group(replicas=1)
    traffic.start()
    traffic.wait_acked(300)
    for replicas in (3, 5, 3, 1):
        before = traffic.acked()
        took_s = _scale(group, replicas)
        figures[f"seconds to scale to {replicas}, as change {len(figures) + 1}"] = took_s
        traffic.wait_acked(before + 100)
    kept = _claims(group)
    marked = {name for name, metadata in kept.items() if REMOVED in metadata.get("annotations", {})}
    assert marked == {f"data-orders-{n}" for n in range(1, 5)}
    _scale(group, 3)
    summary = end(traffic)

    figures["longest silence of a client, ms"] = summary["gapMs"]
    again = _claims(group)
    for name in ("data-orders-1", "data-orders-2"):
        assert again[name]["uid"] != kept[name]["uid"], "a disk of a removed member"
    listed = json.loads(namespace.kubectl("get", "events", "-o", "json"))["items"]
    reasons = [each["reason"] for each in listed]
    assert (reasons.count("MemberAdded"), reasons.count("MemberRemoved")) == (6, 4), reasons
    assert reasons.count("ClaimReplaced") == 2


@pytest.mark.long
def test_of_two_that_leave_the_one_that_is_drained_goes_first(
    namespace: Namespace, traffic: Workload, cluster: Cluster, figures: dict[str, float]
) -> None:
    """Drained and scaled from three to one in one moment: the sound one is relied on until then."""
    if cluster.kind == "current":
        pytest.skip("drains a machine, which a cluster that is not ours keeps")
    group = namespace.run_group()
    if group.leader() != "orders-0":
        namespace.operate("lead-there", "TransferLeader", to="orders-0")
        namespace.wait_operated("lead-there")
    traffic.start()
    traffic.wait_acked(300)
    machine = group.nodes()["orders-1"]["spec"]["nodeName"]

    cluster.kubectl("cordon", machine)
    try:
        _evict(namespace, "orders-1")
        _scale(group, 1)
    finally:
        cluster.kubectl("uncordon", machine)
    traffic.wait_acked(traffic.acked() + 300)
    figures["longest silence of a client, ms"] = end(traffic)["gapMs"]

    first, second = group.told("MemberRemoved")
    assert first.startswith("orders-1: "), (first, second)
    assert second.startswith("orders-2: "), (first, second)


def _evict(namespace: Namespace, pod: str) -> None:
    """Ask for a pod to go as `kubectl drain` does, and go on at once."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace.name},
    }
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
