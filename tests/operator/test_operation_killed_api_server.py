"""A lost majority is forced while the operator is killed at each act, before it has the answer."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_operator.api import names
from tests.operator.api_server import ApiServer
from tests.operator.live import Operator, new_story, replace_operator
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.long]


async def test_forcing_goes_on_after_each_kill(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Forced once, each pod joins once, and the end is the same."""

    def killed_there() -> None:
        replace_operator(server, operators)

    async with new_story(server, namespace, "orders") as story:
        await story.up()
        await story.until_condition("Degraded", "False/AsExpected")
        story.nodes.lose_disk(2)
        story.nodes.silent.add(1)
        story.nodes.leader = None
        await story.until_condition("Available", "False/NoLeader")
        story.nodes.acted = killed_there
        asked = {"groupId": (await story.status())["groupId"]}
        spec = {"group": "orders", "kind": "ForceNewGroup", "forceNewGroup": asked}
        manifest: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": names.OPERATION_KIND,
            "metadata": {"name": "one"},
            "spec": spec,
        }
        before = (await story.get("pvc", "data-orders-1"))["metadata"]["uid"]
        await story.kubectl("create", "-f", "-", manifest=manifest)

        async def claim_is_new() -> bool:
            found = await story.get("pvc", "data-orders-1")
            return bool(found) and found["metadata"]["uid"] != before

        await eventually_async(claim_is_new, "the old claim is gone")
        killed_there()
        story.nodes.lose_disk(1)
        story.nodes.silent.clear()
        await story.run_pods()

        async def succeeded() -> bool:
            story.nodes.catch_up()
            status = (await story.get("bgo", "one")).get("status", {})
            return bool(status.get("phase") == "Succeeded")

        await eventually_async(succeeded, "it succeeds", deadline_s=120)

    assert story.nodes.epoch == 1
    assert len(story.nodes.changes) == 2
    assert len(operators) == 5
