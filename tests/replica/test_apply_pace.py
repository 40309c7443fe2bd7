"""A follower applies small entries with others, but at once what somebody waits for (ADR 38)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.raft.messages import HeartbeatRequest, Message
from dledger.replica.driver import DriverConfig
from dledger.types import NodeId, Role
from tests.replica.group import DriverGroup, DriverNode, command
from tests.waiting import eventually


class Quiet(DriverGroup):
    """A group in which no heartbeat arrives while `quiet`; nobody stands for election meanwhile."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, config=DriverConfig(tick_s=0.5))
        self.quiet = False
        self.tamper = self._dropped

    def _dropped(self, message: Message) -> Message:
        if self.quiet and isinstance(message, HeartbeatRequest):
            return replace(message, recipient=NodeId("nobody"))
        return message

    async def led(self) -> tuple[DriverNode, DriverNode]:
        """Return leader and a follower that has applied everything so far."""
        self.start()
        first = next(iter(self.nodes.values()))
        await eventually(lambda: first.driver.core.membership.voters)
        first.driver.campaign()
        leader = await self.leader()
        await leader.driver.propose(command("before"), grows=True)
        follower = self.followers()[0]
        await eventually(lambda: self.settled(leader, follower))
        self.quiet = True
        return leader, follower

    @staticmethod
    def settled(leader: DriverNode, follower: DriverNode) -> bool:
        """Whether the follower has applied all that is committed."""
        return follower.driver.applied_index == leader.driver.core.last_index


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Quiet]:
    """Return a group, stopped afterwards."""
    made = Quiet(tmp_path)
    yield made
    await made.stop()


async def _commit(leader: DriverNode, follower: DriverNode, *texts: str) -> int:
    """Commit entries one at a time; return the newest that the follower knows to be committed."""
    for text in texts:
        await leader.driver.propose(command(text), grows=True)
    newest = leader.driver.core.last_index
    await eventually(lambda: follower.driver.core.durable_index == newest)
    assert follower.driver.core.commit_index == newest - 1
    return newest - 1


async def test_small_entries_wait_for_a_heartbeat(group: Quiet) -> None:
    """The same that tells a follower of the newest one."""
    leader, follower = await group.led()
    before = follower.driver.applied_index

    await _commit(leader, follower, "a", "b", "c")
    await asyncio.sleep(0.05)
    assert follower.driver.applied_index == before

    group.quiet = False
    await eventually(lambda: group.settled(leader, follower))
    assert follower.state.applied == leader.state.applied


async def test_who_waits_for_an_entry_waits_for_no_heartbeat(group: Quiet) -> None:
    """Whether it is committed already, or later."""
    leader, follower = await group.led()
    committed = await _commit(leader, follower, "a", "b")

    async with asyncio.timeout(5):
        await follower.driver.wait_applied(committed, 10)
        waiting = asyncio.ensure_future(follower.driver.wait_applied(committed + 1, 10))
        await asyncio.sleep(0)
        await leader.driver.propose(command("c"), grows=True)
        await waiting


async def test_who_waits_for_a_later_entry_waits_for_no_heartbeat_either(group: Quiet) -> None:
    """What is applied before it ends no wait."""
    leader, follower = await group.led()
    committed = await _commit(leader, follower, "a", "b")

    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(follower.driver.wait_applied(committed + 2, 10))
        await _commit(leader, follower, "c", "d")
        await leader.driver.propose(command("e"), grows=True)
        await waiting


async def test_what_is_awaited_is_applied_when_it_is_committed(group: Quiet) -> None:
    """A reader that follows a queue here waits for no entry, but for what comes."""
    leader, follower = await group.led()
    follower.driver.on_applied(lambda: None, lambda: True)

    committed = await _commit(leader, follower, "a", "b", "c")

    assert follower.driver.applied_index == committed


async def test_large_entries_do_not_wait(group: Quiet) -> None:
    """Nor do many small ones: what waits takes 16 KiB at most."""
    leader, follower = await group.led()

    await _commit(leader, follower, *("x" * 200,) * 60)

    behind = follower.driver.core.commit_index - follower.driver.applied_index
    assert 0 < behind < 40


async def test_who_becomes_leader_applies_at_once(group: Quiet) -> None:
    """It serves once it has applied what was acknowledged before its term."""
    leader, follower = await group.led()
    await _commit(leader, follower, "a", "b", "c")

    leader.driver.transfer_leadership(follower.id)
    await eventually(lambda: follower.driver.core.role is Role.LEADER)
    await eventually(follower.driver.is_serving_leader, deadline_s=1)

    assert follower.state.applied == leader.state.applied
