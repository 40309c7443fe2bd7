"""`dledger.client.BatchingProducer` and `follow`: single messages at the cost of batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dledger.client import BatchingProducer, Client, Record, follow
from dledger.errors import InvalidArgument, Refused, Unavailable, UnknownTopic
from dledger.types import Entry
from tests.requests.memory_group import SOON_S, MemoryGroup, memory_group

TOPIC = "orders"


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes and a topic."""
    async with memory_group(3) as group:
        async with Client(f"127.0.0.1:{group.nodes[0].port}") as client:
            await client.create_topic(TOPIC, queues=2)
        yield group


async def test_messages_sent_together_share_batches_and_keep_their_order(
    group: MemoryGroup,
) -> None:
    """A thousand sends are a few entries, and the queue has them as they were sent."""
    before = len(group.log)

    async with BatchingProducer(group.addresses) as producer:
        sent = await asyncio.gather(
            *(producer.send(TOPIC, b"%04d" % n, queue_id=0) for n in range(1000))
        )

    assert [one.offset for one in sent] == list(range(1000))
    assert await group.bodies(TOPIC) == [b"%04d" % n for n in range(1000)]
    assert len(group.log) - before < 10


async def test_a_lone_message_waits_for_nobody(group: MemoryGroup) -> None:
    """There is no linger: one message is one batch."""
    async with BatchingProducer(group.addresses) as producer:
        sent = await producer.send(TOPIC, Record(body=b"a", tag="t", message_id="1"), queue_id=1)

    assert (sent.queue_id, sent.offset, sent.index) == (1, 0, len(group.log))


async def test_a_batch_is_bounded_in_bytes(group: MemoryGroup) -> None:
    """What does not fit goes with the next one."""
    before = len(group.log)

    async with BatchingProducer(group.addresses, batch_bytes=1_000) as producer:
        await asyncio.gather(*(producer.send(TOPIC, b"x" * 400, queue_id=0) for _ in range(6)))

    payloads = [entry.data for entry in group.log[before:]]
    assert sum(data.count(b"x" * 400) for data in payloads) == 6
    assert max(map(len, payloads)) < 3_000


async def test_a_bad_message_does_not_spoil_those_beside_it(group: MemoryGroup) -> None:
    """It is refused before it is in a batch."""
    async with BatchingProducer(group.addresses) as producer:
        results = await asyncio.gather(
            producer.send(TOPIC, b"a", queue_id=0),
            producer.send(TOPIC, b"", queue_id=0),
            producer.send(TOPIC, Record(body=b"x", tag="a|b"), queue_id=0),
            producer.send("no spaces", b"x"),
            producer.send(TOPIC, b"b", queue_id=0),
            return_exceptions=True,
        )

    assert [isinstance(result, Refused) for result in results] == [False, True, True, True, False]
    assert await group.bodies(TOPIC) == [b"a", b"b"]


async def test_messages_survive_a_failover_once_and_in_order(group: MemoryGroup) -> None:
    """Outcomes are lost and leadership moves in the middle of it."""
    async with BatchingProducer(group.addresses, batch_bytes=40) as producer:
        sends = [
            asyncio.ensure_future(producer.send(TOPIC, b"%04d" % n, queue_id=0)) for n in range(100)
        ]
        await asyncio.sleep(0.01)
        group.lose_outcomes = 2
        group.elect(1)
        await asyncio.gather(*sends)

    assert await group.bodies(TOPIC) == [b"%04d" % n for n in range(100)]


async def test_what_is_unanswered_is_bounded(group: MemoryGroup) -> None:
    """Beyond its bytes a send waits: back-pressure, not memory."""
    group.elect(None)
    async with BatchingProducer(group.addresses, max_bytes=1_000) as producer:
        sends = [
            asyncio.ensure_future(producer.send(TOPIC, b"x" * 400, queue_id=0)) for _ in range(10)
        ]
        await asyncio.sleep(0.05)

        assert producer.unanswered_bytes == 800

        group.elect(0)
        await asyncio.gather(*sends)
        assert producer.unanswered_bytes == 0


async def test_without_a_leader_a_send_ends_with_its_timeout(group: MemoryGroup) -> None:
    """The error says that the message may be stored."""
    group.elect(None)

    async with BatchingProducer(group.addresses, timeout_s=SOON_S) as producer:
        with pytest.raises(Unavailable, match="may be stored"):
            await producer.send(TOPIC, b"a")


async def test_closing_waits_for_what_is_under_way(group: MemoryGroup) -> None:
    """Leaving the block loses nothing that was sent."""
    async with BatchingProducer(group.addresses) as producer:
        sends = [
            asyncio.ensure_future(producer.send(TOPIC, b"%d" % n, queue_id=0)) for n in range(50)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert len(await asyncio.gather(*sends)) == 50


async def test_a_reader_goes_on_at_another_node(group: MemoryGroup) -> None:
    """From the offset where it was: nothing twice, nothing left out."""
    async with BatchingProducer(group.addresses) as producer:
        await producer.send(TOPIC, b"0", queue_id=0)
        reader = follow(group.addresses, TOPIC, 0)
        first = await anext(reader)
        await group.nodes[0].servers[0].stop(0)
        group.elect(1)
        await producer.send(TOPIC, b"1", queue_id=0)
        async with asyncio.timeout(10):
            second = await anext(reader)
        await reader.aclose()

    assert (first.bodies(), second.bodies()) == ([b"0"], [b"1"])
    assert (first.first_offset, second.first_offset) == (0, 1)


async def test_a_reader_of_a_new_topic_waits_for_a_node_that_has_not_heard_of_it(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was acknowledged; that a follower applies it later is not the reader's trouble."""
    late = group.nodes[1]
    missed: list[Entry] = []

    def note(entry: Entry) -> list[object]:
        missed.append(entry)
        return []

    async def catch_up(index: int, timeout_s: float) -> None:
        while missed:
            late.engine.state.apply(missed.pop(0))

    monkeypatch.setattr(late.engine, "apply", note)
    monkeypatch.setattr(late.engine, "wait_applied", catch_up)
    async with Client(group.addresses[0]) as client:
        await client.create_topic("fresh", queues=1)
        await client.append("fresh", [Record(body=b"0", message_id="0")])
    reader = follow(group.addresses[1], "fresh", 0)
    async with asyncio.timeout(10):
        batch = await anext(reader)
    await reader.aclose()

    assert batch.bodies() == [b"0"]


async def test_a_reader_of_nothing_is_told(group: MemoryGroup) -> None:
    """An unknown topic is an error, not an endless wait; so is a reader without addresses."""
    with pytest.raises(UnknownTopic):
        await anext(follow(group.addresses, "nobody", 0))
    with pytest.raises(InvalidArgument, match="address"):
        await anext(follow([], TOPIC, 0))
