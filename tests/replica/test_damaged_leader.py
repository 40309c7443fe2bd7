"""A leader whose log is damaged where no follower has got to."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from dledger.files.files import RealFiles
from dledger.store.commit_log import CommitLog
from dledger.store.identity import LOG_DIRECTORY, load_or_format
from tests.raft.bench import data_entry
from tests.replica.group import IDS, DriverGroup, DriverNode, command
from tests.waiting import eventually


def _has_synced(node: DriverNode, index: int) -> bool:
    return node.log.synced_index >= index


def _has_applied(node: DriverNode, entries: int) -> bool:
    return len(node.state.applied) == entries


async def _write_alone(group: DriverGroup) -> tuple[Path, int, int]:
    """Let one node write what no other gets; return a record: its file, place and index.

    They are as large as what does not wait for the entry before to be committed.
    """
    leader = await group.leader()
    await leader.driver.propose(command("shared"), grows=True)
    await eventually(lambda: len({n.log.last_index for n in group.nodes.values()}) == 1)
    shared = leader.log.last_index
    await group.stop(*(node.id for node in group.followers()))
    lost = []
    for number in range(6):
        lost.append(leader.driver.submit(bytes(1 << 16), grows=True))
        await eventually(partial(_has_synced, leader, shared + number + 1))
    extent, _ = leader.log.read_extent(shared + 1, shared + 1, 1)
    await group.stop(leader.id)
    await asyncio.gather(*lost, return_exceptions=True)
    return Path(leader.id) / "log" / extent.segment.name, extent.offset, shared + 1


@pytest.mark.asyncio
async def test_a_leader_that_cannot_send_its_damaged_entry_gives_way(tmp_path: Path) -> None:
    """Nobody can have its whole log, so a hand-over would wait for ever; a majority decides."""
    group = DriverGroup(tmp_path, segment_bytes=1 << 18)
    group.start()
    name, offset, index = await _write_alone(group)
    _flip(tmp_path / name, offset + 200)
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


def _add_damaged(directory: Path, name: str, *, term: int, count: int) -> None:
    """Append to a stopped node's log what nobody else has, and damage it."""
    files = RealFiles()
    identity = load_or_format(files, directory, f"node-{name}", new_id=lambda: name)
    log = CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity)
    first = log.last_index + 1
    log.append([data_entry(term, first + at, command("alone")) for at in range(count)])
    log.sync()
    extent, _ = log.read_extent(first, log.last_index, 1 << 20)
    log.close()
    _flip(directory / LOG_DIRECTORY / extent.segment.name, extent.offset + 8)


def _flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.asyncio
async def test_two_damaged_ends_do_not_keep_a_group_from_a_leader(tmp_path: Path) -> None:
    """Seed 6260: each alone had an entry, and could not campaign without it; the third had less."""
    group = DriverGroup(tmp_path)
    group.start()
    leader = await group.leader()
    await leader.driver.propose(command("shared"), grows=True)
    await eventually(lambda: all(node.state.applied for node in group.nodes.values()))
    term = leader.driver.core.term
    await group.stop()
    one, other, _ = IDS
    _add_damaged(tmp_path / one, one, term=term, count=3)
    _add_damaged(tmp_path / other, other, term=term + 1, count=1)
    group.start()
    damaged = [group.nodes[one], group.nodes[other]]
    assert not any(node.log.is_whole for node in damaged)
    await asyncio.sleep(0.5)
    assert all(node.driver.core.leader is None for node in group.nodes.values())

    for node in damaged:
        node.driver.entries_lost(node.log.faulty)

    leader = await group.leader()
    await leader.driver.propose(command("goes on"), grows=True)
    for node in group.nodes.values():
        await eventually(partial(_has_applied, node, 2))
        assert [e.data for e in node.state.applied] == [command("shared"), command("goes on")]
        assert node.log.is_whole
    await group.stop()
