"""Admin.Compact at the leader: what goes, stays and is refused; real drivers, disks in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dledger.broker.commands import CreateTopic, DeleteTopic, Retain
from dledger.broker.message import TOMBSTONE, Columns, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.results import Produced
from dledger.broker.topics import Compaction
from dledger.common.offset_set import OffsetSet
from dledger.errors import (
    EntryDropped,
    InvalidArgument,
    NotLeader,
    Overloaded,
    Refused,
    UnknownTopic,
)
from dledger.files.memory_files import MemoryFiles
from dledger.replica import compacting, compactor, copier
from dledger.replica.compacting import MAX_OFFSETS, Claim
from dledger.replica.compactor import Compacted
from dledger.replica.rolling import Due, Roll, next_roll, rekeep_of
from tests.replica.group import IDS, DriverGroup, DriverNode
from tests.replica.test_node_snapshots import _METRICS, _digests_agree, _state, _upkeep
from tests.waiting import eventually

_HOUR_S = 3_600
_Lie: TypeAlias = tuple[list[str], list[int], dict[int, int], str]
"""Keys of messages, which of them are said to stay, the proofs of the others, and the answer."""
_AT_ONCE = Compaction(min_lag_ms=0, tombstone_ms=0)


class World:
    """A group with the compacted topic t of one queue, and a job that reads it at its leader."""

    def __init__(self, group: DriverGroup, leader: DriverNode) -> None:
        self.group, self.leader = group, leader
        self.upkeep = _upkeep(leader, hours=72)

    @classmethod
    async def start(cls, directory: Path) -> World:
        files = {node_id: MemoryFiles() for node_id in IDS}
        group = DriverGroup(directory, brokers=True, segment_bytes=1 << 18, files=files)
        group.start()
        world = cls(group, await group.leader())
        await world.create(_AT_ONCE)
        return world

    async def create(self, how: Compaction | None) -> None:
        create = CreateTopic(name="t", type="NORMAL", queues=1, compaction=how)
        await self.leader.driver.propose(create.encode(), grows=True)

    async def recreate(self, how: Compaction | None) -> None:
        """Delete the topic, and make one of its name."""
        generation = _state(self.leader).topics.named("t").generation
        delete = DeleteTopic(name="t", generation=generation)
        await self.leader.driver.propose(delete.encode(), grows=False)
        await self.create(how)

    async def produce(self, *keys: str, size: int = 10) -> None:
        """Store a message of each key; one that begins with - is a tombstone."""
        for key in keys:
            properties = {TOMBSTONE: "true"} if key.startswith("-") else {}
            body = b"x" * size
            said = Message(message_id="", body=body, keys=(key.lstrip("-"),), properties=properties)
            command = encode_produce(Columns.of([said]), client_id="c", topic="t", queue_id=0)
            assert isinstance(await self.leader.driver.propose(command, grows=True), Produced)

    async def lives(self, s: int) -> None:
        """Let time pass, once no disk is at work: for that it would have stood still so long."""
        await self.agree()
        nodes = self.group.nodes.values()
        await eventually(lambda: not any(node.driver.sync_running_s() for node in nodes))
        for node in nodes:
            node.lives(s)

    async def keys(self) -> dict[int, str]:
        """Return the key at each offset of queue 0, as the leader's own disk has it."""
        queue, found = _state(self.leader).topics.queue("t", 0), dict[int, str]()
        for first, length, row, index, start, end in queue.stretches(queue.first):
            frame = ProduceFrame((await self.leader.driver.view.entry(index)).data, start, end)
            for number in range(length):
                message = frame.message(row + number)
                sign = "-" if TOMBSTONE in message.properties else ""
                found[first + number] = sign + message.keys[0]
        return found

    async def claim(self, **changed: Any) -> Claim:
        """Return what an honest job says now, but for what is *changed*."""
        keys, as_of = await self.keys(), self.leader.driver.core.commit_index
        newest = {key.lstrip("-"): offset for offset, key in keys.items()}
        of_key = [key.lstrip("-") for key in keys.values()]
        alone = {
            offset
            for key, offset in newest.items()
            if keys[offset].startswith("-") and of_key.count(key) == 1
        }
        to = _state(self.leader).topics.queue("t", 0).end
        claim = Claim(
            as_of_index=as_of,
            as_of_chain=self.leader.log.chain(as_of),
            topic="t",
            generation=_state(self.leader).topics.named("t").generation,
            queue_id=0,
            first=0,
            to=to,
            stays=OffsetSet(0, to, {*newest.values()} - alone).pack(),
            alone=OffsetSet(0, to, alone).pack(),
            proofs={offset: newest[key.lstrip("-")] for offset, key in keys.items()},
        )
        return replace(claim, **changed)

    async def compact(self, claim: Claim, timeout_s: float = 10) -> Compacted:
        return await self.upkeep.compactor.compact(claim, timeout_s=timeout_s)

    async def agree(self) -> None:
        await _digests_agree(self.group)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = await World.start(tmp_path)
    yield world
    await world.group.stop()


async def test_the_newest_of_each_key_stays_on_every_node(world: World) -> None:
    """At its offset, and the answer says what was done; once more there is nothing to do."""
    await world.produce("a", "c", "b", "a", "b", "a")
    claim = await world.claim()

    done = await world.compact(claim)

    assert (done.kept, done.let_go, done.later, done.ask) == (1, 3, 0, ())
    assert done.written_bytes > 20
    assert await world.keys() == {1: "c", 4: "b", 5: "a"}
    assert await world.compact(claim) == Compacted()
    assert await world.compact(await world.claim()) == Compacted()
    await world.agree()


async def test_where_all_goes_a_command_without_rows_says_so(world: World) -> None:
    """A tombstone that is the only one of its key, known as that, and nothing else."""
    await world.produce("a", "-a")
    await world.compact(await world.claim())
    await world.compact(await world.claim())
    assert await world.keys() == {1: "-a"}

    done = await world.compact(await world.claim())

    assert (done.kept, done.let_go) == (0, 1)
    assert await world.keys() == {}
    await world.agree()


async def test_without_proofs_of_a_sample_nothing_is_done(world: World) -> None:
    """The same claim is asked for the same ones, and another process asks for its own."""
    await world.produce(*["a"] * 40)
    claim = await world.claim(proofs={})
    last = world.leader.driver.applied_index

    asked = await world.compact(claim)
    others = [await _other(world).compact(claim, timeout_s=10) for _ in range(4)]

    assert 1 <= len(asked.ask) < 10, "one in a hundred, by chance, but at least one"
    assert await world.compact(claim) == asked == Compacted(ask=asked.ask)
    assert len({asked, *others}) > 1
    assert world.leader.driver.applied_index == last
    done = await world.compact(replace(claim, proofs=dict.fromkeys(asked.ask, 39)))
    assert done.let_go == 39


def _other(world: World) -> compactor.Compactor:
    return _upkeep(world.leader, hours=72).compactor


@pytest.mark.parametrize(
    "lie",
    [
        (
            ["a", "b"],
            [1],
            {0: 1},
            r"offset 0 is to go for offset 1, but their keys are \['a'\] and",
        ),
        (["a", "a"], [0], {1: 0}, "offset 0 is not newer"),
        (["a", "a"], [1], {0: 2}, "offset 2 is not newer, or there is none"),
        (["a", "b"], [1], {0: 0}, "it is no tombstone"),
        (
            ["a", "-a"],
            [],
            {0: 1, 1: 1},
            "offset 1 is to go as well, so that nothing of its key is left",
        ),
    ],
)
async def test_the_first_lie_is_named_and_nothing_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch, lie: _Lie
) -> None:
    """With topic, queue and offsets; it is logged, and counted."""
    keys, stays, proofs, said = lie
    monkeypatch.setattr(compacting, "_BELOW", 1 << 16)  # each is sampled
    await world.produce(*keys)
    last, before = world.leader.driver.applied_index, _lies()
    packed = OffsetSet(0, len(keys), stays).pack()
    alone = OffsetSet(0, len(keys), (offset for offset, by in proofs.items() if by == offset))
    claim = await world.claim(stays=packed, alone=alone.pack(), proofs=proofs)

    with pytest.raises(InvalidArgument, match=f"topic 't', queue 0 is not true.*{said}"):
        await world.compact(claim)

    assert world.leader.driver.applied_index == last
    assert _lies() == before + 1


def _lies() -> float:
    labels = {"group": "orders", "node": "orders-0"}
    found = _METRICS.registry.get_sample_value("dledger_compaction_lies_total", labels)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("alone", "by", "said"), [([], 1, "not said to be the only"), ([1], 2, "said to be the only")]
)
async def test_a_proof_and_the_claim_say_the_same_of_a_tombstone(
    world: World, alone: list[int], by: int, said: str
) -> None:
    """Whether it has lost to a newer message, or is the only one: it goes by other rules."""
    await world.produce("b", "-a", "-a")
    packed = OffsetSet(0, 3, alone).pack()
    stays = OffsetSet(0, 3, [0, 2]).pack()
    claim = await world.claim(stays=stays, alone=packed, proofs={1: by})

    with pytest.raises(
        InvalidArgument, match=f"offset 1 is to go for offset {by}, but it is .*{said}"
    ):
        await world.compact(claim)


async def _is_told_alone(world: World) -> None:
    """Let a round find that the one tombstone is alone, a day after it was stored."""
    await world.recreate(Compaction(min_lag_ms=0, tombstone_ms=24 * _HOUR_S * 1000))
    await world.produce("-a", "b")
    await _roll_all(world)
    await world.lives(25 * _HOUR_S)
    first = await world.compact(await world.claim())
    assert (first.kept, first.let_go, first.later) == (2, 0, 0)
    assert await world.compact(await world.claim()) == Compacted(), (
        "it is known, and not written anew"
    )


async def test_a_tombstone_stays_for_its_time_once_it_is_alone(world: World) -> None:
    """In the log's lived time, from when a copy says it; however long it was stored before."""
    await _is_told_alone(world)
    await world.lives(23 * _HOUR_S)
    assert await world.compact(await world.claim()) == Compacted()

    await world.lives(2 * _HOUR_S)

    assert (await world.compact(await world.claim())).let_go == 1
    assert await world.keys() == {1: "b"}
    await world.agree()


async def test_copies_and_new_leaders_know_since_when_a_tombstone_is_alone(world: World) -> None:
    """It lies with the row, so that its time does not begin anew."""
    await _is_told_alone(world)
    await world.lives(23 * _HOUR_S)
    await _roll_all(world)
    old = world.leader
    old.driver.transfer_leadership(None)
    await eventually(lambda: not old.driver.is_serving_leader())
    world.leader = await world.group.leader()
    world.upkeep = _upkeep(world.leader, hours=72)

    await world.lives(2 * _HOUR_S)

    assert (await world.compact(await world.claim())).let_go == 1


async def test_what_is_newer_than_a_tombstone_that_was_alone_beats_it(world: World) -> None:
    """At once, as any message; and the key's next tombstone has a time of its own."""
    await _is_told_alone(world)
    await world.produce("a", "-a")

    assert (await world.compact(await world.claim())).let_go == 2
    await world.lives(25 * _HOUR_S)
    assert (await world.compact(await world.claim())).let_go == 0
    assert await world.keys() == {1: "b", 3: "-a"}


async def test_a_tombstone_that_is_alone_is_proved_before_it_is_said(world: World) -> None:
    """What is none is not let go by a later round that makes the same mistake."""
    await world.produce("a", "b")
    none = OffsetSet(0, 2, [0]).pack()
    claim = await world.claim(stays=OffsetSet(0, 2, [1]).pack(), alone=none, proofs={})

    asked = await world.compact(claim)

    assert asked == Compacted(ask=(0,))
    with pytest.raises(InvalidArgument, match="it is no tombstone"):
        await world.compact(replace(claim, proofs={0: 0}))


async def test_a_loser_younger_than_the_lag_stays(world: World) -> None:
    """By when it was stored, not by when it was copied, and whatever the job says."""
    await world.recreate(Compaction(min_lag_ms=_HOUR_S * 1000))
    await world.produce("a", "b", "b")
    await world.lives(2 * _HOUR_S)
    await world.produce("a", "c", "c")
    assert (await world.compact(await world.claim())).let_go == 2
    assert await world.keys() == {2: "b", 3: "a", 4: "c", 5: "c"}
    await _roll_all(world)

    assert (await world.compact(await world.claim())).let_go == 0
    await world.lives(_HOUR_S)
    assert (await world.compact(await world.claim())).let_go == 1
    assert await world.keys() == {2: "b", 3: "a", 5: "c"}
    await world.agree()


async def _roll_all(world: World) -> None:
    """Copy all of the topic as it is, as the roller does ahead of RETAIN."""
    topic = _state(world.leader).topics.named("t")
    due = Due.below(world.leader.driver.applied_index + 1)
    copier_ = world.upkeep.compactor._copier
    while await copier_.copy_next(topic, 0, due, lambda _: lambda *_: True):
        due = Due(is_block=lambda _: False, before=due.before, soon=0)


async def test_who_wins_and_is_gone_by_now_proves_nothing(world: World) -> None:
    """Another round let it go: that is no lie, and the loser stays for this time."""
    await world.produce("a", "a", "a")
    claim = await world.claim(proofs={0: 1, 1: 2})
    stays = OffsetSet(0, 3, [1, 2]).pack()
    assert (await world.compact(replace(claim, stays=OffsetSet(0, 3, [0, 2]).pack()))).let_go == 1

    done = await world.compact(replace(await world.claim(), stays=stays, proofs={0: 1}))

    assert (done.let_go, done.later) == (0, 1)
    assert await world.keys() == {0: "a", 2: "a"}


async def test_what_was_copied_since_is_not_the_callers_to_decide(world: World) -> None:
    """It may not have seen it: its old place may be gone since before it read. That is counted."""
    await world.produce("a", "b", "a")
    claim = await world.claim(stays=OffsetSet(0, 3, [2]).pack(), proofs={0: 2, 1: 2})
    await _roll_all(world)

    assert await world.compact(claim) == Compacted(later=2)
    assert await world.keys() == {0: "a", 1: "b", 2: "a"}


async def test_another_history_is_refused(world: World) -> None:
    """As after a forced group: the caller may know winners that the group has lost."""
    await world.produce("a", "a")
    claim = await world.claim()
    committed = world.leader.driver.core.commit_index
    for other, said in (
        (replace(claim, as_of_chain=claim.as_of_chain ^ 1), "another history, as after"),
        (replace(claim, as_of_index=committed + 1), f"{committed + 1} is not committed here"),
    ):
        with pytest.raises(Refused, match=said) as raised:
            await world.compact(other)
        assert not isinstance(raised.value, EntryDropped), "no newer entry makes it the same"

    assert (await world.compact(claim)).let_go == 1


async def test_as_of_an_entry_below_the_log_nothing_can_be_told(world: World) -> None:
    """But for the one right before its first: its chain is known."""
    body = 60_000
    await world.produce(*["a"] * 12, size=body)
    await world.compact(await world.claim())
    index = world.leader.driver.applied_index
    await world.leader.driver.propose(Retain(before_index=index).encode(), grows=False)
    await world.upkeep.run()
    await world.upkeep.take_snapshot()
    await world.upkeep.run()
    base = world.leader.log.first_index - 1
    assert base > 2
    claim = await world.claim(as_of_index=base, as_of_chain=world.leader.log.chain(base))

    assert await world.compact(claim) == Compacted()
    with pytest.raises(EntryDropped, match=f"entry {base - 1} is not in the log any more"):
        await world.compact(replace(claim, as_of_index=base - 1))


_IMPOSSIBLE: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"queue_id": 1}, InvalidArgument, "has queues 0 to 0: 1"),
    ({"generation": 7}, UnknownTopic, "'t' does not exist"),
    ({"topic": "u"}, UnknownTopic, "'u' does not exist"),
    ({"to": 3}, InvalidArgument, "it ends at 2"),
    ({"first": 2}, InvalidArgument, r"\[2, 2\) is no range"),
    ({"first": -1}, InvalidArgument, r"\[-1, 2\) is no range"),
    ({"to": MAX_OFFSETS + 1}, InvalidArgument, "say it in parts"),
    ({"as_of_index": -1}, InvalidArgument, "as_of_index is -1"),
    ({"again_in_ms": -1}, InvalidArgument, "again_in_ms is -1"),
    ({"stays": b"??"}, InvalidArgument, "a bitmap that zlib cannot read"),
    ({"alone": b"??"}, InvalidArgument, "a bitmap that zlib cannot read"),
)


async def test_what_cannot_be_is_refused_by_name(world: World) -> None:
    """And nothing is done."""
    await world.produce("a", "a")
    for changed, error, said in _IMPOSSIBLE:
        claim = await world.claim(**changed)
        with pytest.raises(error, match=said):
            await world.compact(claim)

    assert await world.keys() == {0: "a", 1: "a"}


async def test_of_a_topic_that_is_not_compacted_nothing_goes(world: World) -> None:
    """Nor of one that was made anew under the same name."""
    await world.produce("a", "a")
    claim = await world.claim()
    await world.recreate(_AT_ONCE)
    await world.produce("a", "a")

    with pytest.raises(UnknownTopic):
        await world.compact(claim)
    await world.recreate(None)
    await world.produce("a", "a")
    with pytest.raises(Refused, match="'t' is not compacted"):
        await world.compact(await world.claim())


async def test_a_topic_that_is_deleted_meanwhile_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told so, and not that all was done."""
    await world.produce("a", "a")
    claim = await world.claim()
    delete = DeleteTopic(name="t", generation=claim.generation).encode()
    _meanwhile(monkeypatch, world.leader, delete)

    with pytest.raises(UnknownTopic):
        await world.compact(claim)


def _meanwhile(monkeypatch: pytest.MonkeyPatch, leader: DriverNode, command: bytes) -> None:
    """Let a command be applied while the first REKEEP is made."""
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> tuple[bytes, int]:
        made = rekeep_of(*arguments)
        proposal = leader.driver.propose(command, grows=False)
        asyncio.run_coroutine_threadsafe(proposal, loop).result()
        monkeypatch.setattr(copier, "rekeep_of", rekeep_of)
        return made

    monkeypatch.setattr(copier, "rekeep_of", slow)


async def test_only_what_retention_reaches_before_the_caller_comes_again_is_copied(
    world: World,
) -> None:
    """And blocks that lose half. The rest is counted, and goes when it is next copied."""
    await world.produce(*["a", "b", "c", "a", "d", "a", "e", "a"], size=60_000)
    await world.lives(10 * _HOUR_S)
    await world.produce(*["b", "f", "b"], size=60_000)

    nothing = await world.compact(await world.claim(again_in_ms=_HOUR_S * 1000))
    some = await world.compact(await world.claim(again_in_ms=65 * _HOUR_S * 1000))
    left = await world.keys()
    all_ = await world.compact(await world.claim(again_in_ms=72 * _HOUR_S * 1000))

    assert nothing == Compacted(later=5)
    assert 1 <= some.let_go <= 4
    assert some.let_go + some.later == 5
    assert some.kept < 4
    assert 8 in left, "younger than what retention reaches"
    assert all_.let_go == some.later
    assert sorted((await world.keys()).values()) == ["a", "b", "c", "d", "e", "f"]
    await world.agree()


async def test_two_at_once_and_the_roller_never_write_beside_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's REKEEP is refused for what another one did since it was made."""
    await world.produce(*"abcdefab", *"abcdefab", size=60_000)
    await world.lives(80 * _HOUR_S)
    writing, most = 0, 0

    def found(*arguments: Any) -> Roll | None:
        nonlocal writing, most
        roll = next_roll(*arguments)
        writing += roll is not None
        most = max(most, writing)
        return roll

    async def proposed(this: copier.Copier, command: bytes) -> int:
        nonlocal writing
        dropped = await propose(this, command)
        writing -= 1
        return dropped

    propose = copier.Copier._propose
    monkeypatch.setattr(copier, "next_roll", found)
    monkeypatch.setattr(copier.Copier, "_propose", proposed)
    claim = await world.claim()
    results = await asyncio.gather(
        world.compact(claim),
        world.upkeep.run(),
        world.compact(claim),
        return_exceptions=True,
    )

    assert not [each for each in results if isinstance(each, Exception)]
    assert most == 1
    await world.compact(await world.claim())
    assert sorted((await world.keys()).values()) == list("abcdef")
    await world.agree()


async def test_more_calls_than_there_is_room_for_are_refused(world: World) -> None:
    """Each has its bitmaps in memory."""
    await world.produce("a", "a")
    claim = await world.claim()

    results = await asyncio.gather(
        *(world.compact(claim) for _ in range(6)), return_exceptions=True
    )

    assert sum(isinstance(each, Overloaded) for each in results) == 2
    assert (await world.compact(await world.claim())) == Compacted()


async def test_when_the_callers_time_is_over_the_rest_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two commands, and the same claim goes on where it ended."""
    await world.produce("a", "a", "b", "b")
    claim = await world.claim()
    assert await world.compact(claim, timeout_s=0) == Compacted(later=2)

    task = asyncio.create_task(world.compact(claim))
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(copier, "rekeep_of", _told(loop, reached))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await world.compact(claim)).let_go == 2
    await world.agree()


def _told(
    loop: asyncio.AbstractEventLoop, reached: asyncio.Event
) -> Callable[..., tuple[bytes, int]]:
    def make(*arguments: Any) -> tuple[bytes, int]:
        loop.call_soon_threadsafe(reached.set)
        return rekeep_of(*arguments)

    return make


async def test_who_does_not_lead_says_who_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and in the middle; the next leader is told the same, and does it."""
    await world.produce("a", "a", "b", "b")
    claim, old = await world.claim(), world.leader
    follower = world.group.followers()[0]
    with pytest.raises(NotLeader):
        await _upkeep(follower).compactor.compact(claim, timeout_s=10)
    loop = asyncio.get_running_loop()

    def deposed(*arguments: Any) -> tuple[bytes, int]:
        async def hand_over() -> None:
            old.driver.transfer_leadership(None)
            await eventually(lambda: not old.driver.is_serving_leader())

        asyncio.run_coroutine_threadsafe(hand_over(), loop).result()
        monkeypatch.setattr(copier, "rekeep_of", rekeep_of)
        return rekeep_of(*arguments)

    monkeypatch.setattr(copier, "rekeep_of", deposed)
    with pytest.raises(NotLeader):
        await world.compact(claim)

    world.leader = await world.group.leader()
    world.upkeep = _upkeep(world.leader, hours=72)
    assert (await world.compact(claim)).let_go == 2
    await world.agree()
