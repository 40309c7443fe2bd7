"""A lost disk on a real API server, with nodes that are played: healed, told, and held back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operator.live import Story, volumes_of_class
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e
EMPTY = "True/MemberReplacedByEmptyDisk"


async def _told(story: Story) -> list[str]:
    events = await story.list("events")
    return [each["message"] for each in events if each["reason"] == "MemberReplaced"]


async def test_a_lost_disk_is_healed_without_a_command(story: Story) -> None:
    """Degraded until the new disk votes; the Event names the pod and both nodes."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    lost = story.nodes.lose_disk(2)

    await eventually_async(lambda: _told(story), "the Event")
    assert story.nodes.changes == [(f"{lost}-again", lost)]
    assert await story.condition("Degraded") == EMPTY
    assert await story.condition("Progressing") == "True/Joining"
    story.nodes.catch_up()
    await story.until_condition("Degraded", "False/AsExpected")
    await story.until_condition("Progressing", "False/Complete")

    assert await _told(story) == [f"orders-2: node {lost}-again took the place of {lost}"]
    assert len(story.nodes.changes) == 1


async def test_a_paused_group_keeps_its_members_until_it_goes_on(story: Story) -> None:
    """Who wants the old volume back has the time for it."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    await story.apply(paused=True)
    await story.until_condition("Paused", "True/PausedByUser")
    story.nodes.lose_disk(2)

    await story.until_condition("Degraded", EMPTY)
    assert story.nodes.changes == []
    await story.apply(paused=False)

    await eventually_async(lambda: _told(story), "the Event")


async def test_a_disk_that_is_gone_with_its_machine_is_given_up(story: Story) -> None:
    """Its claim is made anew, its volume stays, and the Event names it."""
    of = f"disks-{story.namespace}"
    made = [machine(f"{of}-{n}") for n in range(3)]
    for manifest in (*made, *local_volumes(of, made)):
        await story.kubectl("create", "-f", "-", manifest=manifest)
    await story.up(storage={"size": "1Gi", "storageClassName": of})
    await story.until_condition("StorageHealthy", "True/VolumesBound")
    await story.until_condition("Degraded", "False/AsExpected")
    claim = await story.get("pvc", "data-orders-2")
    volume = claim["spec"]["volumeName"]

    story.nodes.silent.add(2)
    down = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await story.kubectl(
        *("patch", "pod", "orders-2", "--subresource=status", "--type=merge"),
        *("-p", json.dumps(down)),
    )
    await story.until_condition("Degraded", "True/MemberNotConnected")
    await story.kubectl("delete", "node", f"{of}-{volume.rsplit('-', 1)[1]}")

    async def told() -> list[str]:
        events = await story.list("events")
        return [each["message"] for each in events if each["reason"] == "ClaimReplaced"]

    deleted = "data-orders-2 of orders-2 was deleted, to be made anew"
    assert await eventually_async(told, "the Event") == [
        f"{deleted}; volume {volume} is what it was bound to"
    ]

    async def is_new() -> bool:
        found = await story.get("pvc", "data-orders-2")
        return bool(found) and bool(found["metadata"]["uid"] != claim["metadata"]["uid"])

    await eventually_async(is_new, "the claim is made anew")
    assert (await story.get("pv", volume))["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    story.nodes.lose_disk(2)
    story.nodes.silent.clear()
    await story.run_pods()
    await eventually_async(lambda: _told(story), "the Event")
    story.nodes.catch_up()
    await story.until_condition("Degraded", "False/AsExpected")


def machine(name: str) -> dict[str, Any]:
    """Return a Node."""
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def local_volumes(of: str, machines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a StorageClass and a volume on each machine, that nobody deletes."""
    storage, *volumes = volumes_of_class(of, grows=False)
    yield storage
    for manifest, one in zip(volumes, machines, strict=True):
        row = {
            "key": "kubernetes.io/hostname",
            "operator": "In",
            "values": [one["metadata"]["name"]],
        }
        terms = {"nodeSelectorTerms": [{"matchExpressions": [row]}]}
        spec = {**manifest["spec"], "nodeAffinity": {"required": terms}}
        yield {**manifest, "spec": {**spec, "persistentVolumeReclaimPolicy": "Retain"}}
