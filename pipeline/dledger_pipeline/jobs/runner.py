"""Who runs the tasks of a job: Spark, or a pool of processes where that is not worth starting.

Both run the same function for the same tasks, so that the objects are the same. Spark places tasks
on any number of machines and repeats those that fail; to start it takes some 20 seconds of a
processor, which is more than a small job does. Nothing here imports Spark unless Spark runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.file_rows import file_row
from dledger_pipeline.jobs import process_pool
from dledger_pipeline.jobs.progress import Done, Progress
from dledger_pipeline.spark.master import LOCAL, is_local, tasks_at_once

THRESHOLD_BYTES: Final = 2 << 30
"""As `spec.spark.localThreshold` of a BrokerGroup is unless told."""
_MOST_WORKERS: Final = 8
"""A node serves 16 streams at once, and one that waits for its turn for 20 s gives up."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What a task of a backup wrote.

    Attributes:
        row: The object.
        applied_index: How much of the log the node had applied that told its places; 0: none did.
    """

    row: ManifestRow
    applied_index: int


Work: TypeAlias = Callable[[Any], Any]
"""What is done with a task, by any process: importable, and safe to repeat."""

Measure: TypeAlias = Callable[[Any, Any], Done]
"""Says how much a task was, by it and by what its work returned."""

Runner: TypeAlias = Callable[[Sequence[Any], Work], list[Any]]
"""Does the work of all tasks (at least one); returns what it made of them, in no order."""


class RunnerName(StrEnum):
    """What users ask for."""

    AUTO = "auto"
    SPARK = "spark"
    PLAIN = "plain"


def chosen(
    wanted: RunnerName, master: str, *, size_bytes: int, threshold_bytes: int = THRESHOLD_BYTES
) -> RunnerName:
    """Return SPARK or PLAIN. AUTO is PLAIN below the threshold, unless a cluster was asked for."""
    if wanted is not RunnerName.AUTO:
        return wanted
    small = is_local(master) and size_bytes < threshold_bytes
    return RunnerName.PLAIN if small else RunnerName.SPARK


def workers(
    runner: RunnerName, master: str, conf: Mapping[str, str] | None = None, *, tasks: int
) -> int:
    """Return how many of *tasks* run at once, at most.

    PLAIN has as many workers as the machine has processors, or as a local *master* says.
    """
    if runner is RunnerName.PLAIN:
        local = tasks_at_once(master if is_local(master) else LOCAL, {})
        return min(tasks, local or 1, _MOST_WORKERS)
    return min(tasks, tasks_at_once(master, conf or {}) or tasks)


def of_archived(_: object, archived: Archived) -> Done:
    """Return what it took to archive a range."""
    row = archived.row
    places_bytes = row.places.object_bytes if row.places else 0
    return Done(row.record_bytes, row.object_bytes + places_bytes)


def plain(count: int, progress: Progress, measure: Measure = of_archived) -> Runner:
    """Return a runner of *count* processes; raises `process_pool.run`'s errors."""

    def run(tasks: Sequence[Any], work: Work) -> list[Any]:
        return process_pool.run(
            tasks,
            work,
            workers=count,
            done=lambda task, found: progress.finished(measure(task, found)),
        )

    return run


def by_spark(
    name: str,
    master: str,
    conf: Mapping[str, str],
    progress: Progress,
    *,
    made: Callable[..., Any] | None = None,
    measure: Measure = of_archived,
) -> Runner:
    """Return a runner that starts Spark, or joins a session that is there; raises SparkFailed.

    Its work returns dataclasses; *made* makes one of its fields (see `session.collect`).
    """

    def run(tasks: Sequence[Any], work: Work) -> list[Any]:
        from dledger_pipeline.spark.session import (  # noqa: PLC0415, takes a second
            collect,
            spark_session,
            told,
            typed_errors,
        )

        with spark_session(name, master, conf) as spark, typed_errors():
            finished = told(spark, lambda sizes: progress.finished(Done(*sizes)))

            def measured(task: Any) -> Any:
                found = work(task)
                finished.add((*measure(task, found),))
                return found

            return collect(spark, tasks, measured, made or _received)

    return run


def _received(row: Any, applied_index: int) -> Archived:
    """Return what a Spark task returned, out of JSON."""
    return Archived(file_row("a task's result", row), applied_index)
