"""Whether members may come, go or be replaced now, and which is. Pure; asked by plans.

A pod that comes up with an empty disk under the name of a member is let in by one change of the
members: its new node id comes as a learner, and the old one goes. The learner becomes a voter by
itself once it has caught up. Until then the voters are one fewer, so the gate asks that all others
are in sync.
"""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.decisions.bootstrap_state import Bootstrapped
from dledger_operator.decisions.disruptions import Held, ReplaceClaim, ReplaceMember
from dledger_operator.decisions.facts import Facts
from dledger_operator.observed.observed import Volume


def change_held(facts: Facts, leaving: frozenset[str]) -> str:
    """Return why the members of a group may not be changed now; empty if they may.

    Every voter that stays must be in sync, which has to be a majority of the voters before and of
    those after; and no other change may be under way.

    Args:
        facts: What is seen.
        leaving: The names of members that are out of order, and are to leave.
    """
    return _majority_lost(facts, leaving) or unsettled(facts) or _quorum_held(facts, leaving)


def _majority_lost(facts: Facts, leaving: frozenset[str]) -> str:
    """Return that too few disks are left to change anything by; empty if a majority is."""
    voters = [row.member.name for row in facts.observed.membership if row.voter]
    left = [name for name in voters if name not in leaving]
    if 2 * len(left) > len(voters):
        return ""
    return (
        f"the disks of {len(left)} of {len(voters)} voters are left, no majority; a "
        "BrokerOperation ForceNewGroup shows what is left, and can make that the group"
    )


def removal_held(facts: Facts, name: str) -> str:
    """Return why a member that the spec does not ask for may not leave now; empty if it may.

    All voters that stay for good must be in sync, whatever is wrong with others that are to leave;
    and there must be a majority in sync of the voters before, and of those after. A learner has no
    say, so that it may go at any time.
    """
    rows = facts.observed.membership
    known = [row.member.name for row in rows]
    voters = [row.member.name for row in rows if row.voter]
    if why := unsettled(facts):
        return why
    if len(set(known)) < len(known):
        return "another change of the members is under way: not over"
    if name not in voters:
        return ""
    learners = sorted(set(known) - set(voters) - set(facts.leaving))
    if learners:
        return f"another change of the members is under way: {', '.join(learners)}"
    return _not_without(facts, name, voters)


def _not_without(facts: Facts, name: str, voters: list[str]) -> str:
    """Return why the voters but for one do not carry the group; empty if they do."""
    apart = [one for one in voters if one not in facts.leaving and one not in facts.in_sync]
    if apart:
        return f"not in sync: {', '.join(apart)}"
    there = [one for one in voters if one in facts.in_sync]
    left = [one for one in there if one != name]
    if 2 * len(there) > len(voters) and 2 * len(left) > len(voters) - 1:
        return ""
    return f"{len(there)} of {len(voters)} voters are in sync, too few to lose one"


def unsettled(facts: Facts) -> str:
    """Return why a group is not to be touched at all; empty if it may be."""
    leader = facts.observed.leader
    reasons = (
        (facts.group.spec.paused, "the group is paused"),
        (not facts.group.bootstrapped, "the group is not founded"),
        (bool(facts.problems) and not facts.is_kept, "the spec is refused"),
        (not isinstance(facts.bootstrap, Bootstrapped), "the disks do not agree about their group"),
        (
            leader is None or leader[0] != facts.leader,
            "no leader answers that a majority follows",
        ),
    )
    return next((why for applies, why in reasons if applies), "")


def _quorum_held(facts: Facts, leaving: frozenset[str]) -> str:
    """Return why the voters that stay cannot carry a change; empty if they can."""
    rows = facts.observed.membership
    known = [row.member.name for row in rows]
    learning = {row.member.name for row in rows if not row.voter}
    learners = sorted(learning - leaving - set(facts.leaving))
    if learners or len(set(known)) < len(known):
        return f"another change of the members is under way: {', '.join(learners) or 'not over'}"
    staying = [row.member.name for row in rows if row.voter and row.member.name not in leaving]
    apart = [name for name in staying if name not in facts.in_sync]
    return f"not in sync: {', '.join(apart)}" if apart else ""


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
    if why := unfit(facts, pod) or change_held(facts, out_of_order(facts)):
        return Held(pod, why)
    assert observed.leader is not None  # noqa: S101 - `change_held` has seen it
    return ReplaceMember(
        pod=pod,
        member_id=observed.nodes[pod].node_id,
        old_id=next(str(m.member.id) for m in observed.membership if m.member.name == pod),
        address=names.peer_address(facts.group.namespace, facts.group.name, pod),
        leader=observed.leader[0],
        term=observed.leader[1].term,
    )


def lost_disks(facts: Facts) -> tuple[str, ...]:
    """Return the members whose disks are gone for good, and that do not run without them."""
    observed = facts.observed
    return tuple(
        name
        for name in facts.wanted
        if names.claim_of(name) in observed.lost
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
