"""Producers of several languages, each through a sidecar of its own, while their group is away.

Five outages of one group of real nodes, in which the children of all sidecars are killed twice; and
a start of everything before the group. No send may fail, and what was answered OK is there in the
end, once, in the order of each producer's sends. `demo_outage` shows the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dledger.client import Client
from e2e.clients.drivers import ClientFailed
from e2e.clients.judging import Send, Spooled, judge_spooled
from e2e.clients.sdks import SDKS
from e2e.clients.stage import CaseFailed, User, using
from e2e.harness.dev_group import DevGroup, running
from e2e.harness.outages import NODES, OUTAGES, SETTINGS_OF_SMALL_DISKS, needs_disks, small_disks
from e2e.harness.ports import HOST, free_port_range
from e2e.harness.sidecar import SidecarProcess, beside
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import eventually_async

PRODUCERS: Final = 2
"""Of each language; one's sends are a lane."""
COLD_START: Final = "cold_start"
SPOOL_CASES: Final = (*OUTAGES, COLD_START)
_PACE_S: Final = 0.05
_AFTER_ERROR_S: Final = 0.2
_BODY_BYTES: Final = 512
_CALM: Final = 40
"""So many sends of each language come before the outage, and after it."""
_CALM_S: Final = 120.0
_STARTS_S: Final = 180.0
"""A JVM on a busy machine takes more than a command of a client that runs."""
_DRAIN_S: Final = 120.0
_WATCH_S: Final = 0.2
_NAMES: Final = "--topic"
_MOMENTS: Final = 3
"""The child is killed between these parts of an outage."""


def can_run(language: str) -> bool:
    """Whether a language is asked: a client that repeats nothing meets each killed child."""
    return SDKS[language].retries


def _say_nothing(event: str) -> None:
    del event


@dataclass(slots=True)
class Side:
    """One language: its client's process, the sidecar beside it, and what was sent."""

    language: str
    topic: str
    user: User
    sidecar: SidecarProcess
    say: Callable[[str], None]
    sent: list[Send] = field(default_factory=list)
    most_spooled: int = 0

    async def write(self, number: int, stopped: asyncio.Event) -> None:
        """Send as one producer, one message after the other, until told to stop."""
        row = 0
        while not stopped.is_set():
            row += 1
            began_s, error = time.monotonic(), ""
            try:
                await self.user.send(
                    self.topic, f"{number} {row} ", producer=f"{number}", size=_BODY_BYTES
                )
            except ClientFailed as raised:
                error = str(raised)
            ended_s = time.monotonic()
            self.sent.append(
                Send(producer=number, row=row, lasted_s=ended_s - began_s, error=error)
            )
            await asyncio.sleep(_AFTER_ERROR_S if error else max(0.0, began_s + _PACE_S - ended_s))

    async def watch(self) -> None:
        """Say when the first message is spooled, when a replay begins, and when all is stored."""
        waiting = 0
        while True:
            depth = int((await asyncio.to_thread(self.sidecar.metrics)).get("depth", waiting))
            if depth and not waiting:
                self.say(f"{self.language}: the first message is spooled")
            elif depth < waiting == self.most_spooled:
                self.say(f"{self.language}: the replay has begun, {depth} messages wait")
            if waiting and not depth:
                self.say(f"{self.language}: nothing waits")
            waiting, self.most_spooled = depth, max(depth, self.most_spooled)
            await asyncio.sleep(_WATCH_S)

    async def went_on(self) -> None:
        """Wait until some more sends have come back. Raises HarnessError."""
        target = len(self.sent) + _CALM

        async def has() -> bool:
            return len(self.sent) >= target

        await eventually_async(f"{self.language} sends", has, _CALM_S)


@asynccontextmanager
async def group_for(name: str, work: Path) -> AsyncIterator[DevGroup]:
    """Run a group that an outage of that name can come over.

    Raises:
        MissingPrerequisite: It needs disks that this process may not mount.
    """
    data = work / "group"
    with contextlib.ExitStack() as stack:
        settings: Sequence[str] = ()
        if needs_disks(name):
            stack.enter_context(small_disks(data))
            settings = SETTINGS_OF_SMALL_DISKS
        async with running(data, settings) as group:
            yield group


async def outage(
    name: str,
    commands: Mapping[str, Sequence[str]],
    seconds: float,
    work: Path,
    say: Callable[[str], None] = _say_nothing,
) -> dict[str, Spooled]:
    """Run producers of all languages through an outage; return what came of it, by language.

    Args:
        name: Of `OUTAGES`.
        commands: How each language's driver is started.
        seconds: How long it lasts.
        work: A directory for all of it.
        say: Told what happens.

    Raises:
        HarnessError: The run came to no figures, for the reason in the message.
        MissingPrerequisite: See `group_for`.
        ClientFailed: A client did not start on the calm group.
    """
    async with group_for(name, work) as group, AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(_side(each, command, group, work, say))
            for each, command in commands.items()
        ]
        stopped = asyncio.Event()
        await stack.enter_async_context(meanwhile(*(side.watch() for side in sides)))
        writers = [
            asyncio.create_task(side.write(number, stopped))
            for side in sides
            for number in range(PRODUCERS)
        ]
        try:
            await asyncio.gather(*(side.went_on() for side in sides))
            say(f"{NODES} nodes run, and {len(writers)} producers send through sidecars")
            async with OUTAGES[name](group):
                say((OUTAGES[name].__doc__ or name).splitlines()[0])
                await _kill_children(sides, seconds, say)
            say("the outage is over")
            await group.until_whole()
            say("all nodes are back, and one leads")
            await asyncio.gather(*(side.went_on() for side in sides))
        finally:
            stopped.set()
            await asyncio.gather(*writers)
        await asyncio.gather(*(side.sidecar.until_empty(_DRAIN_S) for side in sides))
        return {side.language: await _verdict_of(side, group) for side in sides}


async def _kill_children(sides: Sequence[Side], seconds: float, say: Callable[[str], None]) -> None:
    """Let an outage last, and kill the children between its parts."""
    end_s = time.monotonic() + seconds
    for left in range(_MOMENTS - 1, -1, -1):
        await asyncio.sleep(max(0.0, end_s - left * seconds / _MOMENTS - time.monotonic()))
        if left:
            await asyncio.gather(*(side.sidecar.kill_child() for side in sides))
            say("the sidecars' children are killed")


@asynccontextmanager
async def _side(
    language: str,
    command: Sequence[str],
    group: DevGroup,
    work: Path,
    say: Callable[[str], None],
) -> AsyncIterator[Side]:
    """Start a language's producers beside a sidecar, on a topic of one queue."""
    topic = f"spool-{language}"
    async with Client(group.leader_endpoint, timeout_s=30.0) as client:
        await client.create_topic(topic, queues=1)
    async with (
        beside(work / f"{language}-spool", group.endpoints) as sidecar,
        using(language, command, [sidecar.endpoint], work) as user,
    ):
        for number in range(PRODUCERS):
            await user.producer(topic, name=f"{number}", timeout_s=_STARTS_S)
        yield Side(language, topic, user, sidecar, say)


async def _verdict_of(side: Side, group: DevGroup) -> Spooled:
    endpoint = group.endpoints[(await group.until_whole())["leader"]]
    async with Client(endpoint, timeout_s=30.0) as client:
        bodies = [one.record.body async for one in client.read(side.topic, 0, linearizable=True)]
    stored = [(int(words[0]), int(words[1])) for words in (body.split() for body in bodies)]
    found = judge_spooled(side.sent, stored)
    return replace(found, spooled=side.most_spooled, kills=side.sidecar.kills)


# -- a start before the group ------------------------------------------------------------------


async def cold_start(
    commands: Mapping[str, Sequence[str]], work: Path
) -> dict[str, Spooled | CaseFailed]:
    """Start sidecars and clients while there is no group; found it, and see what came.

    A topic that was named with ``--topic`` is sent to; any other is refused with a sentence that
    says so. Returns what came of it by language.
    """
    port = free_port_range()
    endpoints = [f"{HOST}:{port + number}" for number in range(NODES)]
    found: dict[str, Spooled | CaseFailed] = {}
    async with AsyncExitStack() as stack:
        sides: list[Side] = []
        for language, command in commands.items():
            side = await stack.enter_async_context(_cold(language, command, endpoints, work))
            try:
                await _send_cold(side)
            except (ClientFailed, CaseFailed) as error:
                found[language] = CaseFailed(str(error))
            else:
                sides.append(side)
        group = await asyncio.to_thread(_found_group, work / "group", port)
        try:
            for side in sides:
                await side.sidecar.until_empty(_DRAIN_S)
                found[side.language] = await _verdict_of(side, group)
        finally:
            await asyncio.to_thread(group.stop)
    return found


def _found_group(data: Path, port: int) -> DevGroup:
    assert free_port_range() is not None  # the group's own is this process's still
    group = DevGroup(data, port)
    group.announced()
    return group


@asynccontextmanager
async def _cold(
    language: str, command: Sequence[str], endpoints: Sequence[str], work: Path
) -> AsyncIterator[Side]:
    """Start a client's process, no client yet, beside a sidecar whose group is not there."""
    topic = f"cold-{language}"
    named = _NAMES, f"{topic}:NORMAL"
    async with (
        beside(work / f"{language}-spool", endpoints, *named) as sidecar,
        using(language, command, [sidecar.endpoint], work) as user,
    ):
        yield Side(language, topic, user, sidecar, _say_nothing)


async def _send_cold(side: Side) -> None:
    """Start a producer and send. Raises ClientFailed, CaseFailed."""
    await side.user.producer(side.topic, name="0", timeout_s=_STARTS_S)
    stopped = asyncio.Event()
    writer = asyncio.create_task(side.write(0, stopped))
    async with meanwhile(side.watch()):
        await side.went_on()
        stopped.set()
        await writer
        await asyncio.sleep(2 * _WATCH_S)
    await _refused_by_name(side)


async def _refused_by_name(side: Side) -> None:
    """See that a topic that nobody has named is refused with what to do. Raises CaseFailed.

    Some clients hand on the sidecar's sentence, of others its log has it.
    """
    topic = f"unnamed-{side.language}"
    try:
        await side.user.producer(topic, name="unnamed")
        await side.user.send(topic, "nowhere", producer="unnamed")
    except ClientFailed as error:
        logged = await asyncio.to_thread(side.sidecar.log_text)
        if f"{_NAMES} {topic}" not in f"{error}{logged}":
            raise CaseFailed(f"refused, but nobody says what to do: {error}") from None
    else:
        raise CaseFailed("a topic that nobody named was taken")
