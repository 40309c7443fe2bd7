"""``dledger-pipeline query``: SQL about a backup from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger_pipeline.__main__ import main
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a backup of `message_log`."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, checked_entries(message_log()), (30, 100))
    return store


@pytest.mark.long
def test_each_row_of_the_answer_is_a_line_of_json(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its order, with nulls, nothing else on stdout; the result file says how many."""
    sql = (
        "SELECT queue_offset AS at, nullif(tag, '') AS tag FROM messages "
        "WHERE topic = 'prices' AND queue_id = 1 ORDER BY at"
    )

    code = main(
        ["query", "--store", store.url, "--result-file", str(tmp_path / "result.json"), sql]
    )

    expected = [
        {"at": row["queue_offset"], "tag": row["tag"] or None}
        for row in consumed(message_log())
        if (row["topic"], row["queue_id"]) == ("prices", 1)
    ]
    assert code == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == sorted(expected, key=lambda row: row["at"])
    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["rows"] == len(found)


def test_wrong_sql_is_one_sentence(
    spark: SparkSession, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own, without a stack trace."""
    code = main(["query", "--store", store.url, "SELECT topik FROM messages"])

    (line,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert line.startswith("dledger-pipeline: not an answerable query: ")
    assert "topik" in line


def test_the_store_is_looked_at_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty store needs no Spark to be told."""
    assert main(["query", "--store", f"file://{tmp_path}/none", "SELECT 1"]) == 1
    assert "no backup was published" in capsys.readouterr().err
