"""Appends in a closed loop, latencies of an open one, and reads: rows of any system's group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from e2e.bench.cases import Case
from e2e.bench.loads import Load
from e2e.bench.process_group import ProcessGroup
from e2e.bench.rows import Row
from e2e.harness.processes import Usage
from e2e.harness.waiting import HarnessError

APPEND: Final = "append"
LATENCY: Final = "latency"
READ: Final = "read"
LATENCY_CASE: Final = Case(batch=64, window=16)
"""Whose rate in a closed loop is the load of 100 % for the open loop."""
LOAD_SHARES: Final = (0.5, 0.8)
_STEADY_PER_S: Final = 17_500
"""Half of what is asked of `LATENCY_CASE`: the same load in all runs, whatever our rate is."""
STEADY: Final = f"{_STEADY_PER_S:,} a second"
STEADY_RATE: Final = _STEADY_PER_S / LATENCY_CASE.batch
"""The same in requests."""
_SETTLE_S: Final = 1.0
_READERS: Final = 4
READ_BATCHES: Final = (256, 1)
_WRITERS: Final = 16


def append_row(group: ProcessGroup, case: Case, seconds: float) -> Row:
    """Measure a closed loop of appends through the leader."""
    leader = group.wait_whole()
    group.load.run(case, _SETTLE_S, node=leader)
    return measured(group, group.load, case, seconds, kind=APPEND, name=case.name, node=leader)


def latency_rows(group: ProcessGroup, seconds: float) -> list[Row]:
    """Measure an open loop at shares of what the closed loop reaches before, and at `STEADY`."""
    case, leader = LATENCY_CASE, group.wait_whole()
    group.load.run(case, _SETTLE_S, node=leader)
    closed = group.load.run(case, seconds, node=leader)
    most = closed.requests / closed.seconds

    def row(offered: str, rate: float) -> Row:
        name, to = f"{case.name} at {offered}", {"node": leader, "rate": rate}
        return measured(group, group.load, case, seconds, kind=LATENCY, name=name, **to)

    shares = [row(f"{share:.0%} of its rate", most * share) for share in LOAD_SHARES]
    return [*shares, row(STEADY, STEADY_RATE)]


def read_rows(group: ProcessGroup, seconds: float) -> list[Row]:
    """Measure the native read of committed messages, some just written, through a follower."""
    return [_read_row(group, batch, seconds) for batch in READ_BATCHES]


def _read_row(group: ProcessGroup, batch: int, seconds: float) -> Row:
    leader = group.wait_whole()
    follower = (leader + 1) % len(group.specs)
    group.load.run(Case(batch=batch, window=_WRITERS), seconds, node=leader)
    case = Case(batch=batch, window=_READERS)
    name, how = f"1 KiB, batch {batch}, {_READERS} readers, 1 node", {"mode": "read"}
    return measured(group, group.load, case, seconds, kind=READ, name=name, node=follower, **how)


def measured(
    group: ProcessGroup, load: Load, case: Case, seconds: float, *, kind: str, name: str, **how: Any
) -> Row:
    """Load the group for so long, *how* as `Load.run` takes it, and return the row.

    It has what each node and *load* took meanwhile.
    """
    before, began_s = _usages(group, load), time.monotonic()
    loaded = load.run(case, seconds, **how)
    after, ended_s = _usages(group, load), time.monotonic()
    if not all(node.is_running() for node in group.nodes):
        raise HarnessError(f"{group.system.name}: a node ended while {name} was measured")
    figures = loaded.figures(case.batch)
    return Row(
        kind=kind,
        system=group.system.name,
        name=name,
        size_bytes=case.size_bytes,
        batch=case.batch,
        window=case.window,
        figures=figures | {"seconds": ended_s - began_s} | usage_figures(before, after),
        samples=(figures["per_s"],),
    )


def _usages(group: ProcessGroup, load: Load) -> list[Usage | None]:
    """Return what each node took so far, and the client, unless a node is its own client."""
    client = None if load.child in group.nodes else load.child.usage()
    return [*group.usages(), client]


def usage_figures(
    before: Sequence[Usage | None], after: Sequence[Usage | None]
) -> dict[str, float]:
    """Return processor seconds and memory of each node, and of the client, which is the last.

    A process that ended between the two has no figures.
    """
    names = [*(f"node{number}" for number in range(len(before) - 1)), "client"]
    figures: dict[str, float] = {}
    for name, earlier, later in zip(names, before, after, strict=True):
        if earlier is not None and later is not None:
            figures[f"{name}_cpu_s"] = later.cpu_s - earlier.cpu_s
            figures[f"{name}_rss_mb"] = later.rss_mb
    return figures
