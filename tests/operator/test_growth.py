"""Volumes grow claim by claim, then the StatefulSet is made anew; also interrupted anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.reasons import Reason
from dledger_operator.cluster.api import ApiError
from dledger_operator.decisions.actions import Apply, Create, Forget
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.growth import GrowClaim, ReleasePods, growth, template_size
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed
from dledger_operator.resources import desired
from dledger_operator.status.status import status
from tests.operator.fakes import Trouble, World
from tests.operator.samples import (
    FRESH_ID,
    NOW,
    PLATFORM,
    bootstrapped,
    converged,
    group,
    volumes,
)
from tests.operator.test_reconcile import Operator

LARGER = {"storage": {"size": "20Gi"}}
CLAIMS = [f"data-orders-{n}" for n in range(3)]


def _seen(**changes: Any) -> Observed:
    seen = converged(bootstrapped(), **changes)
    seen.children["StatefulSet", "orders"]["metadata"]["uid"] = "uid-of-it"
    return seen


def test_claims_come_first_then_the_statefulset() -> None:
    """One that was grown by hand is not asked for again."""
    of = bootstrapped(LARGER)
    some = volumes(0, 1, 2)
    some["data-orders-1"] = replace(some["data-orders-1"], size="20480Mi")

    assert [*growth(of, _seen())] == [GrowClaim(claim, "20Gi") for claim in CLAIMS]
    assert [*growth(of, _seen(volumes=some))] == [
        GrowClaim("data-orders-0", "20Gi"),
        GrowClaim("data-orders-2", "20Gi"),
    ]
    grown = _seen(volumes=volumes(0, 1, 2, size="20Gi"))
    assert [*growth(of, grown)] == [ReleasePods("orders", "uid-of-it", "20Gi")]
    grown.children["StatefulSet", "orders"]["metadata"]["deletionTimestamp"] = NOW
    assert [*growth(of, grown)] == []


def test_claims_that_an_earlier_group_left_grow_once_there_are_pods() -> None:
    """Nothing is asked for while nothing is built."""
    assert [*growth(group(LARGER), Observed(volumes=volumes(0, 1, 2)))] == []


def test_what_was_refused_is_not_asked_for_and_nothing_is_deleted() -> None:
    """A class that cannot grow leaves the group as it is."""
    refusals = {("PersistentVolumeClaim", claim): "cannot be resized" for claim in CLAIMS}

    assert [*growth(bootstrapped(LARGER), _seen(refusals=refusals))] == []


def test_nothing_grows_while_paused_or_refused() -> None:
    """As with everything else."""
    for spec in ({**LARGER, "paused": True}, {**LARGER, "replicas": 2}):
        of = bootstrapped(spec)
        found = plan(facts_of(of, _seen()), desired(of, PLATFORM), fresh_id=FRESH_ID)
        assert not [each for each in found if isinstance(each, GrowClaim | ReleasePods)]


def test_the_rest_of_a_statefulset_changes_while_its_volumes_cannot_grow() -> None:
    """An apply with another claim template would be refused as a whole."""
    of, refusals = bootstrapped(LARGER), {("PersistentVolumeClaim", c): "no" for c in CLAIMS}
    facts = facts_of(of, _seen(refusals=refusals))

    found = plan(facts, desired(of, PLATFORM), fresh_id=FRESH_ID)
    told = {each.manifest["kind"] for each in found if isinstance(each, Apply)}
    assert told == {"ConfigMap"}, "nodes are told what they are to have; they go by what they got"
    assert {type(each) for each in found} <= {Apply, Create, Forget}
    newer = bootstrapped({**LARGER, "image": "dledger:newer"})
    facts = facts_of(newer, _seen(refusals=refusals))
    (applied,) = (
        each.manifest
        for each in plan(facts, desired(newer, PLATFORM), fresh_id=FRESH_ID)
        if isinstance(each, Apply | Create) and each.manifest["kind"] == "StatefulSet"
    )
    assert template_size(applied) == "10Gi"


def test_growing_is_told_until_the_volumes_have_their_size() -> None:
    """A file system grows some time after its claim."""
    large = volumes(0, 1, 2, size="20Gi")
    done = converged(bootstrapped(LARGER), volumes=large)
    late = {**large, CLAIMS[1]: replace(large[CLAIMS[1]], capacity="10Gi")}

    for seen, reason, words in (
        (_seen(), Reason.GROWING, "data-orders-0, data-orders-1, data-orders-2, StatefulSet"),
        (replace(done, volumes=late), Reason.GROWING, "data-orders-1 (has 10Gi so far)"),
        (done, Reason.COMPLETE, ""),
    ):
        rows = status(facts_of(bootstrapped(LARGER), seen), now=NOW)["conditions"]
        row = next(row for row in rows if row["type"] == "Progressing")
        assert row["reason"] == reason
        assert words in row["message"]


async def _grown(trouble: Trouble) -> World:
    """Return a world whose group was grown by operators that are interrupted once."""
    world = World()
    world.put_group({})
    await Operator(world).rounds()
    for claim in CLAIMS:
        world.put(_claim(claim))
    world.put_group(LARGER)
    world.trouble = trouble
    world.events.clear()
    for _ in range(3):
        try:
            await Operator(world).rounds(6)
        except ApiError:
            continue
    return world


def _claim(name: str) -> dict[str, Any]:
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "shop", "name": name, "labels": names.labels("orders")},
        "spec": {"resources": {"requests": {"storage": "10Gi"}}},
        "status": {"phase": "Bound"},
    }


async def test_growth_goes_on_where_it_was_interrupted() -> None:
    """Whichever call failed, before or after it had its effect."""
    calls = (await _grown(Trouble())).trouble.calls
    for after in (False, True):
        for at in range(1, calls + 1):
            world = await _grown(Trouble(at=at, after=after))
            assert template_size(world.objects["StatefulSet", "orders"]) == "20Gi", at
            for claim in CLAIMS:
                spec = world.objects["PersistentVolumeClaim", claim]["spec"]
                assert spec["resources"]["requests"]["storage"] == "20Gi"
            assert world.bootstraps == 1
            assert world.status["conditions"]


@pytest.mark.parametrize("status_code", [403, 422])
async def test_a_class_that_cannot_grow_is_told(status_code: int) -> None:
    """And the StatefulSet is not deleted."""
    world = World()
    world.put_group({})
    await Operator(world).rounds()
    for claim in CLAIMS:
        world.put(_claim(claim))
    world.refuse["merge PersistentVolumeClaim"] = ApiError(status_code, "must support resize")
    world.put_group(LARGER)
    before = world.objects["StatefulSet", "orders"]["metadata"]["uid"]

    await Operator(world).rounds()

    row = next(row for row in world.status["conditions"] if row["type"] == "Degraded")
    assert (row["status"], row["reason"]) == ("True", Reason.APPLY_REFUSED)
    assert "must support resize" in row["message"]
    assert world.objects["StatefulSet", "orders"]["metadata"]["uid"] == before
