"""Two groups of one operator on a real API server: rolled out in turn, halted together."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Final

import pytest

from dledger_operator.api import names
from tests.operator.api_server import ApiServer
from tests.operator.kubelet import Kubelet, running, settled
from tests.operator.live import Operator, Story, new_story, replace_operator
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NEWER: Final = "dledger:newer"
BAD: Final = "dledger:bad"


@dataclass
class NotingKubelet(Kubelet):
    """Notes which group's pods it brings up, in order; a bad image it cannot pull."""

    started: list[str] = field(default_factory=list)

    async def start(self, ordinal: int, uid: str) -> None:
        """Bring up a pod, or say why it does not run."""
        pod = f"{self.story.name}-{ordinal}"
        found = await self.story.get("pod", pod)
        if found and found["spec"]["containers"][0]["image"] == BAD:
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            container = {"name": "node", "image": BAD, "imageID": "", "ready": False}
            rows = [{**container, "restartCount": 0, "state": {"waiting": waiting}}]
            patch = json.dumps({"metadata": {"uid": uid}, "status": {"containerStatuses": rows}})
            self.story.nodes.silent.add(ordinal)
            self.story.nodes.note_change()
            await self.story.tried(
                *("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch)
            )
            return
        self.story.nodes.silent.discard(ordinal)
        self.started.append(self.story.namespace)
        await super().start(ordinal, uid)


def _octet(namespace: str) -> int:
    return Story(None, namespace, "orders").nodes.first_octet  # type: ignore[arg-type]


async def test_groups_are_rolled_out_one_after_the_other_and_halt_together(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """The halt outlives the operator; it ends for others when the group is excepted."""
    others = (f"{namespace}-{n}" for n in range(9))
    other = next(name for name in others if _octet(name) != _octet(namespace))
    server.kubectl("create", "namespace", other)
    async with contextlib.AsyncExitStack() as stack:
        stories = [
            await stack.enter_async_context(new_story(server, each, "orders"))
            for each in (namespace, other)
        ]
        started: list[str] = []
        for story in stories:
            await stack.enter_async_context(running(NotingKubelet(story, started=started)))
            await settled(story)
        one, two = stories

        started.clear()
        for story in stories:
            await story.apply(replicas=3, image=NEWER)
        for story in stories:
            await settled(story, deadline_s=300)
        assert sorted(started) == sorted([namespace] * 3 + [other] * 3)
        assert started[0] == started[1] == started[2], "one after the other"

        await one.apply(replicas=3, image=BAD)
        await one.until_condition("Progressing", "False/RolloutHalted", 180)
        await two.apply(replicas=3)
        await two.until_condition("Progressing", "True/WaitingForTurn", 180)
        said = f"0 of 3 pods run the new template; waits for {namespace}/orders, whose rollout"
        assert await two.message("Progressing") == f"{said} is halted"
        replace_operator(server, operators)

        async def acts() -> bool:
            return operators[-1].metric("dledger_operator_leading ") == [1]

        await eventually_async(acts, "the other operator acts")
        started.clear()
        await two.kubectl("annotate", "bg", "orders", "example.com/look=again")
        await one.until_condition("Progressing", "False/RolloutHalted", 180)
        assert await two.condition("Progressing") == "True/WaitingForTurn"
        assert started == []

        two.nodes.elect(0)  # the played leader always hands over to the second
        await one.kubectl("annotate", "bg", "orders", f"{names.TURN_ANNOTATION}=none")
        await settled(two, deadline_s=300)
        assert started == [other] * 3
        assert await one.condition("Progressing") == "False/RolloutHalted"
