"""How a group gets the number of members that its spec asks for, one change at a time. Pure.

Out: the StatefulSet has its new pods already (`extent.pods_now`); each with an empty disk becomes a
learner, which the leader makes a voter by itself, and then the next. In: members leave from the
top, those that do not count in a quorum first, a leader after it handed over; then their pods go.
Nothing of it is remembered: a change of the spec midway is met by what is seen.

A removed member's node id can never return, and its claim is kept. So the claim is marked before,
and a marked one is given up before its pod joins again.
"""

from __future__ import annotations

from dledger.common.status import NodeStatus
from dledger_operator.api import names
from dledger_operator.decisions.disruptions import (
    AddMember,
    Held,
    RemoveMember,
    ReplaceClaim,
    RetirePods,
    TransferLeader,
)
from dledger_operator.decisions.extent import highest
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.gate import Enter, Leave, Spare, hold, refused, standing
from dledger_operator.decisions.membership import given_up, unfit
from dledger_operator.decisions.restarts import hand_over
from dledger_operator.observed.observed import Volume
from dledger_operator.resources.statefulset import pods_asked

Step = AddMember | RemoveMember | RetirePods | ReplaceClaim | TransferLeader
LEAVES = "it leaves the group"


def scaling(facts: Facts) -> Step | Held | None:
    """Return the next step, or why it waits; None if there is none, or if a pod has to start."""
    if not facts.group.bootstrapped or not facts.observed.membership:
        return None
    return _retire(facts) or _leave_broken(facts) or _enter(facts) or _leave(facts)


def _leave_broken(facts: Facts) -> RemoveMember | None:
    """Have a member go that does not stand, before others come: who comes would wait for it."""
    stand = standing(facts)
    if not facts.entering or all(name in stand for name in facts.leaving):
        return None
    found = _leave(facts)
    return found if isinstance(found, RemoveMember) else None


def _retire(facts: Facts) -> RetirePods | Held | None:
    """Have pods go whose members have left."""
    group, observed = facts.group, facts.observed
    built = observed.children.get(("StatefulSet", group.name))
    if built is None or "deletionTimestamp" in built["metadata"]:
        return None
    members = (row.member.name for row in observed.membership)
    stay, asked = max(group.spec.replicas, 1 + highest(group, members)), pods_asked(built)
    if asked <= stay:
        return None
    pod, uid = names.pod(group.name, asked - 1), built["metadata"].get("uid", "")
    if why := hold(facts, Spare()) or refused(facts, pod):
        return Held(pod, why)
    return RetirePods(pod=pod, stateful_set=group.name, uid=uid, pods=stay)


def _enter(facts: Facts) -> AddMember | ReplaceClaim | Held | None:
    """Have the next pod join, once no other one learns."""
    observed = facts.observed
    known = {row.member.name for row in observed.membership}
    for pod in facts.entering:
        if pod in known:
            return None
        volume, node = observed.volumes.get(names.claim_of(pod)), observed.nodes.get(pod)
        if volume is not None and volume.removed in _disk(node, volume):
            return _give_up(facts, pod, volume)
        if node is None or node.group_id:
            continue
        if why := unfit(facts, pod) or hold(facts, Enter()):
            return Held(pod, why)
        return _add(facts, pod, node.node_id)
    return None


def _disk(node: NodeStatus | None, volume: Volume) -> tuple[str, ...]:
    """Return the node ids that the disk of a marked claim may have; none if it is not marked.

    The node that answers knows better than the mark: its member's disk may have been lost before.
    """
    if not volume.removed:
        return ()
    return (node.node_id,) if node is not None else (volume.removed,)


def _add(facts: Facts, pod: str, member_id: str) -> AddMember:
    leader = facts.observed.leader
    assert leader is not None  # noqa: S101 - `hold` has seen it
    return AddMember(
        pod=pod,
        member_id=member_id,
        address=names.peer_address(facts.group.namespace, facts.group.name, pod),
        leader=leader[0],
        term=leader[1].term,
    )


def _give_up(facts: Facts, name: str, volume: Volume) -> ReplaceClaim | Held | None:
    """Return the end of a claim whose disk has left the group, which its pod cannot join with."""
    if why := hold(facts, Spare()) or refused(facts, name):
        return Held(name, why)
    return given_up(facts, name, volume)


def _leave(facts: Facts) -> RemoveMember | TransferLeader | Held | None:
    """Have the next member leave: learners and those that do not stand first, else from the top."""
    if not facts.leaving:
        return None
    rows = {row.member.name: row for row in facts.observed.membership}
    stand = standing(facts)
    name = min(facts.leaving, key=lambda one: (rows[one].voter, one in stand))
    if why := hold(facts, Leave(name)) or refused(facts, name):
        return Held(name, why)
    leader = facts.observed.leader
    assert leader is not None  # noqa: S101 - `hold` has seen it
    if name == leader[0]:
        staying = [one for one in facts.asked if one in stand]
        return hand_over(facts, LEAVES, to=staying[0]) if staying else Held(name, "none stays")
    member_id = str(rows[name].member.id)
    claim = _to_mark(facts, name, member_id)
    if isinstance(claim, Held):
        return claim
    return RemoveMember(
        pod=name,
        member_id=member_id,
        leader=leader[0],
        term=leader[1].term,
        claim=claim.name if claim else "",
        claim_uid=claim.uid if claim else "",
    )


def _to_mark(facts: Facts, name: str, member_id: str) -> Volume | Held | None:
    """Return the claim with a member's disk; None if that is lost."""
    node, claim = facts.observed.nodes.get(name), names.claim_of(name)
    if node is not None and node.node_id != member_id:
        return None
    volume = facts.observed.volumes.get(claim)
    if volume is None and name in facts.observed.pods:
        return Held(name, f"its claim {claim} is not seen")
    return volume
