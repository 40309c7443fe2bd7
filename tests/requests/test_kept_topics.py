"""A topic's own retention at the edge: who sets it, what is refused, and what readers are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dledger.broker.message import Message
from dledger.client import AdminClient, BatchingProducer, Client
from dledger.errors import DiskFull, InvalidArgument, UnknownTopic
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.requests.config import RequestConfig
from dledger.rocketmq.sending import is_stored
from dledger.types import Record
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes, the topic t, which keeps its messages for ever, and u."""
    async with memory_group(2, RequestConfig(retention_hours=72)) as group:
        async with Client(group.addresses[0]) as client:
            await client.create_topic("t", queues=1)
            await client.create_topic("u", queues=1)
        async with _admin(group) as admin:
            await admin.set_topic_retention("t", 0)
        yield group


def _admin(group: MemoryGroup) -> AdminClient:
    return AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}", timeout_s=WAIT_S)


async def test_a_topic_is_kept_for_longer_and_as_the_group_again(group: MemoryGroup) -> None:
    """The answer says what it was; every list of topics says what it is."""
    async with _admin(group) as admin, Client(group.addresses[1]) as client:
        assert await admin.set_topic_retention("t", 100) == 0
        assert (await admin.describe_topic("t")).retention_hours == 100
        assert [each.retention_hours for each in await client.topics()] == [100, None]
        assert await admin.set_topic_retention("t", None) == 100
        assert (await admin.describe_topic("t")).retention_hours is None
        assert await admin.set_topic_retention("t", 72) is None


async def test_what_cannot_be_is_refused_by_name(group: MemoryGroup) -> None:
    """Shorter than the group's: it would only be hidden."""
    async with _admin(group) as admin:
        with pytest.raises(InvalidArgument, match="the group keeps all for 72 hours"):
            await admin.set_topic_retention("t", 71)
        with pytest.raises(InvalidArgument, match="1 to 1000000 hours, or 0 for ever"):
            await admin.set_topic_retention("t", 1_000_001)
        with pytest.raises(UnknownTopic, match="nowhere"):
            await admin.set_topic_retention("nowhere", 100)


async def test_without_room_its_messages_are_refused_on_every_way(group: MemoryGroup) -> None:
    """By name; those of other topics are taken, and its own again when there is room."""
    topics = group.nodes[0].engine.state.topics
    topics.full = "most of it is kept"
    said = "topic 't' takes no messages: most of it is kept"
    for number in (0, 1):
        async with (
            RocketClient(group.nodes[number].port) as rocket,
            Client(group.addresses[number]) as client,
        ):
            refused = await rocket.send(message(number))
            assert code(refused.status) == "INTERNAL_SERVER_ERROR"
            assert said in refused.status.message
            with pytest.raises(DiskFull, match=said):
                await client.append("t", [b"a"])
            await client.append("u", [b"a"])
            assert code((await rocket.send(message(number + 5, topic="u"))).status) == "OK"
    async with BatchingProducer(group.addresses) as producer:
        with pytest.raises(DiskFull, match=said):
            await producer.send("t", Record(body=b"x"))
        topics.full = ""
        await producer.send("t", Record(body=b"x"))
    assert topics.messages("t") == 1


async def test_what_was_copied_is_received_and_read_with_what_it_had(group: MemoryGroup) -> None:
    """By SDKs and by our own readers: time, entry, host, and an id that stays the same."""
    async with RocketClient(group.nodes[0].port) as rocket, Client(group.addresses[0]) as client:
        await rocket.send(message(1, b"one"))
        await client.append("t", [Record(body=b"two")])
        _, before, _ = await rocket.receive(group="before", batch=9)
        read_before = [each async for each in client.read("t", 0)]

        await _copy(group)
        _, after, _ = await rocket.receive(group="after", batch=9)
        read_after = [each async for each in client.read("t", 0)]

    def told(received: object) -> list[object]:
        return [
            (
                each.body,
                each.system_properties.message_id,
                each.system_properties.store_timestamp,
                each.system_properties.born_host,
                each.system_properties.queue_offset,
            )
            for each in received  # type: ignore[attr-defined]
        ]

    assert told(before) == told(after)
    assert [replace(each, record=replace(each.record, message_id="")) for each in read_before] == [
        replace(each, record=replace(each.record, message_id="")) for each in read_after
    ]
    assert len(read_after) == 2


async def test_an_attempt_for_a_message_that_is_gone_is_stored(group: MemoryGroup) -> None:
    """As for one that retention has dropped: nobody can look any more."""
    async with Client(group.addresses[0]) as client:
        await client.append("t", [b"a", b"b"])
    await _copy(group, without=0)
    engine = group.nodes[0].engine
    queue = engine.state.topics.queue("t", 0)

    assert not queue.has(0)
    assert await is_stored(engine, "t", 0, 0, Message(message_id="x", body=b"other"))
    assert not await is_stored(engine, "t", 0, 1, Message(message_id="x", body=b"other"))


async def _copy(group: MemoryGroup, *, without: int | None = None) -> None:
    """Roll all of t, as a leader does."""
    engine = group.nodes[0].engine
    topics = engine.state.topics
    roll = next_roll(
        topics.named("t"), 0, topics.queue("t", 0), Due.below(len(group.log) + 1, last_index=0)
    )
    assert roll is not None
    entries = {each.entry: await engine.read_entry(each.entry) for each in roll.stretches}
    if without is not None:
        left = [
            each._replace(first=at, length=1, row=each.row + at - each.first)
            for each in roll.stretches
            for at in range(each.first, each.first + each.length)
            if at != without
        ]
        roll = replace(roll, stretches=tuple(left))
    command, _ = rekeep_of(roll, entries.__getitem__, lambda *_: True)
    await engine.propose(command)
