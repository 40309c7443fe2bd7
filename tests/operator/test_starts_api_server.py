"""Pods that do not start, on a real API server: told by name, held back from, and healed.

There are no kubelets: a test says what one would say, as if it had been so for a while.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.operator.api_server import ApiServer
from tests.operator.backup_samples import STORE
from tests.operator.live import Operator, Story, new_story
from tests.operator.test_starts import WAITING
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

TOLD_S: Final = 10
"""Behind its grace, which is over when a test says it."""
ALL: Final = ("orders-0", "orders-1", "orders-2")


def _ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(reason: str) -> dict[str, Any]:
    """Return what a kubelet says of a pod that has waited for 40 seconds."""
    waits: dict[str, Any] = {"reason": reason, "message": f"the words of {reason}"}
    container: dict[str, Any] = {"state": {"waiting": waits}}
    if reason == "CrashLoopBackOff":
        ended = {"exitCode": 1, "reason": "Error", "finishedAt": _ago(40)}
        container["lastState"] = {"terminated": ended}
    told = {"name": "node", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _ago(40)}
    return {
        "phase": "Pending",
        "conditions": [placed, {"type": "Ready", "status": "False"}],
        "containerStatuses": [{**told, **container}],
    }


async def _wait(story: Story, pod: str, reason: str = "ContainerCreating") -> None:
    """Have a pod wait for *reason*."""
    patch = json.dumps({"status": _status(reason)})
    await story.kubectl(*("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch))


async def _say(story: Story, pod: str, reason: str, message: str) -> None:
    """Post an Event on a pod, as a kubelet does."""
    uid = (await story.get("pod", pod))["metadata"]["uid"]
    now = _ago(0)
    on = {"apiVersion": "v1", "kind": "Pod", "namespace": story.namespace, "name": pod, "uid": uid}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.{reason.lower()}"},
        "involvedObject": on,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "kubelet"},
    }
    await story.kubectl("create", "-f", "-", manifest=event)


async def _run(story: Story, *ordinals: int) -> None:
    """Have pods run again: their container, and what it waited for, is no more."""
    for ordinal in ordinals or range(3):
        cleared = json.dumps({"status": {"containerStatuses": None}})
        pod = f"{story.name}-{ordinal}"
        await story.tried(
            *("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", cleared)
        )
        await story.run_pod(ordinal)


async def _told(story: Story, kind: str, *words: str) -> None:
    """Wait until a condition says these words."""
    end_s = time.monotonic() + 10 * TOLD_S
    while True:
        found = await story.message(kind)
        if all(word in found for word in words):
            return
        assert time.monotonic() < end_s, f"{kind} says {found!r}, not {words}"
        await asyncio.sleep(0.2)


async def _uids(story: Story) -> dict[str, str]:
    pods = await story.list("pods", "-l", "app.kubernetes.io/component=node")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


async def _secret(story: Story, name: str) -> None:
    made = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": "a", "tls.key": "b"},
    }
    await story.kubectl("create", "-f", "-", manifest=made)


def _tls(name: str) -> dict[str, Any]:
    return {"tls": {"enabled": True, "secretName": name}}


@pytest.mark.parametrize(
    "reasons",
    [
        pytest.param((*WAITING[-2:], "ErrImagePull"), id="some"),
        pytest.param(WAITING, id="all", marks=pytest.mark.long),
    ],
)
async def test_every_waiting_reason_is_told_and_healed(
    story: Story, reasons: tuple[str, ...]
) -> None:
    """Three at a time, each by the name of its pod; of two of them only Events say more."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    slow = {"ContainerCreating": "FailedMount: volume 0", "PodInitializing": "FailedAttachVolume: "}
    await _say(story, "orders-0", "FailedMount", "volume 0 is not to be had")
    await _say(story, "orders-1", "FailedAttachVolume", "Multi-Attach error for volume 1")

    for first in range(0, len(reasons), 3):
        waiting = dict(zip(ALL, reasons[first : first + 3], strict=False))
        words = [f"{pod} (" for pod in waiting]
        words += [slow.get(reason, reason) for reason in waiting.values()]
        for pod, reason in waiting.items():
            await _wait(story, pod, reason)
        for kind in ("Degraded", "Ready"):
            await _told(story, kind, *words)
        assert await story.condition("Degraded") == "True/PodCannotStart"
        await _run(story)
        await story.until_condition("Degraded", "False/AsExpected")


async def test_a_typo_in_a_new_group_is_named_and_healed_once_it_is_corrected(
    story: Story,
) -> None:
    """Found: S1, 01_tls_secret_typo.sh. No pod ever ran, and no leader ever answered."""
    await _secret(story, "pay-tls")
    await story.apply(**_tls("pay-tsl"))
    await eventually_async(lambda: _are_there(story, 3), "the pods")
    for pod in ALL:
        await _wait(story, pod)
        await _say(story, pod, "FailedMount", 'secret "pay-tsl" not found')
    before = await _uids(story)

    await _told(story, "Degraded", "Secret pay-tsl does not exist", "spec.tls.secretName")
    await _told(story, "Ready", *ALL, 'FailedMount: secret "pay-tsl" not found')
    await story.apply(**_tls("pay-tls"))

    async def are_new() -> bool:
        after = await _uids(story)
        return len(after) == 3 and not set(after.values()) & set(before.values())

    await eventually_async(are_new, "pods of the right template")
    await story.run_pods()
    await story.until_condition("Available", "True/LeaderElected")
    await story.until_condition("Degraded", "False/AsExpected")


async def _are_there(story: Story, count: int) -> bool:
    return len(await _uids(story)) == count


async def test_a_typo_in_a_running_group_restarts_nothing(story: Story) -> None:
    """Found: S1, 02. The rollout halts before its first pod, and ends when the spec is back."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    before, built = await _uids(story), await story.get("statefulset", "orders")

    await story.apply(**_tls("tpyo"))

    await story.until_condition("Progressing", "False/RolloutHalted")
    await story.until_condition("Degraded", "True/RolloutHalted")
    await _told(story, "Degraded", "Secret tpyo does not exist", "make it, or name another")
    restart = {
        "apiVersion": "dledger.io/v1",
        "kind": "BrokerOperation",
        "metadata": {"name": "again"},
        "spec": {"group": "orders", "kind": "Restart", "restart": {"all": True}},
    }
    await story.kubectl("create", "-f", "-", manifest=restart)

    async def is_held() -> bool:
        message = (await story.get("brokeroperation", "again")).get("status", {}).get("message", "")
        return "not now: Secret tpyo does not exist" in message

    await eventually_async(is_held, "the operation waits")
    await story.kubectl("delete", "pod", "orders-2", "--force", "--grace-period=0")
    await eventually_async(lambda: _are_there(story, 3), "a power cut is over")
    after = await story.get("statefulset", "orders")
    assert after["spec"]["template"] == built["spec"]["template"]
    await story.run_pods()
    assert {n: u for n, u in (await _uids(story)).items() if n != "orders-2"} == {
        n: u for n, u in before.items() if n != "orders-2"
    }
    await story.kubectl("delete", "brokeroperation", "again")
    await story.apply()
    await story.until_condition("Progressing", "False/Complete")
    await story.until_condition("Degraded", "False/AsExpected")


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_group_whose_pods_hang_is_healed_by_its_spec_taken_back(
    server: ApiServer, operator: Operator, namespace: str, replicas: int
) -> None:
    """Found: S1, 02 and 02b. The Secret went after its rollout; then all pods started anew."""
    async with new_story(server, namespace, "orders", replicas) as story:
        await _secret(story, "soon-gone")
        await story.apply(replicas=replicas, **_tls("soon-gone"))
        await eventually_async(lambda: _are_there(story, replicas), "the pods")
        for ordinal in range(replicas):
            await story.run_pod(ordinal)
        await story.until_condition("Available", "True/LeaderElected")
        await story.kubectl("delete", "secret", "soon-gone")
        group = ("-l", "app.kubernetes.io/component=node", "--force", "--grace-period=0")
        before = await _uids(story)
        await story.kubectl("delete", "pod", *group)

        async def are_new() -> bool:
            after = await _uids(story)
            return len(after) == replicas and not set(after.values()) & set(before.values())

        await eventually_async(are_new, "a power cut is over")
        before = await _uids(story)
        for pod in before:
            await _wait(story, pod)
        await _told(story, "Degraded", "Secret soon-gone does not exist")
        await story.apply(replicas=replicas)

        await eventually_async(are_new, "pods of the spec that was taken back")
        for ordinal in range(replicas):
            await story.run_pod(ordinal)
        await story.until_condition("Available", "True/LeaderElected")
        await story.until_condition("Degraded", "False/AsExpected")


async def test_a_jobs_pod_that_is_refused_is_told_in_kubernetes_words(story: Story) -> None:
    """Found: bugs.md 3b. And the backup goes on once there is room."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"pods": "3"}},
    }
    await story.up(backup={"store": STORE})
    await story.kubectl("apply", "-f", "-", manifest=quota)

    async def is_counted() -> bool:
        return bool((await story.get("quota", "q")).get("status", {}).get("used"))

    await eventually_async(is_counted, "the quota is counted")
    backup = {
        "apiVersion": "dledger.io/v1",
        "kind": "BrokerBackup",
        "metadata": {"name": "b"},
        "spec": {"group": "orders"},
    }
    await story.kubectl("apply", "-f", "-", manifest=backup)

    async def said(words: str) -> bool:
        return words in (await story.get("bgb", "b")).get("status", {}).get("message", "")

    await eventually_async(lambda: said("its pod cannot be created: pods"), "it is told")
    assert await said("exceeded quota: q")
