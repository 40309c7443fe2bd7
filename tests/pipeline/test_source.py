"""``spark.read.format("dledger")``: a log as a table, from wherever it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument
from dledger.files.files import RealFiles
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base
from dledger.store.identity import LOG_DIRECTORY, load_identity
from dledger.store.snapshot_file import Snapshot
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.source import LedgerDataSource, ReadOptions
from tests.pipeline.logs import GROUP_ID, backup, batches, data_directory
from tests.pipeline.message_logs import checked_entries, consumed, message_log, place


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a node's data directory of several segments with `message_log`."""
    directory = tmp_path_factory.mktemp("source") / "node"
    return data_directory(directory, checked_entries(message_log()))


def _read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("dledger").options(**options).load()


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() | {"body": bytes(row["body"])} for row in frame.collect()]
    return sorted(rows, key=place)


def test_messages_on_a_disk_are_those_that_consumers_saw(
    spark: SparkSession, directory: Path
) -> None:
    """Every message once, at its place, with all its fields, read by several tasks."""
    frame = _read(spark, data=str(directory))

    assert len(list(directory.glob("log/*.seg"))) > 1
    assert _rows(frame) == consumed(message_log())


def test_entries_are_the_log_itself(spark: SparkSession, directory: Path) -> None:
    """View entries has each record's header and body, also within a range."""
    frame = _read(spark, data=str(directory), view="entries", firstIndex="5", lastIndex="30")

    columns = ("index", "term", "type", "body")
    found = [tuple(row[:4]) for row in frame.select(*columns).collect()]

    entries = checked_entries(message_log())[4:30]
    assert found == [(each.index, each.term, each.kind, each.data) for each in entries]


def test_messages_can_be_asked_in_sql(spark: SparkSession, directory: Path) -> None:
    """A view over the source answers SQL, and a range leaves the places as they are."""
    _read(spark, data=str(directory), firstIndex="20").createOrReplaceTempView("messages")

    found = spark.sql(
        "SELECT topic, max(queue_offset) m FROM messages GROUP BY topic ORDER BY topic"
    )

    rows = [row for row in consumed(message_log()) if row["index"] >= 20]
    expected = {
        t: max(r["queue_offset"] for r in rows if r["topic"] == t) for t in ("orders", "prices")
    }
    assert {row.topic: row.m for row in found.collect()} == expected
    later = spark.sql(
        "SELECT count(*) FROM messages WHERE topic = 'orders' UNION ALL "
        "SELECT count(*) FROM messages WHERE index < 30"
    )
    counts = [
        sum(row["topic"] == "orders" for row in rows),
        sum(row["index"] < 30 for row in rows),
    ]
    assert [row[0] for row in later.collect()] == counts
    assert found.count() == len(expected)


def test_a_damaged_segment_is_named(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    """A flipped byte fails the query with the segment and the byte offset of the record."""
    damaged = data_directory(tmp_path / "node", checked_entries(message_log()))
    segment = sorted(damaged.glob("log/*.seg"))[1]
    data = bytearray(segment.read_bytes())
    data[4096 + 40] ^= 1
    segment.write_bytes(data)

    with pytest.raises(
        PySparkException, match=rf"CorruptRecord: .*{segment.name} at byte offset 4096"
    ):
        _read(spark, data=str(damaged), view="entries").collect()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "one of the options store, data, endpoint"),
        ({"data": "x", "store": "file:///x"}, "given: store, data"),
        ({"path": "file:///x", "store": "file:///x"}, "the store is given twice"),
        ({"paths": '["file:///x", "file:///y"]'}, "load takes one URL"),
        ({"data": "x", "vew": "entries"}, "unknown option 'vew'"),
        ({"data": "x", "view": "rows"}, "option view must be one of"),
        ({"data": "x", "firstIndex": "0"}, "option firstIndex must be a number, 1 or more"),
        ({"data": "x", "lastIndex": "²"}, "option lastIndex must be a number"),
        ({"data": "x", "topics": "a"}, "option topics is for the views compacted and current"),
        ({"data": "x", "asOf": "2026-01-31T12:00:00Z"}, "asOf is for view current only"),
        ({"data": "x", "view": "current", "columns": "keg"}, "has no column 'keg'"),
        (
            {"data": "x", "view": "compacted", "topics": "a"},
            "view compacted needs the option store",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], reason: str) -> None:
    """What cannot be meant is refused before anything is read."""
    with pytest.raises(InvalidArgument, match=reason):
        ReadOptions.of(options)


def test_wrong_options_reach_the_user_of_spark(spark: SparkSession) -> None:
    """The typed error is in what Spark raises."""
    with pytest.raises(AnalysisException, match="InvalidArgument: unknown option 'vew'"):
        _read(spark, data="x", vew="entries")


def test_a_store_is_loaded_by_its_url(spark: SparkSession, tmp_path: Path) -> None:
    """As the files of other formats are; nothing was registered before."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, checked_entries(message_log()), (30, 100))

    frame = spark.read.format("dledger").load(store.url)

    assert _rows(frame) == consumed(message_log())


def test_a_schema_of_the_view_may_be_given(spark: SparkSession, directory: Path) -> None:
    """As DDL, which says nothing of nulls."""
    frame = _read(spark, data=str(directory))
    columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in frame.schema)

    given = spark.read.format("dledger").schema(columns).option("data", str(directory)).load()

    assert _rows(given) == _rows(frame)


def test_another_schema_is_refused_before_any_task(spark: SparkSession, directory: Path) -> None:
    """The error says what the columns are."""
    reader = spark.read.format("dledger").schema("topic string, body string")

    with pytest.raises(
        AnalysisException,
        match=r"InvalidArgument: the schema given, topic string, body string, is not .*"
        r"topic string, queue_id int, queue_offset bigint",
    ):
        reader.option("data", str(directory)).load().collect()


def _dropped(directory: Path, before: int) -> Path:
    """Return the directory of a node that dropped messages below an entry, and wrote a snapshot."""
    entries, files = checked_entries(message_log()), RealFiles()
    data_directory(directory, entries, segment_bytes=8192)
    identity = load_identity(files, directory)
    assert identity is not None
    kept = CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity, reserve_bytes=0)
    kept.drop_before(before)
    kept.close()
    chains = [0, *batches(entries)[0].column("chain_crc32c").to_pylist()]
    state = BrokerState()
    for entry in entries[:-5]:
        state.apply(entry)
    state.forget_before(before)
    snapshot = Snapshot(
        group_id=GROUP_ID,
        applied=Base(index=len(entries) - 5, term=1, chain=chains[-6]),
        base=Base(index=kept.first_index - 1, term=1, chain=chains[kept.first_index - 1]),
        memberships=(),
        body=state.encode(),
    )
    SnapshotFiles(files, directory / SNAPSHOT_DIRECTORY, reserve_bytes=0).save(snapshot)
    assert 1 < kept.first_index <= before
    return directory


def test_a_node_that_has_dropped_messages_shows_those_that_it_keeps(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its newest snapshot says where they are; a damaged one is left out."""
    directory = _dropped(tmp_path / "node", 25)
    (directory / SNAPSHOT_DIRECTORY / f"{10**19}.snap").write_bytes(b"torn")

    found = _rows(_read(spark, data=str(directory)))

    assert found == [row for row in consumed(message_log()) if row["index"] >= 25]


def test_without_its_snapshots_such_a_node_cannot_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A copy of the log alone; the error says what is missing."""
    directory = _dropped(tmp_path / "node", 25)
    shutil.rmtree(directory / SNAPSHOT_DIRECTORY)

    with pytest.raises(PySparkException, match=r"LogIncomplete: .*node's directory with snapshots"):
        _read(spark, data=str(directory)).collect()


def test_an_older_backup_is_read_by_its_number(spark: SparkSession, tmp_path: Path) -> None:
    """As `list` shows them; there is no such number of nodes or of compactions."""
    store, log = Store.open(f"file://{tmp_path}/store"), checked_entries(message_log())
    for count in (30, len(log)):
        backup(store, log, (count,))

    older = _rows(_read(spark, store=store.url, manifest="1"))
    entries = _read(spark, store=store.url, manifest="1", view="entries").count()

    assert (older, entries) == ([row for row in consumed(message_log()) if row["index"] <= 30], 30)
    assert len(_rows(_read(spark, store=store.url))) > len(older)
    for wrong in ({"data": "/d"}, {"store": "file:///s", "view": "compacted", "topics": "t"}):
        with pytest.raises(InvalidArgument, match="option manifest"):
            ReadOptions.of({**wrong, "manifest": "1"})


@pytest.mark.parametrize("refused", ["streamReader", "simpleStreamReader"])
def test_a_stream_is_refused_by_name(refused: str) -> None:
    """Spark would say that something is not implemented."""
    source = LedgerDataSource({"store": "file:///x"})

    with pytest.raises(InvalidArgument, match=r"no stream: read it by spark\.read"):
        getattr(source, refused)(source.schema())


def test_a_write_is_refused_by_name(spark: SparkSession) -> None:
    """Of a DataFrame and of a stream."""
    source = LedgerDataSource({"store": "file:///x"})

    with pytest.raises(InvalidArgument, match="read only"):
        source.streamWriter(source.schema(), overwrite=False)
    with pytest.raises(AnalysisException, match="InvalidArgument: the format dledger is read only"):
        spark.range(1).write.format("dledger").mode("append").save("file:///x")
