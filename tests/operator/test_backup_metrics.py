"""`dledger_backup_*`: what is shown of a group's backups, and that it goes with the group."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dledger_operator.api.spec import BrokerGroup
from dledger_operator.metrics.metrics import BackupMetrics
from dledger_operator.status.backup_history import too_old_from
from tests.operator.backup_samples import ENDED, STORE
from tests.operator.samples import NOW, body, bootstrapped

LABELS = {"namespace": "shop", "group": "orders"}
LAST = "dledger_backup_last_success_timestamp_seconds"
AGE = "dledger_backup_age_seconds"
FAILURES = "dledger_backup_failures_total"
TOO_OLD = "dledger_backup_stale_timestamp_seconds"


class Shown:
    """The metrics, at a time that stands still."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        now_s = datetime.fromisoformat(NOW).timestamp()
        self.metrics = BackupMetrics(self.registry, now_s=lambda: now_s)

    def show(self, group: BrokerGroup, status: dict[str, Any]) -> None:
        """Show a group as a round does."""
        too_old_at = too_old_from(group, status.get("backup") or {})
        self.metrics.show(group, status, too_old_at=too_old_at)

    def value(self, name: str) -> float | None:
        """Return the value of the group's series; None without one."""
        return self.registry.get_sample_value(name, LABELS)


def _group(spec: dict[str, Any] | None = None) -> BrokerGroup:
    made = body(spec)
    made["metadata"]["creationTimestamp"] = "2031-05-05T07:08:09Z"
    return BrokerGroup.parse(made)


def test_a_completed_backup_shows_its_time_and_age() -> None:
    """The age grows by itself: it is reckoned when it is asked for."""
    shown = Shown()

    shown.show(bootstrapped(), {"backup": {"completedAt": ENDED}})

    assert shown.value(LAST) == datetime.fromisoformat(ENDED).timestamp()
    assert shown.value(AGE) == 3 * 60 + 9
    assert shown.value(FAILURES) == 0


def test_a_group_with_a_store_and_no_backup_ages_from_its_beginning() -> None:
    """An alert on the age must not wait for the first success."""
    shown = Shown()

    shown.show(_group({"backup": {"store": STORE}}), {})

    assert shown.value(AGE) == 24 * 3600
    assert shown.value(LAST) is None


@pytest.mark.parametrize(
    ("spec", "backup", "from_s"),
    [
        ({}, {"completedAt": ENDED}, 54 * 3600),
        ({"backup": {"schedule": "0 * * * *"}}, {"completedAt": ENDED}, 3 * 3600),
        ({"retention": {"hours": 2}}, {"completedAt": ENDED}, 1.5 * 3600),
        ({}, {"completedAt": ENDED, "asOf": "2031-05-06T06:05:00Z"}, 53 * 3600),
    ],
)
def test_when_a_backup_gets_too_old_is_known_beforehand(
    spec: dict[str, Any], backup: dict[str, str], from_s: float
) -> None:
    """By the schedule or by what nodes still keep, whichever is sooner, as `BackupReady`."""
    shown = Shown()

    shown.show(_group(spec), {"backup": backup})

    assert (shown.value(TOO_OLD) or 0) - datetime.fromisoformat(ENDED).timestamp() == from_s


def test_a_group_has_a_day_and_two_hours_for_its_first_backup() -> None:
    """Of which nobody needs to be there."""
    shown = Shown()

    shown.show(_group({"backup": {"store": STORE}}), {})

    created_s = datetime.fromisoformat("2031-05-05T07:08:09Z").timestamp()
    assert (shown.value(TOO_OLD) or 0) - created_s == 26 * 3600


def test_a_group_that_wants_no_backups_shows_none() -> None:
    """Nor does it alert."""
    shown = Shown()

    shown.show(_group(), {})

    assert shown.value(AGE) is None
    assert shown.value(FAILURES) is None


def test_a_group_that_wants_no_backups_any_more_is_not_late_with_its_first() -> None:
    """Its series went on as they were, and the alert goes by what was said in seven days."""
    shown = Shown()
    shown.show(_group({"backup": {"store": STORE}}), {})

    shown.show(_group(), {})

    assert shown.value(TOO_OLD) == float("inf")


def test_failures_are_counted() -> None:
    """Each once, also of a group that is not shown otherwise."""
    shown = Shown()

    shown.metrics.failed("shop", "orders")
    shown.metrics.failed("shop", "orders")

    assert shown.value(FAILURES) == 2


def test_a_group_that_is_gone_takes_its_series_along() -> None:
    """Labels are bounded by the groups there are."""
    shown = Shown()
    shown.show(bootstrapped(), {"backup": {"completedAt": ENDED}})
    shown.metrics.failed("shop", "orders")

    shown.metrics.forget("shop", "orders")
    shown.metrics.forget("shop", "never-there")

    assert [shown.value(name) for name in (LAST, AGE, FAILURES)] == [None] * 3
