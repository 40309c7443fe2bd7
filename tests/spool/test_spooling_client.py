"""`dledger.client.SpoolingProducer` over real connections: what the group says, and who says it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dledger.client import Client, Record, SpoolingProducer
from dledger.errors import DiskFull, InvalidArgument, Refused, UnknownTopic
from dledger.requests.config import RequestConfig
from tests.requests.memory_group import SOON_S, MemoryGroup, memory_group

DEADLINE_S = 20


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """Three nodes; node 0 leads; topics are made beforehand."""
    async with memory_group(3, RequestConfig(auto_create_topics=False)) as group:
        async with Client(addresses(group)[0]) as client:
            await client.create_topic("orders", queues=1)
        yield group


def addresses(group: MemoryGroup) -> list[str]:
    """Return the nodes' client ports."""
    return [f"127.0.0.1:{node.port}" for node in group.nodes]


async def bodies(group: MemoryGroup) -> list[bytes]:
    """Return what is stored, in order."""
    async with Client(addresses(group)[0]) as client:
        return [stored.record.body async for stored in client.read("orders", 0)]


def free_address() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_a_group_without_leader_is_spooled_and_caught_up(
    group: MemoryGroup, tmp_path: Path
) -> None:
    """Every field of a message comes through the spool."""
    full = Record(
        body=b"1", message_id="id-1", tag="t", keys=("k",), properties={"p": "v"}, born_at_ms=5
    )
    async with SpoolingProducer(addresses(group), tmp_path / "s", patience_s=SOON_S) as producer:
        first = await producer.send("orders", b"0", queue_id=0)
        group.elect(None)
        second = await producer.send("orders", full, queue_id=0)
        group.elect(1)
        assert await producer.drained(DEADLINE_S)
        third = await producer.send("orders", b"2")
    async with Client(addresses(group)[2]) as client:
        stored = [stored async for stored in client.read("orders", 0)]

    assert [first.spooled, second.spooled, third.spooled] == [False, True, False]
    assert (first.queue_id, first.offset, third.offset) == (0, 0, 2)
    assert [each.record.body for each in stored] == [b"0", b"1", b"2"]
    assert stored[1].record == full


async def test_an_outcome_that_was_lost_is_stored_once(group: MemoryGroup, tmp_path: Path) -> None:
    """The leader committed and could not say so, time and again."""
    async with SpoolingProducer(addresses(group), tmp_path / "s", patience_s=SOON_S) as producer:
        group.lose_outcomes = 20
        results = await producer.send_batch("orders", [b"%d" % n for n in range(50)])
        assert await producer.drained(DEADLINE_S)

    assert all(result.spooled for result in results)
    assert await bodies(group) == [b"%d" % n for n in range(50)]


async def test_a_node_that_is_gone_is_passed_by(group: MemoryGroup, tmp_path: Path) -> None:
    """One living address is enough to store directly."""
    nodes = [free_address(), addresses(group)[1]]

    async with SpoolingProducer(nodes, tmp_path / "s") as producer:
        result = await producer.send("orders", b"x")

    assert not result.spooled
    assert await bodies(group) == [b"x"]


async def test_what_a_node_refuses_by_name_is_an_error(group: MemoryGroup, tmp_path: Path) -> None:
    """The caller is at fault, so nothing is spooled."""
    async with SpoolingProducer(addresses(group), tmp_path / "s") as producer:
        with pytest.raises(UnknownTopic, match="nowhere"):
            await producer.send("nowhere", b"x")
        with pytest.raises(InvalidArgument, match="queues 0 to 0"):
            await producer.send("orders", b"x", queue_id=7)

        assert producer.counters().spooled == 0


async def test_full_disks_of_the_group_are_spooled(group: MemoryGroup, tmp_path: Path) -> None:
    """The group says it by name; it is not the caller's fault."""
    async with SpoolingProducer(addresses(group), tmp_path / "s") as producer:
        group.refuse = DiskFull("no room for a segment")
        result = await producer.send("orders", b"x")
        group.refuse = None
        assert await producer.drained(DEADLINE_S)

    assert result.spooled
    assert await bodies(group) == [b"x"]


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "PERMISSION_DENIED", "UNKNOWN"])
async def test_another_service_cannot_refuse_a_message(tmp_path: Path, code: str) -> None:
    """A proxy or another service at the address is no group: nothing is rejected for its word."""

    class OtherService(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(self.answer)

        async def answer(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
            await context.abort(grpc.StatusCode[code], "who are you?")
            raise AssertionError("abort returned")

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([OtherService()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with SpoolingProducer(address, tmp_path / "s", patience_s=0.2) as producer:
        result = await producer.send("orders", b"x")
        await asyncio.sleep(0.5)
        counters = producer.counters()
    await server.stop(0)

    assert result.spooled
    assert (counters.depth, counters.rejected) == (1, 0)


@pytest.mark.parametrize(
    ("topic", "record", "says"),
    [
        ("no topic", Record(body=b"x"), "topic 'no topic' must be"),
        ("orders", Record(body=b""), "body is empty"),
        ("orders", Record(body=bytes((4 << 20) + 1)), "the limit is 4194304"),
        ("orders", Record(body=b"x", tag="a|b"), "without '|'"),
        ("orders", Record(body=b"x", keys=(" ",)), "key is blank"),
        ("orders", Record(body=b"x", message_id="i" * 256), "at most 255"),
    ],
    ids=["topic", "empty", "too large", "tag", "key", "id"],
)
async def test_messages_are_checked_by_the_nodes_rules_while_there_is_no_node(
    tmp_path: Path, topic: str, record: Record, says: str
) -> None:
    """After the outage it would be too late to tell the caller."""
    async with SpoolingProducer(free_address(), tmp_path / "s", patience_s=0.1) as producer:
        await producer.send("orders", b"in an outage")

        with pytest.raises(Refused, match=says):
            await producer.send(topic, record)


async def test_a_producer_without_address_is_refused(tmp_path: Path) -> None:
    """At once."""
    with pytest.raises(InvalidArgument, match="address"):
        SpoolingProducer([], tmp_path)


def test_blocking_producer_over_real_connections(tmp_path: Path) -> None:
    """A program without an event loop, while there is no group at all."""
    with SpoolingProducer(free_address(), tmp_path / "s", patience_s=0.1).blocking() as producer:
        result = producer.send("orders", b"x")

    assert result.spooled
