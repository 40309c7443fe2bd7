"""Spark for our jobs: what tasks raise comes back as it was, what is not ours in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dledger.errors import CorruptRecord, DledgerError
from dledger_pipeline.errors import ObjectMissing, SparkFailed
from dledger_pipeline.spark.session import one_task_each, spark_session, typed_errors

_SCHEMA = pa.schema([pa.field("process", pa.int64(), nullable=False)])


def _raise(error: Exception) -> NoReturn:
    raise error


def _square(item: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"process": [item * item]}, schema=_SCHEMA)


def test_each_item_has_a_task(spark: SparkSession) -> None:
    """As many partitions as items, and every item once."""
    frame = one_task_each(spark, [1, 2, 3], _square, _SCHEMA)

    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row[0] for row in frame.collect()) == [1, 4, 9]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: ObjectMissing("data/1"), ObjectMissing, "object data/1 is missing from the store"),
        (
            lambda: CorruptRecord("1.seg", 4096, "chain CRC is 1: expected 2"),
            CorruptRecord,
            "corrupt record in segment 1.seg at byte offset 4096: chain CRC is 1: expected 2",
        ),
        (lambda: ZeroDivisionError("by 0"), SparkFailed, "Spark gave up: ZeroDivisionError: by 0"),
    ],
)
def test_what_a_task_raises_is_raised_by_the_driver(
    spark: SparkSession,
    make: Callable[[], Exception],
    kind: type[DledgerError],
    message: str,
) -> None:
    """Of the same class and with the same words; a program error becomes one line, too."""
    frame = one_task_each(spark, [0], lambda _: _raise(make()), _SCHEMA)

    with pytest.raises(kind) as raised, typed_errors():
        frame.collect()

    assert type(raised.value) is kind
    assert str(raised.value) == message


def test_a_job_joins_the_session_that_is_there(spark: SparkSession) -> None:
    """And leaves it running for whoever started it."""
    with spark_session("job", "local[1]") as joined:
        assert joined is spark

    assert spark.range(3).count() == 3
