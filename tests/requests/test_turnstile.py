"""What is passed on to a new leader passes in turns, and waits for its link instead of calling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dledger.errors import NotTaken
from dledger.link.follower import RelayLinks
from dledger.requests.turnstile import Turnstile
from dledger.rocketmq.waiting_room import AT_FRONT
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

POLLS = 5 * AT_FRONT


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes; node 0 leads."""
    async with memory_group(3) as group:
        yield group


@pytest.fixture
async def follower(group: MemoryGroup) -> AsyncIterator[RocketClient]:
    """A client of node 1."""
    async with RocketClient(group.nodes[1].port) as client:
        yield client


@contextlib.asynccontextmanager
async def _polls(
    group: MemoryGroup, count: int = POLLS, **other: float
) -> AsyncIterator[list[asyncio.Task[list[bytes]]]]:
    """Have consumers poll at node 1, each with a client id of its own, of one message each."""

    async def poll(number: int) -> list[bytes]:
        async with RocketClient(group.nodes[1].port, f"client-{number}") as client:
            wait_s = 2 * WAIT_S + number * other.get("apart_s", 0.0)
            _, messages, _ = await client.receive(batch=1, wait_s=wait_s)
            return [each.body for each in messages]

    tasks = [asyncio.create_task(poll(number)) for number in range(count)]
    try:
        await group.polls(count)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_turns_are_taken_in_order_and_given_back_once() -> None:
    """However they end; who gets none in time was not passed on."""
    turnstile = Turnstile(at_once=2)
    first, second = await turnstile.enter(WAIT_S), await turnstile.enter(WAIT_S)
    gone = asyncio.create_task(turnstile.enter(WAIT_S))
    third = asyncio.create_task(turnstile.enter(WAIT_S))
    await asyncio.sleep(0)

    with pytest.raises(NotTaken):
        await turnstile.enter(0.01)
    gone.cancel()
    first.end()
    first.end()
    (await third).end()

    with second, await turnstile.enter(WAIT_S):
        fourth = asyncio.create_task(turnstile.enter(WAIT_S))
        await asyncio.sleep(0)
        assert not fourth.done()
    (await fourth).end()


async def test_at_the_leader_a_few_polls_of_a_follower_stand_for_all(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """And as many as there are messages are answered, each with one of them."""
    await follower.route("t")
    async with _polls(group) as tasks:
        assert [len(node.parts.turns) for node in group.nodes] == [AT_FRONT, 0, 0]
        assert [len(node.parts.messaging.room) for node in group.nodes] == [0, POLLS - AT_FRONT, 0]

        for number in range(POLLS - 1):
            await follower.send(message(number, body=b"%d" % number))
        await eventually(lambda: sum(task.done() for task in tasks) == POLLS - 1)

        got = [body for task in tasks if task.done() for body in task.result()]
        assert sorted(got) == sorted(b"%d" % number for number in range(POLLS - 1))


async def test_polls_that_wait_stay_where_they_are_when_the_leader_changes(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """To another node, to their own, to none and back: those in front move, and nobody is lost."""
    await follower.route("t")
    async with _polls(group) as tasks:
        for leader in (2, 1, None, 0):
            group.elect(leader)
            if leader is not None:
                await group.polls(AT_FRONT + (POLLS - AT_FRONT) * (leader == 1), at=leader)
            assert len(group.nodes[1].parts.messaging.room) == POLLS - AT_FRONT

        for number in range(POLLS):
            await follower.send(message(number))
        async with asyncio.timeout(WAIT_S):
            assert [len(got) for got in await asyncio.gather(*tasks)] == [1] * POLLS


async def test_what_waits_for_a_link_makes_no_call(
    group: MemoryGroup, follower: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call each is what a follower died of: a hundred times what a waiter costs."""
    await follower.route("t")
    connected, may_connect = RelayLinks._connected, asyncio.Event()

    async def later(*args: object) -> object:
        await may_connect.wait()
        return await connected(*args)  # type: ignore[arg-type]

    async with _polls(group, apart_s=0.01) as tasks:  # which ask each for itself
        assert len(group.nodes[0].parts.turns) == POLLS
        calls = _calls(group)
        monkeypatch.setattr(RelayLinks, "_connected", later)
        group.elect(2)
        await eventually(lambda: not len(group.nodes[0].parts.turns))
        assert len(group.nodes[2].parts.turns) == 0

        may_connect.set()
        await group.polls(POLLS, at=2)

        assert _calls(group) == calls
        assert not any(task.done() for task in tasks)


async def test_a_node_that_stops_keeps_nobody_who_waits_for_a_link(
    group: MemoryGroup, follower: RocketClient
) -> None:
    """It asked nobody, so there is nothing new, and the client goes on at another node."""
    await follower.route("t")
    node = group.nodes[1]
    assert node.links is not None
    await node.links.close()

    async with asyncio.timeout(WAIT_S):
        poll = asyncio.create_task(follower.receive(wait_s=2 * WAIT_S))
        await eventually(lambda: bool(node.links._changes))  # type: ignore[union-attr]
        node.tasks.drain()
        status, _, _ = await poll

    assert code(status) == "MESSAGE_NOT_FOUND"


async def test_a_leader_that_reads_nothing_is_sent_no_more_than_a_few(
    group: MemoryGroup, follower: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others come as it reads; all polls of all groups at once would stop a new leader."""
    await follower.route("t")
    relay = group.nodes[1].parts.context.relay
    monkeypatch.setattr(relay, "_turnstile", Turnstile(at_once=3))
    intake = group.nodes[0].parts.context.peer_intake
    reads, may_read = asyncio.Event(), intake.request

    async def wait(read: object) -> bytes | None:
        await reads.wait()
        return await read()  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(
        intake, "request", lambda name, read, method: may_read(name, lambda: wait(read), method)
    )
    polling = asyncio.create_task(_all_wait(group))
    await eventually(lambda: len(group.nodes[1].links.to(_leader(group)).end._streams) == 3)  # type: ignore[union-attr]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(group.nodes[1].links.to(_leader(group)).end._streams) == 3  # type: ignore[union-attr]

    reads.set()

    async with asyncio.timeout(WAIT_S):
        await polling


async def _all_wait(group: MemoryGroup) -> None:
    async with _polls(group, apart_s=0.01):
        assert len(group.nodes[0].parts.turns) == POLLS


def _leader(group: MemoryGroup):  # type: ignore[no-untyped-def]
    return group.nodes[1].engine.leader()


def _calls(group: MemoryGroup) -> float | None:
    node = group.nodes[1]
    return node.parts.context.metrics.registry.get_sample_value(
        "dledger_forwarded_requests_total",
        {"group": "orders", "node": node.engine.node_id, "way": "call"},
    )


async def test_a_leader_without_links_is_called(group: MemoryGroup) -> None:
    """It is of an older version, or refuses: who waited for a link to it would wait for ever."""
    async with RocketClient(group.nodes[0].port) as client:
        await client.route("t")
    node = group.nodes[1]
    assert node.links is not None
    node.links._link, node.links._is_refused = None, True

    async with RocketClient(node.port) as client:
        status, _, _ = await client.receive(wait_s=0.1)

    assert code(status) == "MESSAGE_NOT_FOUND"
    assert _calls(group) == 1.0
