"""The sidecar beside real nodes: clients in plain gRPC and the official SDK through outages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.client import Client, SpoolingProducer
from dledger.common.listening import listening
from dledger.door.tls import TlsCertificate
from dledger.errors import InvalidArgument
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.rpc.status import Code
from dledger.server.client_certificate import self_signed
from dledger.sidecar.child import Sidecar
from dledger.sidecar.upstream import Tls
from tests.sidecar.fakes import request
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

TOPIC = "orders"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[LiveNodes]:
    """Return a group of one node, with a topic of one queue."""
    made = LiveNodes(tmp_path)
    await made.found_with_topic(TOPIC)
    yield made
    await made.stop()


class Beside:
    """A sidecar in this process, and a client of it in plain gRPC.

    Attributes:
        timeout_s: Of the client's calls; an SDK's, unless told otherwise.
    """

    timeout_s = 3.0

    def __init__(
        self,
        upstream: list[str],
        directory: Path,
        topics: tuple[str, ...] = (),
        tls: Tls = lambda: None,
    ) -> None:
        self._upstream, self._directory, self._topics = upstream, directory, topics
        self._tls = tls

    async def __aenter__(self) -> Beside:
        plain, tls = listening("127.0.0.1:0"), listening("127.0.0.1:0")
        self.port, self.tls_port = plain.getsockname()[1], tls.getsockname()[1]
        self.pair = self_signed("dledger-spool", "127.0.0.1")
        self.sidecar = Sidecar(
            upstream=self._upstream,
            directory=self._directory,
            topics=self._topics,
            max_bytes=1 << 26,
            tls=self._tls,
        )
        certificates = [None, TlsCertificate(self.pair.chain, self.pair.key)]
        await self.sidecar.start([plain, tls], certificates)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.sidecar.stop()

    async def call(self, name: str, body: bytes, client_id: str = "bob") -> Any:
        """Return the parsed answer to one call."""
        method: Any = self.channel.unary_unary(f"/{SERVICE_NAME}/{name}")
        metadata = (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"))
        answer = await method(body, metadata=metadata, timeout=self.timeout_s)
        return getattr(service, f"{name}Response").FromString(answer)

    async def send(self, number: int, client_id: str = "bob", topic: str = TOPIC) -> int:
        """Send one message; return the code."""
        answer = await self.call("SendMessage", request(topic, number), client_id)
        return int(answer.status.code)

    async def route(self, topic: str) -> service.QueryRouteResponse:
        """Return a topic's route."""
        asked = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        answer: service.QueryRouteResponse = await self.call(
            "QueryRoute", asked.SerializeToString()
        )
        return answer

    async def drained(self) -> None:
        """Wait until nothing is spooled."""
        await eventually(lambda: self.sidecar.counters().depth == 0, "an empty spool")


def producer_settings() -> bytes:
    """Return what a producer's Telemetry begins with."""
    settings = definition.Settings(client_type=definition.ClientType.PRODUCER)
    settings.publishing.topics.add(name=TOPIC)
    return bytes(service.TelemetryCommand(settings=settings).SerializeToString())


async def stored(nodes: LiveNodes, topic: str = TOPIC) -> list[int]:
    """Return the numbers of the stored messages, in order."""
    async with nodes.client(0) as client:
        return [
            int(one.record.message_id) async for one in client.read(topic, 0, linearizable=True)
        ]


@pytest.mark.slow
async def test_a_group_that_stops_and_comes_back_has_everything_once_in_order(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """No error to the sender, through the outage and through the replay."""
    async with Beside(nodes.client_addresses, tmp_path / "spool") as beside:
        codes = [await beside.send(number) for number in range(1, 21)]
        await nodes.stop(0)
        codes += [await beside.send(number) for number in range(21, 121)]
        away = beside.sidecar.counters()
        await nodes.start(0)
        codes += [await beside.send(number) for number in range(121, 221)]
        await beside.drained()
        codes += [await beside.send(number) for number in range(221, 241)]
        found = await stored(nodes)
        counters = beside.sidecar.counters()

    assert set(codes) == {Code.OK}
    assert nodes.nodes[0].engine.state.topics.replayed_lanes == 1
    assert (away.degraded, away.depth) == (1, 100)
    assert found == list(range(1, 241))
    assert (counters.degraded, counters.rejected, counters.unknown_outcomes) == (0, 0, 0)
    assert counters.stored + counters.replayed == 240


@pytest.mark.slow
async def test_a_sidecar_that_is_made_anew_brings_what_its_predecessor_kept(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """The group is away for the whole life of one; an ordinary SDK's routes are on the disk."""
    spool, upstream = tmp_path / "spool", nodes.client_addresses
    async with Beside(upstream, spool) as beside:
        told = await beside.route(TOPIC)
        await beside.drained()
    await nodes.stop(0)
    async with Beside(upstream, spool, ("named:NORMAL",)) as beside:
        cached, named = await beside.route(TOPIC), await beside.route("named")
        unknown = await beside.route("misspelt")
        codes = [await beside.send(number) for number in range(1, 31)]
        mine = beside.port
    await nodes.start(0)
    async with Beside(upstream, spool) as beside:
        await beside.drained()
        found = await stored(nodes)

    assert set(codes) == {Code.OK}
    assert found == list(range(1, 31))
    for route in (told, cached, named):
        assert route.status.code == Code.OK
        assert len(route.message_queues) == 1
    (address,) = cached.message_queues[0].broker.endpoints.addresses
    assert (address.host, address.port) == ("127.0.0.1", mine)
    assert unknown.status.code == Code.HA_NOT_AVAILABLE
    assert "start it with --topic misspelt:TYPE" in unknown.status.message


@pytest.mark.slow
async def test_what_is_not_taken_while_the_group_is_away_is_refused_by_name(
    tmp_path: Path,
) -> None:
    """Heartbeats are answered; acks and recalls are not kept for later."""
    async with Beside(["127.0.0.1:9"], tmp_path / "spool") as beside:
        beat = await beside.call("Heartbeat", b"")
        acked = await beside.call("AckMessage", b"")
        recalled = await beside.call("RecallMessage", b"")

    assert beat.status.code == Code.OK
    for name, answer in (("AckMessage", acked), ("RecallMessage", recalled)):
        assert answer.status.code == Code.HA_NOT_AVAILABLE
        assert f"{name} waits for nobody" in answer.status.message


@pytest.mark.slow
async def test_telemetry_is_answered_here_while_the_group_is_away(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """And reaches the group once it is back, on the connection of its client's calls."""
    command = producer_settings()
    await nodes.stop(0)
    address = nodes.client_address(0)
    async with Beside([address], tmp_path / "spool") as beside:
        method: Any = beside.channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")
        call = method(metadata=(("x-mq-client-id", "bob"),))
        await call.write(command)
        answer = service.TelemetryCommand.FromString(await call.read())
        await nodes.start(0)
        await nodes.leader()
        telemetry = nodes.nodes[0]._parts.messaging.telemetry
        await eventually(lambda: len(telemetry) == 1, "the stream at the node")
        call.cancel()

    assert answer.settings.publishing.max_body_size > 0


@pytest.mark.slow
@pytest.mark.found
async def test_each_client_has_one_connection_with_its_telemetry(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """A node believes a call about a client's own where its Telemetry is, and there alone."""
    command = producer_settings()
    node: Any = nodes.nodes[0]
    peers: dict[str, set[str]] = {}
    clients = node._parts.messaging.clients
    seen = clients.seen

    def note(caller: Any) -> None:
        peers.setdefault(caller.client_id, set()).add(caller.peer)
        seen(caller)

    clients.seen = note
    async with Beside(nodes.client_addresses, tmp_path / "spool") as beside:
        method: Any = beside.channel.stream_stream(f"/{SERVICE_NAME}/Telemetry")
        calls = []
        for name in ("alice", "bob"):
            call = method(metadata=(("x-mq-client-id", name),))
            await call.write(command)
            await call.read()
            calls.append(call)
            for number in range(3):
                assert await beside.send(number, name) == Code.OK
        telemetry = node._parts.messaging.telemetry
        for name in ("alice", "bob"):
            (peer,) = peers[name]
            assert telemetry.runs_on(name, peer)
        for call in calls:
            call.cancel()

    assert not peers["alice"] & peers["bob"]


@pytest.mark.slow
async def test_the_tls_port_leads_to_itself(nodes: LiveNodes, tmp_path: Path) -> None:
    """SDKs of Java and Go use TLS unless told otherwise."""
    async with Beside(nodes.client_addresses, tmp_path / "spool") as beside:
        port = beside.tls_port
        credentials = grpc.ssl_channel_credentials(beside.pair.chain)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            method: Any = channel.unary_unary(f"/{SERVICE_NAME}/QueryRoute")
            asked = service.QueryRouteRequest(topic=definition.Resource(name=TOPIC))
            answer = await method(asked.SerializeToString(), timeout=5)
        route = service.QueryRouteResponse.FromString(answer)

    (address,) = route.message_queues[0].broker.endpoints.addresses
    assert address.port == port


@pytest.mark.slow
async def test_messages_are_received_and_acknowledged_through_it(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """A poll passes as bytes, both ways."""
    async with Beside(nodes.client_addresses, tmp_path / "spool") as beside:
        assert await beside.send(1) == Code.OK
        asked = service.ReceiveMessageRequest(
            group=definition.Resource(name="readers"),
            message_queue=definition.MessageQueue(topic=definition.Resource(name=TOPIC), id=0),
            filter_expression=definition.FilterExpression(
                expression="*", type=definition.FilterType.TAG
            ),
            batch_size=1,
        )
        asked.invisible_duration.seconds = 30
        asked.long_polling_timeout.seconds = 5
        method: Any = beside.channel.unary_stream(f"/{SERVICE_NAME}/ReceiveMessage")
        metadata = (("x-mq-client-id", "reader"), ("x-mq-language", "JAVA"))
        answers = [
            service.ReceiveMessageResponse.FromString(answer)
            async for answer in method(asked.SerializeToString(), metadata=metadata, timeout=10)
        ]
        (message,) = [one.message for one in answers if one.HasField("message")]
        ack = service.AckMessageRequest(
            group=asked.group,
            topic=definition.Resource(name=TOPIC),
            entries=[
                service.AckMessageEntry(
                    message_id=message.system_properties.message_id,
                    receipt_handle=message.system_properties.receipt_handle,
                )
            ],
        )
        acked = await beside.call("AckMessage", ack.SerializeToString(), "reader")

    assert message.body == b"body 1"
    assert acked.status.code == Code.OK


@pytest.mark.slow
async def test_a_directory_that_cannot_be_used_keeps_nothing_from_the_group(
    nodes: LiveNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for again, and used as soon as it can be."""
    monkeypatch.setattr("dledger.sidecar.child._LOOK_S", 0.05)
    directory = tmp_path / "spool"
    directory.write_text("no directory")
    async with Beside(nodes.client_addresses, directory) as beside:
        codes = [await beside.send(1)]
        degraded = beside.sidecar.counters().degraded
        directory.unlink()
        await eventually(lambda: not beside.sidecar.counters().degraded, "a spool")
        await nodes.stop(0)
        codes.append(await beside.send(2))
        kept = beside.sidecar.counters().depth
        await nodes.start(0)
        await beside.drained()
        found = await stored(nodes)

    assert (codes, degraded, kept, found) == ([Code.OK, Code.OK], 1, 1, [1, 2])


@pytest.mark.slow
async def test_a_directory_is_of_a_sidecar_or_of_a_producer(tmp_path: Path) -> None:
    """While messages wait in it: each would send the other's as what they are not."""
    nobody = "127.0.0.1:9"
    async with SpoolingProducer(nobody, tmp_path / "producer", patience_s=0.1) as producer:
        await producer.send(TOPIC, b"hello")
    async with Beside([nobody], tmp_path / "producer") as beside:
        refused = beside.sidecar._sends.why
    async with Beside([nobody], tmp_path / "sidecar") as beside:
        assert await beside.send(1) == Code.OK

    with pytest.raises(InvalidArgument, match="is the spool of a sidecar"):
        await SpoolingProducer(nobody, tmp_path / "sidecar").open()
    assert "1 messages of a SpoolingProducer wait in" in refused


@pytest.mark.slow
async def test_a_minority_is_an_outage_like_any_other(tmp_path: Path) -> None:
    """0.11: two of three are gone; the third answers OK to gRPC and 50002 in the body."""
    nodes = LiveNodes(tmp_path)
    leader = await nodes.found(0, 1, 2)
    async with nodes.client(leader) as client:
        await client.create_topic(TOPIC, queues=1)
    everywhere = nodes.client_addresses
    gone = [number for number in (0, 1, 2) if number != leader]
    try:
        async with Beside(everywhere, tmp_path / "spool") as beside:
            codes = [await beside.send(number) for number in range(1, 11)]
            await nodes.stop(*gone)
            codes += [await beside.send(number) for number in range(11, 31)]
            spooled = beside.sidecar.counters().spooled
            await nodes.start(*gone)
            await nodes.leader()
            await beside.drained()
            async with Client(everywhere[leader]) as client:
                found = [
                    int(one.record.message_id)
                    async for one in client.read(TOPIC, 0, linearizable=True)
                ]
    finally:
        await nodes.stop()

    assert set(codes) == {Code.OK}
    assert spooled >= 20
    assert found == list(range(1, 31))
