"""The compaction job: a backup's messages without the superseded ones, as objects of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dledger.broker.commands import CreateTopic
from dledger.broker.message import Message
from dledger_pipeline.archive import catalog, compacted
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.errors import (
    CorruptManifest,
    CorruptObject,
    NoBackup,
    ObjectMissing,
    SparkFailed,
)
from dledger_pipeline.jobs.compact import CompactRequest, compact
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.entry_batches import produced
from tests.pipeline.logs import GROUP_ID, backup, contents, flip
from tests.pipeline.message_logs import checked_entries, consumed, message_log, place


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a backup of `message_log` in three objects."""
    return _backed_up(tmp_path, message_log())


def _backed_up(directory: Path, log: Any) -> Store:
    store = Store.open(f"file://{directory}/store")
    backup(store, checked_entries(log), (10, 20, len(log.entries) - 30))
    return store


ROOT = Path(__file__).parents[2]
BOTH = pytest.mark.parametrize("runner", [RunnerName.SPARK, RunnerName.PLAIN])


def _compact(store: Store, *topics: str, runner: RunnerName = RunnerName.AUTO) -> dict[str, Any]:
    request = CompactRequest(store=store, topics=topics, runner=runner)
    return compact(request, Progress("compact"))


def _read(spark: SparkSession, store: Store, **options: str) -> list[dict[str, Any]]:
    frame = spark.read.format("dledger").options(store=store.url, **options).load()
    rows = [row.asDict() | {"body": bytes(row["body"])} for row in frame.collect()]
    return sorted(rows, key=place)


def _by_dict(topic: str) -> list[dict[str, Any]]:
    """Compact slowly and obviously: the last one to write a dict's entry is the newest."""
    rows = consumed(message_log())
    last: dict[tuple[int, str], Any] = {}
    for row in rows:
        if row["topic"] == topic:
            last |= {(row["queue_id"], key): place(row) for key in row["keys"]}
    stays = set(last.values())
    return [row for row in rows if row["topic"] != topic or not row["keys"] or place(row) in stays]


def test_superseded_messages_of_the_topics_asked_for_are_gone(
    spark: SparkSession, store: Store
) -> None:
    """Others are untouched, so is the backup; a second run finds the same objects."""
    before = contents(store)

    result = _compact(store, "prices", runner=RunnerName.SPARK)
    after = contents(store)
    again = _compact(store, "prices", "prices", runner=RunnerName.SPARK)

    expected = _by_dict("prices")
    assert 0 < len(expected) < len(consumed(message_log()))
    assert _read(spark, store, view="compacted", topics="prices") == expected
    assert result["messages"] == len(expected)
    assert result["dropped"] == len(consumed(message_log())) - len(expected)
    assert result["objects"] == 3
    assert before.items() <= after.items()
    assert (again, contents(store)) == (result, after)


def test_a_backup_is_read_as_messages(spark: SparkSession, store: Store) -> None:
    """The source shows of a store what it shows of a disk: what consumers saw."""
    assert _read(spark, store, groupId=GROUP_ID) == consumed(message_log())


@BOTH
def test_a_flipped_object_of_the_backup_is_named(
    spark: SparkSession, store: Store, runner: RunnerName
) -> None:
    """Its hash is checked, and nothing is written or published."""
    damaged = catalog.load(store).files[1].name
    flip(store, f"{GROUP_ID}/{damaged}")
    before = contents(store)

    with pytest.raises(CorruptObject, match=damaged):
        _compact(store, "prices", runner=runner)

    assert contents(store) == before


@BOTH
def test_an_error_in_a_task_is_what_the_task_raised(
    spark: SparkSession,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runner: RunnerName,
) -> None:
    """Not a stack trace of Spark's; and nothing is published."""

    def then_damaged(store: Store, manifest: Manifest) -> list[MessageRange]:
        ranges = list(archived_messages(store, manifest))
        for each in (tmp_path / "store").rglob("*.parquet"):
            each.unlink()
        return ranges

    monkeypatch.setattr("dledger_pipeline.jobs.compact.archived_messages", then_damaged)

    with pytest.raises(ObjectMissing, match=r"^object .*parquet is missing"):
        _compact(store, "orders", runner=runner)

    assert not list(store.list(f"{GROUP_ID}/compacted"))


@pytest.mark.found
def test_a_message_that_cannot_be_told_fails_no_reader(spark: SparkSession, tmp_path: Path) -> None:
    """Neither the table that Spark shows nor the compaction has it; found: S7, p02."""
    log = message_log()
    expected = len(consumed(log))
    command = produced(*(Message(message_id=i, body=b"x") for i in ("abc", "d")), topic="orders")
    log.append(command.replace(b"abc", b"\xff\xfe\xfd"))
    store = _backed_up(tmp_path, log)

    rows = _read(spark, store)
    result = _compact(store, "prices")

    assert len(rows) == expected + 1
    assert result["messages"] + result["dropped"] == len(rows)


def test_a_compaction_is_whole_or_an_error_names_what_is_not(
    spark: SparkSession, store: Store
) -> None:
    """A compaction that was never made, a flipped object, a damaged manifest."""
    result = _compact(store, "orders")
    found = compacted.load(store, GROUP_ID, ("orders",))
    part = compacted.CompactedRange(store=store, group_id=GROUP_ID, file=found.files[0])
    flip(store, f"{GROUP_ID}/{found.files[0].name}")
    store.put(f"{GROUP_ID}/{result['manifest']}", b'{"format": 1}')

    with pytest.raises(NoBackup, match="no compaction of the topics prices"):
        compacted.load(store, GROUP_ID, ("prices",))
    with pytest.raises(CorruptObject, match=found.files[0].name):
        list(part.read())
    with pytest.raises(CorruptManifest, match=str(result["manifest"])):
        compacted.load(store, GROUP_ID, ("orders",))


@pytest.mark.usefixtures("spark")
def test_a_topic_without_keys_is_told(store: Store) -> None:
    """A misspelt name would be compacted to no effect, in silence."""
    said: list[str] = []

    compact(
        CompactRequest(store=store, topics=("prices", "prizes")), Progress("compact", said.append)
    )

    assert "topic 'prizes' has no message with a key in this backup: all its messages stay" in said
    assert not any("'prices'" in line for line in said)


def test_both_runners_write_the_same_objects(spark: SparkSession, tmp_path: Path) -> None:
    """Byte for byte, the manifest too, and both say after each range of both runs how far it is."""
    written, said = {}, {}
    for runner in (RunnerName.SPARK, RunnerName.PLAIN):
        store = _backed_up(tmp_path / runner, message_log())
        said[runner] = list[str]()
        topics = ("orders", "prices")
        compact(
            CompactRequest(store=store, topics=topics, runner=runner),
            Progress("compact", said[runner].append),
        )
        written[runner] = contents(store)

    assert written[RunnerName.PLAIN] == written[RunnerName.SPARK]
    assert sum("/compacted/" in name for name in written[RunnerName.PLAIN]) == 4
    for lines in said.values():
        steps = [line.split(" of 6 ranges: ")[0] for line in lines if " of 6 ranges: " in line]
        assert steps == [str(n) for n in range(1, 7)]


def test_a_plain_compaction_needs_neither_spark_nor_java(store: Store, tmp_path: Path) -> None:
    """A small one, with no option that says so, where Spark is not installed."""
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from dledger_pipeline.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    path = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))

    done = subprocess.run(
        [sys.executable, "-c", program, "compact", "--store", store.url, "--topics", "prices"],
        env={**os.environ, "PYTHONPATH": path, "PATH": str(tmp_path), "JAVA_HOME": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "local worker" in done.stderr
    assert compacted.load(store, GROUP_ID, ("prices",)).messages == len(_by_dict("prices"))


def test_the_driver_is_sent_places_not_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Keys of 20 MB in all need not fit its maxResultSize, 8 bytes each must; if not, it is named.

    Spark reads the setting before each run of tasks, so that a test may change it.
    """
    log = Log()
    log.append(CreateTopic(name="prices", type="NORMAL", queues=1).encode())
    for n in range(40):
        messages = [
            Message(message_id=f"{n}-{row}", body=b"x", keys=(f"{n}-{row} ".ljust(1000, "k"),))
            for row in range(500)
        ]
        log.append(produced(*messages, topic="prices", queue_id=0))
    store = Store.open(f"file://{tmp_path}/many")
    backup(store, checked_entries(log), (20, 21))
    conf = spark.sparkContext._jsc.sc().conf()
    setting = "spark.driver.maxResultSize"
    before = conf.get(setting, "1g")
    try:
        conf.set(setting, "1m")
        result = _compact(store, "prices", runner=RunnerName.SPARK)
        conf.set(setting, "64k")
        with pytest.raises(SparkFailed, match=r"spark\.driver\.maxResultSize \(64\.0 KiB\)"):
            _compact(store, "prices", runner=RunnerName.SPARK)
    finally:
        conf.set(setting, before)

    assert (result["messages"], result["dropped"]) == (20_000, 0)
