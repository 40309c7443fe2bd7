"""Metrics of one node, by the names that dashboards rely on (`dledger_*`)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class NodeMetrics:
    """The counters the driver and servicers update; gauges are read when scraped."""

    def __init__(self, group: str, node: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"group": group, "node": node}
        self.sync_seconds = Histogram(
            "dledger_sync_seconds",
            "Time to write and sync one group of entries",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.sync_bytes = Counter(
            "dledger_sync_bytes", "Entry bytes synced to disk", registry=self.registry
        )
        self.batch_commands = Histogram(
            "dledger_batch_commands",
            "Commands that shared one log entry",
            registry=self.registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        )
        self.elections = Counter(
            "dledger_elections",
            "Elections this node won, by what started them",
            ["cause"],
            registry=self.registry,
        )
        self.requests = Counter(
            "dledger_requests",
            "Client requests by method and code",
            ["method", "code"],
            registry=self.registry,
        )
        self._role = Gauge(
            "dledger_role",
            "1 for the present role, 0 for the others",
            ["group", "node", "role"],
            registry=self.registry,
        )
        self._gauges = {
            name: Gauge(f"dledger_{name}", text, ["group", "node"], registry=self.registry)
            for name, text in {
                "term": "Present Raft term",
                "has_leader": "1 when this node knows a leader",
                "commit_index": "Highest committed index known here",
                "applied_index": "Highest index applied here",
                "last_index": "Highest index in the log here",
                "synced_index": "Highest index synced here",
                "storage_free_bytes": "Free bytes of the volume",
            }.items()
        }
        self._lag = Gauge(
            "dledger_follower_lag",
            "Entries a follower is behind the leader, as the leader sees it",
            ["group", "follower"],
            registry=self.registry,
        )

    def set_role(self, role: str) -> None:
        """Publish the present role."""
        for name in ("unjoined", "follower", "pre-candidate", "candidate", "leader"):
            self._role.labels(**self._labels, role=name).set(1 if name == role else 0)

    def set_gauges(self, **values: float) -> None:
        """Publish the node's positions, by the names above."""
        for name, value in values.items():
            self._gauges[name].labels(**self._labels).set(value)

    def set_lag(self, lag_by_follower: dict[str, int]) -> None:
        """Publish the leader's view of its followers; empty on followers."""
        self._lag.clear()
        for follower, lag in lag_by_follower.items():
            self._lag.labels(group=self._labels["group"], follower=follower).set(lag)
