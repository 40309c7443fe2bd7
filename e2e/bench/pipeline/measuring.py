"""What a piece of work took, and figures made of that. No line of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Unmeasured(Exception):
    """A line did not do what it is measured by; the message says which, and how much it did."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a processor, by all threads and processes that were at work, and by the clock."""

    cpu_s: float
    wall_s: float

    def __add__(self, other: Cost) -> Cost:
        """Return what both took, one beside the other."""
        return Cost(self.cpu_s + other.cpu_s, max(self.wall_s, other.wall_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a line measured.

    Attributes:
        rounds: The figure of each round; the line's is the median.
        wall_s: How long each round took by the clock.
        parts: What it was made of, by name, for the reader.
        missed: Why, where it has no figure.
    """

    rounds: tuple[float, ...]
    wall_s: tuple[float, ...] = ()
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle round's."""
        return statistics.median(self.rounds)


Parts: TypeAlias = Mapping[str, float]


def in_rounds(rounds: int, one: Callable[[], tuple[float, float, Parts]]) -> Figure:
    """Return the figure that *one* takes *rounds* times: (figure, wall seconds, parts).

    Of each part the median is kept.
    """
    taken = [one() for _ in range(rounds)]
    parts = {
        name: rounded(statistics.median(each[name] for _, _, each in taken)) for name in taken[0][2]
    }
    return Figure(
        rounds=tuple(rounded(value) for value, _, _ in taken),
        wall_s=tuple(rounded(wall_s) for _, wall_s, _ in taken),
        parts=parts,
    )


def rounded(value: float) -> float:
    """Return *value* with three digits behind the point, or as many as it needs to be told."""
    return round(value, 3) if value < 1000 else round(value)


def cost(work: Callable[[], object]) -> Cost:
    """Do *work* in this process; return what it took."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    work()
    return Cost(time.process_time() - cpu_s, time.monotonic() - began_s)


def command_cost(*arguments: str | Path) -> Cost:
    """Run ``python -m`` with *arguments*; return what it and all that it started took.

    Raises:
        Unmeasured: It failed; with what it said.
    """
    reaper = (sys.executable, "-m", "e2e.bench.pipeline.reaper")
    command = (*reaper, sys.executable, "-m", *map(str, arguments))
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unmeasured(f"{' '.join(map(str, arguments))}: {ran.stderr.strip()[-2000:]}")
    took = json.loads(ran.stdout)
    return Cost(took["cpuS"], took["wallS"])


def process_cpu_s(pids: Sequence[int]) -> float:
    """Return what these processes have taken so far, in ticks of 10 ms."""
    return sum(map(_ticks, pids)) / _TICKS


def _ticks(pid: int) -> int:
    """Return user and system time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def check_whole(name: str, done: float, whole: float) -> None:
    """Refuse a figure of work that left something out: it would be the faster for it.

    Raises:
        Unmeasured: Less than *whole* was done, or there is nothing to do.
    """
    if not done >= whole > 0:
        raise Unmeasured(f"{name} went through {done:,} of {whole:,}")
