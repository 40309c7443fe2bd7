"""Compacted topics at every way in: exactly one key, whose queue it is, and answers in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.key_queues import queue_of_key
from dledger.client import (
    AdminClient,
    AppendStream,
    BatchingProducer,
    Client,
    Compaction,
    Record,
    SpoolingProducer,
)
from dledger.errors import (
    IllegalKey,
    InvalidArgument,
    MessageRejected,
    NotLeader,
    Overloaded,
    Refused,
    SeveralQueues,
)
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import definition
from tests.requests.memory_group import WAIT_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

_AT_EACH_SERVER = pytest.mark.contract
_QUEUES = 4
_KEYS = ("a", "c", "b", "e", "a", "0", "1", "2")
"""Their queues are 0, 3, 0, 3, 0, and others."""
_TOKEN = "0123456789abcdef" * 2


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes, and the compacted topic t."""
    async with memory_group(2) as group:
        async with Client(group.addresses[0]) as client:
            assert await client.create_topic("t", queues=_QUEUES, compaction=Compaction())
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def rocket(request: pytest.FixtureRequest, group: MemoryGroup) -> AsyncIterator[RocketClient]:
    """An SDK at this node."""
    async with RocketClient(group.nodes[request.param].port) as client:
        yield client


def _keyed(number: int, key: str, **system: Any) -> definition.Message:
    return message(number, key.encode(), keys=(key,), **system)


def _queue(key: str) -> int:
    return queue_of_key(key.encode(), _QUEUES)


def _offsets_of(keys: Sequence[str]) -> list[int]:
    """Return where messages of these keys are stored, in this order, in an empty topic."""
    return [[_queue(k) for k in keys[:row]].count(_queue(key)) for row, key in enumerate(keys)]


async def _stored(group: MemoryGroup) -> list[list[bytes]]:
    return [await group.bodies("t", queue_id) for queue_id in range(_QUEUES)]


def _expected(keys: Sequence[str]) -> list[list[bytes]]:
    return [[k.encode() for k in keys if _queue(k) == queue_id] for queue_id in range(_QUEUES)]


# -- SendMessage -----------------------------------------------------------------------------------


@_AT_EACH_SERVER
async def test_the_node_chooses_the_queue_by_the_key(
    group: MemoryGroup, rocket: RocketClient
) -> None:
    """For each call, though many of one connection share a command."""
    calls = [rocket.send(_keyed(number, key)) for number, key in enumerate(_KEYS)]

    answers = await asyncio.gather(*calls)

    assert {code(each.status) for each in answers} == {"OK"}
    found = await _stored(group)
    assert [sorted(each) for each in found] == [sorted(each) for each in _expected(_KEYS)]


@_AT_EACH_SERVER
async def test_one_request_to_several_queues_is_answered_in_its_order(
    group: MemoryGroup, rocket: RocketClient
) -> None:
    """Each message's own offset; sent again, each is stored once."""
    messages = [_keyed(number, key) for number, key in enumerate(_KEYS)]

    first, again = await rocket.send(*messages), await rocket.send(*messages)

    assert [each.offset for each in first.entries] == _offsets_of(_KEYS)
    assert [each.offset for each in again.entries] == _offsets_of(_KEYS)
    assert [each.message_id for each in first.entries] == [
        each.system_properties.message_id for each in messages
    ]
    assert await _stored(group) == _expected(_KEYS)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ((), "row 1 has 0"),
        (("a", "b"), "row 1 has 2"),
        (("a", "a"), "row 1 has 2"),
    ],
)
async def test_a_message_without_just_one_key_is_refused_with_its_request(
    group: MemoryGroup, rocket: RocketClient, keys: tuple[str, ...], said: str
) -> None:
    """Nothing of it is stored; RocketMQ has a code for that."""
    before = len(group.log)

    refused = await rocket.send(_keyed(1, "a"), message(2, keys=keys))

    assert code(refused.status) == "ILLEGAL_MESSAGE_KEY"
    assert refused.status.message == (
        "topic 't' is compacted by key: a message has exactly one key there, which is not empty, "
        f"and {said}; give each one key, or send to a topic that is not compacted"
    )
    assert len(group.log) == before


async def test_an_id_that_somebody_took_is_stored_apart_in_the_queue_of_its_key(
    group: MemoryGroup, rocket: RocketClient
) -> None:
    """The id was another message's, of another key and queue."""
    await rocket.send(_keyed(1, "a"))

    mine = [await rocket.send(_keyed(1, "c"), _keyed(2, "b")) for _ in range(2)]

    assert [[each.offset for each in one.entries] for one in mine] == [[0, 1], [0, 1]]
    assert await _stored(group) == _expected(("a", "c", "b"))


async def test_what_is_submitted_in_part_is_not_said_to_be_undone(group: MemoryGroup) -> None:
    """The second part finds no room, and the first is in the log: all of it is tried again."""
    engine = group.nodes[0].engine
    submit, has_room = engine.submit, iter((True, False))

    def refuse_once(command: Any, **how: Any) -> Any:
        if next(has_room, True):
            return submit(command, **how)
        raise Overloaded("no room")

    engine.submit = refuse_once  # type: ignore[method-assign]
    async with RocketClient(group.nodes[0].port) as rocket:
        answer = await rocket.send(_keyed(1, "a"), _keyed(2, "c"))

    assert code(answer.status) == "OK"
    assert [each.offset for each in answer.entries] == [0, 0]
    assert await _stored(group) == _expected(("a", "c"))


# -- replays of a spool ----------------------------------------------------------------------------


async def _replay(client: RocketClient, first: int, *messages: definition.Message) -> list[int]:
    own = client.metadata
    client.metadata = (*own, ("x-dledger-replay", f"{_TOKEN};0;{first}"))
    try:
        answer = await client.send(*messages)
    finally:
        client.metadata = own
    assert code(answer.status) == "OK"
    return [each.offset for each in answer.entries]


@_AT_EACH_SERVER
async def test_a_replay_is_stored_once_by_the_sequences_of_its_lane(
    group: MemoryGroup, rocket: RocketClient
) -> None:
    """In each queue: what is known is known though all ids were forgotten, the rest is stored."""
    messages = [_keyed(number, key) for number, key in enumerate(_KEYS)]

    first = await _replay(rocket, 1, *messages[:5])
    forgotten = [_keyed(number + 50, key) for number, key in enumerate(_KEYS)]
    again = await _replay(rocket, 1, *forgotten)

    assert first == _offsets_of(_KEYS[:5])
    assert again == [-1] * 5 + _offsets_of(_KEYS)[5:]
    assert await _stored(group) == _expected(_KEYS)


async def test_a_lane_does_not_pass_a_message_that_is_not_stored_yet(group: MemoryGroup) -> None:
    """Its id is another's, and its leader is gone before it is stored apart: it comes again."""
    messages = [_keyed(number, key) for number, key in enumerate(("a", "c", "b"))]
    engine = group.nodes[0].engine
    submit, left = engine.submit, iter((True, True))

    def lose(command: Any, **how: Any) -> Any:
        if next(left, False):
            return submit(command, **how)
        raise NotLeader(None)

    async with RocketClient(group.nodes[0].port, timeout_s=1.0) as rocket:
        await rocket.send(message(1, b"stolen", keys=("c",)))
        engine.submit = lose  # type: ignore[method-assign]
        lost = await _outcome(rocket, messages)
        engine.submit = submit  # type: ignore[method-assign]
        offsets = await _replay(rocket, 1, *messages)

    assert lost != "OK"
    assert -1 not in offsets
    assert await _stored(group) == [[b"a", b"b"], [], [], [b"stolen", b"c"]]


async def _outcome(rocket: RocketClient, messages: Sequence[definition.Message]) -> str:
    try:
        await _replay(rocket, 1, *messages)
    except Exception as error:  # noqa: BLE001 - of a call without an answer, or of its code
        return repr(error)
    return "OK"


# -- our own protocol ------------------------------------------------------------------------------


async def test_append_asks_for_keys_of_one_queue(group: MemoryGroup) -> None:
    """And says how many queues there are, so that the next one has them."""
    async with Client(group.addresses[1]) as client:
        with pytest.raises(SeveralQueues) as several:
            await client.append("t", [_record("a"), _record("c")])
        with pytest.raises(IllegalKey, match="row 1 has 0"):
            await client.append("t", [_record("a"), b"without"])
        with pytest.raises(InvalidArgument, match=r"are of queue 3, not of 0: name no queue"):
            await client.append("t", [_record("c")], queue_id=0)
        appended = await client.append("t", [_record("a"), _record("b")])
        named = await client.append("t", [_record("c")], queue_id=3)

    assert several.value.queues == _QUEUES
    assert str(several.value).endswith(
        ": topic 't' is compacted, and the keys of this batch are of several of its 4 queues "
        "(row 0 in queue 0, row 1 in queue 3): send what is of one queue (CRC32C of the key "
        "modulo 4) in one batch, or single records"
    )
    assert (appended.queue_id, appended.offsets) == (0, (0, 1))
    assert (named.queue_id, named.offsets) == (3, (0,))
    assert await _stored(group) == _expected(("a", "b", "c"))


async def test_a_stream_asks_for_keys_of_one_queue(group: MemoryGroup) -> None:
    """Of a batch that its caller made; the stream goes on."""
    async with AppendStream(group.addresses) as stream:
        calls = [
            stream.append("t", [_record("a"), _record("c")]),
            stream.append("t", [_record("a"), b"without"]),
            stream.append("t", [_record("a"), _record("b")], queue_id=1),
            stream.append("t", [_record("a"), _record("b")]),
        ]
        several, without, other, stored = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(several, SeveralQueues)
    assert several.queues == _QUEUES
    assert isinstance(without, Refused)
    assert "row 1 has 0" in str(without)
    assert isinstance(other, Refused)
    assert "are of queue 0, not of 1" in str(other)
    assert not isinstance(stored, BaseException)
    assert (stored.queue_id, stored.offsets) == (0, (0, 1))


async def test_single_records_that_travel_together_are_told_their_own_place(
    group: MemoryGroup,
) -> None:
    """The first batch of several queues is taken apart; then each queue's travel together."""
    keys = [f"{number % 40}" for number in range(400)]
    async with BatchingProducer(group.addresses) as producer:
        sent = await asyncio.gather(*(producer.send("t", _record(key)) for key in keys[:200]))
        commands = len(group.log), group.nodes[0].engine.proposals
        sent += await asyncio.gather(*(producer.send("t", _record(key)) for key in keys[200:]))
        later = group.nodes[0].engine.proposals - commands[1]
        with pytest.raises(Refused, match="row 0 has 0"):
            await producer.send("t", b"without")

    places = [(each.queue_id, each.offset) for each in sent]
    assert [queue_id for queue_id, _ in places] == [_queue(key) for key in keys]
    assert [offset for _, offset in places] == _offsets_of(keys)
    assert await _stored(group) == _expected(keys)
    assert later <= 4 * _QUEUES + _QUEUES, "each queue's batches, and not one a record"


async def test_a_record_without_a_key_is_refused_by_itself(group: MemoryGroup) -> None:
    """Those that travel with it are stored, in their order."""
    async with BatchingProducer(group.addresses) as producer:
        records: list[Record | bytes] = [_record("a"), b"without", _record("b"), _record("a")]
        sends = [producer.send("t", each) for each in records]
        first, refused, *others = await asyncio.gather(*sends, return_exceptions=True)

    assert isinstance(refused, Refused)
    assert "row 0 has 0" in str(refused)
    assert not any(isinstance(each, BaseException) for each in (first, *others))
    assert await _stored(group) == _expected(("a", "b", "a"))


async def test_a_spooling_producer_sends_by_queue(group: MemoryGroup, tmp_path: Path) -> None:
    """Each message is told its own place; one without a key is refused at once."""
    keys = [f"{number % 10}" for number in range(60)]
    async with SpoolingProducer(group.addresses, tmp_path / "spool", patience_s=WAIT_S) as producer:
        sent = await producer.send_batch("t", [_record(key) for key in keys])
        with pytest.raises(Refused, match="row 0 has 0"):
            await producer.send("t", b"without")

    assert [(each.queue_id, each.offset) for each in sent] == [
        *zip(map(_queue, keys), _offsets_of(keys), strict=True)
    ]
    assert await _stored(group) == _expected(keys)


async def test_a_spool_is_replayed_by_queue(group: MemoryGroup, tmp_path: Path) -> None:
    """Each key keeps its order; one without a key is rejected, and blocks nothing."""
    rejected = list[object]()
    keys = [f"{number % 10}" for number in range(60)]
    group.elect(None)
    async with SpoolingProducer(
        group.addresses, tmp_path / "spool", patience_s=0.05, report=rejected.append
    ) as producer:
        records: list[Record | bytes] = [_record(key) for key in keys]
        sent = await producer.send_batch("t", [*records[:30], b"without", *records[30:]])
        assert all(each.spooled for each in sent)
        group.elect(0)
        assert await producer.drained(WAIT_S)

    (one,) = rejected
    assert isinstance(one, MessageRejected)
    assert "row 0 has 0" in one.reason
    assert await _stored(group) == _expected(keys)


def _record(key: str) -> Record:
    return Record(body=key.encode(), keys=(key,))


# -- what is told of it ----------------------------------------------------------------------------


async def test_every_list_of_topics_says_how_it_is_compacted(group: MemoryGroup) -> None:
    """And that it is kept for ever; what else decides what is kept is refused."""
    compaction = Compaction(min_lag_ms=5, tombstone_ms=7)
    async with (
        Client(group.addresses[1]) as client,
        AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}", timeout_s=WAIT_S) as admin,
    ):
        assert await client.create_topic("u", queues=1, compaction=compaction)
        assert not await client.create_topic("u", queues=1, compaction=compaction)
        await client.create_topic("v", queues=1)
        with pytest.raises(InvalidArgument, match="not type NORMAL and 1 queues"):
            await client.create_topic("u", queues=1)
        with pytest.raises(InvalidArgument, match=r"min_lag_ms of a compacted topic is 0 to"):
            await client.create_topic("w", compaction=Compaction(min_lag_ms=-1))
        with pytest.raises(InvalidArgument, match="is compacted: the newest message of each key"):
            await admin.set_topic_retention("u", 100)
        with pytest.raises(InvalidArgument, match="it does not grow"):
            await admin.grow_topic("u", 2)

        listed = {topic.name: topic for topic in await client.topics()}
        assert [listed[name].compaction for name in "tuv"] == [Compaction(), compaction, None]
        assert [listed[name].retention_hours for name in "tuv"] == [0, 0, None]
        assert (await admin.describe_topic("u")).compaction == compaction
        assert (await admin.describe_topic("v")).compaction is None


async def test_times_that_a_request_does_not_name_are_as_usual(group: MemoryGroup) -> None:
    """Not 0: tombstones would go at once."""
    async with Client(group.addresses[0]) as client:
        asked = pb.CreateTopicRequest(name="w", compaction=pb.Compaction())
        await client.call(client._topics.CreateTopic, asked)
        asked = pb.CreateTopicRequest(name="x", compaction=pb.Compaction(min_lag_ms=0))
        await client.call(client._topics.CreateTopic, asked)

        found = {each.name: each.compaction for each in await client.topics() if each.name in "wx"}

    assert found == {"w": Compaction(), "x": Compaction(min_lag_ms=0)}
