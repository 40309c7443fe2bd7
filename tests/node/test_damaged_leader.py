"""A leader whose log is damaged where no follower has got to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.node.group import IDS, TestGroup, command, eventually


async def _write_alone(group: TestGroup) -> tuple[Path, int, int]:
    """Let one node write what no other gets; return a record: its file, place and index."""
    leader = await group.leader()
    await leader.driver.propose(command("shared"), grows=True)
    await eventually(lambda: len({n.log.last_index for n in group.nodes.values()}) == 1)
    shared = leader.log.last_index
    await group.stop(*(node.id for node in group.followers()))
    lost = []
    for number in range(6):
        lost.append(leader.driver.submit(bytes(60_000), grows=True))
        await eventually(lambda at=shared + number + 1: leader.log.synced_index >= at)  # type: ignore[misc]
    extent, _ = leader.log.read_extent(shared + 1, shared + 1, 1)
    await group.stop(leader.id)
    await asyncio.gather(*lost, return_exceptions=True)
    return Path(leader.id) / "log" / extent.segment.name, extent.offset, shared + 1


@pytest.mark.asyncio
async def test_a_leader_that_cannot_send_its_damaged_entry_gives_way(tmp_path: Path) -> None:
    """Nobody can have its whole log, so a hand-over would wait for ever; a majority decides."""
    group = TestGroup(tmp_path, segment_bytes=1 << 18)
    group.start()
    name, offset, index = await _write_alone(group)
    data = bytearray((tmp_path / name).read_bytes())
    data[offset + 200] ^= 1
    (tmp_path / name).write_bytes(bytes(data))
    damaged_id, first, second = sorted(IDS, key=lambda one: one != name.parts[0])
    group.start(damaged_id, first)
    damaged = group.nodes[damaged_id]
    await eventually(
        lambda: damaged.driver.core.role.value == "leader" and damaged.log.is_faulty(index)
    )
    group.start(second)

    damaged.driver.hand_over_damaged()

    leader = await group.leader()
    assert leader is not damaged
    await leader.driver.propose(command("goes on"), grows=True)
    await eventually(
        lambda: damaged.log.is_whole and damaged.driver.applied_index == leader.driver.applied_index
    )
    assert [e.data for e in damaged.state.applied] == [command("shared"), command("goes on")]
    await group.stop()
