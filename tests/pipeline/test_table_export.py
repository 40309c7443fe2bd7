"""Exports: a table has the messages of every backup once, whatever ran, failed or came between."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from dledger.broker.commands import CreateTopic
from dledger.broker.message import Message
from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog
from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import StoreUnavailable, TableError, VersionConflict
from dledger_pipeline.jobs.export import ExportRequest, export
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.columns import Columns, columns_of
from dledger_pipeline.tables.hive_table import HiveTable
from dledger_pipeline.tables.opening import Target, open_table
from dledger_pipeline.tables.table import Begun, Owner, TableFormat
from tests.broker.log import Log
from tests.pipeline.entry_batches import produced
from tests.pipeline.logs import GROUP_ID, backup
from tests.pipeline.message_logs import checked_entries, consumed, place
from tests.pipeline.s3_server import S3Server

FORMATS = pytest.mark.parametrize("table_format", list(TableFormat))
OTHERS = pytest.mark.parametrize("table_format", [TableFormat.ICEBERG, TableFormat.DELTA])
HOUR_MS = 3_600_000
TOPICS = ("orders", "a%b-c")


@pytest.fixture(scope="module")
def log() -> Log:
    """Return a log of two topics over three days, an entry each five hours."""
    log = Log()
    for name in TOPICS:
        log.append(CreateTopic(name=name, type="NORMAL", queues=2).encode())
    for n in range(14):
        log.now_ms += 5 * HOUR_MS
        messages = [
            Message(
                message_id=f"é-{n}-{row}",
                body=f"body {n} {row}".encode(),
                tag="red" if row else "",
                keys=("k", f"key-{n}")[:row],
                properties={"n": str(n)} if row else {},
                born_at_ms=n,
            )
            for row in range(3)
        ]
        log.append(produced(*messages, topic=TOPICS[n % 2], queue_id=-1, client="c", host="h"))
    return log


def _backed_up(store: Store, log: Log, count: int, size: int = 4) -> None:
    """Publish a backup of the first entries, in ranges of so many."""
    rest = count % size
    backup(store, checked_entries(log)[:count], [size] * (count // size) + [rest] * bool(rest))


class Stores:
    """The store of the backups, and the place of a table."""

    def __init__(self, directory: Path, table_format: TableFormat) -> None:
        self.backups = Store.open(f"file://{directory}/backups")
        self.to = directory / "lake"
        self.format = table_format

    def export(self, **changes: Any) -> dict[str, Any]:
        """Export the newest backup."""
        target = Target(store=Store.open(f"file://{self.to}"), format=self.format)
        request = ExportRequest(store=self.backups, target=changes.pop("target", target), **changes)
        return export(request, Progress("export"))

    def rows(self) -> list[dict[str, Any]]:
        """Return what another engine reads, in the columns of messages."""
        rows = [_message_row(row) for row in READERS[self.format](self.to).to_pylist()]
        return sorted(rows, key=place)


def _read_hive(directory: Path) -> pa.Table:
    files = f"{directory}/topic=*/date=*/*.parquet"
    return duckdb.read_parquet(files, hive_partitioning=True).to_arrow_table()


def _read_delta(directory: Path) -> pa.Table:
    return DeltaTable(directory).to_pyarrow_table()


def _read_iceberg(directory: Path) -> pa.Table:
    opened = SqlCatalog("dledger", uri=f"sqlite:///{directory}/catalog.db")
    return opened.load_table("dledger.messages").scan().to_arrow()


READERS: dict[TableFormat, Callable[[Path], pa.Table]] = {
    TableFormat.PARQUET: _read_hive,
    TableFormat.DELTA: _read_delta,
    TableFormat.ICEBERG: _read_iceberg,
}


def _message_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as view messages has it, after checking what a table adds."""
    day = pd.Timestamp(row["stored_at_ms"], unit="ms").date()
    assert (row.pop("date"), row.pop("_error")) == (day, None)
    return row | {"properties": dict(row["properties"])}


@FORMATS
def test_each_backup_adds_what_is_new(
    log: Log, tmp_path: Path, table_format: TableFormat, inline_tasks: None
) -> None:
    """Its ranges may be cut anew, and begin before what the table has; no messages add none."""
    stores = Stores(tmp_path, table_format)
    results = []
    for count in (2, 7, len(log.entries), len(log.entries)):
        _backed_up(stores.backups, log, count, size=count)
        results.append(stores.export())

    assert stores.rows() == consumed(log)
    assert [each["messages"] for each in results] == [0, 15, 27, 0]
    assert [(each["firstIndex"], each["lastIndex"]) for each in results[2:]] == [(8, 16), (17, 16)]


def test_any_sequence_of_backups_adds_each_message_once(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """The next entry behind the last one is the first that is new."""
    rng = random.Random(1)
    for run in range(2):
        stores = Stores(tmp_path / str(run), TableFormat.PARQUET)
        for count in sorted(rng.sample(range(3, 17), 5)):
            _backed_up(stores.backups, log, count, size=rng.randint(2, 6))
            stores.export()
            assert stores.rows() == [r for r in consumed(log) if r["index"] <= count]


class _Dying:
    """Objects of a store whose process dies once it has made so many writes."""

    def __init__(self, objects: Any, writes: int) -> None:
        self._objects, self.left = objects, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def create(self, name: str, data: memoryview) -> None:
        self._objects.create(name, data)
        self.left -= 1
        if self.left == 0:
            raise StoreUnavailable("died")


@FORMATS
def test_a_run_that_died_after_any_write_adds_each_message_once(
    log: Log, tmp_path: Path, table_format: TableFormat, inline_tasks: None
) -> None:
    """The next one has a newer backup, cut otherwise; a wildcard sees nothing twice."""
    older, newer = (Stores(tmp_path / name, table_format) for name in ("older", "newer"))
    for stores, sizes in ((older, [(11, 6)]), (newer, [(11, 6), (16, 5)])):
        for count, size in sizes:
            _backed_up(stores.backups, log, count, size)
    step = 1 if table_format is TableFormat.PARQUET else 3  # what is no commit is alike
    for writes in range(1, 100, step):
        older.to = newer.to = tmp_path / str(writes)
        store = Store.open(f"file://{older.to}")
        dying = store._objects = _Dying(store._objects, writes)
        with suppress(StoreUnavailable):
            older.export(target=Target(store=store, format=table_format))

        newer.export()

        assert newer.rows() == consumed(log)
        if dying.left > 0:
            break
    assert writes > 4


def test_files_of_a_killed_run_of_another_version_are_removed(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """They have the same messages under other names. Those of earlier exports stay."""
    stores = Stores(tmp_path, TableFormat.PARQUET)
    for count in (8, 12):
        _backed_up(stores.backups, log, count)
        stores.export()
    (stores.to / "_dledger/0000000002.json").unlink()
    made = next(stores.to.glob("topic=orders/date=*/*0012-*.parquet"))
    made.rename(made.with_name(f"{made.stem[:-16]}{'0' * 16}.parquet"))

    stores.export()

    assert stores.rows() == [row for row in consumed(log) if row["index"] <= 12]


def test_a_run_that_comes_late_removes_nothing_of_later_ones(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """It does what another run had begun, while that one ends and a third adds more."""
    stores = Stores(tmp_path, TableFormat.PARQUET)
    _backed_up(stores.backups, log, 8)
    stores.export()
    done = stores.to / "_dledger/0000000001.json"
    content = done.read_bytes()
    done.unlink()
    owner = Owner(group_id=GROUP_ID, topics=(), columns=Columns().digest())
    late = HiveTable(Store.open(f"file://{stores.to}"), owner)
    done.write_bytes(content)
    _backed_up(stores.backups, log, 16)
    stores.export()

    late._remove_left(Begun(number=1, last_index=8, first_ms=0), json.loads(content)["files"])

    assert stores.rows() == consumed(log)


@pytest.mark.parametrize("gone", [True, False])
def test_an_export_whose_backup_is_gone_is_given_up(
    log: Log, tmp_path: Path, inline_tasks: None, gone: bool
) -> None:
    """A run was killed, and its manifest is deleted, or that of a new store has its number.

    Its files go, too.
    """
    stores = Stores(tmp_path, TableFormat.PARQUET)
    _backed_up(stores.backups, log, 8)
    stores.export()
    (stores.to / "_dledger/0000000001.json").unlink()
    if gone:
        _backed_up(stores.backups, log, 16, size=5)
        stores.backups.delete(f"{GROUP_ID}/{catalog.load(stores.backups, number=1).name}")
    else:
        stores.backups = Store.open(f"file://{tmp_path}/another")
        _backed_up(stores.backups, log, 16, size=5)

    stores.export()

    assert stores.rows() == consumed(log)


@FORMATS
def test_of_two_runs_at_once_one_adds_the_messages(
    log: Log,
    tmp_path: Path,
    table_format: TableFormat,
    inline_tasks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other is told to try again, or finds that it would have added the same."""
    stores = Stores(tmp_path, table_format)
    _backed_up(stores.backups, log, 16)

    def opened_before_another_run(*arguments: Any) -> Any:
        table = open_table(*arguments)
        with monkeypatch.context() as once:
            once.setattr("dledger_pipeline.jobs.export.open_table", open_table)
            stores.export()
        return table

    monkeypatch.setattr("dledger_pipeline.jobs.export.open_table", opened_before_another_run)
    if table_format is TableFormat.PARQUET:
        stores.export()
    else:
        with pytest.raises(VersionConflict):
            stores.export()

    assert stores.rows() == consumed(log)


def test_a_run_that_was_taken_for_killed_loses_nothing(
    log: Log, tmp_path: Path, inline_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder: it commits while another run, of a newer backup, does what it had begun."""
    stores = Stores(tmp_path, TableFormat.PARQUET)
    _backed_up(stores.backups, log, 11)
    commit, remove_left, slow = HiveTable.commit, HiveTable._remove_left, []

    def slow_commit(*arguments: Any) -> None:
        slow.append(arguments)
        raise StoreUnavailable("slow")

    def while_the_slow_one_commits(*arguments: Any) -> None:
        remove_left(*arguments)
        commit(*slow[0])

    with monkeypatch.context() as at_first:
        at_first.setattr(HiveTable, "commit", slow_commit)
        with pytest.raises(StoreUnavailable):
            stores.export()
    _backed_up(stores.backups, log, 16, size=5)
    monkeypatch.setattr(HiveTable, "_remove_left", while_the_slow_one_commits)

    stores.export()

    assert stores.rows() == consumed(log)


def test_a_table_goes_on_behind_what_others_did_to_it(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """Delta: merged files and a vacuum; the last entry is in the table's log for ever."""
    stores = Stores(tmp_path, TableFormat.DELTA)
    for count in (7, 16):
        _backed_up(stores.backups, log, count)
        stores.export()
        DeltaTable(stores.to).optimize.compact()

    assert stores.rows() == consumed(log)


def test_an_iceberg_table_that_was_rolled_back_gets_what_it_lost(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """What counts is the snapshot that is current."""
    stores = Stores(tmp_path, TableFormat.ICEBERG)
    for count in (7, 11):
        _backed_up(stores.backups, log, count)
        stores.export()
    found = SqlCatalog("dledger", uri=f"sqlite:///{stores.to}/catalog.db")
    table = found.load_table("dledger.messages")
    first, _ = table.snapshots()
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    _backed_up(stores.backups, log, 16)

    stores.export()

    assert stores.rows() == consumed(log)


def test_an_iceberg_table_whose_snapshots_expired_gets_nothing_twice(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """Another writer's snapshot is the only one that is left."""
    stores = Stores(tmp_path, TableFormat.ICEBERG)
    _backed_up(stores.backups, log, 7)
    stores.export()
    found = SqlCatalog("dledger", uri=f"sqlite:///{stores.to}/catalog.db")
    table = found.load_table("dledger.messages")
    table.append(table.scan().to_arrow().slice(0, 0))
    ours, _ = table.snapshots()
    table.maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
    _backed_up(stores.backups, log, 16)

    stores.export()

    assert stores.rows() == consumed(log)


@FORMATS
def test_a_table_is_of_one_group_its_topics_and_columns(
    log: Log, tmp_path: Path, table_format: TableFormat, inline_tasks: None
) -> None:
    """Others would need to know which entry they had come to."""
    stores = Stores(tmp_path, table_format)
    _backed_up(stores.backups, log, 16)
    stores.export(topics=("orders",))

    with pytest.raises(InvalidArgument, match="export into a table of its own"):
        stores.export()
    with pytest.raises(InvalidArgument, match="export into a table of its own"):
        stores.export(topics=("orders",), columns=Columns(has_body=False))

    assert stores.rows() == [row for row in consumed(log) if row["topic"] == "orders"]


def test_only_messages_that_were_stored_since_are_added(
    log: Log, tmp_path: Path, inline_tasks: None
) -> None:
    """Of several topics, too, and none of the others when a later run is without."""
    stores = Stores(tmp_path, TableFormat.PARQUET)
    _backed_up(stores.backups, log, 16)
    since = next(row["stored_at_ms"] for row in consumed(log) if row["index"] == 9)

    stores.export(topics=("orders", "prices"), first_ms=since)
    stores.export(topics=("orders", "prices"))

    expected = [row for row in consumed(log) if row["stored_at_ms"] >= since]
    assert stores.rows() == [row for row in expected if row["topic"] == "orders"]


@FORMATS
def test_columns_of_json_are_columns_of_every_table(
    tmp_path: Path, table_format: TableFormat, inline_tasks: None
) -> None:
    """Beside the others, or without the body."""
    log = Log()
    log.append(CreateTopic(name="t", type="NORMAL", queues=1).encode())
    body = {"price": 1.5, "at": 1, "lines": [{"sku": "a"}]}
    bodies = [json.dumps(body).encode(), b"else"]
    log.append(produced(*(Message(message_id=str(b), body=b) for b in bodies), topic="t"))
    stores = Stores(tmp_path, table_format)
    _backed_up(stores.backups, log, 2)

    fields = [
        {"name": "price", "type": "double"},
        {"name": "at", "type": "timestamp"},
        {"name": "lines", "type": {"list": {"struct": [{"name": "sku", "type": "string"}]}}},
    ]
    columns = columns_of("schema.json", json.dumps({"columns": fields}), has_body=False)

    result = stores.export(columns=columns)

    rows = sorted(READERS[table_format](stores.to).to_pylist(), key=place)
    assert [row["price"] for row in rows] == [1.5, None]
    assert rows[0]["lines"] == [{"sku": "a"}]
    assert "the body is not JSON" in rows[1]["_error"]
    assert "body" not in rows[0]
    assert result["bodiesNotFitting"] == 1


@OTHERS
def test_a_missing_library_is_named(
    tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the extra that has it; nothing else needs it."""
    library = {TableFormat.ICEBERG: "pyiceberg", TableFormat.DELTA: "deltalake"}[table_format]
    for name in [*sys.modules]:
        if name.startswith(("dledger_pipeline.tables.delta", "dledger_pipeline.tables.ice")):
            monkeypatch.delitem(sys.modules, name)
    for name in [*(n for n in sys.modules if n.split(".")[0] == library), library]:
        monkeypatch.setitem(sys.modules, name, None)
    target = Target(store=Store.open(f"file://{tmp_path}"), format=table_format)

    with pytest.raises(InvalidArgument, match=rf"needs the package {library}.*dledger\[export\]"):
        open_table(target, Owner(group_id="g", topics=(), columns=""), Columns())


def test_an_iceberg_table_in_a_bucket_needs_a_catalogue() -> None:
    """A file beside it, as in a directory, could be changed by one machine only."""
    store = Store.open("memory:///lake")
    target = Target(store=store, format=TableFormat.ICEBERG)

    with pytest.raises(InvalidArgument, match=r"needs a catalogue.*--catalog NAME"):
        open_table(target, Owner(group_id="g", topics=(), columns=""), Columns())


@OTHERS
def test_what_is_no_table_is_told_in_one_sentence(
    tmp_path: Path, table_format: TableFormat
) -> None:
    """In the words of its library."""
    for name in ("_delta_log", "catalog.db"):
        (tmp_path / name).write_bytes(b"\0" * 5000)
    target = Target(store=Store.open(f"file://{tmp_path}"), format=table_format)

    with pytest.raises(TableError, match=f"^{table_format.capitalize()} table"):
        open_table(target, Owner(group_id="g", topics=(), columns=""), Columns())


def test_an_export_from_the_shell(
    log: Log, tmp_path: Path, inline_tasks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line of JSON, progress beside it, and a target that is the store is refused."""
    stores = Stores(tmp_path, TableFormat.PARQUET)
    _backed_up(stores.backups, log, 16)
    (tmp_path / "s.json").write_text(json.dumps({"columns": [{"name": "a", "type": "int"}]}))
    command = ["export", "--store", stores.backups.url, "--json", "--runner", "plain"]
    options = ["--topics", "orders", "--schema", f"{tmp_path}/s.json", "--no-body"]

    code = main([*command, "--to", f"file://{stores.to}", *options])
    out, err = capsys.readouterr()
    refused = main([*command, "--to", stores.backups.url + "/"])

    result = json.loads(out)
    assert (code, result["messages"], result["bodiesNotFitting"]) == (0, 21, 21)
    assert "added 21 messages in 5 files, up to entry 16" in err
    assert refused == 1
    assert "give the table a place of its own" in capsys.readouterr().err


def test_pandas_reads_the_folder(log: Log, tmp_path: Path, inline_tasks: None) -> None:
    """Topic and day come from the folders; what we keep beside them is left out."""
    stores = Stores(tmp_path, TableFormat.PARQUET)
    _backed_up(stores.backups, log, 16)
    stores.export()

    frame = pd.read_parquet(stores.to, filters=[("date", "=", "1970-01-02")])

    day = [row for row in consumed(log) if row["stored_at_ms"] // (24 * HOUR_MS) == 1]
    assert sorted(frame["message_id"]) == sorted(row["message_id"] for row in day)
    assert {*frame["topic"]} == {row["topic"] for row in day}


@pytest.mark.long
def test_spark_exports_and_reads_what_processes_do(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """The same files byte for byte, and all messages by Spark's own reader of Parquet."""
    contents = []
    for runner in (RunnerName.SPARK, RunnerName.PLAIN):
        stores = Stores(tmp_path / runner, TableFormat.PARQUET)
        _backed_up(stores.backups, log, 16)
        stores.export(runner=runner)
        contents.append(
            {p.relative_to(stores.to): p.read_bytes() for p in stores.to.rglob("*.parquet")}
        )

    frame = spark.read.parquet(str(stores.to))
    rows = [row.asDict() | {"body": bytes(row["body"])} for row in frame.collect()]

    assert contents[0] == contents[1]
    assert sorted(map(_message_row, rows), key=place) == consumed(log)
    assert frame.filter("date = '1970-01-02' AND topic = 'a%b-c'").count() == 6


@FORMATS
@pytest.mark.usefixtures("inline_tasks")
def test_a_table_may_be_in_a_bucket(
    log: Log,
    tmp_path: Path,
    s3: S3Server,
    table_format: TableFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of any S3 server: libraries are told where it is, and read the keys from the environment."""
    stores = Stores(tmp_path, table_format)
    url = s3.bucket(f"lake-{table_format}")
    keys = {
        "AWS_ACCESS_KEY_ID": s3.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": s3.credentials.secret_access_key,
        "AWS_REGION": "us-east-1",
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/catalog.db",
        "PYICEBERG_CATALOG__LAKE__S3__ENDPOINT": s3.endpoint,
    }
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    store = Store.open(url, s3.endpoint, allow_http=True)
    target = Target(store=store, format=table_format, catalog="lake", name="lake.messages")
    for count in (7, 16):
        _backed_up(stores.backups, log, count)
        stores.export(target=target)

    if table_format is TableFormat.PARQUET:
        server = fs.S3FileSystem(endpoint_override=s3.endpoint, region="us-east-1")
        found = pq.read_table(url.removeprefix("s3://"), filesystem=server)
    elif table_format is TableFormat.DELTA:
        options = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true"}
        found = DeltaTable(url, storage_options=options).to_pyarrow_table()
    else:
        found = load_catalog("lake").load_table("lake.messages").scan().to_arrow()

    rows = [{**row, "date": date.fromisoformat(str(row["date"]))} for row in found.to_pylist()]
    assert sorted(map(_message_row, rows), key=place) == consumed(log)
