"""What to do about one BrokerBackup: (backup, observed) -> what holds it up, next actions. Pure.

A Job is made once and never changed. What it is to copy is fixed when it is made (the last index),
so that a pod that is tried again makes the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.decisions.checks import replicas_problems, spark_problems, store_problems
from dledger_operator.decisions.plan import Apply, Create, differs
from dledger_operator.observed.job_status import JobStatus
from dledger_operator.observed.observed import Ref, ref_of
from dledger_operator.resources.backup import LogRange, job, runs_locally
from dledger_operator.resources.spark import access, executor_template


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupObserved:
    """Everything seen of one BrokerBackup at one time.

    Attributes:
        group: Its group; None if there is none of that name.
        children: Children of the group and of the backup, by kind and name.
        job: What its Job amounts to; None without a Job.
        predecessor: Another backup of the group that goes first; empty if none does.
        log: What there is to copy; None if that is not known.
        unavailable: Why it is not known.
        refusals: What could not be done lately, and the answer.
    """

    group: BrokerGroup | None = None
    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    job: JobStatus | None = None
    predecessor: str = ""
    log: LogRange | None = None
    unavailable: str = ""
    refusals: Mapping[Ref, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockedReason:
    """Why no Job is made; *final* if nothing but another BrokerBackup can mend it."""

    reason: Reason
    message: str
    final: bool = False


def blocked_reason(backup: BrokerBackup, observed: BackupObserved) -> BlockedReason | None:
    """Return what keeps a backup without a Job from getting one; None if nothing does."""
    return _own_fault(backup) or _of_group(backup, observed) or _of_moment(observed)


def plan_backup(backup: BrokerBackup, observed: BackupObserved) -> tuple[Apply | Create, ...]:
    """Return the next actions for a backup; none once it has a Job, or while it is held up.

    The Job comes when all that its pod stands on was *seen* as ours: a pod that runs as an account
    which somebody else made would have that one's rights.
    """
    group, log = observed.group, observed.log
    if group is None or log is None or backup.finished or observed.job:
        return ()
    if blocked_reason(backup, observed):
        return ()
    store = store_of(backup, group)
    made = job(backup, group, store=store, log=log)
    if runs_locally(group, log):
        return (Create(made),)
    template = executor_template(backup, group, store=store)
    rights = (Apply(m) for m in access(group) if differs(observed.children.get(ref_of(m)), m))
    files = () if ref_of(template) in observed.children else (Create(template),)
    return (*rights, *files) or (Create(made),)


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
    url = store_of(backup, group).url
    same = (
        other.last_index
        for other in others
        if store_of(other, group).url == url and other.status.get("groupId") == group.group_id
    )
    return max(same, default=0) + 1


def _own_fault(backup: BrokerBackup) -> BlockedReason | None:
    """Return what is wrong with the backup's spec, which never changes."""
    if backup.unreadable:
        return BlockedReason(Reason.INVALID_SPEC, backup.unreadable, final=True)
    for problem in store_problems(backup.spec.store, "spec.store"):
        return BlockedReason(problem.reason, problem.message, final=True)
    return None


def _of_group(backup: BrokerBackup, observed: BackupObserved) -> BlockedReason | None:
    group = observed.group
    if group is None:
        name = backup.spec.group
        return BlockedReason(
            Reason.GROUP_MISSING, f"there is no BrokerGroup {name} in this namespace"
        )
    if group.spec.paused:
        return BlockedReason(Reason.PAUSED_BY_USER, f"BrokerGroup {group.name} is paused")
    if group.unreadable:
        return BlockedReason(Reason.GROUP_SPEC_INVALID, group.unreadable)
    store = store_of(backup, group)
    if not store.url:
        message = f"neither spec.store nor spec.backup.store of BrokerGroup {group.name} has a url"
        return BlockedReason(Reason.NO_STORE, message)
    wrong = [
        *replicas_problems(group),
        *store_problems(group.spec.backup.store, "spec.backup.store"),
        *spark_problems(group),
    ]
    if wrong:
        told = "; ".join(problem.message for problem in wrong)
        return BlockedReason(Reason.GROUP_SPEC_INVALID, f"BrokerGroup {group.name}: {told}")
    return None


def _of_moment(observed: BackupObserved) -> BlockedReason | None:
    if observed.predecessor:
        return BlockedReason(
            Reason.WAITING_FOR_TURN, f"{observed.predecessor} of the same group goes first"
        )
    if observed.refusals:
        told = (f"{kind} {name}: {why}" for (kind, name), why in observed.refusals.items())
        return BlockedReason(Reason.APPLY_REFUSED, "; ".join(told))
    if observed.log is None:
        return BlockedReason(
            Reason.WAITING_FOR_GROUP, observed.unavailable or "no node of the group answers"
        )
    return None
