"""What one member knows of the room on the group's disks, and what it does with that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.common.reports import Room
from dledger.errors import DiskFull
from dledger.replica.room import HAND_OVER_EVERY_S, SETTLED_S, Verdict, segment_bytes_for
from dledger.replica.room_keeper import Measured, RoomConfig
from dledger.types import Entry, EntryKind, NodeId
from tests.replica.room_harness import MIB, Keeping

B, C = NodeId("b"), NodeId("c")


def _look(free_mib: int, *, own_mib: int = 500, total_mib: int = 1024, **more: int) -> Measured:
    return Measured(
        total_bytes=total_mib * MIB,
        free_bytes=free_mib * MIB,
        own_bytes=own_mib * MIB,
        droppable_bytes=more.get("droppable_mib", max(0, own_mib - 64)) * MIB,
        snapshot_bytes=more.get("snapshot_mib", 0) * MIB,
        allocated_bytes=more.get("allocated_bytes", 0),
        first_index=more.get("first", 0),
        going_bytes=more.get("going_mib", 0) * MIB,
        held_bytes=more.get("held_mib", 0) * MIB,
    )


def _room(
    free_mib: int, *, own_mib: int = 500, total_mib: int = 1024, first: int = 0, going_mib: int = 0
) -> Room:
    return Room(
        first_index=first,
        going_bytes=going_mib * MIB,
        total_bytes=total_mib * MIB,
        free_bytes=free_mib * MIB,
        own_bytes=own_mib * MIB,
        budget_bytes=0,
    )


def _entry(index: int, size_bytes: int) -> Entry:
    return Entry(
        term=1,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=0,
        crc32c=0,
        data=bytes(size_bytes),
    )


def test_everything_is_taken_before_the_first_look() -> None:
    """What has no disk to look at is not held up; a node looks before its first command."""
    keeper = Keeping().keeper

    assert keeper.room_bytes() > 1 << 40
    assert keeper.decision().verdict is Verdict.TAKE


def test_what_is_held_keeps_room_for_its_copies() -> None:
    """As much as one segment has of it, and a segment in which they end."""
    keeper = Keeping().keeper
    keeper.measured(_look(260))
    without = keeper.limits.refuse_bytes

    keeper.measured(_look(260, held_mib=3))

    assert keeper.limits.refuse_bytes == without + 3 * MIB + keeper.segment_bytes


def test_a_segment_made_since_the_look_counts() -> None:
    """The look comes once a second, and a fast writer fills several segments in one."""
    keeping = Keeping()
    keeping.keeper.measured(_look(260))
    roomy = keeping.keeper.room_bytes()

    keeping.allocated_bytes = 64 * MIB

    assert roomy - keeping.keeper.room_bytes() == 64 * MIB
    keeping.allocated_bytes = 128 * MIB  # below the point at which messages go
    assert roomy - keeping.keeper.room_bytes() == 128 * MIB
    keeping.allocated_bytes = 193 * MIB
    assert keeping.keeper.room_bytes() == -1
    assert keeping.keeper.decision().drop_bytes > 0


@pytest.mark.found
def test_a_segment_sealed_since_the_look_can_go() -> None:
    """Found by CI: a fast writer that filled a new disk within a second was refused for one more.

    At the first look no segment was sealed, so nothing seemed to make room.
    """
    keeping = Keeping(config=RoomConfig(segment_bytes=2 * MIB))
    keeping.keeper.measured(_look(64, own_mib=0, total_mib=64, droppable_mib=0))

    keeping.allocated_bytes = 57 * MIB

    assert keeping.keeper.room_bytes() == -1
    assert keeping.keeper.waits(100) is None
    assert keeping.keeper.decision().drop_bytes > 0


def test_entries_on_their_way_to_the_disk_count() -> None:
    """Until they are there: those that replace them, in their place."""
    keeping = Keeping()
    keeper = keeping.keeper
    keeper.measured(_look(260))
    roomy = keeper.room_bytes()

    keeper.takes(5, 20 * MIB)
    keeper.writes([_entry(5, 20 * MIB), _entry(6, 20 * MIB)])
    two = keeper.room_bytes()
    keeper.writes([_entry(6, 20 * MIB)])
    same = keeper.room_bytes()
    keeper.wrote(6)

    assert two == same == roomy - 128 * MIB
    assert keeper.room_bytes() == roomy


def test_an_entry_is_decided_by_those_on_their_way_before_it() -> None:
    """Each of several has room where one has."""
    keeping = Keeping()
    keeper = keeping.keeper
    keeper.measured(_look(150))
    assert keeper.decision().verdict is Verdict.TAKE

    keeper.takes(5, 20 * MIB)
    keeper.takes(6, 20 * MIB)
    assert keeper.decision().verdict is not Verdict.TAKE

    keeper.wrote(6)
    assert keeper.decision().verdict is Verdict.TAKE


def test_the_snapshot_counts_twice() -> None:
    """The next one is written beside it."""
    keeper = Keeping().keeper
    keeper.measured(_look(500))
    before = keeper.limits

    keeper.measured(_look(500, snapshot_mib=92))

    assert keeper.limits.reserve_bytes - before.reserve_bytes == 184 * MIB


def test_a_group_has_segments_for_its_smallest_volume() -> None:
    """Also of a member that is silent now; not of one that is a member no more."""
    keeping = Keeping((B, C))
    keeping.tell({B: _room(100, own_mib=10, total_mib=300), C: _room(900)})
    keeping.keeper.measured(_look(900, own_mib=60))
    assert keeping.keeper.segment_bytes == 8 * MIB

    keeping.clock.now_s += 60
    keeping.keeper.measured(_look(900, own_mib=60))
    assert keeping.keeper.segment_bytes == 8 * MIB

    keeping.others.remove(B)
    keeping.keeper.measured(_look(900, own_mib=60))
    assert keeping.keeper.segment_bytes == 32 * MIB


def test_a_majority_without_room_holds_sends_back() -> None:
    """Its disks are those that an entry must be on."""
    keeping = Keeping((B, C))
    keeping.tell({B: _room(10, own_mib=1000), C: _room(20, own_mib=1000)})
    keeping.keeper.measured(_look(500))

    assert keeping.keeper.room_bytes() == -1
    assert keeping.keeper.waits(100) is None
    assert keeping.keeper.decision().drop_bytes > 0


@pytest.mark.found
def test_what_was_let_go_is_not_asked_for_again_until_its_files_are_gone() -> None:
    """Found by a story: a leader dropped its files, heard of the others', and let as much go again.

    They drop theirs when they next look, up to ten seconds later; each second cost as much again.
    """
    keeping = Keeping((B, C))
    keeper = keeping.keeper
    full = _room(100, own_mib=924, first=1)
    keeping.tell({B: full, C: full})
    keeper.measured(_look(100, own_mib=924, first=1))
    assert keeper.decision().drop_bytes > 0

    keeper.measured(_look(100, own_mib=924, first=40, going_mib=64))  # let go, not dropped yet
    assert keeper.decision().drop_bytes == 0
    keeper.measured(_look(164, own_mib=860, first=40))  # and gone here; the others did not hear yet
    assert keeper.decision().drop_bytes == 0
    heard = _room(100, own_mib=924, first=40, going_mib=64)
    keeping.tell({B: heard, C: heard})
    keeper.measured(_look(164, own_mib=860, first=40))
    assert keeper.decision().drop_bytes == 0

    fuller = _room(92, own_mib=932, first=40, going_mib=32)
    keeping.tell({B: fuller, C: fuller})
    keeper.measured(_look(124, own_mib=900, first=40))
    assert keeper.decision().drop_bytes > 0


def test_a_minority_without_room_holds_nobody_back() -> None:
    """And lets no message go."""
    keeping = Keeping((B, C))
    keeping.tell({B: _room(10, own_mib=1000), C: _room(500)})
    keeping.keeper.measured(_look(500))

    assert keeping.keeper.room_bytes() > 64 * MIB
    assert keeping.keeper.decision().drop_bytes == 0


def test_a_neighbours_files_refuse_sends_by_name_and_cost_messages_after_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told at once, with how much came and when messages go for it."""
    keeping = Keeping()
    keeper = keeping.keeper
    keeper.measured(_look(524))

    keeper.measured(_look(24))
    assert keeper.decision().drop_bytes == 0
    assert "468.0 MiB of this node's disk within the last hour" in str(keeper.refusal)
    assert any("other programs' files took" in line for line in caplog.messages)

    for _ in range(int(SETTLED_S) // 60 + 1):
        keeping.clock.now_s += 60
        keeper.measured(_look(24))
    assert keeper.refusal is None
    assert keeper.decision().verdict is Verdict.WAIT
    assert keeper.decision().drop_bytes == keeper.limits.drop_bytes - 24 * MIB


def test_a_leader_without_room_hands_over_to_each_once_in_five_minutes_and_not_back() -> None:
    """To the member with most room, if it is enough for two segments."""
    keeping = Keeping((B, C))
    keeper = keeping.keeper
    keeper.leads(B)
    keeping.tell({B: _room(900), C: _room(500)})
    keeper.measured(_look(10, own_mib=60))

    assert keeper.heir() == C
    keeper.handed_over(C)
    assert keeper.heir() is None
    keeping.clock.now_s += HAND_OVER_EVERY_S
    keeping.tell({B: _room(900), C: _room(500)})
    assert keeper.heir() == B


def test_a_member_that_was_not_asked_is_an_heir_at_once() -> None:
    """A neighbour may fill one disk after the other: no send waits five minutes for that.

    Found by the simulator, seed 60796: a leader that had handed over to the second, and had got
    leadership back from it, refused everything beside a third with an empty disk.
    """
    keeping = Keeping((B, C))
    keeper = keeping.keeper
    keeping.tell({B: _room(900), C: _room(500)})
    keeper.measured(_look(10, own_mib=60))
    assert keeper.heir() == B
    keeper.handed_over(B)
    keeper.leads(B)

    assert keeper.heir() == C
    keeper.handed_over(C)
    assert keeper.heir() is None


def test_who_is_known_to_have_no_room_is_not_made_leader() -> None:
    """Not even for its clients: messages would go for its disk."""
    keeping = Keeping((B, C))
    keeping.tell({B: _room(10)})
    keeping.keeper.measured(_look(500))

    assert not keeping.keeper.is_roomy(B)
    assert keeping.keeper.is_roomy(C)


def test_a_leader_with_room_hands_over_to_nobody() -> None:
    """However much more another one has."""
    keeping = Keeping((B, C))
    keeping.tell({B: _room(900), C: _room(900)})
    keeping.keeper.measured(_look(100))

    assert keeping.keeper.heir() is None


def test_a_follower_without_room_is_told_once_that_lasts() -> None:
    """The group goes on without it, and makes no room for it alone."""
    keeping = Keeping((B, C))
    keeper = keeping.keeper
    told = []
    for _ in range(3):
        keeping.tell({B: _room(900), C: _room(900)})
        keeper.measured(_look(10, own_mib=60))
        told.append(keeper.shortage is not None)
        keeping.clock.now_s += 6
    keeper.measured(_look(900, own_mib=60))

    assert told == [False, False, True]
    assert keeper.shortage is None


def test_messages_never_go_for_room_where_that_is_turned_off() -> None:
    """Then nothing can make any, and sends are refused."""
    keeping = Keeping(config=RoomConfig(percent=0))
    keeping.keeper.measured(_look(10, own_mib=1000))

    assert keeping.keeper.refusal is not None
    assert keeping.keeper.decision().drop_bytes == 0


@pytest.mark.parametrize(
    ("budget_mib", "percent", "told_mib"),
    [(0, 85, 870), (512, 50, 256), (4096, 50, 512), (512, 0, None)],
)
def test_the_watermark_is_told_in_bytes_of_what_the_node_may_use(
    budget_mib: int, percent: int, told_mib: int | None
) -> None:
    """An alert compares own bytes with it; where messages never go there is none."""
    keeping = Keeping(config=RoomConfig(budget_bytes=budget_mib * MIB, percent=percent))
    assert keeping.keeper.watermark_bytes is None

    keeping.keeper.measured(_look(500))

    told = keeping.keeper.watermark_bytes
    assert (told // MIB if told is not None else None) == told_mib


def test_a_write_that_waits_for_room_keeps_users_data_out() -> None:
    """However much is free by another count: until it was written, or nothing waits any more."""
    keeper = Keeping().keeper
    keeper.measured(_look(500))
    keeper.write_refused(DiskFull("no room"))

    keeper.measured(_look(500), retrying=True)
    keeper.write_succeeded(retrying=True)
    refusal = keeper.refusal
    assert refusal is not None
    assert keeper.room_bytes() == -1
    assert keeper.waits(1) is refusal

    keeper.write_succeeded(retrying=False)
    assert keeper.refusal is None
    keeper.write_refused(DiskFull("no room"))
    keeper.measured(_look(500), retrying=False)  # what waited may have been given up
    assert keeper.refusal is None


def test_no_spare_segment_is_made_at_the_refusal_point() -> None:
    """It would be what takes the room that sends need."""
    keeper = Keeping().keeper
    keeper.measured(_look(80))
    assert keeper.limits.refuse_bytes == 68 * MIB
    assert not keeper.has_room_for_spare

    keeper.measured(_look(100))
    assert keeper.has_room_for_spare


class _Disk:
    """One node's disk, and the keeper that sees it only when it looks."""

    def __init__(self, total_bytes: int) -> None:
        most = segment_bytes_for([total_bytes], most=32 * MIB)
        self.keeping = Keeping(config=RoomConfig(segment_bytes=most))
        self.total_bytes, self.segment_bytes, self.segments = total_bytes, most, 0
        self.refused = 0
        self.look()

    def look(self) -> None:
        """What a second, or a drop, brings."""
        used_bytes = self.segments * self.segment_bytes
        found = Measured(
            total_bytes=self.total_bytes,
            free_bytes=self.total_bytes - used_bytes,
            own_bytes=used_bytes,
            droppable_bytes=max(0, used_bytes - self.segment_bytes),
            allocated_bytes=self.keeping.allocated_bytes,
        )
        self.keeping.keeper.measured(found)

    def write_segment(self) -> None:
        """Send until a segment is full: what finds no room waits while some is made."""
        keeper = self.keeping.keeper
        if keeper.room_bytes() < 1:
            self.refused += keeper.waits(1) is not None
            dropped = -(-keeper.decision().drop_bytes // self.segment_bytes)
            self.segments -= min(dropped, max(0, self.segments - 1))
            self.look()
            keeper.satisfied()
        self.refused += keeper.room_bytes() < 1
        self.segments += 1
        self.keeping.allocated_bytes += self.segment_bytes


@given(
    st.integers(26, 43).map(lambda power: 1 << power),
    st.lists(st.integers(0, 64), min_size=1, max_size=20),
)
def test_however_much_is_written_between_two_looks_nothing_is_refused(
    total_bytes: int, segments: list[int]
) -> None:
    """All of the disk is the log's own, and any of it may go but the last segment."""
    disk = _Disk(total_bytes)
    for count in segments:
        for _ in range(count):
            disk.write_segment()
        disk.look()

    assert disk.refused == 0
    assert disk.segments * disk.segment_bytes <= total_bytes


class _Trio:
    """Three disks with one log, of which each member drops its files when it comes to it.

    Segment n holds entry n alone. The leader lets messages go by what it has heard.
    """

    VOLUME, SEGMENT = 64 * MIB, MIB

    def __init__(self) -> None:
        config = RoomConfig(segment_bytes=self.SEGMENT, least_segment_bytes=self.SEGMENT)
        self.keeping = Keeping((B, C), config)
        self.kept, self.last = 1, 50
        self.knows, self.begins = [1, 1, 1], [1, 1, 1]
        self.told: dict[str, Room] = {}

    def write(self, segments: int) -> None:
        """Let the log grow."""
        self.last += segments
        self.keeping.allocated_bytes += segments * self.SEGMENT

    def look(self, member: int) -> None:
        """Let a member measure its disk; the leader hears of it with the next answer."""
        own_bytes = (self.last - self.begins[member] + 1) * self.SEGMENT
        going_bytes = (self.knows[member] - self.begins[member]) * self.SEGMENT
        sizes = {
            "total_bytes": self.VOLUME,
            "free_bytes": max(0, self.VOLUME - own_bytes),
            "own_bytes": own_bytes,
            "first_index": self.knows[member],
            "going_bytes": going_bytes,
        }
        if member:
            self.told[(B, C)[member - 1]] = Room(budget_bytes=0, **sizes)
        else:
            self.keeping.keeper.measured(
                Measured(
                    droppable_bytes=own_bytes - self.SEGMENT,
                    allocated_bytes=self.keeping.allocated_bytes,
                    **sizes,
                )
            )

    def maintain(self) -> int:
        """Let go what the leader asks; return how much of what was kept then was one too many."""
        self.look(0)
        asked = self.keeping.keeper.decision().drop_bytes
        segments = min(-(-asked // self.SEGMENT), self.last - self.kept)
        fits = self.VOLUME * 85 // 100 - (self.last - self.kept + 1) * self.SEGMENT
        self.kept += segments
        self.knows[0] = self.kept
        return segments + fits // self.SEGMENT if segments and fits > 0 else 0


@pytest.mark.found
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 8)),
            st.tuples(st.just("drop"), st.just(0)),
            st.tuples(st.sampled_from(["hear", "drop", "look"]), st.integers(1, 2)),
            st.tuples(st.sampled_from(["tell", "maintain"]), st.just(0)),
        ),
        min_size=20,
        max_size=120,
    )
)
def test_nothing_goes_while_all_that_is_kept_fits_whoever_drops_his_files_when(
    steps: list[tuple[str, int]],
) -> None:
    """Found by a story: looks, reports and drops come in any order; the same room is asked once."""
    trio = _Trio()
    for kind, number in steps:
        if kind == "write":
            trio.write(min(number, trio.kept + 60 - trio.last))
        elif kind == "hear":
            trio.knows[number] = trio.kept
        elif kind == "drop":
            trio.begins[number] = trio.knows[number]
        elif kind == "look":
            trio.look(number)
        elif kind == "tell":
            trio.keeping.clock.now_s += 1
            trio.keeping.tell(trio.told)
        else:
            assert trio.maintain() == 0
