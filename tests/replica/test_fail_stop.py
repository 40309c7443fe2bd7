"""A disk or a program that fails: nothing is said any more, except who should lead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.errors import LeadershipLost, NotLeader, StorageError
from dledger.raft.messages import TimeoutNow
from dledger.types import NodeId
from tests.replica.gated_files import GatedFiles
from tests.replica.group import IDS, DriverGroup, command
from tests.waiting import eventually


@pytest.fixture
def files() -> dict[NodeId, GatedFiles]:
    return {node: GatedFiles() for node in IDS}


async def test_a_leader_whose_sync_fails_names_an_heir_and_stops(
    tmp_path: Path, files: dict[NodeId, GatedFiles]
) -> None:
    """TimeoutNow needs no disk; nothing else leaves, and nobody waits for an answer."""
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    files[leader.id].fails = True

    with pytest.raises((LeadershipLost, NotLeader)):
        await leader.driver.propose(command("lost?"), grows=True)

    assert [type(error) for error in leader.fatal] == [StorageError]
    said = [message for message in group.sent if message.sender == leader.id]
    assert isinstance(said[-1], TimeoutNow)
    assert not leader.driver.is_serving_leader()
    with pytest.raises(NotLeader):
        await leader.driver.propose(command("later"), grows=True)
    others = [node for node in group.nodes.values() if node is not leader]
    successor = await eventually(
        lambda: next((n for n in others if n.driver.is_serving_leader()), None)
    )
    assert await successor.driver.propose(command("after"), grows=True) == "after"
    await group.stop()


async def test_what_was_queued_when_the_disk_failed_goes_to_the_next_leader(
    tmp_path: Path, files: dict[NodeId, GatedFiles]
) -> None:
    """It was never proposed: the request is not at fault, and another node can take it."""
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    files[leader.id].gate.clear()
    first = asyncio.create_task(leader.driver.propose(command("first"), grows=True))
    await eventually(lambda: leader.driver.sync_running_s() > 0)
    queued = asyncio.create_task(leader.driver.propose(command("queued"), grows=True))
    await eventually(lambda: leader.driver.queued_bytes > 0)

    files[leader.id].fails = True
    files[leader.id].gate.set()

    with pytest.raises(NotLeader):
        await queued
    await asyncio.gather(first, return_exceptions=True)
    await group.stop()


async def test_a_follower_whose_sync_fails_says_nothing_more(
    tmp_path: Path, files: dict[NodeId, GatedFiles]
) -> None:
    """The group goes on with the others."""
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    failing = group.followers()[0]
    files[failing.id].fails = True

    await leader.driver.propose(command("x"), grows=True)
    await eventually(lambda: failing.fatal)
    said = len([message for message in group.sent if message.sender == failing.id])
    await leader.driver.propose(command("y"), grows=True)

    assert len([message for message in group.sent if message.sender == failing.id]) == said
    await group.stop()


async def test_a_node_that_cannot_apply_an_entry_stops(tmp_path: Path) -> None:
    """What is behind it must not be applied without it: the state would be another one."""
    group = DriverGroup(tmp_path)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("before"), grows=True)
    failing = group.followers()[0]
    fault = RuntimeError("a fault of ours")

    def listen() -> None:
        raise fault

    failing.driver.on_applied(listen)
    await leader.driver.propose(command("x"), grows=True)
    await eventually(lambda: failing.fatal)
    applied_index = failing.driver.applied_index

    assert await leader.driver.propose(command("y"), grows=True) == "y"
    assert failing.fatal == [fault]
    assert not failing.driver.is_running
    assert failing.driver.applied_index == applied_index
    await group.stop()
