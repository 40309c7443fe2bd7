"""How long a client of the other nodes goes without an acknowledgement when a leader is lost."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from e2e.bench import disks as frozen
from e2e.bench.cases import Case
from e2e.bench.disks import Disks
from e2e.bench.faults import KILL, STOP, TERM, Fault, cut, stall
from e2e.bench.figures import Gap, has_resumed, longest_gap, quantile
from e2e.bench.process_group import NodeState, ProcessGroup, System
from e2e.bench.rows import Row
from e2e.harness.nodes import allocate
from e2e.harness.proxy import Links
from e2e.harness.waiting import HarnessError

FAILOVER: Final = "failover"
_RECENT_S: Final = 0.5
_STEADY_S: Final = 1.0
_GIVE_UP_S: Final = 30.0
_POLL_S: Final = 0.05
_WARM_UP_CASE: Final = Case(batch=1, window=16, size_bytes=128)
Prepared = tuple[ProcessGroup, tuple[Fault, ...]]
"""A running group, and what can be done to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """How often each fault is made, and from which seed its moments are drawn."""

    count: int
    seed: int = 1


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """One trial.

    Attributes:
        gap: What the client saw.
        has_moved: Whether another node led at the end.
        phases: How long the new leader's election took, in milliseconds, if it tells.
        amiss: How the victim ended under a fault that ends no process; "" if it did not.
    """

    gap: Gap
    has_moved: bool
    phases: Mapping[str, float]
    amiss: str = ""


def failover_rows(system: System, trials: Trials, scratch: Path, logs: Path) -> Iterator[Row]:
    """Yield a row for each kind of fault. Links and hanging disks have groups of their own."""
    rng, reason = random.Random(trials.seed), frozen.why_not()
    for number, prepared in enumerate((_plain, _linked, *(() if reason else (_mounted,)))):
        with prepared(system, scratch / str(number), logs) as (group, faults):
            for fault in faults:
                yield _row(group, fault, trials, rng)
    if reason:
        yield Row(kind=FAILOVER, system=system.name, name="stalled disk", notes=(reason,))


def kill_row(system: System, trials: Trials, scratch: Path, logs: Path, *, kind: str) -> Row:
    """Return the row of one fault only: the leader is killed."""
    with _plain(system, scratch, logs) as (group, _):
        return replace(_row(group, KILL, trials, random.Random(trials.seed)), kind=kind)


@contextlib.contextmanager
def _plain(system: System, root: Path, logs: Path) -> Iterator[Prepared]:
    group = ProcessGroup(system, allocate(root), logs)
    with _running(group):
        yield group, (KILL, TERM, STOP)


@contextlib.contextmanager
def _linked(system: System, root: Path, logs: Path) -> Iterator[Prepared]:
    group = ProcessGroup(system, allocate(root, system.link), logs)
    links = Links(group.specs, lambda: [node.pid for node in group.nodes])
    links.start()
    try:
        with _running(group):
            yield group, (cut(links),)
    finally:
        links.stop()


@contextlib.contextmanager
def _mounted(system: System, root: Path, logs: Path) -> Iterator[Prepared]:
    group = ProcessGroup(system, allocate(root), logs)
    disks = Disks(group.specs)
    try:
        disks.mount()
        with _running(group):
            try:
                yield group, (stall(disks),)
            finally:
                disks.thaw()
    finally:
        disks.unmount()


@contextlib.contextmanager
def _running(group: ProcessGroup) -> Iterator[None]:
    try:
        group.start()
        group.load.run(_WARM_UP_CASE, group.system.warm_up_s, node=group.wait_whole())
        yield
    finally:
        group.discard()


def _row(group: ProcessGroup, fault: Fault, trials: Trials, rng: random.Random) -> Row:
    outcomes = [trial(group, fault, rng) for _ in range(trials.count)]
    return Row(
        kind=FAILOVER,
        system=group.system.name,
        name=fault.name,
        figures=gap_figures([outcome.gap for outcome in outcomes])
        | {"moved": float(sum(outcome.has_moved for outcome in outcomes))}
        | phase_figures([outcome.phases for outcome in outcomes]),
        samples=tuple(outcome.gap.seconds * 1000 for outcome in outcomes),
        notes=deaths(outcomes),
    )


def trial(group: ProcessGroup, fault: Fault, rng: random.Random) -> TrialOutcome:
    """Make the fault under a steady writer, watch, take it back, and wait for all nodes."""
    victim = group.wait_whole()
    group.load.start_steady(node=(victim + 1) % len(group.specs))
    acks_s = _until_steady(group, [], _GIVE_UP_S)
    time.sleep(rng.uniform(0, 0.3))
    fault_s = time.monotonic()
    try:
        fault.make(group, victim)
        acks_s = _until_steady(group, acks_s, _GIVE_UP_S, at_least_s=fault.watch_s)
        end_s = time.monotonic()
        acks_s += group.load.stop_steady()
        successor = _successor(group, victim)
    finally:
        fault.heal(group, victim)
    # How a process takes SIGTERM is its system's own; one that is only cut off is to live on.
    amiss = "" if fault.ends_with else fault.amiss(group.nodes[victim].exit_code)
    if not group.nodes[victim].is_running():
        group.restart(victim)
    gap = longest_gap(acks_s, fault_s=fault_s, end_s=end_s, recent_s=_RECENT_S)
    return TrialOutcome(gap, successor is not None, successor.phases if successor else {}, amiss)


def _until_steady(
    group: ProcessGroup, acks_s: list[float], give_up_s: float, *, at_least_s: float = 0.0
) -> list[float]:
    """Return all acknowledgements up to when they flow again, or up to the time to give up."""
    began_s = time.monotonic()
    while (now_s := time.monotonic()) < began_s + give_up_s:
        acks_s = acks_s + group.load.acks_s()
        resumed = has_resumed(acks_s, now_s=now_s, recent_s=_RECENT_S, steady_s=_STEADY_S)
        if resumed and now_s >= began_s + at_least_s:
            return acks_s
        time.sleep(_POLL_S)
    if not acks_s:
        raise HarnessError(f"{group.system.name}: the steady writer had no acknowledgement")
    return acks_s


def _successor(group: ProcessGroup, victim: int) -> NodeState | None:
    """Return what the newest leader says if it is not the victim."""
    leader = group.leader()
    return None if leader is None or leader == victim else group.states()[leader]


def deaths(outcomes: Sequence[TrialOutcome]) -> tuple[str, ...]:
    """Return how often the victim ended by itself, and how: who reads the gaps has to know."""
    ends = Counter(outcome.amiss for outcome in outcomes if outcome.amiss)
    return tuple(f"{count} of {len(outcomes)} {amiss}" for amiss, count in sorted(ends.items()))


def gap_figures(gaps: Sequence[Gap]) -> dict[str, float]:
    """Return the distribution of the gaps; one without an end counts as long as it was watched."""
    lengths = sorted(gap.seconds * 1000 for gap in gaps)
    return {
        "trials": float(len(gaps)),
        "unrecovered": float(sum(not gap.is_over for gap in gaps)),
        "p50_ms": quantile(lengths, 0.5),
        "p90_ms": quantile(lengths, 0.9),
        "max_ms": lengths[-1],
    }


def phase_figures(phases: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each phase over the trials that have it."""
    names = dict.fromkeys(name for each in phases for name in each)
    return {name: median(each[name] for each in phases if name in each) for name in names}
