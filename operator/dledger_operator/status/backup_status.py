"""The status of a BrokerBackup, and the Events that a change of it is worth. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import COMPLETED, FAILED, PENDING, RUNNING, BrokerBackup
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import Json, Manifest
from dledger_operator.decisions.backups import blocked_reason
from dledger_operator.decisions.log_jobs import LogJobObserved
from dledger_operator.observed.job_status import JobFailed, JobRunning, JobSucceeded
from dledger_operator.status.status import Event, dated

CONDITION: Final = "Complete"
_NEEDS_SOMEONE: Final = (Reason.GROUP_MISSING, Reason.GROUP_SPEC_INVALID, Reason.NO_STORE)
"""Why a backup waits that no time will change: whoever made it should see an Event."""

_NUMBERS: Final = ("term", "records", "bytes", "objectBytes", "objects", "newObjects")
_TEXTS: Final = ("groupId", "manifest")
_LONGEST: Final = 1024
_LONGEST_REASON: Final = 256
"""Of a new base, within a message of an Event, which has room for 1,024 characters."""
_GREATEST: Final = (1 << 63) - 1
"""The CRD's bounds: if one value exceeded them, the API server would refuse the whole status, each
time."""
_EPOCH: Final = 1970
_Row = tuple[str, str, Reason, str]
"""Phase, status of the condition, reason and message."""


def backup_status(backup: BrokerBackup, observed: LogJobObserved, *, now: str) -> Manifest:
    """Return the whole status to be applied; a final one is never changed.

    Args:
        backup: What is wanted, with the status recorded before.
        observed: What was observed of it.
        now: RFC 3339; the transition time of the condition if it changes.
    """
    if backup.finished:
        return dict(backup.status)
    phase, condition, reason, message = _row(backup, observed)
    row = {"type": CONDITION, "status": condition, "reason": str(reason), "message": message}
    return {
        "observedGeneration": backup.generation,
        "phase": phase,
        "message": message,
        "conditions": dated(backup.status, [row], now=now, generation=backup.generation),
        **_of_job(backup, observed, now=now),
        **(_of_result(observed.job.result) if isinstance(observed.job, JobSucceeded) else {}),
    }


def backup_events(before: Json, after: Json) -> Iterator[Event]:
    """Yield an Event for each change of the status that people should see."""
    was, now, message = before.get("phase"), after["phase"], str(after["message"])
    if now == PENDING and _reason(after) in _NEEDS_SOMEONE and _reason(before) != _reason(after):
        yield Event(EventReason.BACKUP_BLOCKED, message, warning=True)
    if was == now:
        return
    if now == RUNNING:
        yield Event(EventReason.BACKUP_STARTED, f"Job {after['job']} copies the log")
    elif now == COMPLETED:
        yield Event(EventReason.BACKUP_COMPLETED, message)
    elif now == FAILED:
        yield Event(EventReason.BACKUP_FAILED, message, warning=True)


def _reason(status: Json) -> str:
    rows = status.get("conditions") or [{}]
    return str(rows[0].get("reason", ""))


def changed(before: Json, after: Json) -> bool:
    """Whether a status has to be written."""
    return dict(before) != after


def _row(backup: BrokerBackup, observed: LogJobObserved) -> _Row:
    match observed.job:
        case JobSucceeded(result=result):
            return COMPLETED, "True", Reason.BACKUP_COMPLETED, _sentence(result)
        case JobFailed(error=error):
            return FAILED, "False", Reason.BACKUP_FAILED, error
        case JobRunning(note=note):
            return RUNNING, "Unknown", Reason.BACKUP_RUNNING, note or "the log is being copied"
    held = blocked_reason(backup, observed)
    if held is None:
        return PENDING, "Unknown", Reason.CREATING, "the Job is being created"
    if held.final:
        return FAILED, "False", held.reason, held.message
    return PENDING, "Unknown", held.reason, held.message


def _of_job(backup: BrokerBackup, observed: LogJobObserved, *, now: str) -> Manifest:
    if observed.job is None:
        return {}
    found: Manifest = {"job": names.backup_job(backup.name)}
    if observed.job.started_at:
        found["startedAt"] = observed.job.started_at
    if isinstance(observed.job, JobSucceeded | JobFailed):
        found["completedAt"] = observed.job.ended_at or now
    return found


def _of_result(result: Json) -> Manifest:
    """Return the pipeline's result, as far as its fields have the right types."""
    found: Manifest = {key: _number(result.get(key)) for key in _NUMBERS}
    found |= {key: str(result.get(key) or "")[:_LONGEST] for key in _TEXTS}
    found["range"] = {
        "first": _number(result.get("firstIndex")),
        "last": _number(result.get("lastIndex")),
    }
    return found | _of_time(result.get("asOf"))


def _of_time(told: Any) -> Manifest:
    """Return up to when a backup has everything, in whole seconds; nothing if that is not known.

    An older image tells no time, and entries may all be without one, which is the year 1970.
    """
    try:
        at = datetime.fromisoformat(str(told))
    except ValueError:
        return {}
    if at.utcoffset() != timedelta() or at.year <= _EPOCH:
        return {}
    return {"asOf": at.strftime("%Y-%m-%dT%H:%M:%SZ")}


def _number(value: Any) -> int:
    counts = isinstance(value, int) and not isinstance(value, bool)
    return value if counts and 0 <= value <= _GREATEST else 0


def _sentence(result: Json) -> str:
    """Return what a backup did, and why it has a new base if it has."""
    found = _of_result(result)
    first, last = found["range"]["first"], found["range"]["last"]
    new = f"{found['newObjects']} of {found['objects']} objects are new"
    said = f"entries {first} to {last} of group {found['groupId']}, {found['bytes']} bytes; {new}"
    reason = str(result.get("newBase") or "")[:_LONGEST_REASON]
    return f"{said}; a new base was begun, since {reason}" if reason else said
