"""A ``dledger dev`` group of real nodes: what its loops, processes and elections say."""

from __future__ import annotations

import asyncio
import os
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
from e2e.harness.devgroup import DevGroup, free_port_range
from e2e.harness.lines import longest_turn_s

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_HTTP: Final = 300
"""The metrics' ports, behind the client ports of `dledger dev`."""
_PROBE_S: Final = 0.02
_WHOLE_S: Final = 180.0
_SNAPSHOT_S: Final = 120.0
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
class Probe:
    """One small message every 20 ms, in an open loop: when they were acknowledged."""

    acked_s: list[float] = field(default_factory=list)
    failed: int = 0

    def longest_gap_ms(self, since_s: float) -> int:
        """Return the longest time without an acknowledgement since then."""
        seen = [since_s, *(at_s for at_s in self.acked_s if at_s >= since_s), time.monotonic()]
        return round(1000 * max(late - early for early, late in pairwise(seen)))


class LiveGroup:
    """A running group; ends with `running`."""

    def __init__(self, group: DevGroup, nodes: int) -> None:
        self._group, self.nodes = group, nodes
        announced = group.announced()
        self.endpoints: list[str] = announced["endpoints"]
        self.admins: list[str] = announced["adminEndpoints"]
        self.peak_mb = 0.0

    @property
    def leader(self) -> int:
        """Who led when last looked at."""
        return int(self._group.state()["leader"] or 0)

    @property
    def leader_endpoint(self) -> str:
        """Where clients reach that node."""
        return self.endpoints[self.leader]

    async def whole(self) -> None:
        """Wait until all nodes run and one leads. Raises TimeoutError."""
        await until(lambda: self._group.whole() is not None, _WHOLE_S)

    async def mark(self) -> Mark:
        """Return how it is now."""
        terms = await asyncio.gather(*(self._term(address) for address in self.admins))
        turns = await asyncio.gather(
            *(asyncio.to_thread(self._turns, number) for number in range(self.nodes))
        )
        cpu_s, peaks_mb = zip(*map(_process, self._group.state()["pids"]), strict=True)
        self.peak_mb = max(self.peak_mb, *peaks_mb)
        return Mark(turns=tuple(turns), terms=tuple(terms), deaths=self._deaths(), cpu_s=cpu_s)

    async def _term(self, address: str) -> int:
        async with AdminClient(address, timeout_s=5.0) as admin:
            try:
                return (await admin.status()).term
            except DledgerError:
                return 0

    def _turns(self, number: int) -> Buckets:
        found = self._samples(number, "dledger_loop_turn_cpu_seconds_bucket")
        return {float(sample.labels["le"]): sample.value for sample in found}

    def waiting_polls(self) -> int:
        """Return how many polls wait at the leader, as it published within the last second."""
        found = self._samples(self.leader, "dledger_waiting_polls")
        return int(found[0].value) if found else 0

    def _samples(self, number: int, name: str) -> list[Sample]:
        """Return the samples of a metric; none if the node does not answer."""
        url = f"http://127.0.0.1:{self._group.client_port + _HTTP + number}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return []
        families = text_string_to_metric_families(text)
        return [found for family in families for found in family.samples if found.name == name]

    def _deaths(self) -> int:
        return self._group.data.with_suffix(".err").read_text("utf-8").count("died")

    def frozen_ms(self) -> list[int]:
        """Return how long each snapshot's state took the loop, by the nodes' own logs."""
        logs = [self._group.data / f"node-{number}.log" for number in range(self.nodes)]
        text = "".join(path.read_text("utf-8", "replace") for path in logs)
        return [int(found) for found in re.findall(r"frozen in (\d+) ms", text)]

    @asynccontextmanager
    async def probed(self) -> AsyncIterator[Probe]:
        """Append a small message every 20 ms meanwhile."""
        probe, tasks = Probe(), set[asyncio.Task[None]]()
        async with Client(self.leader_endpoint, timeout_s=30.0) as client:
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

            running = asyncio.create_task(run())
            try:
                yield probe
            finally:
                running.cancel()
                if tasks:
                    await asyncio.wait(tasks, timeout=35)

    async def snapshots(self) -> list[str]:
        """Take a snapshot at every node, the leader first; return what was refused."""
        said = []
        leader = self.leader
        for number in sorted(range(self.nodes), key=lambda number: number != leader):
            async with AdminClient(self.admins[number], timeout_s=_SNAPSHOT_S) as admin:
                try:
                    await admin.snapshot()
                except DledgerError as error:
                    said.append(f"node {number}: {error}")
        return said


@asynccontextmanager
async def running(data: Path, *settings: str, nodes: int = 3) -> AsyncIterator[LiveGroup]:
    """Run a group with its data below *data*, which must not be there yet."""
    data.parent.mkdir(parents=True, exist_ok=True)
    group = DevGroup(
        data, free_port_range(), "leader_follows_clients=false", *settings, nodes=nodes
    )
    try:
        live = await asyncio.to_thread(LiveGroup, group, nodes)
        await live.whole()
        yield live
    finally:
        await asyncio.to_thread(group.stop)


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


async def until(holds: Callable[[], bool], deadline_s: float) -> None:
    """Return once *holds*, which may block for a moment. Raises TimeoutError."""
    end_s = time.monotonic() + deadline_s
    while not await asyncio.to_thread(holds):
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {deadline_s:.0f} s")
        await asyncio.sleep(0.1)


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


def _process(pid: int | None) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory (MB) of a process so far; zero if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return 0.0, 0.0
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S, int(peak[1]) / 1024 if peak else 0.0
