"""`Ledger.Read` with *linearizable*: whichever whole node is asked, nothing acked is missing."""

from __future__ import annotations

import asyncio

import pytest

from dledger.calls import caller
from dledger.client import Client
from dledger.errors import Unavailable
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


async def test_every_node_shows_what_was_acknowledged_just_before(live: LiveNodes) -> None:
    """A plain read of a follower may lag; a linearizable one never does."""
    await live.found(0, 1, 2)
    clients = [live.client(number) for number in range(3)]

    for number in range(30):
        await clients[0].append("topic", [b"%d" % number], queue_id=0)
        reads = await asyncio.gather(*(bodies(client) for client in clients))

        assert [len(read) for read in reads] == [number + 1] * 3
    for client in clients:
        await client.close()


async def test_a_read_without_a_majority_is_unavailable(
    live: LiveNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged cannot be known, and the wait is bounded; a plain read still works."""
    monkeypatch.setattr(caller, "_NO_DEADLINE_S", 1.0)
    leader = await live.found(0, 1, 2)
    async with live.client(leader) as client:
        await client.append("topic", [b"x"], queue_id=0)
    for number in {0, 1, 2} - {leader}:
        await live.stop(number)

    async with live.client(leader) as client:
        with pytest.raises(Unavailable):
            await bodies(client)
        plain = [stored.record.body async for stored in client.read("topic", 0)]

    assert plain == [b"x"]


async def test_reads_go_on_after_the_leader_is_gone(live: LiveNodes) -> None:
    """A read that began under the old leader waits for the new one."""
    leader = await live.found(0, 1, 2)
    other = (leader + 1) % 3
    async with live.client(other) as client:
        await client.append("topic", [b"x"], queue_id=0)
        stopping = asyncio.ensure_future(live.stop(leader))
        read = await bodies(client)
        await stopping

    assert read == [b"x"]
    await eventually(lambda: live.status(other).leader_id)


async def bodies(client: Client) -> list[bytes]:
    """Return the bodies that a linearizable read gives."""
    return [stored.record.body async for stored in client.read("topic", 0, linearizable=True)]
