"""Rollouts: which pod is restarted next, what holds it back, and what the status says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.actions import Action, Create, LookAgain
from dledger_operator.decisions.disruptions import Footing, Held, RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.decisions.rollout import ALONE, BROKEN, OLDER, healing, rollout
from dledger_operator.observed.certificates import Certificates
from dledger_operator.observed.observed import Observed, Pod, ref_of
from dledger_operator.resources.wish import wish
from dledger_operator.status.conditions import conditions
from dledger_operator.status.status import events, status
from tests.operator.samples import (
    FRESH_ID,
    GROUP_ID,
    bootstrapped,
    converged,
    joined,
    member,
    members,
    node,
    pods,
)

NOW = "2031-05-06T07:08:09Z"
NEW = bootstrapped({"image": "dledger:2"})
HASH = wish(NEW)
PULL = "ImagePullBackOff: no such image"


def _seen(older: tuple[int, ...] = (0, 1, 2), **changes: Any) -> Observed:
    """Return a group with the new template, of which these pods are not made yet."""
    found = {
        name: replace(pod, spec_hash="before") if int(name[-1]) in older else pod
        for name, pod in converged(NEW).pods.items()
    }
    return converged(NEW, **{"pods": found, **changes})


def _with(observed: Observed, ordinal: int, **changes: Any) -> Observed:
    name = f"orders-{ordinal}"
    return replace(observed, pods={**observed.pods, name: replace(observed.pods[name], **changes)})


def _without_node(observed: Observed, ordinal: int) -> Observed:
    """Return the same with a node that neither the operator nor the leader reaches."""
    gone = f"orders-{ordinal}"
    rows = tuple(replace(row, connected=row.member.name != gone) for row in members(0, 1, 2))
    nodes = {k: replace(v, members=rows) for k, v in observed.nodes.items() if k != gone}
    return _with(replace(observed, nodes=nodes), ordinal, ready=False)


def _facts(observed: Observed, **recorded: Any) -> Facts:
    return facts_of(bootstrapped({"image": "dledger:2"}, **recorded), observed)


def _row(facts: Facts, kind: str) -> dict[str, Any]:
    return next(row for row in conditions(facts, now=NOW) if row["type"] == kind)


def test_followers_are_restarted_one_after_the_other_and_the_leader_last() -> None:
    """The leader hands over to one that runs the new template, and is a follower then."""
    one, two, three = (rollout(_facts(_seen(older))) for older in ((0, 1, 2), (0, 1), (0,)))
    after = rollout(_facts(_seen((0,), nodes=joined(0, 1, 2, leader=1))))

    assert one == RestartPod(pod="orders-2", uid="pod-2", reason=OLDER)
    assert two == RestartPod(pod="orders-1", uid="pod-1", reason=OLDER)
    assert three == TransferLeader(leader="orders-0", term=1, reason=OLDER)
    assert after == RestartPod(pod="orders-0", uid="pod-0", reason=OLDER)
    assert rollout(_facts(_seen(()))) is None


def test_a_follower_that_is_behind_goes_first() -> None:
    """Its restart costs nothing of the quorum: more memory may be what it waits for."""
    behind = (*members(0, 1), member("id-2", "orders-2", lag=5000))

    found = rollout(_facts(_seen(nodes=joined(0, 1, 2, members=behind))))

    assert found == RestartPod(pod="orders-2", uid="pod-2", reason=OLDER)


_BEHIND = member("id-2", "orders-2", lag=5000)
HELD = {
    "another is not ready": (_with(_seen((0, 1)), 2, ready=False), "not ready: orders-2"),
    "another goes away": (_with(_seen((0, 1)), 2, terminating=True), "being deleted: orders-2"),
    "another has no pod": (
        replace(_seen((0, 1)), pods={k: v for k, v in _seen((0, 1)).pods.items() if k[-1] != "2"}),
        "not ready: orders-2",
    ),
    "another is cut off": (_without_node(_seen((0, 1)), 2), "not in sync: orders-2"),
    "another is behind, and ready": (
        _seen((0, 1), nodes=joined(0, 1, 2, members=(*members(0, 1), _BEHIND))),
        "not in sync: orders-2",
    ),
    "it goes away": (_with(_seen((0, 1)), 1, terminating=True), "it is being deleted"),
    "nobody leads": (_seen(nodes=joined(0, 1, 2, leader=None)), "no leader answers"),
    "it was refused": (
        _seen(refusals={("Member", "orders-2"): "not now"}),
        "it was refused: not now",
    ),
    "two voters": (
        _seen(nodes=joined(0, 1, 2, members=members(0, 1))),
        "writes would stop: two voters cannot do without one",
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_a_pod_that_runs_waits_for_all_others(name: str) -> None:
    """So it is never the operator that takes a second one down, nor a quorum."""
    observed, why = HELD[name]

    found = rollout(_facts(observed))

    assert isinstance(found, Held)
    assert found.why.startswith(why)


def test_a_pod_waits_for_its_template() -> None:
    """Else it would come back as it was: Kubernetes has not seen the new one yet, or refused it."""
    key = ("StatefulSet", "orders")
    built = _seen().children[key]
    unseen = {**built, "metadata": {**built["metadata"], "generation": 2}}
    going = {**built, "metadata": {**built["metadata"], "deletionTimestamp": NOW}}
    before = {key: converged(bootstrapped()).children[key]}
    for children in ({key: unseen}, {key: going}, before):
        observed = _seen(children={**_seen().children, **children})
        observed = _with(_without_node(observed, 2), 2, stopped=True)

        found = rollout(_facts(observed))

        assert isinstance(found, Held)
        assert found.why == "the StatefulSet has not the new template yet"
        assert healing(_facts(observed)) is None


def test_a_group_of_one_is_restarted_and_the_downtime_is_said() -> None:
    """Nothing can change that; there is nobody to hand over to."""
    alone = bootstrapped({"image": "dledger:2", "replicas": 1})
    only = {"orders-0": node("id-0", group_id=GROUP_ID, role="leader", term=1, leader_id="id-0")}
    only = {k: replace(v, members=members(0)) for k, v in only.items()}
    observed = converged(alone, pods=pods(0, spec_hash="before"), nodes=only)

    assert rollout(facts_of(alone, observed)) == RestartPod(
        pod="orders-0", uid="pod-0", reason=ALONE
    )


def test_a_spec_taken_back_heals_the_pod_that_it_broke() -> None:
    """At once, whatever else is wrong: nothing of it runs."""
    broken = _with(_without_node(_seen((2,)), 2), 2, stopped=True, trouble=PULL)
    expected = RestartPod(pod="orders-2", uid="pod-2", reason=BROKEN, is_broken=True)

    assert healing(_facts(broken)) == expected
    assert healing(_facts(replace(broken, nodes={}))) == expected
    assert healing(_facts(_with(broken, 1, ready=False))) == expected


def test_a_pod_that_may_run_is_not_taken_for_broken() -> None:
    """By the word of Kubernetes, of the node, or of the leader."""
    for observed in (
        _with(_seen((2,)), 2, stopped=True, ready=False),
        _without_node(_seen((2,)), 2),
        _with(_without_node(_seen((2,)), 2), 2, stopped=True, terminating=True),
        _with(_without_node(_seen(()), 2), 2, stopped=True),
    ):
        assert healing(_facts(observed)) is None


def test_a_broken_pod_is_restarted_though_no_node_answers() -> None:
    """A group whose every pod has an image that does not exist could never heal otherwise."""
    stopped = {n: replace(p, ready=False, stopped=True) for n, p in _seen().pods.items()}
    facts = _facts(_seen(pods=stopped, nodes={}))
    wanted = RestartPod(pod="orders-0", uid="pod-0", reason=BROKEN, is_broken=True)
    silent = Footing(oldest_answer_s=float("inf"), lease_s=0.0)

    assert plan(facts, (), fresh_id=FRESH_ID, footing=silent)[-1] == LookAgain(wanted)
    again = replace(silent, considered=wanted)
    assert plan(facts, (), fresh_id=FRESH_ID, footing=again)[-1] == wanted
    late = replace(again, lease_s=10.0)
    assert plan(facts, (), fresh_id=FRESH_ID, footing=late)[-1] == LookAgain(wanted)


def _asked(pods_at: Mapping[str, str]) -> Observed:
    """Return a group in whose template ``kubectl rollout restart`` wrote a time."""
    observed = converged(bootstrapped())
    built = observed.children["StatefulSet", "orders"]
    template = built["spec"]["template"]
    annotations = {**template["metadata"]["annotations"], names.RESTARTED_AT: NOW}
    template = {**template, "metadata": {**template["metadata"], "annotations": annotations}}
    built = {**built, "spec": {**built["spec"], "template": template}}
    found: dict[str, Pod] = {
        name: replace(pod, restarted_at=pods_at.get(name, ""))
        for name, pod in observed.pods.items()
    }
    children = {**observed.children, ("StatefulSet", "orders"): built}
    return replace(observed, children=children, pods=found)


def test_kubectl_rollout_restart_is_carried_out_the_same_way() -> None:
    """Pods that were made since have the time of the wish."""
    done = dict.fromkeys(("orders-0", "orders-1", "orders-2"), NOW)

    started = facts_of(bootstrapped(), _asked({"orders-1": NOW}))

    assert started.older == ("orders-0", "orders-2")
    assert rollout(started) == RestartPod(pod="orders-2", uid="pod-2", reason=OLDER)
    assert facts_of(bootstrapped(), _asked(done)).older == ()


def test_a_newer_operator_restarts_nothing() -> None:
    """Neither with another default image and template, nor if pods say nothing of their spec."""
    observed = converged(bootstrapped())
    unmarked = replace(observed, pods=pods(0, 1, 2))

    facts = facts_of(bootstrapped(), observed)

    assert facts.group.image == "dledger:test"
    assert facts.older == ()
    assert facts_of(bootstrapped(), unmarked).older == ()


def _plan(group: BrokerGroup, observed: Observed) -> tuple[Action, ...]:
    return plan(facts_of(group, observed), (), fresh_id=FRESH_ID)


def _recorded(group: BrokerGroup, observed: Observed) -> Observed:
    """Return the same once the spec is recorded as accepted, and nothing else was done."""
    made = [each for each in _plan(group, observed) if isinstance(each, Create)]
    kept = {ref: each for ref, each in observed.children.items() if ref[0] != "ControllerRevision"}
    return replace(
        observed, children=kept | {ref_of(each.manifest): each.manifest for each in made}
    )


def test_an_image_that_is_taken_back_gives_way_to_the_one_of_before() -> None:
    """The spec names none again, so the nodes run what they ran when it named none."""
    bad = bootstrapped({"image": "dledger:bad"})

    observed = _recorded(bad, converged(bootstrapped()))

    assert facts_of(bad, observed).group.image == "dledger:bad"
    assert facts_of(bootstrapped(), observed).group.image == "dledger:test"
    assert facts_of(bootstrapped(), _recorded(bootstrapped(), observed)).older == ()


def test_a_group_that_always_named_its_image_gets_the_default_once_it_names_none() -> None:
    """That of the operator that runs then."""
    named = converged(bootstrapped({"image": "dledger:7"}))

    assert facts_of(bootstrapped(), named).group.image == "dledger:test"


def test_progress_says_how_far_it_is_and_what_is_next() -> None:
    """Or what the next one waits for."""
    going = _row(_facts(_seen((0, 1))), "Progressing")
    last = _row(_facts(_seen((0,))), "Progressing")
    waiting = _row(_facts(_with(_seen((0, 1)), 2, ready=False)), "Progressing")

    assert (going["status"], going["reason"]) == ("True", Reason.ROLLING_OUT)
    assert going["message"] == "1 of 3 pods run the new template; next orders-1"
    assert (
        last["message"] == "2 of 3 pods run the new template; next orders-0, after it handed over"
    )
    assert waiting["message"].endswith("next orders-1, which waits: not ready: orders-2")


HALTS: dict[str, tuple[dict[str, Any], str]] = {
    "no image": ({"stopped": True, "trouble": PULL}, f"orders-2 does not run: {PULL}"),
    "too old": ({"stopped": True, "too_old": "level 3 is needed"}, "orders-2: level 3 is needed"),
    "too long": (
        {"created_at": "2031-05-06T07:03:00Z"},
        "orders-2 did not come up in 300 s: it is not ready, or not in sync",
    ),
}


@pytest.mark.parametrize("name", HALTS)
def test_a_pod_that_does_not_come_up_halts_the_rollout_and_is_named(name: str) -> None:
    """Nothing else is restarted; both conditions say why."""
    changes, said = HALTS[name]
    facts = _facts(_with(_without_node(_seen((0, 1)), 2), 2, **changes))

    progressing, degraded = _row(facts, "Progressing"), _row(facts, "Degraded")

    assert (progressing["status"], progressing["reason"]) == ("False", Reason.ROLLOUT_HALTED)
    assert progressing["message"].endswith(f"no other is restarted: {said}")
    assert degraded["status"] == "True"
    assert said in degraded["message"]
    assert isinstance(rollout(facts), Held)
    assert healing(facts) is None


def test_a_pod_gets_its_time_to_come_up() -> None:
    """A new image has to be pulled, and a log to be recovered."""
    late = {"created_at": "2031-05-06T07:03:10Z"}

    found = _row(_facts(_with(_without_node(_seen((0, 1)), 2), 2, **late)), "Progressing")

    assert found["reason"] == Reason.ROLLING_OUT


def test_a_pod_that_came_up_and_whose_machine_is_lost_is_not_one_that_never_did() -> None:
    """Nothing is wrong with its template, and no other group has to wait until it is back."""
    lost = {"created_at": "2031-05-06T06:00:00Z", "was_ready": True}
    observed = _with(_without_node(_seen((0, 1)), 2), 2, **lost)

    found = _row(_facts(observed), "Progressing")

    assert found["reason"] == Reason.ROLLING_OUT
    assert "orders-1, which waits: not in sync: orders-2" in found["message"]
    answers = _with(_seen((0, 1)), 2, ready=False, **lost)
    assert _row(_facts(answers), "Progressing")["reason"] == Reason.ROLLOUT_HALTED


def test_a_pod_that_cannot_be_created_halts_the_rollout() -> None:
    """Such as for a quota, or an account that does not exist."""
    gone = {name: pod for name, pod in _seen((0, 1)).pods.items() if name != "orders-2"}
    observed = _seen(pods=gone, uncreated={"orders-2": "no such account"})

    found = _row(_facts(observed), "Progressing")

    assert found["reason"] == Reason.ROLLOUT_HALTED
    assert "orders-2 cannot be created: no such account" in found["message"]


def _told(before: dict[str, Any], observed: Observed) -> tuple[dict[str, Any], list[str]]:
    after = status(_facts(observed, **before), now=NOW)
    return after, [f"{each.reason}" for each in events(before, after)]


def test_a_rollout_ends_once_the_last_pod_is_back_and_is_told_once() -> None:
    """Not while it starts; and a halt is told, too, and its end."""
    stuck = _with(_without_node(_seen((0, 1)), 2), 2, stopped=True, trouble=PULL)
    starting = _without_node(_seen(()), 0)
    began, _ = _told({}, _seen((0, 1, 2)))
    halt, said = _told(began, stuck)
    assert EventReason.ROLLOUT_HALTED in said
    again, said = _told(halt, stuck)
    assert said == []
    coming, said = _told(again, starting)
    assert EventReason.ROLLOUT_COMPLETE not in said
    assert "not ready yet: orders-0" in next(
        row["message"] for row in coming["conditions"] if row["type"] == "Progressing"
    )
    ended, said = _told(coming, _seen(()))
    assert EventReason.ROLLOUT_COMPLETE in said
    assert _told(ended, _seen(()))[1] == []


def test_a_pod_without_a_certificate_in_its_secret_is_not_restarted() -> None:
    """It could not start, and be one voter less until it is made."""
    lacking = Certificates(known=True, lacking=("orders-2",))
    held = rollout(facts_of(NEW, _seen(certificates=lacking)))

    assert held == Held("orders-2", "its certificate is not made yet: it could not start")
