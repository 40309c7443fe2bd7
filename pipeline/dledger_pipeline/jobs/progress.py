"""How far a job is: lines for people, and metrics for Prometheus while it runs.

A job tells one `Progress`, which says both, so that they agree. Metrics are served by
`served` until the job ends; what came of it is its result's to tell. Used by all jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dledger.common.http import HealthServer
from dledger_pipeline.jobs.result import size

_COMMAND: Final = ("command",)
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - a pod is scraped at its own


class Phase(StrEnum):
    """What a job is at."""

    PLANNING = "planning"
    WORKING = "working"
    COMPACTING = "compacting"
    ERASING = "erasing"
    PUBLISHING = "publishing"
    EXPIRING = "expiring"


class Done(NamedTuple):
    """What was done with a range: bytes of its records, and of the object read or written."""

    record_bytes: int
    object_bytes: int


class Progress:
    """Told by a job what it is at; any thread may tell.

    Args:
        command: What the metrics are labelled with.
        say: Given one line at a time, for people.
        now_s: A clock that never goes back, in seconds.
    """

    def __init__(
        self,
        command: str,
        say: Callable[[str], None] = lambda _: None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command = command
        self._say = say
        self._now_s = now_s
        self._lock = threading.Lock()
        self._began_s = self._working_s = now_s()
        self._phase = Phase.PLANNING
        self._ranges = self._done = 0
        self._record_bytes = self._object_bytes = 0
        self._before, self._done_before = Done(0, 0), 0

    def __call__(self, line: str) -> None:
        """Say a line."""
        self._say(line)

    def at(self, phase: Phase) -> None:
        """Begin a phase."""
        with self._lock:
            self._phase = phase

    def working(self, ranges: int = 0) -> None:
        """Begin the work on so many ranges in all, 0 if nobody knows yet; rates count from here.

        A job that begins again counts anew; in metrics it goes on, with as many ranges more.
        """
        with self._lock:
            self._phase, self._ranges, self._working_s = Phase.WORKING, ranges, self._now_s()
            self._before = Done(self._record_bytes, self._object_bytes)
            self._done_before = self._done

    def finished(self, done: Done, of: int | None = None) -> None:
        """Count a range that is done, *of* so many, and say how far it is."""
        with self._lock:
            self._ranges = self._ranges if of is None else of
            self._done += 1
            self._count(done)
            read = self._record_bytes - self._before.record_bytes
            rate = read / 1e6 / max(self._now_s() - self._working_s, 1e-3)
            line = (
                f"{self._done - self._done_before} of {self._ranges} ranges: "
                f"{size(read)} of records, {rate:.1f} MB/s"
            )
        self._say(line)

    def freed(self, object_bytes: int) -> None:
        """Count what was deleted."""
        with self._lock:
            self._count(Done(0, object_bytes))

    def _count(self, done: Done) -> None:
        self._record_bytes += done.record_bytes
        self._object_bytes += done.object_bytes

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics as they are now; docs/monitoring.md has them."""
        with self._lock:
            phase, seconds = self._phase, self._now_s() - self._began_s
            ranges = self._done_before + self._ranges if self._ranges else 0
            gauges = {
                "ranges": (ranges, "Ranges of entries that this run works on; 0 until known"),
                "running_seconds": (seconds, "How long this run has taken so far"),
            }
            counters = {
                "done_ranges": (self._done, "Ranges of entries that are done"),
                "record_bytes": (self._record_bytes, "Bytes of records in the ranges done"),
                "object_bytes": (
                    self._object_bytes,
                    "Bytes of the objects that were written or read for them; deleted, for gc",
                ),
            }
        for kind, found in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (value, text) in found.items():
                family = kind(f"dledger_backup_{name}", text, labels=_COMMAND)
                family.add_metric([self.command], value)
                yield family
        phases = GaugeMetricFamily(
            "dledger_backup_phase",
            "1 for what the run is at, 0 for the other phases",
            labels=(*_COMMAND, "phase"),
        )
        for each in Phase:
            phases.add_metric([self.command, each], each is phase)
        yield phases


class _Collector(Collector):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        return self._progress.metrics()


def registry(progress: Progress) -> CollectorRegistry:
    """Return a registry of the metrics of *progress* and no others."""
    found = CollectorRegistry()
    found.register(_Collector(progress))
    return found


@contextmanager
def served(progress: Progress, port: int) -> Iterator[None]:
    """Serve the metrics on a port of all addresses until the block ends; 0: do not.

    A port that is in use is told, and costs the metrics, not the job.
    """
    if not port:
        yield
        return
    try:
        server = HealthServer(
            (_ALL_ADDRESSES, port), live=str, ready=str, registry=registry(progress)
        )
    except OSError as error:
        progress(f"no metrics: cannot listen on port {port}: {error}")
        yield
        return
    server.start()
    try:
        yield
    finally:
        server.close()
