"""A BrokerGroup that is being deleted, and that somebody's finalizer holds: what is still said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.reconcile import Clock, Reconciler
from dledger_operator.controllers.reconcile_loop import GroupLoop
from dledger_operator.decisions.turns import RolloutTurns, Stage
from dledger_operator.metrics.metrics import Metrics
from tests.operator.fakes import FakeApi, FakeNodes, FakeWatched, World
from tests.operator.samples import NOW, PLATFORM

LATER = "2031-05-06T07:09:09Z"


class Operator:
    """An operator on a World, whose time stands still."""

    def __init__(self, world: World) -> None:
        self.world, self.metrics = world, Metrics()
        self.turns = RolloutTurns(lambda: 0.0, settles_s=0)
        self.reconciler = Reconciler(
            world.group,
            cluster=Cluster(FakeApi(world), self.metrics.wrote),
            nodes=FakeNodes(world),
            watched=FakeWatched(world),
            platform=PLATFORM,
            metrics=self.metrics,
            lease_s=lambda: 0.0,
            rollout_turns=self.turns,
            clock=Clock(now=lambda: LATER),
        )

    async def rounds(self, count: int = 12) -> None:
        """Do some rounds."""
        for _ in range(count):
            self.reconciler.update(self.world.group)
            await self.reconciler.reconcile()
            self.world.run_pods()


def _delete(world: World, *finalizers: str) -> None:
    body = world.group
    body["metadata"] |= {"deletionTimestamp": NOW, "finalizers": [*finalizers]}
    world.put(body)


def _row(world: World, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in world.status["conditions"] if row["type"] == kind)
    return found


async def test_a_group_held_in_deletion_says_by_whom_and_that_nobody_looks_after_it() -> None:
    """Found: S12. Its status stood at `Available True`, and a deleted Service stayed away."""
    world = World()
    world.put_group()
    operator = Operator(world)
    await operator.rounds()
    _delete(world, "example.com/audit", "example.com/bill")
    del world.objects["Service", "orders-leader"]
    world.writes.clear()

    await operator.rounds()

    assert world.writes == ["BrokerGroup", "Event"]
    row = _row(world, "Progressing")
    assert (row["status"], row["reason"]) == ("True", "Terminating")
    assert "held by finalizers: example.com/audit, example.com/bill" in row["message"]
    assert (_row(world, "Available")["status"], _row(world, "Ready")["status"]) == (
        *("Unknown", "Unknown"),
    )
    assert "leader" not in world.status
    assert {row["role"] for row in world.status["members"]} == {"unknown"}
    assert world.status["groupId"]
    labels = {"namespace": "shop", "group": "orders"}
    sample = operator.metrics.registry.get_sample_value
    assert sample("dledger_operator_group_ready_replicas", labels) is None
    assert operator.reconciler.is_settled


async def test_a_group_held_in_deletion_holds_up_no_rollout() -> None:
    """One that is halted halts all; a finalizer would have kept that so for as long as it stays."""
    world = World()
    world.put_group()
    operator = Operator(world)
    await operator.rounds()
    operator.turns.ask(("shop", "orders"), Stage.HALTED, has_begun=True)
    assert operator.turns.ask(("shop", "pears"), Stage.READY, has_begun=False)
    _delete(world, "example.com/audit")

    await operator.rounds()

    assert operator.turns.tell(("shop", "pears")) == ""


async def test_a_group_held_in_deletion_is_one_that_nobody_looks_after() -> None:
    """Found by its runbook: its rounds went on being counted, so no alert could tell of it."""
    world = World()
    world.put_group()
    operator = Operator(world)
    await operator.rounds()
    _delete(world, "example.com/audit")
    operator.reconciler.update(world.group)
    loop = GroupLoop(operator.reconciler, operator.metrics)
    await asyncio.sleep(0.05)

    await loop.close()

    labels = {"namespace": "shop", "group": "orders"}
    sample = operator.metrics.registry.get_sample_value
    assert _row(world, "Progressing")["reason"] == "Terminating"
    assert sample("dledger_operator_group_age_seconds", labels) is None


async def test_who_holds_it_is_told_anew_when_one_of_them_lets_go() -> None:
    """Or a status of an hour ago would send somebody to the wrong door."""
    world = World()
    world.put_group()
    operator = Operator(world)
    await operator.rounds()
    _delete(world, "example.com/audit", "example.com/bill")
    await operator.rounds()
    _delete(world, "example.com/bill")

    await operator.rounds()

    assert "held by finalizers: example.com/bill;" in _row(world, "Progressing")["message"]


@pytest.mark.parametrize("finalizer", ["foregroundDeletion", "orphan"])
async def test_what_kubernetes_itself_holds_for_a_moment_is_no_event(finalizer: str) -> None:
    """`kubectl delete --cascade=foreground` is over by itself."""
    world = World()
    world.put_group()
    operator = Operator(world)
    await operator.rounds()
    _delete(world, finalizer)

    await operator.rounds()

    assert "Terminating" not in world.events
    assert _row(world, "Progressing")["reason"] == "Terminating"
