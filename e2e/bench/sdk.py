"""Rows of the RocketMQ Python SDK: what an unmodified client gets from one node or all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.cases import Case
from e2e.bench.engine import measured
from e2e.bench.loads import Load
from e2e.bench.process_group import ProcessGroup
from e2e.bench.rows import Row
from e2e.harness.processes import ChildProcess, Command

SDK: Final = "sdk"
_SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SdkCalls:
    """One kind of call: the load program's mode, how many at once, and both in words."""

    mode: str
    window: int
    name: str


ALONE: Final = SdkCalls("sync", 1, "sync sends, 1 thread")
ASYNC: Final = SdkCalls("async", 256, "async sends, 256 under way")
_STEPS: Final = (
    ALONE,
    SdkCalls("sync", 16, "sync sends, 16 threads"),
    SdkCalls("sync", 64, "sync sends, 64 threads"),
    ASYNC,
    SdkCalls("consume", 4, "receive 32 and ack each, 4 threads"),
)


def sdk_rows(group: ProcessGroup, seconds: float, log: Path) -> list[Row]:
    """Measure all kinds of calls, by one process of the SDK."""
    with sdk_client([spec.endpoint for spec in group.specs], log) as load:
        return [_row(group, load, seconds, step) for step in _STEPS]


@contextmanager
def sdk_client(endpoints: Sequence[str], log: Path) -> Iterator[Load]:
    """Run a process of the SDK that knows these endpoints."""
    argv = (sys.executable, "-m", "e2e.bench.sdk_load", ";".join(endpoints))
    child = ChildProcess(Command(argv, answers=True), log)
    try:
        yield Load(child)
    finally:
        child.stop()


def _row(group: ProcessGroup, load: Load, seconds: float, step: SdkCalls) -> Row:
    case, name = Case(batch=1, window=step.window), f"1 KiB, {step.name}"
    group.wait_whole()
    if step.mode != "consume":
        load.run(case, _SETTLE_S, mode=step.mode)
    return measured(group, load, case, seconds, kind=SDK, name=name, mode=step.mode)
