"""Rot on running and stopped nodes: found, fetched from peers, whole again byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from dledger.replica import scrubber
from dledger.store.segment import Segment
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually, eventually_works

NAME = "00000000000000000001.seg"


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


async def filled(live: LiveNodes) -> int:
    """Found a group of three that all have the same 40 entries; return the leader's number."""
    leader = await live.found(0, 1, 2)
    async with live.client(leader) as client:
        for number in range(40):
            await client.append("topic", [b"%d" % number * 50], queue_id=0)
    last = live.status(leader).last_index
    await eventually(lambda: all(live.status(n).applied_index >= last for n in live.nodes))
    return leader


def segment(live: LiveNodes, number: int) -> Segment:
    log = live.nodes[number]._log
    assert log is not None
    return log._index.segments[0]


def flip(path: Path, positions: Iterable[int]) -> bytes:
    """Flip a bit at each position; return the bytes as they were."""
    good = path.read_bytes()
    with path.open("r+b") as file:
        for position in positions:
            file.seek(position)
            file.write(bytes([good[position] ^ 4]))
    return good


async def whole(live: LiveNodes, number: int) -> None:
    """Wait until a node has repaired what it found."""
    metric = live.nodes[number]._metrics.repaired_entries
    await eventually(lambda: metric._value.get() > 0 and live.status(number).faulty_entries == 0)


async def test_a_stopped_nodes_rot_is_repaired_from_peers(live: LiveNodes) -> None:
    """Also that of the founding entry, without which it does not even know its peers."""
    leader = await filled(live)
    rotten = (leader + 1) % 3
    records = segment(live, rotten)
    positions = [records.position(index) + 45 for index in (1, 2, 20, 21, 41)]
    end = records.end
    await live.stop(rotten)
    path = live.data(rotten) / "log" / NAME
    good = flip(path, positions)

    await live.start(rotten)
    await whole(live, rotten)

    assert path.read_bytes()[:end] == good[:end]
    last = live.status(leader).last_index
    await eventually(lambda: live.status(rotten).applied_index >= last)
    assert [row.member.name for row in live.status(rotten).members] == [
        "orders-0",
        "orders-1",
        "orders-2",
    ]


async def test_nodes_repair_each_other_without_a_leader(live: LiveNodes) -> None:
    """Each lacks something else, so none may campaign until it was given what it lacks."""
    await filled(live)
    ends = {number: segment(live, number).end for number in range(3)}
    places = {
        number: [segment(live, number).position(index) + 60 for index in range(5 + number, 41, 3)]
        for number in range(3)
    }
    await live.stop()
    paths = {number: live.data(number) / "log" / NAME for number in range(3)}
    good = {number: flip(paths[number], places[number]) for number in range(3)}

    await live.start(0, 1, 2)
    for number in range(3):
        await whole(live, number)
    await live.leader()

    for number in range(3):
        assert paths[number].read_bytes()[: ends[number]] == good[number][: ends[number]]
    async with live.client(0) as client:
        await eventually_works(lambda: client.append("topic", [b"after"], queue_id=0))


async def test_a_lost_segment_file_comes_back_whole(live: LiveNodes) -> None:
    """All that is left is who its records were."""
    leader = await filled(live)
    rotten = (leader + 1) % 3
    end = segment(live, rotten).end
    await live.stop(rotten)
    path = live.data(rotten) / "log" / NAME
    good = path.read_bytes()
    path.unlink()

    await live.start(rotten)
    await whole(live, rotten)

    assert path.read_bytes()[:end] == good[:end]


async def test_a_running_nodes_rot_is_found_by_scrubbing_and_repaired(
    live: LiveNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the leader and of a follower, in what nobody asks for; writes go on meanwhile."""
    monkeypatch.setattr(scrubber, "_PAUSE_S", 0.1)
    leader = await filled(live)
    rotten = (leader, (leader + 1) % 3)
    end = segment(live, leader).end
    good = {}
    for number in rotten:
        positions = [segment(live, number).position(3 + number) + 50]
        good[number] = flip(live.data(number) / "log" / NAME, positions)

    async with live.client(leader) as client:
        for number in rotten:
            await whole(live, number)
            await client.append("topic", [b"meanwhile"], queue_id=0)

    for number in rotten:
        assert (live.data(number) / "log" / NAME).read_bytes()[:end] == good[number][:end]
    assert await live.leader() == leader
