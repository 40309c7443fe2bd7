"""Conditions of SQL that become a selection: the rows stay the same, fewer objects are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from dledger_pipeline.archive.selection import MAX_INDEX, Selection, rows_within
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.pushdown import OF_COMPACTED, OF_ENTRIES, OF_MESSAGES, pushed
from tests.pipeline.logs import based_backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log, place

_ENABLED = "spark.sql.python.filterPushdown.enabled"
_KEPT = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
}
_NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, MAX_INDEX])
_FILTERS = st.lists(
    st.builds(
        lambda kind, column, value: kind((column,), value),
        st.sampled_from([*_KEPT]),
        st.sampled_from(["index", "stored_at_ms", "queue_id", "queue_offset", "other"]),
        _NUMBERS,
    )
    | st.builds(EqualTo, st.just(("topic",)), st.sampled_from(["a", "b"])),
    max_size=4,
)
_ROWS = [
    {"topic": t, "index": i, "stored_at_ms": ms, "queue_id": q, "queue_offset": o, "other": o}
    for t in "ab"
    for i in (1, 2, 3)
    for ms in (0, 1, 2)
    for q in (0, 1)
    for o in (0, 1, 2)
]


def _keeps(condition: Filter, row: dict[str, object]) -> bool:
    (column,) = condition.attribute
    return _KEPT[type(condition)](row[column], condition.value)


@given(_FILTERS)
def test_what_is_pushed_and_what_is_left_are_all_conditions(filters: list[Filter]) -> None:
    """The rows that are selected, and pass what Spark checks, are those that pass everything."""
    batch = pa.RecordBatch.from_pylist(_ROWS)

    selection, rest = pushed(Selection(), filters, OF_COMPACTED)

    found = rows_within(batch, selection.of_messages()).to_pylist()
    assert [row for row in found if all(_keeps(each, row) for each in rest)] == [
        row for row in _ROWS if all(_keeps(each, row) for each in filters)
    ]


def test_a_bound_above_the_entries_does_not_end_the_log_of_messages() -> None:
    """Topics that are deleted later have no messages, whatever the condition."""
    above = LessThan(("index",), 9)

    assert pushed(Selection(), [above], OF_MESSAGES) == (Selection(), [above])
    assert pushed(Selection(), [above], OF_ENTRIES) == (Selection(last_index=8), [])


def test_entries_without_a_time_are_below_any_time() -> None:
    """An upper bound alone is Spark's to check: the manifest tells no times of such entries."""
    above, below = LessThan(("timestamp_ms",), 9), GreaterThan(("timestamp_ms",), 2)
    both = Selection(first_ms=3, last_ms=8)

    assert pushed(Selection(), [above], OF_ENTRIES) == (Selection(), [above])
    assert pushed(Selection(), [above, below], OF_ENTRIES) == (both, [])


def test_other_conditions_are_sparks() -> None:
    """What a selection cannot express."""
    other = StringContains(("topic",), "a")

    assert pushed(Selection(), [other], OF_MESSAGES) == (Selection(), [other])


def test_sql_has_the_same_answer_with_push_down(spark: SparkSession, tmp_path: Path) -> None:
    """Objects that it rules out may even be lost; without Spark's setting the error names it."""
    store, log = Store.open(f"file://{tmp_path}/store"), checked_entries(message_log())
    made = based_backup(store, log, [(1, len(log))], [], size=10)
    frame = spark.read.format("dledger").options(view="entries", pushdown="true").load(store.url)
    frame.createOrReplaceTempView("pushed_entries")
    reader = spark.read.format("dledger").options(pushdown="true")
    reader.load(store.url).createOrReplaceTempView("pushed_messages")
    conditions = "topic = 'orders' AND queue_offset > 5 AND index BETWEEN 20 AND 40 AND tag = 'red'"

    with pytest.raises(PySparkException, match=_ENABLED):
        frame.count()
    spark.conf.set(_ENABLED, "true")
    try:
        found = spark.sql(f"SELECT * FROM pushed_messages WHERE {conditions}").collect()  # noqa: S608
        (tmp_path / "store" / made.group_id / made.files[0].name).unlink()
        indexes = spark.sql("SELECT index FROM pushed_entries WHERE index > 15 AND index <= 18")
        assert sorted(row["index"] for row in indexes.collect()) == [16, 17, 18]
    finally:
        spark.conf.unset(_ENABLED)

    rows = [row.asDict() | {"body": bytes(row["body"])} for row in found]
    expected = [
        row
        for row in consumed(message_log())
        if row["topic"] == "orders"
        and row["queue_offset"] > 5
        and 20 <= row["index"] <= 40
        and row["tag"] == "red"
    ]
    assert sorted(rows, key=place) == expected
    assert expected
