"""One test for each rule that keeps a synced entry; the rules are listed in storage-format.md."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from dledger.errors import CorruptFile, CorruptRecord, StorageError, WrongIdentity
from dledger.files.memory_files import Fault, MemoryFiles
from dledger.store.commit_log import CommitLog
from dledger.store.format import decode_segment_header
from dledger.store.hard_state import HardStateFile
from dledger.store.two_copies import both
from dledger.types import HardState, NodeId
from tests.files.recording_files import RecordingFiles
from tests.store.harness import (
    DATA,
    GROUP,
    LOG,
    NODE,
    Disk,
    entries,
    entry,
    everything,
    format_disk,
)

SEEDS = range(20)
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_entries_survive_a_power_cut(seed: int) -> None:
    """Rule 1: what sync() returned for is there, whatever else the disk lost."""
    disk = Disk()
    log = disk.with_entries(entries(1, 40, size=150))
    log.append(entries(41, 60, size=150))

    found = everything(disk.crash(seed))

    assert found == entries(1, len(found), size=150)
    assert len(found) >= 40


def test_watermark_is_never_ahead_of_the_data() -> None:
    """Rule 2: the watermark is written only after the data's sync succeeded."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    before = log._watermark.mark
    log.append([entry(4)])
    disk.files.inject(Fault("fdatasync", errno.EIO, ".seg"))

    with pytest.raises(Exception, match="failed"):
        log.sync()

    assert log._watermark.mark == before


@pytest.mark.parametrize("seed", SEEDS)
def test_watermark_survives_a_power_cut_while_it_is_written(seed: int) -> None:
    """Rule 3: slots alternate, so one whole slot is always on the disk."""
    disk = Disk()
    log = disk.with_entries(entries(1, 3))
    log.append([entry(4)])
    disk.files.inject(Fault("fdatasync", errno.EIO, "watermark"))
    with pytest.raises(Exception, match="failed"):
        log.sync()

    assert len(everything(disk.crash(seed))) >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_segment_file_has_its_name_only_when_it_is_whole(seed: int) -> None:
    """Rule 4: preallocate, header, fdatasync, rename, directory fsync; then records."""
    disk = Disk()
    log = disk.with_entries(entries(1, 10))
    disk.files.inject(Fault("fsync_dir", errno.EIO))
    with pytest.raises(Exception, match="failed"):
        log.append(entries(11, 80, size=150))

    disk.files.crash(Random(seed))

    for name in disk.names(".seg"):
        assert decode_segment_header(bytes(disk.contents(name)[:4096])).node_id == NODE
    assert everything(disk.open())[:10] == entries(1, 10)
    assert not disk.names(".new")


def test_sealed_segment_is_synced_before_its_successor_exists() -> None:
    """Rule 5: only the last segment can be torn."""
    disk = Disk()
    files = RecordingFiles(disk.files)
    log = disk.open(files)
    log.append(entries(1, 1, size=3000))
    files.calls.clear()

    log.append(entries(2, 2, size=3000))

    first, second = (f"{index:020}.seg" for index in (1, 2))
    assert files.calls.index(f"fdatasync {first}") < files.calls.index(f"create {second}.new")


@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_entries_never_come_back(seed: int) -> None:
    """Rule 6: once append() returned from a truncation, no crash brings the old suffix back.

    The replacement is byte for byte the first truncated entry, so that only zeroing helps.
    """
    disk = Disk()
    log = disk.with_entries(entries(1, 60, size=150))

    log.append(entries(30, 30, size=150))

    assert len(everything(disk.crash(seed))) in {29, 30}


@pytest.mark.parametrize("last", [29, 58])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_cut_never_comes_back(seed: int, last: int) -> None:
    """Rule 6, where nothing is written in place of it: a cut is durable when it returns."""
    disk = Disk()
    log = disk.with_entries(entries(1, 60, size=150))

    log.cut_behind(last)

    assert (log.last_index, log.synced_index) == (last, last)
    assert everything(disk.crash(seed)) == entries(1, last, size=150)


@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_segments_never_come_back(seed: int) -> None:
    """Rule 6, where whole files go: their removal is durable before append() returns."""
    disk = Disk()
    log = disk.with_entries(entries(1, 60, size=150))
    last = log._index.segments[0].last_index

    log.append(entries(last, last, size=150))

    assert len(everything(disk.crash(seed))) in {last - 1, last}


@pytest.mark.parametrize("seed", SEEDS)
def test_cut_segments_never_come_back(seed: int) -> None:
    """Rule 7, where whole files go."""
    disk = Disk(durability="osBuffer")
    log = disk.with_entries(entries(1, 60, size=150))
    last = log._index.segments[0].last_index
    disk.contents(disk.names(".seg")[0])[log._index.segments[0].position(last) + 50] ^= 1
    disk.files.remove(LOG / disk.names(".idx")[0])
    disk.files.kill()
    recovered = disk.open()
    assert recovered.last_index == last - 1

    recovered.append(entries(last, last, size=150))

    assert len(everything(disk.crash(seed))) in {last - 1, last}


@pytest.mark.parametrize("seed", SEEDS)
def test_cut_tail_never_comes_back(seed: int) -> None:
    """Rule 7: recovery zeroes what it cuts, before anything is written in its place."""
    disk = Disk(segment_bytes=1 << 16)
    log = disk.with_entries(entries(1, 10, size=600))
    log.append(entries(11, 30, size=600))
    recovered = disk.crash(seed)
    last = recovered.last_index

    recovered.append(entries(last + 1, last + 1, size=600))
    recovered.sync()

    assert disk.crash(seed).last_index == last + 1


def test_truncation_lowers_the_watermark_before_it_touches_records() -> None:
    """Rule 8: an interrupted truncation is never taken for rot."""
    disk = Disk()
    files = RecordingFiles(disk.files)
    log = disk.open(files)
    log.append(entries(1, 60, size=150))
    log.sync()
    files.calls.clear()

    log.append([entry(30, term=2)])

    watermark = files.calls.index("fdatasync watermark")
    touched = [number for number, call in enumerate(files.calls) if ".seg" in call]
    assert watermark < min(touched)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_recovered_is_durable(seed: int) -> None:
    """Rule 9: the core counts recovered entries as its own, so a second crash keeps them all."""
    disk = Disk()
    log = disk.with_entries(entries(1, 10))
    log.append(entries(11, 50))
    disk.files.kill()
    recovered = disk.open()
    assert recovered.synced_index == recovered.last_index == 50

    assert disk.crash(seed).last_index == 50


def test_everything_recovered_is_under_the_watermark() -> None:
    """Rule 9, for rot: what was recovered once is never cut later."""
    disk = Disk()
    log = disk.with_entries(entries(1, 10))
    log.append(entries(11, 50))
    disk.files.kill()
    position = disk.open()._index.segments[-1].position(50)
    disk.files.kill()

    disk.contents(disk.names(".seg")[-1])[position] ^= 1

    assert disk.open().faulty == (range(50, 51),)


@pytest.mark.parametrize("seed", SEEDS)
def test_recovery_writes_again_what_a_failed_sync_left_in_the_page_cache(seed: int) -> None:
    """Rule 10: after a failed fdatasync the cache is clean but the disk is not written."""
    disk = Disk()
    log = disk.with_entries(entries(1, 10))
    log.append(entries(11, 20))
    disk.files.inject(Fault("fdatasync", errno.EIO, ".seg"))
    with pytest.raises(Exception, match="failed"):
        log.sync()
    disk.files.kill()
    assert disk.open().last_index == 20

    assert everything(disk.crash(seed)) == entries(1, 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_hard_state_is_the_old_or_the_new_one(seed: int) -> None:
    """Rule 11: temporary file, fdatasync, rename, directory fsync."""
    for operation, suffix in (
        ("open", ""),
        ("pwritev", ""),
        ("fdatasync", ""),
        ("rename", ""),
        ("fsync_dir", ""),
    ):
        files = MemoryFiles()
        format_disk(files)
        old, new = HardState(3, NodeId("knoten-é")), HardState(4, None)
        HardStateFile(files, DATA).save(old)
        files.inject(Fault(operation, errno.EIO, suffix))
        with pytest.raises(Exception, match="hard_state"):
            HardStateFile(files, DATA).save(new)

        files.crash(Random(seed))

        assert HardStateFile(files, DATA).load() in {old, new}


@pytest.mark.parametrize("seed", SEEDS)
def test_saved_hard_state_survives_a_power_cut(seed: int) -> None:
    """Rule 12: a vote that was given is remembered."""
    files = MemoryFiles()
    format_disk(files)
    HardStateFile(files, DATA).save(HardState(7, NodeId(NODE)))

    files.crash(Random(seed))

    assert HardStateFile(files, DATA).load() == HardState(7, NodeId(NODE))


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("operation", ["open", "pwritev", "fdatasync", "rename", "fsync_dir"])
@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("power_cut", [True, False])
def test_no_damaged_copy_brings_back_the_time_before_a_vote(
    operation: str, skip: int, damaged: int, power_cut: bool
) -> None:
    """Rule 21: what was told once, by a save or by a start, survives the loss of either copy.

    Also if the save was ended by a kill, and so a name was seen that was not durable yet.
    """
    for seed in SEEDS:
        files = MemoryFiles()
        format_disk(files)
        old, new = HardState(3, None), HardState(3, NodeId("voted"))
        HardStateFile(files, DATA).save(old)
        files.inject(Fault(operation, errno.EIO, skip=skip))
        with pytest.raises(StorageError):
            HardStateFile(files, DATA).save(new)
        if power_cut:
            files.crash(Random(seed))
        else:
            files.kill()
        told = HardStateFile(files, DATA).load()
        files.crash(Random(seed + 1))

        files.contents(both(DATA / "hard_state")[damaged])[20] ^= 4

        assert HardStateFile(files, DATA).load() == told


def test_lost_watermark_is_not_an_empty_log() -> None:
    """Rule 13: formatting creates the watermark and the hard state; missing ones were lost."""
    disk = Disk()
    disk.files.remove(LOG / "watermark")
    for path in both(DATA / "hard_state"):
        disk.files.remove(path)

    with pytest.raises(CorruptFile, match=r"watermark: missing"):
        disk.open()
    with pytest.raises(CorruptFile, match=r"hard_state: missing"):
        HardStateFile(disk.files, DATA).load()


def test_missing_segments_are_faulty_or_named() -> None:
    """Rule 14: the first, a middle or the last segment cannot vanish unnoticed."""
    for number in (0, 1, 2, -1):
        disk = Disk()
        log = disk.with_entries(entries(1, 100, size=150))
        lost = log._index.segments[number]
        disk.files.remove(lost.path)

        assert disk.open().faulty == (range(lost.first_index, lost.last_index + 1),)

        disk.files.remove(lost.path)
        disk.contents("watermark")[8192:] = bytes(len(disk.contents("watermark")) - 8192)
        if number >= 0:
            disk.files.remove(lost.index_path)
        with pytest.raises(CorruptRecord, match=f"{lost.name} at byte offset 0: .* missing"):
            disk.open()


def test_segments_of_another_group_or_node_are_refused() -> None:
    """Rule 15: a foreign log is never continued; both values are named."""
    for group, node in (("another", NODE), (GROUP, "another")):
        disk = Disk()
        disk.with_entries([entry(1)])
        foreign = type(disk.identity)(node_id=NodeId(node), group_id=group, name="orders-0")

        with pytest.raises(WrongIdentity, match="another") as caught:
            CommitLog.open(disk.files, LOG, identity=foreign)

        assert {caught.value.found, caught.value.expected} & {GROUP, NODE}


def test_log_that_lost_a_write_behind_the_watermark_is_faulty_or_refused() -> None:
    """Rule 16: the watermark's chain value names the very log that was synced."""
    disk = Disk()
    disk.with_entries(entries(1, 5))
    other = Disk()
    other.with_entries(entries(1, 5, term=2))
    name = disk.names(".seg")[0]

    disk.contents(name)[:] = other.contents(name)

    assert disk.open().faulty == (range(1, 6),)
    disk.contents("watermark")[8192:] = b""
    with pytest.raises(CorruptRecord, match="the watermark says"):
        disk.open()


@pytest.mark.parametrize("seed", SEEDS)
def test_vote_that_a_killed_process_saved_is_durable_once_it_is_read(seed: int) -> None:
    """Rule 20: the process died between rename and directory fsync; the next one tells the vote."""
    files = MemoryFiles()
    format_disk(files)
    files.inject(Fault("fsync_dir", errno.EIO))
    with pytest.raises(StorageError):
        HardStateFile(files, DATA).save(HardState(3, NodeId("voted")))
    files.kill()
    assert HardStateFile(files, DATA).load() == HardState(3, NodeId("voted"))

    files.crash(Random(seed))

    assert HardStateFile(files, DATA).load() == HardState(3, NodeId("voted"))


@pytest.mark.parametrize("seed", SEEDS)
def test_segment_that_a_killed_process_made_is_durable_once_it_is_used(seed: int) -> None:
    """Rule 20: entries are acknowledged from a segment whose name nobody had synced."""
    disk = Disk()
    log = disk.open()
    disk.files.inject(Fault("fsync_dir", errno.EIO))
    with pytest.raises(StorageError):
        log.append([entry(1)])
    disk.files.kill()

    disk.with_entries([entry(1)])

    assert everything(disk.crash(seed)) == [entry(1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_base_that_a_killed_process_wrote_is_durable_before_segments_go(seed: int) -> None:
    """Rule 20: a start removes what a snapshot replaced, by a slot that nobody had synced."""
    disk = Disk()
    log = disk.with_entries(entries(1, 60, size=150))
    disk.files.inject(Fault("fdatasync", errno.EIO, "watermark"))
    with pytest.raises(StorageError):
        log.restart_behind(index=70, term=2, chain=5)
    disk.files.kill()
    assert disk.open().last_index == 70

    assert disk.crash(seed).last_index == 70


def test_calls_of_the_log_and_the_hard_state(request: pytest.FixtureRequest) -> None:
    """A lost or moved sync is a diff of the golden list."""
    disk = Disk()
    files = RecordingFiles(disk.files)
    sections: list[str] = []

    def section(title: str) -> None:
        sections.extend([f"# {title}", *files.calls, ""])
        files.calls.clear()

    fresh = RecordingFiles(MemoryFiles())
    format_disk(fresh)
    files.calls.extend(fresh.calls)
    section("format a disk and join a group")
    log = disk.open(files)
    section("open an empty log")
    log.append(entries(1, 2, size=100))
    section("the first append creates a segment")
    log.sync()
    section("sync")
    log.append(entries(3, 4, size=100))
    log.sync()
    section("append two entries and sync")
    log.sync()
    section("sync when there is nothing to sync")
    log.append(entries(5, 6, size=3000))
    section("append what needs another segment")
    log.append(entries(3, 3, term=2))
    section("append over entries in an earlier segment")
    log.append(entries(4, 4, term=2, size=4000))
    log.sync()
    files.calls.clear()
    log.drop_before(4)
    section("drop a sealed segment")
    log.restart_behind(index=9, term=3, chain=7)
    section("restart behind a snapshot")
    HardStateFile(files, DATA).save(HardState(2, None))
    section("save a hard state")
    text = "\n".join(sections)

    golden = GOLDEN / "calls.txt"
    if request.config.getoption("--rewrite", default=False):
        golden.write_text(text)
    assert text == golden.read_text()
