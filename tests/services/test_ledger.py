"""dledger.v1 through the public client: batches in, committed records out, topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from dledger.broker.topics import SERVED, TYPES
from dledger.client import Client, Record
from dledger.errors import (
    DiskFull,
    DledgerError,
    InvalidArgument,
    Refused,
    Unavailable,
    UnknownTopic,
)
from dledger.requests.config import RequestConfig
from dledger.rpc.pb import dledger_pb2 as pb
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.waiting import eventually


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes; node 0 leads."""
    async with memory_group(3) as group:
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(group: MemoryGroup, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of the leader, and of a follower."""
    address = f"127.0.0.1:{group.nodes[request.param].port}"
    async with Client(address, timeout_s=WAIT_S) as client:
        yield client


async def test_a_batch_is_read_back_as_it_was_appended(client: Client) -> None:
    """Ids, tags, keys, properties and times, in order."""
    records = [
        Record(
            body=b"%d" % n,
            message_id=f"id-{n}",
            tag="t",
            keys=("k",),
            properties={"p": "v"},
            born_at_ms=n,
        )
        for n in range(300)
    ]

    appended = await client.append("orders", records, queue_id=2)
    found = [stored async for stored in client.read("orders", 2)]

    assert appended.queue_id == 2
    assert appended.offsets == tuple(range(300))
    assert [stored.record for stored in found] == records
    assert [stored.offset for stored in found] == list(range(300))
    assert {stored.index for stored in found} == {appended.index}
    assert all(stored.stored_at_ms > 0 for stored in found)


async def test_a_batch_appended_twice_is_stored_once(client: Client) -> None:
    """The answer is the first one's."""
    records = [Record(body=b"x", message_id=str(n)) for n in range(5)]

    first = await client.append("orders", records)
    again = await client.append("orders", records)

    assert again == first


async def test_reading_starts_and_ends_where_asked(client: Client) -> None:
    """An offset to start at, and a number of records."""
    await client.append("orders", [b"%d" % n for n in range(10)], queue_id=0)

    found = [s.record.body async for s in client.read("orders", 0, start_offset=4, max_records=3)]

    assert found == [b"4", b"5", b"6"]


@pytest.mark.contract
async def test_large_batches_are_read_in_bounded_answers(
    group: MemoryGroup, client: Client
) -> None:
    """No answer is much larger than 1 MiB; nothing is lost between them."""
    bodies = [bytes([n]) * 400_000 for n in range(8)]
    await client.append("orders", bodies, queue_id=0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{group.nodes[0].port}") as channel:
        read = channel.unary_stream("/dledger.v1.Ledger/Read")
        request = pb.ReadRequest(topic="orders", queue_id=0).SerializeToString()
        sizes = [len(raw) async for raw in read(request)]

    assert [s.record.body async for s in client.read("orders", 0)] == bodies
    assert len(sizes) == 3
    assert max(sizes) < 2 << 20


async def test_following_yields_what_comes_later(group: MemoryGroup, client: Client) -> None:
    """Without asking again."""
    await client.append("orders", [b"early"], queue_id=0)
    reader = client.read("orders", 0, follow=True)
    assert (await anext(reader)).record.body == b"early"
    later = asyncio.ensure_future(anext(reader))
    await group.polls()

    await client.append("orders", [b"late"], queue_id=0)

    async with asyncio.timeout(WAIT_S):
        assert (await later).record.body == b"late"
    await reader.aclose()  # type: ignore[attr-defined]


@pytest.mark.contract
async def test_following_ends_when_the_node_closes(group: MemoryGroup, client: Client) -> None:
    """As unavailable, so that the reader goes to another node."""
    await client.append("orders", [b"x"], queue_id=0)
    reader = client.read("orders", 0, follow=True)
    await anext(reader)
    later = asyncio.ensure_future(anext(reader))
    await group.polls()

    for node in group.nodes:
        node.tasks.drain()

    with pytest.raises(Unavailable):
        await later


async def test_topics_are_created_once_and_listed(client: Client) -> None:
    """The number of messages is the sum over the queues."""
    assert await client.create_topic("orders", queues=3)
    assert not await client.create_topic("orders", queues=3)
    await client.append("orders", [b"x", b"y"])

    (topic,) = await client.topics()

    assert (topic.name, topic.type, topic.queues, topic.messages) == ("orders", "NORMAL", 3, 2)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "1 to 4096 records"),
        ([b""], "body is empty"),
        ([bytes((4 << 20) + 1)], "limit is 4194304"),
        ([*[bytes(4 << 20)] * 4, b"x"], "limit is 16777216"),
        ([Record(body=b"x", message_id="x" * 256)], "message_id"),
        ([Record(body=b"x", tag="a|b")], "tag"),
        ([Record(body=b"x", keys=(" ",))], "key"),
    ],
    ids=["no records", "empty body", "large body", "large batch", "long id", "tag", "key"],
)
async def test_batches_that_break_a_rule_are_refused(
    client: Client, records: list[Record | bytes], words: str
) -> None:
    """With a sentence that names the rule."""
    with pytest.raises(Refused, match=words):
        await client.append("orders", records)


async def test_a_queue_that_does_not_exist_is_refused(client: Client) -> None:
    """For appends and reads."""
    await client.create_topic("orders", queues=2)

    with pytest.raises(InvalidArgument, match="queues 0 to 1"):
        await client.append("orders", [b"x"], queue_id=2)
    with pytest.raises(InvalidArgument, match="queues 0 to 1"):
        await anext(client.read("orders", 2))


async def test_reading_beyond_the_end_is_refused(client: Client) -> None:
    """The end itself is where a follower of the queue waits."""
    await client.append("orders", [b"x"], queue_id=0)

    assert [s async for s in client.read("orders", 0, start_offset=1)] == []
    with pytest.raises(InvalidArgument, match="outside"):
        await anext(client.read("orders", 0, start_offset=2))


async def test_an_unknown_topic_is_named() -> None:
    """When topics are not created on demand; and always when it is only read."""
    async with (
        memory_group(2, config=RequestConfig(auto_create_topics=False)) as group,
        Client(f"127.0.0.1:{group.nodes[1].port}") as client,
    ):
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            await client.append("nowhere", [b"x"])
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            await anext(client.read("nowhere", 0))


async def test_topic_types_to_come_are_refused(client: Client) -> None:
    """By name, on any node."""
    for kind in sorted(TYPES.keys() - SERVED):
        with pytest.raises(DledgerError, match=f"{kind} is not implemented yet"):
            await client.create_topic("orders", type=kind)


async def test_a_full_disk_has_its_own_error(group: MemoryGroup, client: Client) -> None:
    """Not one that is waited out."""
    await client.create_topic("orders")
    group.refuse = DiskFull("0 bytes free")

    with pytest.raises(DiskFull, match="0 bytes free"):
        await client.append("orders", [b"x"])


async def test_an_append_waits_for_the_next_leader(
    group: MemoryGroup, client: Client, pauses: list[float]
) -> None:
    """And is stored once, though the first outcome was lost."""
    await client.create_topic("orders")
    group.elect(None)
    append = asyncio.create_task(client.append("orders", [b"x"]))
    await eventually(lambda: bool(pauses))
    group.lose_outcomes = 1

    group.elect(2)

    assert (await append).offsets == (0,)
    (topic,) = await client.topics()
    assert topic.messages == 1


async def test_bytes_that_are_no_request_are_refused(group: MemoryGroup) -> None:
    """INVALID_ARGUMENT, from every method."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{group.nodes[0].port}") as channel:
        for path in ("/dledger.v1.Ledger/Append", "/dledger.v1.Topics/CreateTopic"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(path)(b"\xff\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in channel.unary_stream("/dledger.v1.Ledger/Read")(b"\xff\xff"):
                pass
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
