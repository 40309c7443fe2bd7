"""Consumers behind what swallows a node's answers now and then, and resets: all comes in the end.

Real nodes, through the leader and through followers, in the node and in door processes. They ask as
Go's and Java's clients do: each try is an attempt of its own. The clients themselves:
`make clients CLIENTS_ARGS="--only swallowed"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.wall import RESTS_S, swallowing, wall
from tests.requests.rocketmq_client import RocketClient, message
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually, eventually_works

pytestmark = pytest.mark.found
QUEUES = 8
POLL_S = 2.0
BEAT_S = 1.0
COMES_S = 60.0


@dataclass
class Consumers:
    """A group of push consumers, and what came to them."""

    got: Counter[str] = field(default_factory=Counter)
    acked: set[str] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)

    async def consume(self, port: int, name: str) -> None:
        """Be one consumer, until cancelled: Telemetry once, beats, polls, acknowledgements."""
        async with RocketClient(port, f"{name}@{uuid.uuid4().hex}", timeout_s=3.0) as client:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with client.telemetry():
                    pass
            await asyncio.gather(
                self._beat(client), *(self._poll(client, n) for n in range(QUEUES))
            )

    async def _beat(self, client: RocketClient) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await client.call("Heartbeat", service.HeartbeatRequest())
            await asyncio.sleep(BEAT_S)

    async def _poll(self, client: RocketClient, queue_id: int) -> None:
        while True:
            try:
                _, messages, _ = await client.receive(
                    queue_id=queue_id,
                    auto_renew=True,
                    wait_s=POLL_S,
                    attempt_id=uuid.uuid4().hex,
                    timeout_s=POLL_S + 3,
                )
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
                continue
            for each in messages:
                await self._take(client, each)

    async def _take(self, client: RocketClient, each: Any) -> None:
        text = each.body.decode()
        if text in self.acked:
            self.twice.append(text)
        self.got[text] += 1
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await client.ack(each)
            if answer.status.code == definition.Code.OK:
                self.acked.add(text)


async def _all_comes(live: LiveNodes, times: int) -> None:
    """Consume through every node behind a wall, while messages are sent; then wait for the rest."""
    leader, consumers, sent = await live.leader(), Consumers(), set[str]()
    async with contextlib.AsyncExitStack() as stack:
        ports = [live.settings(number).client_port for number in sorted(live.nodes)]
        walls = [await stack.enter_async_context(wall(port)) for port in ports]
        producer = await stack.enter_async_context(RocketClient(ports[leader], "producer"))
        await eventually_works(lambda: producer.send(message(1, b"first")))
        work = [
            asyncio.create_task(consumers.consume(each.port, f"c{number}"))
            for number, each in enumerate(walls)
        ]
        await eventually(lambda: "first" in consumers.got or None, deadline_s=COMES_S)
        swallows = asyncio.create_task(swallowing(walls, times))
        loop = asyncio.get_running_loop()
        while not swallows.done():
            number = len(sent) + 2
            answer = await producer.send(message(number, b"%d" % number))
            assert answer.status.code == definition.Code.OK
            sent.add(f"{number}")
            await asyncio.sleep(0.05)
        since_s = loop.time()
        await eventually(lambda: not sent - set(consumers.got) or None, deadline_s=COMES_S)
        dropped = sum(each.dropped for each in walls)
        print(
            f"{len(sent)} sent, {dropped} bytes of answers swallowed; the last of them came "
            f"{RESTS_S + loop.time() - since_s:.1f} s after the last cut"
        )
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    assert dropped > 0
    assert not consumers.twice


async def test_all_comes_to_consumers_whose_answers_were_swallowed(live: LiveNodes) -> None:
    """Once, through the leader and two followers; nothing twice for who acknowledged."""
    await _all_comes(live, 1)


@pytest.mark.long
@pytest.mark.parametrize("door_processes", [0, 1])
async def test_all_comes_however_often_answers_are_swallowed(
    unfounded: LiveNodes, door_processes: int
) -> None:
    """For half a minute, also behind door processes."""
    live = unfounded.where(door_processes=door_processes)
    await live.found(0, 1, 2)
    await _all_comes(live, 6)
