"""Scaling, step by step: which member comes or goes next, what it waits for, and what is said."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from dledger.common.status import MemberStatus, NodeStatus
from dledger_operator.api import names
from dledger_operator.api.spec import Manifest
from dledger_operator.decisions.actions import Apply, Forget, Repair
from dledger_operator.decisions.disruptions import (
    AddMember,
    Held,
    RemoveMember,
    ReplaceClaim,
    RetirePods,
    TransferLeader,
)
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.decisions.scaling import scaling
from dledger_operator.observed.observed import Observed, Volume, ref_of
from dledger_operator.resources import desired
from dledger_operator.resources.statefulset import budget, pods_asked
from dledger_operator.status.conditions import conditions
from tests.operator.samples import (
    FRESH_ID,
    GROUP_ID,
    NOW,
    PLATFORM,
    bootstrapped,
    joined,
    members,
    node,
    pods,
)

GROWING = [{"type": "Progressing", "status": "True", "reason": "ScalingOut"}]


def _facts(
    asked: int,
    built: int,
    rows: tuple[MemberStatus, ...],
    *,
    leader: int = 0,
    changes: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    lost: tuple[int, ...] = (),
) -> Facts:
    """Return a group of which *asked* are asked for, with pods and members; *lost* are down."""
    of = bootstrapped({"replicas": asked}, **(status or {}))
    told = {ref_of(one): one for one in desired(replace(of, kept_pods=built), PLATFORM)}
    names_in = {row.member.name for row in rows}
    nodes: dict[str, NodeStatus] = {}
    for n in range(built):
        if n in lost:
            continue
        if f"orders-{n}" in names_in:
            nodes |= joined(n, leader=leader, members=rows, leader_id=f"id-{leader}")
        else:
            nodes[f"orders-{n}"] = node(f"id-{n}", told_group_id=GROUP_ID)
    observed = Observed(
        children=told,
        pods=pods(*range(built), leader=leader),
        volumes={c.name: c for c in map(_volume, range(built))},
        nodes=nodes,
    )
    return facts_of(of, replace(observed, **(changes or {})))


def _volume(ordinal: int, removed: str = "") -> Volume:
    claim = names.claim("orders", ordinal)
    return Volume(name=claim, size="10Gi", uid=f"uid-{ordinal}", volume="pv", removed=removed)


def _rows(*voters: int, learners: tuple[int, ...] = (), lost: tuple[int, ...] = ()) -> Any:
    rows = [replace(row, voter=True) for row in members(*voters)]
    rows += [replace(row, voter=False, role="learner") for row in members(*learners)]
    gone = {f"id-{n}" for n in lost}
    return tuple(replace(r, connected=str(r.member.id) not in gone) for r in rows)


def _said(facts: Facts, kind: str = "Progressing") -> tuple[str, str, str]:
    (row,) = (one for one in conditions(facts, now=NOW) if one["type"] == kind)
    return row["status"], row["reason"], row["message"]


def _set(facts: Facts) -> Manifest | None:
    """Return the StatefulSet that the plan applies, if it does."""
    planned = plan(facts, desired(facts.group, PLATFORM), fresh_id=FRESH_ID)
    made = [one.manifest for one in planned if isinstance(one, Apply | Repair)]
    return next((one for one in made if one["kind"] == "StatefulSet"), None)


def test_the_pods_of_new_members_come_first() -> None:
    """All at once: they start empty, and take no part."""
    facts = _facts(5, 3, _rows(0, 1, 2))

    made = _set(facts)

    assert made is not None
    assert (made["spec"]["replicas"], pods_asked(made)) == (5, 5)
    assert scaling(facts) is None
    status, reason, message = _said(facts)
    assert (status, reason) == ("True", "ScalingOut")
    assert message == (
        "3 of 5 members vote; no new member yet: orders-3 (no pod), orders-4 (no pod)"
    )
    assert _said(facts, "Degraded")[0] == "False"


def test_new_pods_join_one_at_a_time_from_the_lowest() -> None:
    """Each by the leader, as a learner, under its own name and node id."""
    found = scaling(_facts(5, 5, _rows(0, 1, 2)))

    assert isinstance(found, AddMember)
    assert (found.pod, found.member_id, found.leader) == ("orders-3", "id-3", "orders-0")
    assert found.address == names.peer_address("shop", "orders", "orders-3")


def test_the_next_one_waits_until_the_last_votes() -> None:
    """Not a failure: the group is as it should be on its way."""
    facts = _facts(5, 5, _rows(0, 1, 2, learners=(3,)), status={"conditions": GROWING})

    assert scaling(facts) is None
    assert _said(facts)[2] == "3 of 5 members vote; orders-3 is catching up"
    assert _said(facts, "Degraded") == ("False", "AsExpected", "nothing is known to be wrong")


def test_a_new_pod_that_does_not_start_lets_another_one_in() -> None:
    """Its machine may be full."""
    found = scaling(_facts(5, 5, _rows(0, 1, 2), lost=(3,)))

    assert isinstance(found, AddMember)
    assert found.pod == "orders-4"


def test_nobody_joins_while_a_voter_is_not_in_sync() -> None:
    """And it is said who."""
    facts = _facts(5, 5, _rows(0, 1, 2, lost=(2,)), lost=(2,))

    assert scaling(facts) == Held("orders-3", "not in sync: orders-2")
    assert _said(facts)[2].endswith("; orders-3 waits: not in sync: orders-2")


def test_a_pod_of_another_group_does_not_join() -> None:
    """It was started before the id was recorded."""
    stranger = node("id-3", told_group_id="other")
    facts = _facts(5, 5, _rows(0, 1, 2))
    nodes = {**facts.observed.nodes, "orders-3": stranger}

    found = scaling(_facts(5, 5, _rows(0, 1, 2), changes={"nodes": nodes}))

    assert isinstance(found, Held)
    assert "it was started for group other" in found.why


def test_a_claim_of_a_removed_member_is_given_up_before_its_pod_joins() -> None:
    """Its node id can never return, and its pod does not start with it."""
    marked = {c.name: c for c in (_volume(3, removed="id-3"), _volume(4))}
    facts = _facts(5, 5, _rows(0, 1, 2), changes={"volumes": marked}, lost=(3,))

    assert scaling(facts) == ReplaceClaim(
        claim="data-orders-3", uid="uid-3", volume="pv", pod="orders-3", pod_uid="pod-3"
    )
    assert "orders-3 gets an empty disk" in _said(facts)[2]
    going = {"data-orders-3": replace(_volume(3, removed="id-3"), terminating=True)}
    some = {name: pod for name, pod in facts.observed.pods.items() if name != "orders-3"}
    changes = {"volumes": going, "pods": some}
    assert scaling(_facts(5, 5, _rows(0, 1, 2), changes=changes, lost=(3,))) is None


def test_a_marked_claim_with_another_disk_is_kept() -> None:
    """The node that answers from it knows better."""
    marked = {c.name: c for c in (_volume(3, removed="an older id"), _volume(4))}

    found = scaling(_facts(5, 5, _rows(0, 1, 2), changes={"volumes": marked}))

    assert isinstance(found, AddMember)


def test_members_leave_from_the_top_and_their_claims_are_marked() -> None:
    """One at a time."""
    facts = _facts(3, 5, _rows(0, 1, 2, 3, 4))

    assert scaling(facts) == RemoveMember(
        pod="orders-4",
        member_id="id-4",
        leader="orders-0",
        term=1,
        claim="data-orders-4",
        claim_uid="uid-4",
    )
    assert _set(facts) is None
    assert _said(facts) == (
        "True",
        "ScalingIn",
        "5 members vote, 3 are asked for; next orders-4",
    )


def test_a_leader_that_is_to_leave_hands_over_to_one_that_stays() -> None:
    """Whoever else is to leave would only hand over again."""
    facts = _facts(1, 3, _rows(0, 1, 2), leader=2)

    found = scaling(facts)

    assert isinstance(found, TransferLeader)
    assert (found.leader, found.to, found.to_id) == ("orders-2", "orders-0", "id-0")
    assert _said(facts)[2].endswith("; next orders-2, after it handed over")


def test_of_two_voters_one_leaves() -> None:
    """The last step from three to one: both are in sync, and one is a majority of one."""
    found = scaling(_facts(1, 2, _rows(0, 1)))

    assert isinstance(found, RemoveMember)
    assert found.pod == "orders-1"


def test_pods_go_once_no_member_is_left_in_them() -> None:
    """Down to the highest that still is one."""
    facts = _facts(1, 3, _rows(0, 1))

    assert scaling(facts) == RetirePods(pod="orders-2", stateful_set="orders", uid="", pods=2)
    assert budget(facts.group)["spec"]["maxUnavailable"] == 1
    assert budget(replace(facts.group, kept_pods=2))["spec"]["maxUnavailable"] == 0


def test_services_of_pods_that_are_gone_go_last() -> None:
    """While a pod is there, clients may use its address."""
    of = bootstrapped()
    facts = _facts(3, 3, _rows(0, 1, 2))
    larger = {ref_of(one): one for one in desired(replace(of, kept_pods=5), PLATFORM)}
    kept = {ref: one for ref, one in larger.items() if ref[0] == "Service"}
    children = {**kept, ("StatefulSet", "orders"): facts.observed.children["StatefulSet", "orders"]}
    facts = _facts(3, 3, _rows(0, 1, 2), changes={"children": children})

    planned = plan(facts, desired(facts.group, PLATFORM), fresh_id=FRESH_ID)

    gone = [one.name for one in planned if isinstance(one, Forget) and one.kind == "Service"]
    assert gone == ["orders-3-client", "orders-4-client"]
    before = _facts(3, 5, _rows(0, 1, 2))
    planned = plan(before, desired(before.group, PLATFORM), fresh_id=FRESH_ID)
    assert not any(isinstance(one, Forget) and one.kind == "Service" for one in planned)


def test_who_is_down_leaves_before_who_is_in_sync() -> None:
    """Else those that are left would have no majority in sync."""
    rows = _rows(0, 1, 2, 3, 4, lost=(1, 2))
    facts = _facts(1, 5, rows, lost=(1, 2))

    found = scaling(facts)

    assert isinstance(found, RemoveMember)
    assert found.pod == "orders-2"


def test_nobody_leaves_whom_the_majority_needs() -> None:
    """Two of four in sync cannot commit, even if another one follows."""
    rows = _rows(0, 1, 2, 3, lost=(3,))
    some = tuple(replace(row, lag=5000) if str(row.member.id) == "id-2" else row for row in rows)
    facts = _facts(1, 4, some, lost=(3,))

    assert facts.in_sync == ("orders-0", "orders-1")
    why = "2 of 4 voters are in sync, too few to lose one"
    assert scaling(facts) == Held("orders-3", why)
    alone = scaling(_facts(1, 3, _rows(2), leader=2, lost=(0, 1)))
    assert alone == Held("orders-2", "1 of 1 voters are in sync, too few to lose one")


def test_nobody_leaves_while_one_that_stays_is_not_in_sync() -> None:
    """Its return comes first."""
    facts = _facts(3, 5, _rows(0, 1, 2, 3, 4, lost=(1,)), lost=(1,))

    assert scaling(facts) == Held("orders-4", "not in sync: orders-1")


def test_a_learner_that_is_not_asked_for_any_more_leaves_at_once() -> None:
    """The direction flipped while it caught up."""
    facts = _facts(3, 5, _rows(0, 1, 2, learners=(3,)), status={"conditions": GROWING})

    found = scaling(facts)

    assert isinstance(found, RetirePods | RemoveMember)
    members_first = scaling(_facts(3, 4, _rows(0, 1, 2, learners=(3,))))
    assert isinstance(members_first, RemoveMember)
    assert members_first.pod == "orders-3"


def test_a_lost_disk_of_one_that_leaves_is_not_replaced() -> None:
    """It leaves as it is, and its claim, which has another disk, is not marked."""
    facts = _facts(3, 5, _rows(0, 1, 2, 3, 4, lost=(4,)))
    nodes = {**facts.observed.nodes, "orders-4": node("new", told_group_id=GROUP_ID)}

    found = scaling(_facts(3, 5, _rows(0, 1, 2, 3, 4, lost=(4,)), changes={"nodes": nodes}))

    assert isinstance(found, RemoveMember)
    assert (found.pod, found.member_id, found.claim) == ("orders-4", "id-4", "")


def test_a_member_whose_claim_is_not_seen_waits() -> None:
    """An unmarked claim of a removed member would keep its pod from joining again."""
    facts = _facts(3, 5, _rows(0, 1, 2, 3, 4), changes={"volumes": {}})

    assert scaling(facts) == Held("orders-4", "its claim data-orders-4 is not seen")


def test_a_statefulset_scaled_by_hand_is_set_back() -> None:
    """By what the operator asked for, not by what somebody else did."""
    facts = _facts(3, 3, _rows(0, 1, 2))
    children = copy.deepcopy(dict(facts.observed.children))
    children["StatefulSet", "orders"]["spec"]["replicas"] = 1

    facts = _facts(3, 3, _rows(0, 1, 2), changes={"children": children})

    assert len(facts.wanted) == 3
    made = _set(facts)
    assert made is not None
    assert made["spec"]["replicas"] == 3


@pytest.mark.parametrize("mark", ["2", "99", "x", ""])
def test_a_hand_edited_count_loses_no_members_pod(mark: str) -> None:
    """The leader's word on the members counts, too."""
    facts = _facts(3, 5, _rows(0, 1, 2, 3, 4))
    children = copy.deepcopy(dict(facts.observed.children))
    annotations = children["StatefulSet", "orders"]["metadata"]["annotations"]
    annotations[names.PODS_ANNOTATION] = mark

    facts = _facts(3, 5, _rows(0, 1, 2, 3, 4), changes={"children": children})

    assert len(facts.wanted) == 5


def test_a_group_whose_statefulset_is_gone_keeps_the_pods_of_its_members() -> None:
    """Its members are known from the last status if no node answers."""
    told = [{"name": f"orders-{n}"} for n in range(5)]
    facts = facts_of(bootstrapped({"replicas": 3}, members=told), Observed())

    assert len(facts.wanted) == 5


def test_a_paused_group_is_not_scaled_and_says_so() -> None:
    """Its pods stay as they are."""
    of = bootstrapped({"replicas": 3, "paused": True})
    seen = _facts(3, 5, _rows(0, 1, 2, 3, 4)).observed
    facts = facts_of(of, seen)

    assert plan(facts, desired(facts.group, PLATFORM), fresh_id=FRESH_ID) == ()
    assert _said(facts)[2].endswith("; orders-4 stays for now: the group is paused")
