"""What a user changes in a spec while an unmodified SDK writes, and does not notice."""

from __future__ import annotations

import base64
import json
import time

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.world import BrokerGroup, Namespace, Workload, eventually, install_operator
from e2e.stories.traffic import begin, end


def _order_of_restarts(group: BrokerGroup) -> list[str]:
    made = {name: each["metadata"]["creationTimestamp"] for name, each in group.nodes().items()}
    return sorted(made, key=lambda name: made[name])


def test_a_new_image_rolls_out_and_the_leader_comes_last(
    namespace: Namespace,
    image: Image,
    workload_image: Image,
    cluster: Cluster,
    figures: dict[str, float],
) -> None:
    """Given writes, when the image changes, then every pod is new and no client saw an error."""
    newer = f"{image.name}-newer"
    cluster.alias_image(image.name, newer)
    group = namespace.run_group()
    before = group.uids()
    traffic = begin(namespace, workload_image)

    group.wait_settled(group.change(image=newer))
    summary = end(traffic, failed=0)

    figures["longest silence of a client, ms"] = summary["gapMs"]
    images = {each["spec"]["containers"][0]["image"] for each in group.nodes().values()}
    assert images == {newer}
    assert not set(before.values()) & set(group.uids().values())
    assert group.told("LeaderTransferred")[-1].startswith(f"{_order_of_restarts(group)[-1]} ")


def test_a_bad_image_stops_at_one_pod_and_is_taken_back(
    namespace: Namespace, image: Image, workload_image: Image
) -> None:
    """A pod that does not come up halts the rollout; the spec taken back heals it."""
    group = namespace.run_group()
    before = group.uids()
    traffic = begin(namespace, workload_image)

    group.change(image=f"{image.name}-that-nobody-has")
    eventually(
        "the rollout halts",
        lambda: group.condition("Progressing").get("reason") == "RolloutHalted" or None,
        240,
    )
    broken = {name for name, uid in group.uids().items() if before[name] != uid}
    generation = group.change(image=None)
    group.wait_settled(generation)
    end(traffic, failed=0)

    assert len(broken) == 1, "a second pod was stopped while the first was broken"
    images = {each["spec"]["containers"][0]["image"] for each in group.nodes().values()}
    assert images == {image.name}


def test_a_setting_that_needs_a_restart_rolls_out(
    namespace: Namespace, workload_image: Image
) -> None:
    """The same for what is in the pods' template and in their configuration."""
    group = namespace.run_group()
    before = group.uids()
    traffic = begin(namespace, workload_image)

    generation = group.change(
        durability="osBuffer", resources={"requests": {"cpu": "20m", "memory": "64Mi"}}
    )
    group.wait_settled(generation)
    end(traffic, failed=0)

    assert not set(before.values()) & set(group.uids().values())


@pytest.mark.long
def test_a_hand_edit_is_undone_and_told(namespace: Namespace, figures: dict[str, float]) -> None:
    """A Service that leads nobody to the group any more, and one that is gone."""
    group = namespace.run_group()
    before = _selector(namespace)

    patch = json.dumps({"spec": {"selector": {"app": "another"}}})
    edited_s = time.monotonic()
    namespace.kubectl("patch", "service", "orders", "--type=merge", "-p", patch)
    eventually("the edit is undone", lambda: _selector(namespace) == before, 60)
    figures["seconds until an edit was undone"] = time.monotonic() - edited_s
    deleted_s = time.monotonic()
    namespace.kubectl("delete", "service", "orders")
    eventually("the Service is back", lambda: _selector(namespace) == before, 60)
    figures["seconds until a deleted Service was back"] = time.monotonic() - deleted_s

    told = eventually("it is told", lambda: group.told("ChildRepaired"), 60)
    assert "set back: spec.selector (by kubectl-patch)" in told[0]


def _selector(namespace: Namespace) -> dict[str, str]:
    service = namespace.get("service", "orders") or {"spec": {}}
    found: dict[str, str] = service["spec"].get("selector", {})
    return found


@pytest.mark.long
def test_a_topic_that_is_taken_off_the_spec_is_deleted_under_writes(
    namespace: Namespace, workload_image: Image
) -> None:
    """With topicDeletion: Delete; who writes to another one notices nothing."""
    demo = {"name": "demo", "type": "NORMAL", "queues": 8}
    group = namespace.run_group(
        topics=[demo, {"name": "old", "type": "NORMAL", "queues": 2}], topicDeletion="Delete"
    )
    old = ("--endpoint", "orders:8081", "--topic", "old", "--messages", "500", "--consumer", "none")
    first = Workload(namespace, workload_image, "old", *old)
    first.start()
    written = first.summary()["stored"]
    traffic = begin(namespace, workload_image)

    group.wait_settled(group.change(topics=[demo]))
    end(traffic, failed=0)

    assert group.told("TopicDeleted") == [
        f"topic old and its {written} messages: it was taken off the spec"
    ]
    assert group.status()["topics"] == ["demo"]


@pytest.mark.long
def test_a_group_in_plain_text_gets_certificates_by_one_rollout(
    namespace: Namespace, image: Image, workload_image: Image, cluster: Cluster
) -> None:
    """Both are accepted until every pod has its certificate; then TLS alone."""
    install_operator(cluster, image, "peerTls=false")
    try:
        group = namespace.run_group()
        before = group.uids()
        assert namespace.get("secret", "orders-peer-tls") is None
        traffic = begin(namespace, workload_image)
    finally:
        install_operator(cluster, image)
    eventually("TLS alone", lambda: _mode(namespace) == "required" or None, 240)
    group.wait_available()
    end(traffic, failed=0)

    after = group.uids()
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert len(group.told("PodRestarted")) == len(after)


def _mode(namespace: Namespace) -> str:
    """Return whether peers of the group take both or TLS alone; empty without certificates."""
    secret = namespace.get("secret", "orders-peer-tls") or {"data": {"mode": ""}}
    return base64.b64decode(secret["data"]["mode"]).decode()


def test_leadership_is_handed_over_as_asked(
    namespace: Namespace, workload_image: Image, figures: dict[str, float]
) -> None:
    """A planned change of the leader, asked for as a BrokerOperation."""
    group = namespace.run_group()
    traffic = begin(namespace, workload_image)
    leader = group.leader()
    to = next(name for name in group.pods() if name != leader)

    namespace.operate("hand-over", "TransferLeader", to=to)
    namespace.wait_operated("hand-over")
    assert group.other_leader(leader) == to
    summary = end(traffic, failed=0)

    figures["longest silence of a client, ms"] = summary["gapMs"]
