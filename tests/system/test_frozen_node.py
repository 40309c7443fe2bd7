"""A frozen follower keeps nobody's messages: it holds connections, and passes nothing on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually_async, eventually_blocking

MESSAGES = 24
WAIT_S = 40.0
"""Less than a message on loan to a living client stays with it, more than it takes by far."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running group of three."""
    made = DevGroup(tmp_path / "data", free_port_range())
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


async def _brokers(client: RocketClient) -> set[str]:
    """Return the nodes that a client of one address is told of."""
    client.metadata = (("x-mq-client-id", "node-js"), ("x-mq-language", "HTTP"))
    return {queue.broker.name for queue in (await client.route("t")).message_queues}


async def _take_all(client: RocketClient, wanted: int) -> set[bytes]:
    bodies: set[bytes] = set()
    while len(bodies) < wanted:
        _, messages, _ = await client.receive(auto_renew=False, batch=32, wait_s=1.0)
        bodies |= {each.body for each in messages}
        if messages:
            await client.ack(*messages)
    return bodies


async def _polls(client: RocketClient, queues: range) -> list[asyncio.Task[Any]]:
    """Poll each queue as a push consumer does."""
    polls = [
        asyncio.create_task(client.receive(queue_id=each, auto_renew=True, wait_s=3 * WAIT_S))
        for each in queues
    ]
    await asyncio.sleep(0)
    return polls


async def _story(state: dict[str, Any], frozen: int) -> None:
    ports = [int(endpoint.rpartition(":")[2]) for endpoint in state["endpoints"]]
    leads = state["leader"]
    async with (
        RocketClient(ports[leads], client_id="producer") as producer,
        RocketClient(ports[frozen], client_id="stuck") as stuck,
        RocketClient(ports[leads], client_id="other") as other,
        RocketClient(ports[leads]) as node_js,
    ):
        await producer.route("t")
        await stuck.receive(wait_s=0.0)  # makes the group, and all connections
        polls = await _polls(stuck, range(8))
        await stuck.call("Heartbeat")  # behind the polls on the same connection
        os.kill(state["pids"][frozen], signal.SIGSTOP)
        try:
            for number in range(MESSAGES):
                await producer.send(message(number, body=b"%d" % number))
            async with asyncio.timeout(WAIT_S):
                bodies = await _take_all(other, MESSAGES)

            async def is_left_out() -> bool:
                return len(await _brokers(node_js)) < 3

            await eventually_async(is_left_out, deadline_s=WAIT_S)
        finally:
            os.kill(state["pids"][frozen], signal.SIGCONT)
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
    assert bodies == {b"%d" % number for number in range(MESSAGES)}


@pytest.mark.slow
@pytest.mark.found
async def test_what_a_frozen_follower_took_comes_to_another_consumer(group: DevGroup) -> None:
    """Within seconds, though the client that polled through it lives; routes leave it out."""
    state = eventually_blocking(group.whole, "the group is whole", 30)

    await _story(state, (state["leader"] + 1) % 3)
