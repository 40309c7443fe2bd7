"""Snapshots of real drivers on real disks: restart, retention, and a replica that was away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.broker.commands import CreateGroup, CreateTopic, Receive, Retain
from dledger.broker.message import Columns
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.results import Produced, Received, Retained
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.errors import CorruptFile
from dledger.files.files import DiskUsage
from dledger.raft.messages import InstallSnapshotRequest, Message
from dledger.replica.maintenance import Maintenance, SnapshotPolicy
from dledger.replica.retention import RetentionPolicy
from dledger.replica.snapshots import Snapshots
from tests.replica.group import DriverGroup, DriverNode
from tests.waiting import eventually

_BODY = b"x" * 60_000
_METRICS = NodeMetrics("orders", "orders-0")
_ROOMY = DiskUsage(total_bytes=1 << 40, free_bytes=1 << 39)
_TIGHT = DiskUsage(total_bytes=8 << 20, free_bytes=700 << 10)
_SMALL_BYTES = 600_000
"""What a node may use that has room for two segments."""


def _state(node: DriverNode) -> BrokerState:
    assert node.broker is not None
    return node.broker


def _snapshots(node: DriverNode) -> Snapshots:
    return node.snapshots


def _brokers(directory: Path) -> DriverGroup:
    return DriverGroup(directory, brokers=True, segment_bytes=1 << 18)


async def _produce(leader: DriverNode, *numbers: int) -> list[Produced]:
    results = []
    for number in numbers:
        batch = Columns(message_ids=[str(number)], bodies=[_BODY], born_at_ms=[number])
        command = encode_produce(batch, client_id="c", topic="t", queue_id=0)
        result = await leader.driver.propose(command, grows=True)
        assert isinstance(result, Produced)
        results.append(result)
    return results


async def _create(leader: DriverNode) -> None:
    for command in (CreateTopic(name="t", type="NORMAL", queues=1), CreateGroup(name="g")):
        await leader.driver.propose(command.encode(), grows=True)


def _upkeep(
    node: DriverNode,
    *,
    hours: int = 0,
    budget_bytes: int = 0,
    group_hours: int = 0,
    usage: Callable[[], DiskUsage] = lambda: _ROOMY,
) -> Maintenance:
    node.driver.room.configure(budget_bytes=budget_bytes, percent=85)
    return Maintenance(
        node.driver,
        node.log,
        _state(node),
        _snapshots(node),
        retention=RetentionPolicy(hours=hours, group_hours=group_hours),
        policy=SnapshotPolicy(size_bytes=1 << 30, entries=1),
        metrics=_METRICS,
        usage=usage,
    )


async def _digests_agree(group: DriverGroup) -> None:
    def agree() -> bool:
        states = [_state(node) for node in group.nodes.values()]
        ends = {node.driver.applied_index for node in group.nodes.values()}
        return len(ends) == 1 and len({state.digest() for state in states}) == 1

    await eventually(agree)


async def _ask_again(node: DriverNode, damaged: list[range]) -> None:
    """Say that no peer gives these, again and again as `LogRepairer` does; some are applied."""
    while True:
        node.driver.entries_lost(damaged)
        await asyncio.sleep(0.2)


async def _message(node: DriverNode, offset: int) -> int:
    """Read a message back from the node's own disk; return when it was born."""
    place = _state(node).topics.queue("t", 0).locate(offset)
    entry = await node.driver.view.entry(place.payload.index)
    frame = ProduceFrame(entry.data, place.payload.start, place.payload.end)
    return frame.message(place.row).born_at_ms


async def _shorten(group: DriverGroup, before_index: int) -> None:
    """Let all running nodes forget messages below an entry, and drop the segments."""
    leader = await group.leader()
    result = await leader.driver.propose(Retain(before_index=before_index).encode(), grows=False)
    assert isinstance(result, Retained)
    await _digests_agree(group)
    for node in group.nodes.values():
        await _upkeep(node).run()


@pytest.mark.asyncio
async def test_a_node_starts_from_its_snapshot_and_applies_only_what_came_later(
    tmp_path: Path,
) -> None:
    """The state is the same, and no entry is applied twice."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(5))
    index = await _snapshots(leader).take()
    await _produce(leader, 5, 6)
    await leader.driver.propose(
        Receive(
            group="g", topic="t", queue_id=0, any_queue=False, limit=3, invisible_ms=60_000
        ).encode(),
        grows=False,
    )
    digest, last = _state(leader).digest(), leader.driver.applied_index
    await group.stop()

    group.start()
    again = group.nodes[leader.id]
    loaded = _snapshots(again).index
    await eventually(lambda: all(n.driver.applied_index > last for n in group.nodes.values()))

    assert loaded == index
    assert _state(again).digest() == digest
    await _digests_agree(group)
    await group.stop()


@pytest.mark.asyncio
async def test_a_replica_that_was_away_too_long_gets_a_snapshot_and_every_message(
    tmp_path: Path,
) -> None:
    """What the others dropped is gone for it as well; what they keep it has on its own disk."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, 0)
    away = next(node.id for node in group.followers())
    await group.stop(away)
    leader = await group.leader()
    stored = await _produce(leader, *range(1, 20))
    await _shorten(group, stored[9].index)
    await _produce(leader, 20)
    assert leader.log.first_index > stored[4].index

    group.start(away)
    back = group.nodes[away]
    await eventually(lambda: back.log.last_index == leader.log.last_index)
    await _digests_agree(group)

    assert back.log.first_index == stored[9].index
    assert any(isinstance(message, InstallSnapshotRequest) for message in group.sent)
    assert [await _message(back, offset) for offset in range(10, 21)] == list(range(10, 21))
    await group.stop()


@pytest.mark.asyncio
async def test_an_entry_that_rotted_and_that_all_others_dropped_is_replaced_by_a_snapshot(
    tmp_path: Path,
) -> None:
    """The log keeps what is behind it, over a restart too, and the node may lead again."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    stored = await _produce(leader, *range(20))
    lost, kept = stored[1].index, stored[9].index
    node = group.followers()[0]
    await eventually(lambda: node.log.last_index == leader.log.last_index)
    extent, _ = node.log.read_extent(lost, lost, 1)
    place = tmp_path / node.id / "log" / extent.segment.name
    await group.stop(node.id)
    leader = await group.leader()
    await _shorten(group, kept)
    _flip(place, extent.offset + 100)

    group.start(node.id)
    back = group.nodes[node.id]
    await eventually(lambda: back.log.is_faulty(lost))
    assert back.driver.applied_index < lost
    asking = asyncio.create_task(_ask_again(back, [range(1, 2), range(lost, lost + 1)]))
    await _digests_agree(group)
    asking.cancel()
    assert back.log.is_whole
    assert back.log.first_index < kept
    assert [await _message(back, offset) for offset in range(9, 20)] == list(range(9, 20))

    await group.stop(back.id)
    group.start(back.id)
    again = group.nodes[back.id]
    await _digests_agree(group)
    leader.driver.transfer_leadership(again.id)
    await eventually(again.driver.is_serving_leader)
    await group.stop()


@pytest.mark.asyncio
async def test_a_replica_that_got_a_snapshot_can_lead(tmp_path: Path) -> None:
    """It hands out the messages that were stored before it had the snapshot."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    away = next(node.id for node in group.followers())
    await group.stop(away)
    leader = await group.leader()
    stored = await _produce(leader, *range(12))
    await _shorten(group, stored[6].index)
    group.start(away)
    back = group.nodes[away]
    await eventually(lambda: back.log.last_index == leader.log.last_index)

    leader.driver.transfer_leadership(away)
    await eventually(back.driver.is_serving_leader)
    received = await back.driver.propose(
        Receive(
            group="g", topic="t", queue_id=0, any_queue=False, limit=10, invisible_ms=60_000
        ).encode(),
        grows=False,
    )

    assert isinstance(received, Received)
    assert [d.offset for d in received.deliveries] == [6, 7, 8, 9, 10, 11]
    assert [await _message(back, d.offset) for d in received.deliveries] == list(range(6, 12))
    await group.stop()


@pytest.mark.asyncio
async def test_a_replica_that_stops_while_it_catches_up_goes_on_from_there(
    tmp_path: Path,
) -> None:
    """Its state is ahead of its log, and stays so over a restart."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    away = next(node.id for node in group.followers())
    await group.stop(away)
    leader = await group.leader()
    stored = await _produce(leader, *range(12))
    await _shorten(group, stored[6].index)
    group.start(away)
    back = group.nodes[away]
    await eventually(lambda: back.log.first_index > 1)
    await group.stop(away)

    group.start(away)
    again = group.nodes[away]

    assert again.log.first_index == stored[6].index
    assert _snapshots(again).index > stored[-1].index
    await eventually(lambda: again.log.last_index == leader.log.last_index)
    await _digests_agree(group)
    await group.stop()


@pytest.mark.asyncio
async def test_an_installation_that_was_cut_short_is_finished_at_the_next_start(
    tmp_path: Path,
) -> None:
    """The snapshot is durable before the log is replaced; between the two the process may end."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    away = next(node.id for node in group.followers())
    await group.stop(away)
    leader = await group.leader()
    stored = await _produce(leader, *range(12))
    await _shorten(group, stored[6].index)
    newest = max((tmp_path / leader.id / "snapshots").iterdir())
    (tmp_path / away / "snapshots").mkdir()
    (tmp_path / away / "snapshots" / newest.name).write_bytes(newest.read_bytes())

    group.start(away)
    back = group.nodes[away]

    assert back.log.first_index == stored[6].index
    await eventually(lambda: back.log.last_index == leader.log.last_index)
    await _digests_agree(group)
    await group.stop()


@pytest.mark.asyncio
async def test_a_snapshot_that_arrives_damaged_is_asked_for_anew(tmp_path: Path) -> None:
    """Nothing of it is used, and the next one is whole."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    away = next(node.id for node in group.followers())
    await group.stop(away)
    leader = await group.leader()
    stored = await _produce(leader, *range(12))
    await _shorten(group, stored[6].index)
    damaged: list[Message] = []

    def damage(message: Message) -> Message:
        if isinstance(message, InstallSnapshotRequest) and message.data and not damaged:
            damaged.append(message)
            return replace(message, data=bytes(len(message.data)))
        return message

    group.tamper = damage
    group.start(away)
    back = group.nodes[away]

    await eventually(lambda: back.log.last_index == leader.log.last_index)
    await _digests_agree(group)
    assert damaged
    assert not back.fatal
    await group.stop()


def _rot(path: Path) -> None:
    _flip(path, path.stat().st_size // 2)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.asyncio
async def test_a_damaged_snapshot_falls_back_to_the_one_before(tmp_path: Path) -> None:
    """The log still reaches back to it."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    before = await _snapshots(leader).take()
    await _produce(leader, 0, 1)
    await _snapshots(leader).take()
    digest = _state(leader).digest()
    last = leader.driver.applied_index
    await group.stop()
    _rot(max((tmp_path / leader.id / "snapshots").iterdir()))

    group.start()
    again = group.nodes[leader.id]

    assert _snapshots(again).index == before
    await eventually(lambda: again.driver.applied_index >= last)
    assert _state(again).digest() == digest
    await group.stop()


@pytest.mark.asyncio
async def test_a_log_that_no_whole_snapshot_reaches_is_refused(tmp_path: Path) -> None:
    """A state with a hole would be worse than none."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    stored = await _produce(leader, *range(12))
    await _shorten(group, stored[6].index)
    await group.stop()
    for path in (tmp_path / leader.id / "snapshots").iterdir():
        _rot(path)

    with pytest.raises(CorruptFile, match="none is whole, and the log begins with entry"):
        group.start(leader.id)


@pytest.mark.asyncio
async def test_a_full_disk_lets_the_oldest_segments_go_on_all_nodes(tmp_path: Path) -> None:
    """The leader decides by its own disk; the others follow, each when it has a snapshot."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(16))
    await _digests_agree(group)

    await _upkeep(leader, budget_bytes=_SMALL_BYTES).run()
    await _digests_agree(group)
    for node in group.nodes.values():
        await _upkeep(node, budget_bytes=_SMALL_BYTES).run()

    firsts = {node.log.first_index for node in group.nodes.values()}
    assert len(firsts) == 1
    assert firsts.pop() > 8
    queue = _state(leader).topics.queue("t", 0)
    assert 0 < queue.first < queue.end
    assert [await _message(leader, offset) for offset in range(queue.first, 16)] == list(
        range(queue.first, 16)
    )
    await group.stop()


@pytest.mark.found
@pytest.mark.asyncio
async def test_who_took_the_room_is_named_when_messages_go_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A neighbour's flood drops a quiet topic's unread messages: not without a word; found: S11."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    quiet = CreateTopic(name="quiet", type="NORMAL", queues=1).encode()
    await leader.driver.propose(quiet, grows=True)
    batch = Columns(message_ids=[""], bodies=[b"transfer"], born_at_ms=[0])
    command = encode_produce(batch, client_id="c", topic="quiet", queue_id=0)
    await leader.driver.propose(command, grows=True)
    await _produce(leader, *range(16))
    counter = "dledger_early_dropped_messages_total"
    labels = {"group": "orders", "node": "orders-0"}
    before = _METRICS.registry.get_sample_value(counter, labels)
    assert before is not None

    await _upkeep(leader, budget_bytes=_SMALL_BYTES).run()
    await _upkeep(leader, hours=1).run()

    lines = [line for line in caplog.messages if "were dropped before their" in line]
    assert len(lines) == 1
    assert "topic t used most of the space, 0 MiB" in lines[0]
    dropped = _state(leader).topics.queue("t", 0).first + 1
    assert _state(leader).topics.queue("quiet", 0).first == 1
    assert _METRICS.registry.get_sample_value(counter, labels) == before + dropped
    assert _state(leader).topics.grown_bytes == {}
    await group.stop()


@pytest.mark.found
@pytest.mark.asyncio
async def test_a_leader_lets_nothing_go_for_files_that_others_will_drop_anyway(
    tmp_path: Path,
) -> None:
    """Found by a story: each look until the others had dropped theirs cost as many messages again.

    By a majority's reports there was no room yet; and the leader counted from its own next segment.
    """
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(24))
    await _digests_agree(group)
    upkeeps = {node: _upkeep(node, budget_bytes=_SMALL_BYTES * 3) for node in group.nodes.values()}
    for upkeep in upkeeps.values():
        await upkeep.measure()
    await _heard_of_all(leader)

    for _ in range(3):
        await upkeeps[leader].run()
        await _digests_agree(group)
    firsts = {_state(node).first_index for node in group.nodes.values()}
    assert leader.log.first_index in firsts
    for node, upkeep in upkeeps.items():
        if node is not leader:
            assert node.log.first_index < leader.log.first_index
            await upkeep.measure()
    await _heard_of_all(leader)
    await upkeeps[leader].run()

    assert {_state(leader).first_index} == firsts
    await group.stop()


async def _heard_of_all(leader: DriverNode) -> None:
    """Wait until the others' rooms were told after now."""
    since_s = asyncio.get_running_loop().time()

    def heard() -> bool:
        answers = leader.driver.reports.heard().values()
        return len(answers) == 2 and all(
            one.report.room is not None and one.heard_s - one.waited_s >= since_s for one in answers
        )

    await eventually(heard)


@pytest.mark.asyncio
async def test_a_node_that_is_short_of_room_takes_the_snapshot_that_makes_some_at_once(
    tmp_path: Path,
) -> None:
    """It is excused from the rest between two; a send may be waiting for that room."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    disk, firsts = [_ROOMY], [leader.log.first_index]
    upkeep = _upkeep(leader, usage=lambda: disk[0])

    for first in (0, 16, 32):
        await _produce(leader, *range(first, first + 16))
        disk[0] = _TIGHT
        await upkeep.run(by_need=True)
        firsts.append(leader.log.first_index)
        disk[0] = _ROOMY
        await upkeep.measure()

    assert firsts == sorted(set(firsts))
    await group.stop()


@pytest.mark.asyncio
async def test_retention_asks_for_a_snapshot_only_now_and_then(tmp_path: Path) -> None:
    """Each segment that is let go would ask for one; ten seconds of them share the next."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    stored = await _produce(leader, *range(16))
    upkeep, taken = _upkeep(leader), list[int]()

    for place in (stored[5], stored[10]):
        retain = Retain(before_index=place.index).encode()
        await leader.driver.propose(retain, grows=False)
        await upkeep.run()
        taken.append(_snapshots(leader).index)
    for _ in range(10):
        taken.append(_snapshots(leader).index)
        await upkeep.run()

    assert len(set(taken)) == 1
    assert _snapshots(leader).index > taken[0] > stored[-1].index
    assert stored[5].index < leader.log.first_index <= stored[10].index
    await group.stop()


@pytest.mark.asyncio
async def test_messages_of_a_certain_age_go(tmp_path: Path) -> None:
    """Age is that of a segment's newest message, by time under a leader: one after the other."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(12))
    await _digests_agree(group)
    for node in group.nodes.values():
        node.lives(1_800)
    await group.stop(leader.id)
    later = await group.leader()
    await _upkeep(later, hours=1).run()
    assert later.log.first_index == 1

    later.lives(1_810)
    await _upkeep(later, hours=1).run()

    queue = _state(later).topics.queue("t", 0)
    assert later.log.first_index > 8
    assert 0 < queue.first < queue.end
    await group.stop()


@pytest.mark.asyncio
async def test_no_message_is_older_for_a_leap(tmp_path: Path) -> None:
    """All clocks are set forward by a hundred days, or nobody was up: nothing goes for that."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(12))
    for node in group.nodes.values():
        node.clock.jump_ms = 100 * 86_400_000

    await eventually(lambda: _state(leader).leapt_ms > 99 * 86_400_000)
    await _produce(leader, 12)
    await _upkeep(leader, hours=1).run()

    assert (leader.log.first_index, _state(leader).first_index) == (1, 1)
    await _produce(leader, *range(13, 25))
    leader.lives(4_200)
    await _upkeep(leader, hours=1).run()
    assert _state(leader).first_index > 13
    await _digests_agree(group)
    await group.stop()


@pytest.mark.asyncio
async def test_the_clock_of_one_who_leads_moves_nothing(tmp_path: Path) -> None:
    """Found from outside: 73 hours ahead for a second dropped all that was seconds old."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(12))
    heir = group.followers()[0]
    heir.clock.jump_ms = 73 * 3_600_000
    leader.driver.transfer_leadership(heir.id)
    await eventually(heir.driver.is_serving_leader)
    await eventually(lambda: heir.driver.dating.ahead_ms is not None)  # it looked at the date
    await _produce(heir, 12)
    await _upkeep(heir, hours=72).run()

    now_ms = leader.clock.unix_ms()
    assert _state(heir).first_index == 1
    assert _state(heir).leapt_ms == 0
    assert abs(_state(heir).now_ms - now_ms) < 5_000
    assert round((heir.driver.dating.apart_ms or 0) / 3_600_000) == 73
    await group.stop()


@pytest.mark.asyncio
async def test_a_group_that_nobody_uses_goes_on_all_nodes(tmp_path: Path) -> None:
    """The leader asks for it by the log's time; zero hours mean: never."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    # A time without entries counts an hour at most, and so does a leap.
    for hour in (1, 2):
        for node in group.nodes.values():
            node.clock.jump_ms = hour * 3_600_000
        await eventually(lambda: _state(leader).leapt_ms > hour * 3_500_000)  # noqa: B023
        await leader.driver.propose(CreateGroup(name="other").encode(), grows=False)

    heir = group.followers()[0]
    never, upkeep = _upkeep(leader), _upkeep(heir, group_hours=1)
    for number in range(60):
        await never.run()
        if number < 30:
            await upkeep.run()  # while another leads
    assert _state(leader).groups.exists("g")
    leader.driver.transfer_leadership(heir.id)
    await eventually(heir.driver.is_serving_leader)
    for _ in range(59):
        await upkeep.run()
        assert _state(heir).groups.exists("g"), "in the leader's first minute its members return"
    await upkeep.run()
    await _digests_agree(group)

    for node in group.nodes.values():
        assert not _state(node).groups.exists("g")
        assert _state(node).groups.exists("other")
    await group.stop()


@pytest.mark.asyncio
async def test_a_young_log_is_kept(tmp_path: Path) -> None:
    """Neither age nor the disk asks for anything."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, *range(12))

    await _upkeep(leader, hours=72).run()

    assert leader.log.first_index == 1
    assert _state(leader).first_index == 1
    await group.stop()


@pytest.mark.asyncio
async def test_a_snapshot_keeps_the_memberships_that_the_log_has_dropped(tmp_path: Path) -> None:
    """The next one too, and what a node starts with: else it would know nobody to ask for votes."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    stored = await _produce(leader, *range(12))
    await _shorten(group, stored[6].index)
    assert leader.log.first_index > 1
    founding = [(1, leader.driver.core.membership)]
    await _produce(leader, 12)
    await _snapshots(leader).take()
    assert _snapshots(leader).memberships() == founding

    await group.stop(leader.id)
    group.start(leader.id)

    assert _snapshots(group.nodes[leader.id]).memberships() == founding
    await group.stop()


@pytest.mark.asyncio
async def test_the_log_keeps_what_the_snapshot_on_disk_needs(tmp_path: Path) -> None:
    """More may be let go while it is written; that goes after the next one."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    stored = await _produce(leader, *range(20))
    snapshots, take = _snapshots(leader), _snapshots(leader).take

    async def overtaken() -> int:
        index = await take()
        await leader.driver.propose(Retain(before_index=stored[14].index).encode(), grows=False)
        return index

    snapshots.take = overtaken
    await leader.driver.propose(Retain(before_index=stored[6].index).encode(), grows=False)
    await _digests_agree(group)
    await _upkeep(leader).run()

    assert _state(leader).first_index == stored[14].index
    assert snapshots.first_index == stored[6].index
    assert 1 < leader.log.first_index <= snapshots.first_index
    await group.stop()


@pytest.mark.asyncio
async def test_the_log_clock_does_not_go_back_behind_a_snapshot(tmp_path: Path) -> None:
    """Nothing is applied again after the start; only the snapshot tells what time it was."""
    group = _brokers(tmp_path)
    group.start()
    leader = await group.leader()
    await _create(leader)
    await _produce(leader, 0)
    await _digests_agree(group)
    for node in group.nodes.values():
        await _snapshots(node).take()
    before_ms = _state(leader).now_ms
    await group.stop()

    group.start()
    for node in group.nodes.values():
        node.clock.jump_ms = -3_600_000
    again = await group.leader()
    (stored,) = await _produce(again, 1)

    entry = await again.driver.view.entry(stored.index)
    assert before_ms > 0
    assert entry.timestamp_ms >= before_ms
    await group.stop()
