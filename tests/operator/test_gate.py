"""The gate: who an act waits for, whatever asks, and that nothing passes it by another way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger.common.status import NodeStatus
from dledger_operator.api.brokeroperation import RUNNING, BrokerOperation
from dledger_operator.decisions.disruptions import (
    AddMember,
    Held,
    RemoveMember,
    ReplaceClaim,
    ReplaceMember,
    RestartPod,
)
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.gate import (
    Act,
    Enter,
    GiveUp,
    HandOver,
    Leave,
    Replace,
    Restart,
    Spare,
    hold,
    standing,
)
from dledger_operator.decisions.plan import next_disruption
from dledger_operator.decisions.scaling import scaling
from dledger_operator.observed.observed import Observed
from tests.operator.samples import GROUP_ID, NOW, bootstrapped, converged, joined, members, node
from tests.operator.test_scaling import _facts, _rows

EACH: dict[str, Act] = {
    "a restart": Restart("orders-0"),
    "a transfer": HandOver("orders-1"),
    "one more": Enter(),
    "a claim": GiveUp(frozenset({"orders-0"})),
    "an empty disk": Replace(frozenset({"orders-0"})),
    "a removal": Leave("orders-0"),
}
"""Acts that all rely on `orders-1`."""


def _seen(ordinal: int, *, answers: bool = True, lag: int = 0, **pod: Any) -> Facts:
    """Return a group of three, one of which is otherwise; the highest one leads."""
    rows = tuple(
        replace(row, lag=lag if row.member.name == f"orders-{ordinal}" else 0)
        for row in members(0, 1, 2, leader=2)
    )
    nodes = joined(0, 1, 2, leader=2, members=rows)
    if not answers:
        del nodes[f"orders-{ordinal}"]
    observed = _with(converged(bootstrapped(), nodes=nodes), ordinal, **pod)
    return facts_of(bootstrapped(), observed)


def _with(observed: Observed, ordinal: int, **changes: Any) -> Observed:
    name = f"orders-{ordinal}"
    return replace(observed, pods={**observed.pods, name: replace(observed.pods[name], **changes)})


@pytest.mark.parametrize("act", EACH.values(), ids=list(EACH))
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (_seen(1, terminating=True), "being deleted: orders-1"),
        (_seen(1, ready=False), "not ready: orders-1"),
        (_seen(1, answers=False), "no answer from: orders-1"),
        (_seen(1, lag=5000), "not in sync: orders-1"),
    ],
    ids=["it ends", "it starts", "it is silent", "it is behind"],
)
def test_every_act_waits_for_the_voter_that_it_relies_on(facts: Facts, why: str, act: Act) -> None:
    """By the same sentence, which names who and what of it; the leader finds three in sync."""
    assert hold(facts, act) == why


@pytest.mark.parametrize("act", EACH.values(), ids=list(EACH))
def test_a_sound_group_lets_every_act_pass(act: Act) -> None:
    """One at a time."""
    assert hold(facts_of(bootstrapped(), converged(bootstrapped())), act) == ""


@pytest.mark.parametrize("act", EACH.values(), ids=list(EACH))
def test_every_act_waits_while_a_member_learns(act: Act) -> None:
    """One comes or goes at a time, and no pod is restarted meanwhile."""
    facts = _facts(5, 5, _rows(0, 1, 2, learners=(3,)))

    assert hold(facts, act) == "another change of the members is under way: orders-3"


def test_all_who_are_waited_for_are_named() -> None:
    """Each with what is the matter."""
    facts = _seen(1, terminating=True)
    facts = facts_of(bootstrapped(), _with(facts.observed, 2, ready=False))

    assert hold(facts, Enter()) == "being deleted: orders-1; not ready: orders-2"
    assert standing(facts) == {"orders-0"}


def test_what_goes_that_is_no_members_waits_for_none() -> None:
    """A pod whose member has left, or its claim."""
    assert hold(_seen(1, terminating=True), Spare()) == ""


def test_a_transfer_needs_a_majority_on_its_feet_and_no_more() -> None:
    """It may be away from the slow one that a transfer is asked for; not with a majority gone."""
    one, two = _seen(0, lag=5000), _seen(0, ready=False)
    two = facts_of(bootstrapped(), _with(two.observed, 2, terminating=True))

    assert hold(one, HandOver("orders-1")) == ""
    assert hold(two, HandOver("orders-1")) == "1 of 3 voters stand, no majority"


def test_a_leader_never_hands_over_to_one_that_has_left() -> None:
    """An operation may outlast the member that it names: its pod runs on for a while."""
    assert hold(_facts(3, 5, _rows(0, 1, 2)), HandOver("orders-3")) == "no voter: orders-3"


@pytest.mark.parametrize("act", [Restart("orders-0"), GiveUp(frozenset({"orders-0"}))])
def test_no_pod_ends_that_could_not_start_again(act: Act) -> None:
    """While a Secret is missing, those that run go on running."""
    absent = {("ConfigMap", "orders-config"): "does not exist"}
    facts = facts_of(bootstrapped(), replace(converged(bootstrapped()), absent=absent))

    assert hold(facts, act) == "ConfigMap orders-config does not exist; the operator makes it again"
    assert hold(facts, Enter()) == ""


def _ending(facts: Facts, ordinal: int) -> Facts:
    of = facts.group
    return facts_of(of, _with(facts.observed, ordinal, terminating=True, ready=False))


def test_no_member_comes_or_goes_while_a_pod_ends() -> None:
    """It answers for its drain, and the leader finds it in sync until then."""
    grows, shrinks = _facts(5, 5, _rows(0, 1, 2)), _facts(3, 5, _rows(0, 1, 2, 3, 4))
    assert isinstance(scaling(grows), AddMember)
    assert isinstance(scaling(shrinks), RemoveMember)

    assert scaling(_ending(grows, 2)) == Held("orders-3", "being deleted: orders-2")
    assert scaling(_ending(shrinks, 1)) == Held("orders-4", "being deleted: orders-1")


def test_of_those_that_leave_the_one_that_is_drained_goes_first() -> None:
    """From three to one: else two of three voters were on their way at the same time."""
    found = scaling(_ending(_facts(1, 3, _rows(0, 1, 2)), 1))

    assert isinstance(found, RemoveMember)
    assert found.pod == "orders-1"


def test_a_lost_disk_does_not_wait_for_one_that_is_to_leave_and_waits_for_it() -> None:
    """From five to three, since machines die: one is off, and another is gone with its disk."""
    lost = {"data-orders-1": "machine m-1 is gone"}
    rows = _rows(0, 1, 2, 3, 4, lost=(1, 4))
    facts = _facts(3, 5, rows, lost=(1, 4), changes={"lost": lost})

    found = next_disruption(facts)

    assert isinstance(found, ReplaceClaim)
    assert found.pod == "orders-1"
    nodes = {**facts.observed.nodes, "orders-1": _empty(1)}
    came = replace(facts.observed, lost={}, nodes=nodes)
    found = next_disruption(facts_of(facts.group, came))
    assert isinstance(found, ReplaceMember)
    others = _rows(0, 1, 2, 3, 4, lost=(4,))
    sound = _facts(3, 5, others, lost=(4,))
    assert hold(sound, GiveUp(frozenset({"orders-1"}))) == "not in sync: orders-4", "it stands"
    three = _facts(3, 5, _rows(0, 1, 2, 3, 4, lost=(1, 3, 4)), lost=(1, 3, 4))
    assert hold(three, Replace(frozenset({"orders-1"}))), "no majority stands"


def _empty(ordinal: int) -> NodeStatus:
    return node(f"new-{ordinal}", told_group_id=GROUP_ID)


def test_a_new_member_does_not_wait_for_one_that_is_to_leave_and_is_down() -> None:
    """After a group was forced to go on from one beyond those that its spec asks for."""
    rows = _rows(0, 1, 3, lost=(3,))

    found = scaling(_facts(3, 4, rows, lost=(3,)))

    assert isinstance(found, RemoveMember)
    assert found.pod == "orders-3"
    assert isinstance(scaling(_facts(3, 4, _rows(0, 1, 3))), AddMember), "that one stands"


def test_a_pod_of_an_older_template_is_restarted_for_who_waits_until_it_stands() -> None:
    """Grown and put right in one moment: nobody joins while it is not ready."""
    facts = _facts(5, 5, _rows(0, 1, 2))
    older = _with(facts.observed, 1, ready=False, spec_hash="before")
    assert isinstance(scaling(facts_of(facts.group, older)), Held)

    found = next_disruption(facts_of(facts.group, older))

    assert isinstance(found, RestartPod)
    assert found.pod == "orders-1"
    assert isinstance(next_disruption(facts_of(facts.group, _with(older, 2, ready=False))), Held)
    stranger = {**facts.observed.nodes, "orders-3": node("id-3", told_group_id="another")}
    sound = replace(_with(facts.observed, 2, spec_hash="before"), nodes=stranger)
    assert isinstance(next_disruption(facts_of(facts.group, sound)), Held), "that one stands"


def test_a_survivor_whose_pod_does_not_run_is_healed_before_it_is_forced() -> None:
    """Forcing goes before all else and ends with no deadline: it waited for what it held up."""
    chosen = {"pod": "orders-1", "nodeId": "id-1", "lastTerm": 1, "lastIndex": 7, "epoch": 0}
    manifest = {
        "metadata": {"namespace": "shop", "name": "force", "uid": "1", "creationTimestamp": NOW},
        "spec": {"group": "orders", "kind": "ForceNewGroup", "forceNewGroup": {"groupId": "x"}},
        "status": {"phase": RUNNING, "chosen": chosen},
    }
    told = {"stopped": True, "ready": False, "spec_hash": "before", "uid": "u1"}
    seen = _with(_with(converged(bootstrapped(), nodes={}), 0, **told), 1, **told)
    seen = replace(seen, operations=(BrokerOperation.parse(manifest),))

    found = next_disruption(facts_of(bootstrapped(), seen))

    assert isinstance(found, RestartPod)
    assert (found.pod, found.is_broken) == ("orders-1", True)
