"""Many calls at once, and large ones: each gets its own answer, whole, whichever server it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.calls.rules import Ask, Leave
from dledger.client import Client, Record
from dledger.common.limits import MAX_BODY_BYTES
from dledger.errors import DiskFull, DledgerError, UnknownTopic
from dledger.requests.config import RequestConfig
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.requests import SMALL_BYTES
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from dledger.server.client_certificate import self_signed
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import MESSAGE_ID, RocketClient, code, message
from tests.waiting import eventually

pytestmark = pytest.mark.contract
AT_ONCE = 100


@dataclass
class World:
    """Two nodes of which the first leads, and a client of one of them."""

    group: MemoryGroup
    at: int
    client: RocketClient

    @property
    def address(self) -> str:
        return self.group.addresses[self.at]

    async def send_all(self, numbers: range, client: RocketClient | None = None) -> list[Any]:
        """Send a message of each number at once; return the answers."""
        client = client or self.client
        sends = [client.send(message(n, body=b"%d" % n)) for n in numbers]
        return await asyncio.gather(*sends)


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def world(request: pytest.FixtureRequest, client_server: str) -> AsyncIterator[World]:
    """The client is at the leader, or at a follower; its topic is there."""
    del client_server
    async with (
        memory_group(2, RequestConfig(default_queues=1)) as group,
        RocketClient(group.nodes[request.param].port) as client,
    ):
        await client.send(message(0, body=b"0"))
        yield World(group, request.param, client)


async def test_calls_of_one_connection_have_their_own_answers(world: World) -> None:
    """Each message is stored once, at the place that its sender was told."""
    answers = await world.send_all(range(1, AT_ONCE))

    stored = await world.group.bodies("t")
    assert len(stored) == AT_ONCE
    for number, answer in enumerate(answers, 1):
        (entry,) = answer.entries
        assert (code(answer.status), entry.message_id) == ("OK", MESSAGE_ID(number))
        assert stored[entry.offset] == b"%d" % number


async def test_calls_of_many_connections_have_their_own_answers(world: World) -> None:
    clients = [RocketClient(world.group.nodes[world.at].port, f"client-{n}") for n in range(5)]
    ranges = [range(1 + 10 * n, 11 + 10 * n) for n in range(5)]
    work = [world.send_all(r, client) for r, client in zip(ranges, clients, strict=True)]

    answers = await asyncio.gather(*work)

    assert {code(each.status) for some in answers for each in some} == {"OK"}
    assert sorted(map(int, await world.group.bodies("t"))) == list(range(51))
    for client in clients:
        await client.channel.close()


async def test_what_is_wrong_with_one_call_is_no_matter_to_those_beside_it(world: World) -> None:
    """Bad topics, empty bodies and ids of other messages among good ones."""
    wrong = [message(1, topic="no topic"), message(2, body=b""), message(3, message_id="x" * 300)]
    calls = [world.client.send(each) for n in range(10) for each in (message(10 + n), *wrong)]

    answers = await asyncio.gather(*calls)

    codes = [code(each.status) for each in answers]
    assert codes[::4] == ["OK"] * 10
    assert set(codes[1::4] + codes[2::4] + codes[3::4]) == {
        "ILLEGAL_TOPIC",
        "ILLEGAL_MESSAGE_ID",
        "MESSAGE_BODY_EMPTY",
    }


async def test_a_lost_outcome_is_nobodys_error(world: World) -> None:
    """Each message is stored once, and all senders are told where."""
    world.group.lose_outcomes = 3

    answers = await world.send_all(range(1, 31))

    assert {code(each.status) for each in answers} == {"OK"}
    assert sorted(map(int, await world.group.bodies("t"))) == list(range(31))


async def test_an_election_in_the_midst_is_nobodys_error(world: World) -> None:
    """To the other node, and back."""
    sends = [asyncio.ensure_future(world.send_all(range(1 + n, 101, 4))) for n in range(4)]
    for leader in (None, 1, 0):
        await asyncio.sleep(0.01)
        world.group.elect(leader)

    answers = [each for some in sends for each in await some]

    assert {code(each.status) for each in answers} == {"OK"}
    assert sorted(map(int, await world.group.bodies("t"))) == list(range(101))


async def test_a_refused_command_is_told_to_each_of_its_calls(world: World) -> None:
    world.group.refuse = DiskFull("the disk has 0 bytes free")

    answers = await world.send_all(range(1, 21))

    assert {code(each.status) for each in answers} == {"INTERNAL_SERVER_ERROR"}
    assert {each.status.message for each in answers} == {"the disk has 0 bytes free"}


async def test_acks_at_once_have_their_own_outcomes(world: World) -> None:
    """One of a handle that is good for nothing among them."""
    await world.send_all(range(1, 33))
    _, messages, _ = await world.client.receive(batch=32)
    strange = messages[0].__class__()
    strange.CopyFrom(messages[0])
    strange.system_properties.receipt_handle = "strange"

    answers = await asyncio.gather(*(world.client.ack(each) for each in [*messages, strange]))

    codes = [code(each.status) for each in answers]
    assert codes == ["OK"] * 32 + ["INVALID_RECEIPT_HANDLE"]
    assert world.group.nodes[0].engine.state.groups.backlog("g", "t").held == 0


async def test_polls_sends_and_telemetry_share_a_connection(world: World) -> None:
    """None waits for another: the polls of five queues' worth are answered by what is sent."""
    await world.client.receive()
    async with world.client.telemetry():
        polls = [asyncio.ensure_future(world.client.receive(wait_s=60, batch=1)) for _ in range(5)]
        await world.group.polls(5, at=0)
        await world.send_all(range(1, 6))
        got = [messages[0].body for _, messages, _ in await asyncio.gather(*polls)]

    assert sorted(got) == [b"1", b"2", b"3", b"4", b"5"]


async def test_the_largest_message_goes_in_and_comes_out(world: World) -> None:
    """More than a stream's window, both ways."""
    body = bytes(range(256)) * (MAX_BODY_BYTES // 256 - 4)  # an SDK's client takes 4 MiB in all

    sent = await world.client.send(message(1, body=body))
    _, messages, _ = await world.client.receive()

    assert code(sent.status) == "OK"
    assert [len(each.body) for each in messages] == [1, len(body)]
    assert messages[1].body == body


async def test_an_answer_of_many_messages_comes_whole_and_in_order(world: World) -> None:
    """Two MiB in thirty answers of one call."""
    sends = [world.client.send(message(n, body=b"%d" % n * 40_000)) for n in range(10, 40)]
    await asyncio.gather(*sends)

    status, messages, order = await world.client.receive(batch=32)

    assert code(status) == "OK"
    assert order == ["status", "delivery_timestamp", *["message"] * 31]
    assert [each.system_properties.queue_offset for each in messages] == list(range(31))
    assert sorted(each.body for each in messages[1:]) == [b"%d" % n * 40_000 for n in range(10, 40)]


async def test_a_client_that_does_not_read_holds_up_nobody_else(world: World) -> None:
    """Nor does it make its server hold all that it asked for; it gets all once it reads."""
    async with Client(world.address) as client:
        for n in range(24):
            record = Record(message_id=f"large-{n}", body=bytes(1 << 20))
            await client.append("large", [record])
    call = world.client.channel.unary_stream("/dledger.v1.Ledger/Read")(
        pb.ReadRequest(topic="large").SerializeToString(), timeout=60
    )
    first = await call.read()

    answers = await world.send_all(range(1, 21))

    assert {code(each.status) for each in answers} == {"OK"}
    size = len(first)
    while (raw := await call.read()) is not grpc.aio.EOF:
        size += len(raw)
    assert size > 24 << 20


async def test_a_request_that_is_too_large_ends_alone(world: World) -> None:
    """It is refused in the protocol's words, and its connection goes on."""
    too_large = bytes(SMALL_BYTES + 1)

    refused, sent = await asyncio.gather(
        world.client.call("Heartbeat", too_large), world.client.send(message(1))
    )

    assert code(refused.status) == "PAYLOAD_TOO_LARGE"
    assert code(sent.status) == "OK"
    parts = [node.parts for node in world.group.nodes]
    await eventually(lambda: not any(each.context.admission.taken for each in parts))


async def test_a_refusal_has_its_name_in_the_trailers(world: World) -> None:
    """So the client raises what the leader raised, through whatever came between."""
    async with Client(world.address) as client:
        with pytest.raises(UnknownTopic, match="topic 'nowhere' does not exist"):
            await anext(client.read("nowhere", 0))


async def test_headers_up_to_their_bound_arrive_and_more_end_alone(world: World) -> None:
    """Of the 4 KiB that a call keeps 3; a MiB ends its call, and no other one."""
    method = world.client.channel.unary_unary(f"/{SERVICE_NAME}/Heartbeat")
    assert await method(b"", metadata=(*world.client.metadata, ("x-mq-more", "m" * 3_000)))

    with pytest.raises(grpc.aio.AioRpcError):
        await method(b"", metadata=(*world.client.metadata, ("x-mq-more", "m" * (1 << 20))))

    assert await method(b"", metadata=world.client.metadata)


async def test_bytes_in_metadata_arrive_as_they_were(world: World) -> None:
    """Names that end in -bin, as base64, which nobody here reads."""
    rule = Seeing(world.group, world.at)
    method = world.client.channel.unary_unary(f"/{SERVICE_NAME}/Heartbeat")

    await method(b"", metadata=(*world.client.metadata, ("x-mq-raw-bin", b"\x00\xff\x10")))

    assert rule.callers[-1].fields[b"x-mq-raw-bin"] == b"AP8Q"


async def test_a_node_is_told_alike_who_calls(world: World) -> None:
    """Id, address, the connection's line and the deadline; at the leader those of the client."""
    here, leader = Seeing(world.group, world.at), Seeing(world.group, 0)

    await world.client.call("Heartbeat", timeout_s=1_000)

    for rule in (here, leader):
        assert rule.callers[-1].client_id == "client-1"
        assert rule.callers[-1].host == "ipv4:127.0.0.1"
        assert rule.callers[-1].line.startswith("ipv4:127.0.0.1:")
        assert not rule.callers[-1].tls
        assert rule.callers[-1].remaining_s() > 100  # ten seconds, if a client says nothing
    assert here.callers[-1].line == leader.callers[-1].line
    assert leader.callers[-1].forwarded is (world.at == 1)


async def test_tls_is_served_and_told(client_server: str) -> None:
    """What is no TLS gets no answer there, nor does who trusts another certificate."""
    del client_server
    request = service.SendMessageRequest(messages=[message(1)])
    pair, other = self_signed("localhost", "127.0.0.1"), self_signed("localhost", "127.0.0.1")
    async with memory_group(2, tls=(pair.key, pair.chain)) as group:
        rule = Seeing(group, 0)
        for node in group.nodes:
            async with _secure(node.tls_port, pair.chain) as channel:
                call = channel.unary_unary(f"/{SERVICE_NAME}/SendMessage")
                assert await call(
                    request.SerializeToString(),
                    metadata=(("x-mq-client-id", "client-1"),),
                    timeout=30,
                )
            assert rule.callers[-1].tls
        async with _secure(group.nodes[0].tls_port, other.chain) as channel:
            await _is_refused(channel)
        address = f"localhost:{group.nodes[0].tls_port}"
        async with grpc.aio.insecure_channel(address) as channel:
            await _is_refused(channel)


class Seeing:
    """A rule that notes who calls."""

    def __init__(self, group: MemoryGroup, at: int) -> None:
        self.callers: list[Any] = []
        group.nodes[at].parts.context.rules.append(self)

    def admit(self, ask: Ask) -> Leave | None:
        self.callers.append(ask.caller)
        return None

    def refused(self, ask: Ask, error: DledgerError) -> None:
        """Note nothing."""


def _secure(port: int, trusted: bytes) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(trusted)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def _is_refused(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(f"/{SERVICE_NAME}/Heartbeat")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(b"", timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
