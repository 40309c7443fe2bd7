"""What a producer counts, and the same for Prometheus (`dledger_spool_*`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(slots=True)
class Counts:
    """Messages since the producer was opened, by what became of them."""

    stored: int = 0
    spooled: int = 0
    replayed: int = 0
    rejected: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolCounters:
    """A producer's figures.

    Attributes:
        stored: Messages that the group took directly, since the producer was opened.
        spooled: Messages that were written to the local disk.
        replayed: Messages that the group took from there.
        rejected: Messages that the group refused and that are kept in ``rejected/``.
        lost: Messages lost to damage, as reported.
        depth: Messages that wait to be replayed.
        bytes: What their records take.
        disk_bytes: What all files of the spool take, whole.
        limit_bytes: What they may take.
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


_COUNTERS = {
    "stored": "Messages that the group took directly",
    "spooled": "Messages written to the local disk because the group took none",
    "replayed": "Messages that the group took from the local disk",
    "rejected": "Spooled messages that the group refused, kept in a file",
    "lost": "Spooled messages lost to damage of the local disk",
}
_GAUGES = {
    "depth": "Messages that wait on the local disk",
    "bytes": "Bytes of the messages that wait",
    "disk_bytes": "Bytes that the spool takes on the local disk",
    "limit_bytes": "Bytes that the spool may take",
}


class SpoolCollector(Collector):
    """Reads producers' figures whenever a registry is scraped; their one label is *spool*.

    *figures* has for each spool's name what returns its figures.
    """

    def __init__(self, figures: Mapping[str, Callable[[], SpoolCounters]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield one family for each figure."""
        now = {spool: figures() for spool, figures in self._figures.items()}
        for name, text in _COUNTERS.items():
            yield _filled(CounterMetricFamily(f"dledger_spool_{name}", text, labels=["spool"]), now)
        for name, text in _GAUGES.items():
            yield _filled(GaugeMetricFamily(f"dledger_spool_{name}", text, labels=["spool"]), now)


_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)


def _filled(family: _Family, now: Mapping[str, SpoolCounters]) -> _Family:
    for spool, figures in now.items():
        family.add_metric([spool], getattr(figures, family.name.removeprefix("dledger_spool_")))
    return family
