"""What is known of the groups' backups: `dledger_backup_*`; see docs/monitoring.md.

Labels are bounded by the groups. A group that is gone takes its series along.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from dledger_operator.api.spec import BrokerGroup, Json

_GROUP: Final = ("namespace", "group")


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
        self._last_success = Gauge(
            "dledger_backup_last_success_timestamp_seconds",
            "When the newest backup was completed, in Unix seconds.",
            _GROUP,
            registry=registry,
        )
        self._age = Gauge(
            "dledger_backup_age_seconds",
            "Since the newest backup was completed; since the group was created if none was yet.",
            _GROUP,
            registry=registry,
        )
        self._failures = Counter(
            "dledger_backup_failures_total",
            "Backups that failed.",
            _GROUP,
            registry=registry,
        )
        self._shown: set[tuple[str, str]] = set()

    def show(self, group: BrokerGroup, status: Json) -> None:
        """Show a group that has backups, or a store for them."""
        completed_at = (status.get("backup") or {}).get("completedAt")
        if not completed_at and not group.spec.backup.store.url:
            return
        key = group.namespace, group.name
        self._shown.add(key)
        self._failures.labels(*key)
        if completed_at:
            self._last_success.labels(*key).set(_unix_s(completed_at))
        since_s = _unix_s(completed_at or group.created_at)
        self._age.labels(*key).set_function(partial(self._since, since_s))

    def failed(self, namespace: str, group: str) -> None:
        """Count a backup that failed, of a group that there is."""
        self._shown.add((namespace, group))
        self._failures.labels(namespace, group).inc()

    def forget(self, namespace: str, group: str) -> None:
        """Drop the series of a group that is gone."""
        if (namespace, group) in self._shown:
            self._shown.discard((namespace, group))
            for metric in (self._last_success, self._age, self._failures):
                metric.remove(namespace, group)

    def _since(self, since_s: float) -> float:
        return max(0.0, self._now_s() - since_s)


def _unix_s(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
