"""Bad input of clients: each line has the protocol's own code and a sentence."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from dledger.checks import messages as rules
from dledger.client import Client
from dledger.errors import DiskFull, Overloaded
from dledger.requests.config import RequestConfig
from dledger.rocketmq.telemetry import MAX_STREAMS
from dledger.rpc.requests import SMALL_BYTES, TELEMETRY_BYTES
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.server.config import GRPC
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message


@pytest.fixture
async def strict_client() -> AsyncIterator[RocketClient]:
    """A client of a node that creates nothing on demand."""
    async with (
        memory_group(config=RequestConfig(auto_create_topics=False)) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        yield client


async def test_an_empty_body_is_refused(client: RocketClient) -> None:
    """MESSAGE_BODY_EMPTY."""
    assert code((await client.send(message(body=b""))).status) == "MESSAGE_BODY_EMPTY"


async def test_a_body_over_four_mebibytes_is_refused(client: RocketClient) -> None:
    """MESSAGE_BODY_TOO_LARGE; one byte less is stored."""
    limit = 4 << 20

    refused = await client.send(message(1, body=bytes(limit + 1)))
    stored = await client.send(message(2, body=bytes(limit)))

    assert code(refused.status) == "MESSAGE_BODY_TOO_LARGE"
    assert str(limit) in refused.status.message
    assert code(stored.status) == "OK"


async def test_an_unknown_topic_is_named_when_creation_is_off(strict_client: RocketClient) -> None:
    """TOPIC_NOT_FOUND for routes, sends and receives."""
    route = await strict_client.route("nowhere")
    send = await strict_client.send(message(topic="nowhere"))
    status, _, _ = await strict_client.receive("nowhere")

    for answer in (route.status, send.status, status):
        assert code(answer) == "TOPIC_NOT_FOUND"
        assert "'nowhere'" in answer.message


async def test_a_group_is_made_on_its_first_use_though_topics_are_not() -> None:
    """AutoCreateTopics is about topics: a consumer must not need an administrator.

    found: sdks 4.
    """
    async with (
        memory_group(config=RequestConfig(auto_create_topics=False)) as group,
        RocketClient(group.nodes[0].port) as client,
        Client(group.addresses[0]) as native,
    ):
        await native.create_topic("t", queues=1)
        request = service.QueryAssignmentRequest(
            topic=definition.Resource(name="t"), group=definition.Resource(name="fresh")
        )
        assignment = await client.call("QueryAssignment", request)
        await client.send(message(1))
        status, messages, _ = await client.receive("t", group="fresh")

        assert code(assignment.status) == code(status) == "OK"
        assert len(messages) == 1
        assert group.nodes[0].engine.state.groups.exists("fresh")


@pytest.mark.parametrize("handle", ["", "nonsense", "AAAA", "ä", "x" * 5000])
async def test_a_malformed_receipt_handle_is_refused(client: RocketClient, handle: str) -> None:
    """INVALID_RECEIPT_HANDLE, for acks and changes alike."""
    broken = definition.Message()
    broken.system_properties.receipt_handle = handle

    assert code((await client.ack(broken)).status) == "INVALID_RECEIPT_HANDLE"
    assert code((await client.change(handle, 1)).status) == "INVALID_RECEIPT_HANDLE"


async def test_a_receipt_handle_of_another_group_is_refused(client: RocketClient) -> None:
    """A handle is good for the group it was given to, whose message it still is."""
    await client.send(message(1))
    _, (got,), _ = await client.receive()
    await client.receive(group="h")

    assert code((await client.ack(got, group="h")).status) == "INVALID_RECEIPT_HANDLE"
    assert code((await client.ack(got)).status) == "OK"


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 128, "a/b"])
async def test_illegal_names_are_refused(client: RocketClient, name: str) -> None:
    """ILLEGAL_TOPIC and ILLEGAL_CONSUMER_GROUP."""
    assert code((await client.route(name)).status) == "ILLEGAL_TOPIC"
    assert code((await client.send(message(topic=name))).status) == "ILLEGAL_TOPIC"
    status, _, _ = await client.receive(group=name)
    assert code(status) == "ILLEGAL_CONSUMER_GROUP"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ({"message_id": ""}, "ILLEGAL_MESSAGE_ID"),
        ({"message_id": "x" * 256}, "ILLEGAL_MESSAGE_ID"),
        ({"tag": "a|b"}, "ILLEGAL_MESSAGE_TAG"),
        ({"tag": " a"}, "ILLEGAL_MESSAGE_TAG"),
        ({"tag": "a\x00"}, "ILLEGAL_MESSAGE_TAG"),
        ({"keys": ["a", " "]}, "ILLEGAL_MESSAGE_KEY"),
        ({"keys": ["x" * 70_000]}, "MESSAGE_PROPERTIES_TOO_LARGE"),
        ({"body_encoding": 99}, "BAD_REQUEST"),
        ({"message_type": definition.MessageType.FIFO}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"message_type": definition.MessageType.DELAY}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (
            {"message_type": definition.MessageType.TRANSACTION},
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        ),
        ({"message_type": 77}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"message_group": "g"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"lite_topic": "l"}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"priority": 1}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"delivery_timestamp": {"seconds": 1}}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (
            {"body_digest": {"type": definition.DigestType.MD5, "checksum": "00"}},
            "MESSAGE_CORRUPTED",
        ),
        (
            {"body_digest": {"type": definition.DigestType.SHA1, "checksum": "00"}},
            "MESSAGE_CORRUPTED",
        ),
        (
            {"body_digest": {"type": definition.DigestType.CRC32, "checksum": "00"}},
            "MESSAGE_CORRUPTED",
        ),
    ],
    ids=str,
)
async def test_messages_that_break_a_rule_are_refused(
    client: RocketClient, group: MemoryGroup, system: dict[str, Any], expected: str
) -> None:
    """Nothing of the kind is stored, or silently taken for a NORMAL message."""
    response = await client.send(message(**system))

    assert code(response.status) == expected
    assert group.nodes[0].engine.state.topics.get("t") is None


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (definition.DigestType.MD5, "841a2d689ad86bd1611447453c22c6fc"),
        (definition.DigestType.SHA1, "02083f4579e08a612425c0c1a17ee47add783b94"),
        (definition.DigestType.CRC32, "DBA80BB2"),
        (definition.DigestType.CRC32, "dba80bb2"),
    ],
)
async def test_a_correct_digest_is_accepted_in_any_spelling(
    client: RocketClient, kind: int, checksum: str
) -> None:
    """SDKs disagree on upper and lower case."""
    response = await client.send(message(body_digest={"type": kind, "checksum": checksum}))

    assert code(response.status) == "OK"


async def test_blank_and_too_many_properties_are_refused(client: RocketClient) -> None:
    """ILLEGAL_MESSAGE_PROPERTY_KEY and MESSAGE_PROPERTIES_TOO_LARGE."""
    blank, many = message(1), message(2)
    blank.user_properties[" "] = "x"
    for number in range(200):
        many.user_properties[f"p{number}"] = "x"

    assert code((await client.send(blank)).status) == "ILLEGAL_MESSAGE_PROPERTY_KEY"
    assert code((await client.send(many)).status) == "MESSAGE_PROPERTIES_TOO_LARGE"


async def test_a_request_without_messages_or_for_two_topics_is_refused(
    client: RocketClient,
) -> None:
    """BAD_REQUEST."""
    two = await client.send(message(1, topic="a"), message(2, topic="b"))

    assert code((await client.send()).status) == "BAD_REQUEST"
    assert code(two.status) == "BAD_REQUEST"


async def test_a_request_with_too_much_in_it_is_refused(
    client: RocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PAYLOAD_TOO_LARGE: the whole becomes one entry of the log."""
    monkeypatch.setattr(rules, "MAX_REQUEST_BYTES", 10)

    response = await client.send(message(1, body=b"123456"), message(2, body=b"123456"))

    assert code(response.status) == "PAYLOAD_TOO_LARGE"


async def test_a_client_must_say_who_it_is(group: MemoryGroup) -> None:
    """CLIENT_ID_REQUIRED: idempotency is scoped by the client id."""
    async with RocketClient(group.nodes[0].port, client_id="") as client:
        assert code((await client.send(message(1))).status) == "CLIENT_ID_REQUIRED"
        status, _, _ = await client.receive()
        assert code(status) == "CLIENT_ID_REQUIRED"


@pytest.mark.parametrize("expression", ["a |", "a || ", "||"])
async def test_a_broken_filter_is_refused(client: RocketClient, expression: str) -> None:
    """ILLEGAL_FILTER_EXPRESSION."""
    status, _, _ = await client.receive(expression=expression)

    assert code(status) == "ILLEGAL_FILTER_EXPRESSION"


async def test_a_broken_sql_filter_is_refused_by_name(client: RocketClient) -> None:
    """Taking it for tags would deliver the wrong messages."""
    status, _, _ = await client.receive(expression="a >", kind=definition.FilterType.SQL)

    assert code(status) == "ILLEGAL_FILTER_EXPRESSION"
    assert "SQL92" in status.message


@pytest.mark.parametrize("invisible_s", [0, -1, 13 * 3600])
async def test_an_absurd_invisible_time_is_refused(
    client: RocketClient, invisible_s: float
) -> None:
    """ILLEGAL_INVISIBLE_TIME, for receives; a change may be to 0, which is now."""
    await client.send(message(1))
    status, _, _ = await client.receive(invisible_s=invisible_s)
    _, (got,), _ = await client.receive()
    change = await client.change(got.system_properties.receipt_handle, invisible_s)

    assert code(status) == "ILLEGAL_INVISIBLE_TIME"
    assert code(change.status) == ("ILLEGAL_INVISIBLE_TIME" if invisible_s else "OK")


async def test_a_receive_of_nothing_or_from_nowhere_is_refused(client: RocketClient) -> None:
    """A batch size below 1 and a queue that the topic does not have."""
    nothing, _, _ = await client.receive(batch=0)
    nowhere, _, _ = await client.receive(queue_id=8)

    assert code(nothing) == code(nowhere) == "BAD_REQUEST"


async def test_bytes_that_are_no_request_are_refused(client: RocketClient) -> None:
    """Every method answers BAD_REQUEST to bytes it cannot parse."""
    for name in ("QueryRoute", "SendMessage", "AckMessage", "Heartbeat"):
        assert code((await client.call(name, b"\xff\xff\xff")).status) == "BAD_REQUEST"
    receive = client.channel.unary_stream(f"/{SERVICE_NAME}/ReceiveMessage")
    answers = [raw async for raw in receive(b"\xff\xff", metadata=client.metadata)]
    status = service.ReceiveMessageResponse.FromString(answers[0]).status
    assert code(status) == "BAD_REQUEST"
    telemetry = client.channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")()
    await telemetry.write(b"\xff\xff")
    status = service.TelemetryCommand.FromString(await telemetry.read()).status
    telemetry.cancel()
    assert code(status) == "BAD_REQUEST"


async def test_a_full_disk_is_told_from_other_failures(
    client: RocketClient, group: MemoryGroup
) -> None:
    """INTERNAL_SERVER_ERROR and the disk's own sentence."""
    await client.route("t")
    group.refuse = DiskFull("the disk has 0 bytes free")

    response = await client.send(message(1))

    assert code(response.status) == "INTERNAL_SERVER_ERROR"
    assert "0 bytes free" in response.status.message


async def test_lasting_overload_is_the_only_too_many_requests(
    client: RocketClient, group: MemoryGroup
) -> None:
    """It is waited out first, for most of the caller's deadline."""
    await client.route("t")
    group.refuse = Overloaded("64 MiB are waiting")

    response = await client.send(message(1), timeout_s=4.0)

    assert code(response.status) == "TOO_MANY_REQUESTS"


async def test_a_mistake_of_ours_is_an_internal_error_and_logged(
    client: RocketClient, group: MemoryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a status rather than a broken call; the log has the details."""
    await client.route("t")
    group.nodes[0].parts.context.engine.submit = None  # type: ignore[assignment]  # such a mistake

    response = await client.send(message(1))

    assert code(response.status) == "INTERNAL_ERROR"
    assert "SendMessage failed" in caplog.text


@pytest.mark.found
@pytest.mark.parametrize("at", [0, 1], ids=["leader", "follower"])
async def test_a_request_larger_than_its_method_has_is_refused(at: int) -> None:
    """found: S2. By its size, at whichever node: nothing is made of it, nor is it sent on."""
    raw = bytes(SMALL_BYTES + 1)
    async with (
        memory_group(2) as group,
        RocketClient(group.nodes[at].port) as client,
    ):
        ack = await client.call("AckMessage", raw)
        beat = await client.call("Heartbeat", raw)
        method = client.channel.unary_stream(f"/{SERVICE_NAME}/ReceiveMessage")
        (answer,) = [each async for each in method(raw, metadata=client.metadata)]
        receive = service.ReceiveMessageResponse.FromString(answer)

    for answer in (ack, beat, receive):
        assert code(answer.status) == "PAYLOAD_TOO_LARGE"
        assert str(SMALL_BYTES) in answer.status.message


@pytest.mark.found
@pytest.mark.contract
async def test_telemetry_takes_small_commands_only(client: RocketClient) -> None:
    """found: S2. One of 19 MiB took 1.4 GiB and the lead."""
    call = client.channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")()
    with contextlib.suppress(grpc.aio.AioRpcError):  # the answer may come before it is written
        await call.write(bytes(TELEMETRY_BYTES + 1))

    answer = service.TelemetryCommand.FromString(await call.read())

    assert code(answer.status) == "PAYLOAD_TOO_LARGE"
    assert await call.read() is grpc.aio.EOF


@pytest.mark.found
@pytest.mark.contract
async def test_one_connection_has_so_many_telemetry_streams(client: RocketClient) -> None:
    """found: S4. The next one is told to come later, and the others go on."""
    method = client.channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")
    settings = service.TelemetryCommand(settings=definition.Settings()).SerializeToString()
    calls = [method() for _ in range(MAX_STREAMS)]
    for call in calls:
        await call.write(settings)
        assert code(service.TelemetryCommand.FromString(await call.read()).status) == "OK"

    refused = service.TelemetryCommand.FromString(await method().read())

    assert code(refused.status) == "TOO_MANY_REQUESTS"


@pytest.mark.found
@pytest.mark.contract
async def test_what_is_not_implemented_is_answered_unread(
    client: RocketClient, client_server: str
) -> None:
    """found: S2. Also while its request is on its way: 20 MiB of it would be kept until then.

    Our own server reads it, since it refuses what is over 256 KiB by its length.
    """
    method = client.channel.stream_unary(f"/{SERVICE_NAME}/SyncLiteSubscription")
    call = method(timeout=30)  # and nothing is written
    if client_server != GRPC:
        await call.write(b"")
        await call.done_writing()

    answer = service.SyncLiteSubscriptionResponse.FromString(await call)

    assert code(answer.status) == "NOT_IMPLEMENTED"


@pytest.mark.found
async def test_refused_client_ids_are_not_remembered(group: MemoryGroup) -> None:
    """found: S13. 10,000 of them were 100 MiB."""
    clients = group.nodes[0].parts.messaging.clients
    # a longer one the door refuses, with all headers that it would keep
    for client_id in ("x" * 3000, "x" * 256, "good"):
        async with RocketClient(group.nodes[0].port, client_id=client_id) as client:
            await client.call("Heartbeat")

    assert list(clients._seen) == ["good"]
