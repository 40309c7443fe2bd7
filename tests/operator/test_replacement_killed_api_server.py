"""A lost disk is replaced although the operator is killed at each act.

On a real API server with played nodes; see `interrupted`.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.operator.api_server import ApiServer
from tests.operator.interrupted import PODS, Acts, SlowKubelet, State, state_of
from tests.operator.kubelet import running, settled
from tests.operator.live import Operator, Story, new_story, replace_operator
from tests.operator.test_lost_disk_api_server import local_volumes, machine
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.long]


async def _replaced(story: Story, kubelet: SlowKubelet) -> None:
    """Wait until an empty disk was let in, let it learn for long, and wait until all is well."""

    async def is_let_in() -> bool:
        return bool(story.nodes.changes)

    await eventually_async(is_let_in, "the empty disk is let in", deadline_s=120)
    await kubelet.considered()
    kubelet.is_catching_up = True
    await settled(story)


def _check_once(story: Story, kubelet: SlowKubelet, acts: Acts, lost: str) -> None:
    """Fail unless one pod was down, and its new disk took the place of the lost one at once."""
    assert (kubelet.faults, story.nodes.faults) == ([], [])
    assert acts.downtime.gone == ["orders-2"]
    assert story.nodes.changes == [(f"{lost}-again", lost)]


def _check_same(before: State, after: State, lost: str) -> None:
    """Fail unless all is as before, but for the pod and the node with the new disk."""
    assert {name for name in PODS if after.uids[name] != before.uids[name]} == {"orders-2"}
    new = before.members - {("orders-2", lost)} | {("orders-2", f"{lost}-again")}
    assert after.members == new
    assert (after.hashes, after.images) == (before.hashes, before.images)
    assert after.conditions == before.conditions


async def test_an_empty_disk_takes_its_place_once(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Killed when the pod and its claim go, too, which nobody asked the operator for."""
    async with new_story(server, namespace, "orders") as story:
        kubelet = SlowKubelet(story, operators=operators)
        async with running(kubelet):
            await settled(story)
            before, lost = await state_of(story), story.nodes.disks[2].node_id
            acts = Acts(story, kubelet, partial(replace_operator, server, operators))
            async with acts.watched():
                kubelet.is_catching_up = False
                await story.kubectl("delete", "pvc", "data-orders-2", "--wait=false")
                await story.kubectl("delete", "pod", "orders-2", "--wait=false")
                await _replaced(story, kubelet)
                after = await state_of(story)

    assert acts.done == ["data-orders-2", "orders-2", "ChangeMembers"]
    assert len(operators) - 1 == len(acts.done)
    _check_once(story, kubelet, acts, lost)
    _check_same(before, after, lost)


async def test_a_disk_that_is_gone_with_its_machine_is_given_up_once(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Killed once the claim is to go, which waits for its pod; and once the pod is to go."""
    of = f"disks-{namespace}"
    async with new_story(server, namespace, "orders") as story:
        machines = [machine(f"{of}-{n}") for n in range(3)]
        storages = [*local_volumes(of, machines)]
        for manifest in (*machines, *storages):
            await story.kubectl("create", "-f", "-", manifest=manifest)
        kubelet = SlowKubelet(story, operators=operators)
        storage = {"size": "1Gi", "storageClassName": of}
        async with running(kubelet, storage=storage):
            await story.until_condition("StorageHealthy", "True/VolumesBound")
            await settled(story)
            before, lost = await state_of(story), story.nodes.disks[2].node_id
            claim = await story.get("pvc", "data-orders-2")
            volume = claim["spec"]["volumeName"]
            home = f"{of}-{volume.rsplit('-', 1)[1]}"
            await _placed(story, "orders-2", home)
            other = next(one for one in storages[1:] if one["metadata"]["name"] != volume)
            spare = {**other, "metadata": {"name": f"{of}-spare"}}
            await story.kubectl("create", "-f", "-", manifest=spare)
            acts = Acts(story, kubelet, partial(replace_operator, server, operators))
            async with acts.watched():
                kubelet.is_catching_up = False
                story.nodes.silent.add(2)
                await story.run_pod(2, ready=False)
                await story.until_condition("Degraded", "True/MemberNotConnected")
                await story.kubectl("delete", "node", home)

                async def is_to_go() -> bool:
                    pod = await story.get("pod", "orders-2")
                    return "deletionTimestamp" in pod["metadata"]

                await eventually_async(is_to_go, "the pod is to go")
                gone = ("delete", "pod", "orders-2", "--force", "--grace-period=0")
                await story.kubectl(*gone)
                await _replaced(story, kubelet)
                after = await state_of(story)
        kept = (await story.get("pv", volume))["spec"]["claimRef"]["uid"]

    assert acts.done == ["data-orders-2", "orders-2", "ChangeMembers"]
    assert len(operators) - 1 == len(acts.done)
    assert kept == claim["metadata"]["uid"]
    _check_once(story, kubelet, acts, lost)
    _check_same(before, after, lost)


async def _placed(story: Story, pod: str, machine: str) -> None:
    """Put a pod on a machine, as a scheduler would: its claim then waits for it to end."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": machine},
    }
    path = f"/api/v1/namespaces/{story.namespace}/pods/{pod}/binding"
    await story.kubectl("create", "--raw", path, "-f", "-", manifest=binding)
