"""Who runs the tasks of a backup: Spark, or a pool of processes where that is not worth starting.

Both run the same function for the same tasks, so that the objects are the same. Spark places tasks
on any number of machines and repeats those that fail; to start it takes some 20 seconds of a
processor, which is more than a small backup does. Nothing here imports Spark unless Spark runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.file_rows import file_row
from dledger_pipeline.jobs import process_pool
from dledger_pipeline.jobs.result import Progress, size
from dledger_pipeline.spark.master import LOCAL, is_local, tasks_at_once

THRESHOLD_BYTES: Final = 2 << 30
"""As `spec.spark.localThreshold` of a BrokerGroup is unless told."""
_MOST_WORKERS: Final = 8
"""A node serves 16 streams at once, and one that waits for its turn for 20 s gives up."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What a task wrote.

    Attributes:
        row: The object.
        applied_index: How much of the log the node had applied that told its places; 0: none did.
    """

    row: ManifestRow
    applied_index: int


Work: TypeAlias = Callable[[Any], Archived]
"""What is done with a task, by any process: importable, and safe to repeat."""

Runner: TypeAlias = Callable[[Sequence[Any], Work], list[Archived]]
"""Does the work of all tasks (at least one); returns what they wrote, in no order."""


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


def plain(count: int, progress: Progress) -> Runner:
    """Return a runner of *count* processes; raises `process_pool.run`'s errors."""

    def run(tasks: Sequence[Any], work: Work) -> list[Archived]:
        tell = _telling(len(tasks), progress)
        return process_pool.run(
            tasks, work, workers=count, done=lambda done: tell(done.row.record_bytes)
        )

    return run


def by_spark(name: str, master: str, conf: Mapping[str, str], progress: Progress) -> Runner:
    """Return a runner that starts Spark, or joins a session that is there; raises SparkFailed."""

    def run(tasks: Sequence[Any], work: Work) -> list[Archived]:
        from dledger_pipeline.spark.session import (  # noqa: PLC0415, takes a second
            collect,
            spark_session,
            told,
            typed_errors,
        )

        with spark_session(name, master, conf) as spark, typed_errors():
            archived = told(spark, _telling(len(tasks), progress))

            def archive(task: Any) -> Archived:
                done = work(task)
                archived.add(done.row.record_bytes)
                return done

            return collect(spark, tasks, archive, _received)

    return run


def _received(row: Any, applied_index: int) -> Archived:
    """Return what a Spark task returned, out of JSON."""
    return Archived(file_row("a task's result", row), applied_index)


def _telling(ranges: int, progress: Progress) -> Callable[[int], None]:
    """Return what is told the record bytes of each range when it is done, and says how far it is.

    It counts the time from now on.
    """
    began_s, done, done_bytes = time.monotonic(), 0, 0

    def tell(size_bytes: int) -> None:
        nonlocal done, done_bytes
        done, done_bytes = done + 1, done_bytes + size_bytes
        rate = done_bytes / 1e6 / max(time.monotonic() - began_s, 1e-3)
        progress(f"{done} of {ranges} ranges: {size(done_bytes)} of records, {rate:.1f} MB/s")

    return tell
