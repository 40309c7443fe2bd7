"""A leader that no majority acknowledges says so: the decision, then real drivers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from crc32c import crc32c

from dledger.common.status import MemberStatus, NodeStatus
from dledger.raft.messages import AppendRequest, AppendResponse, Message
from dledger.replica.leader_health import CommitWatch
from dledger.services.admin import status_response
from dledger.types import EntryKind, Member, NodeId
from tests.replica.group import DriverGroup, DriverNode, command
from tests.waiting import eventually

pytestmark = pytest.mark.found


def test_what_waits_is_timed_from_the_last_commit() -> None:
    """Each entry that is committed shows that a majority is there."""
    watch = CommitWatch()

    assert watch.waited_s(1.0) == 0.0
    watch.look(1.0, 5)
    assert watch.waited_s(3.0) == 2.0
    watch.look(3.0, 6)
    assert watch.waited_s(3.5) == 0.5
    watch.look(4.0, None)
    assert watch.waited_s(9.0) == 0.0


async def test_a_leader_whose_entries_nobody_acknowledges_says_so(tmp_path: Path) -> None:
    """Its heartbeats are answered, so that it goes on leading (found: S10)."""
    group = DriverGroup(tmp_path)
    group.start()
    leader = await group.leader()
    await eventually(lambda: leader.driver.commit_waits_s() == 0.0)

    def lose(message: Message) -> Message:
        if isinstance(message, AppendResponse):
            return replace(message, recipient=NodeId("nobody"))
        return message

    group.tamper = lose
    waiting = leader.driver.submit(command("x"), grows=True)
    await eventually(lambda: leader.driver.commit_waits_s() > 1.0)
    assert leader.driver.is_serving_leader()

    group.tamper = lambda message: message
    await waiting
    await eventually(lambda: leader.driver.commit_waits_s() == 0.0)
    await group.stop()


def _are_level(one: DriverNode, other: DriverNode) -> bool:
    return one.driver.applied_index == other.driver.applied_index


async def test_an_entry_that_was_mangled_on_its_way_costs_one_message(tmp_path: Path) -> None:
    """It is refused, counted and sent again, and no follower ever applies it (found: S8c)."""
    group = DriverGroup(tmp_path)
    group.start()
    leader = await group.leader()
    hit: list[NodeId] = []

    def mangle(message: Message) -> Message:
        if not isinstance(message, AppendRequest):
            return message
        entries = message.entries
        if not entries or entries[-1].kind is not EntryKind.DATA or message.recipient in hit:
            return message
        hit.append(message.recipient)
        data = entries[-1].data.replace(b"true", b"evil")
        evil = replace(entries[-1], data=data, crc32c=crc32c(data))
        return replace(message, entries=(*entries[:-1], evil))

    group.tamper = mangle
    await leader.driver.submit(command("true"), grows=True)

    for node in group.nodes.values():
        await eventually(partial(_are_level, node, leader))
        assert node.log.chain(node.log.last_index) == leader.log.chain(leader.log.last_index)
    for follower in group.followers():
        labels = {"group": "test", "node": follower.id, "reason": "DivergedLog"}
        refused = follower.metrics.registry.get_sample_value
        assert refused("dledger_refused_messages_total", labels) == 1
    await group.stop()


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**70])
def test_a_number_that_does_not_fit_does_not_hide_a_status(number: int) -> None:
    """Whoever looks after the group was blind for good (found: S5)."""
    row = MemberStatus(
        member=Member(id=NodeId("a"), name="a", address="a:1"),
        role="follower",
        match_index=number,
        lag=-number,
        connected=True,
    )
    status = NodeStatus(
        node_id="a",
        name="a",
        group="g",
        group_id="g",
        role="leader",
        term=number,
        leader_id="a",
        commit_index=number,
        applied_index=number,
        last_index=number,
        synced_index=number,
        ready=True,
        not_ready_reason="",
        members=(row,),
        last_failover=None,
        version="1",
        storage_used_bytes=1,
        storage_capacity_bytes=2,
        writes_refused_reason="",
    )

    told = status_response(status)

    assert told.term == told.commit_index == told.members[0].match_index == 2**63 - 1
    assert told.members[0].lag == -(2**63)
