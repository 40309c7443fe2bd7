"""The log's beginning moves: whole segments go, or all of it gives way to a snapshot."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from dledger.errors import OffsetOutOfRange
from dledger.store.commit_log import CommitLog
from dledger.types import Entry, EntryKind, Member, Membership, NodeId
from tests.store.cut_files import CutFiles, PowerCutError
from tests.store.harness import Disk, entries, entry, format_disk


def kept(log: CommitLog) -> list[Entry]:
    """Return all entries that the log keeps, read back from disk."""
    found: list[Entry] = []
    while log.first_index + len(found) <= log.last_index:
        found += log.read(log.first_index + len(found), log.last_index, 1 << 20)
    return found


def cut_disk() -> tuple[Disk, CutFiles]:
    """Return a formatted disk whose power can be cut before any call, and its files."""
    disk, files = Disk(), CutFiles()
    disk.files = files
    disk.identity = format_disk(files)
    return disk, files


def test_whole_sealed_segments_below_an_index_go() -> None:
    """The segment that holds the index stays, and with it what is behind the new first index."""
    disk = Disk()
    log = disk.with_entries(entries(1, 100, size=200))
    starts = [segment.first_index for segment in log._index.segments]

    first = log.drop_before(starts[2] + 1)

    assert first == log.first_index == starts[2]
    assert len(disk.names(".seg")) == len(starts) - 2
    assert len(disk.names(".idx")) == len(starts) - 3
    assert kept(log) == entries(first, 100, size=200)
    assert kept(disk.crash()) == entries(first, 100, size=200)


def test_last_segment_always_stays() -> None:
    """Also when all of it is below the index: it is the one that is written."""
    disk = Disk()
    log = disk.with_entries(entries(1, 100, size=200))

    first = log.drop_before(10_000)

    assert first == log._index.segments[-1].first_index
    assert log.drop_before(first) == first
    log.append(entries(101, 102, size=200))
    log.sync()
    assert kept(disk.crash()) == entries(first, 102, size=200)


def test_term_and_chain_before_the_first_entry_stay_known() -> None:
    """What comes first is matched against them, also after a restart."""
    disk = Disk()
    log = disk.with_entries([*entries(1, 40, size=200), *entries(41, 100, term=3, size=200)])
    chains = {index: log.chain(index) for index in range(101)}

    first = log.drop_before(60)

    for each in (log, disk.crash()):
        assert each.term(first - 1) == 3
        assert each.chain(first - 1) == chains[first - 1]
        assert each.chain(100) == chains[100]
        with pytest.raises(OffsetOutOfRange):
            each.term(first - 2)
        with pytest.raises(OffsetOutOfRange):
            each.read(first - 1, 100, 1)


def test_dropped_memberships_are_the_snapshots_business() -> None:
    """The log names those that it keeps."""
    membership = Membership.of([Member(id=NodeId("a"), name="a", address="a:1")])
    disk = Disk()
    log = disk.with_entries(
        [
            entry(1, data=membership.encode(), kind=EntryKind.MEMBERSHIP),
            *entries(2, 99, size=200),
            entry(100, data=membership.encode(), kind=EntryKind.MEMBERSHIP),
        ]
    )

    log.drop_before(50)

    assert log.memberships() == [(100, membership)] == disk.open().memberships()


def test_os_buffer_log_is_dropped_above_its_watermark() -> None:
    """Sealed segments are synced whatever the watermark says; it moves with the beginning."""
    disk = Disk(durability="osBuffer")
    log = disk.with_entries(entries(1, 100, size=200))

    first = log.drop_before(60)

    found = kept(disk.crash())
    assert first > 1
    assert found == entries(first, first + len(found) - 1, size=200)


@pytest.mark.parametrize("index", [5, 60, 100, 500])
def test_log_restarts_empty_behind_a_snapshot(index: int) -> None:
    """Wherever it ends: within the log, at its end, or far behind."""
    disk = Disk()
    log = disk.with_entries(entries(1, 100, size=200))

    log.restart_behind(index=index, term=7, chain=0xABCD)

    for each in (log, disk.crash()):
        assert (each.first_index, each.last_index, each.synced_index) == (index + 1, index, index)
        assert (each.term(index), each.chain(index)) == (7, 0xABCD)
        assert each.memberships() == []
    assert disk.names() == ["watermark"]


def test_restarted_log_goes_on() -> None:
    """The first entry continues the snapshot's chain."""
    disk = Disk()
    whole = disk.with_entries(entries(1, 20))
    other = Disk()
    log = other.open()

    log.restart_behind(index=10, term=1, chain=whole.chain(10))
    log.append(entries(11, 20))
    log.sync()

    assert kept(other.crash()) == entries(11, 20)
    assert log.chain(20) == whole.chain(20)


@pytest.mark.parametrize("slot", [0, 4096])
def test_loss_of_a_watermark_slot_does_not_ask_for_what_was_dropped(slot: int) -> None:
    """The beginning is in both slots before anything goes."""
    disk = Disk()
    log = disk.with_entries(entries(1, 100, size=200))
    first = log.drop_before(60)

    disk.contents("watermark")[slot + 33] ^= 1

    assert kept(disk.open()) == entries(first, 100, size=200)


@pytest.mark.parametrize("calls", range(25))
def test_power_cut_while_segments_are_dropped_loses_nothing_else(calls: int) -> None:
    """At every file call: the old beginning or the new one, and all that was synced behind it."""
    for seed in range(8):
        disk, files = cut_disk()
        log = disk.with_entries(entries(1, 100, size=200))
        new = log._index.base_before(60).index + 1

        files.calls_left = calls
        with suppress(PowerCutError):
            log.drop_before(60)
        files.calls_left = 1 << 60
        found = disk.crash(seed)

        assert found.first_index in (1, new)
        assert kept(found) == entries(found.first_index, 100, size=200)


@pytest.mark.parametrize("calls", range(25))
@pytest.mark.parametrize("index", [60, 200])
def test_power_cut_while_the_log_restarts_leaves_the_old_or_the_new_one(
    calls: int, index: int
) -> None:
    """At every file call, also during the recovery that follows."""
    for seed in range(8):
        disk, files = cut_disk()
        log = disk.with_entries(entries(1, 100, size=200))

        files.calls_left = calls
        with suppress(PowerCutError):
            log.restart_behind(index=index, term=7, chain=1)
        disk.files.crash(Random(seed))
        files.calls_left = calls // 2
        with suppress(PowerCutError):
            disk.open()
        files.calls_left = 1 << 60
        found = disk.crash(seed)

        assert (found.first_index, found.last_index) in {(1, 100), (index + 1, index)}
        assert kept(found) in ([], entries(1, 100, size=200))


def test_the_beginning_of_all_logs_stays_known() -> None:
    """Index 0 stands before entry 1, wherever this log begins."""
    log = Disk().with_entries(entries(1, 100, size=200))

    assert log.drop_before(80) > 1

    assert (log.term(0), log.chain(0)) == (0, 0)
