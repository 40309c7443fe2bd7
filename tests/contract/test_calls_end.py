"""How a call ends before its answer: by its deadline, its client, its connection, its server.

Whichever server it is, nothing of the call is left in the node, nor in the leader behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.requests.config import RequestConfig
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.server.node_report import load_of
from tests.requests.memory_group import SOON_S, MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

pytestmark = pytest.mark.contract
LEADER = pytest.mark.parametrize("world", [pytest.param(0, id="leader")], indirect=True)
"""Of what a follower refuses, or cannot know."""
PRODUCE = "/dledger.v1.Ledger/Produce"
TELEMETRY = f"/{SERVICE_NAME}/Telemetry"


@dataclass
class World:
    """Two nodes of which the first leads, and a client of one of them."""

    group: MemoryGroup
    at: int
    client: RocketClient

    def held(self) -> list[int]:
        """Return what requests hold at the nodes; all zero while there are none."""
        parts = [node.parts for node in self.group.nodes]
        loads = [load_of(each) for each in parts]
        return [
            *(each.context.admission.taken for each in parts),
            *(load.waiting_polls for load in loads),
            *(load.held_request_bytes for load in loads),
        ]

    async def nothing_is_left(self) -> None:
        await eventually(lambda: not any(self.held()))

    def stop_the_log(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Let no command commit until what is returned is called."""
        committed = self.group._commit_batch
        monkeypatch.setattr(self.group, "_commit_batch", lambda: None)

        def go_on() -> None:
            monkeypatch.setattr(self.group, "_commit_batch", committed)
            committed()

        return go_on

    async def taken(self) -> None:
        """Return when a command of a request waits at the leader."""
        await eventually(lambda: bool(self.group._batch))


@pytest.fixture(params=[0, 1], ids=["leader", "follower"])
async def world(request: pytest.FixtureRequest, client_server: str) -> AsyncIterator[World]:
    """The client is at the leader, or at a follower; its topic is there."""
    del client_server
    async with (
        memory_group(2, RequestConfig(default_queues=1)) as group,
        RocketClient(group.nodes[request.param].port) as client,
    ):
        await client.send(message(0))
        yield World(group, request.param, client)


async def test_a_request_without_a_leader_ends_at_its_deadline(world: World) -> None:
    """With an answer that says so, or where the machine is slow with its client's own status."""
    world.group.elect(None)

    ended = await _ended(world.client.send(message(1), timeout_s=SOON_S))

    assert isinstance(ended, grpc.StatusCode) or code(ended.status) != "OK"
    await world.nothing_is_left()


async def test_what_waits_for_a_message_ends_at_its_clients_deadline(world: World) -> None:
    """A poll, though it asked for more time; and a reader, of whose answers some came."""
    await world.client.receive()
    reader = world.client.channel.unary_stream("/dledger.v1.Ledger/Read")(
        pb.ReadRequest(topic="t", follow=True).SerializeToString(), timeout=SOON_S
    )
    assert await reader.read()

    poll = await _ended(world.client.receive(wait_s=60, timeout_s=SOON_S))

    assert isinstance(poll, grpc.StatusCode) or code(poll[0]) == "MESSAGE_NOT_FOUND"
    assert isinstance(await _ended(_read_on(reader)), grpc.StatusCode)
    await world.nothing_is_left()


async def test_a_request_that_is_cancelled_gives_back_what_it_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its command waits; the message may be stored all the same."""
    go_on = world.stop_the_log(monkeypatch)
    sending = asyncio.ensure_future(world.client.send(message(1)))
    await world.taken()
    assert any(world.held())

    sending.cancel()

    await world.nothing_is_left()
    go_on()
    assert code((await world.client.send(message(2))).status) == "OK"


async def test_a_poll_that_is_cancelled_waits_no_longer(world: World) -> None:
    await world.client.receive()
    poll = asyncio.ensure_future(world.client.receive(wait_s=60))
    await world.group.polls(at=0)

    poll.cancel()

    await world.nothing_is_left()


async def test_a_reader_that_is_cancelled_follows_no_longer(world: World) -> None:
    call = world.client.channel.unary_stream("/dledger.v1.Ledger/Read")(
        pb.ReadRequest(topic="t", follow=True).SerializeToString()
    )
    assert await call.read()
    await world.group.polls(at=world.at)

    call.cancel()

    await world.nothing_is_left()


async def test_telemetry_that_is_cancelled_runs_no_longer(world: World) -> None:
    """The node forgets which connection is its client's own."""
    telemetry = world.group.nodes[world.at].parts.messaging.telemetry
    async with world.client.telemetry():
        ((stream,),) = telemetry._of_client.values()
        peer = stream.peer
        assert telemetry.runs_on("client-1", peer)

    await eventually(lambda: not telemetry.runs_on("client-1", peer))


@LEADER
async def test_a_producers_stream_that_is_cancelled_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the outcome of its batch is known, which waits."""
    world.stop_the_log(monkeypatch)
    production = world.group.nodes[0].parts.context.production
    call = world.client.channel.stream_stream(PRODUCE)()
    await call.write(_batches(1))
    await world.taken()

    call.cancel()

    for _, result in world.group._batch:
        result.cancel()
    await eventually(lambda: production.taken == 0)


async def test_a_connection_that_ends_takes_its_calls_along(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that waits, a poll and Telemetry; another connection is served on."""
    await world.client.receive()
    gone = RocketClient(world.group.nodes[world.at].port, "client-2")
    calls = [asyncio.ensure_future(gone.receive(wait_s=60))]
    await world.group.polls(at=0)
    go_on = world.stop_the_log(monkeypatch)
    calls.append(asyncio.ensure_future(gone.receive(queue_id=0, wait_s=60, group="g")))
    sending = asyncio.ensure_future(gone.send(message(1)))
    await world.taken()

    await gone.channel.close()

    await asyncio.gather(sending, *calls, return_exceptions=True)
    await world.nothing_is_left()
    go_on()
    assert code((await world.client.send(message(2))).status) == "OK"


@LEADER
async def test_a_stream_whose_client_has_sent_all_is_answered_to_the_end(world: World) -> None:
    """Half-close: each batch has its answer, then the call ends well."""
    call = world.client.channel.stream_stream(PRODUCE)()
    for number in range(20):
        await call.write(_batches(number))
    await call.done_writing()

    answered: list[int] = []
    while (raw := await call.read()) is not grpc.aio.EOF:
        answers = pb.ProduceAnswers.FromString(raw).answers
        assert [each.refused for each in answers] == [""] * len(answers)
        answered += [each.id for each in answers]

    assert answered == list(range(20))
    assert await call.code() is grpc.StatusCode.OK


async def test_telemetry_whose_client_has_sent_all_ends(world: World) -> None:
    """After the answer to what was sent."""
    call = world.client.channel.stream_stream(TELEMETRY)(metadata=world.client.metadata)
    settings = definition.Settings(subscription=definition.Subscription())
    await call.write(service.TelemetryCommand(settings=settings).SerializeToString())
    await call.done_writing()

    assert service.TelemetryCommand.FromString(await call.read()).HasField("settings")
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


@LEADER
async def test_a_stopping_server_ends_what_waits(world: World) -> None:
    """Polls with an empty answer; and a new call of that connection is refused."""
    await world.client.receive()
    poll = asyncio.ensure_future(world.client.receive(wait_s=60))
    await world.group.polls(at=0)
    node = world.group.nodes[world.at]

    node.tasks.drain()
    stopping = asyncio.ensure_future(node.servers[0].stop(5))

    status, messages, _ = await poll
    assert (code(status), messages) == ("MESSAGE_NOT_FOUND", [])
    await stopping
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.client.call("Heartbeat", timeout_s=SOON_S)
    assert refused.value.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )


async def _ended(call: Awaitable[Any]) -> Any:
    """Return a call's answer, or the status with which it ends."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error.code()


async def _read_on(call: Any) -> None:
    """Read to the end of a call."""
    while await call.read() is not grpc.aio.EOF:
        pass


def _batches(number: int) -> bytes:
    columns = Columns(message_ids=[f"id-{number}"], bodies=[b"x"], born_at_ms=[0])
    command = encode_produce(columns, client_id="c", topic="t", queue_id=0)
    batch = pb.ProduceBatch(id=number, command=command)
    return pb.ProduceBatches(batches=[batch]).SerializeToString()
