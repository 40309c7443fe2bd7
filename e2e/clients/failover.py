"""Four writers and a consumer of one client, while the leader is killed every five seconds."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from e2e.clients.drivers import ClientFailed
from e2e.clients.judging import Figures, Got, Sent, judge, leaderless_spans
from e2e.clients.stage import Stage, TlsGroup
from e2e.cluster.processes import send
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import came_true

WRITERS: Final = 4
EVERY_S: Final = 5.0
_PACE_S: Final = 0.02
"""The least time between two sends of a writer: what is late shall not be so because a client
is slower than four loops without a pause."""
_AFTER_ERROR_S: Final = 0.2
_DRAIN_S: Final = 90.0
_WATCH_S: Final = 0.05


@dataclass(slots=True)
class Leaders:
    """Kills leaders and notes when there was one."""

    at: TlsGroup
    killed: set[int] = field(default_factory=set)
    samples: list[tuple[float, bool]] = field(default_factory=list)

    def _pid(self) -> int | None:
        """Return the process that leads; None if nobody does, as far as `dledger dev` knows."""
        state = self.at.group.state()
        pid: int | None = None if state["leader"] is None else state["pids"][state["leader"]]
        return None if pid in self.killed else pid

    async def watch(self) -> None:
        """Note, again and again, whether somebody leads."""
        while True:
            self.samples.append((time.monotonic(), self._pid() is not None))
            await asyncio.sleep(_WATCH_S)

    async def kill(self, seconds: float) -> None:
        """Kill whoever leads at each fifth second; where nobody does, that one is left out."""
        began_s = time.monotonic()
        for number in range(1, int(seconds / EVERY_S) + 1):
            await asyncio.sleep(max(0.0, began_s + number * EVERY_S - time.monotonic()))
            if pid := self._pid():
                self.killed.add(pid)
                send(pid, signal.SIGKILL)


async def failover(stage: Stage, seconds: float) -> tuple[Figures, int]:
    """Run the load for so long; return what came of it, and how many leaders were killed.

    Raises:
        ClientFailed: The client did not start on the calm group.
    """
    topic = await stage.topic("failover")
    leaders = Leaders(stage.at)
    sent: list[Sent] = []
    async with stage.user() as user:
        await user.producer(topic)
        await user.listen("consumer", topic, f"g-{topic}")

        async def write(writer: int, end_s: float) -> None:
            number = 0
            while time.monotonic() < end_s:
                key, number = f"{writer}/{number}", number + 1
                began_s, error = time.monotonic(), ""
                try:
                    await user.send(topic, key)
                except ClientFailed as raised:
                    error = str(raised)
                ended_s = time.monotonic()
                sent.append(Sent(key=key, ended_s=ended_s, error=error))
                pause_s = _AFTER_ERROR_S if error else began_s + _PACE_S - ended_s
                await asyncio.sleep(max(0.0, pause_s))

        async with meanwhile(leaders.watch()):
            end_s = time.monotonic() + seconds
            await asyncio.gather(leaders.kill(seconds), *(write(n, end_s) for n in range(WRITERS)))
            await stage.at.group.until_whole()
            acked = {each.key for each in sent if not each.error}
            await came_true(lambda: not acked - set(user.texts("consumer")), _DRAIN_S)
        got = [Got(key=each.text, at_s=each.at_s) for each in user.got("consumer")]
    stored = Counter(await stage.at.stored(topic))
    spans = leaderless_spans(leaders.samples)
    return judge(sent, got, stored, spans), len(leaders.killed)
