"""What clients that do not read may hold: bounded, and in the end their connections are closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import grpc.aio
import pytest

from dledger.client import Client
from dledger.errors import Overloaded
from dledger.requests import outflow as module
from dledger.requests.outflow import Outflow, close_connection
from dledger.rocketmq.polls import MAX_BYTES_OF_CONNECTION, HeldPolls
from dledger.rpc.pb import dledger_pb2 as pb
from tests.requests.memory_group import WAIT_S, MemoryGroup
from tests.waiting import eventually

MIB = 1 << 20
QUARTER = module.MAX_BYTES // 4


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little patience with who does not read."""
    monkeypatch.setattr(module, "STUCK_S", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_room_is_taken_in_turn() -> None:
    """What is larger by itself goes alone; nobody's connection is closed while writes go on."""
    closed: list[str] = []

    def close(name: str) -> bool:
        closed.append(name)
        return False

    outflow = Outflow(close=close)
    most = 0

    async def write(name: str, size_bytes: int) -> None:
        nonlocal most
        async with outflow.room(name, size_bytes):
            most = max(most, outflow.taken)
            await asyncio.sleep(0)

    await asyncio.gather(*(write(f"{n}", QUARTER) for n in range(20)), write("large", 5 * QUARTER))

    assert (most, outflow.taken, closed) == (5 * QUARTER, 0, [])


async def test_a_peer_takes_no_room() -> None:
    """What it asks for is counted where its client is."""
    outflow = Outflow()

    async with outflow.room("", 5 * QUARTER):
        assert outflow.taken == 0


@pytest.mark.usefixtures("impatient")
async def test_who_holds_most_and_does_not_read_is_closed_when_others_wait() -> None:
    """Nobody else; and nobody while nobody waits."""
    closed: list[str] = []

    def close(name: str) -> bool:
        closed.append(name)
        stuck.pop(name).cancel()
        return True

    outflow = Outflow(close=close)

    async def write(name: str, size_bytes: int) -> None:
        async with outflow.room(name, size_bytes):
            await asyncio.Event().wait()

    stuck = {
        "one": asyncio.create_task(write("one", QUARTER)),
        "two": asyncio.create_task(write("two", 3 * QUARTER)),
    }
    await asyncio.sleep(0)
    assert outflow.taken == 4 * QUARTER

    async with outflow.room("honest", QUARTER):
        assert closed == ["two"]

    stuck["one"].cancel()


def test_what_is_no_connection_of_ours_is_not_closed() -> None:
    """Names that gRPC has for other things, and other kinds of addresses."""
    for name in ("", "unix:/tmp/x", "ipv4:192.0.2.1:1", "ipv6:%5B2001:db8::1%5D:1"):
        assert not close_connection(name)


@asynccontextmanager
async def readers(address: str, request: bytes, count: int) -> AsyncIterator[None]:
    """Open calls of ReadBatches, each on a connection of its own, and read nothing of them."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    async with AsyncExitStack() as stack:
        for _ in range(count):
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(address, options=options)
            )
            channel.unary_stream("/dledger.v1.Ledger/ReadBatches")(request)
        yield


@pytest.mark.found
@pytest.mark.usefixtures("impatient")
async def test_readers_that_do_not_read_keep_nobody_from_reading(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """found: S4. They hold what there is room for; then their connections are closed in turn.

    Who reads is last in line: on a busy machine an answer of its own takes longer than the patience
    here, and its connection would be closed for those who came behind it.
    """
    outflow = group.nodes[0].parts.context.outflow
    room, asked = outflow.room, list[str]()

    def count(connection: str, size_bytes: int) -> AbstractAsyncContextManager[None]:
        asked.append(connection)
        return room(connection, size_bytes)

    monkeypatch.setattr(outflow, "room", count)
    async with Client(group.addresses[0]) as client:
        await client.create_topic("big", queues=1)
        for _ in range(8):
            await client.append("big", [os.urandom(3 * MIB)], queue_id=0)
        request = pb.ReadRequest(topic="big", follow=True).SerializeToString()

        async with readers(group.addresses[0], request, 24):
            await eventually(lambda: len(set(asked)) == 24)
            await eventually(lambda: outflow.taken > module.MAX_BYTES - 3 * MIB)
            async with asyncio.timeout(WAIT_S):
                read = [batch async for batch in client.read_batches("big", 0)]

    assert len(read) == 8
    assert outflow.taken <= module.MAX_BYTES


@pytest.mark.found
def test_polls_keep_so_much_only() -> None:
    """found: S4. All of a connection together, and its next one is told to come later."""
    polls, size_bytes = HeldPolls(), MAX_BYTES_OF_CONNECTION // 2
    for _ in range(2):
        polls.take("a", size_bytes)
    with pytest.raises(Overloaded, match="on this connection"):
        polls.take("a", 1)
    polls.take("b", 1)
    polls.take("", 1 << 40)
    assert polls.taken == MAX_BYTES_OF_CONNECTION + 1

    for connection, size in (("a", size_bytes), ("a", size_bytes), ("b", 1), ("", 1 << 40)):
        polls.give_back(connection, size)

    assert polls.taken == 0
