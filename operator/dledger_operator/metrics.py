"""What the operator counts and times: `dledger_operator_*`. Labels are bounded by the groups."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dledger_operator.spec import Json

_GROUP: Final = ("namespace", "group")
_VALUES: Final = {"True": 1.0, "False": 0.0, "Unknown": -1.0}


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
        self.errors = Counter(
            "dledger_operator_reconcile_errors_total",
            "Reconciliations that ended in an error and are tried again.",
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

        self._shown: dict[tuple[str, str], set[str]] = {}

    def wrote(self, kind: str) -> None:
        """Count a write."""
        self.writes.labels(kind).inc()

    def show(self, namespace: str, group: str, status: Json) -> None:
        """Show a group's status."""
        self._replicas.labels(namespace, group).set(status["readyReplicas"])
        self._shown[namespace, group] = {row["type"] for row in status["conditions"]}
        for row in status["conditions"]:
            self._condition.labels(namespace, group, row["type"]).set(_VALUES[row["status"]])

    def forget(self, namespace: str, group: str) -> None:
        """Drop the series of a group that is gone."""
        kinds = self._shown.pop((namespace, group), set())
        for kind in kinds:
            self._condition.remove(namespace, group, kind)
        if kinds:
            self._replicas.remove(namespace, group)
