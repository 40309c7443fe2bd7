"""A rollout goes on after an operator was killed at each act.

On a real API server with played nodes; see `interrupted`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import pytest

from tests.operator.api_server import ApiServer
from tests.operator.interrupted import PODS, Acts, SlowKubelet, State, state_of
from tests.operator.kubelet import running, settled
from tests.operator.live import NODE_IMAGE, Operator, new_story, replace_operator
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NEWER: Final = "dledger:newer"


def _restarted(before: State, after: State) -> set[str]:
    return {name for name, uid in after.uids.items() if before.uids[name] != uid}


@pytest.mark.parametrize(
    ("leader", "change"),
    [(0, {"image": NEWER}), (2, {"resources": {"requests": {"cpu": "20m"}}})],
    ids=["image", "resources"],
)
async def test_a_rollout_goes_on_after_each_kill(
    server: ApiServer,
    operators: list[Operator],
    namespace: str,
    leader: int,
    change: dict[str, Any],
) -> None:
    """Each pod is restarted once, the leader last and after it handed over; the end is the same."""
    followers = [name for name in reversed(PODS) if name != PODS[leader]]
    async with new_story(server, namespace, "orders") as story:
        kubelet = SlowKubelet(story, operators=operators)
        async with running(kubelet):
            story.nodes.elect(leader)
            await settled(story)
            before = await state_of(story)
            acts = Acts(story, kubelet, partial(replace_operator, server, operators))
            async with acts.watched():
                await story.apply(replicas=3, **change)
                await settled(story, deadline_s=300)
                after = await state_of(story)

    assert acts.done == ["StatefulSet", *followers, "TransferLeader", PODS[leader]]
    assert len(operators) - 1 == len(acts.done)
    assert (kubelet.faults, len(acts.downtime.worst)) == ([], 1), acts.downtime.worst
    assert _restarted(before, after) == {*PODS}
    assert sorted(acts.downtime.gone) == [*PODS]
    assert (after.members, after.conditions) == (before.members, before.conditions)
    assert after.hashes == {acts.template} != before.hashes
    assert after.images == {change.get("image", NODE_IMAGE)}
    assert after.cpus == {"20m" if "resources" in change else ""}
    assert story.nodes.changes == []


async def test_a_rollout_that_is_taken_back_halfway_undoes_what_was_done(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Taken back while no operator runs and a pod is down: the others stay as they are."""
    is_stopped = asyncio.Event()

    def killed_there() -> None:
        if acts.done == ["StatefulSet", "orders-2", "orders-1"]:
            operators[-1].kill()
            is_stopped.set()
        else:
            replace_operator(server, operators)

    async with new_story(server, namespace, "orders") as story:
        kubelet = SlowKubelet(story, operators=operators)
        async with running(kubelet):
            await settled(story)
            before = await state_of(story)
            acts = Acts(story, kubelet, killed_there)
            async with acts.watched():
                await story.apply(replicas=3, image=NEWER)
                async with asyncio.timeout(120):
                    await is_stopped.wait()

                async def is_made_anew() -> bool:
                    found = await story.get("pod", "orders-1")
                    return bool(found) and found["spec"]["containers"][0]["image"] == NEWER

                await eventually_async(is_made_anew, "the pod is made anew")
                await story.apply(replicas=3)
                operators.append(Operator(server, "first"))
                await settled(story, deadline_s=300)
                after = await state_of(story)

    assert acts.done[:4] == ["StatefulSet", "orders-2", "orders-1", "StatefulSet"]
    assert sorted(acts.done[4:]) == ["orders-1", "orders-2"]
    assert len(operators) - 1 == len(acts.done)
    assert (kubelet.faults, len(acts.downtime.worst)) == ([], 1), acts.downtime.worst
    assert _restarted(before, after) == {"orders-1", "orders-2"}
    assert (after.members, after.conditions) == (before.members, before.conditions)
    assert after.hashes == before.hashes == {acts.template}
    assert after.images == {NODE_IMAGE}
    assert story.nodes.leader == 0
