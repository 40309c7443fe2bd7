"""What to do about one round of compaction: where it stands, and its next actions. Pure.

A round is a BrokerOperation of kind Compact, made by somebody or by the schedule, and has a Job as
a backup has. Backups go first: a round that is due waits for one that runs or is to run, and a
backup that comes while a round runs is the next to run. Rounds of one group never run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.api.schedule import following
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.decisions.actions import Apply, Create
from dledger_operator.decisions.checks import round_problems
from dledger_operator.decisions.log_jobs import (
    BlockedReason,
    LogJobObserved,
    blocked_by_group,
    blocked_by_moment,
    job_actions,
)
from dledger_operator.decisions.outcomes import Done, Going, Outcome, Rejected, Waits
from dledger_operator.observed.job_status import (
    JobFailed,
    JobRunning,
    JobSucceeded,
    seconds_between,
)
from dledger_operator.resources.compaction import round_work

RECORD: Final = "compaction"
"""Where the status of a BrokerOperation has what a round did."""
_COUNTS: Final = ("asOfIndex", "kept", "letGo", "later", "writtenBytes", "topicCount")
_GREATEST: Final = (1 << 63) - 1
_MOST_TOPICS: Final = 256
_LONGEST_NAME: Final = 127
"""The CRD's bounds: if one value exceeded them, the API server would refuse the whole status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundObserved(LogJobObserved):
    """Everything observed of one round of compaction.

    Attributes:
        topics: The group's compacted topics; None while nobody has told.
        rival: Another round of the group that goes first; empty if none does.
    """

    topics: tuple[str, ...] | None = None
    rival: str = ""


def round_outcome(operation: BrokerOperation, observed: RoundObserved, *, now: str) -> Outcome:
    """Return where an unfinished round stands at the time *now*, RFC 3339."""
    match observed.job:
        case JobSucceeded(result=result, started_at=began):
            record = result_of(result)
            return Done(_sentence(record), {RECORD: record, **_start_of(began)})
        case JobFailed(error=error, started_at=began):
            return Rejected(Reason.ROUND_FAILED, error, _start_of(began))
        case JobRunning(note=note):
            return Going(note or "the log is being compacted")
    return _outcome_without_job(operation, observed, now=now)


def _outcome_without_job(
    operation: BrokerOperation, observed: RoundObserved, *, now: str
) -> Outcome:
    held = round_blocked(operation, observed)
    if held is not None and held.final:
        return Rejected(held.reason, held.message)
    limit_s = operation.spec.deadline_seconds
    if seconds_between(operation.created_at, now) >= limit_s:
        said = f": {held.message}" if held else ""
        return Rejected(Reason.DEADLINE_EXCEEDED, f"not begun within {limit_s} s{said}")
    if held is not None:
        return Waits(held.reason, held.message)
    return Waits(Reason.CREATING, "the Job is being created")


def plan_round(
    operation: BrokerOperation, observed: RoundObserved, *, now: str
) -> tuple[Apply | Create, ...]:
    """Return the next actions for a round; none once it has a Job, or while it is blocked."""
    group, log = observed.group, observed.log
    waits = isinstance(round_outcome(operation, observed, now=now), Waits)
    if group is None or log is None or not waits or round_blocked(operation, observed):
        return ()
    work = round_work(operation, group, log=log, again_in_s=again_in_s(group, now=now))
    return job_actions(group, work, observed.children)


def round_blocked(operation: BrokerOperation, observed: RoundObserved) -> BlockedReason | None:
    """Return why a round without a Job does not get one; None if it does."""
    if operation.unreadable:
        return BlockedReason(Reason.INVALID_SPEC, operation.unreadable, final=True)
    return (
        blocked_by_group(observed.group, operation.spec.group)
        or _blocked_by_spec(observed.group)
        or _blocked_by_topics(observed)
        or _blocked_by_rival(operation, observed)
        or blocked_by_moment(observed)
    )


def rounds_in_turn(
    rounds: Iterable[BrokerOperation], working: Iterable[str]
) -> list[BrokerOperation]:
    """Return the unfinished rounds of a group: those with a Job (*working*) first, then by age."""
    first = set(working)
    unfinished = (one for one in rounds if not one.finished)
    return sorted(unfinished, key=lambda one: (one.name not in first, one.created_at, one.name))


def again_in_s(group: BrokerGroup, *, now: str) -> int:
    """Return in how many seconds the round after the next one comes; 0 without a schedule.

    The next one may fail. What retention drops before the one after it is copied forward now.
    """
    at = datetime.fromisoformat(now)
    later = following(group.spec.compaction.schedule, at, 2)
    return 0 if later is None else int((later - at).total_seconds())


def result_of(result: Json) -> Manifest:
    """Return the pipeline's result of a round, as far as its fields have the right types."""
    found: Manifest = {key: _number(result.get(key)) for key in _COUNTS}
    names = result.get("topics")
    topics = names[:_MOST_TOPICS] if isinstance(names, list) else []
    return {**found, "topics": [str(name)[:_LONGEST_NAME] for name in topics]}


def _start_of(started_at: str) -> Manifest:
    return {"startedAt": started_at} if started_at else {}


def _sentence(record: Mapping[str, Any]) -> str:
    return (
        f"up to entry {record['asOfIndex']} of {record['topicCount']} topics: {record['letGo']} "
        f"messages were let go, {record['kept']} copied forward ({record['writtenBytes']} bytes), "
        f"and {record['later']} go later"
    )


def _number(value: Any) -> int:
    counts = isinstance(value, int) and not isinstance(value, bool)
    return value if counts and 0 <= value <= _GREATEST else 0


def _blocked_by_spec(group: BrokerGroup | None) -> BlockedReason | None:
    if group is None:
        return None
    wrong = round_problems(group)
    if not wrong:
        return None
    message = "; ".join(problem.message for problem in wrong)
    return BlockedReason(Reason.GROUP_SPEC_INVALID, f"BrokerGroup {group.name}: {message}")


def _blocked_by_topics(observed: RoundObserved) -> BlockedReason | None:
    if observed.topics is None:
        return BlockedReason(Reason.WAITING_FOR_GROUP, "no node has told which topics there are")
    if not observed.topics:
        message = "the group has no compacted topic: only a new one can be (topics[].compaction)"
        return BlockedReason(Reason.NO_COMPACTED_TOPIC, message, final=True)
    return None


def _blocked_by_rival(operation: BrokerOperation, observed: RoundObserved) -> BlockedReason | None:
    """Return that another round goes first: the schedule's waits for it, anybody's is refused.

    Who asks for a round while one is there would get the same again, later than he thinks.
    """
    if not observed.rival:
        return None
    if operation.scheduled_at:
        message = f"{observed.rival} of the same group goes first"
        return BlockedReason(Reason.WAITING_FOR_TURN, message)
    message = f"{observed.rival} is a round of the same group that is not finished; wait for it"
    return BlockedReason(Reason.ROUND_RUNNING, message, final=True)
