"""Turns: a message wakes as many polls of a group as it can serve, and none waits beside one."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    LeaseRef,
    Receive,
    Release,
    Renew,
    Retain,
    UseFilter,
)
from dledger.broker.filters import tag_codes
from dledger.broker.results import Received
from dledger.calls.caller import Caller
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError, LeadershipLost
from dledger.requests.config import RequestConfig
from dledger.requests.outflow import Outflow
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unpacking import Unpacking
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq import long_polls, receiving
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.rocketmq.dead_letters import DeadLetters
from dledger.rocketmq.long_polls import LongPollQueue
from dledger.rpc.rocketmq_stubs import definition
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine
from tests.rocketmq.turned_clock import TurnedClock

QUEUES = 3


@dataclass
class _World(PartOfEngine):
    """The engine of a leader: what is proposed waits until the test commits it."""

    loop: TurnedClock
    log: Log = field(default_factory=Log)
    leads: bool = True
    pending: list[tuple[bytes, asyncio.Future[object]]] = field(default_factory=list)
    proposed: int = 0
    polls: list[tuple[asyncio.Task[Received | None], Receive]] = field(default_factory=list)
    given: list[tuple[Receive, Received]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for group in ("g", "h"):
            self.log.create(queues=QUEUES, group=group)
        self.state = self.log.state
        self.turns = LongPollQueue(self)
        metrics, clients = NodeMetrics(self.group, self.node_id), ClientRegistry(self)
        broken = UnreadableMessages(self.group, metrics.broken_messages)
        self.receiver = receiving.Receiver(
            self,
            TopicResolver(self, RequestConfig()),
            self.turns,
            clients,
            metrics,
            broken=broken,
            outflow=Outflow(),
            unpacking=Unpacking(),
            dead_letters=DeadLetters(self, clients.arrivals, broken=broken, metrics=metrics),
        )

    # -- the engine --

    def is_leader(self) -> bool:
        return self.leads

    def now_ms(self) -> int:
        return 1_000_000 + round(self.loop.now_s * 1000)

    def lived_ms(self) -> int:
        return self.now_ms()

    async def propose(self, command: bytes) -> object:
        self.proposed += 1
        future: asyncio.Future[object] = self.loop.create_future()
        self.pending.append((command, future))
        return await future

    # -- what a test does --

    def apply(self, *commands: bytes) -> list[object]:
        self.log.now_ms = self.now_ms()
        results = self.log.append(*commands)
        self.turns.notify(self.state.take_changes())
        return results

    def produce(self, queue_id: int = 0, count: int = 1, tag: str = "") -> None:
        self.log.now_ms = self.now_ms()
        self.log.produce(*("x" * count), queue_id=queue_id, tag=tag)
        self.turns.notify(self.state.take_changes())

    def poll(
        self, wait_s: float = 20, waited_s: float = 0.0, address: str = "", **fields: Any
    ) -> asyncio.Task[Received | None]:
        """Have a poll come that has waited at another node before."""
        values: dict[str, Any] = {"group": "g", "topic": "t", "queue_id": 0, "limit": 1}
        values |= {"any_queue": False, "invisible_ms": 10_000, "tags": None, "attempt_id": ""}
        command = Receive(**(values | {"client_id": ""} | fields))
        topic = self.state.topics.get("t")
        assert topic is not None
        poll = receiving._Poll(
            command=command,
            topic=topic,
            resource=definition.Resource(),
            wait_s=wait_s,
            since_s=self.loop.now_s - waited_s,
            address=address,
        )
        caller = Caller(
            client_id="", peer="", tls=False, forwarded=False, deadline_s=math.inf, fields={}
        )
        task = self.loop.create_task(self.receiver._poll(poll, caller))
        self.polls.append((task, command))
        return task

    async def settle(self) -> None:
        """Let everything run that can, without time going on."""
        for _ in range(12):
            await asyncio.sleep(0)
        for task, command in [pair for pair in self.polls if pair[0].done()]:
            self.polls.remove((task, command))
            if task.cancelled() or task.exception() is not None:
                continue
            if (given := task.result()) is not None:
                self.given.append((command, given))

    async def commit(self) -> None:
        """Commit what is proposed, as one entry, and give the answers."""
        pending, self.pending = self.pending, []
        if pending:
            results = self.apply(*(command for command, _ in pending))
            for (_, future), result in zip(pending, results, strict=True):
                if not future.done():
                    future.set_result(result)
        await self.settle()

    async def commit_all(self) -> None:
        while self.pending:
            await self.commit()

    async def go_on(self, seconds: float) -> None:
        self.loop.now_s += seconds
        await self.settle()

    def served(self, want: Receive) -> bool:
        """Whether the state has something for a poll."""
        groups = self.state.groups
        ids = range(QUEUES) if want.any_queue else range(want.queue_id, want.queue_id + 1)
        codes = tag_codes(want.tags)
        found = groups.available(want.group, "t", ids, self.now_ms(), enough=1, codes=codes)
        return found > 0 or groups.holds_attempt(want.group, "t", want.attempt_id)

    def in_vain(self) -> list[Receive]:
        """Return who waits although there is a message for it and nobody is asking."""
        return [want for task, want in self.polls if not task.done() and self.served(want)]


def _in_world(story: Callable[[_World], Coroutine[Any, Any, None]]) -> None:
    loop = TurnedClock()
    try:
        world = _World(loop)

        async def whole() -> None:
            await story(world)
            for task, _ in world.polls:
                task.cancel()
            await asyncio.gather(*(task for task, _ in world.polls), return_exceptions=True)
            for _, future in world.pending:
                future.cancel()
            assert len(world.turns) == 0
            assert world.turns._lines == {}
            assert world.turns._attempts == {}

        loop.run_until_complete(whole())
    finally:
        loop.close()


def test_one_message_costs_each_group_one_receive() -> None:
    """A hundred polls of one group and ten of another: one RECEIVE each, however many wait."""

    async def story(world: _World) -> None:
        for n in range(110):
            world.poll(group="h" if n % 11 == 0 else "g", any_queue=n % 2 == 0)
        await world.settle()

        world.produce()
        await world.settle()
        groups = [command for command, _ in world.pending]
        await world.commit_all()

        # Polls of queue 0 and those of any queue are two lines: both may ask.
        assert len(groups) == 4
        assert world.proposed == 4
        assert sorted(want.group for want, _ in world.given) == ["g", "h"]

    _in_world(story)


def test_polls_are_served_in_the_order_they_came() -> None:
    """Nobody waits for ever because others come again and again."""

    async def story(world: _World) -> None:
        tasks = [world.poll() for _ in range(5)]
        await world.settle()

        for served in range(1, 4):
            world.produce()
            await world.settle()
            await world.commit_all()
            assert [task.done() for task in tasks] == [n < served for n in range(5)]

    _in_world(story)


def test_who_has_waited_longest_is_served_first_wherever_that_was() -> None:
    """Of many at a follower only the oldest stand here; each comes with the time it has waited."""

    async def story(world: _World) -> None:
        tasks = {}
        await world.go_on(60.0)
        for waited_s in (3.0, 1.0, 0.0, 2.0, 4.0, 2.5):
            tasks[waited_s] = world.poll(waited_s=waited_s)
            await world.settle()

        for served in (4.0, 3.0, 2.5, 2.0, 1.0, 0.0):
            assert not any(task.done() for task in tasks.values())
            world.produce()
            await world.settle()
            await world.commit_all()
            assert tasks.pop(served).done()

    _in_world(story)


def test_a_poll_that_has_waited_elsewhere_waits_for_the_rest_of_its_time() -> None:
    """And not for all of it again at each node, and each leader."""

    async def story(world: _World) -> None:
        poll = world.poll(wait_s=20, waited_s=15.0)
        await world.go_on(4.9)
        assert not poll.done()

        world.turns.look_again()  # as when the leader may be another one
        await world.go_on(0.2)

        assert await poll is None

    _in_world(story)


def test_when_too_many_wait_the_oldest_of_who_has_most_is_answered_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newcomer waits: answered at once it would come again, in a circle."""
    monkeypatch.setattr(long_polls, "MAX_WAITING_POLLS", 4)

    async def story(world: _World) -> None:
        first = world.poll(address="a")
        rest = [world.poll(address="b", any_queue=bool(n)) for n in range(3)]
        await world.settle()

        comes = [world.poll(address="a"), world.poll(address="c")]
        await world.settle()

        assert [each.done() for each in rest] == [True, True, False]
        assert not any(each.done() for each in (first, *comes))
        assert len(world.turns) == 4
        world.produce(count=3)
        await world.settle()
        await world.commit_all()
        assert first.done()

    _in_world(story)


def test_a_large_message_count_wakes_as_many_as_it_can_serve() -> None:
    """Seven messages, polls of three: three RECEIVEs at once, the fourth poll sleeps on."""

    async def story(world: _World) -> None:
        for _ in range(4):
            world.poll(limit=3)
        await world.settle()

        world.produce(count=7)
        await world.settle()

        assert len(world.pending) == 3
        await world.commit_all()
        assert sorted(len(got.deliveries) for _, got in world.given) == [1, 3, 3]

    _in_world(story)


def test_a_woken_poll_that_goes_away_hands_the_message_on() -> None:
    """Its client left between being woken and asking; the next of the line is woken."""

    async def story(world: _World) -> None:
        gone, stays = world.poll(), world.poll()
        await world.settle()

        world.produce()
        gone.cancel()
        await world.settle()
        await world.commit_all()

        assert gone.cancelled()
        assert stays.done()

    _in_world(story)


def test_a_receive_whose_outcome_is_unknown_hands_the_message_on() -> None:
    """The message was not taken, as far as the state knows: another poll asks for it."""

    async def story(world: _World) -> None:
        lost, stays = world.poll(), world.poll()
        await world.settle()
        world.produce()
        await world.settle()

        ((_, future),) = world.pending
        world.pending.clear()
        future.set_exception(LeadershipLost("by the test"))
        await world.settle()
        await world.commit_all()

        assert isinstance(lost.exception(), LeadershipLost)
        assert stays.done()

    _in_world(story)


def test_what_serves_nobody_wakes_nobody() -> None:
    """Acks, renewals and longer leases give a waiting poll nothing: no RECEIVE is proposed."""

    async def story(world: _World) -> None:
        world.produce(count=2)
        (received,) = world.apply(
            Receive(
                group="g",
                topic="t",
                queue_id=0,
                any_queue=False,
                limit=2,
                invisible_ms=5_000,
                client_id="c",
            ).encode()
        )
        assert isinstance(received, Received)
        for _ in range(50):
            world.poll()
        await world.settle()

        first, second = (LeaseRef(0, n, received.receive_id) for n in (0, 1))
        world.apply(
            Renew(group="g", topic="t", leases=(first,), invisible_ms=60_000, arrived=True).encode()
        )
        world.apply(
            ChangeInvisible(group="g", topic="t", lease=first, invisible_ms=50_000).encode()
        )
        world.apply(Ack(group="g", topic="t", leases=(second,)).encode())
        await world.settle()

        assert world.proposed == 0
        assert len(world.turns) == 50

    _in_world(story)


def test_an_ack_that_makes_room_wakes_who_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that holds as much as it may goes on with each ack, not when a lease ends."""
    monkeypatch.setattr("dledger.broker.deliveries.MAX_LEASES", 2)

    async def story(world: _World) -> None:
        world.produce(count=4)
        first = world.poll(limit=9)
        await world.settle()
        await world.commit_all()
        waiting = [world.poll(), world.poll()]
        await world.settle()
        held = first.result()
        assert held is not None

        leases = tuple(LeaseRef(0, n, held.receive_id) for n in (0, 1))
        for lease in leases:
            world.apply(Ack(group="g", topic="t", leases=(lease,)).encode())
        await world.settle()

        assert len(world.pending) == 2
        await world.commit_all()
        assert all(task.done() for task in waiting)

    _in_world(story)


def test_an_answer_that_was_lost_is_waiting_for_the_attempt_that_asks_again() -> None:
    """Its first RECEIVE is committed only after the second poll waits, and its caller is gone."""

    async def story(world: _World) -> None:
        lost = world.poll(attempt_id="x")
        await world.settle()
        world.produce()
        await world.settle()
        lost.cancel()
        await world.settle()
        other, again = world.poll(attempt_id="y"), world.poll(attempt_id="x")
        await world.settle()

        await world.commit_all()

        assert again.done()
        assert not other.done()
        result = again.result()
        assert result is not None
        assert [delivery.offset for delivery in result.deliveries] == [0]

    _in_world(story)


def test_many_polls_that_can_be_served_at_once_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the loop has a bounded piece of work at a time; lines go round."""
    monkeypatch.setattr(long_polls, "MAX_TURNS", 4)

    async def story(world: _World) -> None:
        for n in range(20):
            world.poll(group="gh"[n % 2])
        await world.settle()

        world.produce(count=10)
        await world.settle()
        sizes = []
        while world.pending:
            sizes.append(len(world.pending))
            await world.commit()

        assert sizes == [4, 4, 4, 4, 4]
        assert sorted(want.group for want, _ in world.given[:8]) == ["g"] * 4 + ["h"] * 4
        assert len(world.given) == 20

    _in_world(story)


def test_a_poll_that_cannot_wait_is_not_told_that_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even while others' turns are put off: it asks at once."""
    monkeypatch.setattr(long_polls, "MAX_TURNS", 1)

    async def story(world: _World) -> None:
        for _ in range(3):
            world.poll(wait_s=5)
        await world.settle()
        world.produce(count=5)
        await world.settle()

        world.poll(wait_s=0)
        await world.settle()
        at_once = len(world.pending)
        await world.go_on(5)

        assert at_once == 2
        assert len(world.pending) == 4

    _in_world(story)


def test_the_end_of_a_lease_serves_a_line_by_one_timer() -> None:
    """Many polls that wait for one lease to end: one RECEIVE, at its time."""

    async def story(world: _World) -> None:
        first = world.poll()
        world.produce()
        await world.settle()
        await world.commit_all()
        assert first.done()
        for _ in range(100):
            world.poll()
        await world.settle()

        await world.go_on(9.999)
        early = world.proposed
        await world.go_on(0.001)

        assert (early, world.proposed) == (1, 2)

    _in_world(story)


def _any_poll(rng: random.Random) -> dict[str, Any]:
    return {
        "group": rng.choice("ggh"),
        "queue_id": rng.randrange(QUEUES),
        "any_queue": rng.random() < 0.5,
        "limit": rng.randint(1, 3),
        "tags": rng.choice((None, None, ("a",), ("b",))),
        "attempt_id": rng.choice(("", "", "x", "y")),
        "client_id": rng.choice(("", "c", "d")),
        "invisible_ms": rng.choice((50, 400, 3000)),
        "wait_s": rng.choice((0.0, 0.3, 20.0, 20.0, 20.0)),
    }


def _any_step(rng: random.Random) -> tuple[Any, ...]:
    """Return one thing that may happen; most often a poll that waits, or the log going on."""
    steps: tuple[tuple[Any, ...], ...] = (
        ("poll", _any_poll(rng)),
        ("produce", rng.randrange(QUEUES), rng.randint(1, 4), rng.choice("ab")),
        ("commit",),
        ("lose", rng.random() < 0.5),
        ("cancel", rng.random() < 0.5, rng.randrange(20)),
        (
            rng.choice(("ack", "ack", "change", "renew")),
            rng.randrange(20),
            rng.choice((1, 100, 5000)),
        ),
        ("release", *rng.choice((("g", "c"), ("h", "d")))),
        ("retain",),
        ("wait", rng.choice((0.001, 0.05, 0.4, 3.0))),
    )
    return rng.choices(steps, (12, 6, 10, 2, 4, 6, 1, 1, 6))[0]


async def _carry_out(world: _World, step: tuple[Any, ...]) -> None:
    match step:
        case ("produce", queue_id, count, tag):
            world.produce(queue_id, count, tag)
        case ("poll", fields):
            world.poll(**fields)
        case ("commit",):
            await world.commit()
        case ("lose", applied):
            await _lose(world, applied=applied)
        case ("cancel", arrives, number):
            if arrives:
                world.produce(number % QUEUES)  # whom this wakes may be who goes away
            if world.polls:
                world.polls[number % len(world.polls)][0].cancel()
        case ("wait", seconds):
            await world.go_on(seconds)
        case said:
            world.apply(*_said(world, *said))
    await world.settle()


def _said(world: _World, kind: str, *rest: Any) -> list[bytes]:
    """Return what a client says of what it was given, if that is anything."""
    if kind == "retain":
        return [Retain(before_index=world.state.applied_index - 1).encode()]
    if kind == "release":
        group, client_id = rest
        return [Release(group=group, client_id=client_id).encode()]
    if not world.given:
        return []
    number, invisible_ms = rest
    want, received = world.given[number % len(world.given)]
    leases = tuple(
        LeaseRef(delivery.queue_id, delivery.offset, received.receive_id)
        for delivery in received.deliveries
    )
    of: dict[str, Any] = {"group": want.group, "topic": "t"}
    if kind == "ack":
        return [Ack(leases=leases, **of).encode()]
    if kind == "renew":
        return [Renew(leases=leases, invisible_ms=invisible_ms, arrived=True, **of).encode()]
    return [ChangeInvisible(lease=leases[0], invisible_ms=invisible_ms, **of).encode()]


async def _lose(world: _World, *, applied: bool) -> None:
    """The outcomes of what is proposed get lost; the commands are applied, or never will be."""
    pending, world.pending = world.pending, []
    error: DledgerError = LeadershipLost("by the test")
    if pending and applied:
        world.apply(*(command for command, _ in pending))
    for _, future in pending:
        if not future.done():
            future.set_exception(error)


def test_no_poll_waits_while_there_is_a_message_for_it() -> None:
    """Whatever arrives, expires, is acked, released, lost, cancelled or timed out, in any order."""
    for seed in range(150):
        rng = random.Random(seed)

        async def story(world: _World, seed: int = seed, rng: random.Random = rng) -> None:
            for _ in range(80):
                await _carry_out(world, _any_step(rng))
                if not world.pending:
                    assert world.in_vain() == [], f"seed {seed}"
            await world.commit_all()
            assert world.in_vain() == [], f"seed {seed}"
            assert world.turns._out == 0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(long_polls, "MAX_TURNS", rng.randint(1, 4))
            patch.setattr("dledger.broker.deliveries.MAX_LEASES", rng.randint(2, 6))
            _in_world(story)


def test_polls_with_different_filters_do_not_wait_for_each_other() -> None:
    """Each has a line of its own, and is woken for what it names, also for what was kept for it."""

    async def story(world: _World) -> None:
        for tags in (("a",), ("b",)):
            world.apply(UseFilter(group="g", topic="t", tags=tags).encode())
        first, second = world.poll(tags=("a",)), world.poll(tags=("b",))
        await world.settle()
        world.produce(tag="b")
        await world.settle()
        await world.commit_all()
        assert (first.done(), second.done()) == (False, True)
        world.produce(tag="b")
        world.produce(tag="a")
        await world.settle()
        await world.commit_all()
        assert first.done()

        third = world.poll(tags=("b",))
        await world.settle()
        await world.commit_all()
        assert third.done()

    _in_world(story)


@pytest.mark.parametrize("any_queue", [False, True])
def test_nobody_asks_in_a_circle_for_what_is_kept_for_another(any_queue: bool) -> None:
    """Passed over, put aside, or beyond the bound: a poll that does not name it proposes little."""

    async def story(world: _World) -> None:
        for tags in (("a",), ("b",)):
            world.apply(UseFilter(group="g", topic="t", tags=tags).encode())
        for tag in "ba" * 4:
            world.produce(tag=tag)
        waits = [world.poll(tags=("a",), limit=8, any_queue=any_queue) for _ in range(3)]
        await world.settle()
        await world.commit_all()
        before = world.proposed
        holder = world.poll(tags=("b",), limit=2, invisible_ms=1_000, any_queue=any_queue)
        await world.settle()
        await world.commit_all()
        assert holder.done()
        for _ in range(10):
            await world.go_on(1)
            await world.commit_all()

        assert [task.done() for task in waits] == [True, True, False]
        assert world.proposed <= before + 5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dledger.broker.kept_messages.MAX_KEPT_RUNS", 2)
        _in_world(story)


def test_a_thousand_waiting_polls_are_looked_at_as_often_as_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a message costs (append, delivery, ack) does not depend on how many polls wait."""

    def looks(polls: int) -> int:
        seen = itertools.count()

        async def story(world: _World) -> None:
            available = world.state.groups.available
            for _ in range(polls):
                world.poll(any_queue=True)
            await world.settle()
            monkeypatch.setattr(
                world.state.groups, "available", lambda *a, **k: (next(seen), available(*a, **k))[1]
            )
            for _ in range(5):
                world.produce()
                await world.settle()
                await world.commit_all()
                want, received = world.given[-1]
                lease = LeaseRef(0, received.deliveries[0].offset, received.receive_id)
                world.apply(Ack(group=want.group, topic="t", leases=(lease,)).encode())
                world.poll(any_queue=True)
                await world.settle()

        _in_world(story)
        return next(seen)

    assert looks(1000) == looks(10)


def test_a_receive_is_one_command() -> None:
    """The proposals counted above are RECEIVEs."""

    async def story(world: _World) -> None:
        world.poll()
        world.produce()
        await world.settle()

        kinds = [kind for command, _ in world.pending for kind, _, _ in split(command)]

        assert kinds == [CommandType.RECEIVE]

    _in_world(story)
