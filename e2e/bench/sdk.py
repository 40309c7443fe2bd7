"""Rows of the RocketMQ Python SDK: what an unmodified client gets from one node or all of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.cases import Case
from e2e.bench.engine import measured
from e2e.bench.loads import Load, Loaded
from e2e.bench.process_group import ProcessGroup
from e2e.bench.rows import Row
from e2e.harness.ports import HOST
from e2e.harness.processes import ChildProcess, Command

SDK: Final = "sdk"
_SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of call: the load program's mode, how many at once, and both in words."""

    mode: str
    window: int
    name: str


ALONE: Final = Step("sync", 1, "sync sends, 1 thread")
ASYNC: Final = Step("async", 256, "async sends, 256 under way")
_STEPS: Final = (
    ALONE,
    Step("sync", 16, "sync sends, 16 threads"),
    Step("sync", 64, "sync sends, 64 threads"),
    ASYNC,
    Step("consume", 4, "receive 32 and ack each, 4 threads"),
)


def sdk_rows(group: ProcessGroup, seconds: float, log: Path) -> list[Row]:
    """Measure all kinds of calls, by one process of the SDK."""
    endpoints = ";".join(f"{HOST}:{spec.client_port}" for spec in group.specs)
    load = sdk_client(endpoints, log)
    try:
        return [_row(group, load, seconds, step) for step in _STEPS]
    finally:
        load.child.stop()


def sdk_client(endpoints: str, log: Path) -> Load:
    """Start a process of the SDK; *endpoints* are separated by semicolons."""
    argv = (sys.executable, "-m", "e2e.bench.sdk_load", endpoints)
    return Load(ChildProcess(Command(argv, answers=True), log))


def _row(group: ProcessGroup, load: Load, seconds: float, step: Step) -> Row:
    case = Case(batch=1, window=step.window)

    def work() -> Loaded:
        return load.run(case, seconds, mode=step.mode)

    group.wait_whole()
    if step.mode != "consume":
        load.run(case, _SETTLE_S, mode=step.mode)
    return measured(group, load, case, work, kind=SDK, name=f"1 KiB, {step.name}")
