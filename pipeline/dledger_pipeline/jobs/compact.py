"""Compact: keeps the newest message for each key in the given topics of a backup.

One pass on the driver finds queue offsets; then two runs of tasks, one task for each range: the
first reads keys only and finds the newest message for each, the second writes the messages that
stay. Between them the newest of all ranges are found, on Spark by grouping there, else in this
process. The manifest is written last. Called by the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from dledger_pipeline.archive.catalog import load
from dledger_pipeline.archive.compacted import CompactedFile, Compaction, publish, write
from dledger_pipeline.archive.compaction import (
    KEY,
    NEWEST_SCHEMA,
    SLIM_COLUMNS,
    WINNERS_SCHEMA,
    Winners,
    merged,
    newest,
    winners,
)
from dledger_pipeline.archive.message_ranges import MessageRange
from dledger_pipeline.archive.planning import archived_messages, entries_left_out, gaps_told
from dledger_pipeline.errors import GapInBackup
from dledger_pipeline.jobs import process_pool
from dledger_pipeline.jobs.progress import Done, Phase, Progress
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import COMPLETED, Result, count
from dledger_pipeline.jobs.runner import (
    THRESHOLD_BYTES,
    Runner,
    RunnerName,
    by_spark,
    chosen,
    plain,
    workers,
)
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.object_store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest(SparkRequest):
    """Which topics to compact, in the newest backup of a group, and who does the work.

    Attributes:
        topics: Their names.
        allow_gaps: Whether to compact a backup in which entries are missing.
        runner: See `runner`.
        local_threshold_bytes: Below so many bytes of records AUTO does without Spark.
    """

    topics: tuple[str, ...]
    allow_gaps: bool = False
    runner: RunnerName = RunnerName.AUTO
    local_threshold_bytes: int = THRESHOLD_BYTES


@dataclass(frozen=True, slots=True)
class _Slim:
    """First run: which keys of *topics* are in *messages*, whose records take *record_bytes*."""

    messages: MessageRange
    record_bytes: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """Second run: write those of *messages* that stay."""

    messages: MessageRange
    record_bytes: int
    winners: Winners
    store: Store
    compaction: Compaction


_Finder: TypeAlias = Callable[[Sequence[_Slim]], pa.Table]
"""Does the first run; returns what stays, as `compaction.winners` does."""


def compact(request: CompactRequest, progress: Progress) -> Result:
    """Write the compaction of the newest backup; return what stayed.

    Raises:
        GapInBackup: Entries are missing, and nobody said that this is known.
        StoreError, BackupError: The store failed, or its backup is damaged.
        MessageError: Messages cannot be read out of the backup.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    store = request.store
    progress.at(Phase.PLANNING)
    manifest = load(store, request.group_id)
    if manifest.gaps() and not request.allow_gaps:
        raise GapInBackup(manifest.name, *manifest.gaps())
    for line in gaps_told(manifest):
        progress(line)
    ranges = list(archived_messages(store, manifest))
    cut = count(len(ranges), "range")
    progress(f"found queue offsets of entries up to {manifest.last_index} in {cut}")
    sizes = {row.first_index: row.record_bytes for row in manifest.files}
    shares = [(each, sizes[each.first_index]) for each in ranges]
    compaction = Compaction(
        group_id=manifest.group_id,
        last_index=manifest.last_index,
        topics=tuple(sorted(set(request.topics))),
    )
    runner = chosen(
        request.runner,
        request.master,
        size_bytes=manifest.record_bytes,
        threshold_bytes=request.local_threshold_bytes,
    )
    name = f"dledger-compact-{manifest.group}"
    with _runners(request, runner, name, len(ranges), progress) as (find, run):
        progress.working(2 * len(ranges))
        stay = Winners(find([_Slim(*each, compaction.topics) for each in shares]), request.topics)
        for topic in stay.without_keys():
            progress(
                f"topic {topic!r} has no message with a key in this backup: all its messages stay"
            )
        files = run([_Write(*each, stay, store, compaction) for each in shares], _write)
    progress.at(Phase.PUBLISHING)
    in_order = tuple(sorted(filter(None, files), key=attrgetter("first_index")))
    compaction = replace(compaction, files=in_order)
    publish(store, compaction)
    progress(f"published {compaction.name} of group {compaction.group_id}")
    return _result(compaction) | {"entriesNotShown": entries_left_out(manifest)}


@contextmanager
def _runners(
    request: CompactRequest, runner: RunnerName, name: str, tasks: int, progress: Progress
) -> Iterator[tuple[_Finder, Runner]]:
    """Give what does the first run and what does the second, in one session if it is Spark's."""
    if runner is RunnerName.PLAIN:
        at_once = workers(runner, request.master, tasks=tasks)
        progress(f"compacting by {count(at_once, 'local worker')}")
        yield partial(_find_here, at_once, progress), plain(at_once, progress, _of_file)
        return
    from dledger_pipeline.spark.session import spark_session  # noqa: PLC0415, takes a second

    progress(f"compacting by Spark on {request.master}")
    with spark_session(name, request.master, request.conf) as spark:
        yield (
            partial(_find_by_spark, spark, progress),
            by_spark(
                name,
                request.master,
                request.conf,
                progress,
                made=CompactedFile,
                measure=_of_file,
            ),
        )


def _find_here(at_once: int, progress: Progress, tasks: Sequence[_Slim]) -> pa.Table:
    """Hold each key here that is in any range."""

    def done(task: _Slim, _: object) -> None:
        progress.finished(Done(task.record_bytes, 0))

    return winners(merged(process_pool.run(tasks, _newest, workers=at_once, done=done)))


def _find_by_spark(spark: SparkSession, progress: Progress, tasks: Sequence[_Slim]) -> pa.Table:
    """Hold places here, 8 bytes each; keys stay in Spark's workers."""
    from pyspark.sql import functions as sf  # noqa: PLC0415, takes a second
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    from dledger_pipeline.spark.session import (  # noqa: PLC0415
        one_task_each,
        told,
        typed_errors,
    )

    with typed_errors():
        finished = told(spark, lambda sizes: progress.finished(Done(*sizes)))

        def found(task: _Slim) -> Iterator[pa.RecordBatch]:
            yield from _newest(task).to_batches()
            finished.add((task.record_bytes, 0))

        slim = one_task_each(spark, tasks, found, NEWEST_SCHEMA)
        offset = sf.max("queue_offset").alias("queue_offset")
        places = slim.groupBy(*KEY).agg(offset).drop("key")
        return places.mapInArrow(_places, from_arrow_schema(WINNERS_SCHEMA)).toArrow()


def _places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from winners(pa.Table.from_batches([batch])).to_batches()


def _newest(task: _Slim) -> pa.Table:
    """Find the newest message for each key in one range; runs in a worker."""
    return newest(task.messages.read(SLIM_COLUMNS), task.topics)


def _of_file(task: _Write, file: CompactedFile | None) -> Done:
    return Done(task.record_bytes, file.object_bytes if file else 0)


def _write(task: _Write) -> CompactedFile | None:
    """Write what stays of one range, if anything does; runs in a worker."""
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
