"""A node that does not lead is away: dead for good, or frozen. What is missing meanwhile?"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from e2e.clients.drivers import ClientFailed
from e2e.clients.judging import not_once
from e2e.clients.stage import CaseFailed, Stage, TlsGroup
from e2e.cluster.processes import send
from e2e.harness.ports import HOST
from e2e.harness.waiting import came_true

_MESSAGES: Final = 40
_ARRIVE_S: Final = 60.0
_AWAY_S: Final = 45.0
"""How long the node stays away if not everything comes."""
_POLL_S: Final = 0.01
_HELD_S: Final = 30.0
_ENOUGH: Final = 5
"""After this many failed sends the case ends: each may take its whole deadline."""
Choice = Callable[[Sequence[int], Collection[int]], int]
Away = Callable[[TlsGroup, int], contextlib.AbstractAsyncContextManager[None]]


@asynccontextmanager
async def dead(at: TlsGroup, victim: int) -> AsyncIterator[None]:
    """The node is killed; what `dledger dev` starts instead is stopped before it listens."""
    port = int(at.group.endpoints[victim].rpartition(":")[2])
    send(at.group.state()["pids"][victim], signal.SIGKILL)
    held = await _held(at, victim, port)
    try:
        yield
    finally:
        send(held, signal.SIGCONT)


@asynccontextmanager
async def frozen(at: TlsGroup, victim: int) -> AsyncIterator[None]:
    """The node's process is stopped: its connections stay, and nothing answers."""
    pid = at.group.state()["pids"][victim]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


async def _held(at: TlsGroup, victim: int, port: int) -> int:
    """Return the pid of the node's next life, stopped while nobody listens on its port.

    Raises:
        CaseFailed: It listened first, each time.
    """
    others = {pid for index, pid in enumerate(at.group.state()["pids"]) if index != victim}
    end_s = time.monotonic() + _HELD_S
    while time.monotonic() < end_s:
        await asyncio.sleep(_POLL_S)
        for pid in _children(at.group.process.pid) - others:
            send(pid, signal.SIGSTOP)
            if not _listens(port):
                return pid
            send(pid, signal.SIGKILL)
    raise CaseFailed("the dead node was always quicker to come back")


def _children(pid: int) -> set[int]:
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


async def one_node_dead(stage: Stage) -> None:
    """While a follower that the client uses is dead, sends work, and all that is sent arrives."""
    await _arrives_while(dead, used, stage)


async def one_node_frozen(stage: Stage) -> None:
    """While a follower is frozen, sends work, and all that is sent arrives."""
    await _arrives_while(frozen, not_the_only_one, stage)


def used(followers: Sequence[int], reached: Collection[int]) -> int:
    """Return a follower that the client has a connection to, if there is one."""
    return next((each for each in followers if each in reached), followers[0])


def not_the_only_one(followers: Sequence[int], reached: Collection[int]) -> int:
    """Return a follower that the client can do without.

    One that uses all nodes has others left. One that keeps to a single connection would wait at a
    frozen node, call by call, until something kills it: nobody else can tell it to go elsewhere.
    It has connections to where it asked first, too, and works through the first in a route that
    it could reach: the last in the order of names is none that it needs.
    """
    return max(set(followers) - set(reached) or followers)


async def _arrives_while(away: Away, choice: Choice, stage: Stage) -> None:
    before = [f"before-{number}" for number in range(_MESSAGES)]
    meanwhile = [f"meanwhile-{number}" for number in range(_MESSAGES)]
    async with stage.producing("away") as (user, topic):
        await user.listen("consumer", topic, f"g-{topic}")
        for text in before:
            await user.send(topic, text)
        if not await came_true(lambda: not set(before) - set(user.texts("consumer")), _ARRIVE_S):
            raise CaseFailed(f"before: {not_once(before, user.texts('consumer'))}")
        leader = (await stage.at.group.until_whole())["leader"]
        ports = stage.at.group.tls_endpoints if stage.tls else stage.at.group.endpoints
        followers = [index for index in range(len(ports)) if index != leader]
        async with away(stage.at, choice(followers, user.reached(ports))):
            sent, errors = list[str](), list[str]()
            for text in meanwhile:
                try:
                    await user.send(topic, text)
                    sent.append(text)
                except ClientFailed as error:
                    errors.append(str(error))
                    if len(errors) == _ENOUGH and stage.sdk.retries:
                        break
            await came_true(lambda: not set(sent) - set(user.texts("consumer")), _AWAY_S)
            missing = sorted(set(sent) - set(user.texts("consumer")))
        await stage.at.group.until_whole()
    if missing:
        raise CaseFailed(f"after {_AWAY_S:.0f} s {len(missing)} are missing, as {missing[0]}")
    if not sent or (errors and stage.sdk.retries):
        raise CaseFailed(f"{len(errors)} sends failed: {errors[0]}")


CASES: Final[Mapping[str, Callable[[Stage], Awaitable[None]]]] = {
    case.__name__: case for case in (one_node_dead, one_node_frozen)
}
"""They run alone, through both ports."""
