"""What a node lets in at once, what it lets wait, and what it says to the rest."""

from __future__ import annotations

import asyncio
import gc

import grpc.aio
import pytest

from dledger.client import Client, Record
from dledger.errors import InvalidArgument, Overloaded, Refused, Unavailable
from dledger.rpc import intake as module
from dledger.rpc.intake import Intake
from dledger.rpc.limits import MAX_BODY_BYTES
from dledger.rpc.servers import MAX_CONNECTIONS, connections_of
from tests.rpc.memory_group import memory_group

MIB = 1 << 20


class Call:
    """A gRPC call whose request arrives when told to."""

    def __init__(self, request: object = b"x", *, arrived: bool = True) -> None:
        self.request = request
        self.reads = 0
        self.arrives = asyncio.Event()
        if arrived:
            self.arrives.set()

    async def read(self) -> object:
        """Return the request."""
        self.reads += 1
        await self.arrives.wait()
        return self.request


async def served(intake: Intake, call: Call, until: asyncio.Event) -> bytes:
    async with intake.request(call) as raw:
        await until.wait()
        return raw


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_is_not_read_before_there_is_room_for_it() -> None:
    """What is not read waits at its client; what is served keeps its room until the answer."""
    intake, answered = Intake(max_bytes=3 * MIB), asyncio.Event()
    calls = [Call(bytes(MIB)) for _ in range(5)]
    tasks = [asyncio.create_task(served(intake, call, answered)) for call in calls]
    await settled()

    assert [call.reads for call in calls] == [1, 1, 1, 0, 0]
    assert intake.window.taken == 3 * MIB
    answered.set()
    assert [len(raw) for raw in await asyncio.gather(*tasks)] == [MIB] * 5
    assert intake.window.taken == 0


async def test_small_requests_take_little_room_once_they_are_here() -> None:
    """Only their arrival takes room for a large one."""
    intake, answered = Intake(max_bytes=2 * MIB), asyncio.Event()
    tasks = [asyncio.create_task(served(intake, Call(b"x"), answered)) for _ in range(50)]
    for _ in range(50):
        await settled()

    assert intake.window.waiting == 0
    assert intake.window.taken < MIB
    answered.set()
    await asyncio.gather(*tasks)


async def test_after_a_large_request_fewer_are_read_at_once() -> None:
    """How large the next one is, is not known before it is read."""
    intake, answered = Intake(max_bytes=8 * MIB), asyncio.Event()
    answered.set()
    await served(intake, Call(bytes(4 * MIB)), answered)
    await served(intake, Call(b"x"), answered)

    calls = [Call(arrived=False) for _ in range(3)]
    tasks = [asyncio.create_task(served(intake, call, answered)) for call in calls]
    await settled()

    assert [call.reads for call in calls] == [1, 1, 0]
    for call in calls:
        call.arrives.set()
    await asyncio.gather(*tasks)
    intake.arrived(1, now_s=1e12)
    intake.arrived(1, now_s=2e12)
    assert intake.expected_bytes == MIB


async def test_who_finds_no_room_is_told_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment; at once where many wait already."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    intake, answered = Intake(max_bytes=MIB), asyncio.Event()
    first = asyncio.create_task(served(intake, Call(bytes(MIB)), answered))
    await settled()
    second = asyncio.create_task(served(intake, Call(), answered))
    await settled()

    with pytest.raises(Overloaded, match="1 requests wait"):
        await served(intake, Call(), answered)
    with pytest.raises(Overloaded, match="1048576 bytes are under way"):
        await second
    answered.set()
    await first
    assert intake.window.taken == 0


async def test_a_request_that_does_not_arrive_keeps_its_room_for_a_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a few clients could keep out all others."""
    monkeypatch.setattr(module, "_ARRIVES_S", 0.01)
    intake = Intake()

    with pytest.raises(Unavailable, match="did not arrive"):
        await served(intake, Call(arrived=False), asyncio.Event())
    with pytest.raises(InvalidArgument, match="no request"):
        await served(intake, Call(grpc.aio.EOF), asyncio.Event())

    assert intake.window.taken == 0


def large_objects() -> int:
    """Return how many byte strings of 4 MiB and more something holds that is no cycle's rest."""
    referents = (each for holder in gc.get_objects() for each in gc.get_referents(holder))
    return len({id(x) for x in referents if type(x) is bytes and len(x) > MAX_BODY_BYTES})


async def test_a_refused_request_leaves_nothing_behind() -> None:
    """Not even until the garbage collector comes by, which with large requests is too late."""
    record = Record(body=bytes(MAX_BODY_BYTES + 1), message_id="1")
    async with memory_group(1) as group, Client(group.addresses[0]) as client:
        await client.create_topic("orders")
        gc.collect()
        gc.disable()
        try:
            before = large_objects()
            for _ in range(5):
                with pytest.raises(Refused):
                    await client.append("orders", [record])
            after = large_objects()
        finally:
            gc.enable()

    assert after <= before


def test_connections_leave_files_for_the_log() -> None:
    """A node that can open no segment stops; a client that is turned away finds another node."""
    assert connections_of(20_000, 2) == 9_744
    assert connections_of(1_000_000, 3) == MAX_CONNECTIONS
    assert connections_of(1_024, 3) == 170
