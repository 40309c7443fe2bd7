"""A group's rounds of compaction in its status, and the condition CompactionReady. Pure.

What was recorded stays when BrokerOperations are deleted, which go by their age.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from dledger_operator.api.brokeroperation import FAILED, RUNNING, SUCCEEDED, BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.api.schedule import (
    fault,
    following,
    last_scheduled_round,
    stale_from,
)
from dledger_operator.api.schedule_times import text_of
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.decisions.compacting import compacted_topics
from dledger_operator.decisions.rounds import RECORD
from dledger_operator.observed.observed import Observed

PERIODS: Final = 4
"""So many retentions, or periods of the schedule, without a round are too many: a topic has then
grown by as much as that, and none of it was ever told to go."""
MOST_TOPICS: Final = 256
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
_FAILURES: Final = (Reason.ROUND_FAILED, Reason.DEADLINE_EXCEEDED)
"""Of rounds that were to run. What was refused at once, as a second round, says nothing of them."""


def last_round(group: BrokerGroup, observed: Observed, *, now: str) -> Manifest:
    """Return ``status.compaction``: the compacted topics, the newest round, what the last one did.

    *since* is when a compacted topic was first seen, from which a first round is waited for.
    """
    found: Manifest = dict(group.status.get("compaction") or {})
    rounds = _rounds(group, observed)
    at = datetime.fromisoformat(now).astimezone(UTC)
    topics = compacted_topics(observed.topics)
    if topics is not None:
        found["topics"], found["topicCount"] = list(topics[:MOST_TOPICS]), len(topics)
    if not found.get("topics"):
        for key in ("topics", "topicCount", "since"):
            found.pop(key, None)
    else:
        found.setdefault("since", now)
    found |= _newest(rounds) | _last_success(rounds, found)
    found.pop("nextAt", None)
    later = following(group.spec.compaction.schedule, at) if found.get("topics") else None
    if later is not None:
        found["nextAt"] = text_of(later)
    if scheduled := last_scheduled_round(group, rounds, now=at):
        found["lastScheduledAt"] = scheduled
    return found


def compaction_ready(
    group: BrokerGroup, observed: Observed, *, now: str
) -> tuple[str, Reason, str]:
    """Return status, reason and message of the condition CompactionReady.

    The newest round decides, until the newest that succeeded is too old.
    """
    last, schedule = last_round(group, observed, now=now), group.spec.compaction.schedule
    if not last.get("topics"):
        if schedule:
            message = "spec.compaction.schedule makes no rounds: the group has no compacted topic"
            return "Unknown", Reason.NO_COMPACTED_TOPIC, message
        return "Unknown", Reason.COMPACTION_NOT_CONFIGURED, "the group has no compacted topic"
    failure = f"{last['name']}: {last['message']}" if last.get("phase") == FAILED else ""
    if overdue := _overdue(group, last, now=now):
        return "False", Reason.ROUND_OVERDUE, "; ".join(filter(None, (overdue, failure)))
    if failure:
        return "False", Reason.ROUND_FAILED, failure
    if "lastSucceededAt" in last:
        did = f"{last['letGo']} messages were let go, {last['kept']} copied forward"
        message = f"{last['lastSucceededAt']}, up to entry {last['asOfIndex']}: {did}"
        return "True", Reason.ROUND_COMPLETED, message
    coming = f"; the next is due at {last['nextAt']}" if "nextAt" in last else ""
    return "Unknown", Reason.NO_ROUND_YET, f"no round was completed yet{coming}"


def overdue_from(group: BrokerGroup, last: Json) -> datetime:
    """Return from when a round is overdue: four retentions after the last that succeeded.

    Where messages are kept for ever, four periods of the schedule; and never before a schedule that
    is rarer is late itself. Before a round of the topics that there are, it counts from when the
    first of them was seen: of earlier ones, which are gone, one may have succeeded long ago.
    The metric of this says what the condition would say while no operator is there to say it.
    """
    if not last.get("topics"):
        return _NEVER
    since = max(_moment(str(last[key])) for key in ("lastSucceededAt", "since") if key in last)
    schedule, hours = group.spec.compaction.schedule, group.spec.retention.hours
    ends = [since + timedelta(hours=PERIODS * hours)] if hours else []
    if schedule and not fault(schedule):
        ends.append(stale_from(schedule, since) if hours else _periods(schedule, since))
    return max(ends, default=_NEVER)


def _periods(schedule: str, since: datetime) -> datetime:
    return following(schedule, since, PERIODS) or _NEVER


def _overdue(group: BrokerGroup, last: Json, *, now: str) -> str:
    if _moment(now) <= overdue_from(group, last):
        return ""
    since = last.get("lastSucceededAt")
    what = f"no round succeeded since {since}" if since else "no round has ever succeeded"
    return (
        f"{what}: {last['topicCount']} compacted topics keep all that they were sent, and are "
        "copied whole each time that retention drops their messages"
    )


def _newest(rounds: Iterable[BrokerOperation]) -> Manifest:
    """Return what is told of the newest round that runs or has ended."""
    told = [one for one in rounds if one.phase in (RUNNING, SUCCEEDED) or _is_failure(one)]
    newest = max(told, key=lambda one: (one.created_at, one.name), default=None)
    if newest is None:
        return {}
    started_at = newest.status.get("startedAt")
    return {
        "name": newest.name,
        "phase": newest.phase,
        "message": str(newest.status.get("message", "")),
        **({"lastStartedAt": started_at} if started_at else {}),
    }


def _last_success(rounds: Iterable[BrokerOperation], before: Json) -> Manifest:
    """Return what the newest round did that succeeded, if it is newer than what is recorded."""
    ended = [one for one in rounds if one.phase == SUCCEEDED]
    newest = max(ended, key=_finished_at, default=None)
    if newest is None or _finished_at(newest) <= str(before.get("lastSucceededAt", "")):
        return {}
    did: Json = newest.status.get(RECORD) or {}
    counts = ("asOfIndex", "kept", "letGo", "later", "writtenBytes")
    return {"lastSucceededAt": _finished_at(newest), **{key: did.get(key, 0) for key in counts}}


def _rounds(group: BrokerGroup, observed: Observed) -> list[BrokerOperation]:
    """Return the rounds of this group; an earlier group may have had the same name."""
    return [
        one for one in observed.operations if one.is_round and one.created_at >= group.created_at
    ]


def _is_failure(one: BrokerOperation) -> bool:
    rows = one.status.get("conditions") or [{}]
    return one.phase == FAILED and rows[0].get("reason") in _FAILURES


def _finished_at(one: BrokerOperation) -> str:
    return str(one.status.get("finishedAt") or "")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
