"""Compact: keeps the newest message for each key in the given topics of a backup.

One pass on the driver finds queue offsets; then two runs of Spark tasks, one task for each range:
the first reads keys only and finds the newest message for each, which Spark groups over all ranges,
the second writes the messages that stay. The manifest is written last. Called by the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dledger_pipeline.archive.catalog import load
from dledger_pipeline.archive.compacted import CompactedFile, Compaction, publish, write
from dledger_pipeline.archive.compaction import KEY, NEWEST_SCHEMA, SLIM_COLUMNS, Winners, newest
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import COMPLETED, Progress, Result, count
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.session import collect, one_task_each, spark_session, typed_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest(SparkRequest):
    """Which topics to compact, in the newest backup of a group."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Slim:
    """First run: which keys of *topics* are in *messages*."""

    messages: MessageRange
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """Second run: write those of *messages* that stay."""

    messages: MessageRange
    winners: Winners
    store: Store
    compaction: Compaction


def compact(request: CompactRequest, progress: Progress) -> Result:
    """Write the compaction of the newest backup; return what stayed.

    Raises:
        StoreError, BackupError: The store failed, or its backup is damaged.
        MessageError: Messages cannot be read out of the backup.
        SparkFailed: Spark did not run the tasks.
    """
    store = request.store
    manifest = load(store, request.group_id)
    ranges = list(archived_messages(store, manifest))
    cut = count(len(ranges), "range")
    progress(f"found queue offsets of entries up to {manifest.last_index} in {cut}")
    compaction = Compaction(
        group_id=manifest.group_id,
        last_index=manifest.last_index,
        topics=tuple(sorted(set(request.topics))),
    )
    name = f"dledger-compact-{manifest.group}"
    with spark_session(name, request.master, request.conf) as spark, typed_errors():
        winners = _winners(spark, ranges, compaction.topics)
        for topic in winners.without_keys():
            progress(
                f"topic {topic!r} has no message with a key in this backup: all its messages stay"
            )
        tasks = [_Write(each, winners, store, compaction) for each in ranges]
        files = collect(spark, tasks, _write, CompactedFile)
    in_order = tuple(sorted(files, key=attrgetter("first_index")))
    compaction = replace(compaction, files=in_order)
    publish(store, compaction)
    progress(f"published {compaction.name} of group {compaction.group_id}")
    return _result(compaction)


def _winners(
    spark: SparkSession, ranges: Sequence[MessageRange], topics: tuple[str, ...]
) -> Winners:
    slim = one_task_each(spark, [_Slim(each, topics) for each in ranges], _newest, NEWEST_SCHEMA)
    offset = sf.max("queue_offset").alias("queue_offset")
    return Winners(slim.groupBy(*KEY).agg(offset).toArrow(), topics)


def _newest(task: _Slim) -> Iterator[pa.RecordBatch]:
    """Find the newest message for each key in one range; runs in a Spark worker."""
    yield from newest(task.messages.read(SLIM_COLUMNS), task.topics).to_batches()


def _write(task: _Write) -> CompactedFile | None:
    """Write what stays of one range, if anything does; runs in a Spark worker."""
    found, stays = 0, []
    for batch in task.messages.read():
        found += batch.num_rows
        stays.append(task.winners.filter(batch))
    messages = pa.Table.from_batches(stays, MESSAGE_SCHEMA)
    if not found:
        return None
    return write(
        task.store,
        task.compaction,
        messages,
        dropped=found - messages.num_rows,
        span=(task.messages.first_index, task.messages.last_index),
    )


def _result(compaction: Compaction) -> Result:
    return {
        "phase": COMPLETED,
        "groupId": compaction.group_id,
        "lastIndex": compaction.last_index,
        "topics": list(compaction.topics),
        "messages": compaction.messages,
        "dropped": compaction.dropped,
        "objectBytes": sum(file.object_bytes for file in compaction.files),
        "objects": len(compaction.files),
        "manifest": compaction.name,
    }
