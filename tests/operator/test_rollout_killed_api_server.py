"""A rollout goes on after an operator was killed at each act, before it has the answer.

On a real API server with played nodes. A watch tells each pod that goes; another operator follows
each that was killed, and finds the last pod still down for as long as it takes to do it wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

import pytest

from dledger_operator.api import names
from e2e.harness.pod_watch import Downtime, Watch
from tests.operator.api_server import ApiServer
from tests.operator.kubelet import Kubelet, running, settled
from tests.operator.live import (
    NODE_IMAGE,
    Operator,
    Story,
    eventually,
    new_story,
    replace_operator,
)

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LOOKS: Final = 4
"""Rounds in which an operator would act: it wants something twice in a row before it does that."""
PODS: Final = ("orders-0", "orders-1", "orders-2")
NEWER: Final = "dledger:newer"


@dataclass
class SlowKubelet(Kubelet):
    """Brings pods up slowly: there is time to go on too early, for the operator that runs then.

    A pod is away at first; then, in turn, in sync and not ready, or ready and not in sync.

    Attributes:
        operators: The operator's processes.
        down: The ordinals of the pods that went and are not up again.
        faults: What may not happen to pods and did.
    """

    operators: list[Operator] = field(default_factory=list)
    down: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    looks: count[int] = field(default_factory=count)
    starts: count[int] = field(default_factory=count)

    def went(self, name: str) -> None:
        """Have the node of a pod end with it."""
        ordinal, nodes = int(name.rpartition("-")[2]), self.story.nodes
        if nodes.leader == ordinal:
            self.faults.append(f"{name} went while it led")
        if self.down - {ordinal}:
            self.faults.append(f"{name} went while {self.down - {ordinal}} were not up")
        self.down.add(ordinal)
        nodes.silent.add(ordinal)
        nodes.note_change()

    async def start(self, ordinal: int, uid: str) -> None:
        """Bring a pod up in steps; it may be deleted at any time."""
        if ordinal in self.down:
            await self._considered()
            is_ready = bool(next(self.starts) % 2)
            if not await self.story.run_pod(ordinal, uid=uid, ready=is_ready):
                return
            if not is_ready:
                self._answers(ordinal)
            await self._considered()
        if await self.story.run_pod(ordinal, uid=uid):
            self._answers(ordinal)
            self.down.discard(ordinal)

    def _answers(self, ordinal: int) -> None:
        self.story.nodes.silent.discard(ordinal)
        self.story.nodes.note_change()

    async def _considered(self) -> None:
        """Return once an operator has looked at the group as it is, and would have acted on it."""
        looked = 0
        while looked < LOOKS:
            operator = self.operators[-1]
            rounds = self._rounds(operator)
            mark = f"example.com/look={next(self.looks)}"
            await self.story.kubectl("annotate", "bg", self.story.name, mark, "--overwrite")
            await eventually("a round", partial(self._has_looked, operator, rounds))
            looked = looked + 1 if operator is self.operators[-1] else 0

    async def _has_looked(self, operator: Operator, rounds: float) -> bool:
        return operator is not self.operators[-1] or self._rounds(operator) > rounds

    def _rounds(self, operator: Operator) -> float:
        series = f'dledger_operator_rounds_total{{group="{self.story.name}",'
        return sum(operator.metric(f'{series}namespace="{self.story.namespace}"}}'))


@dataclass
class Acts:
    """What an operator is seen to do in a story, from its first act on; each is *acted* upon."""

    story: Story
    kubelet: SlowKubelet
    acted: Callable[[], None]
    done: list[str] = field(default_factory=list)
    template: str = ""

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.downtime = Downtime(PODS, partial(self.loop.call_soon_threadsafe, self._went))
        self.story.nodes.acted = partial(self._did, "TransferLeader")

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch pods and StatefulSets while the block runs."""
        server, namespace = self.story.server, self.story.namespace
        pods = f"/api/v1/namespaces/{namespace}/pods"
        sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
        with (
            Watch(server.kubeconfig, pods, self.downtime.hear),
            Watch(server.kubeconfig, sets, self._hear),
        ):
            await eventually("the watches tell what is there", self._has_begun)
            yield

    async def _has_begun(self) -> bool:
        return self.downtime.seen == {*PODS} and self.template != ""

    def _hear(self, kind: str, built: dict[str, Any]) -> None:
        template = built["spec"]["template"]["metadata"]["annotations"][names.SPEC_ANNOTATION]
        before, self.template = self.template, template
        if before not in ("", template):
            self.loop.call_soon_threadsafe(self._did, "StatefulSet")

    def _went(self, name: str) -> None:
        self.kubelet.went(name)
        self._did(name)

    def _did(self, what: str) -> None:
        self.done.append(what)
        self.acted()


@dataclass
class State:
    """What is there of a group: its pods, what they run, its members, and what is said of it."""

    uids: dict[str, str]
    images: set[str]
    cpus: set[str]
    hashes: set[str]
    members: set[tuple[str, str]]
    conditions: dict[str, tuple[str, str]]


async def _state(story: Story) -> State:
    pods = {one["metadata"]["name"]: one for one in await story.list("pods")}
    containers = [one["spec"]["containers"][0] for one in pods.values()]
    status = await story.status()
    return State(
        uids={name: one["metadata"]["uid"] for name, one in pods.items()},
        images={one["image"] for one in containers},
        cpus={(one["resources"].get("requests") or {}).get("cpu", "") for one in containers},
        hashes={one["metadata"]["annotations"][names.SPEC_ANNOTATION] for one in pods.values()},
        members={(row["name"], row["id"]) for row in status["members"]},
        conditions={row["type"]: (row["status"], row["reason"]) for row in status["conditions"]},
    )


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
            before = await _state(story)
            acts = Acts(story, kubelet, partial(replace_operator, server, operators))
            async with acts.watched():
                await story.apply(replicas=3, **change)
                await settled(story, deadline_s=300)
                after = await _state(story)

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
            before = await _state(story)
            acts = Acts(story, kubelet, killed_there)
            async with acts.watched():
                await story.apply(replicas=3, image=NEWER)
                async with asyncio.timeout(120):
                    await is_stopped.wait()

                async def is_made_anew() -> bool:
                    found = await story.get("pod", "orders-1")
                    return bool(found) and found["spec"]["containers"][0]["image"] == NEWER

                await eventually("the pod is made anew", is_made_anew)
                await story.apply(replicas=3)
                operators.append(Operator(server, "first"))
                await settled(story, deadline_s=300)
                after = await _state(story)

    assert acts.done[:4] == ["StatefulSet", "orders-2", "orders-1", "StatefulSet"]
    assert sorted(acts.done[4:]) == ["orders-1", "orders-2"]
    assert len(operators) - 1 == len(acts.done)
    assert (kubelet.faults, len(acts.downtime.worst)) == ([], 1), acts.downtime.worst
    assert _restarted(before, after) == {"orders-1", "orders-2"}
    assert (after.members, after.conditions) == (before.members, before.conditions)
    assert after.hashes == before.hashes == {acts.template}
    assert after.images == {NODE_IMAGE}
    assert story.nodes.leader == 0
