"""What has room on the disks of a group, what goes for it, who leads: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.replica.room import (
    HOPELESS,
    LEAST_VOLUME_BYTES,
    SETTLED_S,
    DiskRoom,
    ForeignUse,
    Limits,
    Verdict,
    asks_of_group,
    decide,
    heir,
    segment_bytes_for,
)
from dledger.types import NodeId
from tests.replica.room_world import MIB, World

A, B, C = (NodeId(name) for name in "abc")
VOTERS = [frozenset({A, B, C})]
LIMITS = Limits.of(segment_bytes=MIB, snapshot_bytes=0)


def _disk(free_mib: int, *, own_mib: int = 20, settled_mib: int = 0) -> DiskRoom:
    return DiskRoom(
        total_bytes=64 * MIB,
        free_bytes=free_mib * MIB,
        own_bytes=own_mib * MIB,
        budget_bytes=0,
        settled_bytes=settled_mib * MIB,
    )


def _asks(disk: DiskRoom, *, percent: int = 85, droppable_mib: int = 19, needed: int = 0) -> int:
    return disk.asks(
        LIMITS,
        percent=percent,
        droppable_bytes=droppable_mib * MIB,
        needed_bytes=needed or LIMITS.refuse_bytes,
    )


@pytest.mark.parametrize("segment_bytes", [MIB, 64 * MIB])
@pytest.mark.parametrize("snapshot_bytes", [0, 92 * MIB])
def test_the_thresholds_are_ordered(segment_bytes: int, snapshot_bytes: int) -> None:
    """The reserve, then refusals, then drops: two that nothing orders refused writes for ever."""
    limits = Limits.of(segment_bytes=segment_bytes, snapshot_bytes=snapshot_bytes)

    assert limits.reserve_bytes >= 2 * snapshot_bytes
    assert limits.refuse_bytes - limits.reserve_bytes == 2 * segment_bytes
    assert limits.drop_bytes - limits.refuse_bytes == 2 * segment_bytes
    assert limits.needed(0) == limits.refuse_bytes


def test_while_messages_are_held_room_is_kept_to_copy_them() -> None:
    """Beside the segment for commands, which ends the round: it is no user's."""
    limits = Limits(segment_bytes=MIB, reserve_bytes=LIMITS.reserve_bytes, copies_bytes=2 * MIB)

    assert limits.refuse_bytes == limits.needed(0) == LIMITS.refuse_bytes + 2 * MIB
    assert limits.drop_bytes - limits.refuse_bytes == 2 * MIB
    assert limits.largest(limits.refuse_bytes) == LIMITS.largest(LIMITS.refuse_bytes)
    assert limits.largest(limits.refuse_bytes - 1) == -1


def test_an_entry_is_let_in_by_what_it_needs() -> None:
    """One that is larger than a segment gets a larger one."""
    assert LIMITS.needed(100) == LIMITS.refuse_bytes
    assert LIMITS.needed(16 * MIB) > LIMITS.reserve_bytes + 17 * MIB
    for free_bytes in (LIMITS.refuse_bytes, 9 * MIB, 30 * MIB):
        largest = LIMITS.largest(free_bytes)
        assert LIMITS.needed(largest) <= free_bytes < LIMITS.needed(max(largest, MIB) + 1)
    assert LIMITS.largest(LIMITS.refuse_bytes - 1) == -1


@given(st.lists(st.integers(1, 16 * MIB), max_size=8), st.integers(0, MIB))
def test_what_is_under_way_takes_no_more_than_is_counted(sizes: list[int], left: int) -> None:
    """Wherever in a segment the first of them begins."""
    taken = 0
    for size in sizes:
        if size > left:
            left = max(MIB, size)
            taken += left
        left -= size

    assert taken <= LIMITS.written(sizes)


@given(st.integers(LEAST_VOLUME_BYTES, 10 << 40), st.integers(20, 26))
def test_segments_are_a_small_part_of_the_smallest_volume(total: int, most: int) -> None:
    """A power of two, 1 to 64 MiB, and no larger than configured."""
    size = segment_bytes_for([total, 10 << 40], most=1 << most)

    assert size.bit_count() == 1
    assert MIB <= size <= 1 << most
    assert size <= total // 32


def test_own_bytes_go_against_what_was_asked_for() -> None:
    """Not against a file system that is shared; however much of it is free."""
    roomy = DiskRoom(
        total_bytes=1 << 40,
        free_bytes=1 << 39,
        own_bytes=100 * MIB,
        budget_bytes=100 * MIB,
        settled_bytes=0,
    )

    assert _asks(roomy, droppable_mib=99) == 15 * MIB
    assert _asks(roomy, percent=0) == 0


def test_what_others_put_there_counts_only_after_an_hour() -> None:
    """44 of 64 MiB are foreign: 7 MiB are free, one less than the point at which messages go."""
    assert _asks(_disk(7, own_mib=13, settled_mib=44)) == MIB
    assert _asks(_disk(7, own_mib=13)) == 0


def test_nothing_goes_that_makes_no_room() -> None:
    """All 19 MiB would leave the disk as full as before for who wants to write."""
    full = _disk(0, own_mib=20, settled_mib=44)

    assert _asks(full) == LIMITS.drop_bytes
    assert _asks(full, droppable_mib=5) == HOPELESS
    assert _asks(full, percent=0) == HOPELESS
    assert _asks(_disk(0)) == HOPELESS  # it is all new: what may go for the rest is too little


def test_foreign_use_is_the_least_of_the_last_hour() -> None:
    """By the minute; what is found at the first look is settled."""
    use = ForeignUse()

    assert use.seen(50, 0.0) == 50
    assert use.seen(90, 60.0) == 50
    assert use.seen(70, 90.0) == 50
    assert use.seen(80, SETTLED_S) == 50
    assert use.seen(80, SETTLED_S + 60) == 70
    assert use.seen(20, SETTLED_S + 61) == 20


@pytest.mark.parametrize(
    ("asks", "wanted"),
    [
        ({A: 0, B: 0, C: 9}, 0),  # a single full disk costs no messages
        ({A: 0, B: 5, C: 9}, 5),
        ({A: 0, B: 5, C: HOPELESS}, 5),
        ({A: 0, C: 5}, 5),  # one that is not heard has no room that is known of
        ({A: 0, B: HOPELESS, C: HOPELESS}, HOPELESS),
    ],
)
def test_what_a_majority_asks_is_dropped(asks: Mapping[NodeId, int], wanted: int) -> None:
    """One full disk costs its own member's part in the group."""
    assert asks_of_group(asks, VOTERS) == wanted


def _decided(
    asks: Mapping[NodeId, int], *lacking: NodeId, hands_over: bool = False
) -> tuple[Verdict, int]:
    found = decide(own=A, asks=asks, lacking=lacking, voter_sets=VOTERS, may_hand_over=hands_over)
    return found.verdict, found.drop_bytes


def test_a_send_waits_while_room_is_made_and_is_refused_where_none_can_be() -> None:
    """By the leader's disk and by what a majority has."""
    assert _decided({A: 0, B: 0, C: 0}) == (Verdict.TAKE, 0)
    assert _decided({A: 3, B: 3, C: 0}) == (Verdict.TAKE, 3)
    assert _decided({A: 3, B: 0, C: 0}, A) == (Verdict.WAIT, 3)
    assert _decided({A: 0, B: 3, C: 4}, B, C) == (Verdict.WAIT, 3)
    assert _decided({A: 0, B: HOPELESS, C: HOPELESS}, B, C) == (Verdict.REFUSE, 0)
    assert _decided({A: HOPELESS, B: HOPELESS, C: 0}, A, B) == (Verdict.REFUSE, 0)


def test_a_minority_without_room_is_told_and_not_obeyed() -> None:
    """The group goes on without it."""
    assert _decided({A: 0, B: 0, C: HOPELESS}, C) == (Verdict.TAKE, 0)
    assert _decided({A: 0, B: 0, C: 7}, C) == (Verdict.TAKE, 0)


def test_a_leader_without_room_hands_over_before_messages_go() -> None:
    """Its own disk decides only where nobody has room in its place."""
    assert _decided({A: 3, B: 0, C: 0}, A, hands_over=True) == (Verdict.WAIT, 0)
    assert _decided({A: HOPELESS, B: 0, C: 0}, A, hands_over=True) == (Verdict.WAIT, 0)


def test_a_leader_that_hears_no_majority_goes_by_its_own_disk() -> None:
    """It may be the first to start."""
    assert _decided({A: 0}) == (Verdict.TAKE, 0)
    assert _decided({A: 4}, A) == (Verdict.WAIT, 4)
    assert _decided({A: HOPELESS}, A) == (Verdict.REFUSE, 0)


def test_leadership_goes_to_who_has_room_for_two_segments_more() -> None:
    """With less it would be without room at once."""
    assert heir({B: 2 * MIB, C: 3 * MIB}, segment_bytes=MIB) == C
    assert heir({B: 2 * MIB - 1}, segment_bytes=MIB) is None
    assert heir({}, segment_bytes=MIB) is None


class _Sharing:
    """Nodes on one file system, each the others' neighbour; every one writes a segment a round."""

    def __init__(self, *, budget_bytes: int, total_bytes: int = 4 << 30) -> None:
        self.total_bytes, self.budget_bytes = total_bytes, budget_bytes
        self.limits = Limits.of(segment_bytes=32 * MIB, snapshot_bytes=0)
        self.own = [64 * MIB] * 3
        self.foreign = [ForeignUse() for _ in self.own]
        self.refused = 0

    def round(self, now_s: float) -> None:
        """Let each node write one segment, or make room for it, or be refused."""
        for n in range(len(self.own)):
            needed = self.limits.refuse_bytes
            for _ in range(4):
                free = self.total_bytes - sum(self.own)
                settled = self.foreign[n].seen(sum(self.own) - self.own[n], now_s)
                disk = DiskRoom(
                    total_bytes=self.total_bytes,
                    free_bytes=free,
                    own_bytes=self.own[n],
                    budget_bytes=self.budget_bytes,
                    settled_bytes=settled,
                )
                droppable = self.own[n] - 32 * MIB
                asks = disk.asks(
                    self.limits, percent=85, droppable_bytes=droppable, needed_bytes=needed
                )
                if asks != HOPELESS:
                    self.own[n] -= min(-(-asks // (32 * MIB)) * 32 * MIB, droppable)
                if free >= needed:
                    self.own[n] += 32 * MIB
                    break
            else:
                self.refused += 1


def test_nodes_that_share_a_disk_do_not_starve_each_other() -> None:
    """Each has a budget; by the file system's share alone the last to come would be refused."""
    budgeted, alone = _Sharing(budget_bytes=(4 << 30) // 3), _Sharing(budget_bytes=0)
    for second in range(400):
        budgeted.round(float(second))
        alone.round(float(second))

    assert budgeted.refused == 0
    assert min(budgeted.own) > 900 * MIB
    assert alone.refused > 100  # what nodes that were not told share for the first hour


_SIZES = st.floats(0, 24).map(lambda power: int(2**power))  # 1 B to 16 MiB
_VOLUMES = st.floats(26, 43.33).map(lambda power: int(2**power))  # 64 MiB to 10 TiB


@st.composite
def _worlds(draw: st.DrawFn, *, foreign: bool) -> World:
    """Draw a world, and let it live: bursts of sends, neighbours that come and go."""
    count = draw(st.sampled_from([1, 3]))
    same = draw(st.booleans())
    first = draw(_VOLUMES)
    totals = [first if same else draw(_VOLUMES) for _ in range(count)]
    snapshot = draw(st.integers(0, min(totals) // 64))
    world = World(totals, snapshot_bytes=snapshot, percent=draw(st.sampled_from([50, 85, 95])))
    # Entries are drawn for the segments: a large disk is filled by many that are large.
    bursts = draw(st.lists(st.lists(_SIZES, min_size=1, max_size=4), min_size=1, max_size=6))
    shares = st.integers(0, 100) if foreign else st.just(0)
    quiet = draw(st.lists(st.lists(shares, min_size=count, max_size=count), min_size=1, max_size=4))
    for number in range(60):
        world.neighbours(quiet[number // 15 % len(quiet)])
        _fill(world, draw, leave=3)
        world.send(bursts[number % len(bursts)])
        world.maintain()
    return world


def _fill(world: World, draw: st.DrawFn, *, leave: int) -> None:
    """Let the log grow to where room ends, as if by entries that nobody draws one by one."""
    limits = world.limits
    spare = min(world.free(member) for member in world.members) - limits.drop_bytes
    more = spare // limits.segment_bytes - leave
    for _ in range(min(more, 40)):
        world.segments.appendleft(limits.segment_bytes)
    if more > 40:  # so large a disk that nothing is short of room: as one segment
        world.segments.appendleft((more - 40) * limits.segment_bytes)


@settings(max_examples=80, deadline=None)
@given(_worlds(foreign=False))
def test_no_send_is_refused_where_something_may_go(world: World) -> None:
    """On disks of 64 MiB to 10 TiB, with entries of 1 B to 16 MiB, and none that gets stuck."""
    out = world.out

    assert out.taken
    assert (out.wrongly_refused, out.stuck, out.state_stuck, out.in_vain) == (0, 0, 0, 0), out
    assert (out.refused, out.waited_too_long) == (0, 0), out


@settings(max_examples=80, deadline=None)
@given(_worlds(foreign=True))
def test_nothing_goes_in_vain_or_for_a_neighbour_of_today(world: World) -> None:
    """Whatever other programs do with the disks."""
    out = world.out

    assert (out.wrongly_refused, out.in_vain, out.for_neighbours) == (0, 0, 0), out
