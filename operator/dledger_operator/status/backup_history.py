"""A group's backups in its status, and the condition BackupReady. Pure; used by the group's status.

What was recorded stays when BrokerBackups are deleted, since the objects in the store stay.
"""

from __future__ import annotations

from datetime import UTC, datetime

from dledger_operator.api.brokerbackup import COMPLETED, FAILED, BrokerBackup
from dledger_operator.api.reasons import Reason
from dledger_operator.api.schedule import last_scheduled
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.observed.observed import Observed


def last_backup(group: BrokerGroup, observed: Observed, *, now: str) -> Manifest:
    """Return ``status.backup``: the newest completed backup, and the last scheduled time."""
    found = _recorded(group)
    completed = [b for b in _finished(group, observed) if b.phase == COMPLETED]
    newest = max(completed, key=_ended_at, default=None)
    if newest is not None and _ended_at(newest) > str(found.get("completedAt", "")):
        found |= {
            "name": newest.name,
            "completedAt": _ended_at(newest),
            "lastIndex": newest.last_index,
            "manifest": newest.status.get("manifest", ""),
        }
    at = last_scheduled(group, observed.backups, now=datetime.fromisoformat(now).astimezone(UTC))
    return {**found, **({"lastScheduledAt": at} if at else {})}


def backup_ready(group: BrokerGroup, observed: Observed) -> tuple[str, Reason, str]:
    """Return status, reason and message of the condition BackupReady."""
    newest = max(_finished(group, observed), key=lambda b: (b.created_at, b.name), default=None)
    if newest is not None and newest.phase != COMPLETED:
        message = f"{newest.name}: {newest.status.get('message', '')}"
        return "False", Reason.BACKUP_FAILED, message
    if newest is not None:
        message = f"{newest.name}, {_ended_at(newest)}: {newest.status.get('message', '')}"
        return "True", Reason.BACKUP_COMPLETED, message
    recorded = _recorded(group)
    if "completedAt" in recorded:
        message = f"{recorded['name']}, {recorded['completedAt']}: up to {recorded['lastIndex']}"
        return "True", Reason.BACKUP_COMPLETED, message
    stores = [group.spec.backup.store, *(backup.spec.store for backup in observed.backups)]
    if not any(store.url for store in stores) and not any(b.finished for b in observed.backups):
        return "Unknown", Reason.BACKUP_NOT_CONFIGURED, "spec.backup.store is empty"
    return "False", Reason.NO_BACKUP_YET, "no backup of this group was completed yet"


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
