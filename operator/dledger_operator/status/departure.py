"""The last status of a group that is being deleted, while somebody's finalizer holds it. Pure.

Who deletes a group wants nothing more done for it, so its loop ends there; what it said last would
stay for as long as the finalizer does, and be taken for the present.
"""

from __future__ import annotations

from typing import Final

from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.status.status import Event, dated

_KEPT: Final = (
    *("observedGeneration", "operator", "groupId", "term", "replicas", "selector", "topics"),
    *("lastFailover", "backup"),
)
_OF_KUBERNETES: Final = frozenset({"foregroundDeletion", "orphan"})
"""Finalizers of Kubernetes' own, which go by themselves: no news to anybody."""


def last_status(group: BrokerGroup, *, now: str) -> Manifest:
    """Return what is still true of a group that is being deleted; nobody looks at the rest."""
    said = (
        f"deleted at {group.deleted_at}, held by finalizers: {', '.join(group.finalizers)}; "
        "nothing of it is looked at, made again or changed any more, and its pods run until it is "
        "gone"
    )
    kinds = [str(row["type"]) for row in group.status.get("conditions") or ()]
    unknown = "Unknown", Reason.TERMINATING, "see Progressing"
    findings = {**dict.fromkeys(kinds, unknown), "Progressing": ("True", Reason.TERMINATING, said)}
    rows: list[Manifest] = [
        {"type": kind, "status": status, "reason": str(reason), "message": message}
        for kind, (status, reason, message) in findings.items()
    ]
    members = [{**row, "role": "unknown"} for row in group.status.get("members") or ()]
    return {
        **{key: group.status[key] for key in _KEPT if key in group.status},
        "seenAt": now,
        "members": members,
        "conditions": dated(group.status, rows, now=now, generation=group.generation),
    }


def departure_event(group: BrokerGroup, after: Json) -> Event | None:
    """Return the Event of a group that somebody holds up; None if only Kubernetes does."""
    if set(group.finalizers) <= _OF_KUBERNETES:
        return None
    (said,) = (row["message"] for row in after["conditions"] if row["type"] == "Progressing")
    return Event(EventReason.TERMINATING, str(said), warning=True)
