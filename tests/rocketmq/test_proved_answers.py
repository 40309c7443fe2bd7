"""An answer that dies with its connection comes again; one that arrived, or still moves, does not.

As Go's and Java's clients ask: each try is an attempt of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc.aio
import pytest

from dledger.common.limits import FIRST_INVISIBLE_MS
from dledger.door import connection
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.rpc.rocketmq_stubs import service
from dledger.server.config import NATIVE
from e2e.harness.wall import Wall, wall
from tests.requests import memory_group as made
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually

pytestmark = pytest.mark.found
BODY = bytes(2_000)
LARGE_BYTES = 1 << 20
ANY = -1
"""Instead of a queue: all of them."""


@dataclass
class World:
    """Two nodes, of which node 0 leads; a consumer behind a wall before the node at *at*."""

    nodes: MemoryGroup
    at: int
    wall: Wall
    producer: RocketClient
    walled: RocketClient = field(init=False)

    def __post_init__(self) -> None:
        self.walled = RocketClient(self.wall.port)

    @property
    def clients(self) -> ClientRegistry:
        return self.nodes.nodes[0].parts.messaging.clients

    def consumer(self) -> RocketClient:
        """Return the same consumer on a new connection, straight to its node."""
        return RocketClient(self.nodes.nodes[self.at].port)

    async def looks(self) -> None:
        """Let the follower report, and the leader renew."""
        await self.nodes.nodes[self.at].parts.context.relay._answers.tell()
        await self.clients.renew()

    async def poll(self, client: RocketClient, queue_id: int = 0) -> list[int]:
        _, messages, _ = await client.receive(auto_renew=True, queue_id=queue_id)
        return [each.system_properties.queue_offset for each in messages]

    async def leased(self) -> None:
        """Return when a poll was answered, as far as the log knows."""
        groups = self.nodes.nodes[0].parts.context.engine.state.groups
        await eventually(lambda: groups.exists("g") and groups.backlog("g", "t").held > 0)

    async def moving(self) -> None:
        """Return when they know of an answer that still moves."""
        answers = self.nodes.nodes[self.at].parts.context.relay._answers
        await eventually(lambda: bool(self.clients.arrivals._moving) or any(answers._out.values()))

    async def known(self) -> None:
        """Return when the leader, or the follower, has the proof of an answer."""
        answers = self.nodes.nodes[self.at].parts.context.relay._answers
        await eventually(lambda: bool(self.clients.arrivals._arrived) or any(answers._out.values()))


@pytest.fixture(params=[NATIVE, made.DOOR])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What can tell: our server, in the node and behind a door's link."""
    monkeypatch.setattr(made, "client_server", request.param)
    return str(request.param)


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def world(request: pytest.FixtureRequest, server: str) -> AsyncIterator[World]:
    """The consumer is at the leader, or at a follower."""
    del server
    async with made.memory_group(2) as nodes:
        at = request.param
        async with (
            wall(nodes.nodes[at].port) as between,
            RocketClient(nodes.nodes[0].port, "producer") as producer,
        ):
            world = World(nodes, at, between, producer)
            for each in nodes.nodes:  # they report and renew when the test asks
                await each.parts.messaging.clients.close()
                await each.parts.context.relay._answers.close()
            await producer.send(message(1, BODY), message(2, BODY))
            try:
                yield world
            finally:
                await world.walled.channel.close()


async def test_an_answer_that_dies_with_its_connection_comes_again(world: World) -> None:
    """It was written, and its consumer lives and speaks on another connection."""
    await world.walled.call("Heartbeat", service.HeartbeatRequest())
    world.wall.swallows = True
    doomed = asyncio.create_task(world.poll(world.walled))
    await world.leased()
    await eventually(lambda: world.wall.dropped > 2 * len(BODY))
    await asyncio.sleep(0.05)  # time for whoever would take that for an arrival
    await world.looks()
    world.wall.cut()
    with pytest.raises(grpc.aio.AioRpcError):
        await doomed

    async with world.consumer() as consumer:
        await consumer.call("Heartbeat", service.HeartbeatRequest())
        await world.looks()
        world.nodes.clock_skew_ms += FIRST_INVISIBLE_MS + 1

        assert await world.poll(consumer) == [0, 1]
        await world.known()


async def test_an_answer_that_arrived_is_kept_for_its_consumer(world: World) -> None:
    """As long as it lives."""
    assert await world.poll(world.walled) == [0, 1]
    await world.known()

    for _ in range(4):
        await world.looks()
        world.nodes.clock_skew_ms += 29_000
        await world.walled.call("Heartbeat", service.HeartbeatRequest())

    async with world.consumer() as consumer:
        assert await world.poll(consumer) == []


async def test_a_handle_that_is_sent_back_proves_its_answer(world: World) -> None:
    """The client has the answer, and its connection broke before it could acknowledge a PING."""
    await world.walled.call("Heartbeat", service.HeartbeatRequest())
    request = asyncio.create_task(world.walled.receive(auto_renew=True))
    await world.leased()
    world.wall.deaf = True
    _, messages, _ = await request
    world.wall.cut()

    async with world.consumer() as consumer:
        await consumer.ack(messages[0])
        await world.looks()
        world.nodes.clock_skew_ms += FIRST_INVISIBLE_MS + 1

        assert await world.poll(consumer) == []


async def test_what_still_moves_on_a_slow_line_is_given_to_nobody_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first lease ends long before it has arrived; it is prolonged, and no more than that."""
    monkeypatch.setattr(connection, "PROGRESS_S", 0.05)
    for number in range(3, 11):
        await world.producer.send(message(number, bytes(LARGE_BYTES)))
    world.wall.slowly = True
    world.wall.allow(LARGE_BYTES)
    slow = asyncio.create_task(world.poll(world.walled, ANY))
    await world.leased()
    async with RocketClient(world.nodes.nodes[world.at].port, "other") as other:
        for _ in range(5):
            world.wall.allow(LARGE_BYTES)
            await world.moving()
            await world.looks()
            world.nodes.clock_skew_ms += FIRST_INVISIBLE_MS - 2_000
            assert await world.poll(other, ANY) == []

        assert not slow.done()
        world.wall.slowly = False
        world.wall.allow(0)
        assert len(await slow) == 10
