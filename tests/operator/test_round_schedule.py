"""Rounds that the schedule of a group makes: the group's own reconciler, in memory."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.decisions.actions import Create
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed
from tests.operator.fakes import World
from tests.operator.round_samples import COMPACTED
from tests.operator.samples import FRESH_ID, bootstrapped, converged
from tests.operator.test_reconcile import Operator

AT = "2031-05-06T07:00:00Z"
NIGHTLY = {**COMPACTED, "compaction": {"schedule": "0 * * * *"}}


def _made(of: Any, observed: Observed) -> list[str]:
    planned = plan(facts_of(of, observed), (), fresh_id=FRESH_ID)
    created = [one.manifest for one in planned if isinstance(one, Create)]
    return [m["metadata"]["name"] for m in created if m["kind"] == names.OPERATION_KIND]


@pytest.mark.parametrize(
    ("spec", "changes", "count"),
    [
        (NIGHTLY, {"round_due": AT}, 1),
        (NIGHTLY, {}, 0),
        # Something else that is wrong with the spec is no reason to let a topic grow.
        ({**NIGHTLY, "planApproval": "Manual"}, {"round_due": AT}, 1),
        ({**NIGHTLY, "paused": True}, {"round_due": AT}, 0),
        ({**NIGHTLY, "spark": {"image": "no image"}}, {"round_due": AT}, 0),
        (NIGHTLY, {"round_due": AT, "topics": None}, 0),
        ({"compaction": NIGHTLY["compaction"]}, {"round_due": AT}, 0),
    ],
)
def test_a_round_that_is_due_is_made_where_there_is_something_to_compact(
    spec: dict[str, Any], changes: dict[str, Any], count: int
) -> None:
    """Without a compacted topic the schedule makes nothing; the condition says so."""
    of = bootstrapped(spec)

    assert len(_made(of, converged(of, **changes))) == count


def _rounds(world: World) -> list[BrokerOperation]:
    return [
        BrokerOperation.parse(m)
        for (kind, _), m in world.objects.items()
        if kind == names.OPERATION_KIND
    ]


async def test_the_schedule_of_a_new_group_begins_at_its_next_time() -> None:
    """One round each time; it is told, and the status has when the next is due."""
    world = World()
    stored = world.put_group(NIGHTLY)
    stored["metadata"]["creationTimestamp"] = "2031-05-06T07:00:30Z"
    world.put(stored)
    operator = Operator(world)

    await operator.rounds()
    assert _rounds(world) == []
    assert world.status["compaction"]["topics"] == ["prices"]
    assert world.status["compaction"]["nextAt"] == "2031-05-06T08:00:00Z"
    operator.now = "2031-05-06T08:00:01Z"
    await operator.rounds(3)

    (made,) = _rounds(world)
    assert (made.scheduled_at, made.is_round) == ("2031-05-06T08:00:00Z", True)
    assert "RoundScheduled" in world.events
    assert world.status["compaction"]["lastScheduledAt"] == "2031-05-06T08:00:00Z"
