"""View `current` in Spark: the newest message of each key, out of a disk and out of a backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger_pipeline.archive.manifest import told_time
from dledger_pipeline.errors import TargetNotAvailable
from dledger_pipeline.jobs.query import QueryRequest, query
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import backup, data_directory
from tests.pipeline.message_logs import checked_entries, consumed, message_log

LOG = message_log()
AS_OF_MS = 1_020_000


def newest(until_ms: int) -> dict[tuple[str, str], int]:
    """Return of each key where its newest message is."""
    rows = [row for row in consumed(LOG) if row["stored_at_ms"] <= until_ms]
    rows.sort(key=lambda row: (row["index"], row["queue_id"], row["queue_offset"]))
    return {(row["topic"], key): row["queue_offset"] for row in rows for key in row["keys"]}


def test_a_disk_is_read_as_a_table_by_key(spark: SparkSession, tmp_path: Path) -> None:
    """Of the topics that are named, and of one moment; columns and rows are chosen as elsewhere."""
    directory = data_directory(tmp_path / "node", checked_entries(LOG))
    options = {"view": "current", "data": str(directory), "topics": "orders, prices"}
    options["columns"] = "topic,key,queue_offset"
    reader = spark.read.format("dledger").options(**options)

    found = {(topic, key): offset for topic, key, offset in reader.load().collect()}
    earlier = reader.option("asOf", told_time(AS_OF_MS)).option("topic", "prices").load().collect()

    assert found == newest(1 << 60)
    expected = {each: offset for each, offset in newest(AS_OF_MS).items() if each[0] == "prices"}
    assert {(topic, key): offset for topic, key, offset in earlier} == expected


def test_a_statement_is_about_what_is_current_in_compacted_topics(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """There are none here: the table has no row; and no moment that the backup does not know."""
    assert spark.version  # the command joins this session
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, checked_entries(LOG), (30, 100))
    sql = "SELECT count(*) AS rows, max(key) AS newest FROM current WHERE topic = 'orders'"
    lines: list[str] = []

    query(QueryRequest(store=store, group_id=None, sql=sql), lines.append)

    assert [json.loads(line) for line in lines] == [{"rows": 0, "newest": None}]
    with pytest.raises(TargetNotAvailable, match="is before the first message"):
        query(
            QueryRequest(store=store, group_id=None, sql=sql, to_time_ms=AS_OF_MS - 10**6),
            lines.append,
        )
