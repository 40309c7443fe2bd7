"""A table reader that stops midway, while rounds let go of a value and then of its tombstone.

The leader's `Compactor` is the shipped one, over a log in memory; the clients are real ones, and
the log's time is what the test says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.client import TablePosition, TableReader, table_reader
from dledger.common.metrics import NodeMetrics
from dledger.common.offset_set import OffsetSet
from dledger.errors import PositionTooOld
from dledger.replica.compacting import Claim
from dledger.replica.compactor import Compacted, Compactor
from dledger.replica.copier import Copier
from dledger.types import Entry
from tests.client.compacted_topic import TOPIC, CompactedTopic
from tests.requests.memory_group import MemoryGroup, memory_group

_HOUR_MS = 3_600_000
_VALUE, _TOMBSTONE = 1, 2
"""Queue offsets of what the key `gone` had; 0 has the topic's first message, 3 that of `last`."""


class _Leader:
    """What a compactor needs of a driver and a log; a leader by decree."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group, self._engine = group, group.nodes[0].engine
        self.log_clock = self._engine
        self.first_index = 1

    @property
    def core(self) -> Any:
        return SimpleNamespace(commit_index=len(self._group.log), leader=None)

    def is_serving_leader(self) -> bool:
        return self._engine.is_leader()

    async def propose(self, command: bytes, *, grows: bool) -> object:
        assert not grows
        return await self._engine.propose(command)

    def chain(self, index: int) -> int:
        return index

    def read(self, first: int, _last: int, _most_bytes: int) -> tuple[Entry]:
        return (self._group.log[first - 1],)


class World:
    """A compacted topic of one queue, its rounds, and a table that somebody fills."""

    def __init__(self, group: MemoryGroup) -> None:
        self.group, engine = group, group.nodes[0].engine
        self.topic = CompactedTopic(group.addresses[0], engine, 1)
        leader: Any = _Leader(group)
        metrics = NodeMetrics("orders", "id-0")
        copier = Copier(leader, leader, engine.state, metrics=metrics)
        self._compactor = Compactor(
            leader, leader, engine.state, copier, metrics=metrics, reach=_reach
        )
        self.rows: dict[str, bytes] = {}
        self.kept: bytes | None = None

    def lives(self, hours: float) -> None:
        self.group.clock_skew_ms += int(hours * _HOUR_MS)

    async def round(self, goes: Mapping[int, int]) -> Compacted:
        """Say what goes, and for which: itself, if it is a tombstone and its key's only message."""
        as_of, to = len(self.group.log), self.topic.queue(0).end
        claim = Claim(
            as_of_index=as_of,
            as_of_chain=as_of,
            topic=TOPIC,
            generation=self.group.nodes[0].engine.state.topics.named(TOPIC).generation,
            queue_id=0,
            first=0,
            to=to,
            stays=OffsetSet(0, to, {*range(to)} - goes.keys()).pack(),
            alone=OffsetSet(0, to, (offset for offset, by in goes.items() if offset == by)).pack(),
            proofs=goes,
        )
        return await self._compactor.compact(claim, timeout_s=30)

    async def read(self, most: int = 1 << 30) -> None:
        """Go on with the table, at most so many changes, and keep the position with it."""
        position = TablePosition.decode(self.kept) if self.kept else None
        reader = TableReader(self.group.addresses, TOPIC, position=position)
        async with aclosing(reader.catch_up()) as changes:
            async for change in changes:
                if change.deleted:
                    self.rows.pop(change.key, None)
                else:
                    self.rows[change.key] = change.stored.record.body
                self.kept = reader.position.encode()
                most -= 1
                if not most:
                    return
        self.kept = reader.position.encode()


async def _reach(_again_in_ms: int) -> int:
    return 0


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A deleted key, a day and more ago; and a reader who has read its value."""
    async with memory_group(1) as group:
        monkeypatch.setattr(table_reader, "_now_ms", group.now_ms)
        world = World(group)
        await world.topic.create()
        await world.topic.put("gone", b"1")
        await world.topic.delete("gone")
        await world.topic.put("last", b"2")
        world.lives(hours=30)
        await world.read(most=2)
        assert "gone" in world.rows
        yield world


async def test_who_has_read_a_value_finds_its_tombstone_for_as_long_as_the_topic_says(
    world: World,
) -> None:
    """However old the tombstone is, and however many rounds come: its time begins without it."""
    assert (await world.round({_VALUE: _TOMBSTONE})).let_go == 1
    for _ in range(4):
        await world.round({_TOMBSTONE: _TOMBSTONE})
        world.lives(hours=5)

    await world.read()

    assert world.topic.offsets(0) == [0, 2, 3]
    assert world.rows == world.topic.rows


async def test_who_is_slower_is_refused_and_begins_again(world: World) -> None:
    """The tombstone is gone by then, and nobody believes a table that lacks it."""
    await world.round({_VALUE: _TOMBSTONE})
    await world.round({_TOMBSTONE: _TOMBSTONE})
    world.lives(hours=25)
    assert (await world.round({_TOMBSTONE: _TOMBSTONE})).let_go == 1

    with pytest.raises(PositionTooOld):
        await world.read()
    world.rows, world.kept = {}, None
    await world.read()

    assert world.rows == world.topic.rows
