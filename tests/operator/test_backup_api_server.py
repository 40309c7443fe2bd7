"""BrokerBackups and recoveries on a real API server, with the rights of the chart.

The Job controller is real and makes the pods of Jobs; the tests play their kubelets. Every
namespace asks for restricted pods.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from dledger_operator.api import names
from tests.operator.api_server import ApiServer
from tests.operator.backup_samples import ON_CLAIM, RESULT, STORE
from tests.operator.live import Operator, Story, rendered
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

DENIED: Final = {"error": {"type": "StoreDenied", "message": "s3://b denies access"}}
WATCHED: Final = (
    "statefulset,service,configmap,serviceaccount,rolebinding,poddisruptionbudget,"
    "networkpolicy,job,pod,pvc,bg,bgb"
)


def _backup(name: str = "first", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BACKUP_KIND,
        "metadata": {"name": name},
        "spec": {"group": "orders", **spec},
    }


def _environment(*values: str) -> dict[str, str]:
    (deployment,) = (made for made in rendered(*values) if made["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {row["name"]: row.get("value", "") for row in container["env"]}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ((), "dledger.io/dledger-spark:0.1.0"),
        (("image.repository=r.example/d", "image.tag=v7"), "r.example/d-spark:v7"),
        (("sparkImage=mine:1",), "mine:1"),
    ],
)
def test_the_chart_names_an_image_for_spark(values: tuple[str, ...], image: str) -> None:
    """Beside the operator's own, unless a value names another."""
    assert _environment(*values)["DLEDGER_OPERATOR_SPARK_IMAGE"] == image


# --- the operator -------------------------------------------------------------------------------


async def _apply(story: Story, **spec: Any) -> None:
    await story.kubectl("apply", "-f", "-", manifest=_backup(**spec))


async def _phase(story: Story, name: str = "first") -> str:
    found = await story.get("bgb", name)
    return str(found.get("status", {}).get("phase", ""))


async def _until_phase(story: Story, expected: str, name: str = "first") -> dict[str, Any]:
    async def reached() -> bool:
        return await _phase(story, name) == expected

    await eventually_async(reached, f"{name} is {expected}")
    status: dict[str, Any] = (await story.get("bgb", name))["status"]
    return status


async def _pod_of(story: Story, job: str) -> str:
    """Return the pod that the Job controller made for a Job."""

    async def made() -> list[str]:
        listed = await story.list("pods", "-l", f"{names.JOB_LABEL}={job}")
        return [pod["metadata"]["name"] for pod in listed]

    return str((await eventually_async(made, f"a pod of {job}"))[0])


async def _end(story: Story, job: str, words: Any, exit_code: int = 0) -> None:
    """Do what a kubelet does when the pipeline ends with these *words*."""
    ended = {"exitCode": exit_code, "reason": "x", "message": json.dumps(words)}
    container = {
        "name": "driver",
        "image": "i",
        "imageID": "i",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    phase = "Failed" if exit_code else "Succeeded"
    status = {"status": {"phase": phase, "containerStatuses": [container]}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    await story.kubectl("patch", "pod", await _pod_of(story, job), *patch)


def _result(story: Story, **changes: Any) -> dict[str, Any]:
    return {**RESULT, "groupId": story.nodes.disks[0].group_id, **changes}


async def test_a_backup_runs_as_a_job_and_is_waited_for_with_kubectl(
    story: Story, operator: Operator
) -> None:
    """Its result reaches its status, the columns, the group's condition and the metrics."""
    await story.up(backup={"store": STORE})
    await _apply(story)

    await _end(story, "first-backup", _result(story))

    await story.kubectl("wait", "bgb/first", "--for=condition=Complete", "--timeout=60s")
    header, row = (await story.kubectl("get", "bgb")).splitlines()
    assert header.split()[:6] == ["NAME", "GROUP", "PHASE", "FIRST", "LAST", "BYTES"]
    assert row.split()[:6] == ["first", "orders", "Completed", "1", "4711", "5000000"]
    await story.until_condition("BackupReady", "True/BackupCompleted")
    assert (await story.status())["backup"]["name"] == "first"
    ages = operator.metric(
        f'dledger_backup_age_seconds{{group="orders",namespace="{story.namespace}"}}'
    )
    assert 0 <= ages[0] < 120


async def test_a_large_backup_gets_an_account_that_may_make_pods_and_nothing_else(
    story: Story, server: ApiServer
) -> None:
    """The operator may grant what the chart gave it; the executors' template is a pod."""
    story.nodes.record_bytes = 1 << 20
    await story.up(backup={"store": STORE})
    await _apply(story)
    await _until_phase(story, "Running")

    uid = (await story.get("bg", "orders"))["metadata"]["uid"]
    account = f"--as=system:serviceaccount:{story.namespace}:{names.backup_access(uid)}"
    may = {
        verb: server.kubectl(
            *("auth", "can-i", *verb.split(), "-n", story.namespace, account), check=False
        ).stdout.strip()
        for verb in ("create pods", "deletecollection pods", "get secrets", "create configmaps")
    }
    template = (await story.get("configmap", "first-backup"))["data"]["executor.json"]
    executor = json.loads(template)
    executor["metadata"]["name"] = "executor"
    executor["spec"]["containers"][0]["image"] = "dledger-spark:test"
    await story.kubectl("create", "--dry-run=server", "-f", "-", manifest=executor)

    assert may == {
        "create pods": "yes",
        "deletecollection pods": "yes",
        "get secrets": "no",
        "create configmaps": "no",
    }


async def test_a_backup_to_a_claim_runs_with_it_and_says_if_it_is_not_there(story: Story) -> None:
    """The API server and the policies of the chart take the Job; a pod that waits says for what."""
    story.nodes.record_bytes = 3 << 30
    await story.up(backup={"store": ON_CLAIM})
    await _apply(story)

    pod = await story.get("pod", await _pod_of(story, "first-backup"))
    absent = 'persistentvolumeclaim "backups" not found'
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"status": {"conditions": [{**waits, "message": absent}]}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    await story.kubectl("patch", "pod", pod["metadata"]["name"], *patch)

    async def told() -> bool:
        return absent in (await story.get("bgb", "first")).get("status", {}).get("message", "")

    await eventually_async(told, "the status names the claim")
    await _end(story, "first-backup", _result(story))
    await _until_phase(story, "Completed")
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "store")
    assert volume["persistentVolumeClaim"]["claimName"] == "backups"
    assert not await story.get("configmap", "first-backup")


async def test_a_failed_backup_tells_the_pipelines_error(story: Story) -> None:
    """What cannot be cured by another try is not tried again; condition and Event say why."""
    await story.up(backup={"store": STORE})
    await _apply(story)

    await _end(story, "first-backup", DENIED, exit_code=1)

    status = await _until_phase(story, "Failed")
    assert status["message"] == "StoreDenied: s3://b denies access"
    await story.until_condition("BackupReady", "False/BackupFailed")
    events = await story.list("events", "--field-selector", "reason=BackupFailed")
    assert [event["involvedObject"]["kind"] for event in events] == ["BrokerBackup"]


async def test_backups_take_turns_and_deleting_one_ends_its_job(story: Story) -> None:
    """The Job is the backup's; the next one begins."""
    await story.up(backup={"store": STORE})
    await _apply(story)
    await _until_phase(story, "Running")
    await story.kubectl("apply", "-f", "-", manifest=_backup("second"))

    async def waits() -> bool:
        return "first" in (await story.get("bgb", "second")).get("status", {}).get("message", "")

    await eventually_async(waits, "the second waits for the first")
    await story.kubectl("delete", "bgb", "first")

    async def gone() -> bool:
        return not await story.get("job", "first-backup")

    await eventually_async(gone, "the Job is gone")
    await _until_phase(story, "Running", "second")


async def test_a_group_with_backups_converges_to_no_writes(
    story: Story, operator: Operator
) -> None:
    """One running, one completed, one that waits."""
    story.nodes.record_bytes = 1 << 20
    await story.up(backup={"store": STORE})
    await _apply(story)
    await _end(story, "first-backup", _result(story))
    await _until_phase(story, "Completed")
    await story.kubectl("apply", "-f", "-", manifest=_backup("second"))
    await _until_phase(story, "Running", "second")
    await story.kubectl("apply", "-f", "-", manifest=_backup("third"))
    await _until_phase(story, "Pending", "third")

    async def quiet() -> bool:
        writes = operator.metric("dledger_operator_writes_total")
        listed = await story.list(WATCHED)
        await asyncio.sleep(6)
        again = await story.list(WATCHED)
        still = operator.metric("dledger_operator_writes_total") == writes
        return still and _versions(listed) == _versions(again)

    await eventually_async(quiet, "six seconds without a write")


async def test_a_group_starts_from_a_backup(story: Story) -> None:
    """The first volume is restored before there are nodes; then it is founded by the first."""
    recovery = {"store": STORE, "groupId": "old", "target": {"index": 4711}}
    await story.apply(bootstrap={"recovery": recovery})
    await story.until_condition("Progressing", "True/Recovering")
    await _pod_of(story, "orders-recovery")
    nodes_then = await story.get("statefulset", "orders")
    story.nodes.restored_to = 4711

    await _end(story, "orders-recovery", {**RESULT, "groupId": "old"})
    await story.run_pods()

    await story.until_condition("Available", "True/LeaderElected")
    claim = await story.get("pvc", "data-orders-0")
    assert not nodes_then
    assert claim["metadata"]["annotations"][names.RECOVERY_ANNOTATION] == "done"
    assert "ownerReferences" not in claim["metadata"]
    assert story.nodes.bootstraps == 1
    assert (await story.status())["groupId"] not in ("", "old")


async def test_a_failed_recovery_founds_nothing_and_goes_on_when_its_job_is_deleted(
    story: Story,
) -> None:
    """As its condition says."""
    await story.apply(bootstrap={"recovery": {"store": STORE}})
    await _end(story, "orders-recovery", DENIED, exit_code=1)
    await story.until_condition("Degraded", "True/RecoveryFailed")
    failed = await story.status()
    nodes_then = await story.get("statefulset", "orders")
    story.nodes.restored_to = 4711

    await story.kubectl("delete", "job", "orders-recovery")
    await story.until_condition("Progressing", "True/Recovering")
    await _end(story, "orders-recovery", {**RESULT, "groupId": "old"})
    await story.run_pods()

    await story.until_condition("Available", "True/LeaderElected")
    rows = {row["type"]: row for row in failed["conditions"]}
    assert "StoreDenied: s3://b denies access" in rows["Degraded"]["message"]
    assert not nodes_then
    assert story.nodes.bootstraps == 1


@pytest.mark.long
async def test_a_schedule_makes_a_backup_within_its_minute(story: Story) -> None:
    """Named after the minute, owned by the group."""
    await story.up(backup={"store": STORE, "schedule": "* * * * *"})

    async def made() -> list[dict[str, Any]]:
        return await story.list("bgb")

    (first, *_) = await eventually_async(made, "a scheduled backup", deadline_s=80)
    at = first["metadata"]["annotations"][names.SCHEDULED_ANNOTATION]
    assert first["metadata"]["name"].startswith("orders-")
    assert first["metadata"]["ownerReferences"][0]["kind"] == "BrokerGroup"

    async def recorded() -> bool:
        status = await story.status()
        return bool(status.get("backup", {}).get("lastScheduledAt", "") >= at)

    await eventually_async(recorded, "its time is recorded")


async def test_old_backups_of_a_schedule_go(story: Story) -> None:
    """By the operator's own account, by what the chart gives it; the newest ten stay."""
    now = int(time.time()) // 60
    made = [
        (names.scheduled_backup("orders", minute), datetime.fromtimestamp(minute * 60, UTC))
        for minute in range(now - 12, now)
    ]
    for name, at in made:
        metadata = {
            "name": name,
            "labels": names.labels("orders"),
            "annotations": {names.SCHEDULED_ANNOTATION: f"{at:%Y-%m-%dT%H:%M:%SZ}"},
        }
        await story.kubectl("apply", "-f", "-", manifest={**_backup(name), "metadata": metadata})
        status = {"phase": "Completed", "completedAt": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        await story.kubectl("patch", "bgb", name, *patch)

    await story.up(backup={"store": STORE})

    async def gone() -> bool:
        left = {item["metadata"]["name"] for item in await story.list("bgb")}
        return left == {name for name, _ in made[2:]}

    await eventually_async(gone, "the oldest two are gone")


def _versions(listed: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    metadata = [(item["kind"], item["metadata"]) for item in listed]
    return {(kind, each["name"]): each["resourceVersion"] for kind, each in metadata}
