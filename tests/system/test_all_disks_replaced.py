"""All disks of a group are replaced, one after the other: the last new one knows none of the rest.

Whole nodes on real disks and ports. What a new disk gets first, a base or the log from its start,
names the members of that time, and of those nobody is left.
"""

from __future__ import annotations

import pytest

from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

_BODY = b"x" * (900 << 10)
_MESSAGES = 5
"""More than one append carries, so that no single one has the log up to the newest members."""


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


async def _fill(live: LiveNodes) -> None:
    async with live.client(await live.leader(), timeout_s=60) as client:
        for _ in range(_MESSAGES):
            await client.append("topic", [_BODY], queue_id=0)


async def _replace_disk(live: LiveNodes, number: int) -> None:
    """Give up a node's disk as ReplaceMember does, and wait until the new one votes."""
    old = live.nodes[number].node_id
    await live.stop(number)
    live.wipe(number)
    await live.start(number)
    async with live.admin(await live.leader(), timeout_s=60) as admin:
        await admin.change_members(add=[live.member(number)], remove=[old])
    await eventually(lambda: _is_settled(live), deadline_s=120)


def _begins_late(live: LiveNodes, number: int) -> bool:
    """Whether a node's log is without the founding entry."""
    log = live.nodes[number]._log
    return log is not None and log.first_index > 1


def _is_settled(live: LiveNodes) -> bool:
    """Whether each node knows a final, committed membership of just these; a joint one has both."""
    ids = {node.node_id for node in live.nodes.values()}
    cores = [node._driver.core for node in live.nodes.values() if node._driver is not None]
    return len(cores) == len(ids) and all(
        core.membership.voter_ids == ids
        and not core.membership.is_joint
        and core.membership_index <= core.commit_index
        for core in cores
    )


@pytest.mark.parametrize("has_base", [True, False], ids=["from a base", "from the first entry"])
async def test_all_disks_of_a_group_are_replaced_one_after_the_other(
    live: LiveNodes, has_base: bool
) -> None:
    """The last one hears the present members, whom nobody that it knows could introduce."""
    if has_base:  # its log begins where retention left it before the first disk was given up
        live.where(segment_bytes=1 << 20, storage_bytes=64 << 20, disk_watermark_percent=1)
    leader = await live.found(0, 1, 2)
    await _fill(live)
    if has_base:
        await eventually(lambda: all(_begins_late(live, number) for number in range(3)))
    founders = {live.nodes[number].node_id for number in range(3)}

    for number in ((leader + 1) % 3, (leader + 2) % 3, leader):
        await _replace_disk(live, number)

    last = live.status(await live.leader()).last_index
    await eventually(lambda: all(live.status(n).applied_index >= last for n in range(3)))
    states = [live.nodes[number].engine.state.digest() for number in range(3)]
    members = {row.member.id for row in live.status(leader).members}
    assert states[0] == states[1] == states[2]
    assert len(members) == 3
    assert not members & founders
