"""Tests in which the operator is killed at each act: what they share.

At a call of a node it is killed before it has the answer; at a write as soon as a watch tells it,
mostly before, too. The next operator finds what was done half for as long as it would take to do
the next thing too early.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

from dledger_operator.api import names
from e2e.harness.pod_watch import Downtime, Watch
from tests.operator.kubelet import Kubelet
from tests.operator.live import Operator, Story
from tests.waiting import eventually_async

LOOKS: Final = 4
"""Rounds in which an operator would act: it wants something twice in a row before it does that."""
PODS: Final = ("orders-0", "orders-1", "orders-2")


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
            await self.considered()
            is_ready = bool(next(self.starts) % 2)
            if not await self.story.run_pod(ordinal, uid=uid, ready=is_ready):
                return
            if not is_ready:
                self._answers(ordinal)
            await self.considered()
        if await self.story.run_pod(ordinal, uid=uid):
            self._answers(ordinal)
            self.down.discard(ordinal)

    def _answers(self, ordinal: int) -> None:
        self.story.nodes.silent.discard(ordinal)
        self.story.nodes.note_change()

    async def considered(self) -> None:
        """Return once an operator looked at the group as it is, and would have acted on it."""
        looked = 0
        while looked < LOOKS:
            operator = self.operators[-1]
            rounds = self._rounds(operator)
            mark = f"example.com/look={next(self.looks)}"
            await self.story.kubectl("annotate", "bg", self.story.name, mark, "--overwrite")
            await eventually_async(partial(self._has_looked, operator, rounds), "a round")
            looked = looked + 1 if operator is self.operators[-1] else 0

    async def _has_looked(self, operator: Operator, rounds: float) -> bool:
        return operator is not self.operators[-1] or self._rounds(operator) > rounds

    def _rounds(self, operator: Operator) -> float:
        series = f'dledger_operator_rounds_total{{group="{self.story.name}",'
        return sum(operator.metric(f'{series}namespace="{self.story.namespace}"}}'))


@dataclass
class Acts:
    """What is done in a story, in order: a call of a node, a template, a pod or a claim that goes.

    *acted* is called at each, which is there to kill who did it.
    """

    story: Story
    kubelet: SlowKubelet
    acted: Callable[[], None]
    done: list[str] = field(default_factory=list)
    template: str = ""

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.downtime = Downtime(PODS, self._hear_gone)
        self.story.nodes.acted = self._called
        self._claims_gone: set[str] = set()
        self._changes = len(self.story.nodes.changes)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch pods, StatefulSets and claims while the block runs."""
        config, namespace = self.story.server.kubeconfig, f"namespaces/{self.story.namespace}"
        with (
            Watch(config, f"/api/v1/{namespace}/pods", self.downtime.hear),
            Watch(config, f"/apis/apps/v1/{namespace}/statefulsets", self._hear_template),
            Watch(config, f"/api/v1/{namespace}/persistentvolumeclaims", self._hear_claim),
        ):
            await eventually_async(self._has_begun, "the watches tell what is there")
            yield

    async def _has_begun(self) -> bool:
        return self.downtime.seen == {*PODS} and self.template != ""

    def _hear_gone(self, name: str) -> None:
        self.loop.call_soon_threadsafe(self._went, name)

    def _hear_template(self, kind: str, built: dict[str, Any]) -> None:
        template = built["spec"]["template"]["metadata"]["annotations"][names.SPEC_ANNOTATION]
        before, self.template = self.template, template
        if before not in ("", template):
            self.loop.call_soon_threadsafe(self._did, "StatefulSet")

    def _hear_claim(self, kind: str, claim: dict[str, Any]) -> None:
        metadata = claim["metadata"]
        leaves = kind == "DELETED" or "deletionTimestamp" in metadata
        if leaves and metadata["uid"] not in self._claims_gone:
            self._claims_gone.add(metadata["uid"])
            self.loop.call_soon_threadsafe(self._did, metadata["name"])

    def _called(self) -> None:
        before, self._changes = self._changes, len(self.story.nodes.changes)
        self._did("TransferLeader" if self._changes == before else "ChangeMembers")

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


async def state_of(story: Story) -> State:
    """Return what is there now."""
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
