"""The status of a BrokerGroup, and the Events that a change of it is worth. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dledger.common.status import FailoverRecord, MemberStatus, NodeStatus
from dledger_operator.api import names
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.topics import recorded_topics
from dledger_operator.decisions.turns import ONE_AT_A_TIME
from dledger_operator.observed.observed import Observed
from dledger_operator.status.backup_history import last_backup
from dledger_operator.status.compaction_history import last_round
from dledger_operator.status.conditions import conditions
from dledger_operator.status.seen import is_due

VOLATILE_S: Final = 60.0
"""If only how full the volumes are changed, the status is written at most this often: each write
goes to etcd and to everyone who watches. What moves all the time is a metric of the nodes."""

_PLANNED: Final = frozenset({"Bootstrap", "Transfer"})
"""Causes of a change of leader by which no leader was lost."""

_AFTER_ROLLOUT: Final = (Reason.COMPLETE, Reason.GROWING, Reason.TOPICS_PENDING)

_LATEST_MS: Final = 253402300799000
"""The last second of the year 9999, after which RFC 3339 has no times."""


@dataclass(frozen=True, slots=True)
class Event:
    """An Event on the BrokerGroup."""

    reason: EventReason
    message: str
    warning: bool = False


def status(facts: Facts, *, now: str) -> Manifest:
    """Return the whole status to be applied.

    Args:
        facts: What is wanted, with the status recorded before, and what is there.
        now: RFC 3339; the transition time of conditions that change.
    """
    group, observed = facts.group, facts.observed
    before = group.status
    pods = observed.pods.values()
    term, leader = _leadership(group, observed)
    result: Manifest = {
        "observedGeneration": group.generation,
        "seenAt": now,
        **({"operator": group.operator} if group.operator else {}),
        "groupId": group.group_id,
        "leader": leader,
        "term": term,
        "replicas": len(pods),
        "readyReplicas": sum(pod.ready and not pod.terminating for pod in pods),
        "votersInSync": _sync_told(facts),
        "selector": ",".join(f"{k}={v}" for k, v in sorted(names.selector(group.name).items())),
        "members": _members(group, observed, facts.entering),
        "conditions": dated(
            before, conditions(facts, now=now), now=now, generation=group.generation
        ),
    }
    if recorded := recorded_topics(group, observed.topics):
        result["topics"] = list(recorded)
    if backup := last_backup(group, observed, now=now):
        result["backup"] = backup
    if compaction := last_round(group, observed, now=now):
        result["compaction"] = compaction
    if failover := _last_failover(observed) or before.get("lastFailover"):
        result["lastFailover"] = failover
    return result


def worth_writing(
    before: Json, after: Json, *, since_write_s: float, seen_every_s: float = float("inf")
) -> bool:
    """Whether *after* should be written: at once if it is news, how full volumes are rarely.

    One without news is written when the last one is older than *seen_every_s*.
    """
    old, new = _canonical(before), _canonical(after)
    if old == new:
        return is_due(str(before.get("seenAt") or ""), after["seenAt"], every_s=seen_every_s)
    return since_write_s >= VOLATILE_S or _steady(old) != _steady(new)


def events(before: Json, after: Json) -> Iterator[Event]:
    """Yield an Event for each change of the status that people should see."""
    if before.get("term") and before["term"] != after["term"]:
        yield Event(EventReason.LEADER_CHANGED, _leader_sentence(after))
    if _turned(before, after, "SpecValid", "False", by=("status", "message")):
        yield Event(EventReason.SPEC_REFUSED, _message(after, "SpecValid"), warning=True)
    if _recovered(before, after, "SpecValid", "False", "True"):
        yield Event(EventReason.SPEC_ACCEPTED, _message(after, "SpecValid"))
    if _turned(before, after, "Degraded", "True"):
        yield _degraded_told(after)
    if _recovered(before, after, "Degraded", "True", "False"):
        yield Event(EventReason.RECOVERED, "the group is as expected again")
    if (told := _rollout_told(before, after)) is not None:
        yield told
    if _turned(before, after, "GroupIDConsistent", "False"):
        message = _message(after, "GroupIDConsistent")
        yield Event(EventReason.GROUP_ID_MISMATCH, message, warning=True)


def dated(before: Json, rows: list[Manifest], *, now: str, generation: int) -> list[Manifest]:
    """Give each condition its transition time: the one from *before* unless its status changed."""
    for row in rows:
        old = _condition(before, row["type"])
        kept = old and old["status"] == row["status"]
        row["lastTransitionTime"] = old["lastTransitionTime"] if kept else now
        row["observedGeneration"] = generation
    return rows


def rfc3339(unix_ms: int) -> str:
    """Return a time as Kubernetes writes it, in whole seconds."""
    return datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _leadership(group: BrokerGroup, observed: Observed) -> tuple[int, str]:
    """Return the newest term that has a leader, and the leader's name if one is known now."""
    before = int(group.status.get("term") or 0)
    observed = observed.of_group(group.group_id)
    led = [node for node in observed.nodes.values() if node.leader_id and node.term >= before]
    newest = max(led, key=lambda node: node.term, default=None)
    if newest:
        return newest.term, _name_of(observed, newest.leader_id)
    # Where nobody answers: one that runs may lead all the same, if only the operator is cut off.
    recorded = str(group.status.get("leader") or "")
    pod = None if observed.nodes else observed.pods.get(recorded)
    return before, recorded if pod is not None and pod.ready else ""


def _sync_told(facts: Facts) -> str:
    """Return how many voters are in sync of those asked for, as `2/3`; empty if that is unknown."""
    if not facts.observed.nodes and any(pod.ready for pod in facts.observed.pods.values()):
        return ""
    return f"{len(facts.in_sync)}/{facts.group.spec.replicas}"


def _members(group: BrokerGroup, observed: Observed, entering: Collection[str]) -> list[Manifest]:
    """Return a row for each member and pod; what is unknown now keeps its recorded value."""
    known = {row.member.name: row for row in observed.membership}
    recorded = {member["name"]: member for member in group.status.get("members") or []}
    everyone = sorted({*(known or recorded), *observed.pods})
    return [
        {
            **_member(name, known.get(name), recorded.get(name, {}), observed),
            "joining": name in entering,
        }
        for name in everyone
    ]


def _member(name: str, member: MemberStatus | None, before: Json, observed: Observed) -> Manifest:
    node, pod = observed.nodes.get(name), observed.pods.get(name)
    zone = pod.zone if pod else before.get("zone", "")
    return {
        "name": name,
        "id": member.member.id if member else node.node_id if node else before.get("id", ""),
        "role": node.role if node else "unknown",
        "featureLevel": _feature_level(node, member) or before.get("featureLevel", 0),
        **({"zone": zone} if zone else {}),
        "storage": _storage(node) if node else before.get("storage", {}),
    }


def _feature_level(node: NodeStatus | None, member: MemberStatus | None) -> int:
    """Return what a node reports, or else what another knows of it; 0 if unknown now."""
    said = node.feature_level if node else 0
    return said or (member.feature_level if member else 0)


def _storage(node: NodeStatus) -> Manifest:
    """Return the volume in whole percents: bytes would make an idle group's status move."""
    capacity_bytes = node.storage_capacity_bytes
    used = min(100, 100 * node.storage_used_bytes // capacity_bytes) if capacity_bytes else 0
    return {"usedPercent": used, "capacityBytes": capacity_bytes}


def _last_failover(observed: Observed) -> Manifest | None:
    """Return the newest loss of a leader; a transfer or the first election is none."""
    records = [n.last_failover for n in observed.nodes.values() if n.last_failover]
    lost = [record for record in records if record.cause not in _PLANNED]
    last: FailoverRecord | None = max(lost, key=lambda record: record.term, default=None)
    if last is None:
        return None
    return {
        "from": _name_of(observed, last.from_id),
        "to": _name_of(observed, last.to_id),
        "term": last.term,
        "cause": last.cause,
        "detectedMs": last.detected_ms,
        "electedMs": last.elected_ms,
        "firstAckMs": last.first_ack_ms,
        "at": rfc3339(min(last.at_ms, _LATEST_MS)),
    }


def _name_of(observed: Observed, node_id: str) -> str:
    by_node = {node.node_id: name for name, node in observed.nodes.items()}
    return observed.member_names.get(node_id) or by_node.get(node_id) or node_id


def _canonical(value: Json) -> Manifest:
    """Return the status with its lists in a fixed order, and without what is of its age alone.

    Server-side apply keeps an order of its own.
    """
    rows = [_without_turn(row) for row in value.get("conditions") or ()]
    return {
        **{key: what for key, what in value.items() if key != "seenAt"},
        "members": sorted(value.get("members") or (), key=lambda row: str(row["name"])),
        "conditions": sorted(rows, key=lambda row: str(row["type"])),
    }


def _without_turn(row: Json) -> Json:
    """Return a condition without whose turn it is: that is news to all that wait, at each turn.

    Written at once, it would be as many writes as groups, for each group that is rolled out.
    """
    if not str(row.get("message")).endswith(ONE_AT_A_TIME):
        return row
    return {key: what for key, what in row.items() if key != "message"}


def _steady(value: Manifest) -> Manifest:
    """Return the status without how full the volumes are."""
    rows = [{k: v for k, v in row.items() if k != "storage"} for row in value["members"]]
    return {**value, "members": rows}


def _condition(value: Json, kind: str) -> Any:
    rows = value.get("conditions") or []
    return next((row for row in rows if row["type"] == kind), None)


def _turned(
    before: Json, after: Json, kind: str, to: str, *, by: Sequence[str] = ("status", "reason")
) -> bool:
    """Whether a condition is *to* and was not, or differs in one of *by* from before."""
    old, new = _condition(before, kind), _condition(after, kind)
    if new["status"] != to:
        return False
    return old is None or any(old[key] != new[key] for key in by)


def _recovered(before: Json, after: Json, kind: str, ill: str, well: str) -> bool:
    """Whether a condition was *ill* and now is *well*; what was unknown was not told."""
    old, new = _condition(before, kind), _condition(after, kind)
    return old is not None and (old["status"], new["status"]) == (ill, well)


def _degraded_told(after: Json) -> Event:
    """Return the Event of a group that is degraded; what waits for a word has its own."""
    message = _message(after, "Degraded")
    if _condition(after, "Degraded")["reason"] == Reason.RESTORED_MESSAGES_WAIT:
        return Event(EventReason.RESTORED_MESSAGES_WAIT, message, warning=True)
    return Event(EventReason.DEGRADED, message, warning=True)


def _rollout_told(before: Json, after: Json) -> Event | None:
    """Return the Event of a rollout that halted or came to its end, if the change is one."""
    old, new = _condition(before, "Progressing"), _condition(after, "Progressing")
    was, said = old["reason"] if old else "", new["reason"]
    if said == Reason.ROLLOUT_HALTED != was:
        return Event(EventReason.ROLLOUT_HALTED, new["message"], warning=True)
    if was in (Reason.ROLLING_OUT, Reason.ROLLOUT_HALTED) and said in _AFTER_ROLLOUT:
        return Event(EventReason.ROLLOUT_COMPLETE, "every pod runs what the spec asks for")
    return None


def _message(value: Json, kind: str) -> str:
    return str(_condition(value, kind)["message"])


def _leader_sentence(after: Json) -> str:
    failover = after.get("lastFailover") or {}
    sentence = f"{after['leader']} leads in term {after['term']}"
    if failover.get("term") != after["term"]:
        return sentence
    lost_ms = failover["detectedMs"] + failover["electedMs"] + failover["firstAckMs"]
    was = failover["from"] or "nobody"
    return f"{sentence} after {was} ({failover['cause']}, {lost_ms} ms without a leader)"
