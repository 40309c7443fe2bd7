"""What the operator counts and times: `dledger_operator_*`; see docs/monitoring.md.

Labels are bounded by the groups. A group that is gone takes its series along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dledger_operator.api.spec import Json
from dledger_operator.metrics.backup_metrics import BackupMetrics

_GROUP: Final = ("namespace", "group")
_VALUES: Final = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
_WINDOW_S: Final = 60.0
RUNAWAY_ROUNDS: Final = 300
"""A group has about one round a second; with more than this in a minute its own writes wake it."""


@dataclass(slots=True)
class _Pace:
    """Counts the rounds of one group, minute by minute."""

    since_s: float
    rounds: int = 0
    runaway: bool = False

    def count(self, now_s: float) -> None:
        """Count a round; a minute's result stays until the end of the next."""
        if now_s - self.since_s >= _WINDOW_S:
            self.runaway = self.rounds > RUNAWAY_ROUNDS
            self.since_s, self.rounds = now_s, 0
        self.rounds += 1
        self.runaway = self.runaway or self.rounds > RUNAWAY_ROUNDS


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "dledger_operator_reconcile_seconds",
            "Time to observe one group, plan, act and write its status.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )
        self._rounds = Counter(
            "dledger_operator_rounds_total",
            "Rounds of a group: about one a second, more while things change.",
            _GROUP,
            registry=registry,
        )
        self._errors = Counter(
            "dledger_operator_reconcile_errors_total",
            "Rounds of a group that ended in an error and are tried again.",
            _GROUP,
            registry=registry,
        )
        self._runaway = Gauge(
            "dledger_operator_runaway",
            f"1 when a group had more than {RUNAWAY_ROUNDS} rounds in a minute, else 0.",
            _GROUP,
            registry=registry,
        )
        self.writes = Counter(
            "dledger_operator_writes_total",
            "Objects written to the API server; none while everything is converged.",
            ("kind",),
            registry=registry,
        )
        self.leading = Gauge(
            "dledger_operator_leading",
            "1 while this process holds the Lease and acts, else 0.",
            registry=registry,
        )
        self.groups = Gauge(
            "dledger_operator_groups", "BrokerGroups looked after.", registry=registry
        )
        self._condition = Gauge(
            "dledger_operator_group_condition",
            "A condition of a group: 1 True, 0 False, -1 Unknown.",
            (*_GROUP, "condition"),
            registry=registry,
        )
        self._replicas = Gauge(
            "dledger_operator_group_ready_replicas",
            "Ready pods of a group.",
            _GROUP,
            registry=registry,
        )

        self.backups = BackupMetrics(registry)
        self._shown: dict[tuple[str, str], set[str]] = {}
        self._paces: dict[tuple[str, str], _Pace] = {}

    def wrote(self, kind: str) -> None:
        """Count a write."""
        self.writes.labels(kind).inc()

    def reconciled(
        self, namespace: str, group: str, *, started_s: float, ended_s: float, succeeded: bool
    ) -> bool:
        """Note one round of a group, in monotonic seconds, and whether it ended without an error.

        Returns:
            Whether it is the round that makes the group a runaway.
        """
        key = namespace, group
        self.reconcile_seconds.observe(ended_s - started_s)
        self._rounds.labels(*key).inc()
        self._errors.labels(*key).inc(0 if succeeded else 1)
        pace = self._paces.setdefault(key, _Pace(ended_s))
        before = pace.runaway
        pace.count(ended_s)
        self._runaway.labels(*key).set(pace.runaway)
        return pace.runaway and not before

    def show(self, namespace: str, group: str, status: Json) -> None:
        """Show a group's status."""
        self._replicas.labels(namespace, group).set(status["readyReplicas"])
        self._shown[namespace, group] = {row["type"] for row in status["conditions"]}
        for row in status["conditions"]:
            self._condition.labels(namespace, group, row["type"]).set(_VALUES[row["status"]])

    def forget(self, namespace: str, group: str) -> None:
        """Drop the series of a group that is gone."""
        self.backups.forget(namespace, group)
        if self._paces.pop((namespace, group), None) is not None:
            for metric in (self._rounds, self._errors, self._runaway):
                metric.remove(namespace, group)
        kinds = self._shown.pop((namespace, group), set())
        for kind in kinds:
            self._condition.remove(namespace, group, kind)
        if kinds:
            self._replicas.remove(namespace, group)
