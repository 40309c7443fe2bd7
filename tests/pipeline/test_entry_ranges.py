"""Where entries come from: ranges that are read whole from wherever they can be, or not at all."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptRecord
from dledger_pipeline.archive import entry_ranges
from dledger_pipeline.archive.entry_ranges import ExportedRange, live, on_disk, within
from dledger_pipeline.errors import NodeUnavailable
from tests.pipeline.export_server import export_server
from tests.pipeline.logs import GROUP_ID, batches, data_directory, entries, entry

_GONE = "127.0.0.1:1"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait between two tries."""
    monkeypatch.setattr(entry_ranges, "_RETRY_S", 0.0)


def _range(addresses: tuple[str, ...], last_index: int) -> ExportedRange:
    return ExportedRange(
        addresses=addresses,
        group_id=GROUP_ID,
        first_index=1,
        last_index=last_index,
        previous_chain=0,
    )


def test_a_range_is_read_from_the_next_node_where_one_is_gone(
    impatient: None, tmp_path: Path
) -> None:
    """The first address does not answer at all."""
    log = entries(60)
    with export_server(data_directory(tmp_path / "node", log)) as address:
        found = list(_range((_GONE, address), 60).read())

    assert pa.Table.from_batches(found) == pa.Table.from_batches(batches(log))


def test_a_range_goes_on_at_another_node_where_one_stops_in_the_middle(
    impatient: None, tmp_path: Path
) -> None:
    """What came before is not read again, and every entry is there once."""
    log = [entry(index, data=bytes([index]) * (1 << 20)) for index in range(1, 33)]
    data = data_directory(tmp_path / "one", log)
    shutil.copytree(data, tmp_path / "other")
    with ExitStack() as other, ExitStack() as one:
        first = one.enter_context(export_server(data))
        second = other.enter_context(export_server(tmp_path / "other"))
        reading = _range((first, second), 32).read()
        start = next(reading)
        one.close()
        rest = list(reading)

    assert start.num_rows < 32
    assert pa.Table.from_batches([start, *rest]) == pa.Table.from_batches(batches(log))


def test_nodes_that_are_all_gone_are_named(impatient: None) -> None:
    """After some tries."""
    with pytest.raises(NodeUnavailable, match=r"127\.0\.0\.1:1"):
        list(_range((_GONE,), 5).read())


def test_a_node_with_another_history_is_refused(tmp_path: Path) -> None:
    """The chain CRC before the range is not the one that the range was planned with."""
    with (
        export_server(data_directory(tmp_path / "one", entries(60, seed=1))) as one,
        export_server(data_directory(tmp_path / "other", entries(60, seed=2))) as other,
    ):
        planned = live([one], target_bytes=8 << 10)[1]
        moved = ExportedRange(
            addresses=(other,),
            group_id=GROUP_ID,
            first_index=planned.first_index,
            last_index=planned.last_index,
            previous_chain=planned.previous_chain,
        )
        with pytest.raises(CorruptRecord, match="has another log before this record"):
            list(moved.read())


def test_segments_on_disk_are_the_log(tmp_path: Path) -> None:
    """Segment by segment, each entry once."""
    log = entries(200)
    ranges = on_disk(data_directory(tmp_path / "node", log))

    found = [batch for each in ranges for batch in each.read()]

    assert len(ranges) > 2
    assert [each.first_index for each in ranges[1:]] == [
        each.last_index + 1 for each in ranges[:-1]
    ]
    assert pa.Table.from_batches(found) == pa.Table.from_batches(batches(log))


def test_a_segment_of_another_history_is_found_by_whoever_reads_the_one_before(
    tmp_path: Path,
) -> None:
    """Each segment is whole in itself, but the chain does not join."""
    log = entries(200)
    changed = [entry(1, data=bytes(len(log[0].data))), *log[1:]]
    directory = data_directory(tmp_path / "node", log)
    other = data_directory(tmp_path / "other", changed)
    names = sorted(path.name for path in directory.glob("log/*.seg"))
    assert names == sorted(path.name for path in other.glob("log/*.seg"))
    for name in names[1:]:
        shutil.copy(other / "log" / name, directory / "log" / name)
        (directory / "log" / name).with_suffix(".idx").unlink(missing_ok=True)

    ranges = on_disk(directory)

    with pytest.raises(CorruptRecord, match=rf"{names[0]}.*does not continue this one"):
        list(ranges[0].read())
    assert list(ranges[1].read())


@given(
    st.lists(st.integers(0, 9), max_size=5),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_within_keeps_what_is_in_the_range(sizes: list[int], first: int, last: int) -> None:
    """Of batches of any sizes; indexes ascend, with gaps or without."""
    indexes = iter(range(1, 100, 2))
    rows = [[next(indexes) for _ in range(size)] for size in sizes]

    found = within(
        [pa.RecordBatch.from_pydict({"index": pa.array(r, pa.int64())}) for r in rows], first, last
    )

    kept = [index for batch in found for index in batch.column("index").to_pylist()]
    assert kept == [index for row in rows for index in row if first <= index <= last]
