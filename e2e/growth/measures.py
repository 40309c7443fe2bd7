"""What the loops, processes and elections of a ``dledger dev`` group say between two marks."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dledger.client import AdminClient, Client
from dledger.errors import DledgerError
from e2e.harness.dev_group import DevGroup, running
from e2e.harness.nodes import status_of
from e2e.harness.processes import usage_of
from e2e.harness.tasks import meanwhile

_HTTP: Final = 300
"""The metrics' ports, behind the client ports of `dledger dev`."""
_PROBE_S: Final = 0.02
_STATUS_S: Final = 5.0
_PUBLISHED_S: Final = 2.5
_SNAPSHOT_S: Final = 120.0
_MIB: Final = 1 << 20
TOPIC: Final = "probe"

Buckets = dict[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How a group is at one moment; what came to pass is the difference of two."""

    turns: tuple[Buckets, ...]
    terms: tuple[int, ...]
    deaths: int
    cpu_s: tuple[float, ...]


@dataclass(slots=True)
class AppendProbe:
    """One small message every 20 ms, in an open loop: when they were acknowledged."""

    acked_s: list[float] = field(default_factory=list)
    failed: int = 0

    def longest_gap_ms(self, since_s: float) -> int:
        """Return the longest time without an acknowledgement since then."""
        seen = [since_s, *(at_s for at_s in self.acked_s if at_s >= since_s), time.monotonic()]
        return round(1000 * max(late - early for early, late in pairwise(seen)))


class MeasuredGroup:
    """A running group, and the most memory that a node of it has taken so far."""

    def __init__(self, group: DevGroup) -> None:
        self.dev = group
        self.peak_mb = 0.0

    async def mark(self, *, settled: bool = False) -> Mark:
        """Return how it is now; *settled*: with all that came to pass in the last second.

        Nodes publish their metrics once a second.
        """
        if settled:
            await asyncio.sleep(_PUBLISHED_S)
        terms = await asyncio.gather(*map(_term, self.dev.admins))
        numbers = range(len(self.dev.admins))
        turns = await asyncio.gather(*(asyncio.to_thread(self._turns, n) for n in numbers))
        usages = [pid and usage_of(pid) for pid in self.dev.state()["pids"]]
        self.peak_mb = max(self.peak_mb, *(u.peak_mb * 1e6 / _MIB if u else 0.0 for u in usages))
        return Mark(
            turns=tuple(turns),
            terms=tuple(terms),
            deaths=self.dev.deaths(),
            cpu_s=tuple(usage.cpu_s if usage else 0.0 for usage in usages),
        )

    def _turns(self, number: int) -> Buckets:
        found = self._samples(number, "dledger_loop_turn_cpu_seconds_bucket")
        return {float(sample.labels["le"]): sample.value for sample in found}

    def waiting_polls(self) -> int:
        """Return how many polls wait at all nodes, as they published within the last second."""
        return int(self.total("dledger_waiting_polls"))

    def total(self, name: str) -> float:
        """Return the sum of a metric over all nodes."""
        numbers = range(len(self.dev.admins))
        return sum(each.value for n in numbers for each in self._samples(n, name))

    def _samples(self, number: int, name: str) -> list[Sample]:
        """Return the samples of a metric; none if the node does not answer."""
        url = f"http://127.0.0.1:{self.dev.client_port + _HTTP + number}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return []
        families = text_string_to_metric_families(text)
        return [found for family in families for found in family.samples if found.name == name]

    def frozen_ms(self) -> list[int]:
        """Return how long each snapshot's state took the loop, by the nodes' own logs."""
        logs = [self.dev.data / f"node-{number}.log" for number in range(len(self.dev.admins))]
        text = "".join(path.read_text("utf-8", "replace") for path in logs)
        return [int(found) for found in re.findall(r"frozen in (\d+) ms", text)]

    @asynccontextmanager
    async def probed(self) -> AsyncIterator[AppendProbe]:
        """Append a small message every 20 ms meanwhile."""
        probe, tasks = AppendProbe(), set[asyncio.Task[None]]()
        async with Client(self.dev.leader_endpoint, timeout_s=30.0) as client:
            await client.create_topic(TOPIC, queues=1)

            async def one() -> None:
                try:
                    await client.append(TOPIC, [b"p" * 64])
                    probe.acked_s.append(time.monotonic())
                except DledgerError:
                    probe.failed += 1

            async def run() -> None:
                while True:
                    task = asyncio.create_task(one())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    await asyncio.sleep(_PROBE_S)

            try:
                async with meanwhile(run()):
                    yield probe
            finally:
                if tasks:
                    await asyncio.wait(tasks, timeout=35)

    async def snapshots(self) -> list[str]:
        """Take a snapshot at every node, the leader first; return what was refused."""
        said, leader = [], self.dev.leader
        for number in sorted(range(len(self.dev.admins)), key=lambda number: number != leader):
            async with AdminClient(self.dev.admins[number], timeout_s=_SNAPSHOT_S) as admin:
                try:
                    await admin.snapshot()
                except DledgerError as error:
                    said.append(f"node {number}: {error}")
        return said


async def _term(address: str) -> int:
    async with AdminClient(address, timeout_s=_STATUS_S) as admin:
        status = await status_of(admin)
        return status.term if status else 0


@asynccontextmanager
async def measured(data: Path) -> AsyncIterator[MeasuredGroup]:
    """Run a group whose leader stays where it is."""
    async with running(data, ["leader_follows_clients=false"]) as group:
        await group.until_whole()
        yield MeasuredGroup(group)


def difference(before: Mark, after: Mark) -> dict[str, Any]:
    """Return what came to pass between two marks."""
    turns = [longest_turn_s(*pair) for pair in zip(before.turns, after.turns, strict=True)]
    seen = [turn for turn in turns if turn is not None]
    return {
        "longest_turn_ms": max(seen) * 1000 if seen else None,
        "elections": max(after.terms) - max(before.terms),
        "deaths": after.deaths - before.deaths,
        "cpu_s": [
            round(late - early, 2) for early, late in zip(before.cpu_s, after.cpu_s, strict=True)
        ],
    }


def longest_turn_s(before: dict[float, float], after: dict[float, float]) -> float | None:
    """Return the upper bound of the highest bucket of a histogram that has grown.

    Args:
        before: Bucket by its upper bound, cumulative, as a scrape gives them; empty: from nothing.
        after: The same later. Where it counts less than *before*, the process was started anew.

    Returns:
        None without any observation in between.
    """
    last = max(after, default=0.0)
    restarted = bool(after) and after[last] < before.get(last, 0)
    longest, below = None, 0.0
    for bound in sorted(after):
        seen = after[bound] - (0 if restarted else before.get(bound, 0))
        if seen > below:
            longest = bound
        below = seen
    return longest


async def many(count: int, under_way: int, one: Callable[[int], Awaitable[object]]) -> str:
    """Do *one* for each number below *count*; return the first refusal, which ends it."""
    numbers = iter(range(count))
    said: list[str] = []

    async def worker() -> None:
        for number in numbers:
            if said:
                return
            try:
                await one(number)
            except (DledgerError, RuntimeError) as error:
                said.append(str(error))

    await asyncio.gather(*(worker() for _ in range(under_way)))
    return said[0] if said else ""
