"""A group's backups in its status, and the condition BackupReady. Pure; used by the group's status.

What was recorded stays when BrokerBackups are deleted, since the objects in the store stay.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from dledger_operator.api.brokerbackup import COMPLETED, FAILED, BrokerBackup
from dledger_operator.api.reasons import Reason
from dledger_operator.api.schedule import fault, last_scheduled, stale_from
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.observed.observed import Observed

NEAR: Final = 0.75
"""The part of `retention.hours` after which a newest backup is too old: there is time to act."""
FIRST: Final = timedelta(hours=26)
"""A new group has a day for its first backup, and two hours for the Job."""
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


def last_backup(group: BrokerGroup, observed: Observed, *, now: str) -> Manifest:
    """Return ``status.backup``: the newest completed backup, and the last scheduled time."""
    found = _recorded(group)
    completed = [b for b in _finished(group, observed) if b.phase == COMPLETED]
    newest = max(completed, key=_ended_at, default=None)
    if newest is not None and _ended_at(newest) > str(found.get("completedAt", "")):
        as_of = newest.status.get("asOf")
        found = {
            "name": newest.name,
            "completedAt": _ended_at(newest),
            "lastIndex": newest.last_index,
            "manifest": newest.status.get("manifest", ""),
            **({"asOf": as_of} if as_of else {}),
        }
    at = last_scheduled(group, observed.backups, now=datetime.fromisoformat(now).astimezone(UTC))
    return {**found, **({"lastScheduledAt": at} if at else {})}


def backup_ready(group: BrokerGroup, observed: Observed, *, now: str) -> tuple[str, Reason, str]:
    """Return status, reason and message of the condition BackupReady.

    The newest finished backup decides, until the newest completed one is too old.
    """
    newest = max(_finished(group, observed), key=lambda b: (b.created_at, b.name), default=None)
    failure = ""
    if newest is not None and newest.phase != COMPLETED:
        failure = f"{newest.name}: {newest.status.get('message', '')}"
    last = last_backup(group, observed, now=now)
    nears = _retention_nears(group, last, now=now)
    for reason, message in (
        (Reason.RETENTION_NEARS, nears and "; ".join(filter(None, (nears, failure)))),
        (Reason.BACKUP_FAILED, failure),
        (Reason.BACKUP_STALE, _stale(group, last, now=now)),
    ):
        if message:
            return "False", reason, message
    if newest is not None:
        message = f"{newest.name}, {_ended_at(newest)}: {newest.status.get('message', '')}"
        return "True", Reason.BACKUP_COMPLETED, message
    if "completedAt" in last:
        message = f"{last['name']}, {last['completedAt']}: up to {last['lastIndex']}"
        return "True", Reason.BACKUP_COMPLETED, message
    stores = [group.spec.backup.store, *(backup.spec.store for backup in observed.backups)]
    if not any(store.url for store in stores) and not any(b.finished for b in observed.backups):
        return "Unknown", Reason.BACKUP_NOT_CONFIGURED, "spec.backup.store is empty"
    return "False", Reason.NO_BACKUP_YET, "no backup of this group was completed yet"


def too_old_from(group: BrokerGroup, last: Json) -> datetime:
    """Return from when the newest backup is too old, by the schedule and by what nodes still keep.

    A group without a backup should have one 26 hours after it was created. The metric of this says
    what `BackupReady` would say while no operator is there to say it.
    """
    told = [_moment(str(last[key])) for key in ("asOf", "completedAt") if last.get(key)]
    if not told:
        return _moment(group.created_at) + FIRST if group.created_at else _NEVER
    as_of, schedule = min(told), group.spec.backup.schedule
    ends = [as_of + timedelta(hours=NEAR * group.spec.retention.hours)]
    if schedule and not fault(schedule):
        ends.append(stale_from(schedule, as_of))
    return min(ends)


def _retention_nears(group: BrokerGroup, last: Json, *, now: str) -> str:
    """Return what to do before nodes drop entries that no backup has; empty if there is time."""
    as_of, hours = _as_of(last, now=now), group.spec.retention.hours
    if as_of is None or _moment(now) <= as_of + timedelta(hours=NEAR * hours):
        return ""
    return (
        f"nodes drop what is older than {hours} h (spec.retention.hours); the newest backup, "
        f"{last['name']}, is as of {_text(as_of)}: create a BrokerBackup before then, and back up "
        "more often"
    )


def _stale(group: BrokerGroup, last: Json, *, now: str) -> str:
    """Return that the schedule was not kept; empty if it was, or if there is none."""
    schedule, as_of = group.spec.backup.schedule, _as_of(last, now=now)
    if not schedule or fault(schedule) or as_of is None:
        return ""
    if _moment(now) <= stale_from(schedule, as_of):
        return ""
    return (
        f"the newest backup, {last['name']}, is as of {_text(as_of)}, more than two intervals of "
        "spec.backup.schedule ago: see the BrokerBackups since then"
    )


def _as_of(last: Json, *, now: str) -> datetime | None:
    """Return up to when the newest backup has everything; None if it is not known to be past.

    That is not after its end, whatever the clocks of the nodes said.
    """
    told = [_moment(str(last[key])) for key in ("asOf", "completedAt") if last.get(key)]
    at = min(told, default=_moment(now))
    return at if at < _moment(now) else None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _finished(group: BrokerGroup, observed: Observed) -> list[BrokerBackup]:
    """Return the finished backups of this group; an earlier group may have had the same name."""
    return [
        backup
        for backup in observed.backups
        if (backup.phase == COMPLETED and backup.status.get("groupId") == group.group_id)
        or (backup.phase == FAILED and backup.created_at >= group.created_at)
    ]


def _recorded(group: BrokerGroup) -> Manifest:
    found: Json = group.status.get("backup") or {}
    return dict(found)


def _ended_at(backup: BrokerBackup) -> str:
    return str(backup.status.get("completedAt") or "")
