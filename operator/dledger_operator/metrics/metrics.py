"""The operator's metrics, of backups and compaction, too; see docs/monitoring.md.

Labels are bounded by the number of groups; the series of a group that was deleted are removed, and
so are all of them when another process looks after the groups. They stay while the API server does
not answer: an alert that fires must not stop because of that.
Filled by the reconcilers and loops, served by `__main__`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from dledger_operator.api.spec import BrokerGroup, Json
from dledger_operator.metrics.compaction_metrics import CompactionMetrics

_GROUP: Final = ("namespace", "group")
_VALUES: Final = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
_WINDOW_S: Final = 60.0
RUNAWAY_ROUNDS: Final = 300
"""A group has at most about one round a second; with more than this in a minute its own writes, or
its nodes, wake it."""


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


class BackupMetrics:
    """The metrics of backups, in the operator's registry.

    Args:
        registry: Theirs.
        now_s: The time of day, in Unix seconds.
    """

    def __init__(
        self, registry: CollectorRegistry, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._now_s = now_s
        gauge = partial(Gauge, labelnames=_GROUP, registry=registry)
        self._last_success = gauge(
            "dledger_backup_last_success_timestamp_seconds",
            "When the newest backup was completed, in Unix seconds.",
        )
        self._age = gauge(
            "dledger_backup_age_seconds",
            "Since the newest backup was completed; since the group was created if none was yet.",
        )
        self._too_old = gauge(
            "dledger_backup_stale_timestamp_seconds",
            "From when the newest backup, or having none, is too old for schedule and retention.",
        )
        self._failures = Counter(
            "dledger_backup_failures_total", "Backups that failed.", _GROUP, registry=registry
        )
        self.shown: set[tuple[str, str]] = set()

    def show(self, group: BrokerGroup, status: Json, *, too_old_at: datetime) -> None:
        """Show a group that has backups, or a store for them.

        *too_old_at*: From when the newest one, or having none, is too old.
        """
        key = group.namespace, group.name
        completed_at = (status.get("backup") or {}).get("completedAt")
        if not completed_at and not group.spec.backup.store.url:
            if key in self.shown:  # it is not wanted any more; alerts remember what was said before
                self._too_old.labels(*key).set(float("inf"))
            return
        self.shown.add(key)
        self._failures.labels(*key)
        self._too_old.labels(*key).set(too_old_at.timestamp())
        if completed_at:
            self._last_success.labels(*key).set(_unix_s(completed_at))
        since_s = _unix_s(completed_at or group.created_at)
        self._age.labels(*key).set_function(partial(self._since, since_s))

    def failed(self, namespace: str, group: str) -> None:
        """Count a backup that failed, of a group that there is."""
        self.shown.add((namespace, group))
        self._failures.labels(namespace, group).inc()

    def forget(self, namespace: str, group: str) -> None:
        """Drop the series of a group that is gone."""
        if (namespace, group) in self.shown:
            self.shown.discard((namespace, group))
            for metric in (self._last_success, self._age, self._too_old, self._failures):
                metric.remove(namespace, group)

    def _since(self, since_s: float) -> float:
        return max(0.0, self._now_s() - since_s)


class Metrics:
    """The operator's metrics, in a registry of their own.

    Args:
        now_s: Monotonic seconds.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.registry = registry = CollectorRegistry()
        gauge = partial(Gauge, labelnames=_GROUP, registry=registry)
        counter = partial(Counter, labelnames=_GROUP, registry=registry)
        self.reconcile_seconds = Histogram(
            "dledger_operator_reconcile_seconds",
            "Time to observe one group, plan, act and write its status.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )
        self._rounds = counter(
            "dledger_operator_rounds_total",
            "Rounds of a group: one each ten seconds while nothing changes, more while things do.",
        )
        self._errors = counter(
            "dledger_operator_reconcile_errors_total",
            "Rounds of a group that ended in an error and are tried again.",
        )
        self._runaway = gauge(
            "dledger_operator_runaway",
            f"1 when a group had more than {RUNAWAY_ROUNDS} rounds in a minute, else 0.",
        )
        self.writes = Counter(
            "dledger_operator_writes_total",
            "Objects written to the API server; while everything is converged, statuses alone: "
            "one a second at most.",
            ("kind",),
            registry=registry,
        )
        self.leading = Gauge(
            "dledger_operator_leading",
            "1 while this process holds the Lease and acts, else 0.",
            registry=registry,
        )
        self.groups = Gauge(
            "dledger_operator_groups",
            "BrokerGroups that it sees, those managed elsewhere too.",
            registry=registry,
        )
        self._condition = Gauge(
            "dledger_operator_group_condition",
            "A condition of a group: 1 True, 0 False, -1 Unknown.",
            (*_GROUP, "condition"),
            registry=registry,
        )
        self._reason = Gauge(
            "dledger_operator_group_condition_reason",
            "1 for the reason that a condition of a group has now; no series for the others.",
            (*_GROUP, "condition", "reason"),
            registry=registry,
        )
        self._replicas = gauge("dledger_operator_group_ready_replicas", "Ready pods of a group.")
        self._asked = gauge(
            "dledger_operator_group_replicas", "Voters that the spec of a group asks for."
        )
        self._age = gauge(
            "dledger_operator_group_age_seconds",
            "Since a group was last looked at; the other series of it are from then.",
        )
        self._elsewhere = gauge(
            "dledger_operator_managed_elsewhere",
            "1 for a group that another operator has its mark on: this one leaves it alone.",
        )
        self._expiry = Gauge(
            "dledger_operator_certificate_expiry_timestamp_seconds",
            "When the peers' authority (ca), or the first of their certificates (peers), ends.",
            (*_GROUP, "certificate"),
            registry=registry,
        )
        self._operations = Counter(
            "dledger_operator_operations_total",
            "BrokerOperations that ended, by their kind and result.",
            ("kind", "result"),
            registry=registry,
        )
        self.backups = BackupMetrics(registry)
        self.compaction = CompactionMetrics(registry)
        ProcessCollector(registry=registry)
        self._certificates: set[tuple[str, str, str]] = set()
        self._shown: dict[tuple[str, str], dict[str, str]] = {}
        self._foreign: set[tuple[str, str]] = set()
        self._paces: dict[tuple[str, str], _Pace] = {}

    def wrote(self, kind: str) -> None:
        """Count a write."""
        self.writes.labels(kind).inc()

    def operated(self, kind: str, result: str) -> None:
        """Count a BrokerOperation that ended."""
        self._operations.labels(kind, result).inc()

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
        if succeeded or key not in self._paces:
            self._age.labels(*key).set_function(partial(self._since, ended_s))
        pace = self._paces.setdefault(key, _Pace(ended_s))
        before = pace.runaway
        pace.count(ended_s)
        self._runaway.labels(*key).set(pace.runaway)
        return pace.runaway and not before

    def show(self, namespace: str, group: str, status: Json, *, asked: int) -> None:
        """Show a group's status; *asked* is how many voters its spec asks for."""
        self._replicas.labels(namespace, group).set(status["readyReplicas"])
        self._asked.labels(namespace, group).set(asked)
        before = self._shown.get((namespace, group), {})
        self._shown[namespace, group] = now = {
            row["type"]: str(row["reason"]) for row in status["conditions"]
        }
        for row in status["conditions"]:
            self._condition.labels(namespace, group, row["type"]).set(_VALUES[row["status"]])
            self._reason.labels(namespace, group, row["type"], row["reason"]).set(1)
        for kind, reason in before.items() - now.items():
            self._reason.remove(namespace, group, kind, reason)

    def show_elsewhere(self, namespace: str, group: str, *, is_elsewhere: bool) -> None:
        """Show that another operator has a group, and nothing else of it; or no more so."""
        key = namespace, group
        if is_elsewhere and key not in self._foreign:
            self.forget(*key)
            self._foreign.add(key)
            self._elsewhere.labels(*key).set(1)
        elif not is_elsewhere and key in self._foreign:
            self._foreign.remove(key)
            self._elsewhere.remove(*key)

    def show_certificates(self, namespace: str, group: str, *, ca: float, peers: float) -> None:
        """Show when certificates end, in Unix seconds; 0 for none."""
        for which, ends_s in (("ca", ca), ("peers", peers)):
            key = namespace, group, which
            if ends_s:
                self._certificates.add(key)
                self._expiry.labels(*key).set(ends_s)

    def keep(self, groups: Collection[tuple[str, str]]) -> None:
        """Drop the series of all groups but these."""
        known = {*self._paces, *self._shown, *self._foreign, *self.backups.shown}
        known |= self.compaction.shown
        for key in known - {*groups}:
            self.forget(*key)

    def forget(self, namespace: str, group: str) -> None:
        """Drop the series of a group that is gone."""
        self.backups.forget(namespace, group)
        self.compaction.forget(namespace, group)
        self.show_elsewhere(namespace, group, is_elsewhere=False)
        for key in [key for key in self._certificates if key[:2] == (namespace, group)]:
            self._certificates.remove(key)
            self._expiry.remove(*key)
        if self._paces.pop((namespace, group), None) is not None:
            for metric in (self._rounds, self._errors, self._runaway, self._age):
                metric.remove(namespace, group)
        shown = self._shown.pop((namespace, group), None)
        if shown is None:
            return
        for kind, reason in shown.items():
            self._condition.remove(namespace, group, kind)
            self._reason.remove(namespace, group, kind, reason)
        self._replicas.remove(namespace, group)
        self._asked.remove(namespace, group)

    def _since(self, at_s: float) -> float:
        return max(0.0, self._now_s() - at_s)


def _unix_s(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
