"""Rounds and backups of a group, on an API server in memory: one Job at a time, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.backup_reconcile import BackupReconciler
from dledger_operator.controllers.log_job_reconcile import LogJobReconciler
from dledger_operator.controllers.reconcile import Clock
from dledger_operator.controllers.round_reconcile import RoundReconciler
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.observed import Pod
from dledger_operator.resources.log_job import LogRange
from tests.operator.backup_samples import RESULT as BACKED_UP
from tests.operator.backup_samples import SMALL, STORE, backup_body
from tests.operator.fakes import FakeApi, FakeWatched, Trouble, World
from tests.operator.round_samples import COMPACTED, DID, RESULT, round_body
from tests.operator.samples import GROUP_ID, NOW, PLATFORM, converged
from tests.operator.test_backup_reconcile import _end

AT = "2031-05-06T07:00:00Z"


@dataclass
class Jobs:
    """An operator process that looks after backups and rounds of `orders`."""

    world: World
    now: str = NOW
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        clock = Clock(monotonic_s=lambda: 0.0, now=lambda: self.now)
        cluster = Cluster(FakeApi(self.world), self.metrics.wrote)
        watched = FakeWatched(self.world)
        key = "shop", "orders"
        backups = BackupReconciler(
            key,
            group=self._group,
            cluster=cluster,
            watched=watched,
            metrics=self.metrics.backups,
            clock=clock,
            ahead=self._ahead,
        )
        rounds = RoundReconciler(
            key,
            group=self._group,
            facts=self._facts,
            cluster=cluster,
            watched=watched,
            metrics=self.metrics,
            clock=clock,
            ahead=self._ahead,
        )
        self.reconciler = LogJobReconciler(backups, rounds)

    async def rounds(self, count: int = 3) -> None:
        """Do some rounds."""
        for _ in range(count):
            await self.reconciler.reconcile()

    def _group(self) -> BrokerGroup | None:
        body = self.world.objects.get((names.KIND, "orders"))
        return None if body is None else PLATFORM.group(body)

    def _facts(self) -> Facts | None:
        group = self._group()
        return facts_of(group, converged(group)) if group else None

    async def _ahead(self, pods: Iterable[Pod], first_index: int) -> LogRange:
        return SMALL


def _world(*objects: dict[str, Any], spec: dict[str, Any] | None = None) -> World:
    world = World()
    stored = world.put_group({"backup": {"store": STORE}, **(COMPACTED if spec is None else spec)})
    world.put({**stored, "status": {"groupId": GROUP_ID, "term": 1}})
    for one in objects:
        world.put(one)
    return world


def _status(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.objects[names.OPERATION_KIND, name].get("status") or {}
    return found


def _reason(world: World, name: str) -> str:
    return str(_status(world, name)["conditions"][0]["reason"])


def _jobs(world: World) -> set[str]:
    return {name for kind, name in world.objects if kind == "Job"}


async def test_a_round_becomes_a_job_and_tells_what_it_did() -> None:
    """In its status, and by Events on it and on its group; then it goes when its time has come."""
    world = _world(round_body())
    operator = Jobs(world)

    await operator.rounds()
    assert _status(world, "now")["phase"] == "Running"
    _end(world, "now-compaction", RESULT)
    await operator.rounds()

    assert (_status(world, "now")["phase"], _status(world, "now")["compaction"]) == (
        "Succeeded",
        DID,
    )
    assert {"OperationStarted", "OperationSucceeded"} <= {*world.events}
    operator.now = "2031-05-20T07:08:09Z"
    await operator.rounds(1)
    assert (names.OPERATION_KIND, "now") not in world.objects


@pytest.mark.parametrize("words", ["", "{", "[1]", '{"error": {}}', "x" * 4096])
async def test_a_round_without_a_result_has_failed(words: str) -> None:
    """Also where Kubernetes cut it: what it did is not known, and the next one does it again."""
    world = _world(round_body())
    operator = Jobs(world)
    await operator.rounds()

    _end(world, "now-compaction", RESULT)
    pod = world.objects["Pod", "now-compaction-x"]
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = words
    await operator.rounds()

    assert (_status(world, "now")["phase"], _reason(world, "now")) == ("Failed", "RoundFailed")


async def test_a_round_that_is_due_waits_for_the_backup_and_follows_it() -> None:
    """Whichever was created first: what a round reads of the store is then new."""
    due = round_body("orders-compaction-1", scheduled_at=AT)
    world = _world(backup_body(name="nightly"), due)
    operator = Jobs(world)

    await operator.rounds()
    assert _jobs(world) == {"nightly-backup"}
    assert _reason(world, "orders-compaction-1") == "WaitingForTurn"
    _end(world, "nightly-backup", BACKED_UP)
    await operator.rounds()

    assert _status(world, "orders-compaction-1")["phase"] == "Running"


async def test_a_backup_that_comes_while_a_round_runs_is_next() -> None:
    """Before another round, which was there first."""
    world = _world(round_body("orders-compaction-1", scheduled_at=AT))
    operator = Jobs(world)
    await operator.rounds()
    world.put(round_body("orders-compaction-2", scheduled_at=AT))
    world.put(backup_body(name="nightly"))

    await operator.rounds()
    assert _jobs(world) == {"orders-compaction-1-compaction"}
    _end(world, "orders-compaction-1-compaction", RESULT)
    await operator.rounds()

    assert _jobs(world) == {"orders-compaction-1-compaction", "nightly-backup"}
    assert _reason(world, "orders-compaction-2") == "WaitingForTurn"


async def test_a_backup_that_cannot_run_holds_up_no_round() -> None:
    """It has no store, and may wait for one for ever."""
    spec = {**COMPACTED, "backup": {}}
    world = _world(backup_body(name="nowhere"), round_body(), spec=spec)

    await Jobs(world).rounds()

    assert _jobs(world) == {"now-compaction"}


async def test_a_second_round_is_refused_by_the_name_of_the_first() -> None:
    """It would do the same again; the first is not disturbed."""
    world = _world(round_body("first"))
    operator = Jobs(world)
    await operator.rounds()
    world.put(round_body("second"))

    await operator.rounds()

    assert (_status(world, "second")["phase"], _reason(world, "second")) == (
        "Failed",
        "RoundRunning",
    )
    assert "first" in _status(world, "second")["message"]
    assert _jobs(world) == {"first-compaction"}


async def test_a_round_without_a_compacted_topic_is_refused() -> None:
    """And no Job is made that would only say so."""
    world = _world(round_body(), spec={"topics": [{"name": "orders"}]})

    await Jobs(world).rounds()

    assert _reason(world, "now") == "NoCompactedTopic"
    assert _jobs(world) == set()


@pytest.mark.parametrize("after", [False, True])
async def test_a_round_is_made_once_wherever_an_operator_ends(after: bool) -> None:
    """Whatever call was its last, done or not."""
    for at in range(1, 30):
        world = _world(round_body())
        world.trouble = Trouble(at=at, after=after)
        for _ in range(3):
            try:
                await Jobs(world).rounds()
            except ApiError:
                continue
        assert world.writes.count("Job") == 1, at
        if world.trouble.calls < at:
            return
    raise AssertionError("more calls than were tried")
