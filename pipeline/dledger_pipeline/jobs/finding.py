"""Looks for a key in ranges of entries: in local processes, or in Spark's tasks.

Both read a range in a task, by the same function; what is found comes here. Called by `erase`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dledger_pipeline.archive.known_log import KnownRange
from dledger_pipeline.jobs import process_pool
from dledger_pipeline.jobs.progress import Done, Progress
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import count
from dledger_pipeline.log.key_hits import HIT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find(
    ranges: Sequence[KnownRange], request: SparkRequest, progress: Progress, *, processes: int
) -> pa.Table:
    """Return the messages of a key (`key_hits.HIT_SCHEMA`) in *ranges*, at least one.

    Args:
        ranges: What to read.
        request: By which Spark.
        progress: Told each range.
        processes: How many local ones do it instead; 0: Spark does.

    Raises:
        RangeNotAvailable: Nodes have dropped entries meanwhile.
        CorruptRecord, PipelineError: Entries cannot be read.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    progress.working(len(ranges))
    if processes:
        progress(f"looking by {count(processes, 'local worker')}")
        found = process_pool.run(
            ranges,
            _read,
            workers=processes,
            done=lambda task, _: progress.finished(Done(task.size_bytes, 0)),
        )
        return pa.concat_tables(found)
    progress(f"looking by Spark on {request.master}")
    from dledger_pipeline.spark.session import (  # noqa: PLC0415, takes a second
        spark_session,
        typed_errors,
    )

    with spark_session("dledger-erase", request.master, request.conf) as spark, typed_errors():
        return _by_spark(spark, ranges, progress)


def _read(task: KnownRange) -> pa.Table:
    """Look for the key in one range; runs in a worker."""
    return pa.Table.from_batches(task.read(), HIT_SCHEMA)


def _by_spark(spark: SparkSession, ranges: Sequence[KnownRange], progress: Progress) -> pa.Table:
    from dledger_pipeline.spark.session import one_task_each, told  # noqa: PLC0415

    finished = told(spark, lambda sizes: progress.finished(Done(*sizes)))

    def read(task: KnownRange) -> Iterator[pa.RecordBatch]:
        yield from task.read()
        finished.add((task.size_bytes, 0))

    return one_task_each(spark, ranges, read, HIT_SCHEMA).toArrow().cast(HIT_SCHEMA)
