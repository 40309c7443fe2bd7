"""An offset is of one topic: who follows or keeps it is told when another has the name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.commands import DeleteTopic
from dledger.client import Client, StoredBatch, follow
from dledger.errors import TopicMadeAnew, UnknownTopic
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from dledger.types import Entry
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group

TOPIC = "orders"


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes, and a topic with the messages 0 to 2."""
    async with memory_group(2) as group:
        await made(group, "old", 3)
        yield group


async def made(group: MemoryGroup, word: str, count: int) -> None:
    """Make the topic, with messages that say which it is."""
    async with Client(group.addresses[0]) as client:
        await client.create_topic(TOPIC, queues=1)
        await client.append(TOPIC, [b"%s %d" % (word.encode(), n) for n in range(count)])


async def made_anew(group: MemoryGroup) -> None:
    """Delete the topic; make another of its name that has more messages."""
    topic = group.nodes[0].engine.state.topics.named(TOPIC)
    await group.commit(DeleteTopic(name=TOPIC, generation=topic.generation).encode())
    await made(group, "new", 5)


@pytest.mark.found
async def test_a_reader_of_a_topic_that_was_made_anew_is_told(group: MemoryGroup) -> None:
    """found: E5. It was at work on a batch meanwhile, and was given the new topic's from 3 on."""
    reader = follow(group.addresses, TOPIC, 0)
    first = await anext(reader)

    await made_anew(group)

    with pytest.raises(TopicMadeAnew, match=r"'orders' was deleted and made again"):
        async with asyncio.timeout(WAIT_S):
            await anext(reader)
    assert first.bodies() == [b"old 0", b"old 1", b"old 2"]


async def test_a_reader_that_waited_in_vain_is_told_after_its_node_died(
    group: MemoryGroup,
) -> None:
    """It was never given a batch, and knows by the first word of its node which topic it is of."""
    reader = follow(group.addresses, TOPIC, 0, start_offset=3)
    waits = asyncio.ensure_future(anext(reader))
    await group.polls(1, at=0)
    async with asyncio.timeout(WAIT_S):
        group.elect(1)
        await group.nodes[0].servers[0].stop(0)
        topic = group.nodes[1].engine.state.topics.named(TOPIC)
        await group.commit(DeleteTopic(name=TOPIC, generation=topic.generation).encode())
        async with Client(group.addresses[1]) as client:
            await client.create_topic(TOPIC, queues=1)
            await client.append(TOPIC, [b"new"] * 5)

        with pytest.raises(UnknownTopic):
            await waits


async def test_who_keeps_an_offset_keeps_the_generation_beside_it(group: MemoryGroup) -> None:
    """Both ways to read take it, and both say it: of batches, and of single messages."""
    async with Client(group.addresses[0]) as client:
        batch = await anext(client.read_batches(TOPIC, 0, max_records=2))
        record = await anext(client.read(TOPIC, 0))
        kept: dict[str, Any] = {
            "start_offset": batch.end_offset,
            "generation": batch.generation,
        }
        assert [b.bodies() async for b in client.read_batches(TOPIC, 0, **kept)] == [[b"old 2"]]

        await made_anew(group)

        with pytest.raises(TopicMadeAnew):
            await anext(client.read_batches(TOPIC, 0, **kept))
        with pytest.raises(TopicMadeAnew):
            await anext(follow(group.addresses, TOPIC, 0, **kept))
        new = await anext(client.read_batches(TOPIC, 0))
    assert (record.generation, new.generation) == (batch.generation, batch.generation + 1)
    assert new.bodies()[0] == b"new 0"


async def test_a_node_that_is_behind_ends_no_reader_of_the_new_topic(group: MemoryGroup) -> None:
    """It may know the topic before only: the reader asks it to catch up, and goes on."""
    late = group.nodes[1].engine
    missed: list[Entry] = []
    apply = late.apply

    def miss(entry: Entry) -> list[object]:
        missed.append(entry)
        return []

    late.apply = miss

    async def catch_up(index: int, timeout_s: float) -> None:
        while missed:
            apply(missed.pop(0))

    late.wait_applied = catch_up
    await made_anew(group)
    new = group.nodes[0].engine.state.topics.named(TOPIC).generation

    reader = follow(group.addresses[1], TOPIC, 0, start_offset=1, generation=new)
    async with asyncio.timeout(WAIT_S):
        batch: StoredBatch = await anext(reader)
    await reader.aclose()

    assert batch.bodies()[0] == b"new 1"


async def test_a_client_that_knows_no_generation_reads_as_before(group: MemoryGroup) -> None:
    """Of any language: the first word has no messages, and says where it begins."""
    async with Client(group.addresses[0]) as client:
        for method in (
            pb_grpc.LedgerStub(client.channel).Read,
            pb_grpc.LedgerStub(client.channel).ReadBatches,
        ):
            call = method(pb.ReadRequest(topic=TOPIC, start_offset=1, follow=True), timeout=WAIT_S)
            answers = [answer async for answer in _first(call, 2)]
            assert [answer.next_offset for answer in answers] == [1, 3]
            assert not answers[0].ListFields()[0][0].name.startswith(("records", "batches"))


async def _first(call: Any, count: int) -> AsyncIterator[Any]:
    async for answer in call:
        yield answer
        count -= 1
        if not count:
            return
