"""What to do about one BrokerBackup: (backup, sight) -> what holds it up, next actions. Pure.

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
from dledger_operator.observed.observed import Ref, ref_of
from dledger_operator.observed.work import Work
from dledger_operator.resources.backup import LogRange, job, runs_locally
from dledger_operator.resources.spark import access, executor_template


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything seen of one BrokerBackup at one time.

    Attributes:
        group: Its group; None if there is none of that name.
        children: Children of the group and of the backup, by kind and name.
        work: What its Job amounts to; None without a Job.
        ahead: Another backup of the group that goes first; empty if none does.
        log: What there is to copy; None if that is not known.
        silence: Why it is not known.
        refusals: What could not be done lately, and the answer.
    """

    group: BrokerGroup | None = None
    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    work: Work | None = None
    ahead: str = ""
    log: LogRange | None = None
    silence: str = ""
    refusals: Mapping[Ref, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no Job is made; *final* if nothing but another BrokerBackup can mend it."""

    reason: Reason
    message: str
    final: bool = False


def obstacle(backup: BrokerBackup, sight: Sight) -> Obstacle | None:
    """Return what keeps a backup without a Job from getting one; None if nothing does."""
    return _own_fault(backup) or _of_group(backup, sight) or _of_moment(sight)


def plan_backup(backup: BrokerBackup, sight: Sight) -> tuple[Apply | Create, ...]:
    """Return the next actions for a backup; none once it has a Job, or while it is held up.

    The Job comes when all that its pod stands on was *seen* as ours: a pod that runs as an account
    which somebody else made would have that one's rights.
    """
    group, log = sight.group, sight.log
    if backup.finished or sight.work or obstacle(backup, sight) or group is None or log is None:
        return ()
    store = store_of(backup, group)
    made = job(backup, group, store=store, log=log)
    if runs_locally(group, log):
        return (Create(made),)
    template = executor_template(backup, group, store=store)
    rights = (Apply(m) for m in access(group) if differs(sight.children.get(ref_of(m)), m))
    files = () if ref_of(template) in sight.children else (Create(template),)
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


def _own_fault(backup: BrokerBackup) -> Obstacle | None:
    """Return what is wrong with the backup's spec, which never changes."""
    if backup.unreadable:
        return Obstacle(Reason.INVALID_SPEC, backup.unreadable, final=True)
    for problem in store_problems(backup.spec.store, "spec.store"):
        return Obstacle(problem.reason, problem.message, final=True)
    return None


def _of_group(backup: BrokerBackup, sight: Sight) -> Obstacle | None:
    group = sight.group
    if group is None:
        name = backup.spec.group
        return Obstacle(Reason.GROUP_MISSING, f"there is no BrokerGroup {name} in this namespace")
    if group.spec.paused:
        return Obstacle(Reason.PAUSED_BY_USER, f"BrokerGroup {group.name} is paused")
    if group.unreadable:
        return Obstacle(Reason.GROUP_SPEC_INVALID, group.unreadable)
    store = store_of(backup, group)
    if not store.url:
        message = f"neither spec.store nor spec.backup.store of BrokerGroup {group.name} has a url"
        return Obstacle(Reason.NO_STORE, message)
    wrong = [
        *replicas_problems(group),
        *store_problems(group.spec.backup.store, "spec.backup.store"),
        *spark_problems(group),
    ]
    if wrong:
        told = "; ".join(problem.message for problem in wrong)
        return Obstacle(Reason.GROUP_SPEC_INVALID, f"BrokerGroup {group.name}: {told}")
    return None


def _of_moment(sight: Sight) -> Obstacle | None:
    if sight.ahead:
        return Obstacle(Reason.WAITING_FOR_TURN, f"{sight.ahead} of the same group goes first")
    if sight.refusals:
        told = (f"{kind} {name}: {why}" for (kind, name), why in sight.refusals.items())
        return Obstacle(Reason.APPLY_REFUSED, "; ".join(told))
    if sight.log is None:
        return Obstacle(Reason.WAITING_FOR_GROUP, sight.silence or "no node of the group answers")
    return None
