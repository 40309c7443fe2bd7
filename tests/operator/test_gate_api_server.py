"""The gate on a real API server: pods that take their time to end, whose nodes answer meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.operator.api_server import ApiServer
from tests.operator.kubelet import Kubelet, running, settled
from tests.operator.live import Operator, Story, new_story
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

_DRAINS: Final = "example.com/drains"
"""A finalizer: what a kubelet's grace period is for a pod on a machine."""


@dataclass
class DrainingKubelet(Kubelet):
    """Lets a pod that is deleted be there for a while, with a node that answers.

    Attributes:
        drain_s: For how long.
        starts_s: How long a pod takes until its node answers.
        ending: The pods that are being deleted, by uid.
        faults: Changes of the members meanwhile, with the pods that were ending.
    """

    drain_s: float = 8.0
    starts_s: float = 0.0
    seen_s: dict[str, float] = field(default_factory=dict)
    ending: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def start(self, ordinal: int, uid: str) -> None:
        """Bring up a pod that will drain."""
        if time.monotonic() - self.seen_s.setdefault(uid, time.monotonic()) < self.starts_s:
            return
        await self._finalizers(f"{self.story.name}-{ordinal}", uid, [_DRAINS])
        await super().start(ordinal, uid)

    async def _look(self) -> None:
        for pod in await self.story.list("pods"):
            metadata = pod["metadata"]
            if "deletionTimestamp" in metadata and metadata["uid"] not in self.ending:
                self.ending[metadata["uid"]] = metadata["name"]
                self.tasks.add(asyncio.create_task(self._drain(metadata["name"], metadata["uid"])))
        await super()._look()

    async def _drain(self, name: str, uid: str) -> None:
        await asyncio.sleep(self.drain_s)
        await self._finalizers(name, uid, [])
        self.ending[uid] = ""

    async def _finalizers(self, name: str, uid: str, wanted: list[str]) -> None:
        patch = json.dumps({"metadata": {"uid": uid, "finalizers": wanted}})
        await self.story.tried("patch", "pod", name, "--type=merge", "-p", patch)

    def note_change(self) -> None:
        """Note which pods of voters end while the members change."""
        voters = {one.name for one in self.story.nodes.members}
        if ending := voters & set(self.ending.values()):
            self.faults.append(f"{self.story.nodes.changes[-1]} while {sorted(ending)} end")


def _members(story: Story) -> list[str]:
    return [old or new for new, old in story.nodes.changes]


@pytest.mark.long
async def test_a_new_member_waits_for_the_pod_that_the_operator_restarts(
    server: ApiServer, operator: Operator, namespace: str
) -> None:
    """Grown and given another label in one moment: no member comes while a voter ends."""
    async with new_story(server, namespace, "orders", nodes=5) as story:
        kubelet = DrainingKubelet(story)
        async with running(kubelet):
            await settled(story)
            story.nodes.acted, kubelet.starts_s = kubelet.note_change, 4.0

            await story.apply(replicas=5, podLabels={"team": "shop"})

            await settled(story, 5, deadline_s=300)
            restarted = [each for each in await story.list("pods") if _label(each) == "shop"]

    assert operator.running
    assert (kubelet.faults, story.nodes.faults) == ([], [])
    assert _members(story) == ["node-3", "node-4"]
    assert len(restarted) == 5
    assert len(kubelet.ending) >= 3, "each voter was restarted"


def _label(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get("team", ""))


@pytest.mark.long
async def test_of_two_that_leave_the_one_that_is_drained_goes_first(
    server: ApiServer, operator: Operator, namespace: str
) -> None:
    """Drained and scaled from three to one in one moment: the sound one stays until then.

    Found: 06_scale_in_while_drained.sh. `test_gate.py` has the decision, and the model a drain.
    """
    async with new_story(server, namespace, "orders") as story:
        kubelet = DrainingKubelet(story, drain_s=20)
        async with running(kubelet):
            await settled(story)

            await story.kubectl("delete", "pod", "orders-1", "--wait=false")
            await story.kubectl("scale", "brokergroup/orders", "--replicas=1")

            async def both_left() -> bool:
                return len(story.nodes.changes) == 2

            await eventually_async(both_left, "both have left", 120)

    assert operator.running
    assert _members(story) == ["node-1", "node-2"]
