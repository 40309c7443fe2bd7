"""BackupObserved -> status of a BrokerBackup, and which Events that is worth. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import COMPLETED, FAILED, PENDING, RUNNING, BrokerBackup
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import Json, Manifest
from dledger_operator.decisions.backups import BackupObserved, blocked_reason
from dledger_operator.observed.job_status import JobFailed, JobRunning, JobSucceeded
from dledger_operator.status.status import Event, dated

CONDITION: Final = "Complete"

_NUMBERS: Final = ("term", "records", "bytes", "objectBytes", "objects", "newObjects")
_TEXTS: Final = ("groupId", "manifest")
_LONGEST: Final = 1024
_GREATEST: Final = (1 << 63) - 1
"""What does not fit the CRD would have the API server refuse the whole status, for ever."""
_Told = tuple[str, str, Reason, str]
"""Phase, status of the condition, reason and message."""


def backup_status(backup: BrokerBackup, observed: BackupObserved, *, now: str) -> Manifest:
    """Return the whole status, as it is to be applied; a final one is never changed.

    Args:
        backup: What is wanted, with the status recorded before.
        observed: What is there.
        now: RFC 3339; the transition time of the condition if it changes.
    """
    if backup.finished:
        return dict(backup.status)
    phase, said, reason, message = _told(backup, observed)
    row = {"type": CONDITION, "status": said, "reason": str(reason), "message": message}
    return {
        "observedGeneration": backup.generation,
        "phase": phase,
        "message": message,
        "conditions": dated(backup.status, [row], now=now, generation=backup.generation),
        **_of_job(backup, observed, now=now),
        **(_of_result(observed.job.result) if isinstance(observed.job, JobSucceeded) else {}),
    }


def backup_events(before: Json, after: Json) -> Iterator[Event]:
    """Yield an Event for each turn that the status took."""
    was, now, message = before.get("phase"), after["phase"], str(after["message"])
    if was == now:
        return
    if now == RUNNING:
        yield Event(EventReason.BACKUP_STARTED, f"Job {after['job']} copies the log")
    elif now == COMPLETED:
        yield Event(EventReason.BACKUP_COMPLETED, message)
    elif now == FAILED:
        yield Event(EventReason.BACKUP_FAILED, message, warning=True)


def changed(before: Json, after: Json) -> bool:
    """Whether a status has to be written."""
    return dict(before) != after


def _told(backup: BrokerBackup, observed: BackupObserved) -> _Told:
    match observed.job:
        case JobSucceeded(result=result):
            return COMPLETED, "True", Reason.BACKUP_COMPLETED, _sentence(_of_result(result))
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


def _of_job(backup: BrokerBackup, observed: BackupObserved, *, now: str) -> Manifest:
    if observed.job is None:
        return {}
    found: Manifest = {"job": names.backup_job(backup.name)}
    if observed.job.started_at:
        found["startedAt"] = observed.job.started_at
    if isinstance(observed.job, JobSucceeded | JobFailed):
        found["completedAt"] = observed.job.ended_at or now
    return found


def _of_result(result: Json) -> Manifest:
    """Return what the pipeline told, as far as it is of the right kind."""
    found: Manifest = {key: _number(result.get(key)) for key in _NUMBERS}
    found |= {key: str(result.get(key) or "")[:_LONGEST] for key in _TEXTS}
    found["range"] = {
        "first": _number(result.get("firstIndex")),
        "last": _number(result.get("lastIndex")),
    }
    return found


def _number(value: Any) -> int:
    counts = isinstance(value, int) and not isinstance(value, bool)
    return value if counts and 0 <= value <= _GREATEST else 0


def _sentence(found: Json) -> str:
    first, last = found["range"]["first"], found["range"]["last"]
    new = f"{found['newObjects']} of {found['objects']} objects are new"
    return f"entries {first} to {last} of group {found['groupId']}, {found['bytes']} bytes; {new}"
