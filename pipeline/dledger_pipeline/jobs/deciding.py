"""Decides about all keys of a log by `archive.compaction`: in local processes, or in Spark's tasks.

Both read ranges in tasks and give all rows of a key to the same function. Plain: the rows of all
keys come here. Spark: its workers exchange them, and what may go comes here, 16 bytes a message.
Called by `compact`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dledger_pipeline.archive.compaction import (
    DECIDED_SCHEMA,
    KEY,
    Queue,
    QueueDecision,
    by_queue,
    decide_keys,
)
from dledger_pipeline.archive.kept_log import KeptLog, KeyRange
from dledger_pipeline.jobs import process_pool
from dledger_pipeline.jobs.progress import Done, Progress
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import count
from dledger_pipeline.log.keys import KEY_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decide(
    log: KeptLog,
    request: SparkRequest,
    progress: Progress,
    *,
    processes: int,
) -> dict[Queue, QueueDecision]:
    """Return what is decided about each queue of which *log* has keys.

    Args:
        log: All that the group keeps.
        request: By which Spark.
        progress: Told each range.
        processes: How many local ones do it instead; 0: Spark does.

    Raises:
        RangeNotAvailable: Nodes have dropped entries meanwhile.
        CorruptRecord, PipelineError: Entries cannot be read.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    progress.working(len(log.ranges))
    if processes:
        progress(f"reading keys by {count(processes, 'local worker')}")
        return _plain(log, processes, progress)
    progress(f"reading keys by Spark on {request.master}")
    return _by_spark(log, request, progress)


def _plain(log: KeptLog, processes: int, progress: Progress) -> dict[Queue, QueueDecision]:
    found = process_pool.run(
        log.ranges,
        _rows,
        workers=processes,
        done=lambda task, _: progress.finished(Done(task.size_bytes, 0)),
    )
    return by_queue([decide_keys(pa.concat_tables(found))])


def _rows(task: KeyRange) -> pa.Table:
    """Read the keys of one range; runs in a worker."""
    return pa.Table.from_batches(task.read(), KEY_SCHEMA)


def _by_spark(
    log: KeptLog, request: SparkRequest, progress: Progress
) -> dict[Queue, QueueDecision]:
    from dledger_pipeline.spark.session import (  # noqa: PLC0415, takes a second
        one_task_each,
        spark_session,
        told,
        typed_errors,
    )

    with (
        spark_session("dledger-compact", request.master, request.conf) as spark,
        typed_errors(),
    ):
        finished = told(spark, lambda sizes: progress.finished(Done(*sizes)))

        def read(task: KeyRange) -> Iterator[pa.RecordBatch]:
            yield from task.read()
            finished.add((task.size_bytes, 0))

        rows = one_task_each(spark, log.ranges, read, KEY_SCHEMA)
        return by_queue([decided_by_spark(rows)])


def decided_by_spark(rows: DataFrame) -> pa.Table:
    """Return what is decided (`DECIDED_SCHEMA`) by *rows* of `keys.KEY_SCHEMA`.

    A task holds the rows of a share of the keys, as large as Spark makes it
    (spark.sql.adaptive.advisoryPartitionSizeInBytes).
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415, takes a second

    return (
        rows.repartition(*KEY)
        .mapInArrow(_decide_share, from_arrow_schema(DECIDED_SCHEMA))
        .toArrow()
    )


def _decide_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decide about a share of the keys; runs in a worker."""
    rows = pa.Table.from_batches([batch.cast(KEY_SCHEMA) for batch in batches], KEY_SCHEMA)
    yield from decide_keys(rows).to_batches()
