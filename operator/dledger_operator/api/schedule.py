"""When scheduled backups and rounds of compaction are due: cron's notation, in UTC. Pure.

A backup's time that passed while the operator was down or an earlier one ran is skipped, unless it
is less than `LATE_S` ago; of the rounds that were missed, one is made. Asked by `reconcile` each
time, and by the checks of the spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from croniter import croniter
from croniter.croniter import CroniterError

from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.schedule_times import text_of
from dledger_operator.api.spec import BrokerGroup, Json

LATE_S: Final = 300.0
"""A backup starts at most this long after its time, longer than an operator's pod is missing."""

STALE_S: Final = 3600.0
"""How much longer than two intervals a newest backup may last: a Job takes minutes, or an hour."""

_ALIASES: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_RANDOM: Final = re.compile(r"\b[hr]\b", re.IGNORECASE)
_ANY_TIME: Final = datetime(2028, 3, 1, tzinfo=UTC)
"""After a 29th of February, so that a schedule of that day has an earlier time."""


@lru_cache(maxsize=1024)
def fault(expression: str) -> str:
    """Return what is wrong with a cron expression; empty if it is right."""
    if expression not in _ALIASES:
        columns = len(expression.split())
        if columns != 5:
            return f"{expression!r} has {columns} fields, not minute hour day month weekday"
        if _RANDOM.search(expression):
            return f"{expression!r} asks for a random time, which this operator does not support"
    try:
        croniter(expression, _ANY_TIME).get_prev(datetime)
    except (CroniterError, ValueError) as error:
        return f"{expression!r} is not a schedule: {error}"
    return ""


@lru_cache(maxsize=1024)
def latest(expression: str, minute: datetime) -> datetime:
    """Return the newest time of the schedule at or before a whole *minute*."""
    found: datetime = croniter(expression, minute + timedelta(minutes=1)).get_prev(datetime)
    return found


@lru_cache(maxsize=1024)
def stale_from(expression: str, at: datetime) -> datetime:
    """Return when a backup as of *at* is too old: two intervals of the schedule and an hour later.

    The intervals are those around *at*: from the time before it to the second one after it, which
    on a Friday includes the weekend of a schedule for workdays.
    """
    before: datetime = croniter(expression, at + timedelta(seconds=1)).get_prev(datetime)
    times = croniter(expression, at)
    times.get_next(datetime)
    after: datetime = times.get_next(datetime)
    return at + (after - before) + timedelta(seconds=STALE_S)


def due(group: BrokerGroup, backups: Sequence[BrokerBackup], *, now: datetime) -> str:
    """Return the time that a backup is to be made for now, RFC 3339; empty if none is.

    None is while another of the group is unfinished, and none for a time that had one already or
    that lies before the group.
    """
    last = last_scheduled(group, backups, now=now)
    at = _find_missed(group, group.spec.backup.schedule, last, now=now)
    if at is None or (now - at).total_seconds() >= LATE_S:
        return ""
    return "" if any(not backup.finished for backup in backups) else text_of(at)


def round_due(
    group: BrokerGroup, rounds: Sequence[BrokerOperation], *, backup_due: str, now: datetime
) -> str:
    """Return the time that a round of compaction is to be made for, RFC 3339; empty if none is.

    However many times were missed, it is one round, for the newest of them: what it lets go of is
    what all of them would have. A backup that is due at the same time is made first.
    """
    last = last_scheduled_round(group, rounds, now=now)
    at = _find_missed(group, group.spec.compaction.schedule, last, now=now)
    if at is None or backup_due or any(not one.finished for one in rounds):
        return ""
    return text_of(at)


def last_scheduled(group: BrokerGroup, backups: Iterable[BrokerBackup], *, now: datetime) -> str:
    """Return the newest time of the schedule that had a backup, RFC 3339; empty if none had."""
    made = (backup.scheduled_at for backup in backups)
    return _find_newest(group.status.get("backup"), made, group.spec.backup.schedule, now=now)


def last_scheduled_round(
    group: BrokerGroup, rounds: Iterable[BrokerOperation], *, now: datetime
) -> str:
    """Return the newest time of the schedule that had a round, RFC 3339; empty if none had."""
    made = (one.scheduled_at for one in rounds)
    return _find_newest(
        group.status.get("compaction"), made, group.spec.compaction.schedule, now=now
    )


def following(expression: str, now: datetime, count: int = 1) -> datetime | None:
    """Return the *count*-th time of a schedule after *now*; None without a schedule."""
    if not expression or fault(expression):
        return None
    return _following(expression, now.replace(second=0, microsecond=0), count)


@lru_cache(maxsize=1024)
def _following(expression: str, minute: datetime, count: int) -> datetime:
    times = croniter(expression, minute)
    for _ in range(count):
        found: datetime = times.get_next(datetime)
    return found


def _find_missed(
    group: BrokerGroup, expression: str, last: str, *, now: datetime
) -> datetime | None:
    """Return the newest time of a schedule that had nothing; None if it had, or without one."""
    if not expression or fault(expression):
        return None
    at = latest(expression, now.replace(second=0, microsecond=0))
    return at if text_of(at) > max(last, group.created_at) else None


def _find_newest(
    recorded: Json | None, made: Iterable[str], expression: str, *, now: datetime
) -> str:
    """Return the newest time that something was made for.

    A clock that is set back by seconds makes nothing twice: what is recorded counts up to the next
    time of the schedule. Further ahead it was made while a clock was wrong, and must not keep the
    schedule from going on until then. An annotation that is ahead is forged.
    """
    until = following(expression, now) or now
    known = str((recorded or {}).get("lastScheduledAt") or "")
    past = [at for at in made if at <= text_of(now)]
    return max([*past, known if known <= text_of(until) else ""], default="")
