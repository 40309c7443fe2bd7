"""`dledger_backup_*`: what is shown of a group's backups, and that it goes with the group."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry

from dledger_operator.api.spec import BrokerGroup
from dledger_operator.metrics.metrics import BackupMetrics
from tests.operator.backup_samples import ENDED, STORE
from tests.operator.samples import NOW, body, bootstrapped

LABELS = {"namespace": "shop", "group": "orders"}
LAST = "dledger_backup_last_success_timestamp_seconds"
AGE = "dledger_backup_age_seconds"
FAILURES = "dledger_backup_failures_total"


class Shown:
    """The metrics, at a time that stands still."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        now_s = datetime.fromisoformat(NOW).timestamp()
        self.metrics = BackupMetrics(self.registry, now_s=lambda: now_s)

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

    shown.metrics.show(bootstrapped(), {"backup": {"completedAt": ENDED}})

    assert shown.value(LAST) == datetime.fromisoformat(ENDED).timestamp()
    assert shown.value(AGE) == 3 * 60 + 9
    assert shown.value(FAILURES) == 0


def test_a_group_with_a_store_and_no_backup_ages_from_its_beginning() -> None:
    """An alert on the age must not wait for the first success."""
    shown = Shown()

    shown.metrics.show(_group({"backup": {"store": STORE}}), {})

    assert shown.value(AGE) == 24 * 3600
    assert shown.value(LAST) is None


def test_a_group_that_wants_no_backups_shows_none() -> None:
    """Nor does it alert."""
    shown = Shown()

    shown.metrics.show(_group(), {})

    assert shown.value(AGE) is None
    assert shown.value(FAILURES) is None


def test_failures_are_counted() -> None:
    """Each once, also of a group that is not shown otherwise."""
    shown = Shown()

    shown.metrics.failed("shop", "orders")
    shown.metrics.failed("shop", "orders")

    assert shown.value(FAILURES) == 2


def test_a_group_that_is_gone_takes_its_series_along() -> None:
    """Labels are bounded by the groups there are."""
    shown = Shown()
    shown.metrics.show(bootstrapped(), {"backup": {"completedAt": ENDED}})
    shown.metrics.failed("shop", "orders")

    shown.metrics.forget("shop", "orders")
    shown.metrics.forget("shop", "never-there")

    assert [shown.value(name) for name in (LAST, AGE, FAILURES)] == [None] * 3
