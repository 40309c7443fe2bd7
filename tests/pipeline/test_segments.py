"""Reading data directories: all that was synced, with or without index files; damage is named."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.errors import CorruptFile, CorruptRecord
from dledger.store.format import encode_records
from dledger.types import Entry
from dledger_pipeline.log.records import RecordBytes, parse
from dledger_pipeline.log.segments import read_log, read_segment
from tests.pipeline.logs import SEGMENT_BYTES, data_directory, entries, entry

ENTRIES = entries(200)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the data directory of a log in several segments."""
    written = data_directory(tmp_path / "data", ENTRIES)
    assert len(segments(written)) > 3
    return written


def segments(directory: Path) -> list[Path]:
    """Return the segment files, in order."""
    return sorted((directory / "log").glob("*.seg"))


def bytes_of(chunks: list[RecordBytes]) -> bytes:
    """Return the records' bytes."""
    return b"".join(bytes(chunk.data) for chunk in chunks)


def outcome(directory: Path) -> list[bytes] | CorruptRecord:
    """Return the bodies of a log, or the fault that was found."""
    try:
        return [row["body"] for chunk in read_log(directory) for row in parse(chunk).to_pylist()]
    except CorruptRecord as error:
        return error


def expected_bytes(log_entries: list[Entry]) -> bytes:
    """Return what the shipped store writes for a log."""
    return b"".join(encode_records(log_entries, chain=0, position=0).buffers)


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 4 << 20])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "without index files"])
def test_a_log_is_read_as_the_bytes_that_were_written(
    directory: Path, chunk_bytes: int, indexed: bool
) -> None:
    """In chunks of any size; each one parses behind the one before."""
    if not indexed:
        for path in (directory / "log").glob("*.idx"):
            path.unlink()

    chunks = list(read_log(directory, chunk_bytes=chunk_bytes))

    assert bytes_of(chunks) == expected_bytes(ENTRIES)
    rows = [row for chunk in chunks for row in parse(chunk).to_pylist()]
    assert [row["index"] for row in rows] == list(range(1, 201))
    assert [row["body"] for row in rows] == [one.data for one in ENTRIES]


def test_a_log_directory_alone_is_read(directory: Path) -> None:
    """As ``dledger log`` does."""
    assert bytes_of(list(read_log(directory / "log"))) == expected_bytes(ENTRIES)


def test_a_log_without_entries_has_no_records(tmp_path: Path) -> None:
    """A fresh disk."""
    assert list(read_log(data_directory(tmp_path, []))) == []


def test_a_record_larger_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    """With a segment of its own."""
    log = [entry(1, data=b"a"), entry(2, data=bytes(range(256)) * 500), entry(3, data=b"b")]
    directory = data_directory(tmp_path, log)

    assert bytes_of(list(read_log(directory, chunk_bytes=4096))) == expected_bytes(log)


def test_a_damaged_index_file_is_not_used(directory: Path) -> None:
    """It is a shortcut, never the truth."""
    for path in (directory / "log").glob("*.idx"):
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)

    assert bytes_of(list(read_log(directory))) == expected_bytes(ENTRIES)


def test_an_index_file_of_other_records_is_not_used(directory: Path, tmp_path: Path) -> None:
    """Whole, but not of this segment."""
    other = data_directory(tmp_path / "other", entries(200, seed=2))
    first = segments(directory)[0]
    first.with_suffix(".idx").write_bytes(segments(other)[0].with_suffix(".idx").read_bytes())

    assert bytes_of(list(read_segment(first))) in expected_bytes(ENTRIES)


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_is_named_or_changes_nothing(directory: Path, seed: int) -> None:
    """Anywhere in any segment, with and without index files."""
    rng = random.Random(seed)
    path = rng.choice(segments(directory))
    damaged = bytearray(path.read_bytes())
    damaged[rng.randrange(4096 if rng.random() < 0.1 else len(damaged))] ^= 1 << rng.randrange(8)
    path.write_bytes(damaged)
    if rng.random() < 0.5:
        path.with_suffix(".idx").unlink(missing_ok=True)

    found = outcome(directory)

    if isinstance(found, CorruptRecord):
        assert found.segment == path.name
        assert 0 <= found.offset < SEGMENT_BYTES
    else:
        assert found == [one.data for one in ENTRIES]


@pytest.mark.parametrize("seed", range(20))
def test_a_truncated_segment_is_named(directory: Path, seed: int) -> None:
    """By the segment, and the byte at which the first missing record should be."""
    rng = random.Random(seed)
    path = rng.choice(segments(directory)[:-1])
    end = len(bytes_of(list(read_segment(path)))) + 4096
    length = rng.randrange(end)
    path.write_bytes(path.read_bytes()[:length])

    found = outcome(directory)

    assert isinstance(found, CorruptRecord)
    assert found.segment == path.name
    assert found.offset <= max(length, 4096)


def test_a_missing_segment_is_named(directory: Path) -> None:
    """In the middle, and at the end."""
    for path in segments(directory)[2], segments(directory)[-1]:
        data = path.read_bytes()
        path.unlink()

        with pytest.raises(CorruptRecord, match=f"{path.name}|is missing"):
            list(read_log(directory))
        path.write_bytes(data)


def test_a_segment_of_another_history_is_named(directory: Path, tmp_path: Path) -> None:
    """Its records are whole, but they do not continue the chain."""
    later = [replace(one, timestamp_ms=one.timestamp_ms + 1) for one in ENTRIES]
    other = data_directory(tmp_path / "other", later)
    name = segments(other)[1].name
    (directory / "log" / name).write_bytes((other / "log" / name).read_bytes())
    (directory / "log" / name).with_suffix(".idx").unlink(missing_ok=True)

    found = outcome(directory)

    assert isinstance(found, CorruptRecord)
    assert found.segment == name
    assert "chain" in found.reason


def test_what_was_never_synced_is_not_read(directory: Path) -> None:
    """A torn tail above the watermark is no damage."""
    last = segments(directory)[-1]
    data = bytearray(last.read_bytes())
    end = 4096 + len(bytes_of(list(read_segment(last))))
    data[end : end + 80] = random.Random(1).randbytes(80)
    last.write_bytes(data)

    assert bytes_of(list(read_log(directory))) == expected_bytes(ENTRIES)


def test_a_lost_watermark_is_named(directory: Path) -> None:
    """Without it nobody knows how much of the log there should be."""
    (directory / "log" / "watermark").unlink()

    with pytest.raises(CorruptFile, match="watermark"):
        list(read_log(directory))
