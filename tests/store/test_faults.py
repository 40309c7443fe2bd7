"""Disks that are full, failing or rotten: what is refused, what goes on."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from dledger.errors import (
    CorruptFile,
    CorruptRecord,
    DiskFull,
    FaultyEntry,
    StorageError,
)
from dledger.files import checked_json
from dledger.files.memory_files import Fault
from dledger.store.commit_log import CommitLog
from dledger.store.format import decode_segment_header, encode_segment_header
from dledger.store.hard_state import HardStateFile, decode_hard_state, encode_hard_state
from dledger.store.identity import NAME as IDENTITY
from dledger.store.identity import Identity, load_or_format
from dledger.store.two_copies import both
from dledger.types import Entry, HardState, NodeId
from tests.store.harness import DATA, LOG, Disk, entries, entry, everything


def test_full_disk_leaves_the_log_unchanged_and_usable() -> None:
    """No room for a segment: DiskFull; with room, the same append works."""
    disk = Disk()
    log = disk.with_entries(entries(1, 10))
    disk.files.capacity_bytes = 10_000

    with pytest.raises(DiskFull, match="no room"):
        log.append(entries(11, 100, size=150))

    assert everything(log) == entries(1, 10)
    log.append(entries(11, 12))
    log.sync()
    disk.files.capacity_bytes = 1 << 30
    log.append(entries(13, 100, size=150))
    log.sync()
    assert disk.crash().last_index == 100


@pytest.mark.parametrize("partial_bytes", [0, 1, 700, 2000])
def test_write_without_room_leaves_nothing_behind(partial_bytes: int) -> None:
    """On file systems that copy on write, a write into reserved space may fail half-way."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    fault = Fault("pwritev", errno.ENOSPC, ".seg", partial_bytes=partial_bytes)
    disk.files.inject(fault)

    with pytest.raises(DiskFull):
        log.append(entries(4, 20, size=100))

    assert log.last_index == 3
    log.append(entries(4, 4, size=100))
    log.sync()
    disk.files.kill()
    assert everything(disk.open()) == [*entries(1, 3), *entries(4, 4, size=100)]


def test_full_disk_is_reported_before_the_reserve_is_touched() -> None:
    """Segments leave the reserve free, so a vote can be saved on a full disk."""
    disk = Disk()
    log = CommitLog.open(
        disk.files, LOG, identity=disk.identity, segment_bytes=8192, reserve_bytes=20_000
    )
    disk.files.capacity_bytes = 160_000

    with pytest.raises(DiskFull, match="20000 stay reserved"):
        log.append(entries(1, 1000, size=150))

    assert log.last_index == 0
    HardStateFile(disk.files, DATA).save(HardState(9, NodeId("voted")))
    assert disk.files.disk_usage(LOG).free_bytes >= 20_000


def test_full_disk_does_not_fail_prepare() -> None:
    """A spare segment is a convenience."""
    disk = Disk()
    log = disk.open()
    disk.files.capacity_bytes = 0

    assert not log.prepare()
    assert log.failure is None


def test_full_disk_does_not_seal_without_an_index_file() -> None:
    """It will be the only second copy of the segment's identities; with room, the append works."""
    disk = Disk()
    log = disk.with_entries(entries(1, 1, size=3000))
    disk.files.inject(Fault("pwritev", errno.ENOSPC, ".idx.new"))

    with pytest.raises(DiskFull, match=r"index file of segment 0+1\.seg"):
        log.append(entries(2, 2, size=3000))

    assert disk.names() == ["00000000000000000001.seg", "watermark"]
    log.append(entries(2, 2, size=3000))
    assert disk.names(".idx") == ["00000000000000000001.idx"]


def test_full_disk_opens_without_an_index_file() -> None:
    """The log starts; the next start writes what is missing."""
    disk = Disk()
    disk.with_entries(entries(1, 2, size=3000))
    disk.files.remove(LOG / disk.names(".idx")[0])
    disk.files.inject(Fault("pwritev", errno.ENOSPC, ".idx.new"))

    assert everything(disk.open()) == entries(1, 2, size=3000)

    assert disk.names(".idx") == []
    disk.open()
    assert disk.names(".idx") == ["00000000000000000001.idx"]


def test_sealed_segment_that_grows_again_is_not_read_by_its_old_index_file() -> None:
    """There was no room for a successor, and then the index file was not replaced durably."""
    disk = Disk()
    log = disk.with_entries(entries(1, 2, size=600))
    disk.files.inject(Fault("preallocate", errno.ENOSPC, ".seg.new"))
    with pytest.raises(DiskFull):
        log.append(entries(3, 3, size=3000))
    old = bytes(disk.contents("00000000000000000001.idx"))

    log.append([*entries(3, 4, size=600), *entries(5, 5, size=3000)])
    log.sync()
    disk.contents("00000000000000000001.idx")[:] = old

    assert everything(disk.open()) == everything(log)
    assert bytes(disk.contents("00000000000000000001.idx")) != old


def test_segment_without_records_gives_way_to_a_larger_one() -> None:
    """A write without room leaves an empty segment; an entry too large for it takes its name."""
    disk = Disk()
    log = disk.open()
    disk.files.inject(Fault("pwritev", errno.ENOSPC, ".seg"))
    with pytest.raises(DiskFull):
        log.append([entry(1)])
    assert log.size_bytes == 8192

    log.append(entries(1, 1, size=9000))
    log.sync()

    assert log.size_bytes == 4096 + 9040
    assert everything(disk.crash()) == entries(1, 1, size=9000)


def test_full_disk_keeps_the_old_hard_state_and_allows_another_try() -> None:
    """DiskFull is not a failed disk."""
    disk = Disk()
    hard_state = HardStateFile(disk.files, DATA)
    disk.files.inject(Fault("pwritev", errno.ENOSPC, "hard_state.new"))

    with pytest.raises(DiskFull):
        hard_state.save(HardState(2, None))

    assert hard_state.load() == HardState()
    hard_state.save(HardState(2, None))
    assert hard_state.load() == HardState(2, None)


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [
        ("pwritev", ".seg"),
        ("fdatasync", ".seg"),
        ("pwritev", "watermark"),
        ("fdatasync", "watermark"),
    ],
)
def test_failed_write_or_sync_poisons_the_log_forever(operation: str, suffix: str) -> None:
    """A sync that failed once must not be believed when it succeeds later."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    disk.files.inject(Fault(operation, errno.EIO, suffix))
    with pytest.raises(StorageError, match="Input/output error"):
        _append_and_sync(log, entry(4))

    for call in (log.sync, lambda: log.append([entry(5)]), lambda: log.read(1, 1, 1)):
        with pytest.raises(StorageError, match="the log has failed"):
            call()
    assert log.failure is not None
    assert log.synced_index == 3


def test_sync_that_fails_for_lack_of_space_poisons_too() -> None:
    """ENOSPC of a sync means that writes were lost."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    log.append([entry(4)])
    disk.files.inject(Fault("fdatasync", errno.ENOSPC, ".seg"))

    with pytest.raises(StorageError):
        log.sync()

    assert log.failure is not None


@pytest.mark.parametrize("operation", ["rename", "fsync_dir", "preallocate"])
def test_failure_to_create_a_segment_poisons_the_log(operation: str) -> None:
    """Only lack of space is survivable."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    disk.files.inject(Fault(operation, errno.EIO))

    with pytest.raises(StorageError):
        log.append(entries(4, 4, size=9000))

    assert log.failure is not None


def test_failed_hard_state_write_poisons_it_forever() -> None:
    """The node must stop: what the disk remembers of its vote is unknown."""
    disk = Disk()
    hard_state = HardStateFile(disk.files, DATA)
    disk.files.inject(Fault("fdatasync", errno.EIO, "hard_state.new"))
    with pytest.raises(StorageError, match="cannot write"):
        hard_state.save(HardState(2, None))

    with pytest.raises(StorageError, match="an earlier write failed"):
        hard_state.save(HardState(3, None))


def test_unreadable_sector_is_rot() -> None:
    """EIO while reading makes the slots it lasts for faulty, and does not poison writes."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    disk.files.inject(Fault("pread", errno.EIO, ".seg", times=2))

    with pytest.raises(FaultyEntry, match="entry 1 is damaged"):
        log.read(1, 3, 100)

    assert log.faulty == (range(1, 2),)
    assert log.read(2, 3, 100) == tuple(entries(2, 3))
    log.append([entry(4)])


def _append_and_sync(log: CommitLog, one: Entry) -> None:
    log.append([one])
    log.sync()


def _copy(disk: Disk) -> Disk:
    copied = copy.copy(disk)
    copied.files = disk.files.snapshot()
    return copied


def _rotten(disk: Disk, name: str, position: int) -> Disk:
    copied = _copy(disk)
    copied.contents(name)[position] ^= 0x10
    return copied


def _small_log() -> tuple[Disk, list[int]]:
    disk = Disk(segment_bytes=4096 + 300)
    log = disk.with_entries([entry(i, data="grüße".encode() * (i % 3)) for i in range(1, 12)])
    return disk, [segment.end for segment in log._index.segments]


@pytest.mark.parametrize("with_index", [True, False])
def test_rot_of_any_byte_is_found_or_harmless_and_never_shortens_the_log(with_index: bool) -> None:
    """Each byte of each segment, flipped; bytes that carry nothing change nothing."""
    disk, ends = _small_log()
    names, expected = disk.names(".seg"), everything(disk.open())
    if not with_index:
        for name in disk.names(".idx"):
            disk.files.remove(LOG / name)
    harmless = 0
    for name, end in zip(names, ends, strict=True):
        for position in [*range(230), *range(230, 4096, 300), *range(4096, 4096 + 300)]:
            found, blamed = _repaired_or_rot(_rotten(disk, name, position), expected)
            assert found == expected or (blamed == name and not with_index)
            assert position < end or found == expected
            harmless += position < end and found == expected
    assert with_index or harmless > 0


def test_rot_of_a_record_and_of_its_identity_names_segment_and_offset() -> None:
    """The operator of a disk learns where to look."""
    disk, _ = _small_log()
    name = disk.names(".seg")[-1]
    disk.contents(name)[4096 + 16] ^= 1
    disk.contents("watermark")[8192] ^= 1

    with pytest.raises(CorruptRecord) as caught:
        disk.open()

    assert (caught.value.segment, caught.value.offset) == (name, 4096)
    assert "entries up to 11 were synced" in str(caught.value)


def test_rotten_index_file_is_rebuilt() -> None:
    """Each byte of it, flipped or missing: the log is the same."""
    disk, _ = _small_log()
    expected, name = everything(disk.open()), disk.names(".idx")[0]
    good = bytes(disk.contents(name))
    for position in range(len(good)):
        rotten = _rotten(disk, name, position)
        assert everything(rotten.open()) == expected


@pytest.mark.parametrize("slot", [0, 4096])
def test_rot_of_one_watermark_slot_loses_nothing(slot: int) -> None:
    """The other slot, and the records themselves, still say what there is."""
    disk, _ = _small_log()

    rotten = _rotten(disk, "watermark", slot + 33)

    assert rotten.open().last_index == 11


def test_rot_of_both_watermark_slots_is_refused() -> None:
    """Without a watermark, rot and a torn tail cannot be told apart."""
    disk, _ = _small_log()

    with pytest.raises(CorruptFile, match=r"watermark: slot 0: .*; slot 1: "):
        _rotten(_rotten(disk, "watermark", 10), "watermark", 4106).open()


@pytest.mark.parametrize("name", ["hard_state", IDENTITY])
def test_rot_of_any_byte_of_one_copy_of_a_state_file_costs_nothing(name: str) -> None:
    """The node starts from the other copy, and both are whole again; which one it was is told."""
    disk = _disk_that_voted()
    good = bytes(disk.files.contents(DATA / name))
    for path in both(DATA / name):
        for position in range(len(good)):
            for damaged in (_flip(good, position), good[:position], None):
                copied = _copy(disk)
                if damaged is None:
                    copied.files.remove(path)
                else:
                    copied.files.contents(path)[:] = damaged
                told: list[str] = []

                assert _load_both(copied, told.append) == _load_both(disk)

                says_the_same = name == IDENTITY and good[position : position + 1].isspace()
                assert told == [path.name] or says_the_same
                copied.files.crash(Random(position))
                assert _load_both(copied, told.append) == _load_both(disk)
                assert len(told) <= 1, "it was mended, durably"


@pytest.mark.parametrize("name", ["hard_state", IDENTITY])
def test_rot_of_both_copies_of_a_state_file_is_refused(name: str) -> None:
    """The node refuses to vote rather than to guess; spaces between JSON tokens do not count."""
    disk = _disk_that_voted()
    good = bytes(disk.files.contents(DATA / name))
    for position in range(len(good)):
        if name == IDENTITY and good[position : position + 1].isspace():
            continue
        copied = _copy(disk)
        first, second = both(DATA / name)
        copied.files.contents(first)[:] = _flip(good, position)
        copied.files.contents(second)[:] = good[:position]

        with pytest.raises(CorruptFile, match=f"{name}: .*{name}.copy: "):
            _load_both(copied)


def test_two_votes_of_one_term_are_refused() -> None:
    """No history of one node has both: whichever is forgotten may have been told."""
    disk, other = _disk_that_voted(), _disk_that_voted()
    HardStateFile(other.files, DATA).save(HardState(5, NodeId("another")))
    first, _ = both(DATA / "hard_state")
    disk.files.contents(first)[:] = other.files.contents(first)

    with pytest.raises(CorruptFile, match="contradict each other"):
        _load_both(disk)


def test_a_copy_that_cannot_be_mended_for_lack_of_room_is_not_read_again() -> None:
    """An older one that stays would be a forgotten vote when the newer one rots."""
    disk = _disk_that_voted()
    older = bytes(disk.files.contents(DATA / "hard_state"))
    HardStateFile(disk.files, DATA).save(HardState(6, NodeId("voted")))
    disk.files.contents(DATA / "hard_state.copy")[:] = older
    disk.files.inject(Fault("pwritev", errno.ENOSPC, "hard_state.copy.new"))

    assert HardStateFile(disk.files, DATA).load() == HardState(6, NodeId("voted"))

    disk.files.crash(Random(1))
    disk.files.contents(DATA / "hard_state")[9] ^= 1
    with pytest.raises(CorruptFile, match="hard_state: "):
        HardStateFile(disk.files, DATA).load()


def _disk_that_voted() -> Disk:
    disk = Disk()
    HardStateFile(disk.files, DATA).save(HardState(5, NodeId("stimme-ü")))
    return disk


def _load_both(
    disk: Disk, on_mended: Callable[[str], None] = lambda _: None
) -> tuple[HardState, Identity]:
    return (
        HardStateFile(disk.files, DATA).load(on_mended),
        load_or_format(disk.files, DATA, "orders-0", on_mended=on_mended),
    )


def _repaired_or_rot(disk: Disk, good: list[Entry]) -> tuple[list[Entry], str]:
    """Return what the log gives back when a peer has helped, or what segment is blamed."""
    try:
        log = disk.open()
    except CorruptRecord as error:
        return [], error.segment
    with suppress(FaultyEntry):
        everything(log)
    log.repair(good)
    return everything(log), ""


def _flip(data: bytes, position: int) -> bytearray:
    flipped = bytearray(data)
    flipped[position] ^= 1
    return flipped


@pytest.mark.parametrize("operation", ["open", "pread"])
@pytest.mark.parametrize("name", ["hard_state", "watermark"])
def test_disk_that_cannot_be_read_at_the_start_is_a_storage_error(
    operation: str, name: str
) -> None:
    """Found by the simulator: a plain OSError got out, which no caller takes for the disk's."""
    disk = Disk()
    disk.with_entries(entries(1, 3))
    disk.files.kill()
    for path in both(Path(name)):
        disk.files.inject(Fault(operation, errno.EIO, path.name))

    with pytest.raises(StorageError):
        start(disk)


def start(disk: Disk) -> None:
    HardStateFile(disk.files, DATA).load()
    disk.open()


def test_failed_log_prepares_no_segment() -> None:
    """Nothing is written any more once a write has failed."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    disk.files.inject(Fault("fdatasync", errno.EIO, ".seg"))
    log.append(entries(4, 4))
    with pytest.raises(StorageError):
        log.sync()
    before = disk.names()

    assert not log.prepare()

    assert disk.names() == before


def test_segment_header_of_another_segment_is_damage() -> None:
    """A misdirected write: a whole page of this very node, but for another place in the log."""
    disk = Disk(segment_bytes=4096 + 1000)
    disk.with_entries(entries(1, 60, size=100)).close()
    first, second, third = disk.names(".seg")[:3]
    page = bytes(disk.contents(first)[:4096])
    good = bytes(disk.contents(second)[:4096])
    header = decode_segment_header(bytes(disk.contents(third)[:4096]))

    disk.contents(second)[:4096] = page
    other_history = replace(header, previous_chain=header.previous_chain ^ 1)
    disk.contents(third)[:4096] = encode_segment_header(other_history)
    log = disk.open()

    assert everything(log) == entries(1, 60, size=100)
    assert bytes(disk.contents(second)[:4096]) == good
    assert decode_segment_header(bytes(disk.contents(third)[:4096])) == header


def test_sealed_segment_that_became_short_is_faulty_where_it_is() -> None:
    """Its index file does not stand for bytes that are not there."""
    disk = Disk()
    disk.with_entries(entries(1, 100, size=150)).close()
    name = disk.names(".seg")[0]
    del disk.contents(name)[5000:]

    log = disk.open()

    assert log.last_index == 100
    faulty = [index for found in log.faulty for index in found]
    assert faulty
    assert log.repair(entries(1, 100, size=150))
    assert everything(log) == entries(1, 100, size=150)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [(8, 0, "version 0, this node reads 2"), (0, 0, "magic"), (12, 7, "header says 7")],
)
def test_hard_state_of_another_format_is_refused(at: int, value: int, message: str) -> None:
    """A vote is not guessed at, though the CRC fits."""
    data = bytearray(encode_hard_state(HardState(3, NodeId("n1"))))
    data[at] = value
    data[-4:] = crc32c(data[:-4]).to_bytes(4, "little")

    with pytest.raises(ValueError, match=message):
        decode_hard_state(bytes(data))


def test_json_of_another_version_is_not_damage() -> None:
    """It is whole, and says so; a newer program reads it."""
    data = checked_json.encode(2, {"name": "orders-0"})

    with pytest.raises(checked_json.VersionError, match="version 2, this one reads 1"):
        checked_json.decode(1, data)
