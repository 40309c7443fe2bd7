"""Which scheduled backup is due, and which expressions are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.schedule import due, fault, latest, round_due, stale_from
from dledger_operator.api.schedule_times import unix_minute
from dledger_operator.api.spec import BrokerGroup
from tests.operator.backup_samples import STORE, backup, completed
from tests.operator.round_samples import compact, succeeded
from tests.operator.samples import body

AT = "2031-05-06T03:00:00Z"
BEFORE = "2031-05-01T00:00:00Z"


def _group(schedule: str = "0 3 * * *", created_at: str = BEFORE, **status: Any) -> BrokerGroup:
    made = body({"backup": {"store": STORE, "schedule": schedule}}, **status)
    made["metadata"]["creationTimestamp"] = created_at
    return BrokerGroup.parse(made)


def _due(
    clock: str, *backups: BrokerBackup, of: BrokerGroup | None = None, day: str = "2031-05-06"
) -> str:
    now = datetime.fromisoformat(f"{day}T{clock}Z")
    return due(of or _group(), backups, now=now)


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("02:59:59", ""),
        ("03:00:00", AT),
        ("03:04:59", AT),
        ("03:05:00", ""),
        ("12:00:00", ""),
    ],
)
def test_a_backup_is_due_at_its_time_and_a_few_minutes_after(clock: str, expected: str) -> None:
    """The operator may be restarting just then; what was missed longer ago is left out."""
    assert _due(clock) == expected


def test_a_time_has_one_backup() -> None:
    """Known by the backup itself, or by the status once it was deleted."""
    recorded = _group(backup={"lastScheduledAt": AT})

    assert _due("03:01:00", completed(scheduled_at=AT)) == ""
    assert _due("03:01:00", of=recorded) == ""
    assert _due("03:01:00", of=recorded, day="2031-05-07") == "2031-05-07T03:00:00Z"


def test_there_are_never_two_at_once() -> None:
    """Also one that was asked for by hand counts."""
    assert _due("03:01:00", backup()) == ""
    assert _due("03:01:00", completed()) == AT


def test_a_group_that_was_made_after_the_time_waits_for_the_next() -> None:
    """Nobody expects a backup the moment a group is applied."""
    assert _due("03:01:00", of=_group(created_at="2031-05-06T03:00:30Z")) == ""


def test_a_forged_annotation_does_not_stop_the_schedule() -> None:
    """Anybody can write one."""
    forged = [completed(scheduled_at=text) for text in ("zzz", "2099-01-01T00:00:00Z")]

    assert _due("03:01:00", *forged) == AT


def test_without_a_schedule_nothing_is_due() -> None:
    """Nor with a wrong one, which SpecValid tells."""
    assert _due("03:01:00", of=_group("")) == ""
    assert _due("03:01:00", of=_group("sometimes")) == ""


@pytest.mark.parametrize(
    "expression",
    ["0 3 * * *", "*/15 * * * *", "0 3 * * mon-fri", "@daily", "0 0 29 2 *", "5,35 1-3 * * *"],
)
def test_crons_notation_is_taken(expression: str) -> None:
    """Names of days and months, steps, lists, ranges and the usual words."""
    assert fault(expression) == ""


@pytest.mark.parametrize(
    "expression",
    [
        "61 * * * *",
        "0 3 * *",
        "0 3 * * * *",
        "0 0 30 2 *",
        "@reboot",
        "often",
        "a b c d e",
        "*/0 * * * *",
        "R 3 * * *",
        "H 3 * * *",
        "R(1-5) 3 * * *",
        "0 3 * * 8",
        "\x00 \x00 \x00 \x00 \x00",
        "-1 * * * *",
        "9" * 128,
    ],
)
def test_what_is_no_schedule_is_named(expression: str) -> None:
    """With what is wrong; also times that never come, and times by chance."""
    assert repr(expression) in fault(expression)


@given(st.text(max_size=128))
def test_no_text_breaks_the_reader(text: str) -> None:
    """It is a schedule, or there is a sentence."""
    assert isinstance(fault(text), str)


@given(
    minutes=st.integers(0, 10 * 366 * 24 * 60),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
def test_the_newest_time_of_a_daily_schedule_is_less_than_a_day_ago(
    minutes: int, hour: int, minute: int
) -> None:
    """And at the right hour and minute, at any time of any year."""
    now = datetime(2028, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)

    at = latest(f"{minute} {hour} * * *", now)

    assert timedelta() <= now - at < timedelta(days=1)
    assert (at.hour, at.minute, at.second) == (hour, minute, 0)


@pytest.mark.parametrize(
    ("expression", "as_of", "until"),
    [
        ("0 3 * * *", "2031-05-06T03:05", "2031-05-08T04:05"),
        ("0 3 * * *", "2031-05-06T03:00", "2031-05-08T04:00"),
        ("0 3 * * *", "2031-05-06T02:55", "2031-05-08T03:55"),
        ("@hourly", "2031-05-06T03:10", "2031-05-06T06:10"),
        ("0 3 * * mon-fri", "2031-05-09T03:05", "2031-05-13T04:05"),
        ("0 3 * * mon-fri", "2031-05-12T02:55", "2031-05-16T03:55"),
        ("@weekly", "2031-05-04T00:10", "2031-05-18T01:10"),
    ],
)
def test_a_backup_is_stale_after_two_intervals_and_an_hour(
    expression: str, as_of: str, until: str
) -> None:
    """A weekend without times is an interval, too; 2031-05-09 is a Friday."""
    at = datetime.fromisoformat(f"{as_of}Z")

    assert stale_from(expression, at) == datetime.fromisoformat(f"{until}Z")


@given(minutes=st.integers(0, 10 * 366 * 24 * 60))
def test_a_backup_is_not_stale_before_the_second_time_after_it(minutes: int) -> None:
    """However uneven the schedule; the one after it may still be running an hour later."""
    at, expression = datetime(2028, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes), "7 1,2,9 1 * 1"
    first = latest(expression, stale_from(expression, at))

    assert latest(expression, first - timedelta(minutes=1)) > at


def test_minutes_are_counted_from_1970() -> None:
    """They name the backup."""
    assert unix_minute("1970-01-02T00:01:59Z") == 24 * 60 + 1


def _round_due(
    at: str, *rounds: BrokerOperation, backup_due: str = "", created_at: str = BEFORE, **status: Any
) -> str:
    made = body({"compaction": {"schedule": "0 3 * * *"}}, **status)
    made["metadata"]["creationTimestamp"] = created_at
    now = datetime.fromisoformat(at)
    return round_due(BrokerGroup.parse(made), rounds, backup_due=backup_due, now=now)


def test_of_the_rounds_that_were_missed_one_is_made() -> None:
    """However long the operator was away, and then the next at its time."""
    assert _round_due("2031-05-06T02:59:59Z", compaction={"lastScheduledAt": AT}) == ""
    late = _round_due("2031-05-09T12:00:00Z", compaction={"lastScheduledAt": AT})
    assert late == "2031-05-09T03:00:00Z"
    made = succeeded(scheduled_at=late)
    assert _round_due("2031-05-09T12:01:00Z", made, compaction={"lastScheduledAt": AT}) == ""
    assert _round_due("2031-05-10T03:00:00Z", made) == "2031-05-10T03:00:00Z"


def test_no_round_is_due_while_another_is_unfinished() -> None:
    """Nor before a backup that is due at the same time; it is made as soon as that is there."""
    assert _round_due(AT, compact()) == ""
    assert _round_due(AT, backup_due=AT) == ""
    assert _round_due(AT) == AT


def test_a_clock_that_jumped_ahead_does_not_stop_rounds() -> None:
    """A round was made for a time in ten years; the next comes at its time all the same."""
    ahead = "2041-05-06T03:00:00Z"

    assert (
        _round_due(AT, succeeded(scheduled_at=ahead), compaction={"lastScheduledAt": ahead}) == AT
    )
    assert _due("03:01:00", of=_group(backup={"lastScheduledAt": ahead})) == AT


def test_a_clock_that_is_set_back_makes_no_round_again() -> None:
    """By seconds, just when one was made: neither that of the day before, nor the same again."""
    for at in ("2031-05-06T02:59:58Z", AT, "2031-05-06T03:00:02Z"):
        assert _round_due(at, compaction={"lastScheduledAt": AT}) == ""
