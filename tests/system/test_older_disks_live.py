"""A disk that is put back to an older copy of itself: told, abstaining, and caught up."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

HEALED_S = 30.0


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


async def _append(live: LiveNodes, leader: int, word: bytes, count: int) -> None:
    async with live.client(leader) as client:
        for number in range(count):
            await client.append("topic", [b"%s-%d" % (word, number)], queue_id=0)


async def _bodies(live: LiveNodes, number: int) -> list[bytes]:
    async with live.client(number) as client:
        return [
            bytes(each.record.body) async for each in client.read("topic", 0, linearizable=True)
        ]


async def _copied(live: LiveNodes, number: int, where: Path) -> None:
    """Copy the disk of a node, which is started again."""
    await live.stop(number)
    shutil.copytree(live.data(number), where)
    await live.start(number)


def _put_back(live: LiveNodes, number: int, copy: Path) -> None:
    live.wipe(number)
    shutil.copytree(copy, live.data(number))


def _told(live: LiveNodes, number: int) -> float:
    return float(live.nodes[number]._metrics.older_disks._value.get())


async def _all_have(live: LiveNodes) -> None:
    last = live.status(await live.leader()).last_index
    await eventually(
        lambda: all(live.status(each).applied_index >= last for each in live.nodes),
        deadline_s=HEALED_S,
    )


@pytest.mark.found
@pytest.mark.parametrize("durability", ["sync", "osBuffer"])
async def test_a_follower_that_comes_back_with_less_is_caught_up(
    live: LiveNodes, durability: str, tmp_path: Path
) -> None:
    """The leader asked for what came behind its last ack, and took each no for an old one."""
    live.where(durability=durability)
    leader = await live.found(0, 1, 2)
    victim, third = (leader + 1) % 3, (leader + 2) % 3
    await _append(live, leader, b"early", 10)
    await _copied(live, victim, tmp_path / "copy")
    await _append(live, leader, b"late", 20)
    await _all_have(live)
    await live.stop(victim)
    _put_back(live, victim, tmp_path / "copy")

    await live.start(victim)

    await _all_have(live)
    assert live.status(victim).older_copy == ""
    assert _told(live, victim) == (durability == "sync"), "what osBuffer loses is no older copy"
    await live.stop(third)
    await _append(live, leader, b"counted", 1)


@pytest.mark.found
async def test_an_older_copy_does_not_vote_away_what_was_acknowledged(
    live: LiveNodes, tmp_path: Path
) -> None:
    """With the leader away it gives no vote, for who is there knows what it had."""
    leader = await live.found(0, 1, 2)
    victim, third = (leader + 1) % 3, (leader + 2) % 3
    await _append(live, leader, b"early", 10)
    await _copied(live, victim, tmp_path / "copy")
    await _append(live, leader, b"late", 20)
    await _all_have(live)
    known = live.nodes[third]
    promised = live.status(leader).last_index
    await eventually(lambda: _mark(live, third, victim) >= promised)
    await live.stop(leader, victim)
    _put_back(live, victim, tmp_path / "copy")

    await live.start(victim)

    await eventually(lambda: live.status(victim).older_copy)
    ends_s = time.monotonic() + 2
    while time.monotonic() < ends_s:
        assert not any(node.engine.is_leader() for node in live.nodes.values())
        await asyncio.sleep(0.05)
    assert known.status().term >= 1
    await live.start(leader)
    await eventually(lambda: not live.status(victim).older_copy, deadline_s=HEALED_S)
    await _all_have(live)
    expected = [b"early-%d" % n for n in range(10)] + [b"late-%d" % n for n in range(20)]
    for number in live.nodes:
        assert await _bodies(live, number) == expected


def _mark(live: LiveNodes, asked: int, of: int) -> int:
    """Return how far a node knows another's log to have reached."""
    driver = live.nodes[asked]._driver
    assert driver is not None
    mark = driver.core.witness.known.get(live.nodes[of].node_id)
    return mark.last_index if mark else 0


async def test_one_damaged_byte_of_a_state_file_costs_a_node_nothing(live: LiveNodes) -> None:
    """It starts from the other copy, votes, and counts what it mended."""
    leader = await live.found(0, 1, 2)
    await live.stop(leader)
    for name in ("hard_state", "identity.json.copy"):
        path = live.data(leader) / name
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)

    await live.start(leader)

    await eventually(lambda: live.status(leader).leader_id)
    assert live.nodes[leader]._metrics.mended_state_files._value.get() == 2


async def test_a_whole_group_that_starts_asks_and_answers_at_once(live: LiveNodes) -> None:
    """Nobody waits for who waits; and with one away the rest wait for it for a bounded time."""
    await live.found(0, 1, 2)
    await live.stop(0, 1, 2)

    await live.start(0, 1, 2)

    await live.leader()
    drivers = [node._driver for node in live.nodes.values()]
    assert [driver is not None and driver.core.asks for driver in drivers] == [False] * 3
    await live.stop(0, 1, 2)
    await live.start(0, 2)
    await live.leader()
