"""``dledger-pipeline query``: SQL about a backup from the shell."""

# ruff: noqa: S608 - the statements are what is tested

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import ObjectMissing
from dledger_pipeline.jobs.query import QueryRequest, query
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.source import ENTRY_VIEW
from tests.pipeline.logs import backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log
from tests.pipeline.random_sql import statement


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a backup of `message_log`."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, checked_entries(message_log()), (30, 100))
    return store


def _asked(store: Store, sql: str) -> list[dict[str, Any]]:
    """Return the rows that the command prints."""
    lines: list[str] = []
    query(QueryRequest(store=store, group_id=None, sql=sql), lines.append)
    return [json.loads(line) for line in lines]


def _in_any_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    """Return a database with the rows of `message_log`, which never were in a store or in Spark."""
    messages = pa.Table.from_pylist(consumed(message_log()), MESSAGE_SCHEMA)
    numbered = [
        {
            "index": each.index,
            "term": each.term,
            "type": each.kind,
            "timestamp_ms": each.timestamp_ms,
        }
        for each in checked_entries(message_log())
    ]
    columns = [ENTRY_VIEW.field(name) for name in numbered[0]]
    entries = pa.Table.from_pylist(numbered, pa.schema(columns))
    connection = duckdb.connect()
    connection.register("messages", messages)
    connection.register("entries", entries)
    return connection


def _check_as_duckdb(store: Store, duck: duckdb.DuckDBPyConnection, seeds: range) -> None:
    for seed in seeds:
        sql = statement(seed)
        found = duck.execute(sql)
        names = [column[0] for column in found.description or ()]
        expected = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        assert _in_any_order(_asked(store, sql)) == _in_any_order(expected), (seed, sql)


_ORDERS, _PRICES = "topic = 'orders' AND index > 9", "topic = 'prices'"


@pytest.mark.found
@pytest.mark.parametrize(
    "sql",
    [
        (
            f"SELECT count(*) AS n FROM messages WHERE {_PRICES} UNION ALL "
            "SELECT count(*) FROM messages"
        ),
        (
            f"SELECT count(*) AS n FROM messages WHERE {_PRICES} UNION ALL "
            f"SELECT count(*) FROM messages WHERE {_ORDERS}"
        ),
        (
            f"SELECT (SELECT count(*) FROM messages WHERE {_ORDERS}) AS o, "
            f"(SELECT count(*) FROM messages WHERE {_PRICES}) AS p, "
            "(SELECT count(*) FROM messages) AS n"
        ),
        (
            "SELECT count(*) AS n FROM messages a JOIN messages b ON a.queue_id = b.queue_id "
            "AND a.queue_offset = b.queue_offset "
            "WHERE a.topic = 'orders' AND a.index > 9 AND b.topic = 'prices'"
        ),
        (
            f"SELECT count(*) AS n FROM messages WHERE {_PRICES} AND queue_offset IN "
            f"(SELECT queue_offset FROM messages WHERE {_ORDERS})"
        ),
        (
            f"WITH m AS (SELECT * FROM messages) SELECT count(*) AS n FROM m WHERE {_PRICES} "
            f"UNION ALL SELECT count(*) FROM m WHERE {_ORDERS}"
        ),
    ],
    ids=["all", "topics", "scalars", "joined", "in", "cte"],
)
def test_a_statement_may_read_a_table_twice(
    spark: SparkSession, store: Store, duck: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """Each reference has its own conditions."""
    found = [[*row.values()] for row in _asked(store, sql)]

    assert sorted(found) == sorted([*row] for row in duck.execute(sql).fetchall())


@pytest.mark.long
def test_random_statements_have_the_answers_of_another_engine(
    spark: SparkSession, store: Store, duck: duckdb.DuckDBPyConnection
) -> None:
    """DuckDB, over the same rows, knows nothing of what we push down."""
    _check_as_duckdb(store, duck, range(300))


def test_a_few_random_statements_have_the_answers_of_another_engine(
    spark: SparkSession, store: Store, duck: duckdb.DuckDBPyConnection
) -> None:
    """The short part of the 300."""
    _check_as_duckdb(store, duck, range(1000, 1030))


def test_conditions_are_pushed_down_where_a_table_is_read_once(
    spark: SparkSession, store: Store
) -> None:
    """Objects that they rule out may even be lost; a statement that reads them names them."""
    (lost, *_) = [name for name in store.list() if "/data/" in name]
    store.delete(lost)
    once = "SELECT max(index) AS i FROM entries WHERE index > 30"

    assert _asked(store, once) == [{"i": len(message_log().entries)}]
    with pytest.raises(ObjectMissing, match=lost):
        _asked(store, f"{once} UNION ALL {once}")
    assert _asked(store, once)


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
    assert main(["query", "--store", store.url, "SELECT count(*) AS n FROM messages"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": len(consumed(message_log()))}


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
