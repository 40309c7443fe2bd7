"""What is held is copied by the leader before it is dropped: real drivers and disks."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from dledger.broker.command_frame import CommandType, frame_type
from dledger.broker.commands import CancelHeld, CreateTopic, DeleteTopic
from dledger.broker.held_commands import encode_produce_held
from dledger.broker.held_refs import HOUR_MS, Fate, HeldMessage, Kind, Ref
from dledger.broker.message import Columns, Message, id_of_place
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.results import Produced
from dledger.replica import held_roller
from dledger.types import Typed
from tests.replica.group import DriverGroup, DriverNode
from tests.replica.test_node_snapshots import _TIGHT, _digests_agree, _state, _upkeep
from tests.replica.test_roller import _BODY, _HOUR_S, _produce, _rounds

_DUE_MS = 1_900_000_000_000


async def _group(directory: Path) -> tuple[DriverGroup, DriverNode]:
    group = DriverGroup(directory, brokers=True, segment_bytes=1 << 18)
    group.start()
    leader = await group.leader()
    for name, kind in (("later", "DELAY"), ("now", "NORMAL")):
        create = CreateTopic(name=name, type=kind, queues=1)
        await leader.driver.propose(create.encode(), grows=True)
    return group, leader


def _held(numbers: Sequence[int], *, ids: bool = True) -> bytes:
    """Return the command that holds messages, each for an hour of its own."""
    due_ms = [_DUE_MS + number * HOUR_MS for number in numbers]
    messages = [
        Message(
            message_id=f"held {number}" if ids else "",
            body=_BODY,
            born_at_ms=number,
            typed=Typed(deliver_at_ms=due),
        )
        for number, due in zip(numbers, due_ms, strict=True)
    ]
    produce = encode_produce(Columns.of(messages), client_id="c", topic="later", born_host="h")
    return encode_produce_held(Kind.TIMER, due_ms, produce)


async def _propose(leader: DriverNode, command: bytes) -> list[Ref]:
    """Hold messages; return what they are called."""
    result = await leader.driver.propose(command, grows=True)
    assert isinstance(result, Produced), result
    return [Ref.unpack(offset) for offset in result.offsets]


async def _hold(leader: DriverNode, numbers: Sequence[int], *, ids: bool = True) -> list[Ref]:
    """Hold messages, a command each."""
    return [ref for number in numbers for ref in await _propose(leader, _held([number], ids=ids))]


async def _read(node: DriverNode, held: HeldMessage) -> tuple[Message, str]:
    """Return a message as this node's own disk has it, and its host."""
    entry = await node.driver.view.entry(held.payload.index)
    frame = ProduceFrame(entry.data, held.payload.start, held.payload.end)
    return frame.message(held.row), frame.born_host


async def _is_there(group: DriverGroup, refs: Sequence[Ref]) -> None:
    for node in group.nodes.values():
        for number, ref in enumerate(refs):
            held = _state(node).held.find(ref)
            assert held is not None
            message, host = await _read(node, held)
            assert (message.body, message.born_at_ms, host) == (_BODY, number, "h")
            assert message.typed == Typed(deliver_at_ms=held.due_ms)


async def test_what_is_held_outlives_the_log_that_it_was_stored_in(tmp_path: Path) -> None:
    """On all nodes, whole, and called the same; and the log is not held back by it."""
    group, leader = await _group(tmp_path)
    refs = await _hold(leader, range(3))
    await _produce(leader, "now", range(12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)

    await _rounds(group, leader, hours=1)

    assert leader.log.first_index > 8
    await _is_there(group, refs)
    await group.stop()


async def test_one_that_was_recalled_holds_no_entry_for_those_beside_it(tmp_path: Path) -> None:
    """It lies in the same piece as one that came later: that says where both lie."""
    group, leader = await _group(tmp_path)
    due_ms = _DUE_MS
    (first,) = await _hold(leader, [0])
    await _produce(leader, "now", range(8))
    message = Message(message_id="second", body=b"2", typed=Typed(deliver_at_ms=due_ms))
    produce = encode_produce(Columns.of([message]), client_id="c", topic="later")
    command = encode_produce_held(Kind.TIMER, [due_ms], produce)
    await leader.driver.propose(command, grows=True)
    await leader.driver.propose(CancelHeld(refs=(first,)).encode(), grows=False)
    await _produce(leader, "now", range(8, 12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)

    await _rounds(group, leader, hours=1)

    assert leader.log.first_index > 8
    assert _state(leader).held.count == 1
    await group.stop()


async def test_with_nothing_more_to_drop_nothing_is_proposed(tmp_path: Path) -> None:
    """A RETAIN that is held back is not proposed each second."""
    group, leader = await _group(tmp_path)
    await _hold(leader, range(3))
    await _produce(leader, "now", range(12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    await _rounds(group, leader, hours=1)
    last = leader.driver.applied_index

    await _rounds(group, leader, 3, hours=1)

    assert leader.driver.applied_index == last
    await group.stop()


async def test_a_round_copies_a_bounded_part_and_no_retain_is_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held back is proposed once something may go, not each second."""
    monkeypatch.setattr(held_roller, "_PIECES_A_ROUND", 1)
    group, leader = await _group(tmp_path)
    refs = await _propose(leader, _held(range(4)))
    await _produce(leader, "now", range(12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)
    upkeep, firsts = _upkeep(leader, hours=1), list[int]()
    for _ in range(12):
        before, first = leader.driver.applied_index, _state(leader).first_index
        await upkeep.run()
        firsts.append(_state(leader).first_index)
        proposed = leader.driver.applied_index - before
        assert proposed <= 1 + (firsts[-1] > first), "a copy, and a RETAIN that lets some go"

    await _digests_agree(group)
    assert firsts[1] < firsts[-1]
    await _is_there(group, refs)
    await group.stop()


async def test_room_is_made_by_copying_what_is_held(tmp_path: Path) -> None:
    """As long as that is the smaller part of the log."""
    group, leader = await _group(tmp_path)
    refs = await _hold(leader, [0])
    await _produce(leader, "now", range(16))

    await _rounds(group, leader, 3, budget_bytes=600_000)

    assert leader.log.first_index > 4
    await _is_there(group, refs)
    assert _state(leader).held.full == ""
    await group.stop()


async def test_on_a_full_disk_room_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are no growth: what is refused to users, and waits for room, they are not."""
    group, leader = await _group(tmp_path)
    refs = await _hold(leader, [0])
    await _produce(leader, "now", range(16))
    upkeep = _upkeep(leader, usage=lambda: _TIGHT)
    proposed, propose = list[tuple[int, bool]](), leader.driver.propose

    def noted(command: bytes, *, grows: bool) -> Awaitable[object]:
        proposed.append((frame_type(command), grows))
        return propose(command, grows=grows)

    monkeypatch.setattr(leader.driver, "propose", noted)

    await upkeep.run(by_need=True)

    assert leader.driver.room.is_short
    assert leader.log.first_index > 4
    assert proposed == [(CommandType.RELEASE_HELD, False), (CommandType.RETAIN, False)]
    await _digests_agree(group)
    await _is_there(group, refs)
    await group.stop()


@pytest.mark.found
async def test_a_round_copies_no_more_than_there_is_room_for_on_a_full_disk(tmp_path: Path) -> None:
    """Segments of nothing but what is held: the copies of two filled a disk for good.

    No command could be written any more then, so that nothing could ever go.
    """
    group, leader = await _group(tmp_path)
    refs = await _hold(leader, range(12))
    last = leader.driver.applied_index
    await _produce(leader, "now", range(36))
    upkeep, took = _upkeep(leader, usage=lambda: _TIGHT), list[int]()
    while _state(leader).held.first_entry <= last:
        before, first = leader.log.allocated_bytes, _state(leader).first_index
        await upkeep.run(by_need=True)
        took.append(leader.log.allocated_bytes - before)
        assert _state(leader).first_index > first

    assert len(took) > 2
    assert max(took) <= leader.driver.room.limits.copies_bytes
    await _is_there(group, refs)
    await group.stop()


async def test_where_most_is_held_nothing_is_copied_for_room(tmp_path: Path) -> None:
    """It would be copied again and again, and free nothing: no more is held, and why is told."""
    group, leader = await _group(tmp_path)
    refs = await _hold(leader, range(16))
    last = leader.driver.applied_index

    await _rounds(group, leader, 3, budget_bytes=600_000)

    held = _state(leader).held
    assert leader.driver.applied_index == last, "nothing was proposed"
    assert "messages whose time has not come" in held.full
    for ref in refs[1:]:
        await leader.driver.propose(CancelHeld(refs=(ref,)).encode(), grows=False)
    await _rounds(group, leader, 3, budget_bytes=600_000)
    assert held.full == ""
    assert leader.log.first_index > 4
    await group.stop()


async def test_who_leads_no_more_refuses_nothing(tmp_path: Path) -> None:
    """The next leader looks at its own disk."""
    group, leader = await _group(tmp_path)
    follower = next(node for node in group.nodes.values() if node is not leader)
    _state(follower).held.full = "it led once"

    await _upkeep(follower).run()

    assert _state(follower).held.full == ""
    await group.stop()


async def test_what_a_deleted_topic_left_is_cancelled(tmp_path: Path) -> None:
    """By whoever leads, also where a new topic has the name; the log is not held back by it."""
    group, leader = await _group(tmp_path)
    refs = await _hold(leader, range(3))
    generation = _state(leader).topics.named("later").generation
    for command in (
        DeleteTopic(name="later", generation=generation).encode(),
        CreateTopic(name="later", type="DELAY", queues=1).encode(),
    ):
        await leader.driver.propose(command, grows=False)
    (new,) = await _hold(leader, [0])

    await _rounds(group, leader, 2)

    for node in group.nodes.values():
        held = _state(node).held
        assert [held.fate(ref) for ref in refs] == [Fate.CANCELLED] * 3
        assert held.holds(new)
    await group.stop()


async def test_a_copy_has_the_id_that_was_told(tmp_path: Path) -> None:
    """Of one that was sent without an id: it comes from where it was stored."""
    group, leader = await _group(tmp_path)
    (ref,) = await _hold(leader, [0], ids=False)
    held = _state(leader).held.find(ref)
    assert held is not None
    told = id_of_place(held.payload.index, held.payload.start, held.row)
    await _produce(leader, "now", range(12))
    for node in group.nodes.values():
        node.lives(2 * _HOUR_S)

    await _rounds(group, leader, hours=1)

    moved = _state(leader).held.find(ref)
    assert moved is not None
    assert moved.payload != held.payload
    message, _ = await _read(leader, moved)
    assert message.message_id == told
    await group.stop()
