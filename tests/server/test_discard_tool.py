"""`dledger log discard`: a group of one gives up what rotted on its only disk, and leads again."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger.cli import log_tool
from dledger.client import Compaction, Record
from dledger.errors import Refused
from dledger.files.files import RealFiles
from dledger.server import node
from dledger.server.discard_tool import _Disk, check_alone, plan_of
from dledger.store.discards import Discard, load_discards, save_discards
from dledger.types import Member, Membership, NodeId
from tests.store.harness import DATA, Disk, entries
from tests.system.live_nodes import GROUP_ID, LiveNodes
from tests.waiting import eventually

_ME, _OTHER = (Member(id=NodeId(one), name=one, address=f"{one}:1") for one in ("me", "other"))


@pytest.fixture
async def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveNodes]:
    """Return nodes that do not wait for clients when they stop."""
    made = LiveNodes(tmp_path)
    monkeypatch.setattr(node, "_CALLS_GRACE_S", 0)
    monkeypatch.setattr(node, "_TRANSFER_DEADLINE_S", 0)
    yield made
    await made.stop()


def _parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    log_tool.add_arguments(parser)
    return parser.parse_args(arguments)


def _run(*arguments: str) -> int:
    return log_tool.run(_parsed("discard", *arguments))


async def _stored(live: LiveNodes, *numbers: int, snapshot_behind: int) -> dict[int, int]:
    """Found a group, store ten messages, take a snapshot; return the entry of each message."""
    leader = await live.found(*numbers)
    entries = {}
    async with live.client(leader) as client, live.admin(leader) as admin:
        for number in range(10):
            stored = await client.append("topic", [b"%d" % number * 5000], queue_id=0)
            entries[number] = stored.index
            if number == snapshot_behind:
                await admin.snapshot()
    for number in numbers:
        await _applied(live.nodes[number], stored.index)
    return entries


async def _applied(one: node.Node, index: int) -> None:
    await eventually(lambda: one.status().applied_index >= index)


def _rot(data: Path, text: bytes) -> None:
    """Flip a bit in the body of a stored message."""
    for path in (data / "log").glob("*.seg"):
        contents = bytearray(path.read_bytes())
        if (at := contents.find(text * 4000)) >= 0:
            contents[at + 100] ^= 1
            path.write_bytes(bytes(contents))
            return
    raise AssertionError(f"{text!r} is in no segment")


async def _leads(live: LiveNodes) -> bool:
    await live.start(0)
    await eventually(live.nodes[0].engine.is_leader)
    return True


async def test_a_lone_node_gives_up_the_messages_up_to_the_damage_by_name(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is lost is shown first; the group's id and the last entry must be typed."""
    entries = await _stored(live, 0, snapshot_behind=9)
    await live.stop(0)
    data = str(live.data(0))
    _rot(live.data(0), b"3")

    assert _run(data) == 1
    shown = capsys.readouterr().out
    assert f"damaged entries: [{entries[3]}, {entries[3]}]" in shown
    assert "topic topic, queue 0: offsets [0, 4)" in shown
    assert _run(data, "--group-id", GROUP_ID, "--last", str(entries[3] + 1)) == 1
    assert _run(data, "--group-id", GROUP_ID[:-1] + "0", "--last", str(entries[3])) == 1
    assert load_discards(RealFiles(), live.data(0)) == []

    assert _run(data, "--group-id", GROUP_ID, "--last", str(entries[3])) == 0

    assert await _leads(live)
    async with live.client(0) as client:
        read = [one.offset async for one in client.read("topic", 0, start_offset=4)]
        assert read == [4, 5, 6, 7, 8, 9]
        stored = await client.append("topic", [b"next"], queue_id=0)
        assert list(stored.offsets) == [10]
    await live.stop(0)
    assert _run(data) == 0
    (act,) = load_discards(RealFiles(), live.data(0))
    assert (act.messages_below, act.log_behind) == (entries[3] + 1, 0)
    capsys.readouterr()
    log_tool.run(_parsed("verify", data))
    assert "topic topic, queue 0: offsets [0, 4)" in capsys.readouterr().out


async def test_what_a_compacted_topic_loses_is_counted_and_it_is_read_from_0_on(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its queue begins where it did, so a reader gets what is left, and no error."""
    leader = await live.found(0)
    async with live.client(leader) as client, live.admin(leader) as admin:
        await client.create_topic("table", queues=1, compaction=Compaction())
        for number in range(3):
            body, key = b"%d" % number * 5000, str(number)
            stored = await client.append("table", [Record(body=body, keys=(key,))])
        await admin.snapshot()
    await _applied(live.nodes[0], stored.index)
    await live.stop(0)
    data = str(live.data(0))
    _rot(live.data(0), b"1")

    assert _run(data) == 1
    shown = capsys.readouterr().out
    assert _run(data, "--group-id", GROUP_ID, "--last", str(stored.index - 1)) == 0

    assert (
        "topic table, queue 0: 2 messages from offset 0 on, which it keeps as the newest of their "
        "keys (it is compacted)"
    ) in shown
    assert await _leads(live)
    async with live.client(0) as client:
        assert [one.offset async for one in client.read("table", 0)] == [2]
    capsys.readouterr()


async def test_a_lone_node_whose_damage_is_in_no_snapshot_loses_what_is_behind(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing behind an entry that is unknown can be applied."""
    entries = await _stored(live, 0, snapshot_behind=5)
    await live.stop(0)
    _rot(live.data(0), b"7")

    assert _run(str(live.data(0)), "--group-id", GROUP_ID, "--last", str(entries[7])) == 0

    assert "topic topic, queue 0: all from offset 7 on" in capsys.readouterr().out
    assert await _leads(live)
    async with live.client(0) as client:
        assert [one.offset async for one in client.read("topic", 0, start_offset=0)] == [*range(7)]


async def test_a_group_with_peers_gives_up_nothing(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may have the entry: started, they repair it."""
    entries = await _stored(live, 0, 1, 2, snapshot_behind=9)
    await live.stop(0, 1, 2)
    _rot(live.data(0), b"3")

    assert _run(str(live.data(0)), "--group-id", GROUP_ID, "--last", str(entries[3])) == 1

    assert "is not this node alone (orders-1, orders-2)" in capsys.readouterr().err


async def test_a_whole_log_and_a_running_node_are_left_alone(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to give up, or someone uses the disk."""
    await _stored(live, 0, snapshot_behind=9)
    assert _run(str(live.data(0))) == 1
    assert "in use" in capsys.readouterr().err

    await live.stop(0)

    assert _run(str(live.data(0))) == 0


@pytest.mark.parametrize(
    ("membership", "unknown"),
    [
        (Membership.of([_ME, _OTHER]), ()),
        (Membership.of([_ME], learners=[_OTHER]), ()),
        (Membership.of([_ME], outgoing=[_ME, _OTHER]), ()),
        (Membership.of([_OTHER]), ()),
        (Membership(), ()),
        (Membership.of([_ME]), (7,)),
    ],
)
def test_only_a_voter_that_is_surely_alone_gives_up(
    membership: Membership, unknown: tuple[int, ...]
) -> None:
    """A learner, a voter on its way out, or one of a membership that is damaged may have it."""
    check_alone(_ME.id, Membership.of([_ME]), (), group_id="g")

    with pytest.raises(Refused):
        check_alone(_ME.id, membership, unknown, group_id="g")


@pytest.mark.parametrize(
    ("damaged", "below", "behind"),
    [
        ([range(3, 4)], 4, None),
        ([range(3, 5), range(8, 11)], 11, None),
        ([range(12, 13), range(14, 20)], 0, 11),
        ([range(3, 4), range(14, 15)], 4, 13),
        ([range(9, 13)], 11, 10),
    ],
)
def test_what_goes_is_no_more_than_the_damage_takes_along(
    damaged: list[range], below: int, behind: int | None
) -> None:
    """Within the snapshot's state, here up to 10, the messages before it; beyond, all behind it."""
    plan = plan_of(damaged, in_state=10)

    assert (plan.messages_below, plan.log_behind) == (below, behind)


def test_intact_entries_between_very_many_damaged_ones_are_not_given_up() -> None:
    """The log lists at most 1,024 ranges, and joins those that are close; the tool reads again."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3600))
    rotten = range(3, 3500, 3)
    for segment in log._index.segments:
        contents = disk.contents(segment.name)
        for index in rotten:
            if segment.first_index <= index <= segment.last_index:
                contents[segment.position(index) + 40] ^= 1
    log.close()

    with _Disk(disk.files, DATA, disk.identity) as stopped:
        assert stopped.find_damage() == tuple(range(each, each + 1) for each in rotten)
        assert len(stopped._log.faulty) == 1024


def test_acts_are_kept_as_they_were_written(tmp_path: Path) -> None:
    """People read them long after."""
    act = Discard(
        group_id="g", damaged=((3, 4),), messages_below=5, log_behind=0, lost=("ü",), at_ms=7
    )
    save_discards(RealFiles(), tmp_path, [act, act])

    assert load_discards(RealFiles(), tmp_path) == [act, act]
