"""The operator's metrics: runaways, and the series of groups that are gone."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from dledger_operator.metrics.metrics import RUNAWAY_ROUNDS, Metrics

GROUP = ("shop", "orders")
LABELS = {"namespace": "shop", "group": "orders"}


def _round(metrics: Metrics, at_s: float, *, succeeded: bool = True) -> bool:
    return metrics.reconciled(*GROUP, started_s=at_s - 0.01, ended_s=at_s, succeeded=succeeded)


def _series_of_groups(registry: CollectorRegistry) -> list[str]:
    families = registry.collect()
    return [s.name for family in families for s in family.samples if "group" in s.labels]


def test_a_round_a_second_is_no_runaway() -> None:
    """That is how often a group is looked at."""
    metrics = Metrics()

    assert not any(_round(metrics, at_s) for at_s in range(600))
    assert metrics.registry.get_sample_value("dledger_operator_runaway", LABELS) == 0
    assert metrics.registry.get_sample_value("dledger_operator_rounds_total", LABELS) == 600


def test_a_runaway_is_told_once_and_shown_until_a_calm_minute_has_passed() -> None:
    """The alert's business is the state, the log's is the change."""
    metrics = Metrics()

    told = [_round(metrics, n * 0.01) for n in range(2 * RUNAWAY_ROUNDS)]
    shown = metrics.registry.get_sample_value("dledger_operator_runaway", LABELS)
    for at_s in range(60, 190, 2):
        _round(metrics, at_s)

    assert told.count(True) == 1
    assert shown == 1
    assert metrics.registry.get_sample_value("dledger_operator_runaway", LABELS) == 0


def test_rounds_that_fail_are_counted_from_zero() -> None:
    """A counter that is born with its first error shows no increase."""
    metrics = Metrics()

    _round(metrics, 1)
    before = metrics.registry.get_sample_value("dledger_operator_reconcile_errors_total", LABELS)
    _round(metrics, 2, succeeded=False)

    after = metrics.registry.get_sample_value("dledger_operator_reconcile_errors_total", LABELS)
    assert (before, after) == (0, 1)


def test_a_group_that_is_gone_takes_its_series_along() -> None:
    """Else labels would pile up, and alerts fire for nothing."""
    metrics = Metrics()
    conditions = [{"type": "Available", "status": "True", "reason": "LeaderElected"}]

    _round(metrics, 1)
    metrics.show(*GROUP, {"readyReplicas": 3, "conditions": conditions}, asked=3)
    metrics.forget(*GROUP)

    assert _series_of_groups(metrics.registry) == []


def test_a_condition_has_one_reason_at_a_time() -> None:
    """Or an alert would name what was wrong before."""
    metrics = Metrics()
    for status, reason in (("True", "MemberBehind"), ("True", "DiskLost")):
        row = {"type": "Degraded", "status": status, "reason": reason}
        metrics.show(*GROUP, {"readyReplicas": 2, "conditions": [row]}, asked=3)

    families = metrics.registry.collect()
    named = "dledger_operator_group_condition_reason"
    shown = [s for family in families for s in family.samples if s.name == named]
    assert [(s.labels["condition"], s.labels["reason"], s.value) for s in shown] == [
        ("Degraded", "DiskLost", 1)
    ]
    assert metrics.registry.get_sample_value("dledger_operator_group_replicas", LABELS) == 3


def test_what_was_known_last_stays_with_its_age_while_nobody_looks() -> None:
    """An alert must not stop because the API server does not answer."""
    now_s = [10.0]
    metrics = Metrics(now_s=lambda: now_s[0])
    metrics.show(*GROUP, {"readyReplicas": 2, "conditions": []}, asked=3)
    _round(metrics, 10)
    now_s[0] = 70.0
    _round(metrics, 70, succeeded=False)

    value = metrics.registry.get_sample_value
    assert value("dledger_operator_group_ready_replicas", LABELS) == 2
    assert value("dledger_operator_group_age_seconds", LABELS) == 60


def test_the_series_of_all_groups_but_those_that_are_there_go() -> None:
    """Another process may look after them by now, or they were deleted meanwhile."""
    metrics = Metrics()
    for name in ("orders", "pay"):
        metrics.reconciled("shop", name, started_s=0, ended_s=1, succeeded=True)
        metrics.show("shop", name, {"readyReplicas": 3, "conditions": []}, asked=3)
    metrics.backups.failed("shop", "gone")

    metrics.keep([("shop", "pay")])

    families = metrics.registry.collect()
    left = {s.labels["group"] for f in families for s in f.samples if "group" in s.labels}
    assert left == {"pay"}
