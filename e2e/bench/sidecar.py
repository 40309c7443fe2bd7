"""The outage-spool sidecar: what it costs beside direct sends, the break, and the replay.

Three nodes, the sidecar and its clients share the machine. What is said of processor time is of
processes, so that it holds on a busy machine as well; what is said of latency does not.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from e2e.bench import machine
from e2e.bench.cases import Case
from e2e.bench.figures import latency_figures
from e2e.bench.loads import Load, Loaded
from e2e.bench.process_group import ProcessGroup, System
from e2e.bench.rows import Row
from e2e.harness.nodes import allocate
from e2e.harness.ports import HOST, free_ports
from e2e.harness.processes import ChildProcess, Command, usage_of
from e2e.harness.waiting import HarnessError, eventually

SIDECAR: Final = "sidecar"
DIRECT, THROUGH = "direct", "through the sidecar"
BREAKS: Final = {signal.SIGKILL: "all nodes killed", signal.SIGSTOP: "all nodes frozen"}
REPLAY: Final = "replay"
QUIET: Final = "100 sends a second"
_RATE: Final = 100
_SLICE_S: Final = 2.0
_SETTLE_S: Final = 1.0
_BEFORE_S: Final = 2.0
_BREAK_S: Final = 10.0
_TRIES_S: Final = 2.2
"""After which nobody waits for a try any longer, however the group went away."""
_FILLED_BY: Final = Case(batch=512, window=4)
_FILL_SLICE_S: Final = 1.0
_STARTS_S: Final = 30.0
_REPLAYS_S: Final = 1800.0
_LOOK_S: Final = 0.1
_MAX_BYTES: Final = 4 << 30
_ONE: Final = Case(batch=1, window=1)
_SIXTEEN: Final = Case(batch=1, window=16)


@dataclass(frozen=True, slots=True)
class Taken:
    """Processor seconds so far: of the sidecar's process that serves, and of each node."""

    sidecar_s: float
    nodes_s: Sequence[float]

    def figures(self, since: Taken, leader: int, messages: int) -> dict[str, float]:
        """Return what a message took, in microseconds: sidecar, leader, a follower on average."""
        nodes = [now - then for now, then in zip(self.nodes_s, since.nodes_s, strict=True)]
        followers = [taken for at, taken in enumerate(nodes) if at != leader]
        spent = {
            "sidecar_us": self.sidecar_s - since.sidecar_s,
            "leader_us": nodes[leader],
            "follower_us": sum(followers) / len(followers),
        }
        return {name: 1e6 * seconds / messages for name, seconds in spent.items()}


class RunningSidecar:
    """``dledger spool run`` beside a group, and two programs that send: one of them through it."""

    def __init__(self, group: ProcessGroup, scratch: Path, logs: Path) -> None:
        self._group, self._logs = group, logs
        port, self._metrics_port = free_ports(2)
        self.endpoint = f"{HOST}:{port}"
        upstream = ",".join(spec.endpoint for spec in group.specs)
        argv = (
            sys.executable, "-m", "dledger", "spool", "run", "--listen", self.endpoint,
            "--upstream", upstream, "--dir", scratch / "spool", "--max-bytes", str(_MAX_BYTES),
            "--metrics", f"{HOST}:{self._metrics_port}",
        )  # fmt: skip
        self.parent = ChildProcess(Command([str(each) for each in argv]), logs / "sidecar.log")
        self._child = eventually("the sidecar has a child", self._first_child, _STARTS_S)
        eventually("the sidecar serves", self.counters, _STARTS_S)

    def _first_child(self) -> int | None:
        """Return the process that serves; the spare that comes later does nothing."""
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children")
        return next(map(int, children.read_text("ascii").split()), None)

    def load(self, name: str) -> Load:
        """Start a client of that name; its nodes are the group's, and the sidecar as the last."""
        endpoints = ",".join([*(spec.endpoint for spec in self._group.specs), self.endpoint])
        argv = (sys.executable, "-m", "e2e.bench.sidecar_load", endpoints, name)
        return Load(ChildProcess(Command(argv, answers=True), self._logs / f"{name}.log"))

    asks = 0
    """The node of whose addresses it has the first: there it stays while nothing fails."""

    @property
    def at(self) -> int:
        """Its number among its clients' nodes."""
        return len(self._group.specs)

    def counters(self) -> Mapping[str, float] | None:
        """Return what it counts, by name without what all begin with; None: it does not answer."""
        try:
            with urlopen(f"http://{HOST}:{self._metrics_port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        found = re.findall(r"^dledger_spool_(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def usage(self) -> Taken:
        """Return what it and the nodes took so far."""
        usages = [usage_of(self._child), *self._group.usages()]
        sidecar_s, *nodes_s = (usage.cpu_s if usage else 0.0 for usage in usages)
        return Taken(sidecar_s, nodes_s)


def sidecar_rows(
    system: System, messages: int, seconds: float, scratch: Path, logs: Path
) -> Iterator[Row]:
    """Yield the sidecar's rows.

    Args:
        system: Ours.
        messages: How many one lane has to replay.
        seconds: Length of a row.
        scratch: Where the disks are.
        logs: Where what the processes print goes.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    group = ProcessGroup(system, allocate(scratch), logs)
    with ExitStack() as stack:
        stack.callback(group.discard)
        group.start()
        sidecar = RunningSidecar(group, scratch, logs)
        stack.callback(sidecar.parent.stop)
        loads = [sidecar.load(name) for name in ("bench-first", "bench-second")]
        for load in loads:
            stack.callback(load.child.stop)
        first, second = loads
        for at in (group.wait_whole(), sidecar.at):
            first.run(_SIXTEEN, 2 * _SETTLE_S, node=at)
        yield from _beside_direct(group, sidecar, first, seconds)
        for case in (_ONE, _SIXTEEN):
            yield _passing(group, sidecar, first, case, seconds)
        yield _break(group, sidecar, first, scratch, signal.SIGSTOP)
        group.resume()
        eventually("the spool is empty", lambda: _count(sidecar, "depth") == 0, _REPLAYS_S)
        yield _break(group, sidecar, first, scratch, signal.SIGKILL)
        yield _replay(group, sidecar, first, second, messages)


def _beside_direct(
    group: ProcessGroup, sidecar: RunningSidecar, load: Load, seconds: float
) -> list[Row]:
    """Send at a rate to a node, and by the sidecar to the same one, in turns of two seconds."""
    found: dict[str, list[Loaded]] = {DIRECT: [], THROUGH: []}
    for _ in range(max(1, round(seconds / _SLICE_S))):
        for name, at in ((DIRECT, sidecar.asks), (THROUGH, sidecar.at)):
            found[name].append(load.run(_ONE, _SLICE_S, node=at, rate=_RATE))
    return [
        Row(
            kind=SIDECAR,
            system=group.system.name,
            name=f"{QUIET}, {name}",
            size_bytes=_ONE.size_bytes,
            figures=_together(slices),
        )
        for name, slices in found.items()
    ]


def _together(slices: Sequence[Loaded]) -> dict[str, float]:
    latencies_us = [latency for each in slices for latency in each.latencies_us]
    failures = sum(each.failures for each in slices)
    return {"failures": failures} | latency_figures(latencies_us)


def _passing(
    group: ProcessGroup, sidecar: RunningSidecar, load: Load, case: Case, seconds: float
) -> Row:
    """Send in a closed loop through the sidecar."""
    load.run(case, _SETTLE_S, node=sidecar.at)
    leader, before = group.wait_whole(), sidecar.usage()
    loaded = load.run(case, seconds, node=sidecar.at)
    spent = sidecar.usage().figures(before, leader, max(1, loaded.requests))
    return Row(
        kind=SIDECAR,
        system=group.system.name,
        name=f"{case.window} under way, {THROUGH}",
        size_bytes=case.size_bytes,
        window=case.window,
        figures=loaded.figures(case.batch) | spent,
    )


def _break(
    group: ProcessGroup, sidecar: RunningSidecar, load: Load, scratch: Path, how: signal.Signals
) -> Row:
    """Take all nodes away under sends at a rate; they stay away."""
    sync_ms = machine.sync_row(scratch, _SETTLE_S).figures["p99_ms"]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_send_timed, load, sidecar.at, _BEFORE_S + _BREAK_S)
        time.sleep(_BEFORE_S)
        broke_s = time.monotonic()
        for node in group.nodes:
            node.send(how)
        found = answer.result()
    sends = list(zip(found["due_s"], found["latencies_us"], strict=True))
    after = latency_figures([us for due_s, us in sends if due_s > broke_s + _TRIES_S])
    if not after:
        raise HarnessError("the sidecar answered nothing after the break")
    return Row(
        kind=SIDECAR,
        system=group.system.name,
        name=f"{BREAKS[how]}, {QUIET}",
        size_bytes=_ONE.size_bytes,
        figures={
            "failures": found["failures"],
            "max_ms": max(us for due_s, us in sends if due_s > broke_s - _TRIES_S) / 1000,
            "after_p99_ms": after["p99_ms"],
            "after_max_ms": after["max_ms"],
            "sync_p99_ms": sync_ms,
        },
    )


def _send_timed(load: Load, at: int, seconds: float) -> dict[str, Any]:
    return load.ask(
        "timed", node=at, size_bytes=_ONE.size_bytes, batch=1, window=1, seconds=seconds, rate=_RATE
    )


def _replay(
    group: ProcessGroup, sidecar: RunningSidecar, load: Load, live: Load, messages: int
) -> Row:
    """Have one lane keep so many messages, start the nodes, and send in another lane meanwhile."""
    while _count(sidecar, "depth") < messages:
        if not load.run(_FILLED_BY, _FILL_SLICE_S, node=sidecar.at).requests:
            raise HarnessError(f"the sidecar took nothing for {_FILL_SLICE_S:g} s")
    waiting, before = _count(sidecar, "depth"), _count(sidecar, "replayed_total")
    for index in range(len(group.specs)):
        group.restart(index)
    group.wait_whole()
    eventually("the replay begins", lambda: _count(sidecar, "replayed_total") > before, _STARTS_S)
    begun, began_s, taken = _count(sidecar, "replayed_total"), time.monotonic(), sidecar.usage()
    with ThreadPoolExecutor(1) as pool:
        slices = pool.submit(_live_until_drained, sidecar, live)
        ended_s = _wait_drained(sidecar, slices)
        spent, sent = sidecar.usage(), slices.result()
    replayed = int(before + waiting - begun)
    leader = group.wait_whole()
    return Row(
        kind=SIDECAR,
        system=group.system.name,
        name=f"{REPLAY} of one lane, {_RATE} sends a second of another",
        size_bytes=_ONE.size_bytes,
        figures={"messages": waiting, "per_s": replayed / (ended_s - began_s)}
        | spent.figures(taken, leader, replayed)
        | {f"live_{name}": value for name, value in _together(sent).items()},
        notes=() if messages >= 1_000_000 else (f"{messages:,} messages, not 1,000,000",),
    )


def _live_until_drained(sidecar: RunningSidecar, live: Load) -> list[Loaded]:
    slices = []
    while _count(sidecar, "depth") > 0:
        slices.append(live.run(_ONE, _SLICE_S / 2, node=sidecar.at, rate=_RATE))
    return slices


def _wait_drained(sidecar: RunningSidecar, slices: Future[list[Loaded]]) -> float:
    """Return when nothing waited any longer (monotonic)."""

    def has_ended() -> float | None:
        if slices.done():  # it says why, if it failed
            slices.result()
        return time.monotonic() if _count(sidecar, "depth") == 0 else None

    return eventually("the lane is replayed", has_ended, _REPLAYS_S, _LOOK_S)


def _count(sidecar: RunningSidecar, name: str) -> float:
    counters = sidecar.counters()
    if counters is None:
        raise HarnessError("the sidecar does not say what it counts")
    return counters[name]
