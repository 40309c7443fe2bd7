"""Messages with delivery times through a spool: while the group is there, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger.client import Client, Record, SpoolingProducer, Typed
from dledger.common.metrics import NodeMetrics
from dledger.errors import MessageRejected, Refused
from dledger.replica.firing import Firing
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.waiting import eventually

HOUR_MS = 3_600_000
TOPIC = "d"


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node, which lets go what is due of the topic d, and a topic for transactions."""
    async with memory_group() as group:
        async with Client(group.addresses[0]) as client:
            assert await client.create_topic(TOPIC, type="DELAY", queues=1)
            assert await client.create_topic("tx", type="TRANSACTION", queues=1)
        firing = Firing(group.nodes[0].engine, NodeMetrics("orders", "orders-0"))
        task = asyncio.get_running_loop().create_task(firing.run())
        yield group
        task.cancel()
        await asyncio.wait((task,))


def _at(due_ms: int, body: bytes) -> Record:
    return Record(body=body, typed=Typed(deliver_at_ms=due_ms))


async def _wait_delivered(group: MemoryGroup, count: int) -> list[bytes]:
    await eventually(lambda: group.nodes[0].engine.state.topics.queue(TOPIC, 0).end >= count)
    return await group.bodies(TOPIC)


async def test_a_spooling_producer_sends_for_later(group: MemoryGroup, tmp_path: Path) -> None:
    """What waits has a handle and no place; what is due has a place."""
    due_ms = group.now_ms() + HOUR_MS
    async with SpoolingProducer(group.addresses, tmp_path / "spool", patience_s=WAIT_S) as producer:
        due = await producer.send(TOPIC, _at(1, b"due"))
        waits, recalled = await producer.send_batch(
            TOPIC, [_at(due_ms, b"later"), _at(due_ms, b"never")]
        )
        with pytest.raises(Refused, match="takes DELAY messages, not NORMAL"):
            await producer.send(TOPIC, b"without")
        with pytest.raises(Refused, match="takes TRANSACTION messages, not NORMAL"):
            await producer.send("tx", b"no half")
        with pytest.raises(Refused, match="delivery time is from 0"):
            await producer.send(TOPIC, _at(-1, b"x"))
    async with Client(group.addresses[0]) as client:
        assert await client.recall(TOPIC, recalled.recall_handle) == recalled.message_id
    group.clock_skew_ms += HOUR_MS

    assert (due.queue_id, due.offset, due.recall_handle) == (0, 0, "")
    assert (waits.spooled, waits.queue_id, waits.offset) == (False, None, None)
    assert await _wait_delivered(group, 2) == [b"due", b"later"]


async def test_a_spool_is_replayed_with_its_times(group: MemoryGroup, tmp_path: Path) -> None:
    """What is due by then is delivered at once, the rest at its time; the rest blocks nothing."""
    rejected = list[object]()
    now_ms = group.now_ms()
    group.elect(None)
    async with SpoolingProducer(
        group.addresses, tmp_path / "spool", patience_s=0.05, report=rejected.append
    ) as producer:
        records = [
            _at(now_ms + ahead_ms, b"%d" % ahead_ms) for ahead_ms in (9_000, -5, 7_000, 8_000)
        ]
        sent = await producer.send_batch(TOPIC, [*records[:2], b"without", *records[2:]])
        sent += (await producer.send("tx", b"no half"),)
        group.elect(0)
        assert await producer.drained(WAIT_S)
    at_once = await _wait_delivered(group, 1)
    held = group.nodes[0].engine.state.held.count
    group.clock_skew_ms += HOUR_MS

    assert all(each.spooled for each in sent)
    assert [type(each) for each in rejected] == [MessageRejected] * 2
    assert (at_once, held) == ([b"-5"], 3)
    assert await _wait_delivered(group, 4) == [b"-5", b"7000", b"8000", b"9000"]
    async with Client(group.addresses[0]) as client:
        read = [each.typed async for each in client.read(TOPIC, 0)]
    assert read == [Typed(deliver_at_ms=now_ms + each) for each in (-5, 7_000, 8_000, 9_000)]
