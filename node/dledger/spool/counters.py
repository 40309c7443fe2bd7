"""A producer's counters, and their export to Prometheus (`dledger_spool_*`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dledger.spool.lanes import age_s
from dledger.spool.spool import Spool


@dataclass(slots=True)
class Counts:
    """Counts messages since the producer was opened, by their outcome."""

    stored: int = 0
    spooled: int = 0
    replayed: int = 0
    rejected: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolCounters:
    """A producer's counters and gauges.

    Attributes:
        stored: Messages sent to the group directly, since the producer was opened.
        spooled: Messages written to the local disk.
        replayed: Messages sent to the group from the local disk.
        rejected: Messages that the group refused and that are kept in ``rejected/``.
        lost: Messages reported as lost to disk damage.
        depth: Messages that wait to be replayed.
        bytes: The size of their records.
        disk_bytes: The total size of the spool's files.
        limit_bytes: The limit of *disk_bytes*.
        oldest_seconds: How long the oldest of the messages that wait has waited.
        unknown_outcomes: How many of them the group may have already: it was tried, and not told.
        degraded: 1 while the group takes no writes, else 0.
    """

    stored: int
    spooled: int
    replayed: int
    rejected: int
    lost: int
    depth: int
    bytes: int
    disk_bytes: int
    limit_bytes: int
    oldest_seconds: float
    unknown_outcomes: int
    degraded: int


def counters_of(counts: Counts, spool: Spool, *, limit_bytes: int, degraded: bool) -> SpoolCounters:
    """Return what is exported of a spool. Any thread may call this."""
    return SpoolCounters(
        **asdict(counts),
        depth=spool.waiting,
        bytes=spool.waiting_bytes,
        disk_bytes=spool.disk_bytes,
        limit_bytes=limit_bytes,
        oldest_seconds=age_s(spool.ages.oldest_ms),
        unknown_outcomes=spool.tried,
        degraded=int(degraded),
    )


_COUNTERS = {
    "stored": "Messages sent to the group directly",
    "spooled": "Messages written to the local disk because the group accepted no writes",
    "replayed": "Messages sent to the group from the local disk",
    "rejected": "Spooled messages that the group refused and that are kept in a file",
    "lost": "Spooled messages lost to damage on the local disk",
}
_GAUGES = {
    "depth": "Messages on the local disk that wait to be replayed",
    "bytes": "Bytes of the messages that wait to be replayed",
    "disk_bytes": "Bytes that the spool occupies on the local disk",
    "limit_bytes": "Bytes that the spool may occupy",
    "oldest_seconds": "How long the oldest message that waits has waited",
    "unknown_outcomes": "Messages that wait, and that the group may have already",
    "degraded": "1 while the group takes no writes",
}


class SpoolCollector(Collector):
    """Exports producers' counters when a registry is scraped, with the label *spool*.

    *figures* maps the name of each spool to a function that returns its counters.
    """

    def __init__(self, figures: Mapping[str, Callable[[], SpoolCounters]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield one metric family for each counter and gauge."""
        now = {spool: figures() for spool, figures in self._figures.items()}
        for kind, texts in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, text in texts.items():
                family = kind(f"dledger_spool_{name}", text, labels=["spool"])
                for spool, counters in now.items():
                    family.add_metric([spool], getattr(counters, name))
                yield family
