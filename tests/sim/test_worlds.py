"""Worlds of one kind of fault each: how they are drawn, and what their checkers let pass."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.errors import StorageError
from dledger.files.files import Mode
from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError
from dledger_sim.disk import SimFiles, says_full
from dledger_sim.lived import LivedHours, check_not_ahead
from dledger_sim.lone import Lone
from dledger_sim.loop import S
from dledger_sim.options import Options, draws_makes
from dledger_sim.process import START_MS
from dledger_sim.room import check_has_room, check_not_in_vain
from dledger_sim.run import Run
from dledger_sim.worlds import DRAWN, WORLDS, draw_world
from tests.raft.bench import data_entry

HOUR_US = 3600 * S
NODE: Any = SimpleNamespace(id="1")


def entry(index: int, timestamp_ms: int = 0) -> Entry:
    data = data_entry(1, index)
    return Entry(
        term=1,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=timestamp_ms,
        crc32c=data.crc32c,
        data=data.data,
    )


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_one_run_in_each_world(world: str) -> None:
    """What it draws there is the same each time, and another one than without."""
    assert Options.of(7, world) == Options.of(7, world)
    assert Options.of(7, world) != Options.of(7)


def test_worlds_leave_the_other_draws_of_a_seed_as_they_are() -> None:
    """Seeds that draw no world are the runs that they were; storms stay storms."""
    for seed in range(300):
        drawn = replace(Options.draw(Random(f"{seed}/options")), makes=draws_makes(seed))
        in_world = bool(draw_world(seed)) and not drawn.storm
        calm = Options()
        found = replace(
            Options.of(seed).without("keeps", "compacts", "rounds"),
            lag_ms=calm.lag_ms,
            tombstone_ms=calm.tombstone_ms,
        )
        assert (found != drawn) == in_world


def test_each_world_is_drawn_by_some_seeds() -> None:
    """So that whoever runs many seeds runs them."""
    assert {draw_world(seed) for seed in range(600)} == {"", *DRAWN}


def test_where_clocks_are_wrong_only_age_lets_messages_go() -> None:
    """What went for room would look like a loss."""
    worlds = [Options.of(seed, "clocks") for seed in range(60)]

    assert not any(one.kept_kib or one.volume_kib for one in worlds)
    assert any(one.all_wrong for one in worlds)
    assert sum(one.has_right_clocks for one in worlds) > 30


@pytest.mark.parametrize("world", ["os-buffer", "put-back"])
def test_where_one_node_is_hit_the_others_neither_crash_nor_lose_anything(world: str) -> None:
    """Nothing is promised of two."""
    for seed in range(60):
        options = Options.of(seed, world)
        assert options.waits_for_one
        assert not any((options.crash_s, options.power_cut_s, options.damages, options.change_s))


def test_a_message_that_lived_its_hours_may_go_and_a_younger_one_may_not() -> None:
    """Hours under a leader: what nobody led through is no time."""
    lived = LivedHours(1)
    for half_second in range(2 * 3600):
        lived.led(half_second * S // 4)
        if half_second == 0:
            lived.applied(entry(2), 1)
    lived.applied(entry(3), 1)
    for quarter in range(2 * 3600, 4 * 3600):
        lived.led(quarter * S // 4)

    lived.applied(entry(4), 3)
    with pytest.raises(ViolationError, match="entry 3 go, which have lived"):
        lived.applied(entry(5), 4)


def test_time_without_a_leader_is_not_lived() -> None:
    """A group that was down for a week comes back with all it had."""
    lived = LivedHours(1)
    lived.led(0)
    lived.applied(entry(2), 1)
    lived.led(200 * HOUR_US)

    with pytest.raises(ViolationError, match=r"have lived 0\.2 s"):
        lived.applied(entry(3), 3)


def test_without_an_age_nothing_is_checked() -> None:
    """Retention by size lets go of what it will."""
    lived = LivedHours(0)
    lived.applied(entry(2), 1)

    lived.applied(entry(3), 3)


def test_an_entry_ahead_of_every_right_clock_is_a_violation() -> None:
    """By more than 5 s and a round trip."""
    check_not_ahead(entry(2, START_MS + 16_000), 10 * S)

    with pytest.raises(ViolationError, match="7 s ahead"):
        check_not_ahead(entry(2, START_MS + 17_000), 10 * S)


@pytest.mark.parametrize(("quota", "number"), [(False, errno.ENOSPC), (True, errno.EDQUOT)])
def test_a_disk_says_in_each_way_that_it_is_full(quota: bool, number: int) -> None:
    """By bytes when a file grows, by inodes when one is made; both end."""
    files = SimFiles(volume_bytes=1000, quota=quota)
    file = files.open(Path("/a"), Mode.CREATE)
    files.fill(10)
    with pytest.raises(OSError, match=r".") as grown:
        file.pwritev([b"." * 11], 0)
    files.empty()
    files.take_inodes(1)
    files.open(Path("/b"), Mode.CREATE)
    with pytest.raises(OSError, match=r".") as made:
        files.open(Path("/c"), Mode.CREATE)
    files.open(Path("/b"), Mode.CREATE)  # has one already
    files.empty()
    files.open(Path("/c"), Mode.CREATE)

    assert (grown.value.errno, made.value.errno) == (number, errno.ENOSPC)


def test_neighbours_take_what_the_volume_has_and_its_size_stays() -> None:
    """As `statvfs` says it."""
    files = SimFiles(volume_bytes=1000)
    files.open(Path("/a"), Mode.CREATE).pwritev([b"." * 100], 0)

    files.fill(50)

    assert files.disk_usage(Path("/")) == (1000, 50)
    assert (files.own_bytes, files.has_neighbours) == (100, True)


def test_an_image_is_what_a_power_cut_would_leave_and_stays_as_it_is() -> None:
    """A snapshot of a volume: what was synced is there, what comes later is not."""
    files = SimFiles()
    file = files.open(Path("/d/a"), Mode.CREATE)
    file.pwritev([b"old"], 0)
    file.fdatasync()
    files.fsync_dir(Path("/d"))

    image = files.image(Random(1))
    file.pwritev([b"new"], 0)
    file.fdatasync()

    assert image.contents(Path("/d/a")) == b"old"
    assert files.contents(Path("/d/a")) == b"new"


def test_a_node_that_ends_for_lack_of_room_is_a_violation() -> None:
    """And one whose disk fails otherwise is not."""
    full, broken = StorageError("cannot write"), StorageError("cannot write")
    full.__cause__ = OSError(errno.EDQUOT, "quota")
    broken.__cause__ = OSError(errno.EIO, "broken")

    check_has_room(NODE, broken)
    with pytest.raises(ViolationError, match="1 ends itself for lack of room"):
        check_has_room(NODE, full)
    assert says_full(full)


def test_messages_that_go_for_others_files_go_in_vain() -> None:
    """But not where the group's own take half of a disk."""
    small, large = SimFiles(volume_bytes=1000), SimFiles(volume_bytes=1000)
    large.open(Path("/a"), Mode.CREATE).pwritev([b"." * 500], 0)

    check_not_in_vain([small, large])
    with pytest.raises(ViolationError, match="own files take 0 %"):
        check_not_in_vain([small])


def test_a_truce_begins_with_a_whole_group_and_ends_with_one() -> None:
    """While it is on, nothing else is done to anybody."""
    cluster = Run(3, Options(clients=1, window=1, batch=1, think_ms=500)).cluster
    cluster.begin()
    lone = Lone(cluster)
    lone.start()

    lone.cut_power()
    too_early = lone.has_truce
    cluster.clock.run_until(3 * S)
    lone.cut_power()
    began = lone.has_truce
    ended = cluster.clock.run_until(20 * S, lambda: not lone.has_truce)

    assert (too_early, began, ended) == (False, True, True)
    assert sorted(one.lives for one in cluster.processes.values()) == [1, 1, 2]


def test_a_disk_is_put_back_to_what_it_was() -> None:
    """By an image of its own that was taken before."""
    cluster = Run(3, Options(clients=1, window=1, batch=1, think_ms=100)).cluster
    cluster.begin()
    lone = Lone(cluster)
    lone.start()
    cluster.clock.run_until(3 * S)
    disks = {one.id: one.files for one in cluster.processes.values()}

    lone.put_back()
    cluster.clock.run_until(8 * S, lambda: any(one.lives > 1 for one in cluster.processes.values()))
    cluster.clock.run_until(cluster.clock.now_us + S)

    assert sum(one.files is not disks[one.id] for one in cluster.processes.values()) == 1
