"""Another client takes a message's id: its sender is told, or the message is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger.broker import produce
from dledger.broker.message import Encoding, Message
from dledger.client import AppendStream, BatchingProducer, Client, MessageIdConflict, Record, Sent
from dledger.errors import InvalidArgument
from dledger.rocketmq.sending import is_same, scope_of
from dledger.rpc.rocketmq_stubs import definition
from dledger.types import Typed
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

pytestmark = pytest.mark.found
"""found: S1."""
TOPIC = "t"


def conflicts(group: MemoryGroup) -> float:
    """Return how many conflicts the nodes have counted."""
    counted = 0.0
    for node in group.nodes:
        sample = node.parts.context.metrics.registry.get_sample_value(
            "dledger_message_id_conflicts_total",
            {"group": "orders", "node": node.engine.node_id},
        )
        counted += sample or 0.0
    return counted


async def steal(group: MemoryGroup, client_id: str, *message_ids: str, body: bytes = b"x") -> None:
    """Store messages under ids that are another producer's."""
    async with Client(group.addresses[0], client_id=client_id) as thief:
        records = [Record(body=body, message_id=each) for each in message_ids]
        await thief.append(TOPIC, records, queue_id=0)


# -- our own producers ---------------------------------------------------------------------------


async def test_a_batching_producer_tells_the_one_whose_id_is_taken(group: MemoryGroup) -> None:
    """Its neighbours in the batch are stored where they are told."""
    await steal(group, "me", "id-3")

    async with BatchingProducer(group.addresses, client_id="me") as producer:
        sends = [
            producer.send(TOPIC, Record(body=b"%d" % n, message_id=f"id-{n}"), queue_id=0)
            for n in range(8)
        ]
        sent = await asyncio.gather(*sends, return_exceptions=True)

    assert [n for n, one in enumerate(sent) if isinstance(one, MessageIdConflict)] == [3]
    assert "'id-3'" in str(sent[3])
    bodies = await group.bodies(TOPIC)
    assert bodies == [b"x", *(b"%d" % n for n in range(8) if n != 3)]
    stored = {n: one.offset for n, one in enumerate(sent) if isinstance(one, Sent)}
    assert {n: bodies[offset] for n, offset in stored.items()} == {
        n: b"%d" % n for n in range(8) if n != 3
    }
    assert conflicts(group) == 1


async def test_a_stream_says_which_rows_and_where_the_rest_is(group: MemoryGroup) -> None:
    """What comes behind on the same stream is answered as ever."""
    await steal(group, "me", "b")

    async with AppendStream(group.addresses, client_id="me") as stream:
        records = [Record(body=each.encode(), message_id=each) for each in "abc"]
        first = asyncio.ensure_future(stream.append(TOPIC, records, queue_id=0))
        second = asyncio.ensure_future(stream.append(TOPIC, [b"d"], queue_id=0))
        with pytest.raises(MessageIdConflict, match="rows 1") as caught:
            await first
        appended = await second

    assert caught.value.rows == (1,)
    assert caught.value.appended is not None
    assert (caught.value.appended.queue_id, caught.value.appended.offsets) == (0, (1, -1, 2))
    assert appended.offsets == (3,)


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "follower"])
async def test_an_append_is_never_answered_with_ok(node: int) -> None:
    """By name, with the rows, also through a follower."""
    async with memory_group(2) as group:
        await steal(group, "me", "a", "c")
        async with Client(group.addresses[node], client_id="me") as client:
            records = [Record(body=each.encode(), message_id=each) for each in "abc"]
            with pytest.raises(MessageIdConflict, match="rows 0, 2") as caught:
                await client.append(TOPIC, records, queue_id=0)

        assert caught.value.rows == (0, 2)
        assert await group.bodies(TOPIC) == [b"x", b"x", b"b"]


async def test_a_reader_is_not_told_who_produced(group: MemoryGroup) -> None:
    """With the client id alone a guess at the next ids would be of use."""
    async with AppendStream(group.addresses, client_id="secret-of-mine") as stream:
        await stream.append(TOPIC, [b"a", b"b"], queue_id=0)

    async with Client(group.addresses[0]) as client:
        batches = [batch async for batch in client.read_batches(TOPIC, 0)]

    assert not any(b"secret-of-mine" in batch.payload for batch in batches)
    assert [stored.record.body for stored in batches[0].records()] == [b"a", b"b"]


# -- SDKs, whose ids can be guessed ---------------------------------------------------------------


async def test_a_message_whose_id_is_taken_is_stored_all_the_same(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Once, however often it is sent again; its sender cannot choose another id."""
    mine = message(1, body=b"TRANSFER")
    await steal(group, "client-1", mine.system_properties.message_id)

    answers = [await client.send(mine) for _ in range(3)]

    assert {code(answer.status) for answer in answers} == {"OK"}
    assert len({answer.entries[0].offset for answer in answers}) == 1
    assert await _all_bodies(group) == [b"TRANSFER", b"x"]
    assert conflicts(group) == 3


async def test_a_body_that_was_made_to_collide_does_not_pass_for_another(
    group: MemoryGroup, client: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRC32C is no secret: a repetition is compared with what is stored."""
    monkeypatch.setattr(produce, "digest_of", lambda _: 7)
    mine = message(1, body=b"TRANSFER")
    await steal(group, "client-1", mine.system_properties.message_id, body=b"STOLEN")

    answers = [await client.send(mine) for _ in range(2)]

    assert {code(answer.status) for answer in answers} == {"OK"}
    assert await _all_bodies(group) == [b"STOLEN", b"TRANSFER"]


async def test_what_consumers_see_is_what_a_message_is(
    group: MemoryGroup, client: RocketClient
) -> None:
    """The same body under another tag, key or property is another message."""
    sent: list[Any] = [message(1), message(1, tag="a"), message(1, keys=["k"])]
    sent.append(message(1))
    sent[-1].user_properties["to"] = "A"

    for one in (*sent, *sent):
        assert code((await client.send(one)).status) == "OK"

    assert len(await _all_bodies(group)) == len(sent)


async def test_a_later_attempt_is_the_same_message(
    group: MemoryGroup, client: RocketClient
) -> None:
    """SDKs take the time and a trace anew for each attempt."""
    again = message(1, trace_context="00-other")
    again.system_properties.born_timestamp.FromMilliseconds(77)

    first, second = await client.send(message(1)), await client.send(again)

    assert first == second
    assert len(await _all_bodies(group)) == 1
    assert conflicts(group) == 0


async def test_only_the_message_at_fault_is_stored_apart(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Messages of one request, and requests that share a command, each get their own place."""
    stolen = message(2)
    await steal(group, "client-1", stolen.system_properties.message_id)

    answers = await asyncio.gather(
        client.send(message(1, body=b"1"), message(2, body=b"2"), message(3, body=b"3")),
        client.send(message(4, body=b"4")),
    )

    assert {code(entry.status) for answer in answers for entry in answer.entries} == {"OK"}
    assert await _all_bodies(group) == [b"1", b"2", b"3", b"4", b"x"]


async def test_a_repeated_message_that_is_not_kept_any_longer_is_believed(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Retention has dropped it; it was there."""
    first = await client.send(message(1))
    for node in group.nodes:
        node.engine.state.forget_before(len(group.log) + 1)

    assert await client.send(message(1)) == first
    assert await _all_bodies(group) == []


async def test_nobody_calls_himself_as_only_the_group_may(group: MemoryGroup) -> None:
    """Or the place where a message finds itself could be taken as well."""
    theirs = scope_of("client-1", Message(message_id="m", body=b"x"))
    async with RocketClient(group.nodes[0].port, theirs) as client:
        answer = await client.send(message(1))
    async with Client(group.addresses[0], client_id=theirs) as native:
        with pytest.raises(InvalidArgument, match="hexadecimal"):
            await native.append(TOPIC, [b"x"])
    async with AppendStream(group.addresses, client_id=theirs) as stream:
        with pytest.raises(Exception, match="hexadecimal"):
            await stream.append(TOPIC, [b"x"])

    assert code(answer.status) == "CLIENT_ID_REQUIRED"


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"y"},
        {"tag": "t"},
        {"keys": ("k",)},
        {"keys": ("", "k")},
        {"properties": {"a": "1"}},
        {"properties": {"a1": ""}},
        {"encoding": Encoding.GZIP},
        {"typed": Typed(message_group="g")},
        {"typed": Typed(deliver_at_ms=1)},
        {"typed": Typed(priority=0)},
    ],
)
def test_a_scope_is_of_one_content(change: dict[str, Any]) -> None:
    """Whatever consumers see counts, and the order of properties does not."""
    one = Message(message_id="m", body=b"x")
    other = Message(**{"message_id": "m", "body": b"x"} | change)

    assert scope_of("c", one) != scope_of("c", other)
    assert not is_same(one, other)


def test_the_order_of_properties_does_not_count() -> None:
    """Maps have none on the wire."""
    one, other = (
        Message(message_id="m", body=b"x", properties=dict(pairs), born_at_ms=len(pairs))
        for pairs in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    )

    assert scope_of("c", one) == scope_of("c", other)
    assert is_same(one, other)


async def _all_bodies(group: MemoryGroup) -> list[bytes]:
    queues = range(len(group.nodes[0].engine.state.topics.queues(TOPIC)))
    found: list[bytes] = []
    for queue_id in queues:
        queue = group.nodes[0].engine.state.topics.queue(TOPIC, queue_id)
        async with Client(group.addresses[0]) as client:
            start = queue.first
            found += [
                one.record.body async for one in client.read(TOPIC, queue_id, start_offset=start)
            ]
    return sorted(found)


def test_a_scope_shows_its_client() -> None:
    """Who reads a backup sees whose it was."""
    scope = scope_of("host@1@0@abc", Message(message_id="m", body=b"x"))

    assert scope.startswith("host@1@0@abc#")
    assert len(scope) == len("host@1@0@abc#") + 16
    assert definition.Code.Name(definition.Code.ILLEGAL_MESSAGE_ID) == "ILLEGAL_MESSAGE_ID"
