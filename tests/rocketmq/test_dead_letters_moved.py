"""Dead letters over the protocol: moved by receives and by clients, and worked off by people."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dledger.broker.deliveries import MOVE_AGAIN_MS
from dledger.broker.redelivery import DEFAULT_ATTEMPTS
from dledger.client import AppendStream, Client
from dledger.client.admin_client import AdminClient
from dledger.errors import InvalidArgument, Refused, UnknownGroup
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.services.dead_letter_admin import DeadLetterAdminServicer
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

_DEAD = "%DLQ%g"


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Two nodes; node 0 leads."""
    async with memory_group(2) as group:
        yield group


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def client(request: pytest.FixtureRequest, group: MemoryGroup) -> AsyncIterator[RocketClient]:
    async with RocketClient(group.nodes[request.param].port) as client:
        yield client


@pytest.fixture
async def admin(group: MemoryGroup) -> AsyncIterator[AdminClient]:
    async with AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}") as admin:
        yield admin


async def _forward(
    client: RocketClient, got: definition.Message, handle: str = "", topic: str = "t"
) -> definition.Status:
    system = got.system_properties
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=definition.Resource(name="g"),
        topic=definition.Resource(name=topic),
        receipt_handle=handle or system.receipt_handle,
        message_id=system.message_id,
        delivery_attempt=system.delivery_attempt,
    )
    response = await client.call("ForwardMessageToDeadLetterQueue", request)
    status: definition.Status = response.status
    return status


async def test_a_poison_message_ends_among_the_dead_letters_and_blocks_nobody(
    client: RocketClient, admin: AdminClient, group: MemoryGroup
) -> None:
    """With all that its producer gave it, and where it was."""
    await client.send(message(1, tag="a"))
    _, (got,), _ = await client.receive()
    await admin.set_group("g", max_attempts=2)
    group.clock_skew_ms += 10_001
    await client.receive()
    group.clock_skew_ms += 10_001
    await client.send(message(2, body=b"next"))

    _, received, _ = await client.receive()

    assert [each.body for each in received] == [b"next"]
    topics = group.nodes[0].engine.state.topics
    await eventually(lambda: topics.get(_DEAD) is not None)
    _, (dead,), _ = await client.receive(topic=_DEAD)
    system = dead.system_properties
    assert dead.body == got.body
    assert system.message_id == got.system_properties.message_id
    assert system.tag == "a"
    assert system.dead_letter_queue.topic == "t"
    assert system.dead_letter_queue.message_id == system.message_id


async def test_what_a_dead_leader_was_told_the_next_one_moves(group: MemoryGroup) -> None:
    """Nobody but that leader knew of it."""
    async with (
        RocketClient(group.nodes[0].port) as client,
        AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}") as admin,
    ):
        await client.send(message(1))
        await client.receive()
        await admin.set_group("g", max_attempts=1)
        group.clock_skew_ms += 10_001
        dead_letters = group.nodes[0].parts.messaging.dead_letters
        dead_letters._moving.update(range(64))  # type: ignore[arg-type]  # it has no room
        await client.receive()
        dead_letters._moving.clear()
        group.elect(1)
        assert group.nodes[1].engine.state.topics.get(_DEAD) is None
        group.clock_skew_ms += MOVE_AGAIN_MS + 1

        status, _, _ = await client.receive()

        assert code(status) == "MESSAGE_NOT_FOUND"
        topics = group.nodes[1].engine.state.topics
        await eventually(lambda: topics.get(_DEAD) is not None)


async def test_a_client_forwards_what_it_holds_and_may_say_so_twice(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Its first answer may be lost."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()

    assert code(await _forward(client, got)) == "OK"
    assert code(await _forward(client, got)) == "OK"

    assert group.nodes[0].engine.state.topics.messages(_DEAD) == 1
    group.clock_skew_ms += 60_000
    assert code((await client.receive())[0]) == "MESSAGE_NOT_FOUND"


async def test_forwarding_with_a_stale_or_foreign_handle_is_refused(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The message is another's by now; or the handle is none."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    group.clock_skew_ms += 10_001
    await client.receive()

    assert code(await _forward(client, got)) == "INVALID_RECEIPT_HANDLE"
    assert code(await _forward(client, got, handle="x")) == "INVALID_RECEIPT_HANDLE"
    assert code(await _forward(client, got, topic="no")) == "INVALID_RECEIPT_HANDLE"
    status = await _forward(client, got, topic=_DEAD)
    assert code(status) != "OK"
    assert "dead letters already" in status.message
    assert group.nodes[0].engine.state.topics.get(_DEAD) is None


async def test_a_changed_handle_forwards_and_the_old_one_does_not(client: RocketClient) -> None:
    """ChangeInvisibleDuration answers another."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    handle = got.system_properties.receipt_handle
    changed = await client.change(handle, 20)
    assert changed.receipt_handle != handle

    assert code(await _forward(client, got)) == "INVALID_RECEIPT_HANDLE"
    assert code(await _forward(client, got, handle=changed.receipt_handle)) == "OK"


async def test_settings_say_what_is_set_for_the_group(
    client: RocketClient, admin: AdminClient
) -> None:
    """Push consumers count and wait by them."""
    await client.receive()
    before = await _retries(client)
    await admin.set_group("g", max_attempts=3, backoff_ms=(500, 2_000))

    after = await _retries(client)

    assert before.max_attempts == DEFAULT_ATTEMPTS
    assert after.max_attempts == 3
    delays = [each.ToMilliseconds() for each in after.customized_backoff.next]
    assert delays == [500, 2_000]


async def _retries(client: RocketClient) -> definition.RetryPolicy:
    stream = client.channel.stream_stream(
        "/apache.rocketmq.v2.MessagingService/Telemetry",
        request_serializer=service.TelemetryCommand.SerializeToString,
        response_deserializer=service.TelemetryCommand.FromString,
    )(metadata=client.metadata)
    subscription = definition.Subscription(group=definition.Resource(name="g"))
    settings = definition.Settings(subscription=subscription)
    await stream.write(service.TelemetryCommand(settings=settings))
    answer = await stream.read()
    stream.cancel()
    policy: definition.RetryPolicy = answer.settings.backoff_policy
    return policy


async def test_dead_letters_are_listed_sent_back_and_dropped(
    client: RocketClient, admin: AdminClient, group: MemoryGroup
) -> None:
    """Each once; what was sent back is delivered like any other message."""
    with pytest.raises(UnknownGroup):
        await admin.dead_letters("g")
    await client.send(message(1), message(2))
    _, both, _ = await client.receive()
    with pytest.raises(InvalidArgument, match="has no dead letters"):
        await admin.dead_letters("g")
    for each in both:
        assert code(await _forward(client, each)) == "OK"

    listed = await admin.dead_letters("g", limit=1)
    sent = await admin.resend_dead_letters("g", limit=1)
    dropped = await admin.drop_dead_letters("g")

    (one,) = listed.letters
    assert listed.more
    assert one.moved_from is not None
    assert (one.moved_from.topic, one.moved_from.offset, one.moved_from.attempts) == ("t", 0, 1)
    assert one.message_id == both[0].system_properties.message_id
    assert [(each.offset, each.was_sent_before) for each in sent.letters] == [(0, False)]
    assert [each.offset for each in dropped.letters] == [1]
    assert (await admin.dead_letters("g")).letters == ()
    _, (again,), _ = await client.receive()
    assert again.body == both[0].body
    assert again.system_properties.message_id == both[0].system_properties.message_id
    assert not again.system_properties.HasField("dead_letter_queue")


async def test_what_was_sent_back_is_not_stored_again_if_that_is_repeated(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The leader was gone after it had stored it, and before the dead letter was done."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    await _forward(client, got)
    servicer = DeadLetterAdminServicer(group.nodes[0].engine)
    _, queue = servicer._queue("g")
    dead = await servicer._message(queue, 0)
    letters = pb.DeadLetter(), pb.DeadLetter()

    for letter in letters:
        assert await servicer._send_back(letter, dead, f"{_DEAD}#{1:016x}") == ""

    assert [each.was_sent_before for each in letters] == [False, True]
    assert letters[0].sent_to_offset == letters[1].sent_to_offset
    assert group.nodes[0].engine.state.topics.messages("t") == 2


async def test_no_producer_sends_to_dead_letters(client: RocketClient, group: MemoryGroup) -> None:
    """By whichever way: else a group would have what it never gave up, and nothing says whence."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    await _forward(client, got)
    refusal = f"topic '{_DEAD}' takes no messages of producers"

    answer = await client.send(message(2, topic=_DEAD))
    async with Client(group.addresses[0]) as native:
        with pytest.raises(InvalidArgument, match=refusal):
            await native.append(_DEAD, [b"a"])
    async with AppendStream(group.addresses[0]) as stream:
        with pytest.raises(Refused, match=refusal):
            await stream.append(_DEAD, [b"a"])

    assert (code(answer.status), refusal in answer.status.message) == ("BAD_REQUEST", True)
    assert group.nodes[0].engine.state.topics.messages(_DEAD) == 1


async def test_what_cannot_go_back_stays_and_says_why(
    client: RocketClient, admin: AdminClient
) -> None:
    """Its topic is gone."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    await _forward(client, got)
    await admin.delete_topic(await admin.describe_topic("t"))

    (letter,) = (await admin.resend_dead_letters("g")).letters

    assert letter.kept_because == "topic 't' is not there any more"
    assert len((await admin.dead_letters("g")).letters) == 1
