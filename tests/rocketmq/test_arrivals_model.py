"""Leases and proofs against a small obvious model: what is not proved is never kept for a consumer.

Random histories of answers that go out directly, by followers, and by a server that cannot tell; of
proofs, bytes that move, broken connections, handles that come back, beats, and changes of leader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from dledger.broker.commands import Ack, ChangeInvisible, LeaseRef, Receive
from dledger.broker.results import LeaseChanged, Received
from dledger.calls.caller import Caller
from dledger.common.limits import FIRST_INVISIBLE_MS, RENEWED_INVISIBLE_MS
from dledger.door.contract import Arrival
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.types import NodeId
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine

SCAN_MS = 3_000
ALIVE_MS = 35_000
CLIENTS = ("a", "b")
WAYS = ("direct", "follower", "cannot tell")
Prove = Callable[[Arrival], None]


@dataclass
class Lease:
    """What the model knows of one lease."""

    receive_id: int
    until_ms: int
    client: str
    arrived: bool = False


@dataclass
class Answer:
    """One answer on its way."""

    receive_id: int
    way: str
    number: int
    written: Callable[[], None]
    finished: bool = False
    arrival: Arrival | None = None
    term: int = 0


class _Loop(asyncio.SelectorEventLoop):
    """Its clock is the log's."""

    log: Log

    def time(self) -> float:
        return self.log.now_ms / 1000


@dataclass
class World(PartOfEngine):
    """The shipped registry and state, and the model beside them."""

    rng: random.Random
    log: Log
    answers: list[Answer] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    proved: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    unfinished: set[int] = field(default_factory=set)
    beats: dict[str, int] = field(default_factory=dict)
    ever_proved: set[int] = field(default_factory=set)
    ever_moved: set[int] = field(default_factory=set)
    number: int = 0
    term: int = 0
    led_ms: int = 0

    def __post_init__(self) -> None:
        self.state = self.log.state
        self.log.create()
        self.log.produce(*("x" * 64))
        self.elect()

    # -- the engine ----------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.log.now_ms

    def lived_ms(self) -> int:
        return self.log.now_ms

    async def propose(self, command: bytes) -> object:
        return self.log.append(command)[0]

    # -- what happens --------------------------------------------------------------------------

    def elect(self) -> None:
        """Another leader: it knows of no answer that went out, and of no client."""
        self.term += 1
        self.led_ms = self.log.now_ms
        clients = ClientRegistry(self)
        clients._leading_since_s = self.log.now_ms / 1000
        self.clients = clients
        self.proved.clear()
        self.moved.clear()
        self.unfinished.clear()
        self.beats.clear()

    def caller(self, client: str, prove: Prove | None = None, number: int | None = None) -> Caller:
        return Caller(
            client_id=client,
            peer="",
            tls=False,
            forwarded=number is not None,
            deadline_s=0.0,
            has_telemetry=True,
            through=None if number is None else NodeId("n1"),
            passing_on=number,
            fields={},
            prove=prove,
        )

    def poll(self) -> None:
        client, way = self.rng.choice(CLIENTS), self.rng.choice(WAYS)
        command = Receive(
            group="g",
            topic="t",
            queue_id=0,
            any_queue=False,
            limit=self.rng.randrange(1, 5),
            invisible_ms=FIRST_INVISIBLE_MS,
            tags=None,
            attempt_id="",
            client_id=client,
        )
        (received,) = self.log.append(command.encode())
        assert isinstance(received, Received)
        if not received.deliveries:
            return
        made: list[Arrival] = []
        self.number += 1
        number = self.number if way == "follower" else None
        prove = made.append if way == "direct" else None
        written = self.clients.answering(command, received, self.caller(client, prove, number))
        answer = Answer(received.receive_id, way, self.number, written, term=self.term)
        answer.arrival = made[0] if made else None
        self.answers.append(answer)
        self.unfinished.add(answer.receive_id)
        for delivery in received.deliveries:
            until_ms = self.log.now_ms + FIRST_INVISIBLE_MS
            self.leases[delivery.offset] = Lease(answer.receive_id, until_ms, client)

    def write(self) -> None:
        answer = self._any(lambda each: not each.finished)
        if answer is not None:
            answer.finished = True
            answer.written()
            if answer.term == self.term:
                self.unfinished.discard(answer.receive_id)
                if answer.way == "cannot tell":
                    self._prove(answer)

    def prove(self) -> None:
        answer = self._any(lambda each: each.finished and each.way != "cannot tell")
        if answer is None:
            return
        if answer.arrival is not None:
            answer.arrival.proved()
        elif answer.term == self.term:
            self._told(arrived=[answer.number])
        self.answers.remove(answer)
        self._prove(answer)

    def move(self) -> None:
        answer = self._any(lambda each: each.way != "cannot tell")
        if answer is None:
            return
        if answer.arrival is not None:
            answer.arrival.moves()
        elif answer.term == self.term:
            self._told(moving=[answer.number])
        if answer.term == self.term:
            self.moved.add(answer.receive_id)
            self.ever_moved.add(answer.receive_id)

    def break_off(self) -> None:
        answer = self._any(lambda _: True)
        if answer is not None:
            self.answers.remove(answer)
            if answer.arrival is not None:
                answer.arrival.lost()

    def handle(self) -> None:
        """A handle comes back, to this leader."""
        if not self.leases:
            return
        offset = self.rng.choice(list(self.leases))
        lease = self.leases[offset]
        ref = LeaseRef(0, offset, lease.receive_id)
        self.clients.arrivals.handled("g", "t", [ref])
        if lease.receive_id not in self.unfinished:
            self.proved.add(lease.receive_id)
            self.ever_proved.add(lease.receive_id)
        if self.rng.random() < 0.7:
            self.log.append(Ack(group="g", topic="t", leases=(ref,)).encode())
            del self.leases[offset]
        else:
            change = ChangeInvisible(group="g", topic="t", lease=ref, invisible_ms=20_000)
            (changed,) = self.log.append(change.encode())
            assert isinstance(changed, LeaseChanged)
            lease.receive_id = changed.receive_id
            lease.client, lease.arrived = "", False
            lease.until_ms = self.log.now_ms + 20_000

    def beat(self) -> None:
        client = self.rng.choice(CLIENTS)
        self.clients.seen(self.caller(client))
        self.beats[client] = self.log.now_ms

    async def scan(self) -> None:
        self.log.now_ms += SCAN_MS
        await self.clients.renew()
        now_ms = self.log.now_ms
        for lease in self.leases.values():
            if not lease.client or not self._lives(lease.client):
                continue
            nears = lease.until_ms < now_ms + RENEWED_INVISIBLE_MS // 2
            if (lease.receive_id in self.proved and not lease.arrived) or (lease.arrived and nears):
                lease.until_ms, lease.arrived = now_ms + RENEWED_INVISIBLE_MS, True
            elif lease.receive_id in self.moved and not lease.arrived:
                lease.until_ms = now_ms + FIRST_INVISIBLE_MS
        self.proved.clear()
        self.moved.clear()

    def _lives(self, client: str) -> bool:
        """Whether it called lately, or the leader is too new to know."""
        return self.log.now_ms - self.beats.get(client, self.led_ms) < ALIVE_MS

    def _any(self, fits: Callable[[Answer], bool]) -> Answer | None:
        fitting = [each for each in self.answers if fits(each)]
        return self.rng.choice(fitting) if fitting else None

    def _prove(self, answer: Answer) -> None:
        if answer.term == self.term:
            self.proved.add(answer.receive_id)
            self.ever_proved.add(answer.receive_id)

    def _told(self, arrived: Sequence[int] = (), moving: Sequence[int] = ()) -> None:
        self.clients.arrivals.told(NodeId("n1"), arrived=arrived, moving=moving)

    # -- what must hold ------------------------------------------------------------------------

    def check_leases(self) -> None:
        deliveries = self.state.groups._peek("g", "t", 0)
        found = {
            offset: Lease(each.receive_id, each.visible_at_ms, each.client_id, each.arrived)
            for offset, each in (deliveries.leases.items() if deliveries else ())
        }
        assert found == self.leases
        for lease in found.values():
            assert not lease.arrived or lease.receive_id in self.ever_proved
            unknown = lease.receive_id not in self.ever_proved | self.ever_moved
            if unknown and lease.client:
                assert lease.until_ms - self.log.now_ms <= FIRST_INVISIBLE_MS


@pytest.mark.parametrize("start", range(0, 1_000, 100))
def test_a_proved_answer_is_kept_and_no_other(start: int) -> None:
    """Each lease ends when the model says, after each step of each history."""

    async def history(seed: int) -> None:
        rng = random.Random(seed)
        world = World(rng, loop.log)
        steps: list[Callable[[], None]] = [
            world.poll,
            world.poll,
            world.write,
            world.write,
            world.prove,
            world.prove,
            world.move,
            world.break_off,
            world.handle,
            world.beat,
            world.beat,
        ]
        for _ in range(60):
            if rng.random() < 0.25:
                await world.scan()
            elif rng.random() < 0.02:
                world.elect()
            else:
                rng.choice(steps)()
            world.check_leases()

    loop = _Loop()
    try:
        for seed in range(start, start + 100):
            loop.log = Log()
            loop.run_until_complete(history(seed))
    finally:
        loop.close()
