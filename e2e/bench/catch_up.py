"""How fast a follower that was away comes back, and what that costs the leader's clients."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from e2e.bench.cases import Case
from e2e.bench.engine import LATENCY_CASE, STEADY, STEADY_RATE
from e2e.bench.figures import latency_figures
from e2e.bench.loads import Loaded
from e2e.bench.process_group import NodeState, ProcessGroup, System
from e2e.bench.rows import Row
from e2e.harness.nodes import allocate
from e2e.harness.waiting import HarnessError, eventually

CATCH_UP: Final = "catch-up"
HALF_LOAD: Final = "50% load"
_WRITE_CASE: Final = Case(batch=256, window=8)
_WRITE_SLICE_S: Final = 2.0
_LOAD_SLICE_S: Final = 0.5
_LOADS: Final[Mapping[str, Callable[[float], float]]] = {
    HALF_LOAD: lambda most: 0.5 * most,
    STEADY: lambda _: STEADY_RATE,
}
"""By name: the requests a second that are offered, where so many sustain."""
_STARTED_S: Final = 60.0
_DEADLINE_S: Final = 600.0
_ENDS_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """How it went.

    Attributes:
        behind_bytes: Bodies that the follower missed.
        start_s: From its start to its first answer.
        caught_up_bytes: What of that it fetched behind its first answer.
        catch_up_s: From there until it had what the leader had when it was started.
        calm_us: Latencies under the same load before it was taken away.
        start_us: Latencies until it answered: a Python process starts on the same cores.
        busy_us: Latencies from there until it had caught up.
    """

    behind_bytes: int
    start_s: float
    caught_up_bytes: float
    catch_up_s: float
    calm_us: Sequence[float]
    start_us: Sequence[float]
    busy_us: Sequence[float]

    def figures(self) -> dict[str, float]:
        """Return the rate, and the p99 of the leader's clients before, at the start, meanwhile."""
        phases = {
            "calm_p99_ms": self.calm_us,
            "start_p99_ms": self.start_us,
            "busy_p99_ms": self.busy_us,
        }
        p99 = {name: latency_figures(us)["p99_ms"] for name, us in phases.items() if us}
        return {
            "mb_s": self.caught_up_bytes / 1e6 / self.catch_up_s,
            "behind_mb": self.behind_bytes / 1e6,
            "start_s": self.start_s,
            "catch_up_s": self.catch_up_s,
            **p99,
        }


def catch_up_rows(
    system: System, behind_bytes: int, seconds: float, root: Path, logs: Path
) -> Iterator[Row]:
    """Yield the rows of a follower that is *behind_bytes* of bodies behind, at least."""
    for name, offered in _LOADS.items():
        group = ProcessGroup(system, allocate(root), logs)
        try:
            group.start()
            course = _run(group, behind_bytes, seconds, offered)
        finally:
            group.discard()
        yield Row(
            kind=CATCH_UP,
            system=system.name,
            name=f"a follower comes back, leader at {name}",
            size_bytes=_WRITE_CASE.size_bytes,
            batch=LATENCY_CASE.batch,
            figures=course.figures(),
        )


def _run(
    group: ProcessGroup, behind_bytes: int, seconds: float, offered: Callable[[float], float]
) -> CatchUp:
    leader = group.wait_whole()
    follower = (leader + 1) % len(group.specs)
    closed = group.load.run(LATENCY_CASE, seconds, node=leader)
    rate = offered(closed.requests / closed.seconds)
    calm = group.load.run(LATENCY_CASE, seconds, node=leader, rate=rate)
    group.nodes[follower].send(signal.SIGTERM)
    group.nodes[follower].wait(_ENDS_S)
    begin = _standing(group, leader).last_index
    written = _write(group, leader, behind_bytes)
    target = _standing(group, leader).last_index
    with ThreadPoolExecutor(1) as pool:
        over = Event()
        slices = pool.submit(_load_until, over, group, leader, rate)
        began_s = time.monotonic()
        try:
            start_s, first, catch_up_s = _come_back(group, follower, target)
        finally:
            over.set()
        loaded, answered_s = slices.result(), began_s + start_s
    return CatchUp(
        behind_bytes=written,
        caught_up_bytes=written * (target - first) / max(1, target - begin),
        start_s=start_s,
        catch_up_s=catch_up_s,
        calm_us=calm.latencies_us,
        start_us=_latencies(each for at_s, each in loaded if at_s < answered_s),
        busy_us=_latencies(each for at_s, each in loaded if at_s >= answered_s),
    )


def _write(group: ProcessGroup, leader: int, behind_bytes: int) -> int:
    """Append until so many bytes were acknowledged; return how many were. Raises HarnessError."""
    written = 0
    while written < behind_bytes:
        loaded = group.load.run(_WRITE_CASE, _WRITE_SLICE_S, node=leader)
        if not loaded.requests:
            raise HarnessError(f"the leader took nothing for {_WRITE_SLICE_S:g} s")
        written += loaded.requests * _WRITE_CASE.batch * _WRITE_CASE.size_bytes
    return written


def _come_back(group: ProcessGroup, follower: int, target: int) -> tuple[float, int, float]:
    """Start the follower.

    Returns:
        How long it took to answer, the newest entry it had then, how long it took to *target* from
        there.
    """
    began_s = time.monotonic()
    group.restart(follower)
    spec = group.specs[follower]
    first = eventually("the follower answers", lambda: group.system.state(spec), _STARTED_S)
    answered_s = time.monotonic()

    def reached() -> bool | None:
        state = group.system.state(spec)
        return True if state and state.last_index >= target else None

    eventually("the follower has caught up", reached, _DEADLINE_S)
    return answered_s - began_s, first.last_index, time.monotonic() - answered_s


def _load_until(
    over: Event, group: ProcessGroup, leader: int, rate: float
) -> list[tuple[float, Loaded]]:
    """Load by short slices, each with when it began."""
    slices = []
    while not over.is_set():
        began_s = time.monotonic()
        loaded = group.load.run(LATENCY_CASE, _LOAD_SLICE_S, node=leader, rate=rate)
        slices.append((began_s, loaded))
    return slices


def _latencies(slices: Iterable[Loaded]) -> list[float]:
    return [latency for each in slices for latency in each.latencies_us]


def _standing(group: ProcessGroup, index: int) -> NodeState:
    return eventually("a node answers", lambda: group.system.state(group.specs[index]), _STARTED_S)
