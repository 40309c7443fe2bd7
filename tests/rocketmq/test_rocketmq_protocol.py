"""The RocketMQ protocol over real gRPC: what SDKs send and what they need back."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from dataclasses import replace
from typing import Any

import pytest

from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.common.limits import CONSUME_BACKOFF_S, FIRST_INVISIBLE_MS
from dledger.rocketmq.telemetry import merged
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.types import MovedFrom, Typed
from tests.requests.memory_group import WAIT_S, MemoryGroup
from tests.requests.rocketmq_client import MESSAGE_ID, RocketClient, code, message
from tests.waiting import eventually


async def test_a_route_makes_the_topic_and_names_its_queues(client: RocketClient) -> None:
    """Auto-creation happens where the SDKs first mention a topic."""
    response = await client.route("orders")

    assert code(response.status) == "OK"
    assert [queue.id for queue in response.message_queues] == list(range(8))
    queue = response.message_queues[3]
    assert queue.topic.name == "orders"
    assert queue.permission == definition.Permission.READ_WRITE
    assert (queue.broker.name, queue.broker.id) == ("orders", 0)
    assert list(queue.accept_message_types) == [definition.MessageType.NORMAL]


async def test_a_namespace_is_part_of_the_name(client: RocketClient, group: MemoryGroup) -> None:
    """The answer repeats the client's own way of naming it."""
    response = await client.route("orders", resource_namespace="shop")

    assert response.message_queues[0].topic == definition.Resource(
        name="orders", resource_namespace="shop"
    )
    assert [topic.name for topic in group.nodes[0].engine.state.topics.all()] == ["shop%orders"]


async def test_every_queue_is_assigned_to_every_push_consumer(client: RocketClient) -> None:
    """Members of a group share messages rather than queues."""
    request = service.QueryAssignmentRequest(
        topic=definition.Resource(name="t"), group=definition.Resource(name="g")
    )

    response = await client.call("QueryAssignment", request)

    assert code(response.status) == "OK"
    assert [row.message_queue.id for row in response.assignments] == list(range(8))


async def test_a_message_comes_back_with_everything_it_was_sent_with(client: RocketClient) -> None:
    """Body, tag, keys, properties, times, digest, place and attempt."""
    sent = message(body=b"hello", tag="blue", keys=["k1", "k2"], trace_context="trace")
    sent.user_properties["colour"] = "dark"
    sent.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    before_ms = time.time_ns() // 1_000_000

    receipt = await client.send(sent)
    status, (got,), order = await client.receive()

    assert code(receipt.status) == "OK"
    assert receipt.entries[0].message_id == MESSAGE_ID(1)
    assert code(status) == "OK"
    assert order == ["status", "delivery_timestamp", "message"]
    assert (got.body, got.topic.name, dict(got.user_properties)) == (
        b"hello",
        "t",
        {"colour": "dark"},
    )
    system = got.system_properties
    assert (system.tag, list(system.keys)) == ("blue", ["k1", "k2"])
    assert (system.message_id, system.born_host) == (MESSAGE_ID(1), "10.0.0.9")
    assert system.trace_context == "trace"
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert before_ms <= system.store_timestamp.ToMilliseconds() < before_ms + 60_000
    assert system.body_digest.type == definition.DigestType.MD5
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()  # noqa: S324
    assert system.message_type == definition.MessageType.NORMAL
    assert system.delivery_attempt == 1
    assert (system.queue_id, system.queue_offset) == (0, receipt.entries[0].offset)


async def test_a_consumer_is_told_what_only_some_types_of_topics_know(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Whatever lies in the log: its group, its time, its priority, and of which it is the rest."""
    moved = MovedFrom(topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5)
    full = Typed(message_group="g", deliver_at_ms=1_700_000_000_123, priority=0, moved_from=moved)
    here = Typed(moved_from=replace(moved, topic="t"))
    messages = [
        Message(message_id=f"id-{row}", body=b"x", typed=typed)
        for row, typed in enumerate((None, full, here))
    ]
    batch = Columns.of(messages)
    await client.send(message(1))  # makes the topic
    await client.receive()  # it is held now
    await group.nodes[0].engine.propose(encode_produce(batch, client_id="c", topic="t", queue_id=1))

    _, told, _ = await client.receive(queue_id=1, batch=3)

    fields = {"message_group", "delivery_timestamp", "priority", "dead_letter_queue"}
    systems = [one.system_properties for one in told]
    said = [fields & {field.name for field, _ in system.ListFields()} for system in systems]
    assert said == [set(), fields, set()]
    assert (systems[1].message_group, systems[1].priority) == ("g", 0)
    assert systems[1].delivery_timestamp.ToMilliseconds() == 1_700_000_000_123
    letter = systems[1].dead_letter_queue
    assert (letter.topic, letter.message_id) == ("o", "id-1")


async def test_a_gzip_body_is_passed_through(client: RocketClient) -> None:
    """What is in it is looked at and not kept; the digest is of the packed bytes."""
    packed = gzip.compress(b"hello")
    await client.send(message(body=packed, body_encoding=definition.Encoding.GZIP))

    _, (got,), _ = await client.receive()

    assert got.body == packed
    assert got.system_properties.body_encoding == definition.Encoding.GZIP


async def test_one_request_may_carry_many_messages(client: RocketClient) -> None:
    """They are stored together, in order, in one queue; each has its own result."""
    response = await client.send(*(message(n, body=b"%d" % n) for n in range(20)))
    _, got, _ = await client.receive(batch=32)

    assert [entry.offset for entry in response.entries] == list(range(20))
    assert [entry.message_id for entry in response.entries] == [MESSAGE_ID(n) for n in range(20)]
    assert [each.body for each in got] == [b"%d" % n for n in range(20)]
    assert len({each.system_properties.queue_id for each in got}) == 1


async def test_a_retried_send_is_stored_once(client: RocketClient, group: MemoryGroup) -> None:
    """The same client and message id get the first result again."""
    first = await client.send(message(1))
    again = await client.send(message(1))
    async with RocketClient(group.nodes[0].port, client_id="client-2") as other:
        await other.send(message(1))

    assert again.entries[0].offset == first.entries[0].offset
    assert group.nodes[0].engine.state.topics.messages("t") == 2


async def test_a_receive_finds_messages_in_any_queue(client: RocketClient) -> None:
    """A simple consumer picks a queue at random and must not wait beside a full one."""
    await client.send(message(1))

    _, got, _ = await client.receive(queue_id=5)

    assert len(got) == 1


async def test_a_push_receive_takes_from_its_own_queue(client: RocketClient) -> None:
    """A push consumer polls every queue."""
    await client.send(message(1))

    status, got, _ = await client.receive(queue_id=5, auto_renew=True)
    assert (code(status), got) == ("MESSAGE_NOT_FOUND", [])
    _, got, _ = await client.receive(queue_id=0, auto_renew=True)
    assert len(got) == 1


async def test_an_empty_receive_costs_the_log_nothing(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Waiting consumers are answered from the state."""
    await client.receive()
    entries = len(group.log)

    status, _, _ = await client.receive(wait_s=0.3)

    assert code(status) == "MESSAGE_NOT_FOUND"
    assert len(group.log) == entries


async def test_a_long_poll_ends_when_a_message_arrives(
    client: RocketClient, group: MemoryGroup
) -> None:
    """At once, not at the end of its time."""
    poll = asyncio.create_task(client.receive(wait_s=2 * WAIT_S))
    await group.polls()
    await client.send(message(1))

    async with asyncio.timeout(WAIT_S):
        _, got, _ = await poll

    assert len(got) == 1


async def test_a_long_poll_ends_when_a_lease_does(client: RocketClient) -> None:
    """The message that nobody acked comes again, with attempt 2."""
    await client.send(message(1))
    await client.receive(invisible_s=0.5)

    _, (again,), _ = await client.receive(wait_s=20)

    assert again.system_properties.delivery_attempt == 2


async def test_one_message_does_not_wake_a_herd(client: RocketClient, group: MemoryGroup) -> None:
    """Ten waiting consumers: one RECEIVE is proposed for one message, and one consumer gets it."""
    polls = [asyncio.create_task(client.receive(wait_s=1.0)) for _ in range(10)]
    await group.polls(10)
    before = group.nodes[0].engine.proposals
    await client.send(message(1))

    answers = await asyncio.gather(*polls)

    assert sorted(len(got) for _, got, _ in answers) == [0] * 9 + [1]
    assert group.nodes[0].engine.proposals - before == 2


async def test_tags_filter_what_a_group_gets(client: RocketClient) -> None:
    """``a || b`` gives those two only."""
    for number, tag in enumerate("abc"):
        await client.send(message(number, tag=tag, body=tag.encode()))

    _, got, _ = await client.receive(expression="c || a")

    assert sorted(each.body for each in got) == [b"a", b"c"]


async def test_an_acked_message_is_gone(client: RocketClient) -> None:
    """An unacked one is not."""
    await client.send(message(1), message(2))
    _, got, _ = await client.receive(invisible_s=0.2)

    response = await client.ack(got[0])

    assert code(response.status) == "OK"
    assert code(response.entries[0].status) == "OK"
    _, again, _ = await client.receive(wait_s=5)
    assert [each.system_properties.message_id for each in again] == [MESSAGE_ID(2)]


async def test_acks_of_one_request_have_their_own_results(client: RocketClient) -> None:
    """One broken handle does not spoil the others."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    broken = definition.Message()
    broken.system_properties.receipt_handle = "nonsense"

    response = await client.ack(got, broken)

    assert code(response.status) == "MULTIPLE_RESULTS"
    codes = [code(entry.status) for entry in response.entries]
    assert codes == ["OK", "INVALID_RECEIPT_HANDLE"]


async def test_a_nack_makes_a_message_come_back_sooner(client: RocketClient) -> None:
    """ChangeInvisibleDuration is how push consumers give back what they failed on."""
    await client.send(message(1))
    _, (got,), _ = await client.receive(invisible_s=600)
    handle = got.system_properties.receipt_handle

    response = await client.change(handle, 0.1)

    assert code(response.status) == "OK"
    assert response.receipt_handle != handle
    _, (again,), _ = await client.receive(wait_s=5)
    assert again.system_properties.delivery_attempt == 2
    stale = await client.change(handle, 1)
    assert code(stale.status) == "INVALID_RECEIPT_HANDLE"


@pytest.mark.found
async def test_a_message_given_back_at_once_comes_at_once(client: RocketClient) -> None:
    """A simple consumer changes its time to 0, which RocketMQ takes."""
    await client.send(message(1))
    _, (got,), _ = await client.receive(invisible_s=3600)

    change = await client.change(got.system_properties.receipt_handle, 0)

    _, (again,), _ = await client.receive()
    assert code(change.status) == "OK"
    assert again.system_properties.delivery_attempt == 2


@pytest.mark.found
async def test_a_push_consumer_that_names_no_delay_gets_that_of_its_settings(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Node.js says 0 whenever its listener fails: at once, for ever, would be a loop."""
    await client.send(message(1))
    delays_s = []
    for delay_s in CONSUME_BACKOFF_S[:3]:
        _, (got,), _ = await client.receive(auto_renew=True)
        await client.change(got.system_properties.receipt_handle, 0)
        group.clock_skew_ms += delay_s * 1000 - 500
        _, early, _ = await client.receive(auto_renew=True)
        group.clock_skew_ms += 501
        delays_s += [delay_s] * (not early)

    assert delays_s == list(CONSUME_BACKOFF_S[:3])


async def test_a_repeated_attempt_is_given_the_same_messages(client: RocketClient) -> None:
    """A push consumer whose answer was lost asks with the same attempt id."""
    await client.send(message(1), message(2))

    _, first, _ = await client.receive(attempt_id="x", auto_renew=True)
    _, again, _ = await client.receive(attempt_id="x", auto_renew=True)

    assert [each.SerializeToString(deterministic=True) for each in first] == [
        each.SerializeToString(deterministic=True) for each in again
    ]


@pytest.mark.contract
async def test_a_live_push_consumer_keeps_its_messages(
    client: RocketClient, group: MemoryGroup
) -> None:
    """They are renewed while its client is heard from; a silent client's are given to others."""
    await client.send(message(1))
    await client.receive(auto_renew=True)
    clients = group.nodes[0].parts.messaging.clients
    await eventually(lambda: bool(clients.arrivals._arrived))

    await clients.renew()
    group.clock_skew_ms += 40_000
    await clients.renew()
    group.clock_skew_ms += 40_000
    status, _, _ = await client.receive(auto_renew=True)
    assert code(status) == "MESSAGE_NOT_FOUND"

    clients._seen["client-1"].at_s -= 3600
    await clients.renew()
    group.clock_skew_ms += 40_000
    async with RocketClient(group.nodes[0].port, client_id="client-2") as other:
        _, (again,), _ = await other.receive(auto_renew=True)
    assert again.system_properties.delivery_attempt == 2


async def test_what_never_arrived_comes_again_though_its_client_lives(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The answer to a RECEIVE was lost, and the next one, as most SDKs make it, is another attempt.

    Nobody knows that the client lacks it: renewed with the rest, it would never come.
    """
    await client.receive(auto_renew=True)  # makes the group
    await client.send(message(1), message(2))
    group.lose_outcomes = 1
    _, (got,), _ = await client.receive(auto_renew=True, batch=1)
    assert got.system_properties.queue_offset == 1
    clients = group.nodes[0].parts.messaging.clients
    await eventually(lambda: bool(clients.arrivals._arrived))

    for _ in range(2):
        await clients.renew()
        group.clock_skew_ms += FIRST_INVISIBLE_MS // 2 + 1
    _, again, _ = await client.receive(auto_renew=True)

    assert [(each.system_properties.queue_offset) for each in again] == [0]
    assert again[0].system_properties.delivery_attempt == 2


async def test_a_nack_is_not_renewed_though_its_client_lives(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The message comes again when the client asked for it, and not when the client is gone."""
    await client.send(message(1))
    _, (got,), _ = await client.receive(auto_renew=True)
    await client.change(got.system_properties.receipt_handle, 10)

    await group.nodes[0].parts.messaging.clients.renew()
    group.clock_skew_ms += 10_001

    _, (again,), _ = await client.receive(auto_renew=True)
    assert again.system_properties.delivery_attempt == 2


async def test_a_parting_client_gives_its_messages_back(
    client: RocketClient, group: MemoryGroup
) -> None:
    """NotifyClientTermination makes them visible at once."""
    await client.send(message(1))
    await client.receive(auto_renew=True)
    request = service.NotifyClientTerminationRequest(group=definition.Resource(name="g"))

    response = await client.call("NotifyClientTermination", request)

    assert code(response.status) == "OK"
    async with RocketClient(group.nodes[0].port, client_id="client-2") as other:
        _, got, _ = await other.receive(auto_renew=True)
    assert len(got) == 1


async def test_heartbeats_are_answered(client: RocketClient) -> None:
    """With or without a group."""
    assert code((await client.call("Heartbeat")).status) == "OK"


@pytest.mark.parametrize(
    "name",
    [
        "SyncLiteSubscription",
    ],
)
async def test_methods_to_come_are_answered_by_name(client: RocketClient, name: str) -> None:
    """NOT_IMPLEMENTED and a sentence, rather than a gRPC error."""
    response = await client.call(name)

    assert code(response.status) == "NOT_IMPLEMENTED"
    assert name in response.status.message


def _telemetry(client: RocketClient) -> Any:
    return client.channel.stream_stream(
        f"/{SERVICE_NAME}/Telemetry",
        request_serializer=service.TelemetryCommand.SerializeToString,
        response_deserializer=service.TelemetryCommand.FromString,
    )(metadata=client.metadata)


async def test_producer_settings_are_answered_at_once(client: RocketClient) -> None:
    """Maximal body size and an exponential back-off of three attempts."""
    stream = _telemetry(client)
    settings = definition.Settings(publishing=definition.Publishing(max_body_size=1))

    await stream.write(service.TelemetryCommand(settings=settings))
    answer = await stream.read()
    stream.cancel()

    assert code(answer.status) == "OK"
    assert answer.settings.publishing.max_body_size == 4 << 20
    assert answer.settings.publishing.validate_message_type
    assert answer.settings.backoff_policy.max_attempts == 3
    assert answer.settings.backoff_policy.exponential_backoff.multiplier > 1
    assert not answer.settings.metric.on


async def test_consumer_settings_are_answered_each_time(client: RocketClient) -> None:
    """FIFO flag, batch size, back-off, and the client's own long-polling timeout if it has one."""
    stream = _telemetry(client)
    settings = definition.Settings(subscription=definition.Subscription())
    settings.subscription.group.name = "g"

    await stream.write(service.TelemetryCommand(settings=settings))
    first = await stream.read()
    settings.subscription.long_polling_timeout.seconds = 7
    await stream.write(service.TelemetryCommand(settings=settings))
    second = await stream.read()
    stream.cancel()

    assert first.settings.subscription.long_polling_timeout.seconds == 20
    assert first.settings.subscription.receive_batch_size == 32
    assert first.settings.subscription.HasField("fifo")
    assert not first.settings.subscription.fifo
    assert first.settings.subscription.group.name == "g"
    assert len(first.settings.backoff_policy.customized_backoff.next) > 3
    assert second.settings.subscription.long_polling_timeout.seconds == 7


@pytest.mark.found
def test_no_client_polls_so_long_that_it_is_slow_to_stop() -> None:
    """The Go SDK waits for the longest poll when a consumer stops, and asks for 30 s by itself."""
    settings = definition.Settings(subscription=definition.Subscription())
    settings.subscription.long_polling_timeout.seconds = 30

    assert merged(settings).subscription.long_polling_timeout.seconds == 20


@pytest.mark.contract
async def test_draining_ends_streams_and_polls(client: RocketClient, group: MemoryGroup) -> None:
    """A node that shuts down does not wait for its clients."""
    stream = _telemetry(client)
    await stream.write(service.TelemetryCommand(settings=definition.Settings()))
    await stream.read()
    poll = asyncio.create_task(client.receive(wait_s=2 * WAIT_S))
    await group.polls()

    group.nodes[0].tasks.drain()

    async with asyncio.timeout(WAIT_S):
        status, _, _ = await poll
        assert not await stream.read()
    assert code(status) == "MESSAGE_NOT_FOUND"
    assert (await stream.code()).name == "OK"


async def test_who_reads_an_empty_topic_is_seen_in_the_log(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Once an hour, so that its consumer group is not let go as one that nobody uses."""
    await client.route("t")
    await client.receive()
    written, groups = [len(group.log)], group.nodes[0].engine.state.groups

    for skew_ms in (0, 3_600_000, 3_600_000):
        group.clock_skew_ms += skew_ms
        for _ in range(2):
            await client.receive()
        written.append(len(group.log))

    assert written == [written[0] + more for more in (0, 0, 1, 2)]
    assert groups.was_used("g", group.now_ms(), within_ms=60_000)
