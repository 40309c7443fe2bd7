"""One run: a group, its clients, the nemesis until time is up, then the audit and the verdict."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dledger.client import Client
from dledger.errors import DledgerError
from e2e.chaos.audit import least_committed, read_logs, read_queues, settled
from e2e.chaos.clients import (
    PROBE_TOPIC,
    QUEUES,
    TOPIC,
    Anywhere,
    Producer,
    endpoints_from,
    probe_along,
    read_along,
)
from e2e.chaos.episodes import Outlook, draw
from e2e.chaos.faulty_group import FaultyGroup
from e2e.chaos.history import Probe, Recorder
from e2e.chaos.nemesis import Nemesis, Played
from e2e.chaos.register_clients import TOPIC as REGISTERS
from e2e.chaos.register_clients import RegisterClient
from e2e.chaos.verdict import Audit, Report, judge
from e2e.harness.waiting import HarnessError

LEADER_S: Final = 3.0
_PRODUCERS: Final = 4
_REGISTER_CLIENTS: Final = 4
_STOP_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run.

    Attributes:
        directory: Where everything is kept; new and empty.
        seed: Draws episodes and loads.
        duration_s: How long episodes begin.
        nodes: How many.
        own_volume: Whether the first node gets a file system of its own.
        durability: What an acknowledgement waits for: ``sync`` or ``osBuffer``.
        outlook: What episodes are drawn from.
        factor: By how much a loaded machine may be slower than the 3 s for a leader.
        max_episodes: Ends the run early.
    """

    directory: Path
    seed: int
    duration_s: float
    nodes: int = 3
    own_volume: bool = False
    durability: str = "sync"
    outlook: Outlook = Outlook()  # noqa: RUF009 - frozen
    factor: float = 3.0
    max_episodes: int = 100_000


async def run(options: Options, say: Callable[[str], None]) -> Report:
    """Run, and judge. What happened is in the directory even if this raises.

    Raises:
        HarnessError: The group did not start.
    """
    options.directory.mkdir(parents=True)
    group = FaultyGroup(
        options.directory,
        count=options.nodes,
        own_volume=options.own_volume,
        seed=options.seed,
        durability=options.durability,
    )
    with (options.directory / "history.jsonl").open("w", encoding="utf-8") as out:
        try:
            report = await _Run(options, group, Recorder(out), say).run()
        finally:
            await group.stop()
            group.release_volumes()
    _write(options.directory / "result.json", asdict(report))
    return report


class _Run:
    def __init__(
        self, options: Options, group: FaultyGroup, recorder: Recorder, say: Callable[[str], None]
    ) -> None:
        self._options, self._group, self._recorder, self._say = options, group, recorder, say
        self._probes: list[Probe] = []
        self._played: list[Played] = []
        self._problems: list[str] = []
        self._endpoints = {name: node.spec.endpoint for name, node in group.nodes.items()}
        self._clients = AsyncExitStack()

    async def run(self) -> Report:
        group = self._group
        await group.start()
        await self._create_topics()
        self._say(f"group of {len(group.nodes)} is writable; {self._options.directory}")
        stop = asyncio.Event()
        with _running(self._watchers()), _running(self._workers(stop)) as workers:
            await self._play()
            stop.set()
            _, late = await asyncio.wait(workers, timeout=_STOP_S)
            self._problems += [f"{one.get_name()} did not end in {_STOP_S:.0f} s" for one in late]
        await self._clients.aclose()
        audit = await self._audit()
        self._problems += [f"{e.node} ended ({e.code}) at {e.at_s:.1f} s" for e in group.exits]
        self._problems += [f"{e.node} ended ({e.code}) when told to stop" for e in group.ends]
        return judge(
            self._recorder.events,
            audit,
            self._played,
            leader_limit_s=LEADER_S * self._options.factor,
            asked=self._options.outlook.classes,
            problems=self._problems,
        )

    async def _create_topics(self) -> None:
        async with Client(next(iter(self._endpoints.values()))) as client:
            for name in (TOPIC, REGISTERS):
                await client.create_topic(name, queues=QUEUES)
            await client.create_topic(PROBE_TOPIC, queues=1)
            await client.create_topic("filler", queues=1)

    # -- clients --------------------------------------------------------------------------------

    def _workers(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """Return those whose operations must end by themselves."""
        now_s, seed, names = self._group.now_s, self._options.seed, list(self._endpoints)
        fresh = itertools.count(1)
        workers = []
        for number in range(_PRODUCERS):
            name, rng = f"producer-{number}", random.Random(f"{seed} producer {number}")
            group = self._client_of(name, names[number % len(names)])
            producer = Producer(name, number % QUEUES, group, rng, self._recorder)
            workers.append(producer.run(now_s, stop))
        for number in range(_REGISTER_CLIENTS):
            name, rng = f"register-{number}", random.Random(f"{seed} register {number}")
            group = self._client_of(name, names[number % len(names)])
            client = RegisterClient(name, group, rng, fresh, self._recorder)
            workers.append(client.run(now_s, stop))
        return workers

    def _watchers(self) -> list[Coroutine[Any, Any, None]]:
        """Return those that watch until they are cancelled."""
        now_s, out = self._group.now_s, self._recorder
        watchers = []
        for name, endpoint in self._endpoints.items():
            client = Client(endpoint, client_id=f"watcher-{name}")
            self._clients.push_async_callback(client.close)
            watchers.append(probe_along(name, client, out, self._probes, now_s))
            watchers += [read_along(name, client, queue, out, now_s) for queue in range(QUEUES)]
        return watchers

    def _client_of(self, name: str, first: str) -> Anywhere:
        anywhere = Anywhere(endpoints_from(self._endpoints, first), name)
        self._clients.push_async_callback(anywhere.close)
        return anywhere

    # -- episodes -------------------------------------------------------------------------------

    async def _play(self) -> None:
        """Play episodes until time is up, or the group does not recover."""
        nemesis = Nemesis(self._group, self._probes)
        options = self._options
        with (options.directory / "episodes.jsonl").open("w", encoding="utf-8") as out:
            for episode in draw(random.Random(options.seed), options.outlook):
                over = self._group.now_s() >= options.duration_s
                if over or episode.number > options.max_episodes:
                    return
                try:
                    played = await nemesis.play(episode)
                except HarnessError as error:
                    self._problems.append(f"episode {episode.number}: {error}")
                    return
                self._played.append(played)
                out.write(json.dumps(asdict(played), default=_plain) + "\n")
                out.flush()
                self._say(_line(played, self._group.now_s()))

    # -- audit ----------------------------------------------------------------------------------

    async def _audit(self) -> Audit:
        """Read all nodes: their queues while they run, their logs when they have ended.

        Nodes that do not come to the same are a problem, and are read all the same: who looks for
        the cause needs to know where they differ.
        """
        group, audit = self._group, Audit(0, {}, {})
        try:
            commit_index = await settled(group)
        except HarnessError as error:
            self._problems.append(f"audit: {error}")
            commit_index = await least_committed(group)
        try:
            audit = Audit(commit_index, await read_queues(group), {})
            await group.stop()
            audit = replace(audit, logs=await read_logs(group, commit_index))
        except DledgerError as error:
            self._problems.append(f"audit: {error}")
        return audit


@contextmanager
def _running(work: list[Coroutine[Any, Any, None]]) -> Iterator[list[asyncio.Task[None]]]:
    """Run coroutines as tasks; what still runs at the end is cancelled, an error is raised."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one, name=getattr(one, "__qualname__", None)) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
    for task in tasks:
        if task.done():
            task.result()


def _line(played: Played, now_s: float) -> str:
    episode = played.episode
    text = (
        f"[{now_s:7.1f} s] {episode.number:4d} {episode.fault.value:16s} "
        f"{','.join(played.nodes):24s} held {played.healed_s - played.started_s:5.1f} s  "
        f"without leader {played.gap_s:5.2f} s  whole after {played.whole_s:5.2f} s"
    )
    return text + ("" if played.fired else "  (did not fire)") + (played.problem and " PROBLEM")


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, default=_plain) + "\n", "utf-8")
