"""A table is read back from real nodes, after the log that it was stored in has gone."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from dledger.broker.commands import Retain
from dledger.client import Client, Table
from dledger.server.node import Node
from tests.client.compacted_topic import TOPIC, CompactedTopic
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

WAIT_S = 60.0


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet, with small segments."""
    return unfounded.where(segment_bytes=1 << 20)


async def test_each_of_three_nodes_shows_one_message_a_key(live: LiveNodes) -> None:
    """Copied forward with gaps; dropped where it was stored; after a restart, and while written."""
    leader = await live.found(0, 1, 2)
    engine = live.nodes[leader].engine
    topic = CompactedTopic(live.client_address(leader), engine, 2)
    await topic.create()
    for number in range(60):
        await topic.put(f"key-{number % 11}", b"%d " % number + bytes(40_000))
    await topic.delete("key-3")
    for queue_id in range(2):
        await topic.compact(queue_id)
        await topic.compact(queue_id)
    lowest = min(filter(None, (topic.queue(number).lowest_index for number in range(2))))
    await engine.propose(Retain(before_index=lowest).encode())
    await eventually(lambda: all(map(_has_dropped, live.nodes.values())))

    for number in range(3):
        await _shows(live, number, topic)
    other = (leader + 1) % 3
    table = Table([live.client_address(other), live.client_address(leader)], TOPIC)
    async with asyncio.timeout(WAIT_S), aclosing(table.changes()) as changes:
        async for change in changes:
            if len(table) == len(topic.rows):
                await live.stop(other)
                await topic.put("last", b"1")
                await live.start(other)
            if change.key == "last":
                break
    await _shows(live, other, topic)
    assert {key: stored.record.body for key, stored in table.items()} == topic.rows


def _has_dropped(node: Node) -> bool:
    """Whether the log does not begin with its first entry any more."""
    return node._log is not None and node._log.first_index > 1


async def _shows(live: LiveNodes, number: int, topic: CompactedTopic) -> None:
    """Check a node's table, and that each message has its own offset there."""
    async with asyncio.timeout(WAIT_S), Client(live.client_address(number)) as client:
        table = Table(live.client_address(number), TOPIC)
        await table.catch_up()
        assert {key: stored.record.body for key, stored in table.items()} == topic.rows
        for queue_id in range(2):
            told = [stored.offset async for stored in client.read(TOPIC, queue_id)]
            assert told == topic.offsets(queue_id)
            assert len(told) < told[-1] + 1
