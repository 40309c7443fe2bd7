"""Every byte of a small log flipped, on one node and on two of five: repaired or refused."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from dledger.errors import CorruptFile, CorruptRecord, FaultyEntry
from dledger.store.commit_log import CommitLog
from dledger.store.format import SLOT_BYTES, WATERMARK_BYTES
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import load_or_format
from dledger.store.shadow_index import ROW_BYTES
from dledger.store.two_copies import both
from dledger.types import Entry, HardState, NodeId
from tests.store.harness import DATA, Disk, entries, everything

COUNT = 9
PADDING_STEP = 61


def small_disk() -> Disk:
    """Return a disk with a synced log in three segments, stopped."""
    disk = Disk(segment_bytes=4096 + 400)
    disk.with_entries(entries(1, COUNT, size=90)).close()
    return disk


def every_byte(disk: Disk) -> Iterator[tuple[str, int]]:
    """Yield each byte of the log's files that carries something, and some of the others.

    The others are zeros: behind a segment's header and its records, behind the watermark's slots
    and its identity rows.
    """
    for name in disk.names():
        data = disk.contents(name)
        for position in range(len(data)):
            if position % PADDING_STEP == 0 or carries(name, position, data):
                yield name, position


def carries(name: str, position: int, data: bytearray) -> bool:
    """Whether a byte is part of a header, record, slot, row or index file."""
    if name == "watermark":
        return position % 4096 < SLOT_BYTES and position < WATERMARK_BYTES + COUNT * ROW_BYTES
    end = len(data.rstrip(b"\0")) + 96  # the last body is zeros, too
    return name.endswith(".idx") or position < 224 or 4096 <= position < end


def flipped(disk: Disk, name: str, position: int) -> Disk:
    """Return a copy of the disk with one bit of this byte flipped."""
    damaged = copy.copy(disk)
    damaged.files = disk.files.snapshot()
    damaged.contents(name)[position] ^= 1 << position % 8
    return damaged


def opened(disk: Disk) -> CommitLog | None:
    """Return the log, its faulty slots found; None if it is refused."""
    try:
        log = disk.open()
    except (CorruptRecord, CorruptFile):
        return None
    assert log.last_index == COUNT, "the log became shorter without a word"
    for index in range(1, COUNT + 1):
        available(log, index)
    return log


def available(log: CommitLog, index: int) -> tuple[Entry, ...]:
    """Return the entry if its record is whole; nothing if it is known to be faulty."""
    try:
        return log.read(index, index, 0)
    except FaultyEntry:
        return ()


def repair(log: CommitLog, peers: Sequence[CommitLog]) -> None:
    """Ask the peers in turn for what is faulty."""
    for peer in peers:
        for slots in log.faulty:
            for index in slots:
                log.repair(available(peer, index))


def test_flipped_byte_on_one_node_is_repaired_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The log is whole again from any peer, on disk too, or the node does not start."""
    caplog.set_level(logging.CRITICAL, "dledger.store")
    disk, peer = small_disk(), small_disk().open()
    expected, outcomes = everything(peer), Counter[str]()
    for name, position in every_byte(disk):
        damaged = flipped(disk, name, position)
        log = opened(damaged)
        if log is None:
            outcomes["refused"] += 1
            continue
        outcomes["unharmed" if log.is_whole else "repaired"] += 1
        repair(log, [peer])

        assert log.is_whole, (name, position)
        assert everything(log) == expected, (name, position)
        assert everything(damaged.crash()) == expected, (name, position)
    print(dict(outcomes))
    assert outcomes["repaired"] > COUNT * 90
    assert outcomes["refused"] == 0


@pytest.mark.parametrize("name", ["hard_state", "identity.json"])
def test_flipped_byte_of_a_state_file_costs_a_node_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other copy has it; both are whole again, so the next flip may be in either."""
    caplog.set_level(logging.CRITICAL, "dledger.store")
    disk = small_disk()
    voted = HardState(7, NodeId("n2"))
    HardStateFile(disk.files, DATA).save(voted)
    rng = Random(1)
    for path in both(DATA / name):
        for position in range(len(disk.files.contents(path))):
            damaged = disk.files.snapshot()
            damaged.contents(path)[position] ^= 1 << position % 8
            assert HardStateFile(damaged, DATA).load() == voted
            assert load_or_format(damaged, DATA, "orders-0") == disk.identity

            again = damaged.contents(rng.choice(both(DATA / name)))
            again[position % len(again)] ^= 1

            assert HardStateFile(damaged, DATA).load() == voted
            assert load_or_format(damaged, DATA, "orders-0") == disk.identity


def test_flipped_bytes_on_two_of_five_are_repaired(caplog: pytest.LogCaptureFixture) -> None:
    """The same record is damaged on two: they ask each other first, in vain, and then the rest."""
    caplog.set_level(logging.CRITICAL, "dledger.store")
    disk, healthy = small_disk(), [small_disk().open() for _ in range(3)]
    expected = everything(healthy[0])
    for name, position in every_byte(disk):
        if not disk.contents(name)[position]:
            continue
        first, second = (opened(flipped(disk, name, position)) for _ in range(2))
        assert first, (name, position)
        assert second, (name, position)

        repair(first, [second, *healthy])
        repair(second, [first])

        assert everything(first) == everything(second) == expected, (name, position)
