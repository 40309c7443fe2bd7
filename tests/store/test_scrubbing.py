"""Rot where nobody reads: records become faulty, second copies are written again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.errors import CorruptRecord, StorageError
from dledger.files.files import Mode, RealFiles
from dledger.files.memory_files import Fault, MemoryFile, MemoryFiles
from dledger.store.commit_log import CommitLog
from tests.store.harness import LOG, Disk, entries, everything, format_disk


def scrub(log: CommitLog, *, max_bytes: int = 2000) -> int:
    """Go once through the log; return the bytes read."""
    index = size_bytes = 0
    while True:
        step = log.scrubber.scrub(index, max_bytes)
        size_bytes += step.size_bytes
        index = step.next_index
        if not index:
            return size_bytes


def filled() -> tuple[Disk, CommitLog]:
    disk = Disk()
    return disk, disk.with_entries(entries(1, 100, size=150))


def test_a_round_reads_all_records_and_their_copies() -> None:
    """And finds nothing on a good disk."""
    disk, log = filled()
    before = {name: bytes(disk.contents(name)) for name in disk.names()}
    records = sum(segment.end - 4096 for segment in log._index.segments)

    assert scrub(log) > records

    assert log.is_whole
    assert {name: bytes(disk.contents(name)) for name in disk.names()} == before


@pytest.mark.parametrize("max_bytes", [0, 500, 1 << 20])
@pytest.mark.parametrize("index", [1, 50, 100])
def test_damaged_records_become_faulty(max_bytes: int, index: int) -> None:
    """In sealed segments and in the last one, whatever the size of a step."""
    disk, log = filled()
    segment = log._index.segment_of(index)
    disk.contents(segment.name)[segment.position(index) + 70] ^= 1

    scrub(log, max_bytes=max_bytes)

    assert log.faulty == (range(index, index + 1),)
    log.repair(entries(1, 100, size=150))
    scrub(log)
    assert log.is_whole
    assert everything(log) == entries(1, 100, size=150)


def test_unreadable_records_become_faulty_one_by_one() -> None:
    """Only those that the disk cannot read, once it was asked for each."""
    disk, log = filled()
    disk.files.inject(Fault("pread", errno.EIO, ".seg", skip=1, times=2))

    scrub(log)

    assert log.faulty == (range(1, 2),)


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_damaged_headers_and_index_files_are_written_again(suffix: str) -> None:
    """They are known in memory; no peer is asked."""
    disk, log = filled()
    name = disk.names(suffix)[0]
    good = bytes(disk.contents(name))
    disk.contents(name)[30] ^= 1

    scrub(log)

    assert bytes(disk.contents(name)) == good
    assert everything(disk.crash()) == entries(1, 100, size=150)


def test_a_lost_index_file_is_written_again() -> None:
    """It is the second copy of its segment's identities."""
    disk, log = filled()
    name = disk.names(".idx")[1]
    disk.files.remove(LOG / name)

    scrub(log)
    disk.crash()

    assert name in disk.names(".idx")


@pytest.mark.parametrize("position", [33, 4096 + 33, 8192 + 5])
def test_damaged_watermark_slots_and_rows_are_written_again(position: int) -> None:
    """Before a second one rots."""
    disk, log = filled()
    disk.contents("watermark")[position] ^= 1

    scrub(log)

    recovered = disk.crash()
    segment = recovered._index.segments[-1]
    disk.contents(segment.name)[segment.position(100) + 8] ^= 1
    assert disk.open().faulty == (range(100, 101),)


def test_scrubbing_goes_on_behind_what_changes_meanwhile() -> None:
    """The log is cut, dropped and written between the steps."""
    _, log = filled()
    step = log.scrubber.scrub(70, 500)
    log.append([*entries(60, 62, term=2)])
    assert log.scrubber.scrub(step.next_index, 500).next_index == 0
    log.sync()
    first = log.drop_before(50)

    assert log.scrubber.scrub(1, 0).next_index == first + 1
    log.restart_behind(index=500, term=3, chain=1)
    assert log.scrubber.scrub(0, 500).next_index == 0


def test_a_missing_file_is_for_the_next_start_to_make_again() -> None:
    """A running log cannot; the node stops."""
    disk, log = filled()
    disk.files.remove(LOG / disk.names(".seg")[0])

    with pytest.raises(CorruptRecord, match="missing"):
        log.scrubber._scrub_records(1, 100)


def test_cold_files_read_what_other_files_do(tmp_path: Path) -> None:
    """Past the page cache; dirty pages are not lost."""
    files = RealFiles()
    file = files.open(tmp_path / "file", Mode.CREATE)
    file.pwritev([b"written, not synced"], 0)

    assert files.open(tmp_path / "file", Mode.COLD).pread(7, 0) == b"written"


class MeanwhileFiles(MemoryFiles):
    """Something else happens to the log when a file is opened to be scrubbed."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def open(self, path: Path, mode: Mode) -> MemoryFile:
        """Open *path*, after what happens once."""
        happens = self.meanwhile
        if mode is Mode.COLD and happens is not None:
            self.meanwhile = None
            happens()
        return super().open(path, mode)


def filled_meanwhile() -> tuple[Disk, CommitLog, MeanwhileFiles]:
    """Return 100 entries, with files to which something can happen."""
    disk = Disk()
    disk.files = files = MeanwhileFiles()
    disk.identity = format_disk(files)
    return disk, disk.with_entries(entries(1, 100, size=150)), files


def test_records_that_are_truncated_while_they_are_read_are_not_rot() -> None:
    """What lies there then is another record."""
    _, log, files = filled_meanwhile()
    step = log.scrubber.scrub(0, 0)
    files.meanwhile = lambda: log.append(entries(2, 3, term=2, size=70))

    assert log.scrubber._scrub_records(step.next_index, 1 << 20).next_index == step.next_index

    assert log.is_whole


def test_segments_that_are_dropped_while_they_are_read_are_not_missing() -> None:
    """The round goes on at the new beginning."""
    _, log, files = filled_meanwhile()
    files.meanwhile = lambda: log.restart_behind(index=500, term=3, chain=1)

    step = log.scrubber._scrub_records(1, 100)

    assert step.next_index == 1
    assert log.scrubber.scrub(step.next_index, 100).next_index == 0


def test_a_round_ends_where_the_log_was_cut_meanwhile() -> None:
    """Between the check of a segment's copies and that of its records."""
    _, log = filled()
    log.append(entries(50, 50, term=2))

    assert log.scrubber._scrub_records(60, 100).next_index == 0


def test_copies_of_a_segment_that_went_on_meanwhile_are_left_to_the_next_round() -> None:
    """An index file of a segment that is the last one again would be stale."""
    disk, log, files = filled_meanwhile()
    first = log._index.segments[0]
    name = first.index_path.name
    disk.contents(name)[30] ^= 1
    files.meanwhile = lambda: log.append(entries(2, 3, term=2))

    log.scrubber._scrub_copies(first)

    assert name not in disk.names()
    log.sync()
    assert everything(disk.crash()) == [*entries(1, 1, size=150), *entries(2, 3, term=2)]


def test_a_header_that_the_disk_cannot_read_is_written_again() -> None:
    """As one that it reads wrongly."""
    disk, log = filled()
    header = Fault("pread", errno.EIO, ".seg", times=2)
    disk.files.inject(header)

    log.scrubber._scrub_copies(log._index.segments[0])

    assert not header.times
    assert everything(disk.crash()) == entries(1, 100, size=150)


def test_an_index_file_that_cannot_be_opened_is_written_again() -> None:
    """The scrubber ended with an error that nobody had a name for (seed 1692)."""
    disk, log = filled()
    first = log._index.segments[0]
    before = bytes(disk.contents(first.index_path.name))
    unopened = Fault("open", errno.EIO, first.index_path.name, times=2)
    disk.files.inject(unopened)

    log.scrubber._scrub_copies(first)

    assert not unopened.times
    assert bytes(disk.contents(first.index_path.name)) == before


def test_damage_of_what_the_log_has_dropped_is_no_fault() -> None:
    """Nobody could repair it, or needs it."""
    _, log = filled()
    first = log.drop_before(50)

    log.mark_faulty(1, first - 1, "rot")

    assert log.is_whole


def test_a_segment_that_cannot_be_opened_is_a_failed_disk() -> None:
    """For readers and the scrubber alike, so that neither ends without a word."""
    disk, log = filled()
    first = log._index.segments[0]
    log._disk.close()
    disk.files.inject(Fault(operation="open", errno=errno.EIO, suffix=first.name, times=2))

    with pytest.raises(StorageError, match="cannot open segment"):
        log.scrubber._scrub_records(1, 0)
    with pytest.raises(StorageError, match="cannot open segment"):
        log.read(1, 1, 0)


def test_what_is_not_synced_is_no_rot() -> None:
    """The disk need not have it yet: a round ends with what `sync` has vouched for."""
    disk, log = filled()
    log.append(entries(101, 103, size=150))
    segment = log._index.segment_of(102)
    disk.contents(segment.name)[segment.position(102) + 70] ^= 1

    scrub(log)

    assert log.is_whole
    assert log.scrubber.scrub(101, 2000).next_index == 0
