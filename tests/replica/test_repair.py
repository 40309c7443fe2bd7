"""Fetching damaged entries: from memory, from whoever has them, and what a leader does then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dledger.common.metrics import NodeMetrics
from dledger.errors import StorageError, Unavailable
from dledger.peers.records import whole_entries
from dledger.replica import repair
from dledger.replica.repair import LogRepairer, first_needed, is_stuck_behind
from dledger.types import Entry, NodeId
from tests.raft.bench import Alone
from tests.store.harness import Disk, entries, everything

PEERS = [NodeId("a"), NodeId("b"), NodeId("c")]


class Helpers:
    """Peers that have some entries; one that has none of them does not answer."""

    def __init__(self, **had: Sequence[Entry]) -> None:
        self.had = {NodeId(name): tuple(some) for name, some in had.items()}
        self.asked: list[tuple[NodeId, int, int]] = []

    def peers(self) -> list[NodeId]:
        return PEERS

    async def fetch(self, peer: NodeId, first: int, last: int) -> tuple[Entry, ...]:
        self.asked.append((peer, first, last))
        if peer not in self.had:
            raise Unavailable("away")
        return tuple(each for each in self.had[peer] if first <= each.index <= last)


class Events:
    """What the driver was told."""

    def __init__(self) -> None:
        self.repaired: list[Entry] = []
        self.lost: list[Sequence[range]] = []
        self.handed_over = 0
        self.failed: list[BaseException] = []

    def log_repaired(self, entries: Sequence[Entry]) -> None:
        self.repaired += entries

    def entries_lost(self, damaged: Sequence[range]) -> None:
        self.lost.append(damaged)

    def hand_over_damaged(self) -> None:
        self.handed_over += 1

    def disk_failed(self, error: BaseException) -> None:
        self.failed.append(error)


class Damaged:
    """A log of 40 entries, some of which are damaged and in no memory, and what repairs it."""

    def __init__(self, *damaged: int, **had: Sequence[Entry]) -> None:
        self.disk = Disk()
        self.disk.with_entries(entries(1, 40, size=150)).close()
        self.log = self.disk.open()
        for index in damaged:
            extent, _ = self.log.read_extent(index, index, 1)
            self.disk.contents(extent.segment.name)[extent.offset + 16] ^= 1
            self.log.mark_faulty(index, index, "test")
        self.events, self.helpers, self.now_s = Events(), Helpers(**had), 0.0
        self.refetcher = LogRepairer(
            self.log,
            self.helpers,
            self.events,
            now_s=lambda: self.now_s,
            metrics=NodeMetrics("test", "node"),
        )

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.refetcher._round()


async def test_each_entry_comes_from_whoever_has_it() -> None:
    """One peer is away, one has some, one has others, one of them a wrong one."""
    good = entries(1, 40, size=150)
    wrong = entries(7, 7, term=9, size=150)
    damaged = Damaged(3, 7, 8, 30, b=[*good[:4], *wrong], c=good[6:])

    await damaged.rounds(4)

    assert damaged.log.is_whole
    assert everything(damaged.log) == good
    assert sorted(each.index for each in damaged.events.repaired) == [3, 7, 8, 30]


async def test_what_is_in_memory_is_not_asked_for() -> None:
    """The newest entries are still there, whole."""
    damaged = Damaged()
    damaged.log.append(entries(41, 42, size=150))
    damaged.log.sync()
    damaged.log.mark_faulty(42, 42, "test")

    await damaged.rounds(2)

    assert damaged.log.is_whole
    assert damaged.helpers.asked == []


async def test_what_no_peer_gives_is_told_to_the_driver() -> None:
    """All that is missing; not while anything is repaired."""
    good = entries(1, 40, size=150)
    damaged = Damaged(3, 7, b=[good[6]])

    await damaged.rounds(1)
    assert damaged.events.lost == []
    await damaged.rounds(1)

    assert damaged.events.lost == [[range(3, 4)]]


async def test_what_can_be_read_again_is_mended_without_a_peer() -> None:
    """Seed 12977 of the simulator: a read failed once, in a group of one."""
    alone = Damaged(5)
    alone.log.mark_faulty(9, 9, "the disk did not answer")

    await alone.rounds(2)

    assert [each.index for each in alone.events.repaired] == [9]
    assert alone.log.faulty == (range(5, 6),)


async def test_what_nobody_gives_keeps_nothing_else_from_being_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many ranges are tried in a round; those behind them have their turn, then all again."""
    monkeypatch.setattr(repair, "_MAX_RANGES", 2)
    good = entries(1, 40, size=150)
    damaged = Damaged(3, 7, 11, 15, 19, b=[good[14]])

    await damaged.rounds(4)

    first, behind = [range(3, 4), range(7, 8)], [range(11, 12), range(19, 20)]
    assert [each.index for each in damaged.events.repaired] == [15]
    assert damaged.events.lost == [first, behind, first]


@pytest.mark.parametrize(
    ("damaged", "applied", "needed"),
    [
        ([], 5, None),
        ([range(3, 4)], 5, None),
        ([range(3, 4), range(9, 12)], 5, 9),
        ([range(3, 8)], 5, 6),
        ([range(3, 6)], 5, None),
    ],
)
def test_only_what_is_still_to_be_applied_is_asked_for(
    damaged: list[range], applied: int, needed: int | None
) -> None:
    """Seed 9286 of the simulator: an older damage hid the one that a node waited for."""
    assert first_needed(damaged, applied) == needed


@pytest.mark.parametrize(
    ("damaged", "is_stuck"),
    [
        ((), False),
        ((range(2, 3),), False),
        ((range(4, 5),), True),
        ((range(2, 3), range(4, 5)), True),
    ],
)
def test_a_leader_is_stuck_behind_any_damage_that_no_voter_has_got_past(
    damaged: tuple[range, ...], is_stuck: bool
) -> None:
    """Older damage, which they have, makes no difference."""
    leader = Alone(terms=(1, 1, 1))
    leader.become_leader()
    leader.ack(3)

    assert is_stuck_behind(damaged, leader.raft) is is_stuck


async def test_what_a_snapshot_covers_is_not_asked_for() -> None:
    """Damage below it is no loss, and the log counts as whole."""
    damaged = Damaged(3, 7)
    damaged.log.need_from(7)
    assert damaged.log.faulty == (range(7, 8),)

    damaged.log.need_from(8)
    await damaged.rounds(1)

    assert damaged.log.is_whole
    assert damaged.log.faulty_count == 0
    assert damaged.helpers.asked == []


async def test_a_leader_without_help_hands_over_after_its_patience() -> None:
    """Not before; and every peer was asked."""
    damaged = Damaged(3)

    await damaged.rounds(3)
    assert damaged.events.handed_over == 0
    damaged.now_s = repair.PATIENCE_S
    await damaged.rounds(1)

    assert damaged.events.handed_over == 1
    assert {peer for peer, _, _ in damaged.helpers.asked} == set(PEERS)
    assert damaged.log.faulty == (range(3, 4),)


async def test_a_failed_write_of_a_repair_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any failed write does."""
    damaged = Damaged(3, a=entries(1, 40, size=150))

    def fail(_: object) -> tuple[Entry, ...]:
        raise StorageError("no")

    monkeypatch.setattr(damaged.log, "repair", fail)

    async with asyncio.timeout(5):
        await damaged.refetcher.run()

    assert [str(error) for error in damaged.events.failed] == ["no"]


async def test_a_log_made_whole_by_dropping_does_not_wait_for_the_next_attempt() -> None:
    """Seed 868: what was damaged was dropped; until its node heard of that it did not campaign."""
    damaged = Damaged(3)
    pause = asyncio.ensure_future(damaged.refetcher._pause(60.0))
    await asyncio.sleep(0)
    assert damaged.log.drop_before(30) > 3

    await asyncio.wait_for(pause, 10)

    assert damaged.log.is_whole


@pytest.mark.parametrize(
    ("first", "last", "given"),
    [(1, 40, range(1, 3)), (3, 40, range(5, 9)), (4, 6, range(5, 7)), (3, 4, range(0)), (9, 9, ())],
)
def test_a_peer_gives_what_is_whole_behind_its_own_damage(
    first: int, last: int, given: Sequence[int]
) -> None:
    """Two nodes with damage in one place help each other with the rest of it."""
    log = Damaged(3, 4, 9).log

    found = whole_entries(log, first, last, 1 << 20)

    assert [entry.index for entry in found] == list(given)
