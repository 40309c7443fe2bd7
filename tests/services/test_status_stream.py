"""What a stream of a node's status tells, and what it costs the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.client.admin_client import AdminClient
from dledger.common.status import CAUGHT_UP_ENTRIES, MemberStatus, NodeStatus, without_counters
from dledger.errors import NotServed, Overloaded
from dledger.services.admin import AdminServicer
from dledger.services.status_stream import MAX_STREAMS, StatusStreams
from dledger.types import Member, NodeId
from tests.services.part_of_admin_backend import PartOfAdminBackend
from tests.services.test_admin_bounds import served
from tests.waiting import eventually

FOLLOWER = NodeStatus(
    node_id="b",
    name="orders-1",
    group="orders",
    group_id="g",
    role="follower",
    term=1,
    leader_id="a",
    commit_index=1,
    applied_index=1,
    last_index=1,
    synced_index=1,
    ready=True,
    not_ready_reason="",
    members=(
        MemberStatus(
            member=Member(id=NodeId("a"), name="orders-0", address="a:1"),
            role="leader",
            match_index=0,
            lag=0,
            connected=True,
        ),
    ),
    last_failover=None,
    version="",
    storage_used_bytes=10,
    storage_capacity_bytes=1000,
    writes_refused_reason="",
)
LEADER = replace(FOLLOWER, role="leader")


class Played(PartOfAdminBackend):
    """A node that says what it is told to; each look of a stream is a step of *step_s*."""

    def __init__(self, said: NodeStatus = FOLLOWER, step_s: float = 0.0) -> None:
        self.said, self.now_s, self.looks = said, 0.0, 0
        self._step_s = step_s

    def status(self) -> NodeStatus:
        return self.said

    async def wait_change(self, timeout_s: float) -> None:
        self.looks += 1
        self.now_s += self._step_s
        await asyncio.sleep(0)

    def streams(self) -> StatusStreams:
        return StatusStreams(self, monotonic_s=lambda: self.now_s)


async def test_it_begins_with_the_status_and_goes_on_with_what_is_news() -> None:
    """In the order in which it came to be."""
    played = Played()
    async with aclosing(played.streams().follow()) as news:
        assert await anext(news) == FOLLOWER

        played.said = replace(FOLLOWER, term=2, leader_id="b", role="leader")

        assert await anext(news) == played.said


@pytest.mark.parametrize(
    "changes",
    [
        {"commit_index": 9, "applied_index": 9, "last_index": 9, "last_term": 1},
        {"synced_index": 9, "now_ms": 9, "commit_waits_ms": 9},
        {"storage_used_bytes": 11},
        {"clock_ahead_ms": 4_999, "clock_behind_ms": 3, "log_ahead_ms": 900},
    ],
)
async def test_counters_are_no_news(changes: dict[str, Any]) -> None:
    """Of a busy group they move with each message."""
    played = Played()
    async with aclosing(played.streams().follow()) as news:
        await anext(news)
        played.said = replace(FOLLOWER, **changes)
        following = asyncio.ensure_future(anext(news))
        await eventually(lambda: played.looks > 20)

        assert not following.done()
        played.said = replace(played.said, ready=False)

        assert await following == played.said


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "candidate"},
        {"clock_ahead_ms": 5_001},
        {"term": 2},
        {"leader_id": ""},
        {"ready": False},
        {"not_ready_reason": "shutting down"},
        {"members": ()},
        {"members": (replace(FOLLOWER.members[0], connected=False),)},
        {"members": (replace(FOLLOWER.members[0], voter=False),)},
        {"members": (replace(FOLLOWER.members[0], lag=CAUGHT_UP_ENTRIES + 1),)},
        {"writes_refused_reason": "no space left"},
        {"faulty_entries": 1},
        {"feature_level": 2},
        {"epoch": 1},
        {"client_certificate_fault": "it ended"},
        {"storage_used_bytes": 20},
        {"group_id": ""},
    ],
)
def test_whatever_is_decided_on_is_news(changes: dict[str, Any]) -> None:
    """A member that falls behind, too, though not by how much."""
    assert without_counters(replace(FOLLOWER, **changes)) != without_counters(FOLLOWER)


async def test_a_leader_says_each_second_that_nothing_changed() -> None:
    """A follower does not: the leader's word stands for it."""
    leading, following = Played(LEADER, step_s=0.25), Played(FOLLOWER, step_s=0.25)
    async with aclosing(leading.streams().follow()) as news:
        assert [await anext(news) for _ in range(3)] == [LEADER, None, None]
        assert leading.now_s == 2.0
    async with aclosing(following.streams().follow()) as news:
        await anext(news)
        silent = asyncio.ensure_future(anext(news))
        await eventually(lambda: following.now_s > 60)
        assert not silent.done()
        silent.cancel()
        await asyncio.gather(silent, return_exceptions=True)


async def test_more_streams_than_eight_are_refused_until_one_ends() -> None:
    """Over real gRPC; those that are open go on."""
    played = Played()
    servicer = AdminServicer(played)
    async with served(servicer.handler()) as address, AdminClient(address) as client:
        streams = [client.watch_status() for _ in range(MAX_STREAMS)]
        assert [await anext(news) for news in streams] == [FOLLOWER] * MAX_STREAMS

        with pytest.raises(Overloaded, match="watch this node already"):
            await anext(client.watch_status())
        await streams.pop().aclose()

        assert await _opened(client) == FOLLOWER
        played.said = LEADER
        assert await anext(streams[0]) == LEADER
        for news in streams:
            await news.aclose()


async def _opened(client: AdminClient) -> NodeStatus | None:
    """Return the first word of a stream, once there is room for it."""
    while True:
        try:
            async with aclosing(client.watch_status()) as news:
                return await anext(news)
        except Overloaded:
            await asyncio.sleep(0.01)


async def test_a_reader_that_does_not_read_is_sent_the_newest_later() -> None:
    """Nothing is kept for it: its stream waits, and does not even look."""
    played = Played(replace(FOLLOWER, not_ready_reason="x" * 60_000))
    servicer = AdminServicer(played)
    async with served(servicer.handler()) as address:
        channel = grpc.aio.insecure_channel(address)
        slow = channel.unary_stream("/dledger.v1.Admin/WatchStatus")(b"")
        await slow.read()
        stuck, looks = 0, -1
        while stuck < 50:
            # Each look finds something new to say, until gRPC takes no more of it.
            played.said = replace(played.said, term=played.said.term + 1)
            stuck, looks = (stuck + 1, looks) if played.looks == looks else (0, played.looks)
            await asyncio.sleep(0.01)
        sent = played.said.term - stuck

        assert sent < 200
        slow.cancel()
        await channel.close()
        async with AdminClient(address) as client:
            assert await _opened(client) == played.said


async def test_streams_end_when_the_node_stops() -> None:
    """In order, as a reader sees it; new ones are refused, other calls are not."""
    servicer = AdminServicer(Played())
    async with served(servicer.handler()) as address, AdminClient(address) as client:
        news = client.watch_status()
        await anext(news)

        servicer.close()

        assert [said async for said in news] == []
        assert await client.status() == FOLLOWER


async def test_an_older_node_does_not_know_the_call() -> None:
    """The caller is told so by the error's class, and goes on asking."""

    async def status(request: bytes, context: Any) -> bytes:
        return b""

    handler = grpc.unary_unary_rpc_method_handler(status)
    service = grpc.method_handlers_generic_handler("dledger.v1.Admin", {"Status": handler})
    async with served(service) as address, AdminClient(address) as client:
        news: AsyncIterator[Any] = client.watch_status()
        with pytest.raises(NotServed):
            await anext(news)
