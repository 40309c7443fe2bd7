"""Operations on an API server in memory, with the operator replaced after any of its calls."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.operation_reconcile import OperationReconciler
from dledger_operator.controllers.reconcile import Clock
from dledger_operator.metrics.metrics import Metrics
from tests.operator.fakes import FakeApi, FakeWatched, Trouble, World
from tests.operator.samples import NOW, PLATFORM
from tests.operator.test_reconcile import Operator


def _world() -> World:
    world = World()
    world.put_group({})
    return world


def _ask(world: World, **spec: Any) -> None:
    metadata = {"namespace": "shop", "name": "one", "creationTimestamp": NOW}
    made = {"kind": names.OPERATION_KIND, "metadata": metadata, "status": {}}
    world.put({**made, "spec": {"group": "orders", **spec}})


def _beside(world: World, operator: Operator | None, metrics: Metrics) -> OperationReconciler:
    return OperationReconciler(
        ("shop", "orders"),
        group=lambda: PLATFORM.group(world.group) if operator else None,
        facts=lambda: operator.reconciler.facts if operator else None,
        cluster=Cluster(FakeApi(world), metrics.wrote),
        watched=FakeWatched(world),
        metrics=metrics,
        clock=Clock(now=lambda: operator.now if operator else NOW),
    )


async def _rounds(world: World, count: int = 16) -> None:
    """Let a new operator work; it ends at the first call that fails."""
    operator, metrics = Operator(world), Metrics()
    beside = _beside(world, operator, metrics)
    for _ in range(count):
        await beside.reconcile()
        await operator.rounds(1)


def _status(world: World) -> dict[str, Any]:
    status: dict[str, Any] = world.objects[names.OPERATION_KIND, "one"]["status"]
    return status


async def test_a_group_that_is_missing_is_named() -> None:
    """The status is the only place to say it."""
    world = World()
    _ask(world, kind="Restart", restart={"all": True})

    await _beside(world, None, Metrics()).reconcile()

    assert _status(world)["conditions"][0]["reason"] == "GroupMissing"


@pytest.mark.parametrize("after", [False, True])
async def test_a_restart_goes_on_wherever_an_operator_ends(after: bool) -> None:
    """Each pod is deleted once, whatever call was the operator's last."""
    for at in range(1, 60):
        world = _world()
        await Operator(world).rounds()
        before = {name: m["metadata"]["uid"] for (kind, name), m in _pods(world)}
        _ask(world, kind="Restart", restart={"pods": ["orders-1", "orders-2"]})
        world.writes.clear()
        world.trouble = Trouble(at=at, after=after)

        for _ in range(3):
            try:
                await _rounds(world)
            except ApiError:
                continue

        assert _status(world)["phase"] == "Succeeded", at
        uids = {name: m["metadata"]["uid"] for (kind, name), m in _pods(world)}
        assert {name for name in uids if uids[name] != before[name]} == {"orders-1", "orders-2"}
        if world.trouble.calls < at:
            return
    raise AssertionError("more calls than were tried")


def _pods(world: World) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    return [(key, made) for key, made in world.objects.items() if key[0] == "Pod"]
