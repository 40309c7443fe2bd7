"""A line about compaction: which messages may go, beside what Spark SQL says by a window function.

Both read the same Parquet of ten rows for each KiB of `--mib`, so 10^7 for a GiB. Spark SQL has the
easier end: what it finds is thrown away, while the job's answer is brought to the driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from dledger_pipeline.archive.compaction import by_queue
from dledger_pipeline.jobs.deciding import decided_by_spark
from dledger_pipeline.log.keys import KEY_SCHEMA
from e2e.bench.pipeline.measuring import Figure, Parts, check_whole, cost, in_rounds
from e2e.bench.pipeline.subject import Bench

_ROWS_A_KIB: Final = 10
_ROWS_A_KEY: Final = 10
_QUEUES: Final = 8
_AT_ONCE: Final = 1 << 20
_SQL: Final = """
SELECT generation, queue_id, queue_offset, newest FROM (
  SELECT *, max(queue_offset) OVER same AS newest, min(queue_offset) OVER same AS oldest FROM rows
  WINDOW same AS (PARTITION BY generation, queue_id, key)
) WHERE queue_offset < newest OR (tombstone AND oldest = newest)
"""


def window_function(bench: Bench) -> Figure:
    """Spark SQL's window function / the job's own way, seconds by the clock."""
    path, count = _rows(bench)
    found = bench.spark.read.parquet(str(path))
    found.createOrReplaceTempView("rows")

    def ours() -> None:
        decisions = by_queue([decided_by_spark(found)]).values()
        check_whole("the job", sum(each.messages for each in decisions), count)

    def one() -> tuple[float, float, Parts]:
        job, sql = cost(ours), cost(lambda: _thrown_away(bench.spark.sql(_SQL)))
        parts = {"rows": count, "jobS": job.wall_s, "windowS": sql.wall_s}
        return sql.wall_s / job.wall_s, job.wall_s, parts

    ours()  # Spark starts its Python workers
    return in_rounds(bench.rounds, one)


def _thrown_away(found: DataFrame) -> None:
    found.write.format("noop").mode("overwrite").save()


def _rows(bench: Bench) -> tuple[Path, int]:
    """Return a Parquet of rows of keys, each of which comes ten times, and how many they are."""
    path, count = bench.disk / "keys.parquet", bench.body_bytes * _ROWS_A_KIB >> 10
    random = np.random.default_rng(6)
    with pq.ParquetWriter(path, KEY_SCHEMA) as writer:
        for first in range(0, count, _AT_ONCE):
            offset = np.arange(first, min(first + _AT_ONCE, count))
            key = random.integers(0, count // _ROWS_A_KEY, len(offset))
            columns = [
                pa.array(np.ones(len(offset), np.int64)),
                pa.array((key % _QUEUES).astype(np.int32)),
                pa.array([f"customer-{each:012}" for each in key.tolist()]),
                pa.array(offset),
                pa.array(offset % 97 == 0),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=KEY_SCHEMA))
    return path, count
