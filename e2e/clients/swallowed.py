"""A client behind walls that swallow what nodes answer, and reset its connections, again and again.

The nodes advertise an address at which there are walls instead of them; all of its connections go
through these. What it acknowledged to its producer has to reach its consumer all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from e2e.clients.drivers import ClientFailed
from e2e.clients.stage import CaseFailed, Stage, TlsGroup
from e2e.harness.waiting import came_true
from e2e.harness.wall import RESTS_S, Wall, swallowing, wall

WALL_HOST: Final = "127.0.0.2"
"""What nodes are to advertise."""
_TIMES: Final = 6
_PACE_S: Final = 0.1
_FIRST_S: Final = 60.0
_COMES_S: Final = 120.0
IN_TIME_S: Final = 20.0


@asynccontextmanager
async def walled(at: TlsGroup) -> AsyncIterator[Sequence[Wall]]:
    """Stand before the plain ports of a group, which clients reach by nothing else from now on."""
    async with contextlib.AsyncExitStack() as stack:
        ports = [int(each.rpartition(":")[2]) for each in at.group.endpoints]
        walls = [await stack.enter_async_context(wall(n, (WALL_HOST, n))) for n in ports]
        at.group.endpoints = [f"{WALL_HOST}:{port}" for port in ports]
        yield walls


async def swallowed(stage: Stage, walls: Sequence[Wall]) -> None:
    """All that was acknowledged arrives, within 20 s of the last cut."""
    async with stage.producing("swallowed") as (user, topic):
        await user.listen("consumer", topic, f"g-{topic}")
        await user.send(topic, "first")
        if not await came_true(lambda: "first" in user.texts("consumer"), _FIRST_S):
            raise CaseFailed("the first message did not arrive, though nothing was swallowed")
        acked, number = {"first"}, 0
        swallows = asyncio.create_task(swallowing(walls, _TIMES))
        while not swallows.done():
            number += 1
            with contextlib.suppress(ClientFailed):  # its retries were swallowed, too
                await user.send(topic, f"{number}")
                acked.add(f"{number}")
            await asyncio.sleep(_PACE_S)
        since_s = time.monotonic() - RESTS_S
        await came_true(lambda: not acked - set(user.texts("consumer")), _COMES_S)
        missing = sorted(acked - set(user.texts("consumer")))
        took_s = time.monotonic() - since_s
    if not sum(each.dropped for each in walls):
        raise CaseFailed("nothing was swallowed: the client did not come through the walls")
    if missing:
        raise CaseFailed(f"{len(missing)} of {len(acked)} did not come, as {missing[0]}")
    if took_s > IN_TIME_S:
        raise CaseFailed(f"the last of {len(acked)} came {took_s:.0f} s after the last cut")
