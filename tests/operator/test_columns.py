"""What `kubectl get bg` shows: who leads, who is in sync, what is wrong, and of when it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.turns import ONE_AT_A_TIME
from dledger_operator.observed.certificates import Certificates
from dledger_operator.observed.observed import Observed
from dledger_operator.status.seen import LEAST_S, WRITES_A_SECOND, is_due, seen_every_s
from dledger_operator.status.status import status, worth_writing
from tests.house.sources import ROOT
from tests.operator.samples import (
    NOW,
    bootstrapped,
    converged,
    group,
    joined,
    member,
    members,
    pods,
)

NEVER = float("inf")


def _status(observed: Observed, *, overdue: bool = True, **recorded: Any) -> dict[str, Any]:
    facts = facts_of(bootstrapped(**recorded), observed)
    return status(replace(facts, overdue=overdue and not facts.is_whole), now=NOW)


def _seen(**changes: Any) -> Observed:
    return converged(bootstrapped(), **changes)


def _condition(found: dict[str, Any], kind: str) -> tuple[str, str, str]:
    row = next(row for row in found["conditions"] if row["type"] == kind)
    return row["status"], row["reason"], row["message"]


DOWN = _seen(nodes={}, pods=pods(0, 1, 2, ready=False, trouble="CrashLoopBackOff: Error"))
CUT_OFF = _seen(nodes={})
"""The operator is, and not the group: its pods are ready."""


def test_a_total_outage_is_told_with_what_each_pod_suffers_from() -> None:
    """Found: S9. It was Unknown, in the words of a group that may well be fine."""
    found = _status(DOWN)

    assert _condition(found, "Degraded")[:2] == ("True", Reason.NODES_DOWN)
    assert "orders-0 (CrashLoopBackOff: Error), orders-1" in _condition(found, "Degraded")[2]
    assert _condition(found, "Available")[:2] == ("False", Reason.NO_LEADER)
    assert _condition(_status(CUT_OFF), "Degraded")[:2] == ("Unknown", Reason.NODES_UNREACHABLE)
    starting = _condition(_status(DOWN, overdue=False), "Degraded")
    assert starting[:2] == ("False", Reason.STARTING)


STUCK = "ImagePullBackOff: no such image"
GONE = {("Secret", "orders-tls"): "does not exist"}
TLS = {"tls": {"enabled": True, "secretName": "orders-tls"}}
NONE_STARTS = _seen(
    nodes={},
    pods=pods(
        *(0, 1, 2),
        ready=False,
        stopped=True,
        trouble=STUCK,
        idle_since="2031-05-06T07:00:00Z",
    ),
)
ROLLING = [{"type": "Progressing", "status": "True", "reason": "RollingOut"}]


@pytest.mark.parametrize(
    ("known", "observed", "words"),
    [
        ([], NONE_STARTS, f"orders-0 (does not run since 2031-05-06T07:00:00Z; {STUCK})"),
        ([], replace(NONE_STARTS, absent=GONE), "Secret orders-tls does not exist, and spec.tls"),
        (
            [],
            replace(NONE_STARTS, refusals={("ConfigMap", "orders-config"): "the name is taken"}),
            "; ConfigMap orders-config: the name is taken",
        ),
        (ROLLING, NONE_STARTS, "the rollout to its newest template is halted"),
        (
            [],
            replace(NONE_STARTS, lost={"data-orders-1": "machine m-1 is gone"}),
            "the disk of orders-1 is gone: machine m-1 is gone",
        ),
    ],
    ids=["no start", "no Secret", "no ConfigMap", "no rollout", "no disk"],
)
def test_a_total_outage_is_one_whatever_keeps_the_pods_from_starting(
    known: list[dict[str, Any]], observed: Observed, words: str
) -> None:
    """Its reason says that nothing is written, and its message what to put right."""
    facts = facts_of(bootstrapped(TLS, conditions=known), observed, now=NOW)

    found = _condition(status(replace(facts, overdue=True), now=NOW), "Degraded")

    assert found[:2] == ("True", Reason.NODES_DOWN)
    assert words in found[2]


def test_a_lost_majority_is_told_with_the_disks_that_are_gone_and_what_is_left_to_do() -> None:
    """Its sentence named two pods, and neither that their disks are gone nor ForceNewGroup."""
    gone = {f"data-orders-{n}": f"machine m-{n} is gone" for n in (1, 2)}
    seen = _seen(nodes=joined(0, leader=None), pods=pods(0), lost=gone)

    status_, reason, message = _condition(_status(seen), "Degraded")

    assert (status_, reason) == ("True", Reason.MAJORITY_LOST)
    assert "the disk of orders-1 is gone: machine m-1 is gone" in message
    assert "ForceNewGroup" in message


def test_an_authority_that_cannot_sign_is_why_the_pods_of_a_new_group_do_not_start() -> None:
    """They wait for a Secret that the operator makes; what the spec names was told nowhere."""
    unsigned = Certificates(fault="Secret typo does not exist", lacking=("orders-0", "orders-1"))
    seen = replace(NONE_STARTS, certificates=unsigned)
    said = "spec.peerTls.caSecretName: Secret typo does not exist; orders-0, orders-1 cannot start"

    new = _condition(status(facts_of(group(), seen, now=NOW), now=NOW), "Degraded")
    down = _condition(_status(seen), "Degraded")

    assert new[:2] == ("True", Reason.AUTHORITY_INVALID)
    assert down[1] == Reason.NODES_DOWN
    assert said in new[2]
    assert said in down[2]


def _degraded_by(reason: Reason) -> list[dict[str, Any]]:
    row = {"type": "Degraded", "status": "True", "reason": reason, "message": "it was"}
    return [{**row, "lastTransitionTime": NOW}]


TWO_LEFT = (*members(0, 1), member("id-2", "orders-2", connected=False))
CUT = _seen(nodes=joined(0, 1, members=TWO_LEFT))


def test_a_topic_that_is_refused_hides_no_member_that_is_lost() -> None:
    """It may be refused for months."""
    seen = replace(CUT, refusals={("Topic", "a"): "no"})

    assert _condition(_status(seen), "Degraded")[1] == Reason.MEMBER_NOT_CONNECTED
    calm = _status(_seen(refusals={("Topic", "a"): "no"}))
    assert _condition(calm, "Degraded")[1] == Reason.TOPIC_REFUSED


@pytest.mark.parametrize("reason", [Reason.CLOCK_APART, Reason.CERTIFICATE_EXPIRING])
def test_a_restart_is_given_its_time_also_where_something_else_is_wrong(reason: Reason) -> None:
    """Each pod of a rollout was a Warning in a group with a certificate that ends soon."""
    known = _degraded_by(reason)

    found = _status(CUT, overdue=False, conditions=known)
    before = _status(CUT, overdue=False, conditions=_degraded_by(Reason.MEMBER_BEHIND))

    assert _condition(found, "Degraded")[1] == Reason.STARTING
    assert _condition(before, "Degraded")[1] == Reason.MEMBER_NOT_CONNECTED
    clock = replace(CUT, nodes={**CUT.nodes, **joined(1, clock_ahead_ms=100 * 3_600_000)})
    both = _status(clock, overdue=False, conditions=known)
    assert _condition(both, "Degraded")[1] == Reason.CLOCK_APART


@pytest.mark.parametrize(
    ("observed", "leader", "in_sync"),
    [
        (_seen(), "orders-0", "3/3"),
        (_seen(nodes=joined(0, 1)), "orders-0", "3/3"),
        (_seen(nodes=joined(1, 2)), "orders-0", "2/3"),
        (_seen(nodes=joined(0, 1, 2, leader=None)), "", "0/3"),
        (CUT_OFF, "orders-0", ""),
        (DOWN, "", "0/3"),
        (_seen(nodes={}, pods={}), "", "0/3"),
    ],
)
def test_a_leader_is_shown_only_while_one_leads(
    observed: Observed, leader: str, in_sync: str
) -> None:
    """Found: S11. A pod was shown that had not led for minutes; what is unknown is not shown."""
    found = _status(observed)

    assert (found["leader"], found["votersInSync"]) == (leader, in_sync)


def test_a_pod_that_is_being_deleted_is_not_ready_in_the_number_nor_in_the_words() -> None:
    """Found: S11. READY 2 stood beside `3 of 3 replicas are ready`."""
    gone = {**pods(0, 1), **pods(2, terminating=True)}

    found = _status(_seen(pods=gone))

    assert found["readyReplicas"] == 2
    assert _condition(found, "Ready")[:2] == ("False", Reason.REPLICAS_NOT_READY)


def test_a_status_without_news_is_written_when_it_gets_old_and_not_before() -> None:
    """Or nobody could tell a table of now from one that an operator left behind."""
    before = _status(_seen())
    later = {**before, "seenAt": "2031-05-06T07:09:08Z"}
    known = {"since_write_s": 59.0}

    assert not worth_writing(before, later, **known)
    assert not worth_writing(before, later, **known, seen_every_s=60)
    assert worth_writing(before, later, **known, seen_every_s=59)
    assert worth_writing({**before, "seenAt": ""}, later, **known, seen_every_s=60)


def test_whose_turn_it_is_is_written_when_a_status_gets_old_and_not_at_each_turn() -> None:
    """Five hundred groups would write it for each of the others; a halt is news to all."""
    waiting = [
        f"1 of 3 pods run the new template; waits for shop/{name}"
        for name in (f"a: {ONE_AT_A_TIME}", f"b: {ONE_AT_A_TIME}", "b, whose rollout is halted")
    ]
    first, second, halted = (
        {
            **_status(_seen()),
            "conditions": [{"type": "Progressing", "reason": "WaitingForTurn", "message": said}],
        }
        for said in waiting
    )

    assert not worth_writing(first, second, since_write_s=3600)
    assert worth_writing(first, halted, since_write_s=0)
    later = {**second, "seenAt": "2031-05-06T07:09:30Z"}
    assert worth_writing(first, later, since_write_s=81, seen_every_s=60)


@pytest.mark.parametrize(
    ("before", "every_s", "due"),
    [("", NEVER, True), (NOW, 60, False), ("2031-05-06T07:08:10Z", 60, True)],
)
def test_a_clock_that_went_back_holds_up_no_write(before: str, every_s: float, due: bool) -> None:
    """A status of the future would stay for as long as the clock was wrong."""
    assert is_due(before, NOW, every_s=every_s) is due


@pytest.mark.parametrize("groups", [1, 50, 500, 2000])
def test_all_groups_share_one_write_a_second(groups: int) -> None:
    """However many there are; and those written together do not stay together."""
    every = [seen_every_s(groups, f"uid-{n}") for n in range(groups)]

    assert sum(1 / each for each in every) <= WRITES_A_SECOND * 1.2
    assert all(each >= 0.75 * LEAST_S for each in every)
    assert max(every) <= max(LEAST_S, groups) * 1.25
    assert groups == 1 or max(every) > 1.4 * min(every)


def test_the_table_has_what_is_wrong_and_of_when_it_is() -> None:
    """Found: S11. Without `-o wide`."""
    crd = yaml.safe_load((ROOT / "crds/brokergroup.yaml").read_text("utf-8"))
    rows = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [row["name"] for row in rows if not row.get("priority")]

    assert shown == [
        "Replicas",
        "Ready",
        "Sync",
        "Leader",
        "Available",
        "Degraded",
        "Reason",
        "Valid",
        "Seen",
        "Age",
    ]
