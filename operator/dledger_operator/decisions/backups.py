"""What to do about one BrokerBackup: (backup, observed) -> why it waits, or its next actions. Pure.

A Job is made once and never changed. The last index to copy is fixed when it is made, so that a pod
that replaces a failed one writes the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import COMPLETED, BrokerBackup
from dledger_operator.api.reasons import Reason
from dledger_operator.api.schedule_times import unix_minute
from dledger_operator.api.spec import BrokerGroup, Store
from dledger_operator.decisions.actions import Apply, Create
from dledger_operator.decisions.checks import (
    replicas_problems,
    retention_problems,
    spark_problems,
    store_problems,
)
from dledger_operator.decisions.log_jobs import (
    BlockedReason,
    LogJobObserved,
    blocked_by_group,
    blocked_by_moment,
    job_actions,
)
from dledger_operator.observed.job_status import seconds_between
from dledger_operator.resources.backup import backup_work
from dledger_operator.resources.job_egress import store_rules
from dledger_operator.resources.networkpolicy import store_policy

KEPT_COMPLETED: Final = 10
KEPT_FAILED: Final = 3
"""Finished BrokerBackups that a schedule keeps: what `kubectl get bgb` shows on half a screen."""
_DAY_S: Final = 86_400


def blocked_reason(backup: BrokerBackup, observed: LogJobObserved) -> BlockedReason | None:
    """Return why a backup without a Job does not get one; None if it does."""
    return _own_fault(backup) or _of_group(backup, observed) or blocked_by_moment(observed)


def plan_backup(backup: BrokerBackup, observed: LogJobObserved) -> tuple[Apply | Create, ...]:
    """Return the next actions for a backup; none once it has a Job, or while it is blocked."""
    group, log = observed.group, observed.log
    if group is None or log is None or backup.finished or observed.job:
        return ()
    if blocked_reason(backup, observed):
        return ()
    work = backup_work(backup, group, store=store_of(backup, group), log=log)
    policies = [store_policy(backup, group)] if store_rules(backup.spec.store) else []
    return job_actions(group, work, observed.children, policies=policies)


def store_of(backup: BrokerBackup, group: BrokerGroup) -> Store:
    """Return where a backup goes: its own store, or else the group's."""
    return backup.spec.store if backup.spec.store.url else group.spec.backup.store


def in_turn(backups: Iterable[BrokerBackup], working: Iterable[str]) -> list[BrokerBackup]:
    """Return the unfinished backups of a group: those with a Job (*working*) first, then by age."""
    first = set(working)
    unfinished = (backup for backup in backups if not backup.finished)
    return sorted(unfinished, key=lambda b: (b.name not in first, b.created_at, b.name))


def first_index(backup: BrokerBackup, group: BrokerGroup, others: Sequence[BrokerBackup]) -> int:
    """Return where the log goes on behind the newest completed backup to the same store."""
    place = store_of(backup, group).place
    same = (
        other.last_index
        for other in others
        if store_of(other, group).place == place and other.status.get("groupId") == group.group_id
    )
    return max(same, default=0) + 1


def expired(
    group: BrokerGroup, backups: Iterable[BrokerBackup], *, now: str
) -> BrokerBackup | None:
    """Return the oldest finished BrokerBackup of a group's schedule that may go; None if none may.

    The newest `KEPT_COMPLETED` and `KEPT_FAILED` stay for `retention.keepDays`, and the newest
    completed one in any case. What the schedule did not make is its maker's to delete.
    """
    if group.spec.paused or group.unreadable or any(retention_problems(group)):
        return None
    finished = [backup for backup in backups if backup.finished and _of_schedule(backup)]
    finished.sort(key=_ended_at, reverse=True)
    completed = [backup for backup in finished if backup.phase == COMPLETED]
    failed = [backup for backup in finished if backup.phase != COMPLETED]
    days = group.spec.backup.retention.keep_days
    old = (
        backup
        for backup in (*completed[1:], *failed)
        if seconds_between(_ended_at(backup), now) > days * _DAY_S
    )
    surplus = (*completed[KEPT_COMPLETED:], *failed[KEPT_FAILED:], *old)
    return min(surplus, key=_ended_at, default=None)


def _of_schedule(backup: BrokerBackup) -> bool:
    """Whether the operator made it: anybody can copy an annotation, but a name tells its time."""
    at = backup.scheduled_at
    return at != "" and backup.name == names.scheduled_backup(backup.spec.group, unix_minute(at))


def _ended_at(backup: BrokerBackup) -> str:
    return str(backup.status.get("completedAt") or backup.created_at)


def _own_fault(backup: BrokerBackup) -> BlockedReason | None:
    """Return what is wrong with the backup's spec, which never changes."""
    if backup.unreadable:
        return BlockedReason(Reason.INVALID_SPEC, backup.unreadable, final=True)
    for problem in store_problems(backup.spec.store, "spec.store", backup.spec.group):
        return BlockedReason(problem.reason, problem.message, final=True)
    return None


def _of_group(backup: BrokerBackup, observed: LogJobObserved) -> BlockedReason | None:
    group = observed.group
    held = blocked_by_group(group, backup.spec.group)
    if group is None or held:
        return held
    store = store_of(backup, group)
    if not store.url:
        message = f"neither spec.store nor spec.backup.store of BrokerGroup {group.name} has a url"
        return BlockedReason(Reason.NO_STORE, message)
    wrong = [
        *replicas_problems(group),
        *store_problems(group.spec.backup.store, "spec.backup.store", group.name),
        *retention_problems(group),
        *spark_problems(group),
    ]
    if wrong:
        message = "; ".join(problem.message for problem in wrong)
        return BlockedReason(Reason.GROUP_SPEC_INVALID, f"BrokerGroup {group.name}: {message}")
    return None
