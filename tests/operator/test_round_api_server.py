"""Rounds of compaction on a real API server, with the rights of the chart and its admission policy.

The Job controller is real and makes the pods of Jobs; the tests play their kubelets.
"""

from __future__ import annotations

from typing import Any

import pytest

from dledger_operator.api import names
from tests.operator.live import Operator, Story
from tests.operator.round_samples import COMPACTED, DID, RESULT
from tests.operator.test_backup_api_server import _end
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

NIGHTLY: dict[str, Any] = {**COMPACTED, "compaction": {"schedule": "* * * * *"}}


@pytest.mark.long
async def test_a_round_of_the_schedule_runs_as_a_job_and_is_told(
    story: Story, operator: Operator
) -> None:
    """The operator may create it, and its Job with a certificate of its own; its result is told."""
    await story.up(**NIGHTLY)
    assert [*story.nodes.compacted] == ["prices"]

    async def scheduled() -> list[str]:
        return [one["metadata"]["name"] for one in await story.list("bgo")]

    (name, *_) = await eventually_async(scheduled, "the schedule made a round", 150)
    await _end(story, names.compaction_job(name), RESULT)
    await story.until_condition("CompactionReady", "True/RoundCompleted")

    made = await story.get("bgo", name)
    assert made["status"]["compaction"] == DID
    status = (await story.status())["compaction"]
    assert (status["topics"], status["letGo"], status["phase"]) == (["prices"], 300, "Succeeded")
    overdue = operator.metric(
        f'dledger_compaction_overdue_timestamp_seconds{{group="orders",namespace="{story.namespace}"}}'
    )
    assert overdue[0] > 0


async def test_a_round_for_a_group_without_a_compacted_topic_is_refused_by_name(
    story: Story, operator: Operator
) -> None:
    """In the columns, too; no Job was made."""
    await story.up()
    asked = {
        "apiVersion": names.API_VERSION,
        "kind": names.OPERATION_KIND,
        "metadata": {"name": "now"},
        "spec": {"group": "orders", "kind": "Compact"},
    }
    await story.kubectl("apply", "-f", "-", manifest=asked)

    async def failed() -> bool:
        return "Failed" in await story.kubectl("get", "bgo", "now")

    await eventually_async(failed, "it is refused")

    status = (await story.get("bgo", "now"))["status"]
    assert status["conditions"][0]["reason"] == "NoCompactedTopic"
    assert await story.list("jobs") == []
