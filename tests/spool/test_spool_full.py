"""A spool without room refuses by type, loses nothing, and takes messages again by itself."""

from __future__ import annotations

import errno

import pytest

from dledger.errors import DiskFull, InvalidArgument, SpoolFull
from dledger.files.memory_files import Fault
from dledger.spool.opening import limits_of
from dledger.spool.spool import MAX_FILE_RECORDS
from tests.spool.spool_harness import CHUNK, Disk, Group, message, messages, replay


def test_spool_takes_what_its_limit_allows_and_refuses_the_rest() -> None:
    """The first messages of a group are kept, in order; the sizes are in the refusal."""
    disk, group = Disk(max_bytes=3 * 8192), Group()
    spool = disk.open()

    kept = spool.append(messages(1, 100, size=300))

    assert 20 <= kept.messages < 100
    assert isinstance(kept.refusal, SpoolFull)
    assert f"its limit is {3 * 8192} bytes; it has {kept.messages} messages" in str(kept.refusal)
    assert spool.disk_bytes <= 3 * 8192
    replay(disk.reopen(), group)
    assert group.numbers() == list(range(1, kept.messages + 1))


def test_full_spool_takes_messages_again_when_some_were_replayed() -> None:
    """A replayed file makes room for a new one."""
    disk, group = Disk(max_bytes=3 * 8192), Group()
    spool = disk.open()
    first = spool.append(messages(1, 100, size=300)).messages
    replay(spool, group, chunks=2)

    more = spool.append(messages(first + 1, first + 5, size=300))
    replay(spool, group)

    assert more == (5, None)
    assert group.numbers() == list(range(1, first + 6))


def test_full_disk_is_a_typed_refusal_and_costs_nothing() -> None:
    """ENOSPC where a file is made; there is room again later."""
    disk, group = Disk(), Group()
    spool = disk.open()
    spool.append(messages(1, 5))
    capacity, disk.files.capacity_bytes = disk.files.capacity_bytes, 20_000

    kept = spool.append(messages(6, 40, size=300))
    disk.files.capacity_bytes = capacity
    after = spool.append(messages(41, 43))
    replay(spool, group)

    assert isinstance(kept.refusal, SpoolFull)
    assert "No space left" in str(kept.refusal)
    assert after == (3, None)
    assert group.numbers() == [*range(1, 6 + kept.messages), 41, 42, 43]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["create", "preallocate", "rename"])
def test_no_room_for_a_new_file_is_a_refusal_however_it_is_told(
    operation: str, number: int
) -> None:
    """No inode, a quota, a directory that cannot grow: the spool goes on once there is room."""
    disk, group = Disk(), Group()
    spool = disk.open()
    spool.append(messages(1, 5))
    disk.files.inject(Fault(operation, number))

    kept = spool.append(messages(6, 40, size=300))
    after = spool.append(messages(41, 43))
    replay(spool, group)

    assert isinstance(kept.refusal, SpoolFull)
    assert after == (3, None)
    assert group.numbers() == [*range(1, 6 + kept.messages), 41, 42, 43]


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("first", [True, False], ids=["first write", "later write"])
@pytest.mark.parametrize("restart", [True, False], ids=["restart", "no restart"])
@pytest.mark.parametrize("more", [[], [7, 8]], ids=["nothing more", "more"])
def test_no_room_inside_a_file_is_a_refusal_too(
    operation: str, first: bool, restart: bool, more: list[int]
) -> None:
    """As on file systems that copy on write: what a failed write left does not come back."""
    for partial_bytes in (0, 100, 700):
        disk, group = Disk(), Group()
        spool = disk.open()
        numbers = [] if first else [1, 2, 3]
        if not first:
            spool.append(messages(1, 3))
        fault = Fault(operation, errno.ENOSPC, ".spool", partial_bytes=partial_bytes)
        disk.files.inject(fault)

        kept = spool.append(messages(4, 6))
        spool.append([message(number) for number in more])
        spool = disk.reopen() if restart else spool
        replay(spool, group)

        assert kept.messages == 0
        assert isinstance(kept.refusal, SpoolFull)
        assert group.numbers() == [*numbers, *more]
        assert spool.damage == []


def test_write_that_cannot_be_taken_back_ends_where_the_next_file_begins() -> None:
    """The disk refuses even the zeros; the remains are whole records of refused messages."""
    disk, group = Disk(), Group()
    spool = disk.open()
    spool.append(messages(1, 3))
    disk.files.inject(Fault("pwritev", errno.ENOSPC, ".spool", times=2, partial_bytes=400))
    spool.append(messages(4, 6))
    disk.files.heal()

    spool.append(messages(7, 8))
    spool = disk.reopen()
    replay(spool, group)

    assert group.numbers() == [1, 2, 3, 7, 8]
    assert spool.damage == []


def test_message_larger_than_a_file_gets_a_file_of_its_size() -> None:
    """The limit of the whole spool still holds."""
    disk, group = Disk(max_bytes=100_000), Group()
    spool = disk.open()

    kept = spool.append([message(1), message(2, size=60_000), message(3)])
    too_large = spool.append([message(4, size=100_000)])
    replay(disk.reopen(), group)

    assert kept == (3, None)
    assert isinstance(too_large.refusal, SpoolFull)
    assert group.numbers() == [1, 2, 3]


def test_file_holds_half_of_what_a_group_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """By count as well as by bytes."""
    monkeypatch.setattr("dledger.spool.spool.MAX_FILE_RECORDS", 4)
    disk, group = Disk(), Group()
    spool = disk.open()

    spool.append(messages(1, 10))
    files = len(disk.names())
    replay(spool, group)

    assert files == 3
    assert group.numbers() == list(range(1, 11))
    assert MAX_FILE_RECORDS == (1 << 16) // 2


def test_rejected_message_without_room_stays_in_the_spool() -> None:
    """It is lost nowhere: the replay tries again later."""
    disk = Disk()
    spool = disk.open()
    spool.append(messages(1, 3))
    chunk = spool.read(max_records=CHUNK, max_bytes=1 << 20)
    assert chunk is not None
    refused = [(spooled, "no such topic") for spooled in chunk.messages]
    capacity, disk.files.capacity_bytes = disk.files.capacity_bytes, 0

    for _ in range(3):
        with pytest.raises(DiskFull, match="keep a rejected message"):
            spool.reject(refused)
    disk.files.capacity_bytes = capacity
    spool.reject(refused)
    spool.advance(chunk)

    assert [one.reason for one in disk.rejected()] == ["no such topic"] * 3
    assert disk.names("rejected") == ["00000000000000000001.spool"]


def test_rejected_and_damaged_messages_count_for_the_limit() -> None:
    """The directory as a whole is bounded, and the refusal says what fills it."""
    disk, group = Disk(max_bytes=65_536), Group(refuses=lambda _: True)
    spool = disk.open()
    while spool.append(messages(1, 20, size=300)).refusal is None:
        replay(spool, group)

    (refusal,) = [spool.append(messages(1, 1)).refusal]

    assert "of them rejected or damaged messages" in str(refusal)
    assert spool.disk_bytes <= 65_536


def test_disk_without_room_for_a_new_spool_is_disk_full() -> None:
    """Nothing is half made: there is a spool once there is room."""
    disk = Disk()
    disk.files.capacity_bytes = 100

    with pytest.raises(DiskFull):
        disk.open()
    disk.files.capacity_bytes = 1 << 20

    assert disk.open().append(messages(1, 1)) == (1, None)


def test_spool_has_a_least_size() -> None:
    """And files that are a fraction of it."""
    with pytest.raises(InvalidArgument, match="at least 65536 bytes, not 1"):
        limits_of(1)

    assert limits_of(1 << 20).file_bytes == 1 << 17
    assert limits_of(1 << 34).file_bytes == 1 << 24
