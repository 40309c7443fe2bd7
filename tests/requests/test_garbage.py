"""What has ended leaves no cycle behind that holds its request.

A node collects garbage seldom, since its usual work leaves none: what a refused request of 4 MiB
left, it would keep for minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc.aio
import pytest
from google.protobuf.message import Message

from dledger.common.limits import MAX_BODY_BYTES
from dledger.errors import DiskFull, NotLeader, Overloaded
from dledger.requests.config import RequestConfig
from dledger.rpc.channel import OPTIONS
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import service
from dledger.server.node_report import load_of
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually

MARK: Final = b"a body that is in nothing else"
LARGE: Final = MARK + bytes(MAX_BODY_BYTES - len(MARK) + 1)


@dataclass
class Callers:
    """Clients of both protocols, whose requests are bytes: they are told from what a node holds."""

    group: MemoryGroup
    rocket: RocketClient
    append_at: Any
    requests: list[bytes] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    def send(self, body: bytes, timeout_s: float = 1.5) -> Awaitable[object]:
        """Send by the RocketMQ protocol."""
        request = service.SendMessageRequest(messages=[message(next(self.ids), body=body)])
        return self.rocket.call("SendMessage", self._kept(request), timeout_s=timeout_s)

    def append(self, body: bytes, timeout_s: float = 1.5) -> Awaitable[object]:
        """Append by the native protocol."""
        record = pb.Record(message_id=str(next(self.ids)), body=body)
        request = pb.AppendRequest(client_id="a", topic="t", queue_id=-1, records=[record])
        call: Awaitable[object] = self.append_at(self._kept(request), timeout=timeout_s)
        return call

    def _kept(self, request: Message) -> bytes:
        self.requests.append(request.SerializeToString())
        return self.requests[-1]


Way = Callable[[bytes], Awaitable[object]]
Ending = Callable[[MemoryGroup, Way], Awaitable[object]]


async def answered(_: MemoryGroup, call: Way) -> None:
    await call(MARK)


async def too_large(_: MemoryGroup, call: Way) -> None:
    await call(LARGE)


async def overloaded(group: MemoryGroup, call: Way) -> None:
    group.refuse = Overloaded("full")
    await call(MARK)


async def disk_full(group: MemoryGroup, call: Way) -> None:
    group.refuse = DiskFull("full")
    await call(MARK)


async def elsewhere(group: MemoryGroup, call: Way) -> None:
    group.refuse = NotLeader(None)
    await call(MARK)


async def outcome_unknown(group: MemoryGroup, call: Way) -> None:
    group.lose_outcomes = 1
    await call(MARK)


async def given_up(group: MemoryGroup, call: Way) -> None:
    """Before its command is committed."""
    commit, waiting = group._commit_batch, asyncio.Event()
    group._commit_batch = waiting.set
    try:
        under_way = asyncio.ensure_future(call(MARK))
        await waiting.wait()
        under_way.cancel()
        await asyncio.wait((under_way,))
        await eventually(lambda: not load_of(group.nodes[0].parts).held_request_bytes)
    finally:
        group._commit_batch = commit
        group._commit_batch()


ENDINGS: Final[tuple[Ending, ...]] = (
    answered,
    too_large,
    overloaded,
    disk_full,
    elsewhere,
    outcome_unknown,
    given_up,
)


@contextlib.contextmanager
def collected() -> Iterator[list[object]]:
    """Collect no garbage inside the block; then fill the list with what was there."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def bodies(found: list[object], sent: list[bytes]) -> list[str]:
    """Return who holds a body among *found*, but for what a client has *sent*."""
    own = {*map(id, sent)}
    return [
        f"{type(holder).__name__} {getattr(holder, 'f_code', '')}"
        for holder in found
        if holder is not found
        for each in (holder, *gc.get_referents(holder))
        if id(each) not in own and MARK in _bytes_of(each)
    ]


def _bytes_of(each: object) -> bytes:
    if isinstance(each, bytes | bytearray):
        return bytes(each)
    return each.SerializeToString() if isinstance(each, Message) else b""


@contextlib.asynccontextmanager
async def called() -> AsyncIterator[Callers]:
    """One node, and its callers."""
    async with memory_group(config=RequestConfig(default_queues=1)) as group:
        port = group.nodes[0].port
        async with (
            RocketClient(port) as rocket,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel,
        ):
            callers = Callers(group, rocket, channel.unary_unary("/dledger.v1.Ledger/Append"))
            await callers.send(b"first")
            await callers.append(b"first")
            yield callers


@pytest.mark.found
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
@pytest.mark.parametrize("way", [Callers.send, Callers.append], ids=["send", "append"])
async def test_what_has_ended_leaves_no_body_behind(
    ending: Ending, way: Callable[..., Awaitable[object]]
) -> None:
    """found: make overload. 600 MiB of refused bodies, of which none was in use."""
    async with called() as callers:
        group = callers.group
        with collected() as found:
            for _ in range(2):
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                    await ending(group, partial(way, callers))
                group.refuse = None
            await eventually(lambda: not load_of(group.nodes[0].parts).held_request_bytes)
            await asyncio.sleep(0)

        assert bodies(found, callers.requests) == []


@pytest.mark.contract
async def test_no_server_keeps_a_body_of_what_has_ended() -> None:
    """Each ending of both ways once, and one look at what they left."""
    async with called() as callers:
        group = callers.group
        with collected() as found:
            for way, ending in itertools.product((callers.send, callers.append), ENDINGS):
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                    await ending(group, partial(way, timeout_s=0.5))
                group.refuse = None
            await eventually(lambda: not load_of(group.nodes[0].parts).held_request_bytes)
            await asyncio.sleep(0)

        assert bodies(found, callers.requests) == []
