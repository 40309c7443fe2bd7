"""How a group goes on that lost the majority of its disks: from one survivor, when told to. Pure.

Nothing here happens by itself: an operation with the group's id typed in asks for it. First the
survivor becomes the only member; then the claims of all others are given up, whose node ids are
removed for good; then pods with empty disks join, as in every group that grows (`scaling`). Where
that stands is seen from the nodes and claims, so each step can be interrupted and repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dledger.common.status import NodeStatus
from dledger_operator.api import names
from dledger_operator.api.brokeroperation import ForceSpec
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import Json, Manifest
from dledger_operator.decisions.disruptions import (
    Disruption,
    ForceGroup,
    Held,
)
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.gate import refused
from dledger_operator.decisions.membership import given_up
from dledger_operator.decisions.outcomes import Begun, Done, Going, Outcome, Rejected, Waits

ADVICE: Final = (
    "compare with the backups first; to confirm, create another BrokerOperation with "
    "spec.forceNewGroup.groupId set to the group's id"
)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What would be done, were it confirmed."""

    message: str
    record: Json


def survivors(facts: Facts) -> list[tuple[str, NodeStatus]]:
    """Return the nodes that answer with the group's log, the most advanced first."""
    nodes = facts.observed.nodes.items()
    found = [(name, one) for name, one in nodes if one.group_id == facts.group.group_id]
    return sorted(found, key=lambda each: (-each[1].last_term, -each[1].last_index, each[0]))


def begin_force(facts: Facts, asked: ForceSpec) -> Outcome | Confirmation:
    """Return whether a survivor may be made the group now, and what has to be recorded before."""
    if why := _has_majority(facts):
        return Rejected(Reason.MAJORITY_THERE, why)
    if asked.group_id and asked.group_id != facts.group.group_id:
        message = f"the group's id is {facts.group.group_id}, not {asked.group_id}"
        return Rejected(Reason.GROUP_ID_MISMATCH, message)
    found = survivors(facts)
    if not found:
        return Waits(Reason.OPERATION_HELD, "no node answers that has the group's log")
    return _chosen(facts, asked, found)


def _chosen(
    facts: Facts, asked: ForceSpec, found: Sequence[tuple[str, NodeStatus]]
) -> Outcome | Confirmation:
    """Return what is made of these survivors, of which the first is the most advanced."""
    record: Manifest = {"survivors": [_row(name, one) for name, one in found]}
    if not facts.overdue:
        return Waits(Reason.OPERATION_HELD, "writes stopped a moment ago; it may recover", record)
    chosen, node = found[0]
    if asked.survivor not in ("", chosen):
        message = f"{chosen} has more of the log than {asked.survivor}, or that does not answer"
        return Rejected(Reason.NOT_ALLOWED, message, record)
    if not asked.group_id:
        return Confirmation(f"{chosen} would be the group: {loss(chosen, node)}", record)
    record |= {"chosen": _row(chosen, node), "fenced": _fenced(facts, chosen)}
    return Begun(record)


def loss(name: str, node: NodeStatus) -> str:
    """Return what is kept and what may be lost if a node becomes the group."""
    kept = f"everything up to its entry {node.last_index} of term {node.last_term} is kept"
    more = node.last_index - node.commit_index
    unsure = f", {more} of which nobody may have been told of" if more > 0 else ""
    return f"{kept}{unsure}; what was acknowledged and is not on {name} is lost"


def progress(facts: Facts, record: Json) -> Outcome:
    """Return how far a forced group has come."""
    chosen = record["chosen"]
    name = chosen["pod"]
    if not _is_forced(facts, chosen):
        return _not_forced_yet(facts, chosen)
    fences = [row["pod"] for row in record.get("fenced") or () if _old_claim(facts, row)]
    if fences:
        return Going(f"{name} is the group; disks to be given up: {', '.join(fences)}")
    left = [pod for pod in facts.asked if pod not in facts.in_sync]
    if left:
        return Going(f"{name} leads and takes writes; to join: {', '.join(left)}")
    kept = f"entry {chosen['lastIndex']} of term {chosen['lastTerm']}"
    return Done(f"the group goes on from {name}, {kept}; all {len(facts.asked)} vote")


def _not_forced_yet(facts: Facts, chosen: Json) -> Outcome:
    """Return what is waited for, or why nothing is forced any more."""
    name, node = chosen["pod"], facts.observed.nodes.get(chosen["pod"])
    if _leads_alone(facts, chosen):
        return Going(f"{name} leads alone, and begins its epoch")
    if why := _has_majority(facts):
        return Rejected(Reason.MAJORITY_THERE, f"nothing was forced: {why}")
    if node is not None and not _is_as_seen(node, chosen):
        return Rejected(Reason.SURVIVOR_CHANGED, f"{name} has changed since: look again")
    return Going(f"{name} is to be the group")


def secure(facts: Facts, record: Json) -> Disruption | Held | None:
    """Return the next of the steps that come before everything else: force, then fence."""
    chosen = record.get("chosen")
    if not chosen:
        return None
    if not _is_forced(facts, chosen):
        return _force(facts, chosen)
    for row in record.get("fenced") or ():
        if _old_claim(facts, row):
            return _fence(facts, row, chosen)
    return None


def _force(facts: Facts, chosen: Json) -> Disruption | Held:
    name, node = chosen["pod"], facts.observed.nodes.get(chosen["pod"])
    pod = facts.observed.pods.get(name)
    refusal = facts.observed.refusals.get(("Member", name), "")
    reasons: Sequence[tuple[bool, str]] = (
        (node is None or pod is None, f"{name} does not answer"),
        (_has_majority(facts) != "", "a majority is there"),
        (node is not None and not _is_as_seen(node, chosen), f"{name} has changed since"),
        (refusal != "", f"{name} refused it: {refusal}"),
    )
    if why := next((said for applies, said in reasons if applies), ""):
        return Held(name, why)
    assert pod is not None  # noqa: S101 - the first reason
    return ForceGroup(
        pod=name,
        uid=pod.uid,
        member_id=chosen["nodeId"],
        group_id=facts.group.group_id,
        last_term=chosen["lastTerm"],
        last_index=chosen["lastIndex"],
    )


def _fence(facts: Facts, row: Json, chosen: Json) -> Disruption | Held | None:
    leader = facts.observed.leader
    if leader is None or leader[0] != facts.leader or leader[1].epoch <= chosen["epoch"]:
        return Held(row["pod"], "the forced group has no leader")
    if why := refused(facts, row["pod"]):
        return Held(row["pod"], why)
    return given_up(facts, row["pod"], facts.observed.volumes[row["claim"]])


def _has_majority(facts: Facts) -> str:
    """Return who is there, if that is enough to go on without being forced; else nothing."""
    if facts.leader:
        return f"{facts.leader} leads, and a majority follows it"
    ids = {row.member.id for row in facts.observed.membership if row.voter}
    there = [name for name, one in survivors(facts) if one.node_id in ids]
    if ids and 2 * len(there) > len(ids):
        return f"a majority answers, and elects by itself: {', '.join(sorted(there))}"
    return ""


def _is_forced(facts: Facts, chosen: Json) -> bool:
    node = facts.observed.nodes.get(chosen["pod"])
    seen = [node] if node is not None and node.node_id == chosen["nodeId"] else []
    others = (one for one in facts.observed.nodes.values() if one.group_id == facts.group.group_id)
    return any(one.epoch > chosen["epoch"] for one in (*seen, *others))


def _leads_alone(facts: Facts, chosen: Json) -> bool:
    """Whether the chosen one leads as the only voter: nodes tell an epoch once it is committed.

    That is a sync later than leadership, and a status in between is no majority that came back.
    """
    voters = [row.member.id for row in facts.observed.membership if row.voter]
    return facts.leader == chosen["pod"] and voters == [chosen["nodeId"]]


def _is_as_seen(node: NodeStatus, chosen: Json) -> bool:
    seen = (node.node_id, node.last_term, node.last_index)
    return seen == (chosen["nodeId"], chosen["lastTerm"], chosen["lastIndex"])


def _old_claim(facts: Facts, row: Json) -> bool:
    volume = facts.observed.volumes.get(row["claim"])
    return volume is not None and volume.uid == row["claimUid"]


def _fenced(facts: Facts, chosen: str) -> list[Mapping[str, Any]]:
    """Return the claims that may hold a disk of the group as it was, but for the survivor's."""
    rows: list[Mapping[str, Any]] = []
    for ordinal, pod in enumerate(facts.wanted):
        node, claim = facts.observed.nodes.get(pod), names.claim(facts.group.name, ordinal)
        volume = facts.observed.volumes.get(claim)
        is_empty = node is not None and not node.group_id
        if pod == chosen or is_empty or volume is None or not volume.uid:
            continue
        row = {"pod": pod, "claim": claim, "claimUid": volume.uid, "volume": volume.volume}
        rows.append(row)
    return rows


def _row(name: str, node: NodeStatus) -> Manifest:
    return {
        "pod": name,
        "nodeId": node.node_id,
        "lastTerm": node.last_term,
        "lastIndex": node.last_index,
        "commitIndex": node.commit_index,
        "epoch": node.epoch,
    }
