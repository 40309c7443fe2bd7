"""The stream of a real node's status: elections, losses and the end, as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dledger.common.status import NodeStatus
from dledger.server import node
from tests.system.live_nodes import GROUP_ID, LiveNodes
from tests.waiting import eventually


async def _status_when(
    news: AsyncIterator[NodeStatus | None], holds: Callable[[NodeStatus], bool]
) -> NodeStatus:
    """Return the first status for which *holds* does."""
    async with asyncio.timeout(20):
        async for status in news:
            if status is not None and holds(status):
                return status
    raise AssertionError("the stream ended")


async def test_a_stream_tells_of_the_founding_of_an_election_and_of_the_end(
    unfounded: LiveNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty disk on, over one stream to each node; it ends when its node stops."""
    monkeypatch.setattr(node, "_CALLS_GRACE_S", 1)  # calls are not cut off
    live = unfounded
    await live.start(0, 1, 2)
    admins = [live.admin(number) for number in range(3)]
    streams = [admin.watch_status() for admin in admins]
    firsts = [await anext(news) for news in streams]

    await admins[0].bootstrap(GROUP_ID, [live.member(number) for number in range(3)])
    leader = await live.leader()
    led = await _status_when(streams[leader], lambda said: said.role == "leader")
    taker = (leader + 1) % 3
    taken = asyncio.create_task(_status_when(streams[taker], lambda said: said.term > led.term))
    other = asyncio.create_task(
        _status_when(streams[(leader + 2) % 3], lambda s: s.leader_id not in ("", led.node_id))
    )
    await live.stop(leader)

    assert {said.role for said in firsts if said} == {"unjoined"}
    # Not the same term for both: there may be another election between the two.
    assert (await taken).term > led.term
    assert (await other).term > led.term
    assert all([said is None or said.term >= led.term async for said in streams[leader]])
    for admin in admins:
        await admin.close()


async def test_a_leader_tells_when_a_follower_is_lost_and_when_it_is_back(
    live: LiveNodes,
) -> None:
    """Between the two its stream goes on: it says each second that it leads."""
    leader = await live.leader()
    lost = (leader + 1) % 3
    node_id = live.nodes[lost].node_id
    async with live.admin(leader) as admin:
        news = admin.watch_status()
        await anext(news)

        def connected(said: NodeStatus, expected: bool) -> bool:
            return any(
                row.member.id == node_id and row.connected == expected for row in said.members
            )

        await live.stop(lost)
        await _status_when(news, lambda said: connected(said, False))
        assert await anext(news) is None
        await live.start(lost)
        await _status_when(news, lambda said: connected(said, True))
        await news.aclose()


async def test_a_node_with_watchers_stops_at_once(live: LiveNodes) -> None:
    """A stream that nobody reads does not hold it."""
    number = await live.leader()
    async with live.admin(number) as admin:
        news = admin.watch_status()
        await anext(news)
        stopped = live.nodes[number]

        await live.stop(number)

        assert await eventually(lambda: stopped.status().not_ready_reason) == "shutting down"
