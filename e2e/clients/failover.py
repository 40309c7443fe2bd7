"""Writers and consumers of one client, for each type of message, while leaders are killed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from dledger.client import follow
from e2e.clients.drivers import ClientFailed
from e2e.clients.judging import LATE_S, Figures, Got, Sent, judge, leaderless_spans
from e2e.clients.loads import plan_send
from e2e.clients.stage import POLL_INVISIBLE_S, QUEUES, Stage, TlsGroup, User
from e2e.cluster.processes import send
from e2e.harness.tasks import meanwhile

WRITERS: Final = 4
"""Of a type that is alone; two of each if there are several."""
EVERY_S: Final = 5.0
_PACE_S: Final = 0.02
"""The least time between two sends of a writer: what is late shall not be so because a client
is slower than four loops without a pause."""
_PACE_OF_SEVERAL_S: Final = 0.1
_AFTER_ERROR_S: Final = 0.2
_CHECKED_S: Final = 360.0
"""Python's producer can be asked again when its client has found a node: within 5 minutes."""
_SOON_S: Final = 90.0
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


@dataclass(slots=True, kw_only=True)
class _Load:
    """What a client sends of one type, and what it gets."""

    kind: str
    topic: str
    user: User
    late_s: float
    sent: list[Sent] = field(default_factory=list)
    released: list[Got] = field(default_factory=list)
    unended: list[str] | None = None

    async def start(self) -> None:
        """Start its producer and its consumer. Raises ClientFailed."""
        await self.user.producer(self.topic, name=self.kind, transaction=self.kind == "TRANSACTION")
        await self.user.listen(self._consumer, self.topic, f"g-{self.topic}")

    @property
    def _consumer(self) -> str:
        return f"consumer-{self.kind}"

    async def stand_in(self) -> None:
        """Start another producer, which is asked what the first one is not asked any more."""
        if self.kind == "TRANSACTION":
            await self.user.producer(self.topic, name="stand-in", transaction=True)

    async def write(self, writer: int, end_s: float, pace_s: float) -> None:
        """Send one message after the other until *end_s*."""
        number = 0
        while (began_s := time.monotonic()) < end_s:
            wall_s = time.time()
            plan, number = plan_send(self.kind, writer, number, wall_s), number + 1
            error = end_error = ""
            try:
                end_error = await self.user.send(
                    self.topic, plan.key, producer=self.kind, **plan.options
                )
            except ClientFailed as raised:
                error = str(raised)
            ended_s = time.monotonic()
            due_s = plan.due_s and began_s + plan.due_s - wall_s
            self.sent.append(
                Sent(
                    key=plan.key, ended_s=ended_s, error=error, due_s=due_s, group=plan.group,
                    wanted=plan.is_wanted,
                    most_s=_CHECKED_S if plan.is_silent or end_error else self.late_s,
                )
            )  # fmt: skip
            pause_s = _AFTER_ERROR_S if error else began_s + pace_s - ended_s
            await asyncio.sleep(max(0.0, pause_s))

    async def watch(self, endpoints: Sequence[str], queue_id: int) -> None:
        """Note when messages are in a queue: what is late there is not so by a consumer's fault."""
        async with aclosing(follow(endpoints, self.topic, queue_id)) as batches:
            async for batch in batches:
                now_s = time.monotonic()
                self.released += [Got(key=each.decode(), at_s=now_s) for each in batch.bodies()]

    async def drain(self, at: TlsGroup) -> None:
        """Wait until all has come that has to, and is ended, or until it is too late."""
        acked = {each.key for each in self.sent if each.wanted and not each.error}
        transactional = self.kind == "TRANSACTION"
        end_s = time.monotonic() + (_CHECKED_S if transactional else _SOON_S)
        while time.monotonic() < end_s:
            if transactional:
                self.unended = await at.open_transactions(self.topic)
            if not self.unended and not acked - set(self.user.texts(self._consumer)):
                return
            await asyncio.sleep(1.0)

    def figures(self, stored: Counter[str], spans: Sequence[tuple[float, float]]) -> Figures:
        """Return what came of it.

        Args:
            stored: How often the log has each message, in the order of the first of each.
            spans: When the group had no leader.
        """
        got = [Got(key=each.text, at_s=each.at_s) for each in self.user.got(self._consumer)]
        released = self.released if self.kind == "DELAY" else None
        return replace(judge(self.sent, got, stored, spans, released), unended=self.unended)


async def failover(
    stage: Stage, kinds: Sequence[str], seconds: float
) -> tuple[dict[str, Figures], int]:
    """Run a load of each of *kinds* beside each other for so long.

    Returns:
        What came of each, and how many leaders were killed.

    Raises:
        ClientFailed: The client did not start on the calm group.
    """
    leaders = Leaders(stage.at)
    async with stage.user() as user:
        loads = [
            _Load(
                kind=kind,
                topic=await stage.topic(f"failover-{kind.lower()}", kind),
                user=user,
                late_s=LATE_S if stage.sdk.has_push else LATE_S + POLL_INVISIBLE_S,
            )
            for kind in kinds
        ]
        for load in loads:
            await load.start()
        watched = [
            load.watch(stage.at.group.endpoints, queue_id)
            for load in loads
            if load.kind == "DELAY"
            for queue_id in range(QUEUES)
        ]
        writers, pace_s = (WRITERS, _PACE_S) if len(loads) == 1 else (2, _PACE_OF_SEVERAL_S)
        async with meanwhile(leaders.watch(), *watched):
            end_s = time.monotonic() + seconds
            writing = (
                load.write(number, end_s, pace_s) for load in loads for number in range(writers)
            )
            await asyncio.gather(leaders.kill(seconds), *writing)
            await stage.at.group.until_whole()
            if not stage.sdk.opens_again:
                for load in loads:
                    await load.stand_in()
            await asyncio.gather(*(load.drain(stage.at) for load in loads))
        spans = leaderless_spans(leaders.samples)
        figures = {
            load.kind: load.figures(Counter(await stage.at.stored(load.topic)), spans)
            for load in loads
        }
    return figures, len(leaders.killed)
