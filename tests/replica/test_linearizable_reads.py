"""Reads that see all that was acknowledged before them: the driver's part, on real disks."""

from __future__ import annotations

import asyncio

import pytest

from dledger.errors import NotLeader, Overloaded, Unavailable
from dledger.replica import reads
from dledger.replica.reads import AppliedWaiters
from dledger.types import Role
from tests.replica.group import DriverGroup, command
from tests.waiting import eventually


async def test_a_read_index_covers_all_that_was_acknowledged(group: DriverGroup) -> None:
    """Thesis 6.4: asked after an acknowledgement, the index is at or above that entry."""
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("a"), grows=True)
    acknowledged = leader.driver.applied_index

    index = await leader.driver.read_index()
    follower = group.followers()[0]
    await follower.driver.wait_applied(index, 10)

    assert index >= acknowledged
    assert any(b"a" in entry.data for entry in follower.state.applied)


async def test_only_the_leader_confirms_reads(group: DriverGroup) -> None:
    """A follower names the leader."""
    group.start()
    leader = await group.leader()
    follower = group.followers()[0]
    await eventually(lambda: follower.driver.core.leader == leader.id)

    with pytest.raises(NotLeader) as refusal:
        await follower.driver.read_index()

    assert refusal.value.leader == leader.id


async def test_a_cut_off_leader_never_confirms_a_read(group: DriverGroup) -> None:
    """It may have been replaced; the read fails when leadership ends, and does not hang."""
    group.start()
    leader = await group.leader()
    group.cut.add(leader.id)

    with pytest.raises(NotLeader):
        await leader.driver.read_index()

    assert leader.driver.core.role is not Role.LEADER


async def test_reads_that_wait_are_refused_when_the_node_stops(group: DriverGroup) -> None:
    """Nobody waits for a node that is gone."""
    group.start()
    leader = await group.leader()
    group.cut.add(leader.id)
    reading = asyncio.ensure_future(leader.driver.read_index())
    await asyncio.sleep(0)

    await group.stop(leader.id)

    with pytest.raises(NotLeader):
        await reading
    with pytest.raises(NotLeader):
        await leader.driver.read_index()


async def test_a_wait_for_an_index_is_bounded_in_time(group: DriverGroup) -> None:
    """A node that lags says so."""
    group.start()
    leader = await group.leader()

    with pytest.raises(Unavailable, match="has not applied entry 1000000"):
        await leader.driver.wait_applied(1_000_000, 0.01)


async def test_waits_for_an_index_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overload is a typed error; who gave up makes room."""
    monkeypatch.setattr(reads, "MAX_WAITING_READS", 2)
    waiters = AppliedWaiters()
    patient = asyncio.ensure_future(waiters.wait(7, 10))
    hasty = asyncio.ensure_future(waiters.wait(8, 10))
    await asyncio.sleep(0)

    with pytest.raises(Overloaded, match="2 reads wait"):
        await waiters.wait(9, 10)
    hasty.cancel()
    await asyncio.wait({hasty})
    third = asyncio.ensure_future(waiters.wait(6, 10))
    await asyncio.sleep(0)
    waiters.applied(7)

    await asyncio.gather(patient, third)
