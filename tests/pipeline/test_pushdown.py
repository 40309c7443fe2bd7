"""Conditions of SQL that become a selection: the rows stay the same, fewer objects are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from dledger.errors import InvalidArgument
from dledger_pipeline.archive.selection import MAX_INDEX, Selection, rows_within
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.pushdown import OF_ENTRIES, OF_MESSAGES, pushed
from dledger_pipeline.spark.source import ReadOptions
from tests.pipeline.logs import based_backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log

_Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_ENABLED = "spark.sql.python.filterPushdown.enabled"
_KEPT: dict[type[_Comparison], Callable[[Any, Any], bool]] = {
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


def _keeps(condition: Filter, row: Mapping[str, object]) -> bool:
    assert isinstance(
        condition, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    )
    (column,) = condition.attribute
    return _KEPT[type(condition)](row[column], condition.value)


@given(_FILTERS)
def test_what_is_pushed_and_what_is_left_are_all_conditions(filters: list[Filter]) -> None:
    """The rows that are selected, and pass what Spark checks, are those that pass everything."""
    batch = pa.RecordBatch.from_pylist(_ROWS)

    fields = {**OF_MESSAGES, "index": ("first_index", "last_index")}
    selection, rest = pushed(Selection(), filters, fields)

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


def test_a_data_frame_may_be_used_as_often_as_one_likes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With Spark's setting on, too: in turns, together, joined with itself."""
    store, log = Store.open(f"file://{tmp_path}/store"), checked_entries(message_log())
    based_backup(store, log, [(1, len(log))], [], size=10)
    frame = spark.read.format("dledger").load(store.url)
    rows = consumed(message_log())
    counts = {name: sum(row["topic"] == name for row in rows) for name in ("orders", "prices")}

    spark.conf.set(_ENABLED, "true")
    try:
        orders, prices = (frame.filter(f"topic = '{name}'") for name in counts)
        assert [orders.count(), prices.count(), frame.count()] == [*counts.values(), len(rows)]
        both = orders.union(prices.filter("index > 20")).groupBy("topic").count().collect()
        joined = orders.join(prices, ["queue_id", "queue_offset"]).count()
    finally:
        spark.conf.unset(_ENABLED)

    later = sum(row["topic"] == "prices" and row["index"] > 20 for row in rows)
    assert {row["topic"]: row["count"] for row in both} == {**counts, "prices": later}
    places = [{r[1:] for r in map(_place, rows) if r[0] == name} for name in counts]
    assert joined == len(places[0] & places[1])


def _place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queue_id"], row["queue_offset"]


@pytest.mark.found
def test_push_down_is_no_option_of_users() -> None:
    """A DataFrame that is used twice would have the conditions of one use in both."""
    with pytest.raises(InvalidArgument, match=r"option pushdown is refused: .*\(topic, queue"):
        ReadOptions.of({"store": "file:///x", "pushdown": "true"})
