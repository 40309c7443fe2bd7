"""Honest crowds: many clients behind one address, and all of them anew after a failover."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import grpc

from e2e.harness.checks import Check, at_most
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import came_true
from e2e.hostile.honest import Ended, Honest
from e2e.hostile.judging import RECOVERY_S, held
from e2e.hostile.scene import Scene
from e2e.hostile.talk import by_talks, dial

CLIENTS: Final = 1_000
POLLERS: Final = 1_250
"""With a poll of each queue 10,000."""
_QUEUES: Final = 8
_TOPIC: Final = "crowd"
_WAIT_S: Final = 20.0
_EARLY_S: Final = 10.0
"""An empty answer that comes earlier is no long poll."""
_AGAIN_S: Final = 0.5
"""An SDK's pause after a poll that was refused."""
_DIAL_AGAIN_S: Final = (1.0, 1.6, 2.56, 4.1)
"""gRPC's pauses between tries to connect, which it spreads by a fifth."""
_SPREAD: Final = 0.2
_HANDSHAKES: Final = 32
_SHARE: Final = 0.98
"""Of all polls: some are being answered at any moment."""
_COME_S: Final = 90.0
_SAMPLE_S: Final = 0.25


@dataclass(slots=True)
class Crowd:
    """What became of the calls of a crowd; times are of the monotonic clock.

    Attributes:
        served: How often which call of a client was answered with OK.
        delivered: Ids of messages that came.
        sent: Which clients have sent their message.
        refused: When a call was refused or ended, and how.
        early: Polls that were answered empty at once.
        waiting: How many polls are under way.
        gate: Dials of theirs at a time. By TLS they are few, since all clients are on this one
            processor: a handshake would wait for a thousand others here, longer than on any way.
    """

    scene: Scene
    nodes: list[int]
    served: Counter[str] = field(default_factory=Counter)
    delivered: set[str] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    refused: list[tuple[float, str]] = field(default_factory=list)
    early: int = 0
    waiting: int = 0
    gate: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.gate = asyncio.Semaphore(_HANDSHAKES if self.scene.tls else POLLERS)

    async def client(self, number: int) -> None:
        """Be one client until cancelled: it dials again when it is left, at the next node."""
        rng, failed = random.Random(number), 0
        for turn in range(1_000):
            node = self.nodes[(number + turn) % len(self.nodes)] if turn else self.nodes[0]
            make = functools.partial(Honest, f"crowd@{number}")
            async with self.gate:
                one: Honest | None = await dial(self.scene, node, 0, make)
            served = False
            if one is None:
                self._note("connection refused")
            else:
                try:
                    await self._greet(one, number)
                    served = True
                    await asyncio.gather(*(self._poll(one, queue) for queue in range(_QUEUES)))
                except Ended as error:
                    self._note(str(error))
                finally:
                    one.close()
            failed = 0 if served else failed + 1
            if failed:
                pause_s = _DIAL_AGAIN_S[min(failed, len(_DIAL_AGAIN_S)) - 1]
                await asyncio.sleep(pause_s * rng.uniform(1 - _SPREAD, 1 + _SPREAD))

    async def _greet(self, one: Honest, number: int) -> None:
        self._count("Telemetry", await one.greet("crowd"))
        self._count("QueryRoute", await one.route(_TOPIC))
        if number not in self.sent:
            self._count("SendMessage", await one.send(_TOPIC, f"c{number}"))
            self.sent.add(number)

    async def _poll(self, one: Honest, queue: int) -> None:
        while not one.closed.done():
            self.waiting += 1
            try:
                found = await one.poll(_TOPIC, "crowd", queue, _WAIT_S)
            except Ended as error:
                self._note(str(error))
                await asyncio.sleep(_AGAIN_S)
                continue
            finally:
                self.waiting -= 1
            self.delivered |= set(found.message_ids)
            if found.said not in ("OK", "MESSAGE_NOT_FOUND"):
                self._note(found.said)
                await asyncio.sleep(_AGAIN_S)
            elif not found.message_ids and found.took_s < _EARLY_S:
                self.early += 1
                await asyncio.sleep(_AGAIN_S)

    def _count(self, call: str, code: str) -> None:
        if code != "OK":
            raise Ended(f"{call}: {code}")
        self.served[call] += 1

    def _note(self, how: str) -> None:
        self.refused.append((time.monotonic(), how))

    def tell(self, since_s: float = 0.0) -> str:
        """Return what was refused since then, by how often."""
        counts = Counter(how for at_s, how in self.refused if at_s >= since_s)
        return ", ".join(f"{how} {n}" for how, n in counts.most_common(4)) or "0"


@by_talks
async def behind_one_address(scene: Scene) -> list[Check]:
    """C01: a thousand clients of one address, each with a poll of each of eight queues."""
    await asyncio.to_thread(_make, scene)
    crowd, leaders = Crowd(scene, [scene.leader]), Leaders(scene)
    async with meanwhile(leaders.watch(), *(crowd.client(n) for n in range(CLIENTS))):
        await came_true(lambda: len(crowd.sent) >= CLIENTS, _COME_S)
        await came_true(lambda: len(crowd.delivered) >= CLIENTS, _COME_S / 2)
        polls = _QUEUES * CLIENTS
        await came_true(lambda: crowd.waiting >= polls, _COME_S / 2)  # answered ones come again
        waiting = crowd.waiting
    return [
        *(
            held(f"c01: {name}", f"{crowd.served[name]} of {CLIENTS}", "all",
                 crowd.served[name] >= CLIENTS)
            for name in ("Telemetry", "QueryRoute", "SendMessage")
        ),
        held("c01: messages delivered", len(crowd.delivered), "all",
             len(crowd.delivered) >= CLIENTS),
        held("c01: polls under way", waiting, f"{polls:,}", waiting >= polls),
        held("c01: refused", crowd.tell(), "none", not crowd.refused),
        held("c01: polls answered empty at once", crowd.early, "none", not crowd.early),
        held("c01: leaders", leaders.tell(), "one", len(leaders.seen) == 1),
    ]  # fmt: skip


@by_talks
async def after_a_failover(scene: Scene) -> list[Check]:
    """C02: 10,000 polls lose their node, which led, and all come again at once."""
    await asyncio.to_thread(_make, scene)
    others = [node for node in range(len(scene.endpoints)) if node != scene.leader]
    crowd, leaders = Crowd(scene, [scene.leader, *others]), Leaders(scene)
    async with meanwhile(leaders.watch(), *(crowd.client(n) for n in range(POLLERS))):
        polls = _QUEUES * POLLERS
        await came_true(lambda: len(crowd.delivered) >= POLLERS, _COME_S)
        await came_true(lambda: crowd.waiting >= polls, _COME_S / 4)
        before, crowd.early = crowd.waiting, 0
        crowd.refused.clear()
        leaders.seen.clear()
        crowd.nodes = others
        os.kill(scene.pids[scene.leader], signal.SIGKILL)
        killed_s = time.monotonic()
        await came_true(lambda: crowd.waiting < before - POLLERS, RECOVERY_S)
        await came_true(lambda: crowd.waiting >= before, RECOVERY_S)
        back_s = time.monotonic() - killed_s
        await asyncio.sleep(max(0.0, RECOVERY_S - back_s))
        sent = await asyncio.to_thread(_send, scene, others)
        await came_true(lambda: sent <= crowd.delivered, RECOVERY_S)
        late, missing = crowd.tell(killed_s + RECOVERY_S), len(sent - crowd.delivered)
        waiting = crowd.waiting
    return [
        held("c02: polls before", before, f"{polls:,}", before >= polls),
        at_most("c02: polls under way again after", round(back_s, 1), RECOVERY_S, "s"),
        held("c02: polls then", waiting, f"{polls:,}", waiting >= polls * _SHARE),
        held("c02: refused within 10 s", crowd.tell(), "some", True),
        held("c02: refused later", late, "none", late == "0"),
        held("c02: polls answered empty at once", crowd.early, "none", not crowd.early),
        held("c02: messages then", f"{len(sent) - missing} of {len(sent)}", "all",
             bool(sent) and not missing),
        held("c02: leaders", leaders.tell(), "one", len(leaders.seen) == 1),
    ]  # fmt: skip


def _make(scene: Scene) -> None:
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, _TOPIC, _QUEUES)


def _send(scene: Scene, nodes: list[int], count: int = 100) -> set[str]:
    """Send some messages by the first of *nodes* that takes them; return their ids."""
    taken = set[str]()
    for node in nodes:
        with scene.channel(scene.endpoints[node]) as channel:
            ids = [f"then-{number}" for number in range(count) if f"then-{number}" not in taken]
            taken |= {each for each in ids if scene.send(channel, _TOPIC, each, b"x") == "OK"}
    return taken


@dataclass(slots=True)
class Leaders:
    """Who led while one looked: (node, term)."""

    scene: Scene
    seen: dict[tuple[int, int], None] = field(default_factory=dict)

    async def watch(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(_SAMPLE_S)

    def _look(self) -> None:
        for node in range(len(self.scene.admins)):
            with contextlib.suppress(grpc.RpcError):
                status = self.scene.status(node, timeout_s=1.0)
                if status.role == "leader":
                    self.seen[node, status.term] = None

    def tell(self) -> str:
        """Return them in the order in which they came."""
        return ", ".join(f"node {node} in term {term}" for node, term in self.seen) or "none"
