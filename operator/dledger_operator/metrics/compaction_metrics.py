"""The metrics of compaction, in the operator's registry: `dledger_compaction_*`."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from dledger_operator.api.spec import BrokerGroup, Json

_GROUP: Final = ("namespace", "group")
_OUTCOMES: Final = {"let_go": "letGo", "kept": "kept", "later": "later"}


class CompactionMetrics:
    """Shows groups with compacted topics; an alert remembers what was said last."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, labelnames=_GROUP, registry=registry)
        self._since = gauge(
            "dledger_compaction_since_timestamp_seconds",
            "When the newest round succeeded; before one did, when a compacted topic was first "
            "seen.",
        )
        self._overdue = gauge(
            "dledger_compaction_overdue_timestamp_seconds",
            "From when a round of compaction, or having had none, is overdue.",
        )
        self._messages = Gauge(
            "dledger_compaction_messages",
            "Messages that the newest round let go of, copied forward, or left to go later.",
            (*_GROUP, "outcome"),
            registry=registry,
        )
        self._written = gauge(
            "dledger_compaction_written_bytes", "Bytes of the log that the newest round took."
        )
        self.shown: set[tuple[str, str]] = set()

    def show(self, group: BrokerGroup, status: Json, *, overdue_at: datetime) -> None:
        """Show a group that has compacted topics.

        *overdue_at*: From when the newest round, or having had none, is overdue.
        """
        key, last = (group.namespace, group.name), status.get("compaction") or {}
        if not last.get("topics"):
            if key in self.shown:  # none is wanted any more; alerts remember what was said before
                self._overdue.labels(*key).set(float("inf"))
            return
        self.shown.add(key)
        times = (last[key] for key in ("lastSucceededAt", "since") if key in last)
        since = max(map(datetime.fromisoformat, times))
        self._since.labels(*key).set(since.timestamp())
        self._overdue.labels(*key).set(overdue_at.timestamp())
        for outcome, field in _OUTCOMES.items():
            self._messages.labels(*key, outcome).set(last.get(field, 0))
        self._written.labels(*key).set(last.get("writtenBytes", 0))

    def forget(self, namespace: str, group: str) -> None:
        """Drop the series of a group that is gone."""
        key = namespace, group
        if key in self.shown:
            self.shown.discard(key)
            for metric in (self._since, self._overdue, self._written):
                metric.remove(*key)
            for outcome in _OUTCOMES:
                self._messages.remove(*key, outcome)
