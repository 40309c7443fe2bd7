"""What is asked of the figures, and whether a run keeps it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from e2e.bench.catch_up import CATCH_UP, HALF_LOAD
from e2e.bench.contest import INSIDE
from e2e.bench.engine import APPEND, LATENCY, READ, STEADY
from e2e.bench.etcd import Etcd
from e2e.bench.failover import FAILOVER
from e2e.bench.java import NAME as JAVA
from e2e.bench.java_sdk import ASYNC_16, ASYNC_256, JAVA_SDK, PUSH, SIMPLE, SYNC_1, SYNC_64
from e2e.bench.machine import DISK
from e2e.bench.peer_lines import (
    PEER_APPEND,
    batches_beside_kafka,
    batches_cost_beside_kafka,
    cost,
    reads_beside_nats,
    single,
    singles_beside_nats,
)
from e2e.bench.rocketmq import NAME as ROCKETMQ
from e2e.bench.rows import OURS, Row, Run
from e2e.bench.sdk import SDK, SdkCalls
from e2e.bench.sidecar import BREAKS, DIRECT, QUIET, REPLAY, SIDECAR, THROUGH
from e2e.bench.typed_sends import DELAY_256, FIFO_256, TYPED
from e2e.harness.checks import Verdict

P99_MEANWHILE: Final = "the leader's p99 meanwhile, times the p99 before"
_KIB: Final = 1024
_DISK_SHARE: Final = 0.9
_SYNC_BYTES: Final = {256: 256 << 10, 64: 64 << 10, 16: 64 << 10}
"""The size of a sync that a batch size is compared with: a few batches of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One line of what must be shown.

    Attributes:
        line: In words.
        least: What it must be, at least, or at most where *is_most*.
        aim: What it should be; None where nothing more is asked.
        unit: Of all three.
        is_most: Whether less is better.
        value: Finds it in a run; None where it was not measured.
        bound: What the machine allows; it counts instead of *least* where it is lower.
    """

    line: str
    least: float
    aim: float | None
    unit: str
    is_most: bool = False
    value: Callable[[Run], float | None]
    bound: Callable[[Run], float | None] = lambda _: None

    def asked(self, run: Run) -> float:
        """Return what is asked on the machine of this run."""
        bound = self.bound(run)
        return self.least if bound is None else min(self.least, bound)

    def verdict(self, run: Run) -> str:
        """Return ``aim``, ``yes``, ``no``, or ``not measured``."""
        value = self.value(run)
        if value is None or math.isnan(value):
            return Verdict.UNMEASURED.value
        if self.aim is not None and self._keeps(value, self.aim):
            return "aim"
        kept = self._keeps(value, self.asked(run))
        return Verdict.KEPT.value if kept else Verdict.BROKEN.value

    def _keeps(self, value: float, bound: float) -> bool:
        return value <= bound if self.is_most else value >= bound


def select(run: Run, kind: str, system: str, name: str = "") -> list[Row]:
    """Return the rows of a kind and a system whose name contains *name*."""
    return [r for r in run.rows if r.kind == kind and r.system == system and name in r.name]


def figure(run: Run, kind: str, name: str, which: str, system: str = OURS) -> float | None:
    """Return a figure of the first row that has it."""
    found = (r.figures[which] for r in select(run, kind, system, name) if which in r.figures)
    return next(found, None)


def answered(run: Run, kind: str, name: str, which: str) -> float | None:
    """Return a figure of a load of ours of which nothing failed.

    The latency of what was answered says nothing of what was not.
    """
    whole = [row for row in run.rows if not row.figures.get("failures")]
    return figure(replace(run, rows=whole), kind, name, which)


def best(run: Run, system: str, *, batch: int | None = None, inside: bool = False) -> float | None:
    """Return the most messages of 1 KiB a second of a system, over its windows."""
    rates = [
        row.figures["per_s"]
        for row in run.rows
        if row.kind == APPEND
        and row.size_bytes == _KIB
        and (row.system == system or (inside and row.system.startswith(system)))
        and (INSIDE in row.name) == inside
        and batch in (None, row.batch)
    ]
    return max(rates, default=None)


def ratio(ours: float | None, other: float | None) -> float | None:
    """Return how many times *other* ours is."""
    return None if ours is None or not other else ours / other


def difference(one: float | None, other: float | None) -> float | None:
    """Return by how much *one* is larger."""
    return None if one is None or other is None else one - other


def in_unit(value: float | None, factor: float) -> float | None:
    """Return a figure in another unit."""
    return None if value is None else value * factor


def disk_bound(run: Run, sync_bytes: int) -> float | None:
    """Return 90 % of what the disk takes of three copies at such syncs, in 1 KiB messages."""
    rates = (
        row.figures["each_mb_s"]
        for row in run.rows
        if row.kind == DISK and row.window == 3 and row.size_bytes == sync_bytes
    )
    each = next(rates, None)
    return None if each is None else each * 1e6 * _DISK_SHARE / _KIB


def worst(run: Run, names: Sequence[str], which: str) -> float | None:
    """Return the largest of a figure over kinds of failover; None unless all were measured."""
    values = [figure(run, FAILOVER, name, which) for name in names]
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(names) else None


def _appends(batch: int, least: float, aim: float | None = None) -> Target:
    return Target(
        line=f"native appends, 1 KiB, batch {batch}",
        least=least,
        aim=aim,
        unit="/s",
        value=lambda run: best(run, OURS, batch=batch),
        bound=lambda run: disk_bound(run, _SYNC_BYTES[batch]),
    )


def _p99(line: str, load: str) -> Target:
    """Return what is asked of the clients' latency at a load."""
    return Target(
        line=line,
        least=15,
        aim=8,
        unit="ms",
        is_most=True,
        value=lambda run: answered(run, LATENCY, load, "p99_ms"),
    )


def _p99_meanwhile(load: str) -> Target:
    """Return what is asked of the clients' latency while a follower catches up."""
    return Target(
        line=f"{P99_MEANWHILE}, at {load}",
        least=2,
        aim=None,
        unit="x",
        is_most=True,
        value=lambda run: ratio(
            figure(run, CATCH_UP, load, "busy_p99_ms"), figure(run, CATCH_UP, load, "calm_p99_ms")
        ),
    )


def _times(line: str, least: float, aim: float, other: Callable[[Run], float | None]) -> Target:
    """Return what is asked of our best rate beside another system's."""
    return Target(
        line=line, least=least, aim=aim, unit="x",
        value=lambda run: ratio(best(run, OURS), other(run)),
    )  # fmt: skip


def _gap(line: str, most: float, aim: float | None, *faults: str, which: str = "max_ms") -> Target:
    """Return what is asked of the time without an acknowledgement when a leader is lost."""
    return Target(
        line=line, least=most, aim=aim, unit="ms", is_most=True,
        value=lambda run: worst(run, faults, which),
    )  # fmt: skip


def _by_java_sdk(
    calls: SdkCalls, least: float, aim: float, which: str = "per_s", *, is_most: bool = False
) -> Target:
    """Return what is asked of a figure of the Java SDK's calls beside RocketMQ's, of one run."""
    what = "rate" if which == "per_s" else "servers' CPU"
    return Target(
        line=f"Java SDK, {calls.name}: {what} beside RocketMQ's",
        least=least,
        aim=aim,
        unit="x",
        is_most=is_most,
        value=lambda run: ratio(
            answered(run, JAVA_SDK, calls.name, which),
            figure(run, JAVA_SDK, calls.name, which, system=ROCKETMQ),
        ),
    )


def _typed_target(calls: SdkCalls) -> Target:
    """Return what is asked of the rate of typed sends beside RocketMQ's, of one run."""
    return _beside(
        f"Java SDK, {calls.name}: rate beside RocketMQ's", 1.5, 2,
        lambda run: ratio(
            answered(run, TYPED, calls.name, "per_s"),
            figure(run, TYPED, calls.name, "per_s", system=ROCKETMQ),
        ),
    )  # fmt: skip


def _beside(
    line: str,
    least: float,
    aim: float,
    value: Callable[[Run], float | None],
    *,
    unit: str = "x",
    is_most: bool = False,
) -> Target:
    """Return what is asked beside Kafka or NATS JetStream, all synced."""
    return Target(line=line, least=least, aim=aim, unit=unit, is_most=is_most, value=value)


def _singles_cost(window: int) -> Target:
    """Return what 100,000 messages that come one by one may cost all nodes."""
    line = f"single appends, {window:,} under way: CPU of 100,000, all nodes"
    return _beside(
        line, 3, 2, lambda run: cost(single(run, PEER_APPEND, OURS, window)),
        unit="s", is_most=True,
    )  # fmt: skip


def _sidecar(line: str, most: float, unit: str, value: Callable[[Run], float | None]) -> Target:
    """Return what is asked of the sidecar at most."""
    return Target(line=line, least=most, aim=None, unit=unit, is_most=True, value=value)


def _sidecar_cpu(window: int, most_ms: float) -> Target:
    name = f"{window} under way, {THROUGH}"
    return _sidecar(
        f"sidecar's CPU a message, {window} under way", most_ms, "ms",
        lambda run: in_unit(answered(run, SIDECAR, name, "sidecar_us"), 1e-3),
    )  # fmt: skip


def _sidecar_targets() -> tuple[Target, ...]:
    """Return what is asked of the outage spool's sidecar."""

    def longest(run: Run) -> float | None:
        found = [answered(run, SIDECAR, name, "max_ms") for name in BREAKS.values()]
        known = [each for each in found if each is not None]
        return max(known) if len(known) == len(found) else None

    def later(run: Run) -> float | None:
        """Return how much longer than a sync sends take in an outage."""
        found = [
            difference(
                answered(run, SIDECAR, name, "after_p99_ms"),
                figure(run, SIDECAR, name, "sync_p99_ms"),
            )
            for name in BREAKS.values()
        ]
        known = [each for each in found if each is not None]
        return max(known) if known else None

    def hop(run: Run) -> float | None:
        through = answered(run, SIDECAR, f"{QUIET}, {THROUGH}", "p50_ms")
        return difference(through, answered(run, SIDECAR, f"{QUIET}, {DIRECT}", "p50_ms"))

    def replay_rate(run: Run) -> float | None:
        return figure(run, SIDECAR, REPLAY, "per_s")

    return (
        _sidecar("sidecar, longest send as the group goes", 2_200, "ms", longest),
        _sidecar("sidecar, p99 of sends after that, beyond a sync's", 50, "ms", later),
        _sidecar(f"sidecar, {QUIET}: p50 beyond direct ones", 1, "ms", hop),
        _sidecar_cpu(1, 0.9),
        _sidecar_cpu(16, 0.25),
        Target(
            line="sidecar, replay of one lane", least=15_000, aim=None, unit="/s", value=replay_rate
        ),
        _sidecar(
            "sidecar, live sends of another lane meanwhile, p99", 50, "ms",
            lambda run: figure(run, SIDECAR, REPLAY, "live_p99_ms"),
        ),
    )  # fmt: skip


TARGETS: Final = (
    _appends(256, 50_000, 75_000),
    _appends(64, 35_000),
    _appends(16, 18_000),
    _times(
        "beside Java DLedger through its client, best window of each",
        3, 4, lambda run: best(run, JAVA),
    ),
    _times("beside etcd, best window of each", 6, 9, lambda run: best(run, Etcd.name)),
    _times(
        "beside Java DLedger's very best, made inside its leader",
        1.1, 1.6, lambda run: best(run, JAVA, inside=True),
    ),
    _beside(
        "single appends, 256 under way, beside NATS JetStream synced",
        1.3, 2, lambda run: singles_beside_nats(run, 256),
    ),
    _beside(
        "single appends, 1,024 under way, beside NATS JetStream synced",
        1.5, 2.5, lambda run: singles_beside_nats(run, 1024),
    ),
    _singles_cost(256),
    _singles_cost(1024),
    _beside(
        "batches of 256, beside Kafka synced, both at their best",
        1.3, 2, batches_beside_kafka,
    ),
    _beside(
        "batches of 256: CPU of a message, beside Kafka's synced",
        0.8, 0.6, batches_cost_beside_kafka, is_most=True,
    ),
    _beside(
        "reads of single messages, one reader, beside NATS JetStream's faster one",
        0.7, 1.2, lambda run: reads_beside_nats(run, 1),
    ),
    _p99("p99 at half load, batch 64", "at 50%"),
    _p99(f"p99 at {STEADY}, half of the least rate of batch 64", STEADY),
    Target(
        line="native read of committed entries", least=150_000, aim=300_000, unit="/s",
        value=lambda run: figure(run, READ, "batch 256", "per_s"),
    ),
    Target(
        line="Python SDK, async sends", least=2_000, aim=None, unit="/s",
        value=lambda run: answered(run, SDK, "async", "per_s"),
    ),
    Target(
        line="Python SDK, sync sends on one thread, p50", least=2.5, aim=None, unit="ms",
        is_most=True, value=lambda run: answered(run, SDK, "sync sends, 1 thread", "p50_ms"),
    ),
    _gap("SIGKILL of the leader, gap, p50", 600, 250, "SIGKILL", which="p50_ms"),
    _gap("SIGKILL of the leader, gap, longest", 1000, None, "SIGKILL"),
    _gap("SIGTERM, longest gap", 100, 50, "SIGTERM"),
    _gap("SIGSTOP or cut link, longest gap", 1500, 750, "SIGSTOP", "cut link"),
    _gap("stalled disk, longest gap", 2000, 1000, "stalled disk"),
    Target(
        line="a lagging follower catches up", least=80, aim=None, unit="MB/s",
        value=lambda run: figure(run, CATCH_UP, "", "mb_s"),
    ),
    _p99_meanwhile(HALF_LOAD),
    _p99_meanwhile(STEADY),
    _by_java_sdk(ASYNC_256, 0.4, 0.25, "server_us", is_most=True),
    _by_java_sdk(ASYNC_16, 3.5, 5),
    _by_java_sdk(ASYNC_256, 1.6, 2),
    _by_java_sdk(SYNC_64, 1.2, 2),
    _by_java_sdk(SYNC_1, 0.8, 1),
    _by_java_sdk(PUSH, 2, 3),
    _by_java_sdk(SIMPLE, 1.8, 3),
    _typed_target(FIFO_256),
    _typed_target(DELAY_256),
    *_sidecar_targets(),
)  # fmt: skip
