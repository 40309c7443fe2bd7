"""A majority's disks are lost: whole nodes on real disks and ports, forced by Admin."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import ForcedGroup
from dledger.errors import NodeRemoved, Refused
from dledger.types import Member
from tests.system.live_nodes import GROUP_ID, LiveNodes, eventually, eventually_works


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet, whose election timeout is short."""
    return unfounded.where(tick_ms=20)


async def force(live: LiveNodes, number: int) -> ForcedGroup:
    """Force the group on a node, once it has heard no leader for long enough."""

    async def ask() -> ForcedGroup:
        status = live.status(number)
        async with live.admin(number) as admin:
            return await admin.force_new_group(
                GROUP_ID,
                status.node_id,
                expected_last_term=status.last_term,
                expected_last_index=status.last_index,
            )

    return await eventually_works(ask, 30)


async def test_one_survivor_goes_on_and_its_group_grows_again(live: LiveNodes) -> None:
    """Writes come back with all that it had; two empty disks make the group three again."""
    await live.found(0, 1, 2)
    async with live.client(0) as client:
        await client.append("topic", [b"before"], queue_id=0)
    lost = {live.member(1), live.member(2)}
    await live.stop(1, 2)
    live.wipe(1)
    live.wipe(2)

    forced = await force(live, 0)

    assert (forced.epoch, set(forced.removed)) == (1, lost)
    status = live.status(0)
    assert (status.role, status.epoch, status.term) == ("leader", 1, forced.term)
    async with live.client(0) as client:
        await client.append("topic", [b"after"], queue_id=0)
        assert [r.record.body async for r in client.read("topic", 0)] == [b"before", b"after"]
    await live.start(1, 2)
    async with live.admin(0) as admin:
        await admin.change_members(add=[live.member(1), live.member(2)])
    await live.voters(3)
