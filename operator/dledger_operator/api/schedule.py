"""When scheduled backups are due: cron's notation, in UTC, whole minutes. Pure.

A time that passed while the operator was down or an earlier backup ran is skipped, unless it is
less than `LATE_S` ago. Asked by `reconcile` each round, and by the checks of the spec.
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
from dledger_operator.api.spec import BrokerGroup

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
    expression = group.spec.backup.schedule
    if not expression or fault(expression):
        return ""
    at = latest(expression, now.replace(second=0, microsecond=0))
    last = max([last_scheduled(group, backups, now=now), group.created_at])
    if (now - at).total_seconds() >= LATE_S or _text(at) <= last:
        return ""
    return "" if any(not backup.finished for backup in backups) else _text(at)


def last_scheduled(group: BrokerGroup, backups: Iterable[BrokerBackup], *, now: datetime) -> str:
    """Return the newest time of the schedule that had a backup, RFC 3339; empty if none had."""
    recorded = str((group.status.get("backup") or {}).get("lastScheduledAt") or "")
    made = (backup.scheduled_at for backup in backups)
    return max([recorded, *(at for at in made if at <= _text(now))])


def unix_minute(at: str) -> int:
    """Return the minute of an RFC 3339 time, counted from 1970."""
    return int(datetime.fromisoformat(at).timestamp()) // 60


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
