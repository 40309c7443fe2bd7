"""Options that choose rows and columns: exact, and what cannot hold such rows is not read."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvalidArgument
from dledger_pipeline.archive import archive
from dledger_pipeline.archive.manifest import time_ms, told_time
from dledger_pipeline.archive.selection import overlap, rows_within
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.source import LedgerDataSource, ReadOptions
from tests.pipeline.logs import based_backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log, place
from tests.pipeline.test_based_messages import state

LOG = message_log()
MESSAGES = consumed(LOG)
SIZE = 10
FIRST_S, LAST_S = 1010, 1025
"""Log seconds: each of its batches is one later."""
TIMES = {"fromTime": told_time(FIRST_S * 1000), "toTime": told_time(LAST_S * 1000)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a backup in objects of ten entries, with two bases."""
    store = Store.open(f"file://{tmp_path}/store")
    bases = [(state(LOG, applied, 1), 1) for applied in (15, 35)]
    runs = [(1, len(LOG.entries))]
    based_backup(store, checked_entries(LOG), runs, bases, size=SIZE)
    return store


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count the objects of entries that are read, by their first entry."""
    counted: Counter[int] = Counter()
    get = Store.get

    def counting(self: Store, name: str, **options: int) -> pa.Buffer:
        if "/data/" in name:
            counted[int(name.rpartition("/")[2].partition("-")[0])] += 1
        return get(self, name, **options)

    monkeypatch.setattr(Store, "get", counting)
    return counted


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note which row groups are read."""
    noted: list[int] = []
    read = pq.ParquetFile.read_row_groups

    def noting(self: pq.ParquetFile, numbers: list[int], names: list[str]) -> pa.Table:
        noted.extend(numbers)
        return read(self, numbers, names)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noting)
    return noted


def planned(store: Store, **options: str) -> Callable[[], list[dict[str, Any]]]:
    """Plan as Spark's driver does; return what its tasks do."""
    source = LedgerDataSource({"path": store.url, **options})
    reader = source.reader(source.schema())
    parts = pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301, our own

    def tasks() -> list[dict[str, Any]]:
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        maps = {"properties"} & {*reader._schema.names}
        return [row | {name: dict(row[name]) for name in maps} for row in rows]

    return tasks


def rows(store: Store, **options: str) -> list[dict[str, Any]]:
    """Plan and read."""
    return sorted(planned(store, **options)(), key=place)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"topic": "prices"}, lambda row: row["topic"] == "prices"),
        ({"topic": "none"}, lambda row: row["topic"] == "none"),
        ({"queue": "1"}, lambda row: row["queue_id"] == 1),
        ({"from": "7", "to": "18"}, lambda row: 7 <= row["queue_offset"] <= 18),
        ({"from": "30"}, lambda row: row["queue_offset"] >= 30),
        (
            {"topic": "orders", "queue": "0", "to": "5"},
            lambda row: (
                (row["topic"], row["queue_id"]) == ("orders", 0) and row["queue_offset"] <= 5
            ),
        ),
        (TIMES, lambda row: FIRST_S * 1000 <= row["stored_at_ms"] <= LAST_S * 1000),
        (
            {**TIMES, "topic": "orders", "from": "2", "firstIndex": "20", "lastIndex": "33"},
            lambda row: (
                FIRST_S * 1000 <= row["stored_at_ms"] <= LAST_S * 1000
                and row["topic"] == "orders"
                and row["queue_offset"] >= 2
                and 20 <= row["index"] <= 33
            ),
        ),
    ],
)
def test_rows_are_those_that_a_filter_would_leave(
    store: Store, options: dict[str, str], wanted: Callable[[dict[str, Any]], bool]
) -> None:
    """Whatever is pruned, exactly the rows that are asked for come."""
    assert rows(store, **options) == [row for row in MESSAGES if wanted(row)]


def test_columns_are_the_schema(store: Store) -> None:
    """Only those, in the order asked for, also where rows are chosen by others."""
    found = planned(store, columns="queue_offset, topic", **TIMES)()

    expected = [row for row in MESSAGES if FIRST_S <= row["stored_at_ms"] // 1000 <= LAST_S]
    assert [list(row) for row in found] == [["queue_offset", "topic"]] * len(expected)
    assert sorted(row["queue_offset"] for row in found) == sorted(
        row["queue_offset"] for row in expected
    )


def test_of_entries_only_the_objects_with_such_times_are_read(
    store: Store, reads: Counter[int]
) -> None:
    """By what the manifest says of them; others are not opened while planning, nor by a task."""
    found = planned(store, view="entries", columns="index", **TIMES)()

    entries = [e for e in LOG.entries if FIRST_S <= e.timestamp_ms // 1000 <= LAST_S]
    assert [row["index"] for row in found] == [entry.index for entry in entries]
    first, last = entries[0].index, entries[-1].index
    assert reads == dict.fromkeys(range(first - (first - 1) % SIZE, last + 1, SIZE), 1)
    assert len(reads) < len(LOG.entries) / SIZE


def test_tasks_read_the_objects_with_such_messages_only(store: Store, reads: Counter[int]) -> None:
    """Planning reads each object once, to find the places; it knows then which are needed."""
    tasks = planned(store, topic="orders", queue="1", **{"from": "9", "to": "11"})
    planning = Counter(reads)
    reads.clear()

    found = tasks()

    assert [row["queue_offset"] for row in found] == [9, 10, 11]
    assert planning == dict.fromkeys(range(1, len(LOG.entries) + 1, SIZE), 1)
    assert {*reads} == {row["index"] - (row["index"] - 1) % SIZE for row in found}


def test_tasks_read_the_objects_with_such_times_only(store: Store, reads: Counter[int]) -> None:
    """By what the manifest says of them, as for entries."""
    tasks = planned(store, toTime=TIMES["toTime"])
    reads.clear()

    found = tasks()

    last = max(row["index"] for row in found)
    assert reads == dict.fromkeys(range(1, last + 1, SIZE), 1)
    assert len(reads) < len(LOG.entries) / SIZE


def test_planning_begins_at_the_newest_base_that_times_allow(
    store: Store, reads: Counter[int]
) -> None:
    """What is older than the base is not read at all."""
    last_s = LOG.entries[-1].timestamp_ms // 1000
    tasks = planned(store, fromTime=told_time((last_s - 4) * 1000))

    found = tasks()

    assert {row["stored_at_ms"] // 1000 for row in found} == {*range(last_s - 4, last_s + 1)}
    assert min(reads) == 31  # the base is of entry 35


@pytest.mark.parametrize("view", ["entries", "messages"])
def test_row_groups_without_such_rows_are_not_read(
    tmp_path: Path, groups: list[int], monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    """One object has them all here; the statistics say which part of it is needed."""
    monkeypatch.setattr(archive, "_ROW_GROUP_BYTES", 2 << 10)
    store = Store.open(f"file://{tmp_path}/store")
    log = checked_entries(LOG)
    based_backup(store, log, [(1, len(log))], [], size=len(log))
    tasks = planned(store, view=view, columns="index", firstIndex="20", lastIndex="25")
    groups.clear()

    found = tasks()

    assert {row["index"] for row in found} <= {*range(20, 26)}
    assert found
    assert 0 < len(groups) < len(log) / 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": "topic,boddy"}, "view messages has no column 'boddy'; its columns are topic"),
        ({"columns": "topic,topic"}, "a column twice"),
        ({"view": "entries", "topic": "a", "to": "3"}, "view entries has no option topic, to"),
        ({"from": "-1"}, "option from must be a number, 0 or more"),
        ({"queue": "x"}, "option queue must be a number"),
        ({"fromTime": "yesterday"}, "option fromTime: 'yesterday' is not an RFC 3339 time"),
        ({"toTime": "2026-01-31T12:00:00"}, "option toTime: .* has no time zone"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], reason: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidArgument, match=reason):
        ReadOptions.of({"path": "file:///x", **options})


def test_times_are_as_exact_as_they_are_written() -> None:
    """A part of a millisecond is within the range that is given, not around it."""
    assert time_ms("2026-01-31T12:00:00.123Z") == 1769860800123
    assert time_ms("2026-01-31T13:00:00.1234+01:00") == 1769860800123
    assert time_ms("2026-01-31T12:00:00.1234Z", up=True) == 1769860800124


_BOUNDS = st.dictionaries(
    st.sampled_from(["index", "topic"]),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1), _BOUNDS)
def test_what_is_left_out_has_no_row_that_is_asked_for(
    values: list[tuple[int, int]], bounds: dict[str, tuple[int, int]]
) -> None:
    """Statistics of any rows, and any bounds, empty ones too."""
    batch = pa.RecordBatch.from_pylist([{"index": a, "topic": b} for a, b in values])
    known = {
        name: (min(column), max(column))
        for name, column in zip(("index", "topic"), zip(*values, strict=True), strict=True)
    }

    found = rows_within(batch, bounds).to_pylist()

    assert found == [
        row for row in batch.to_pylist() if all(a <= row[n] <= b for n, (a, b) in bounds.items())
    ]
    assert not found or overlap(known, bounds)
