"""Disks that are gone for good: how that is known, when a claim is given up, and what is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.disruptions import Held, ReplaceClaim, RetirePods
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.losses import lost_disk
from dledger_operator.decisions.membership import replacement
from dledger_operator.decisions.scaling import scaling
from dledger_operator.observed.disks import claim_lost, machines_of, volume_lost
from dledger_operator.observed.observed import Observed, Volume
from dledger_operator.status.conditions import conditions
from tests.operator.samples import bootstrapped, converged, joined, members, node, pods

WHY = "volume pv-2 failed"


def _pv(*hosts: str, key: str = "kubernetes.io/hostname", **spec: Any) -> dict[str, Any]:
    row = {"key": key, "operator": "In", "values": list(hosts)}
    terms = [{"matchExpressions": [row]}]
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}, **spec}}


def _machine(*taints: str) -> dict[str, Any]:
    return {"spec": {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]}}


OUT = "node.kubernetes.io/out-of-service"
ELSEWHERE = _pv("a")
ELSEWHERE["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].append(
    {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
)


@pytest.mark.parametrize(
    ("volume", "machines", "gone"),
    [
        (_pv("a"), {"a": []}, True),
        (_pv("a"), {"a": [_machine()]}, False),
        (_pv("a"), {"a": [_machine(OUT)]}, True),
        (_pv("a"), {"a": [_machine("node.kubernetes.io/unreachable")]}, False),
        (_pv("a", "b"), {"a": [], "b": [_machine()]}, False),
        (_pv("a", key="topology.kubernetes.io/zone"), {}, False),
        (ELSEWHERE, {}, False),
        ({"spec": {}}, {}, False),
        ({"spec": {}, "status": {"phase": "Failed"}}, {}, True),
        ({"spec": {}, "status": {"phase": "Released"}}, {}, False),
        (None, {}, True),
    ],
)
def test_a_volume_is_gone_with_the_last_machine_that_reaches_it(
    volume: Any, machines: Any, gone: bool
) -> None:
    """One that is only tied to a zone, or to nothing, outlives machines."""
    assert set(machines_of(volume or {})) == set(machines)
    assert bool(volume_lost("pv-2", volume, machines)) is gone


def test_a_claim_says_itself_that_its_volume_is_gone() -> None:
    """That takes no right to see volumes."""
    assert claim_lost(Volume(name="data-orders-2", size="1Gi", phase="Lost", volume="pv-2")) == (
        "volume pv-2 does not exist any more"
    )
    assert not claim_lost(Volume(name="data-orders-2", size="1Gi", phase="Pending"))


def _claims(count: int) -> dict[str, Volume]:
    named = {f"data-orders-{n}": n for n in range(count)}
    return {
        name: Volume(name=name, size="10Gi", uid=f"claim-{n}", volume=f"pv-{n}")
        for name, n in named.items()
    }


def _seen(*lost: int, down: tuple[int, ...] = (2,), **changes: Any) -> Observed:
    """Return a group of which these are not there, and these disks known to be gone."""
    group = bootstrapped()
    rows = tuple(
        replace(row, connected=int(row.member.name[-1]) not in down) for row in members(0, 1, 2)
    )
    nodes = joined(*(n for n in range(3) if n not in down), members=rows)
    volumes = {
        f"data-orders-{n}": Volume(
            name=f"data-orders-{n}", size="10Gi", uid=f"claim-{n}", volume=f"pv-{n}"
        )
        for n in range(3)
    }
    found = {"nodes": nodes, "volumes": volumes, **changes}
    return converged(group, lost={f"data-orders-{n}": WHY for n in lost}, **found)


def _facts(observed: Observed) -> Facts:
    return facts_of(bootstrapped(), observed)


def test_the_claim_of_a_lost_disk_is_given_up_while_all_others_are_in_sync() -> None:
    """Named down to its uid, and its pod's."""
    assert lost_disk(_facts(_seen(2))) == ReplaceClaim(
        claim="data-orders-2", uid="claim-2", volume="pv-2", pod="orders-2", pod_uid="pod-2"
    )


HELD = {
    "two of three": (_seen(1, 2, down=(1, 2)), "no leader|disks of 1 of 3"),
    "another is out of sync": (_seen(2, down=(1, 2)), "no leader|not in sync"),
    "it was refused": (_seen(2, refusals={("Member", "orders-2"): "denied"}), "denied"),
}


@pytest.mark.parametrize("name", HELD)
def test_a_lost_disk_waits_with_a_reason(name: str) -> None:
    """A majority that is lost is no matter for this: what is left must not be thrown away."""
    observed, why = HELD[name]

    found = lost_disk(_facts(observed))

    assert isinstance(found, Held)
    assert any(part in found.why for part in why.split("|")), found.why


def test_the_only_voter_keeps_its_claim() -> None:
    """Its disk is the group."""
    alone = bootstrapped({"replicas": 1})
    volume = Volume(name="data-orders-0", size="10Gi", uid="claim-0", volume="pv-0")
    seen = converged(alone, nodes={}, volumes={volume.name: volume}, lost={volume.name: WHY})

    found = lost_disk(facts_of(alone, seen))

    assert isinstance(found, Held)
    assert "its disk is the group" in found.why


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param(_seen(), id="nothing is lost"),
        pytest.param(_seen(2, down=()), id="its pod runs all the same"),
        pytest.param(
            _seen(2, nodes={**joined(0, 1, members=_seen(2).nodes["orders-0"].members),
                            "orders-2": node("orders-2")}),
            id="its node answers",
        ),
    ],
)  # fmt: skip
def test_no_claim_is_given_up_without_need(observed: Observed) -> None:
    """Who answers has a disk, whatever Kubernetes says of it."""
    assert lost_disk(_facts(observed)) is None


def test_a_claim_that_goes_away_is_not_deleted_again() -> None:
    """It waits for its pod, which is going away too."""
    seen = _seen(2)
    claim = replace(seen.volumes["data-orders-2"], terminating=True)
    pod = replace(seen.pods["orders-2"], terminating=True)
    going = replace(
        seen,
        volumes={**seen.volumes, claim.name: claim},
        pods={**seen.pods, pod.name: pod},
    )

    assert lost_disk(_facts(going)) is None


def test_degraded_names_the_disk_and_what_holds_its_replacement_back() -> None:
    """At 3 a.m. that is the question."""

    def degraded(observed: Observed) -> dict[str, Any]:
        rows = conditions(_facts(observed), now="2031-05-06T07:08:09Z")
        return next(row for row in rows if row["type"] == "Degraded")

    found, held = degraded(_seen(2)), degraded(HELD["it was refused"][0])

    assert (found["reason"], found["message"]) == (
        Reason.DISK_LOST,
        f"the disk of orders-2 is gone: {WHY}",
    )
    assert held["reason"] == Reason.APPLY_REFUSED


def test_a_lost_and_an_empty_disk_do_not_wait_for_each_other() -> None:
    """Of five voters two may be out of order; each is replaced as if the other were not there."""
    group = bootstrapped({"replicas": 5})
    rows = tuple(
        replace(row, connected=int(row.member.name[-1]) < 3) for row in members(0, 1, 2, 3, 4)
    )
    nodes = {
        **joined(0, 1, 2, members=rows),
        "orders-3": node("id-3-again", told_group_id=group.group_id),
    }
    seen = converged(
        group,
        nodes=nodes,
        pods=pods(0, 1, 2, 3, 4),
        volumes=_claims(5),
        lost={"data-orders-4": WHY},
    )

    facts = facts_of(group, seen)

    assert isinstance(lost_disk(facts), ReplaceClaim)
    assert not isinstance(replacement(facts), Held | None)


def test_a_lost_disk_that_nobody_needs_keeps_nothing_back() -> None:
    """A pod that only has to go, since its member has left, goes without another disk."""
    of = bootstrapped({"replicas": 1})
    rows = members(0)
    observed = converged(
        bootstrapped(),
        nodes=joined(0, members=rows),
        volumes=_claims(3),
        lost={"data-orders-2": WHY},
    )
    facts = facts_of(of, observed)

    assert facts.wanted == ("orders-0", "orders-1", "orders-2")
    assert lost_disk(facts) is None
    assert isinstance(scaling(facts), RetirePods)
