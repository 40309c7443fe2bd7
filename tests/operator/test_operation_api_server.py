"""BrokerOperations on a real API server, with the rights of the chart and nodes that are played."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

import pytest

from dledger_operator.api import names
from tests.operator.live import Story
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

TRANSFER: Final = {"kind": "TransferLeader", "transferLeader": {"to": "orders-1"}}
RESTART: Final = {"kind": "Restart", "restart": {"all": True}}
REPLACE: Final = {"kind": "ReplaceMember", "replaceMember": {"member": "orders-2"}}
FORCE: Final = {"kind": "ForceNewGroup", "forceNewGroup": {"groupId": "x"}}


def _operation(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.OPERATION_KIND,
        "metadata": {"name": name},
        "spec": {"group": "orders", **spec},
    }


async def _create(story: Story, name: str, **spec: Any) -> None:
    await story.kubectl("create", "-f", "-", manifest=_operation(name, **spec))


async def _status_when(story: Story, name: str, phase: str, reason: str = "") -> dict[str, Any]:
    async def reached() -> dict[str, Any]:
        status: dict[str, Any] = (await story.get("bgo", name)).get("status", {})
        said = [row["reason"] for row in status.get("conditions", [])]
        found = status.get("phase") == phase and (not reason or said == [reason])
        return status if found else {}

    found: dict[str, Any] = await eventually_async(reached, f"{name} is {phase} {reason}")
    return found


async def _events(story: Story, reason: str) -> list[str]:
    events = await story.list("events")
    return [each["message"] for each in events if each["reason"] == reason]


async def test_a_transfer_is_done_and_then_deleted(story: Story) -> None:
    """After the TTL of the object; the Events stay."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")

    await _create(story, "one", **TRANSFER, ttlSecondsAfterFinished=1)

    async def gone() -> bool:
        return not await story.get("bgo", "one")

    await eventually_async(gone, "it is deleted")
    assert story.nodes.leader == 1
    assert len(await _events(story, "OperationSucceeded")) == 2


async def test_an_operation_without_a_group_fails_after_its_deadline(
    story: Story, namespace: str
) -> None:
    """It says so before, once the operator may know that there is none (`SETTLES_S`)."""
    await _create(story, "one", **{**TRANSFER, "group": "nobody"}, deadlineSeconds=12)

    await _status_when(story, "one", "Pending", "GroupMissing")
    status = await _status_when(story, "one", "Failed", "DeadlineExceeded")
    assert "there is no BrokerGroup nobody" in status["message"]


async def test_a_suspect_disk_is_given_up_and_made_anew(story: Story) -> None:
    """The claim is another one afterwards, the old node id is out, and the volume is named."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    before = (await story.get("pvc", "data-orders-2"))["metadata"]["uid"]

    await _create(story, "one", **REPLACE)
    await eventually_async(lambda: _events(story, "ClaimReplaced"), "the Event")
    lost = story.nodes.lose_disk(2)
    await story.run_pods()
    await eventually_async(lambda: _events(story, "MemberReplaced"), "the replacement")
    story.nodes.catch_up()

    await _status_when(story, "one", "Succeeded")
    assert story.nodes.changes == [(f"{lost}-again", lost)]
    assert (await story.get("pvc", "data-orders-2"))["metadata"]["uid"] != before


async def test_a_lost_majority_goes_on_from_the_survivor_when_told_to(story: Story) -> None:
    """Shown first; done with the id typed in; grown again with fresh disks."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    await _create(story, "early", **{**FORCE, "forceNewGroup": {}})
    await _status_when(story, "early", "Failed", "MajorityThere")
    story.nodes.lose_disk(2)
    story.nodes.silent.add(1)
    story.nodes.leader = None
    await story.until_condition("Available", "False/NoLeader")

    await _create(story, "look", **{**FORCE, "forceNewGroup": {}})
    shown = await _status_when(story, "look", "Pending", "AwaitingConfirmation")
    assert [row["pod"] for row in shown["survivors"]] == ["orders-0"]
    assert shown["survivors"][0]["lastIndex"] == 4711
    await _create(story, "wrong", **FORCE)
    await _status_when(story, "wrong", "Failed", "GroupIdMismatch")
    group_id = (await story.status())["groupId"]
    await _create(story, "force", **{**FORCE, "forceNewGroup": {"groupId": group_id}})

    await eventually_async(lambda: _events(story, "ClaimReplaced"), "the Event")
    story.nodes.lose_disk(1)
    story.nodes.silent.clear()
    await story.run_pods()
    for joined in (1, 2):
        await eventually_async(partial(_joined, story, joined), "a pod joins")
        story.nodes.catch_up()

    await _status_when(story, "force", "Succeeded")
    await story.until_condition("Degraded", "False/AsExpected")
    assert story.nodes.epoch == 1
    assert json.dumps(story.nodes.changes).count("-again") == 2


async def _joined(story: Story, wanted: int) -> bool:
    return len(story.nodes.changes) == wanted
