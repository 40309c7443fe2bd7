"""A stream of a backup: what comes, each message once, however it is stopped and begun again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog
from dledger_pipeline.errors import RangeNotAvailable
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.source import LedgerDataSource
from dledger_pipeline.spark.stream import LedgerStreamReader
from tests.pipeline.export_server import export_server
from tests.pipeline.logs import backup, based_backup, data_directory
from tests.pipeline.message_logs import checked_entries, consumed, message_log, place


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a backup of `message_log`'s first 30 entries."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, checked_entries(message_log())[:30], (10, 20))
    return store


def _grow(store: Store) -> None:
    entries = checked_entries(message_log())
    backup(store, entries, (10, 20, len(entries) - 30))


def _reader(store: Store, **options: str) -> LedgerStreamReader:
    return _opened(store=store.url, **options)


def _opened(**options: str) -> LedgerStreamReader:
    source = LedgerDataSource(options)
    found = source.streamReader(source.schema())
    assert isinstance(found, LedgerStreamReader)
    return found


def _rows(reader: LedgerStreamReader, start: dict[str, int], end: dict[str, int]) -> Any:
    found = [
        row | ({"properties": dict(row["properties"])} if "properties" in row else {})
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    return sorted(found, key=place) if "topic" in found[0] else found


def test_a_batch_has_the_messages_of_the_entries_between_two_offsets(store: Store) -> None:
    """All that view messages shows of them, and nothing of others."""
    reader = _reader(store)
    start = reader.initialOffset()

    for first in range(0, 30, 7):
        offset = start | {"index": first}
        end = reader.latestOffset(offset, ReadMaxRows(7))
        expected = [r for r in consumed(message_log()) if first < r["index"] <= end["index"]]
        assert end == start | {"index": min(first + 7, 30)}
        assert _rows(reader, offset, end) == expected

    assert reader.latestOffset(end, ReadMaxRows(7)) == end
    assert reader.partitions(end, end) == []
    assert start == {"index": 0, "first": 1}


def test_a_stream_goes_on_with_what_a_newer_backup_has(store: Store) -> None:
    """Its columns are those asked for; the limit is the option's."""
    reader = _reader(store, columns="queue_offset,body", maxEntriesPerTrigger="4")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    _grow(store)

    newest = reader.latestOffset(end, ReadAllAvailable())
    rows = _rows(reader, end, newest)

    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert [row["body"] for row in rows] == [
        row["body"] for row in consumed(message_log()) if row["index"] > 30
    ]
    assert {*rows[0]} == {"queue_offset", "body"}


def test_a_batch_that_begins_with_a_gone_entry_goes_to_the_end(tmp_path: Path) -> None:
    """Copies of its messages may lie anywhere in what there is; a later batch is short."""
    store, log = Store.open(f"file://{tmp_path}/store"), message_log()
    states = [(BrokerState(), 20), (BrokerState(), 38)]
    for state, applied in states:
        for entry in log.entries[:applied]:
            state.apply(entry)
    bases = [(state, first) for (state, _), first in zip(states, (11, 35), strict=True)]
    based_backup(store, checked_entries(log)[:40], [(11, 30), (35, 40)], bases)
    reader = _reader(store)
    start = reader.initialOffset()

    ends = [
        reader.latestOffset(start | {"index": at}, ReadMaxRows(3))["index"]
        for at in (0, 9, 10, 29, 31, 34)
    ]

    assert start == {"index": 0, "first": 11}
    assert ends == [40, 40, 13, 32, 40, 37]


def test_running_nodes_are_a_stream(tmp_path: Path) -> None:
    """Of what they have committed; offsets of queues are found by a replay."""
    directory = data_directory(tmp_path / "node", checked_entries(message_log()))
    with export_server(directory) as address:
        reader = _opened(endpoint=address)
        start = reader.initialOffset() | {"index": 20}
        end = reader.latestOffset(start, ReadAllAvailable())

        rows = _rows(reader, start, end)

    assert rows == [row for row in consumed(message_log()) if row["index"] > 20]


def test_a_run_until_now_reads_no_further(store: Store) -> None:
    """Trigger availableNow ends, however fast backups are made."""
    reader = _reader(store)
    reader.prepareForTriggerAvailableNow()
    _grow(store)

    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["index"] == 30


def test_entries_that_are_gone_before_they_were_read_are_told(store: Store) -> None:
    """A stream never leaves messages out without a word."""
    reader = _reader(store)
    start = reader.initialOffset()

    with pytest.raises(RangeNotAvailable, match=r"only \[1, 30\] are there"):
        reader.partitions(start, start | {"index": 31})
    with pytest.raises(RangeNotAvailable, match=r"goes on at entries \[0, 30\]"):
        reader.partitions({"index": -1, "first": 0}, start | {"index": 30})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lastIndex": "3"}, "a stream has no option lastIndex"),
        ({"manifest": "1"}, "a stream has no option manifest"),
        ({"view": "entries"}, "only view messages is a stream"),
        ({"maxEntriesPerTrigger": "many"}, "maxEntriesPerTrigger must be a number"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_by_name(options: dict[str, str], named: str) -> None:
    """Before anything is read."""
    source = LedgerDataSource({"store": "file:///nowhere", **options})

    with pytest.raises(InvalidArgument, match=named):
        source.streamReader(source.schema())


def test_a_table_has_no_option_of_streams(store: Store) -> None:
    """A batch that was thought to be limited would not be."""
    source = LedgerDataSource({"store": store.url, "maxEntriesPerTrigger": "4"})

    with pytest.raises(InvalidArgument, match="only a stream"):
        source.reader(source.schema())


@pytest.mark.long
def test_a_stopped_query_goes_on_from_its_checkpoint(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """It fails in a batch, and another one goes on while backups grow: each message is there once.

    What a batch wrote before it failed is written again, under the same number.
    """
    written: dict[int, list[Any]] = {}

    def failing_at(number: int) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, at: int) -> None:
            written[at] = [row.asDict() for row in batch.collect()]
            if at == number:
                raise OSError("the disk is full")

        return write

    def run(write: Callable[[DataFrame, int], None]) -> None:
        stream = spark.readStream.format("dledger").option("maxEntriesPerTrigger", 8)
        frame = stream.load(store.url)
        to = frame.writeStream.foreachBatch(write).option("checkpointLocation", f"{tmp_path}/check")
        to.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run(failing_at(2))
    _grow(store)
    run(failing_at(-1))

    rows = [row | {"body": bytes(row["body"])} for batch in written.values() for row in batch]
    assert sorted(rows, key=place) == consumed(message_log())
    assert catalog.load(store).last_index > 30
    assert len(written) > 5
