"""The waiting room: of polls that ask the same a few go on, and the others lose nothing by it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from dledger.broker.commands import Receive
from dledger.calls.caller import Caller
from dledger.rocketmq import waiting_room
from dledger.rocketmq.waiting_room import AT_FRONT, MOST_AT_FRONT, Poll, WaitingRoom
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.types import Member, NodeId
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine
from tests.rocketmq.turned_clock import TurnedClock

WAIT_S = 20.0
LEADER = Member(id=NodeId("id-1"), name="orders-1", address="127.0.0.1:1")


class _Waiter:
    """Who has a poll wait."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settle(self, goes_on: bool) -> None:
        """Note how that ended; the task may have been cancelled."""
        if not self.ended.done():
            self.ended.set_result(goes_on)


@dataclass
class _World(PartOfEngine):
    """A node whose leader is another one, and its polls by number."""

    loop: TurnedClock
    log: Log = field(default_factory=Log)
    leads: bool = False
    hears_leader: bool = True
    known: Member | None = LEADER
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    went: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    answers: dict[int, asyncio.Future[bool]] = field(default_factory=dict)
    taken: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log.create(queues=2, group="g")
        self.state = self.log.state
        self.room = WaitingRoom(self)

    def is_leader(self) -> bool:
        return self.leads

    def leader(self) -> Member | None:
        return self.known

    def hears(self, node_id: NodeId) -> bool:
        return self.hears_leader and node_id == LEADER.id

    # -- what a test does --

    def poll(self, number: int, *, client_id: str = "c", **fields: Any) -> None:
        """Have a poll come; *fields*: of it, or of who asks."""
        asks: dict[str, Any] = {
            "wait_s": WAIT_S,
            "deadline_s": WAIT_S + 5,
            "queue_id": 0,
            "expression": "*",
        }
        asks |= {"host": "ipv4:192.0.2.1", "line": "ipv4:192.0.2.1:1", "attempt": f"a{number}"}
        asks |= {"forwarded": False, "raw": None} | fields
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name="g"),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name="t"), id=asks["queue_id"]
            ),
            filter_expression=definition.FilterExpression(expression=asks["expression"]),
            batch_size=1,
            attempt_id=asks["attempt"],
        )
        request.long_polling_timeout.FromMilliseconds(round(asks["wait_s"] * 1000))
        caller = Caller(
            client_id=client_id,
            peer=asks["line"],
            tls=False,
            forwarded=asks["forwarded"],
            deadline_s=self.loop.now_s + asks["deadline_s"],
            host=asks["host"],
            line=asks["line"],
            since_s=self.loop.now_s,
            fields={},
        )
        raw = request.SerializeToString() if asks["raw"] is None else asks["raw"]
        self.tasks[number] = self.loop.create_task(self._serve(number, raw, caller))

    async def _serve(self, number: int, raw: bytes, caller: Caller) -> None:
        poll = self.room.poll(raw, caller)
        try:
            if self.room.lets_pass(poll) or await self._stand(poll):
                self.went.append(number)
                answer = self.answers[number] = self.loop.create_future()
                poll.leave(found=await answer)
                if number in self.taken:
                    await self.taken[number]
            else:
                self.empty.append(number)
        finally:
            poll.leave(found=False)

    async def _stand(self, poll: Poll) -> bool:
        """Wait; return whether it goes on."""
        waiter = _Waiter()
        self.room.stand(poll, waiter)
        return await waiter.ended

    async def polls(self, numbers: range, **fields: Any) -> None:
        for number in numbers:
            self.poll(number, **fields)
            await self.settle()

    async def answer(self, *numbers: int, found: bool = False) -> None:
        for number in numbers:
            self.answers[number].set_result(found)
        await self.settle()

    async def deliver(self, attempt: str, client_id: str = "c") -> None:
        """Apply the RECEIVE of an attempt here, with a message for it."""
        self.log.produce("x", queue_id=0)
        command = Receive(
            group="g",
            topic="t",
            queue_id=0,
            any_queue=False,
            limit=1,
            invisible_ms=10_000,
            tags=None,
            attempt_id=f"{client_id}/{attempt}",
            client_id="",
        )
        self.log.append(command.encode())
        self.room.notify(self.state.take_changes())
        await self.settle()

    async def settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    async def go_on(self, seconds: float) -> None:
        self.loop.now_s += seconds
        await self.settle()


def _in_world(story: Callable[[_World], Coroutine[Any, Any, None]]) -> None:
    """Run a story; in the end the room must have forgotten all polls."""
    loop = TurnedClock()
    try:
        world = _World(loop)

        async def whole() -> None:
            await story(world)
            for task in world.tasks.values():
                task.cancel()
            await asyncio.gather(*world.tasks.values(), return_exceptions=True)
            assert len(world.room) == 0
            assert world.room._crowds == {}
            assert world.room._attempts == {}
            assert world.room._share.taken == 0

        loop.run_until_complete(whole())
    finally:
        loop.close()


FIRST = list(range(AT_FRONT))


def test_the_oldest_go_on_and_give_their_place_to_the_next_in_order() -> None:
    """A thousand that ask the same are a few at the leader; nobody who came earlier is passed."""

    async def story(world: _World) -> None:
        await world.polls(range(3 * AT_FRONT))
        assert world.went == FIRST
        assert len(world.room) == 2 * AT_FRONT

        for number in (3, 0, 5):
            await world.answer(number)

        assert world.went == list(range(AT_FRONT + 3))

    _in_world(story)


def test_messages_bring_more_forward_and_nothing_new_brings_fewer() -> None:
    """A crowd that messages come for is served as widely as it asks."""

    async def story(world: _World) -> None:
        await world.polls(range(3 * MOST_AT_FRONT))

        await world.answer(0, found=True)
        assert len(world.went) == 1 + 2 * AT_FRONT
        await world.answer(*range(1, 10), found=True)
        assert len(world.went) == 10 + MOST_AT_FRONT
        await world.answer(10)
        assert len(world.went) == 10 + MOST_AT_FRONT
        await world.answer(*range(11, 11 + MOST_AT_FRONT - AT_FRONT))
        assert len(world.went) == 11 + MOST_AT_FRONT
        assert world.went == list(range(len(world.went)))

    _in_world(story)


def test_whoever_leaves_before_his_answer_gives_his_place_on() -> None:
    """One in front, one that waits, and one that leaves just as it gets its place."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT + 4))
        world.tasks[AT_FRONT].cancel()
        await world.settle()

        world.tasks[0].cancel()
        await world.settle()
        assert world.went == [*FIRST, AT_FRONT + 1]

        world.answers[1].set_result(False)
        await asyncio.sleep(0)  # its place is the next one's, who has not run yet
        world.tasks[AT_FRONT + 2].cancel()
        await world.settle()
        assert world.went == [*FIRST, AT_FRONT + 1, AT_FRONT + 3]

    _in_world(story)


def test_each_poll_ends_in_its_own_time() -> None:
    """Its own wait, or its caller's deadline if that comes first; no sooner for who is in front."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT))
        world.poll(100, deadline_s=7.0)
        await world.go_on(2.0)
        world.poll(101)
        world.poll(102, deadline_s=3.0)
        await world.settle()

        await world.go_on(2.9)
        assert world.empty == []
        await world.go_on(0.2)
        assert world.empty == [102]
        await world.go_on(1.9)
        assert world.empty == [102, 100]
        await world.go_on(WAIT_S - 5.1)
        assert world.empty == [102, 100]
        await world.go_on(0.2)
        assert world.empty == [102, 100, 101]
        assert world.went == FIRST

    _in_world(story)


def test_one_that_ends_just_now_is_not_brought_forward_for_it() -> None:
    """Thousands that came in a moment end in one; each would go to the leader and come back."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT + 2), deadline_s=5.0)
        await world.polls(range(100, 101))
        await world.go_on(4.9)

        await world.answer(0)

        assert world.went == [*FIRST, 100]
        await world.polls(range(101, 102))
        await world.answer(1)
        assert world.went == [*FIRST, 100, 101]

    _in_world(story)


@pytest.mark.parametrize(
    "other", [{"queue_id": 1}, {"expression": "red"}, {"wait_s": 19.0}, {"expression": "a || b"}]
)
def test_polls_that_ask_otherwise_do_not_wait_for_each_other(other: dict[str, Any]) -> None:
    """Another queue, filter, or time; but who asks, and with which attempt, makes no difference."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT))
        await world.polls(range(50, 51), client_id="another", line="ipv4:192.0.2.1:2")

        await world.polls(range(100, 100 + AT_FRONT + 1), **other)

        assert world.went == [*FIRST, *range(100, 100 + AT_FRONT)]
        await world.answer(100)
        assert world.went[-1] == 100 + AT_FRONT

    _in_world(story)


def test_what_must_not_wait_goes_on_at_once() -> None:
    """What is not well formed, to be told; a look; what a follower has forwarded."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT))

        await world.polls(range(100, 101), raw=b"\xff")
        await world.polls(range(101, 102), raw=service.ReceiveMessageRequest().SerializeToString())
        await world.polls(range(102, 103), wait_s=0.0)
        await world.polls(range(103, 104), client_id="")
        await world.polls(range(104, 105), forwarded=True)

        assert world.went == [*FIRST, 100, 101, 102, 103, 104]

    _in_world(story)


def test_who_asks_again_for_an_answer_that_was_lost_gets_it() -> None:
    """Its attempt was given messages: told by the log before it came, or while it waits."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT + 3))
        await world.deliver("again")

        await world.polls(range(100, 101), attempt="again")
        assert world.went == [*FIRST, 100]

        await world.deliver(f"a{AT_FRONT + 1}", client_id="another")
        assert world.went == [*FIRST, 100]
        await world.deliver(f"a{AT_FRONT + 1}")
        assert world.went == [*FIRST, 100, AT_FRONT + 1]
        await world.answer(100, AT_FRONT + 1, found=True)
        assert world.went == [*FIRST, 100, AT_FRONT + 1]
        await world.answer(0)
        assert world.went == [*FIRST, 100, AT_FRONT + 1, AT_FRONT]

    _in_world(story)


@pytest.mark.parametrize(
    "silence", [{"known": None}, {"hears_leader": False}], ids=["no leader", "not heard"]
)
def test_a_node_that_cannot_know_says_nothing_of_nothing_new(silence: dict[str, Any]) -> None:
    """A poll that ends then goes on instead, to wait for a leader as any request does."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT + 1))
        for name, value in silence.items():
            setattr(world, name, value)

        await world.go_on(WAIT_S + 0.1)

        assert world.empty == []
        assert world.went == [*FIRST, AT_FRONT]

    _in_world(story)


def test_a_change_of_leader_moves_nobody_who_waits() -> None:
    """Those in front find their way; the others have nothing to move, and keep their order."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT + 2))

        for world.known, world.leads in ((None, False), (LEADER, True), (LEADER, False)):
            await world.go_on(1.0)
            assert world.went == FIRST

        await world.answer(4)
        assert world.went == [*FIRST, AT_FRONT]
        assert len(world.room) == 1

    _in_world(story)


def test_a_client_that_does_not_take_its_answer_is_in_nobodys_way() -> None:
    """A place is free once the answer is there, not when it was taken."""

    async def story(world: _World) -> None:
        await world.polls(range(2 * AT_FRONT))
        world.taken = {number: world.loop.create_future() for number in FIRST}

        await world.answer(*FIRST)

        assert world.went == list(range(2 * AT_FRONT))
        assert not any(world.tasks[number].done() for number in FIRST)

    _in_world(story)


def test_when_all_places_are_taken_the_oldest_of_who_has_most_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who comes waits: told at once that there is nothing new, it would ask in a circle."""
    monkeypatch.setattr(waiting_room, "MAX_WAITING_POLLS", 2 * AT_FRONT)

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT))  # of 192.0.2.1, and in front
        await world.polls(range(100, 100 + AT_FRONT), host="ipv4:192.0.2.2")

        await world.polls(range(200, 200 + 3), host="ipv4:192.0.2.3")

        assert world.went == FIRST
        assert world.empty == [100]  # the others that gave way are in front, and go on
        await world.answer(*FIRST[:4])
        assert world.went == [*FIRST, 101, 102, 103, 104]

    _in_world(story)


def test_a_node_that_stops_answers_all_who_wait() -> None:
    """And lets nobody wait any more."""

    async def story(world: _World) -> None:
        await world.polls(range(AT_FRONT + 100))

        world.room.close()
        for _ in range(4):
            await world.settle()
        await world.polls(range(200, 201))

        assert world.empty == list(range(AT_FRONT, AT_FRONT + 100))
        assert world.went == [*FIRST, 200]

    _in_world(story)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_front_is_full_and_in_order(seed: int) -> None:
    """Polls come, leave, are answered and end by chance: nobody waits beside a free place."""
    chance = random.Random(seed)

    async def story(world: _World) -> None:
        number = 0
        for _ in range(300):
            under_way = [each for each, task in world.tasks.items() if not task.done()]
            asking = [each for each in under_way if each in world.answers]
            match chance.randrange(5):
                case 0 | 1:
                    number += 1
                    deadline_s = chance.choice([1.0, 6.0, 30.0])
                    world.poll(number, deadline_s=deadline_s, expression=chance.choice("ab"))
                case 2 if asking:
                    each = chance.choice(asking)
                    if not world.answers[each].done():
                        world.answers[each].set_result(chance.random() < 0.5)
                case 3 if under_way:
                    world.tasks[chance.choice(under_way)].cancel()
                case 4:
                    world.loop.now_s += chance.random()
            if chance.random() < 0.7:
                await world.settle()
                for crowd in world.room._crowds.values():
                    worth_s = world.loop.now_s + waiting_room._WORTH_S
                    worth = [poll for poll in crowd.waiting if poll.until_s >= worth_s]
                    assert crowd.at_front >= crowd.width or not worth
                    assert all(poll.until_s > world.loop.now_s - 0.1 for poll in crowd.waiting)

    _in_world(story)
