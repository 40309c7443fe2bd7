"""Whose a group is, and that an operator leaves alone what is another one's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.backup_reconcile import BackupReconciler
from dledger_operator.controllers.handlers import Manager
from dledger_operator.controllers.operation_reconcile import OperationReconciler
from dledger_operator.controllers.reconcile import Clock, Reconciler
from dledger_operator.decisions.ownership import HANDOVER_S, Standing, standing
from dledger_operator.decisions.turns import SETTLES_S
from dledger_operator.metrics.metrics import Metrics
from tests.operator.backup_samples import backup_body
from tests.operator.fakes import FakeApi, FakeNodes, FakeWatched, World
from tests.operator.samples import NOW, PLATFORM, group

ONE, TWO = "dledger-system/dledger-operator", "team/two"


@pytest.mark.parametrize(
    ("marked", "handed_to", "expected"),
    [
        ("", "", Standing.UNCLAIMED),
        (ONE, "", Standing.OURS),
        (TWO, "", Standing.ELSEWHERE),
        ("", ONE, Standing.UNCLAIMED),
        (ONE, ONE, Standing.OURS),
        (TWO, ONE, Standing.HANDED_TO_US),
        ("", TWO, Standing.ELSEWHERE),
        (ONE, TWO, Standing.ELSEWHERE),
        (TWO, TWO, Standing.ELSEWHERE),
    ],
)
def test_a_group_is_who_its_annotation_names_or_else_who_marked_it(
    marked: str, handed_to: str, expected: Standing
) -> None:
    """No two operators take one group for theirs, whatever it says."""
    seen = replace(group(operator=marked), handed_to=handed_to)

    assert standing(seen, ONE) is expected
    theirs = (Standing.OURS, Standing.HANDED_TO_US)
    assert [standing(seen, mark) in theirs for mark in (ONE, TWO)].count(True) <= 1


@dataclass
class Operator:
    """An operator with a mark, on a World that others share."""

    world: World
    mark: str
    now_s: float = 0.0
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.cluster = Cluster(FakeApi(self.world), self.metrics.wrote)
        self.reconciler = Reconciler(
            self.world.group,
            cluster=self.cluster,
            nodes=FakeNodes(self.world),
            watched=FakeWatched(self.world),
            platform=replace(PLATFORM, operator=self.mark),
            metrics=self.metrics,
            lease_s=lambda: 0.0,
            clock=Clock(monotonic_s=lambda: self.now_s, now=lambda: NOW),
        )

    async def rounds(self, count: int = 12) -> None:
        """Do some rounds, a second apart."""
        for _ in range(count):
            self.reconciler.update(self.world.group)
            await self.reconciler.reconcile()
            self.world.run_pods()
            self.now_s += 1


def _world(**annotations: str) -> World:
    world = World()
    body = world.put_group({"topics": [{"name": "demo"}]})
    body["metadata"]["annotations"] = annotations
    world.put(body)
    return world


def _hand_to(world: World, mark: str) -> None:
    body = world.group
    body["metadata"]["annotations"] = {names.OPERATOR_ANNOTATION: mark}
    world.put(body)


async def test_the_mark_is_written_before_anything_is_made() -> None:
    """So that of two operators which see a new group at once only one makes its children."""
    world = _world()

    await Operator(world, ONE).rounds()

    assert world.writes[0] == names.KIND
    assert world.status["operator"] == ONE
    assert world.bootstraps == 1


async def test_of_two_that_see_a_new_group_at_once_the_first_to_mark_it_acts() -> None:
    """The other one's mark is refused by version, since the group was changed meanwhile."""
    world = _world()
    one, two = Operator(world, ONE), Operator(world, TWO)

    await one.reconciler.reconcile()
    await two.reconciler.reconcile()
    await one.rounds()
    await two.rounds()

    assert world.status["operator"] == ONE
    assert world.events.count("ManagedElsewhere") == 1
    assert world.events.count("Founded") == 1


async def test_another_operators_group_gets_nothing_but_an_event_an_hour() -> None:
    """No child, no status, no role; its own metric says so."""
    world = _world()
    await Operator(world, ONE).rounds()
    del world.objects["Service", "orders-leader"]
    world.writes.clear()

    two = Operator(world, TWO)
    await two.rounds()
    two.now_s += 3600
    await two.rounds()

    assert world.writes == ["Event", "Event"]
    assert two.reconciler.is_settled
    labels = {"namespace": "shop", "group": "orders"}
    sample = two.metrics.registry.get_sample_value
    assert sample("dledger_operator_managed_elsewhere", labels) == 1.0
    assert sample("dledger_operator_group_ready_replicas", labels) is None


async def test_a_handed_group_is_marked_at_once_and_acted_on_a_little_later() -> None:
    """The one before may be in the middle of a round; it lets go when it sees the annotation."""
    world = _world()
    one = Operator(world, ONE)
    await one.rounds()
    _hand_to(world, TWO)
    del world.objects["Service", "orders-leader"]
    two = Operator(world, TWO)

    await two.rounds(int(HANDOVER_S))
    assert world.status["operator"] == TWO
    assert ("Service", "orders-leader") not in world.objects
    await one.rounds()
    assert ("Service", "orders-leader") not in world.objects
    await two.rounds(2)

    assert ("Service", "orders-leader") in world.objects
    assert world.events[-2:] == ["ManagedElsewhere", "ChildRepaired"]
    assert one.reconciler.facts is None


def test_what_names_no_group_is_anybodys_only_once_all_groups_have_been_seen() -> None:
    """Or an operator that starts tells another one's backup that its group is missing."""
    now_s = 100.0
    api: Any = FakeApi(World())
    manager = Manager(api, PLATFORM, Metrics(), lambda: 0.0, lambda: now_s)

    assert not manager._is_ours(("shop", "orders"))
    now_s += SETTLES_S
    assert manager._is_ours(("shop", "orders"))


async def test_a_mark_that_somebody_takes_away_again_is_told() -> None:
    """An operator from before there were marks does so with each status, and acts as well."""
    world = _world()
    one = Operator(world, ONE)
    await one.rounds()
    assert "ManagedElsewhere" not in world.events
    for _ in range(3):
        body = world.group
        body["status"] = {key: body["status"][key] for key in ("groupId", "term", "leader")}
        world.put(body)
        await one.rounds(2)

    assert world.status["operator"] == ONE
    assert world.events.count("ManagedElsewhere") == 1


async def test_backups_and_operations_of_another_operators_group_are_left_to_it() -> None:
    """Both would make the Job, with images of their own."""
    world = _world()
    world.put(backup_body())
    api = Cluster(FakeApi(world), Metrics().wrote)
    common: dict[str, Any] = {
        "cluster": api,
        "watched": FakeWatched(world),
        "group": lambda: None,
        "is_ours": lambda: False,
    }

    await BackupReconciler(("shop", "orders"), metrics=Metrics().backups, **common).reconcile()
    await OperationReconciler(
        ("shop", "orders"), facts=lambda: None, metrics=Metrics(), **common
    ).reconcile()

    assert world.writes == []
