"""What a user does after a disk is lost: nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from e2e.cluster.image import Image
from e2e.harness.world import BrokerGroup, Namespace, Workload, eventually
from e2e.stories.traffic import SDK


def _is_new_and_whole(group: BrokerGroup, pod: str, old_id: str) -> dict[str, Any] | None:
    """Return the status once the pod is a member with another disk, and nothing is wrong."""
    status = group.status()
    ids = {row["name"]: row["id"] for row in status["members"]}
    found = {row["type"]: row["status"] for row in status["conditions"]}
    whole = (found["Degraded"], found["Ready"]) == ("False", "True")
    return status if whole and ids[pod] not in ("", old_id) else None


@pytest.mark.long
def test_a_lost_disk_is_healed_without_a_command(
    namespace: Namespace, workload_image: Image, figures: dict[str, float]
) -> None:
    """Given messages, when a claim is deleted with its pod, then an empty disk takes its place."""
    group = namespace.run_group()
    traffic = Workload(namespace, workload_image, "traffic", *SDK, "--messages", "10000")
    traffic.start()
    traffic.wait_acked(2000)
    pod = next(name for name in group.pods() if name != group.leader())
    old_id = next(row["id"] for row in group.status()["members"] if row["name"] == pod)

    lost_s = time.monotonic()
    namespace.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
    group.kill_pod(pod)
    eventually("the disk is replaced", lambda: _is_new_and_whole(group, pod, old_id), 120)
    figures["seconds until it voted again"] = time.monotonic() - lost_s
    summary = traffic.summary()

    assert (summary["lost"], summary["duplicates"], summary["outOfOrder"]) == (0, 0, 0), summary
    listed = json.loads(namespace.kubectl("get", "events", "-o", "json"))["items"]
    told = [each["message"] for each in listed if each["reason"] == "MemberReplaced"]
    assert len(told) == 1, told
    assert old_id in told[0]
