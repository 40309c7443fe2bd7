"""`Ledger.ReadBatches` joins neighbours that were written singly, and loses nothing of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import grpc.aio
import pytest

from dledger.broker.message import Columns, Encoding
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.client import AppendStream, Client, Record, StoredBatch
from dledger.errors import DledgerError
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import MovedFrom, StoredRecord, Typed
from tests.requests.memory_group import MemoryGroup, memory_group

TOPIC = "orders"


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node and a topic of one queue."""
    async with memory_group(1) as group:
        async with Client(group.addresses[0]) as client:
            await client.create_topic(TOPIC, queues=1)
        yield group


async def answers(group: MemoryGroup, **request: Any) -> list[pb.StoredBatch]:
    """Return what a reader gets that speaks the protocol by itself."""
    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.unary_stream("/dledger.v1.Ledger/ReadBatches")
        asked = pb.ReadRequest(topic=TOPIC, **request).SerializeToString()
        raws = [raw async for raw in call(asked)]
    return [batch for raw in raws for batch in pb.ReadBatchesResponse.FromString(raw).batches]


def records_of(batches: Sequence[pb.StoredBatch]) -> list[StoredRecord]:
    """Return all messages, as the client makes them."""
    return [record for batch in batches for record in StoredBatch.of(batch).records()]


async def store(
    group: MemoryGroup,
    bodies: Sequence[bytes],
    *,
    message_ids: Sequence[str] = (),
    born_at_ms: Sequence[int] = (),
    client_id: str = "c",
    born_host: str = "",
    **columns: Any,
) -> None:
    """Store one batch in an entry of its own, or with what is stored at the same time."""
    batch = Columns(
        bodies=bodies,
        message_ids=message_ids or [""] * len(bodies),
        born_at_ms=born_at_ms or [0] * len(bodies),
        **columns,
    )
    await group.nodes[0].engine.propose(
        encode_produce(batch, client_id=client_id, topic=TOPIC, born_host=born_host)
    )


async def test_single_messages_come_as_one_batch_whoever_wrote_them(group: MemoryGroup) -> None:
    """Each with its own entry and time; no producer is named."""
    for number in range(50):
        await store(
            group,
            [b"%02d" % number],
            message_ids=[f"id-{number}"],
            client_id=f"producer-{number % 3}",
            born_host=f"10.0.0.{number % 3}",
            born_at_ms=[number],
        )

    (batch,) = await answers(group, joined=True)
    singles = await answers(group)

    assert (batch.first_offset, batch.count, len(singles)) == (0, 50, 50)
    assert records_of([batch]) == records_of(singles)
    assert list(batch.entry_indexes) == [single.index for single in singles]
    frame = ProduceFrame(batch.payload, 0, len(batch.payload))
    assert (frame.client_id, frame.born_host, frame.topic) == ("", "", TOPIC)
    assert b"producer" not in batch.payload


async def test_a_reader_that_does_not_ask_gets_what_was_produced(group: MemoryGroup) -> None:
    """An older client knows neither the request nor the answer."""
    await store(group, [b"a"])
    await store(group, [b"b"])

    batches = await answers(group)

    kept = group.log[-1].data[5:]
    assert batches[1].payload == kept[:2] + b"\0\0" + kept[4:16] + kept[17:]
    assert [batch.entry_counts for batch in batches] == [[], []]


async def test_large_batches_are_not_copied_into_others(group: MemoryGroup) -> None:
    """They come as they lie, between those that are joined."""
    await store(group, [b"a"])
    await store(group, [b"b", b"c"])
    await store(group, [b"d"] * 100)
    await store(group, [b"e"])
    await store(group, [b"f" * (100 << 10)])
    await store(group, [b"g"])

    batches = await answers(group, joined=True)

    assert [batch.count for batch in batches] == [3, 100, 1, 1, 1]
    assert [list(batch.entry_counts) for batch in batches] == [[1, 2], [], [], [], []]


async def test_a_part_of_the_queue_is_read_as_it_was_asked_for(group: MemoryGroup) -> None:
    """From an offset on, and so many."""
    for number in range(30):
        await store(group, [b"%02d" % number])

    batches = await answers(group, joined=True, start_offset=7, max_records=11)

    assert [batch.first_offset for batch in batches] == [7]
    assert [one.record.body for one in records_of(batches)] == [b"%02d" % n for n in range(7, 18)]


async def test_an_answer_is_bounded(group: MemoryGroup) -> None:
    """However many small messages there are, one has about a megabyte."""
    for _ in range(20):
        for _ in range(19):
            await store(group, [b"x" * (16_000)])

    batches = await answers(group, joined=True)

    assert sum(batch.count for batch in batches) == 380
    assert max(batch.ByteSize() for batch in batches) <= 1 << 20
    assert len(batches) < 10


async def test_what_is_held_for_an_answer_is_bounded(group: MemoryGroup) -> None:
    """Small messages may lie in entries that are full of another queue's."""
    async with Client(group.addresses[0]) as client:
        await client.create_topic("other", queues=1)
    large = Columns(message_ids=["", ""], bodies=[bytes(4 << 20)] * 2, born_at_ms=[0, 0])
    command = encode_produce(large, client_id="c", topic="other")
    for number in range(7):
        await asyncio.gather(group.nodes[0].engine.propose(command), store(group, [b"%d" % number]))

    batches = await answers(group, joined=True, max_records=6)

    assert [batch.count for batch in batches] == [2, 2, 2]
    assert [one.record.body for one in records_of(batches)] == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("seed", range(10))
async def test_joined_or_not_the_messages_are_the_same(group: MemoryGroup, seed: int) -> None:
    """Random batches of all that a message may have, of several in an entry."""
    rng = Random(seed)
    for _ in range(120):
        count = rng.choice((1, 1, 1, 1, 1, 2, 5, 9, 40))
        kinds: dict[str, Any] = {}
        if rng.random() < 0.3:
            kinds["tags"] = [rng.choice(("", "t", "ü")) for _ in range(count)]
        if rng.random() < 0.2:
            kinds["keys"] = [["k"] * rng.randrange(3) for _ in range(count)]
        if rng.random() < 0.2:
            kinds["properties"] = [{"n": "v"} if rng.random() < 0.5 else {} for _ in range(count)]
        if rng.random() < 0.1:
            kinds["encodings"] = [rng.choice(list(Encoding)) for _ in range(count)]
        if rng.random() < 0.1:
            kinds["trace_contexts"] = ["00-1"] * count
        if rng.random() < 0.2:
            some = (None, Typed(message_group="g"), Typed(deliver_at_ms=9, priority=0))
            kinds["typed"] = [rng.choice(some) for _ in range(count)]
        bodies = [rng.randbytes(rng.randint(1, 2_000)) for _ in range(count)]
        ids = [rng.choice(("", f"{rng.randrange(300):08d}")) for _ in range(count)]
        born = [rng.randrange(1_000) for _ in range(count)]
        await store(group, bodies, message_ids=ids, born_at_ms=born, **kinds)

    start = rng.randrange(20)
    joined = await answers(group, joined=True, start_offset=start)
    apart = await answers(group, start_offset=start)

    assert records_of(joined) == records_of(apart)
    assert len(joined) < len(apart)
    whole = [ProduceFrame(batch.payload, 0, len(batch.payload)) for batch in joined]
    assert all(frame.queue_id in {0, -1} for frame in whole)


async def test_readers_are_told_what_only_some_types_of_topics_know(group: MemoryGroup) -> None:
    """By each way of reading; of a message that has nothing of it nothing is told."""
    moved = MovedFrom(
        topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5, born_host="h", attempts=6
    )
    typed = [
        None,
        Typed(message_group="g"),
        Typed(deliver_at_ms=9),
        Typed(priority=0),
        Typed(message_group="g", deliver_at_ms=9, priority=7, moved_from=moved),
    ]
    await store(group, [b"%d" % row for row in range(5)], typed=typed)

    joined = records_of(await answers(group, joined=True))
    assert [one.typed for one in joined] == typed
    async with Client(group.addresses[0]) as client:
        assert [one.typed async for one in client.read(TOPIC, 0)] == typed
    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.unary_stream("/dledger.v1.Ledger/Read")
        raws = [raw async for raw in call(pb.ReadRequest(topic=TOPIC).SerializeToString())]
    told = [one for raw in raws for one in pb.ReadResponse.FromString(raw).records]
    assert [one.HasField("typed") for one in told] == [False, True, True, True, True]
    assert told[3].typed == pb.Typed(priority=0)
    assert told[4].typed == pb.Typed(
        message_group="g",
        deliver_at_ms=9,
        priority=7,
        moved_from=pb.MovedFrom(
            topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5, born_host="h", attempts=6
        ),
    )


async def test_what_cannot_be_decoded_is_left_as_it_lies(group: MemoryGroup) -> None:
    """An older log may have a text that is no UTF-8; its neighbours are read all the same."""
    await store(group, [b"a"], tags=["t"])
    await store(group, [b"b"], tags=["!"])
    await store(group, [b"c"], message_ids=["!"])
    for entry in group.log[-2:]:
        object.__setattr__(entry, "data", entry.data.replace(b"!", b"\xff"))

    joined, apart = await answers(group, joined=True), await answers(group)

    assert [one.record.body for one in records_of(joined)] == [b"a"]
    assert records_of(joined) == records_of(apart)


async def test_the_client_reads_what_was_appended_singly(group: MemoryGroup) -> None:
    """In batches, and one by one with all fields."""
    records = [Record(body=b"%d" % n, message_id=str(n), tag="t" * (n % 2)) for n in range(40)]
    async with AppendStream(group.addresses) as stream:
        told = [await stream.append(TOPIC, [record]) for record in records]

    async with Client(group.addresses[0]) as client:
        batches = [batch async for batch in client.read_batches(TOPIC, 0)]
        read = [one async for one in client.read(TOPIC, 0)]

    assert [batch.count for batch in batches] == [40]
    assert batches[0].bodies() == [record.body for record in records]
    assert [one.record for one in read] == records
    assert [(one.offset, one.index) for one in read] == [(a.offsets[0], a.index) for a in told]


@pytest.mark.parametrize(
    "entries",
    [
        {"entry_counts": [1], "entry_indexes": [1], "entry_stored_at_ms": [1]},
        {"entry_counts": [0, 2], "entry_indexes": [1, 2], "entry_stored_at_ms": [1, 2]},
        {"entry_counts": [1, 1], "entry_indexes": [1], "entry_stored_at_ms": [1, 2]},
    ],
)
def test_entries_that_do_not_fill_a_batch_are_no_nodes(entries: dict[str, Any]) -> None:
    """No message is told a place that was made up."""
    with pytest.raises(DledgerError):
        StoredBatch.of(pb.StoredBatch(count=2, **entries))
