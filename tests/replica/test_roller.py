"""What topics keep longer is copied by the leader before it is dropped: real drivers and disks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic, DeleteTopic, SetRetention
from dledger.broker.message import Columns
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.results import Produced
from dledger.errors import DiskFull
from dledger.replica import copier, roller
from dledger.replica.rolling import Roll, rekeep_of
from tests.replica.group import DriverGroup, DriverNode
from tests.replica.test_node_snapshots import _METRICS, _digests_agree, _state, _upkeep

_BODY = b"x" * 60_000
_HOUR_S = 3_600


async def _group(directory: Path, **hours: int | None) -> tuple[DriverGroup, DriverNode]:
    """Return a group with a topic for each of *hours*, its own retention."""
    group = DriverGroup(directory, brokers=True, segment_bytes=1 << 18)
    group.start()
    leader = await group.leader()
    for name, own in hours.items():
        create = CreateTopic(name=name, type="NORMAL", queues=1)
        await leader.driver.propose(create.encode(), grows=True)
        await leader.driver.propose(SetRetention(name=name, hours=own).encode(), grows=False)
    return group, leader


async def _produce(leader: DriverNode, topic: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        batch = Columns(message_ids=[f"{topic} {number}"], bodies=[_BODY], born_at_ms=[number])
        command = encode_produce(batch, client_id="c", topic=topic, queue_id=0)
        result = await leader.driver.propose(command, grows=True)
        assert isinstance(result, Produced)


async def _there(node: DriverNode, topic: str) -> list[int]:
    """Return when each message of a topic was born, as this node's own disk has it."""
    found = []
    queue = _state(node).topics.queue(topic, 0)
    for first, length, row, index, start, end in queue.stretches(queue.first):
        frame = ProduceFrame((await node.driver.view.entry(index)).data, start, end)
        for number in range(length):
            message = frame.message(row + number)
            assert message.body == _BODY
            assert message.born_at_ms == first + number
            found.append(message.born_at_ms)
    return found


async def _rounds(group: DriverGroup, leader: DriverNode, rounds: int = 12, **how: Any) -> None:
    """Run the maintenance of all nodes, as if some time passed."""
    upkeeps = [(node, _upkeep(node, **how)) for node in group.nodes.values()]
    for _ in range(rounds):
        for node, upkeep in upkeeps:
            if node is not leader:
                await upkeep.run()
        await next(upkeep for node, upkeep in upkeeps if node is leader).run()
    await _digests_agree(group)


async def test_what_is_kept_for_ever_outlives_the_log_that_it_was_stored_in(
    tmp_path: Path,
) -> None:
    """On all nodes, at its offset; and the log is not held back by it."""
    group, leader = await _group(tmp_path, long=0, short=None)
    await _produce(leader, "long", range(3))
    await _produce(leader, "short", range(12))
    await _digests_agree(group)
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)

    await _rounds(group, leader, hours=1)

    assert leader.log.first_index > 8
    for node in group.nodes.values():
        assert await _there(node, "long") == [0, 1, 2]
        assert (await _there(node, "short"))[:1] != [0]
    await group.stop()


async def test_its_own_retention_passes_and_it_goes(tmp_path: Path) -> None:
    """Blocks too, by when their messages were stored, not by when they were copied."""
    group, leader = await _group(tmp_path, long=5, short=None)
    await _produce(leader, "long", range(3))
    await _produce(leader, "short", range(12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    await _rounds(group, leader, hours=1)
    assert await _there(leader, "long") == [0, 1, 2]
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    await _rounds(group, leader, 61, hours=1)
    assert await _there(leader, "long") == [0, 1, 2]

    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    await _rounds(group, leader, 61, hours=1)

    assert await _there(leader, "long") == []
    await group.stop()


async def test_a_copy_that_is_refused_is_counted_and_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it is tried again; once it is taken, retention goes on."""
    group, leader = await _group(tmp_path, long=0, short=None)
    await _produce(leader, "long", range(3))
    await _produce(leader, "short", range(12))
    await _digests_agree(group)
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    first, before = leader.log.first_index, _refused_copies()

    def of_another(roll: Roll, *arguments: Any) -> tuple[bytes, int]:
        generation = roll.topic.generation + 100
        return rekeep_of(
            replace(roll, topic=replace(roll.topic, generation=generation)), *arguments
        )

    with monkeypatch.context() as patched:
        patched.setattr(copier, "rekeep_of", of_another)
        await _rounds(group, leader, 3, hours=1)
    refused, kept_from = _refused_copies() - before, leader.log.first_index
    await _rounds(group, leader, hours=1)

    assert (refused, kept_from) == (3, first)
    assert leader.log.first_index > first
    assert _refused_copies() - before == 3
    await group.stop()


def _refused_copies() -> float:
    labels = {"group": "orders", "node": "orders-0"}
    found = _METRICS.registry.get_sample_value("dledger_refused_copies_total", labels)
    assert found is not None
    return found


async def test_what_is_past_its_retention_is_not_copied(tmp_path: Path) -> None:
    """It goes with the others', when the segment goes."""
    group, leader = await _group(tmp_path, long=2, short=None)
    await _produce(leader, "long", range(3))
    await _produce(leader, "short", range(12))
    for node in group.nodes.values():
        node.lives(3 * _HOUR_S)

    await _rounds(group, leader, hours=1)

    queue = _state(leader).topics.queue("long", 0)
    assert (queue.first, queue.end, queue.blocks) == (3, 3, None)
    await group.stop()


async def test_nothing_goes_by_a_retention_that_was_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes long; who says "for ever" in the middle of it has said it in time."""
    group, leader = await _group(tmp_path, long=2, short=None)
    await _produce(leader, "long", range(3))
    await _produce(leader, "short", range(12))
    for node in group.nodes.values():
        node.lives(3 * _HOUR_S)
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> tuple[bytes, int]:
        made = rekeep_of(*arguments)
        for_ever = SetRetention(name="long", hours=0).encode()
        asyncio.run_coroutine_threadsafe(
            leader.driver.propose(for_ever, grows=False), loop
        ).result()
        monkeypatch.setattr(copier, "rekeep_of", rekeep_of)
        return made

    monkeypatch.setattr(copier, "rekeep_of", slow)

    await _rounds(group, leader, hours=1)

    assert leader.log.first_index > 8
    assert await _there(leader, "long") == [0, 1, 2]
    await group.stop()


async def test_a_topic_keeps_at_least_what_the_group_does(tmp_path: Path) -> None:
    """Whatever was set before the group's retention grew: the log is one."""
    group, leader = await _group(tmp_path, long=1)
    await _produce(leader, "long", range(12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)

    await _rounds(group, leader, hours=5)

    assert await _there(leader, "long") == list(range(12))
    await group.stop()


async def test_room_is_made_by_copying_where_little_is_kept(tmp_path: Path) -> None:
    """The others' oldest go early; what a topic keeps does not."""
    group, leader = await _group(tmp_path, long=0, short=None)
    await _produce(leader, "long", [0])
    await _produce(leader, "short", range(16))

    await _rounds(group, leader, 3, budget_bytes=600_000)

    assert leader.log.first_index > 4
    assert await _there(leader, "long") == [0]
    assert _state(leader).topics.full == ""
    await group.stop()


async def test_where_most_is_kept_nothing_is_copied_for_room(tmp_path: Path) -> None:
    """It would be copied again and again, and free nothing: its topic is refused by name."""
    group, leader = await _group(tmp_path, long=0, short=None)
    await _produce(leader, "long", range(16))
    last = leader.driver.applied_index

    await _rounds(group, leader, 3, budget_bytes=600_000)

    topics = _state(leader).topics
    assert leader.driver.applied_index == last, "nothing was proposed"
    with pytest.raises(DiskFull, match="'long' takes no messages: the disk is above"):
        topics.check_takes("long")
    topics.check_takes("short")
    assert await _there(leader, "long") == list(range(16))
    await leader.driver.propose(SetRetention(name="long", hours=None).encode(), grows=False)
    await _rounds(group, leader, 3, budget_bytes=600_000)
    assert _state(leader).topics.full == ""
    assert leader.log.first_index > 4
    await group.stop()


async def test_who_leads_no_more_refuses_nothing(tmp_path: Path) -> None:
    """The next leader looks at its own disk."""
    group, leader = await _group(tmp_path, long=0)
    follower = next(node for node in group.nodes.values() if node is not leader)
    _state(follower).topics.full = "it led once"

    await _upkeep(follower).run()

    assert _state(follower).topics.full == ""
    await group.stop()


async def test_a_round_copies_a_bounded_part_and_retention_takes_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader with very much to copy still lets segments go, and what is left comes next."""
    monkeypatch.setattr(roller, "_COMMANDS_A_ROUND", 1)
    group, leader = await _group(tmp_path, a=0, b=0, short=None)
    for number in range(8):
        await _produce(leader, "a", [number])
        await _produce(leader, "b", [number])
        await _produce(leader, "short", [number])
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    upkeep, firsts = _upkeep(leader, hours=1), list[int]()
    for _ in range(30):
        before, first = leader.driver.applied_index, _state(leader).first_index
        await upkeep.run()
        firsts.append(_state(leader).first_index)
        proposed = leader.driver.applied_index - before
        assert proposed <= 1 + (firsts[-1] > first), "a REKEEP, and a RETAIN that lets some go"

    await _digests_agree(group)
    assert len(set(firsts)) > 3
    assert await _there(leader, "a") == await _there(leader, "b") == list(range(8))
    await group.stop()


async def test_a_topic_that_is_deleted_meanwhile_holds_nothing(tmp_path: Path) -> None:
    """Its messages are gone, and so is what retention waited for."""
    group, leader = await _group(tmp_path, long=0, short=None)
    await _produce(leader, "long", range(3))
    await _produce(leader, "short", range(12))
    generation = _state(leader).topics.named("long").generation
    delete = DeleteTopic(name="long", generation=generation)
    await leader.driver.propose(delete.encode(), grows=False)
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)

    await _rounds(group, leader, 2, hours=1)

    assert leader.log.first_index > 8
    await group.stop()
