"""A node that is told to stop serves until whoever routes clients to it has noticed."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually


def _is_ready(live: LiveNodes, number: int) -> bool:
    url = f"http://127.0.0.1:{live.settings(number).http_port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


async def test_a_leader_that_stops_hands_over_and_serves_on_as_a_follower(
    unfounded: LiveNodes,
) -> None:
    """It is not ready from the first moment, and takes writes, which it forwards, to the last."""
    live = unfounded.where(drain_s=2)
    leader = await live.found(0, 1, 2)
    others = [number for number in live.nodes if number != leader]
    stopped = live.nodes[leader]

    stopping = asyncio.create_task(stopped.stop(drain=True))
    await eventually(lambda: any(live.nodes[number].engine.is_leader() for number in others))
    assert not await asyncio.to_thread(_is_ready, live, leader)
    taken = 0
    async with live.client(leader) as client:
        while stopped.engine.leader is not None and taken < 20:
            await client.append("topic", [b"%d" % taken], queue_id=0)
            taken += 1
    assert not stopping.done()
    await stopping
    del live.nodes[leader]

    assert taken == 20
    async with live.client(others[0]) as client:
        assert [one.record.body async for one in client.read("topic", 0)] == [
            b"%d" % number for number in range(20)
        ]


async def test_a_node_that_ends_for_a_fault_does_not_wait(unfounded: LiveNodes) -> None:
    """Nor does one of tests: only a signal means that somebody routes clients here."""
    live = unfounded.where(drain_s=60, shutdown_grace_s=90)
    await live.found(0, 1, 2)

    async with asyncio.timeout(20):
        await live.stop()
