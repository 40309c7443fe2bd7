"""What Jobs that read a group's log have in common: why one waits, and what is made for it. Pure.

Used by `backups` and `rounds`, of which one at a time has a Job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.decisions.actions import Apply, Create
from dledger_operator.decisions.plan import differs
from dledger_operator.observed.job_status import JobStatus
from dledger_operator.observed.observed import Ref, ref_of
from dledger_operator.resources.log_job import (
    LogRange,
    LogWork,
    log_job,
    runs_locally,
    template_of,
)
from dledger_operator.resources.spark import access


@dataclass(frozen=True, slots=True, kw_only=True)
class LogJobObserved:
    """Everything observed of what one Job is for, in one round.

    Attributes:
        group: Its group; None if no BrokerGroup has that name.
        children: Children of the group and of the object that the Job is for, by kind and name.
        job: The status of its Job; None without a Job.
        predecessor: What of the group goes first, of backups and rounds; empty if nothing does.
        log: How much there is to read; None if no node said.
        unavailable: Why none did.
        refusals: What failed lately and is not tried yet: child to error.
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
    """Why no Job is made; *final* if only another object can help."""

    reason: Reason
    message: str
    final: bool = False


def blocked_by_group(group: BrokerGroup | None, name: str) -> BlockedReason | None:
    """Return why nothing can be made for the group *name* at all."""
    if group is None:
        return BlockedReason(
            Reason.GROUP_MISSING,
            f"there is no BrokerGroup {name} in this namespace, or it is being deleted",
        )
    if group.spec.paused:
        return BlockedReason(Reason.PAUSED_BY_USER, f"BrokerGroup {group.name} is paused")
    if group.unreadable:
        return BlockedReason(Reason.GROUP_SPEC_INVALID, group.unreadable)
    return None


def blocked_by_moment(observed: LogJobObserved) -> BlockedReason | None:
    """Return why no Job is made now, which time will change."""
    if observed.predecessor:
        return BlockedReason(
            Reason.WAITING_FOR_TURN, f"{observed.predecessor} of the same group goes first"
        )
    if observed.refusals:
        errors = (f"{kind} {name}: {why}" for (kind, name), why in observed.refusals.items())
        return BlockedReason(Reason.APPLY_REFUSED, "; ".join(errors))
    if observed.log is None:
        return BlockedReason(
            Reason.WAITING_FOR_GROUP, observed.unavailable or "no node of the group answers"
        )
    return None


def job_actions(
    group: BrokerGroup,
    work: LogWork,
    children: Mapping[Ref, Manifest],
    *,
    policies: Iterable[Manifest] = (),
) -> tuple[Apply | Create, ...]:
    """Return the next actions for a Job: what its pod relies on, and then the Job itself.

    The Job is made only after all that was observed as ours: a pod that runs as someone else's
    account would have the rights of that account.
    """
    files = [*policies]
    rights: tuple[Manifest, ...] = ()
    if not runs_locally(group, work.store, work.log):
        files.append(template_of(group, work))
        rights = access(group)
    return (
        *(Apply(m) for m in rights if differs(children.get(ref_of(m)), m)),
        *(Create(m) for m in files if ref_of(m) not in children),
    ) or (Create(log_job(group, work)),)
