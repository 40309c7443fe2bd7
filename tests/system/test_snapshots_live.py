"""Retention and snapshots of whole nodes, by their settings and through Admin."""

from __future__ import annotations

from functools import partial

import pytest

from dledger.client import Client
from dledger.errors import InvalidArgument
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

_BODY = b"x" * (64 << 10)


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes whose disks are always too full: only the newest segment is kept."""
    return unfounded.where(segment_bytes=1 << 20, storage_bytes=64 << 20, disk_watermark_percent=1)


def _range(live: LiveNodes, number: int) -> tuple[int, int]:
    queue = live.nodes[number].engine.state.topics.queue("topic", 0)
    return queue.first, queue.end


def _has_range(live: LiveNodes, number: int, expected: tuple[int, int]) -> bool:
    return _range(live, number) == expected


async def _read(client: Client, start_offset: int) -> list[int]:
    """Return the offsets of all messages that can be read from *start_offset* on."""
    return [stored.offset async for stored in client.read("topic", 0, start_offset=start_offset)]


def _segments(live: LiveNodes, number: int) -> int:
    return len(list((live.data(number) / "log").glob("*.seg")))


async def _fill(live: LiveNodes, number: int) -> None:
    async with live.client(number) as client:
        for _ in range(40):
            await client.append("topic", [_BODY], queue_id=0)


async def test_old_segments_go_on_every_node_and_readers_are_told(live: LiveNodes) -> None:
    """The answer to a read below says what is left; the segment that is written is never lost."""
    leader = await live.found(0, 1, 2)

    await _fill(live, leader)
    await eventually(lambda: all(_segments(live, number) == 1 for number in range(3)))
    first, end = await eventually(lambda: _range(live, leader))

    assert 0 < first < end == 40
    for number in range(3):
        await eventually(partial(_has_range, live, number, (first, end)))
        async with live.client(number) as client:
            assert await _read(client, first) == list(range(first, end))
            with pytest.raises(InvalidArgument, match=rf"\[{first}, {end}\]"):
                await _read(client, first - 1)


async def test_a_new_replica_of_a_shortened_log_gets_every_message_that_is_kept(
    live: LiveNodes,
) -> None:
    """Through AddLearner, a snapshot and the rest of the log; it reads from its own disk."""
    leader = await live.found(0, 1, 2)
    await _fill(live, leader)
    await eventually(lambda: all(_segments(live, number) == 1 for number in range(3)))
    await live.start(3)

    async with live.admin(leader) as admin:
        await admin.add_learner(live.member(3))
    await live.voters(4)
    first, end = _range(live, leader)
    await eventually(lambda: _range(live, 3) == (first, end))

    async with live.client(3) as client:
        assert await _read(client, first) == list(range(first, end))
    assert live.nodes[3].engine.state.digest() == live.nodes[leader].engine.state.digest()


async def test_admin_asks_for_a_snapshot(live: LiveNodes) -> None:
    """It covers everything that is applied, and the node starts from it."""
    leader = await live.found(0, 1, 2)
    async with live.client(leader) as client:
        await client.append("topic", [b"a"], queue_id=0)
    applied = live.status(leader).applied_index

    async with live.admin(leader) as admin:
        index = await admin.snapshot()
    again = await _restarted(live, leader)

    assert index >= applied
    assert again >= index


async def _restarted(live: LiveNodes, number: int) -> int:
    """Start a node anew; return what its state covered before it heard of anybody."""
    await live.stop(number)
    await live.start(number)
    return live.nodes[number].engine.state.applied_index
