"""One target for a time or a number of inputs: what led somewhere new is kept, findings told."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.fuzz.target import HUNG, Target, judge

_POOL: Final = 512
_SHRINK_TRIES: Final = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and the smallest input that shows it."""

    target: str
    found: str
    data: bytes


@dataclass(slots=True)
class Tally:
    """What came of one target.

    Attributes:
        kinds: The outcomes that there were.
        slowest_ms: Of one input.
        findings: One for each place.
    """

    target: str
    inputs: int = 0
    accepted: int = 0
    kinds: set[Hashable] = field(default_factory=set)
    slowest_ms: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in another run of the same target."""
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        fresh = [one for one in other.findings if one.found not in {f.found for f in self.findings}]
        self.findings += fresh
        self.kinds |= other.kinds


def run(
    target: Target, *, seed: str, inputs: int | None = None, seconds: float | None = None
) -> Tally:
    """Feed a target until *inputs* or *seconds* are over; the same seed draws the same inputs."""
    rng, tally = Random(f"{seed}/{target.name}"), Tally(target.name)
    pool: list[bytes] = []
    end_s = time.monotonic() + seconds if seconds is not None else None
    while tally.inputs != inputs and (end_s is None or time.monotonic() < end_s):
        old = rng.choice(pool) if pool and rng.random() < 0.5 else None
        data = target.draw(rng) if old is None else target.mutate(rng, old)
        began_s = time.perf_counter()
        verdict = judge(target, data)
        tally.slowest_ms = max(tally.slowest_ms, 1000 * (time.perf_counter() - began_s))
        tally.inputs += 1
        tally.accepted += verdict.accepted
        if verdict.kind in tally.kinds:
            continue
        tally.kinds.add(verdict.kind)
        if verdict.found:
            smallest = data if verdict.kind == HUNG else shrunk(target, data, verdict.kind)
            tally.findings.append(Finding(target.name, verdict.found, smallest))
        elif len(pool) < _POOL:
            pool.append(data)
        else:
            pool[rng.randrange(_POOL)] = data
    return tally


def shrunk(target: Target, data: bytes, kind: Hashable) -> bytes:
    """Return a shorter input that comes to the same, if there is one."""
    size, tries = max(1, len(data) // 2), 0
    while size and tries < _SHRINK_TRIES:
        at = 0
        while at < len(data) and tries < _SHRINK_TRIES:
            tries += 1
            shorter = data[:at] + data[at + size :]
            if judge(target, shorter).kind == kind:
                data = shorter
            else:
                at += size
        size //= 2
    return data
