"""FIFO topics over the protocol: by message group, whatever queue a producer names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.commands import CreateGroup, CreateTopic
from dledger.broker.key_queues import queue_of_key
from dledger.broker.redelivery import DEFAULT_ATTEMPTS
from dledger.common.limits import ORDERED_BACKOFF_S
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

_QUEUES = 4
_NAMES = [f"order-{number}" for number in range(6)]


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes; node 0 leads. Topic "f" is FIFO, "t" is not."""
    async with memory_group(2) as group:
        leader = group.nodes[0].engine
        await leader.propose(CreateTopic(name="f", type="FIFO", queues=_QUEUES).encode())
        await leader.propose(CreateTopic(name="t", type="NORMAL", queues=_QUEUES).encode())
        await leader.propose(CreateGroup(name="g").encode())
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(request: pytest.FixtureRequest, group: MemoryGroup) -> AsyncIterator[RocketClient]:
    async with RocketClient(group.nodes[request.param].port) as client:
        yield client


def _fifo(number: int, name: str, **system: Any) -> definition.Message:
    kind = definition.MessageType.FIFO
    return message(
        number,
        body=f"{name}/{number}".encode(),
        topic="f",
        message_type=kind,
        message_group=name,
        **system,
    )


async def _settings(client: RocketClient, *topics: str) -> definition.Settings:
    stream = client.channel.stream_stream(
        f"/{SERVICE_NAME}/Telemetry",
        request_serializer=service.TelemetryCommand.SerializeToString,
        response_deserializer=service.TelemetryCommand.FromString,
    )(metadata=client.metadata)
    subscription = definition.Subscription(
        group=definition.Resource(name="g"),
        subscriptions=[
            definition.SubscriptionEntry(topic=definition.Resource(name=topic)) for topic in topics
        ],
    )
    settings = definition.Settings(subscription=subscription)
    await stream.write(service.TelemetryCommand(settings=settings))
    answer = await stream.read()
    stream.cancel()
    found: definition.Settings = answer.settings
    return found


async def test_messages_of_a_group_are_in_its_queue_and_come_one_batch_at_a_time(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Whatever queue the producer names; and they say which group they are of."""
    sent = [_fifo(number, _NAMES[number % 6], queue_id=3) for number in range(18)]
    for each in sent:
        assert code((await client.send(each)).status) == "OK"

    got: dict[str, list[bytes]] = {}
    for _ in range(100):
        status, messages, _ = await client.receive("f", batch=2)
        if code(status) == "MESSAGE_NOT_FOUND":
            break
        for each in messages:
            system = each.system_properties
            assert system.message_type == definition.MessageType.FIFO
            assert system.queue_id == queue_of_key(system.message_group.encode(), _QUEUES)
            got.setdefault(system.message_group, []).append(each.body)
        await client.ack(*messages, topic="f")

    assert got == {
        name: [f"{name}/{number}".encode() for number in range(at, 18, 6)]
        for at, name in enumerate(_NAMES)
    }


async def test_a_batch_of_several_groups_is_parted(client: RocketClient) -> None:
    """Each message is in the queue of its own group, and each has an offset there."""
    response = await client.send(*(_fifo(number, name) for number, name in enumerate(_NAMES)))

    assert code(response.status) == "OK"
    assert len(response.entries) == len(_NAMES)


async def test_a_group_with_a_batch_out_waits_and_others_go_on(client: RocketClient) -> None:
    """A slow consumer holds up its message group alone."""
    one, other = _same_queue()
    await client.send(_fifo(1, one))
    _, (first,), _ = await client.receive("f")
    await client.send(_fifo(2, one))
    await client.send(_fifo(3, other))

    _, (got,), _ = await client.receive("f")
    assert got.system_properties.message_group == other
    assert code((await client.receive("f"))[0]) == "MESSAGE_NOT_FOUND"

    waits = asyncio.ensure_future(client.receive("f", wait_s=30))
    await client.ack(first, topic="f")
    _, (last,), _ = await waits
    assert last.body == f"{one}/2".encode()


def _same_queue() -> tuple[str, str]:
    """Return two groups of one queue."""
    by_queue: dict[int, str] = {}
    for number in range(100):
        name = f"order-{number}"
        queue_id = queue_of_key(name.encode(), _QUEUES)
        if queue_id in by_queue:
            return by_queue[queue_id], name
        by_queue[queue_id] = name
    raise AssertionError("a hundred names in as many queues")


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (message(topic="f"), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (message(topic="t", message_group="x"), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (
            message(topic="t", message_group="x", message_type=definition.MessageType.FIFO),
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        ),
        (message(topic="f", message_type=definition.MessageType.FIFO), "ILLEGAL_MESSAGE_GROUP"),
        (_fifo(1, " blank"), "ILLEGAL_MESSAGE_GROUP"),
        (_fifo(1, "x" * 65), "ILLEGAL_MESSAGE_GROUP"),
        (_fifo(1, "line\n"), "ILLEGAL_MESSAGE_GROUP"),
        (_fifo(1, "x", priority=1), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ],
)
async def test_what_does_not_fit_the_type_of_its_topic_is_refused(
    client: RocketClient, group: MemoryGroup, sent: definition.Message, refused: str
) -> None:
    """By the protocol's code; nothing is stored."""
    assert code((await client.send(sent)).status) == refused

    topics = group.nodes[0].engine.state.topics
    assert topics.messages("f") == topics.messages("t") == 0


async def test_messages_of_two_types_are_no_one_request(client: RocketClient) -> None:
    """A topic has one type."""
    response = await client.send(_fifo(1, "x"), message(2, topic="f"))

    assert code(response.status) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


async def test_a_consumer_is_told_that_its_topic_is_fifo_with_a_short_back_off(
    client: RocketClient,
) -> None:
    """Its messages wait for one that failed; where one topic is FIFO, it works in order in all."""
    settings = await _settings(client, "t", "f")

    assert settings.subscription.fifo
    delays = settings.backoff_policy.customized_backoff.next
    assert [each.seconds for each in delays] == list(ORDERED_BACKOFF_S)
    assert settings.backoff_policy.max_attempts == DEFAULT_ATTEMPTS
    assert not (await _settings(client, "t")).subscription.fifo


async def test_an_sql_filter_and_a_second_tag_filter_are_refused_by_name(
    client: RocketClient,
) -> None:
    """What one passes over is done; the other would have had it."""
    await client.send(_fifo(1, "x", tag="a"))
    await client.send(_fifo(2, "x", tag="b"))
    status, _, _ = await client.receive("f", kind=definition.FilterType.SQL, expression="a = 1")
    assert code(status) == "ILLEGAL_FILTER_EXPRESSION"
    assert "FIFO" in status.message

    _, (got,), _ = await client.receive("f", expression="b")
    assert got.system_properties.tag == "b"
    status, _, _ = await client.receive("f", expression="a")
    assert code(status) == "ILLEGAL_FILTER_EXPRESSION"
    assert "one filter" in status.message


async def test_a_poison_message_is_moved_and_its_group_goes_on(
    client: RocketClient, group: MemoryGroup
) -> None:
    """It is moved alone, though the one behind it was handed out as often."""
    await client.send(_fifo(1, "x"))
    await client.send(_fifo(2, "x"))
    state = group.nodes[0].engine.state
    for _ in range(DEFAULT_ATTEMPTS):
        assert len((await client.receive("f"))[1]) == 2
        group.clock_skew_ms += 10_001

    waits = asyncio.ensure_future(client.receive("f", wait_s=30))
    _, (got,), _ = await waits

    assert got.body == b"x/2"
    await eventually(lambda: state.topics.get("%DLQ%g") is not None)
    _, (dead,), _ = await client.receive(topic="%DLQ%g")
    assert dead.body == b"x/1"
    assert dead.system_properties.message_group == "x"


async def test_a_client_forwards_a_message_and_gets_the_next_of_its_group(
    client: RocketClient,
) -> None:
    """As a push consumer does that has tried it often enough by itself."""
    await client.send(_fifo(1, "x"))
    await client.send(_fifo(2, "x"))
    _, (got,), _ = await client.receive("f", batch=1)
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name="g"),
        topic=definition.Resource(name="f"),
        receipt_handle=got.system_properties.receipt_handle,
        message_id=got.system_properties.message_id,
    )
    assert code((await client.call("ForwardMessageToDeadLetterQueue", request)).status) == "OK"

    _, (following,), _ = await client.receive("f")
    assert following.body == b"x/2"
