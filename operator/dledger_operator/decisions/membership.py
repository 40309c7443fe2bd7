"""Which member is to be replaced, and by what; whose disks are lost. Pure; asked by plans.

A pod that comes up with an empty disk under the name of a member is let in by one change of the
members: its new node id comes as a learner, and the old one goes. The learner becomes a voter by
itself once it has caught up. Until then the voters are one fewer, so the gate asks that all others
stand.
"""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.decisions.bootstrap_state import Bootstrapped
from dledger_operator.decisions.disruptions import Held, ReplaceClaim, ReplaceMember
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.gate import Replace, hold
from dledger_operator.observed.observed import Volume


def replacement(facts: Facts) -> ReplaceMember | Held | None:
    """Return which member is to be replaced, the first by name; None if none has to be.

    One that is to leave in any case is not.
    """
    if not isinstance(facts.bootstrap, Bootstrapped):
        return None
    observed, replaced = facts.observed, facts.bootstrap.replaced
    pod = next((name for name in replaced if name not in facts.leaving), "")
    if not pod:
        return None
    if why := unfit(facts, pod) or hold(facts, Replace(out_of_order(facts))):
        return Held(pod, why)
    assert observed.leader is not None  # noqa: S101 - `hold` has seen it
    return ReplaceMember(
        pod=pod,
        member_id=observed.nodes[pod].node_id,
        old_id=next(str(m.member.id) for m in observed.membership if m.member.name == pod),
        address=names.peer_address(facts.group.namespace, facts.group.name, pod),
        leader=observed.leader[0],
        term=observed.leader[1].term,
    )


def lost_disks(facts: Facts) -> tuple[str, ...]:
    """Return the members whose disks are gone for good, and that do not run without them.

    And the pods that are to become members; those that only have to go need no disk.
    """
    observed = facts.observed
    members = {row.member.name for row in observed.membership}
    return tuple(
        name
        for name in facts.wanted
        if (name in facts.asked or name in members)
        and names.claim_of(name) in observed.lost
        and name not in facts.in_sync
        and name not in observed.nodes
    )


def out_of_order(facts: Facts) -> frozenset[str]:
    """Return the members that are to be replaced: their disks are lost, or empty already."""
    found = facts.bootstrap
    replaced = found.replaced if isinstance(found, Bootstrapped) else ()
    return frozenset({*replaced, *lost_disks(facts)})


def given_up(facts: Facts, name: str, volume: Volume) -> ReplaceClaim | None:
    """Return the end of a member's claim; None if that is done, and its pod only has to end."""
    pod = facts.observed.pods.get(name)
    if volume.terminating and (pod is None or pod.terminating):
        return None
    return ReplaceClaim(
        claim=volume.name,
        uid=volume.uid,
        volume=volume.volume,
        pod=name,
        pod_uid=pod.uid if pod else "",
    )


def learning(facts: Facts) -> tuple[str, ...]:
    """Return the pods that are let in again after a loss, and have not caught up yet."""
    rows = facts.observed.membership
    learners = {row.member.name for row in rows if not row.voter} - set(facts.entering)
    return tuple(name for name in facts.asked if name in learners)


def unfit(facts: Facts, name: str) -> str:
    """Return why a pod with an empty disk cannot become a member; empty if it can."""
    node, pod = facts.observed.nodes[name], facts.observed.pods.get(name)
    if refused := facts.observed.refusals.get(("Member", name)):
        return f"the leader refused it: {refused}"
    if name not in facts.wanted or pod is None or pod.terminating:
        return "its pod is going away"
    if node.told_group_id != facts.group.group_id:
        return f"it was started for group {node.told_group_id or '(none)'}; delete the pod"
    if node.recovered_to:
        return "its disk has a log restored from a backup"
    return ""
