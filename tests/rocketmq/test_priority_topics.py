"""PRIORITY topics over the protocol and by the native client: the highest first, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.commands import CreateGroup, CreateTopic
from dledger.client import Appended, AppendStream, Client, Record, SeveralQueues, Typed
from dledger.client.admin_client import AdminClient
from dledger.errors import InvalidArgument, Refused
from dledger.rpc.rocketmq_stubs import definition, service
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message

_QUEUES = 4
_MISMATCH = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
_KIND = definition.MessageType.PRIORITY


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes; node 0 leads. Topic "p" orders by priority, "t" does not."""
    async with memory_group(2) as group:
        leader = group.nodes[0].engine
        await leader.propose(CreateTopic(name="p", type="PRIORITY", queues=_QUEUES).encode())
        await leader.propose(CreateTopic(name="t", type="NORMAL", queues=_QUEUES).encode())
        await leader.propose(CreateGroup(name="g").encode())
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(request: pytest.FixtureRequest, group: MemoryGroup) -> AsyncIterator[RocketClient]:
    async with RocketClient(group.nodes[request.param].port) as client:
        yield client


def _of(number: int, priority: int, **system: Any) -> definition.Message:
    more = {"message_type": _KIND, "priority": priority} | system
    return message(number, body=b"%d" % priority, topic="p", **more)


def _priorities(messages: list[definition.Message]) -> list[int]:
    return [each.system_properties.priority for each in messages]


def _record(priority: int, message_id: str = "") -> Record:
    return Record(body=b"x", message_id=message_id, typed=Typed(priority=priority))


# -- what is sent and received ---------------------------------------------------------------------


async def test_the_highest_come_first_and_say_what_they_are(client: RocketClient) -> None:
    """Whatever queue the producer named; above the last queue a priority stays what it is."""
    for number, priority in enumerate((1, 0, 9, 3, 2)):
        answer = await client.send(_of(number, priority, queue_id=1))
        assert code(answer.status) == "OK"

    _, got, _ = await client.receive("p")

    assert _priorities(got) == [9, 3, 2, 1, 0]
    assert [each.system_properties.queue_id for each in got] == [3, 3, 2, 1, 0]
    assert {each.system_properties.message_type for each in got} == {_KIND}


async def test_a_request_of_several_priorities_is_parted(client: RocketClient) -> None:
    """Each message gets the offset that it has in its own queue, in the order of the request."""
    response = await client.send(*(_of(n, p) for n, p in enumerate((2, 2, 0, 2))))

    assert code(response.status) == "OK"
    assert [each.offset for each in response.entries] == [0, 1, 0, 2]
    assert _priorities((await client.receive("p"))[1]) == [2, 2, 2, 0]


async def test_a_message_that_is_sent_again_is_stored_once(
    client: RocketClient, group: MemoryGroup
) -> None:
    """As any; with another priority it is another message."""
    first = await client.send(_of(1, 2))
    again = await client.send(_of(1, 2))
    other = await client.send(_of(1, 3))

    assert first.entries[0].offset == again.entries[0].offset == 0
    assert code(other.status) == "OK"
    assert group.nodes[0].engine.state.topics.messages("p") == 2


async def test_a_push_consumer_polls_all_queues_as_one(client: RocketClient) -> None:
    """As RocketMQ has it; whichever queue it names, it gets the highest."""
    request = service.QueryAssignmentRequest(
        topic=definition.Resource(name="p"), group=definition.Resource(name="g")
    )
    answer = await client.call("QueryAssignment", request)
    route = await client.route("p")

    assert [each.message_queue.id for each in answer.assignments] == [-1]
    assert [each.id for each in route.message_queues] == list(range(_QUEUES))
    assert {kind for each in route.message_queues for kind in each.accept_message_types} == {_KIND}
    await client.send(_of(1, 0), _of(2, 3))
    _, (first,), _ = await client.receive("p", queue_id=-1, auto_renew=True, batch=1)
    _, (then,), _ = await client.receive("p", queue_id=2, auto_renew=True, batch=1)
    assert _priorities([first, then]) == [3, 0]


async def test_a_poll_that_waits_gets_a_message_of_any_priority(
    client: RocketClient, group: MemoryGroup
) -> None:
    """It waits for all queues."""
    waits = asyncio.ensure_future(client.receive("p", queue_id=3, auto_renew=True, wait_s=30))
    await group.polls(at=0)
    await client.send(_of(1, 1))

    assert _priorities((await waits)[1]) == [1]


async def test_an_expression_finds_the_highest_first(client: RocketClient) -> None:
    """However much of what is lower matches."""
    await client.send(*(_of(number, number % 4, tag="a") for number in range(8)))

    got: list[definition.Message] = []
    for _ in range(8):
        kind = definition.FilterType.SQL
        _, (one,), _ = await client.receive("p", kind=kind, expression="TAGS = 'a'", batch=1)
        got.append(one)

    assert _priorities(got) == [3, 3, 2, 2, 1, 1, 0, 0]


async def test_what_failed_keeps_its_priority_also_as_a_dead_letter(
    client: RocketClient, group: MemoryGroup
) -> None:
    """RocketMQ loses it with the first retry (apache/rocketmq#10350)."""
    await client.send(_of(1, 2), _of(2, 1))
    await client.receive("p", batch=1)
    group.clock_skew_ms += 10_001
    _, (again, lower), _ = await client.receive("p")
    assert _priorities([again, lower]) == [2, 1]
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name="g"),
        topic=definition.Resource(name="p"),
        receipt_handle=again.system_properties.receipt_handle,
        message_id=again.system_properties.message_id,
    )
    await client.call("ForwardMessageToDeadLetterQueue", request)

    _, (dead,), _ = await client.receive("%DLQ%g")
    assert _priorities([dead]) == [2]
    group.clock_skew_ms += 10_001
    async with AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}") as admin:
        (letter,) = (await admin.resend_dead_letters("g")).letters
    assert letter.sent_to_queue == 2
    assert _priorities((await client.receive("p", batch=1))[1]) == [2]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "refused", "says"),
    [
        (message(topic="p", message_type=_KIND), _MISMATCH, "has a priority, from 0"),
        (message(topic="p"), _MISMATCH, "takes PRIORITY messages, not NORMAL"),
        (message(topic="p", priority=1), _MISMATCH, "which have no priority"),
        (message(topic="t", priority=1, message_type=_KIND), _MISMATCH, "NORMAL messages, not PRI"),
        (_of(1, -1), "BAD_REQUEST", "a priority is from 0"),
        (_of(1, -(2**31)), "BAD_REQUEST", "a priority is from 0"),
        (_of(1, 1, message_group="x"), _MISMATCH, "which have no message_group"),
        (_of(1, 1, lite_topic="x"), _MISMATCH, "which have no lite_topic"),
        (message(topic="nowhere", priority=1, message_type=_KIND), "TOPIC_NOT_FOUND", "create it"),
    ],
)
async def test_what_does_not_fit_is_refused_by_the_protocols_code(
    client: RocketClient, group: MemoryGroup, sent: definition.Message, refused: str, says: str
) -> None:
    """And nothing is stored, nor a topic made that would be NORMAL for ever."""
    status = (await client.send(sent)).status

    assert (code(status), says in status.message) == (refused, True), status
    topics = group.nodes[0].engine.state.topics
    assert topics.messages("p") == topics.messages("t") == 0
    assert topics.get("nowhere") is None


async def test_the_highest_priority_of_the_protocol_is_one(client: RocketClient) -> None:
    """It is of the last queue."""
    assert code((await client.send(_of(1, 2**31 - 1))).status) == "OK"

    _, (got,), _ = await client.receive("p")
    assert (got.system_properties.priority, got.system_properties.queue_id) == (2**31 - 1, 3)


# -- the native client -----------------------------------------------------------------------------


async def test_a_native_batch_is_of_one_queue(group: MemoryGroup) -> None:
    """It is told which, and of how many; what is refused says why."""
    async with Client(group.addresses[0]) as client:
        stored = await client.append("p", [_record(3), _record(7)])
        with pytest.raises(SeveralQueues) as several:
            await client.append("p", [_record(3), _record(1)])
        with pytest.raises(Refused, match="row 1 has none"):
            await client.append("p", [_record(3), b"plain"])
        with pytest.raises(Refused, match="takes NORMAL messages"):
            await client.append("t", [_record(3)])
        with pytest.raises(InvalidArgument, match="is of queue 3, not of 1"):
            await client.append("p", [_record(3)], queue_id=1)
        with pytest.raises(Refused, match="a priority is from 0"):
            await client.append("p", [_record(-2)])
        read = [each async for each in client.read("p", 3)]

    assert (stored.queue_id, stored.offsets, several.value.queues) == (3, (0, 1), _QUEUES)
    assert [each.typed for each in read] == [Typed(priority=3), Typed(priority=7)]


async def test_single_records_of_a_stream_travel_by_queue(group: MemoryGroup) -> None:
    """What travelled together before anybody had said how many queues there are comes apart."""
    sent = [(number * 7) % 6 for number in range(40)]
    async with AppendStream(group.addresses[0]) as stream:
        appends = [stream.append("p", [_record(each, f"m{n}")]) for n, each in enumerate(sent)]
        stored = await asyncio.gather(*appends)
        beside = stream.append("p", [b"plain"]), stream.append("p", [_record(1)])
        refused, kept = await asyncio.gather(*beside, return_exceptions=True)
        with pytest.raises(Refused, match="takes NORMAL messages"):
            await stream.append("t", [_record(1)])

    assert [each.queue_id for each in stored] == [min(each, _QUEUES - 1) for each in sent]
    assert "takes PRIORITY messages" in str(refused)
    assert isinstance(kept, Appended)
    assert group.nodes[0].engine.state.topics.messages("p") == len(sent) + 1


async def test_a_topic_that_grew_is_learned_anew(group: MemoryGroup) -> None:
    """What was one queue is two; a producer that knew four of them is told."""
    async with (
        AppendStream(group.addresses[0]) as stream,
        AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}") as admin,
    ):
        before = await asyncio.gather(*(stream.append("p", [_record(each)]) for each in range(6)))
        await admin.grow_topic("p", 6)
        after = await asyncio.gather(*(stream.append("p", [_record(each)]) for each in range(6)))

    assert [each.queue_id for each in before] == [0, 1, 2, 3, 3, 3]
    assert [each.queue_id for each in after] == [0, 1, 2, 3, 4, 5]
