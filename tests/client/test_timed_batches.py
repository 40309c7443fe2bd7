"""Messages with delivery times through a stream of batches, each with a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dledger.broker.commands import CreateTopic
from dledger.broker.topics import DELAY
from dledger.client import AppendStream, BatchingProducer, Client, Record, Typed
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError, Refused
from dledger.replica.firing import Firing
from dledger.requests.delivery_times import MAX_DELAY_MS
from tests.requests.memory_group import MemoryGroup
from tests.waiting import eventually

HOUR_MS = 3_600_000
TOPIC = "d"


@pytest.fixture(autouse=True)
async def firing(group: MemoryGroup) -> AsyncIterator[None]:
    """The one node lets go what is due of a topic of type DELAY, which has one queue."""
    await group.commit(CreateTopic(name=TOPIC, type=DELAY.name, queues=1).encode())
    firing = Firing(group.nodes[0].engine, NodeMetrics("orders", "orders-0"))
    task = asyncio.get_running_loop().create_task(firing.run())
    yield
    task.cancel()
    await asyncio.wait((task,))


def _at(due_ms: int, body: bytes = b"x", message_id: str = "") -> Record:
    return Record(body=body, message_id=message_id, typed=Typed(deliver_at_ms=due_ms))


async def _pass_an_hour(group: MemoryGroup, count: int) -> list[bytes]:
    """Let an hour pass, and return what is in the queue once all of it is."""
    group.clock_skew_ms += HOUR_MS
    await eventually(lambda: group.nodes[0].engine.state.topics.queue(TOPIC, 0).end >= count)
    return await group.bodies(TOPIC)


async def test_each_message_waits_for_its_own_time(group: MemoryGroup) -> None:
    """Those that share a batch, too; each is told what recalls it, once, whatever is lost."""
    now_ms = group.now_ms()
    async with BatchingProducer(group.addresses) as producer, Client(group.addresses[0]) as client:
        group.lose_outcomes = 1
        sent = await asyncio.gather(
            *(producer.send(TOPIC, _at(now_ms + ahead_ms, b"%d" % ahead_ms))
              for ahead_ms in (3_000, 1_000, 4_000, -1_000, 2_000))
        )  # fmt: skip
        await client.recall(TOPIC, sent[2].recall_handle)
        bodies = await _pass_an_hour(group, 4)
        stored = [each.typed async for each in client.read(TOPIC, 0)]

    assert [(each.queue_id, each.offset) for each in sent[:3]] == [(-1, -1)] * 3
    assert len({each.recall_handle for each in sent}) == 5
    assert bodies == [b"-1000", b"1000", b"2000", b"3000"]
    assert stored == [Typed(deliver_at_ms=now_ms + int(each)) for each in bodies]


async def test_what_is_due_is_in_its_queue_at_once(group: MemoryGroup) -> None:
    async with AppendStream(group.addresses) as stream:
        appended = await stream.append(TOPIC, [_at(1, b"a"), _at(2, b"b")])

    assert (appended.offsets, appended.recall_handles) == ((0, 1), ())
    assert await group.bodies(TOPIC) == [b"a", b"b"]


async def test_those_that_were_sent_before_are_told_where_they_are(group: MemoryGroup) -> None:
    """Some are in the queue, some wait: each is told of itself."""
    due_ms = group.now_ms() + HOUR_MS
    async with BatchingProducer(group.addresses) as producer:
        first = await producer.send(TOPIC, _at(1, b"a", "1"))
        held = await producer.send(TOPIC, _at(due_ms, b"b", "2"))
        group.elect(None)
        sends = [
            asyncio.ensure_future(producer.send(TOPIC, record))
            for record in (_at(due_ms, b"c", "3"), _at(1, b"a", "1"), _at(due_ms, b"b", "2"))
        ]
        await asyncio.sleep(0.01)
        group.elect(0)
        new, again, still = await asyncio.gather(*sends)

    assert (again.queue_id, again.offset, again.recall_handle) == (0, first.offset, "")
    assert still.recall_handle == held.recall_handle
    assert new.recall_handle not in {"", held.recall_handle}
    assert await _pass_an_hour(group, 3) == [b"a", b"b", b"c"]


async def test_one_that_cannot_wait_does_not_spoil_those_beside_it(group: MemoryGroup) -> None:
    """One too late, and one without a time, each among others in one batch."""
    now_ms = group.now_ms()
    async with BatchingProducer(group.addresses) as producer:
        group.elect(None)
        sends = [
            asyncio.ensure_future(producer.send(TOPIC, record))
            for record in (
                _at(now_ms + 1_000, b"1"),
                _at(now_ms + 2 * MAX_DELAY_MS),
                _at(now_ms + 2_000, b"2"),
                b"without",
                _at(now_ms + 3_000, b"3"),
            )
        ]
        await asyncio.sleep(0.01)
        group.elect(0)
        results = await asyncio.gather(*sends, return_exceptions=True)

    refused = [str(each) for each in results if isinstance(each, Refused)]
    assert [isinstance(each, DledgerError) for each in results] == [False, True, False, True, False]
    assert "40 days" in refused[0]
    assert "takes DELAY messages, not NORMAL" in refused[1]
    assert await _pass_an_hour(group, 3) == [b"1", b"2", b"3"]


async def test_a_batch_for_later_is_of_one_topic_and_complete(group: MemoryGroup) -> None:
    """Another type of topic takes none of it, and each record has its own time."""
    await group.commit(CreateTopic(name="n", type="NORMAL", queues=1).encode())
    due_ms = group.now_ms() + HOUR_MS
    async with AppendStream(group.addresses) as stream, Client(group.addresses[0]) as client:
        for append in (stream.append, client.append):
            with pytest.raises(Refused, match="takes NORMAL messages, not DELAY"):
                await append("n", [_at(due_ms)])
            with pytest.raises(Refused, match="a delivery time, and row 1 has none"):
                await append(TOPIC, [_at(due_ms), Record(body=b"x")])
        appended = await client.append(TOPIC, [_at(due_ms, b"a"), _at(due_ms - 1, b"b")])

    assert len(set(appended.recall_handles)) == 2
    assert await _pass_an_hour(group, 2) == [b"b", b"a"]
