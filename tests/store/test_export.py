"""Export reads records as bytes: any node cuts alike, and what it gives is what was written."""

from __future__ import annotations

import random

import pytest

from dledger.errors import CorruptRecord, OffsetOutOfRange
from dledger.store.commit_log import CommitLog
from dledger.store.format import encode_records
from dledger.types import Entry
from tests.store.harness import LOG, Disk, entries


def written(segment_bytes: int, log_entries: list[Entry]) -> tuple[Disk, CommitLog]:
    """Return a log with these entries, in segments of that size."""
    disk = Disk(segment_bytes=segment_bytes)
    return disk, disk.with_entries(log_entries)


def random_entries(seed: int) -> list[Entry]:
    """Return 60 entries of up to 3 KiB."""
    rng = random.Random(seed)
    return [entries(index, index, size=rng.randrange(3000))[0] for index in range(1, 61)]


@pytest.mark.parametrize("seed", range(20))
def test_a_range_is_as_long_as_its_target_allows_wherever_segments_begin(seed: int) -> None:
    """The next record would not fit; a larger one stands alone; ranges join."""
    log_entries = random_entries(seed)
    target = random.Random(seed).randint(1, 12_000)
    sizes = [encode_records([one], chain=0, position=0).size_bytes for one in log_entries]

    cuts = [written(size, log_entries)[1].cut(1, 60, target) for size in (8192, 12_000, 1 << 20)]

    assert cuts[0] == cuts[1] == cuts[2]
    first = 1
    for each in cuts[0]:
        assert each.first_index == first
        assert each.size_bytes == sum(sizes[first - 1 : each.last_index])
        assert each.size_bytes <= target or each.first_index == each.last_index
        assert each.last_index == 60 or each.size_bytes + sizes[each.last_index] > target
        first = each.last_index + 1
    assert first == 61


@pytest.mark.parametrize("max_bytes", [1, 3000, 1 << 20])
def test_extents_are_the_bytes_that_were_written(max_bytes: int) -> None:
    """Each of one segment, with positions and the chain before it."""
    log_entries = random_entries(1)
    _, log = written(8192, log_entries)
    expected = encode_records(log_entries, chain=0, position=0)
    first, found, chains = 1, b"", [0, *expected.chains]
    while first <= 60:
        extent, data = log.read_extent(first, 60, max_bytes)

        assert extent.first_index == first
        assert len(data) == extent.size_bytes
        assert len(data) <= max_bytes or extent.last_index == first
        assert extent.previous_chain == chains[first - 1]
        starts = [8 * position + len(found) for position in extent.positions]
        assert starts == [8 * p for p in expected.positions[first - 1 : extent.last_index]]
        first, found = extent.last_index + 1, found + data

    assert found == b"".join(expected.buffers)


def test_what_the_log_does_not_hold_is_refused() -> None:
    """With its bounds."""
    _, log = written(8192, entries(1, 10))

    for first, last in ((0, 5), (5, 11)):
        with pytest.raises(OffsetOutOfRange, match=r"outside \[1, 10\]"):
            log.cut(first, last, 1000)
        with pytest.raises(OffsetOutOfRange, match=r"outside \[1, 10\]"):
            log.read_extent(first, last, 1000)


def test_a_segment_that_is_gone_is_named() -> None:
    """Someone removed it under a running node."""
    disk, log = written(8192, random_entries(1))
    log.close()
    log = disk.open()
    name = "00000000000000000001.seg"
    disk.files.remove(LOG / name)

    with pytest.raises(CorruptRecord, match=f"{name}.*missing"):
        log.read_extent(1, 1, 1000)


def test_a_segment_that_became_short_is_damage() -> None:
    """And never an extent with fewer records than were asked for."""
    disk, log = written(8192, entries(1, 10))
    name = "00000000000000000001.seg"
    del disk.contents(name)[4096 + 100 :]

    with pytest.raises(CorruptRecord, match=f"{name} .* 4196: 100 of 480 bytes"):
        log.read_extent(1, 10, 1000)
