"""What the log promises while it runs: reading, truncation, memory, and refusals."""

from __future__ import annotations

import errno

import pytest

from dledger.errors import DiskFull, NotJoined, OffsetOutOfRange, StorageError
from dledger.files.files import File
from dledger.files.memory_files import Fault, MemoryFiles
from dledger.store.commit_log import CommitLog
from dledger.store.identity import load_or_format
from dledger.store.segment import Segment
from dledger.types import EntryKind, Member, Membership, NodeId
from tests.store.harness import DATA, LOG, Disk, entries, entry, everything


def membership(*names: str) -> Membership:
    return Membership.of(Member(id=NodeId(f"id-{n}"), name=n, address=f"{n}:1") for n in names)


def test_empty_log_begins_at_one_and_has_no_entries() -> None:
    """An empty log has first index 1 and last index 0, and term 0 at index 0."""
    log = Disk().open()

    assert (log.first_index, log.last_index, log.synced_index, log.term(0)) == (1, 0, 0, 0)
    with pytest.raises(OffsetOutOfRange, match=r"offset 1 is outside \[1, 0\]"):
        log.term(1)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 1, 100)


def test_entries_come_back_as_they_were_appended() -> None:
    """Across segments, in order, with every field."""
    batch = entries(1, 100, size=200)
    disk = Disk()

    log = disk.with_entries(batch)

    assert len(disk.names(".seg")) > 2
    assert everything(log) == batch
    assert everything(disk.open()) == batch


def test_entry_larger_than_a_segment_gets_a_segment_of_its_size() -> None:
    """The segment is as large as it must be; the next one has the usual size again."""
    batch = [entry(1), entry(2, data=b"x" * 50_000), entry(3)]
    disk = Disk()

    log = disk.with_entries(batch)

    assert [len(disk.contents(name)) for name in disk.names(".seg")] == [8192, 54_136, 8192]
    assert log.size_bytes == 8192 + 54_136 + 8192
    assert everything(disk.crash()) == batch


def test_read_is_cut_at_max_bytes_but_gives_one_entry() -> None:
    """Data bytes count; the first entry always comes, and entries that just fit do too."""
    log = Disk().with_entries(entries(1, 40, size=100))

    assert [len(log.read(1, 40, limit)) for limit in (0, 99, 100, 199, 200, 4000)] == [
        *(1, 1, 1, 1, 2),
        40,
    ]
    assert [e.index for e in log.read(7, 8, 1 << 20)] == [7, 8]


def test_recent_and_read_cut_alike() -> None:
    """Memory and disk give the same answer to the same question."""
    log = Disk().with_entries([entry(i, data=b"z" * (i % 13)) for i in range(1, 60)])

    for first in range(1, 60, 7):
        for limit in range(0, 120, 5):
            assert log.recent(first, 59, limit) == log.read(first, 59, limit)


def test_recent_holds_the_newest_entries_within_its_bound() -> None:
    """Older ones leave; what is not in memory is None, not an error."""
    disk = Disk()
    log = CommitLog.open(
        disk.files,
        LOG,
        identity=disk.identity,
        segment_bytes=8192,
        cache_bytes=4000,
        reserve_bytes=0,
    )

    log.append(entries(1, 100, size=100))

    assert log.recent(1, 100, 1 << 20) is None
    assert [e.index for e in log.recent(95, 100, 1 << 20) or ()] == list(range(95, 101))
    assert log.recent(101, 101, 1) is None


def test_recent_forgets_what_was_truncated() -> None:
    """A truncated entry is replaced, and later ones are gone from memory too."""
    log = Disk().with_entries(entries(1, 10))

    log.append([entry(5, term=2)])

    assert log.recent(4, 9, 1000) == (entry(4), entry(5, term=2))
    assert log.recent(6, 9, 1000) is None


def test_terms_survive_truncation_and_reopening() -> None:
    """Term runs follow the entries."""
    disk = Disk()
    log = disk.with_entries([*entries(1, 30, term=1, size=300), *entries(31, 50, term=4)])
    log.append(entries(20, 25, term=6))
    log.sync()

    for one in (log, disk.open()):
        assert [one.term(i) for i in range(1, 26)] == [1] * 19 + [6] * 6
        with pytest.raises(OffsetOutOfRange):
            one.term(26)


def test_memberships_are_tracked_truncated_and_recovered() -> None:
    """The driver asks for them when it starts the Raft core."""
    disk = Disk()
    old, new = membership("a"), membership("a", "b", "ç")
    log = disk.with_entries([entry(1, data=old.encode(), kind=EntryKind.MEMBERSHIP)])
    log.append(entries(2, 40, size=300))
    log.append([entry(41, data=new.encode(), kind=EntryKind.MEMBERSHIP)])
    log.sync()
    assert log.memberships() == [(1, old), (41, new)] == disk.open().memberships()

    log.append([entry(41, term=2)])

    assert log.memberships() == [(1, old)] == disk.open().memberships()


def test_truncation_can_remove_everything() -> None:
    """Overwriting from the first entry leaves only the new ones."""
    disk = Disk()
    log = disk.with_entries(entries(1, 60, size=200))

    log.append([entry(1, term=3)])

    assert everything(log) == [entry(1, term=3)]
    assert len(disk.names(".seg")) == 1
    assert log.synced_index == 0


def test_a_cut_ends_the_log_where_it_is_asked_to() -> None:
    """With its memberships and its damage; behind the end there is nothing to cut."""
    disk = Disk()
    members = membership("a", "b").encode()
    log = disk.with_entries(entries(1, 40, size=300))
    log.append([entry(41, data=members, kind=EntryKind.MEMBERSHIP)])
    log.sync()
    log.mark_faulty(39, 41, "test")

    log.cut_behind(50)
    assert log.last_index == 41
    log.cut_behind(38)

    assert (log.last_index, log.is_whole, log.membership_indexes()) == (38, True, [])
    log.append([entry(39, term=2)])
    log.sync()
    assert disk.open().term(39) == 2
    with pytest.raises(ValueError, match="cannot cut the log after -1: it begins after 0"):
        log.cut_behind(-1)


def test_a_cut_without_room_can_be_tried_again() -> None:
    """A file system that copies on write needs room for zeros; until then nothing is on top."""
    disk = Disk()
    log = disk.with_entries(entries(1, 10))
    disk.files.inject(Fault("pwritev", errno.ENOSPC, ".seg"))

    with pytest.raises(DiskFull):
        log.cut_behind(5)
    log.cut_behind(5)

    assert everything(disk.crash()) == entries(1, 5)


def test_gap_is_refused() -> None:
    """A hole would be a mistake of the driver."""
    log = Disk().with_entries(entries(1, 3))

    with pytest.raises(ValueError, match="expected entry 4 or an earlier one, got 5"):
        log.append([entry(5)])
    with pytest.raises(ValueError, match="are not consecutive"):
        log.append([entry(4), entry(6)])


def test_append_of_nothing_does_nothing() -> None:
    """Not even a segment is created."""
    disk = Disk()

    disk.open().append([])

    assert disk.names(".seg") == []


def test_unjoined_node_takes_no_entries() -> None:
    """Without a group there is nothing to write into a segment's header."""
    files = MemoryFiles()
    identity = load_or_format(files, DATA, "orders-0")
    log = CommitLog.open(files, LOG, identity=identity, reserve_bytes=0)

    with pytest.raises(NotJoined):
        log.append([entry(1)])


def test_closed_log_refuses() -> None:
    """Late calls of other threads get an error, not a wrong file."""
    log = Disk().with_entries([entry(1)])

    log.close()

    with pytest.raises(StorageError, match="closed"):
        log.append([entry(2)])


def test_spare_segment_is_used_and_replaced() -> None:
    """`prepare` makes one file ahead; a roll takes it, and the log is the same."""
    disk = Disk()
    log = disk.open()
    assert log.prepare()
    assert log.prepare()
    assert len(disk.names(".new")) == 1

    log.append(entries(1, 10, size=100))
    log.sync()

    assert disk.names(".new") == []
    assert log.prepare()
    assert everything(disk.crash()) == entries(1, 10, size=100)


def test_records_are_the_same_bytes_on_every_node() -> None:
    """Node ids and segment lengths differ between nodes; records and their chain do not."""
    batch = entries(1, 30, size=150)
    small, large = Disk(segment_bytes=6000), Disk(segment_bytes=1 << 16)
    small.with_entries(batch)
    large.with_entries(batch)

    def records(disk: Disk) -> bytes:
        log = disk.open()
        return b"".join(
            bytes(disk.contents(segment.name)[4096 : segment.end])
            for segment in log._index.segments
        )

    assert records(small) == records(large)


def test_read_that_meets_a_truncation_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader never takes a record that is being zeroed for rot."""
    log = Disk().with_entries(entries(1, 10))
    real_open = log._disk.open

    def truncate_then_open(segment: Segment) -> File:
        monkeypatch.setattr(log._disk, "open", real_open)
        log.append([entry(5, term=2), entry(6, term=2)])
        return real_open(segment)

    monkeypatch.setattr(log._disk, "open", truncate_then_open)

    assert log.read(5, 6, 1000) == (entry(5, term=2), entry(6, term=2))


def test_more_segments_than_file_handles() -> None:
    """Old handles are closed and opened again when they are needed."""
    disk = Disk(segment_bytes=5000)
    batch = entries(1, 100, size=800)

    log = disk.with_entries(batch)

    assert len(disk.names(".seg")) == 100
    assert everything(log) == batch
    assert len(log._disk._handles) == 64
