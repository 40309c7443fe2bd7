"""Who runs a backup's tasks: Spark or processes of this machine, and both to the same objects."""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dledger.errors import CorruptRecord, DledgerError
from dledger_pipeline.errors import ObjectMissing, WorkerFailed
from dledger_pipeline.jobs import process_pool, runner
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName, chosen, workers
from dledger_pipeline.object_store.store import Store
from tests.pipeline.export_server import export_server
from tests.pipeline.logs import contents, data_directory, entries

ROOT = Path(__file__).parents[2]
LOCAL, CLUSTER = "local[*]", "k8s://https://kubernetes.default.svc"


# -- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "master", "size_bytes", "expected"),
    [
        (RunnerName.AUTO, LOCAL, 999, RunnerName.PLAIN),
        (RunnerName.AUTO, "local[1]", 999, RunnerName.PLAIN),
        (RunnerName.AUTO, LOCAL, 1000, RunnerName.SPARK),
        (RunnerName.AUTO, CLUSTER, 1, RunnerName.SPARK),
        (RunnerName.SPARK, LOCAL, 1, RunnerName.SPARK),
        (RunnerName.PLAIN, CLUSTER, 10_000, RunnerName.PLAIN),
    ],
)
def test_auto_is_plain_below_the_threshold_unless_a_cluster_was_asked_for(
    wanted: RunnerName, master: str, size_bytes: int, expected: RunnerName
) -> None:
    """As the operator compares it: less than the threshold is small."""
    assert chosen(wanted, master, size_bytes=size_bytes, threshold_bytes=1000) is expected


@pytest.mark.parametrize(
    ("of", "master", "conf", "expected"),
    [
        (RunnerName.PLAIN, LOCAL, {}, 6),
        (RunnerName.PLAIN, "local[2]", {}, 2),
        (RunnerName.PLAIN, "local", {}, 1),
        (RunnerName.PLAIN, "local[64]", {}, 8),
        (RunnerName.PLAIN, CLUSTER, {}, 6),
        (RunnerName.SPARK, LOCAL, {}, 6),
        (RunnerName.SPARK, "local[64, 3]", {}, 64),
        (RunnerName.SPARK, CLUSTER, {"spark.executor.instances": "3"}, 3),
        (
            RunnerName.SPARK,
            CLUSTER,
            {"spark.executor.instances": "3", "spark.executor.cores": "2"},
            6,
        ),
        (RunnerName.SPARK, CLUSTER, {}, 100),
    ],
)
def test_so_many_tasks_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
    of: RunnerName,
    master: str,
    conf: dict[str, str],
    expected: int,
) -> None:
    """On a machine of six processors; where nobody knows, perhaps all of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))

    assert workers(of, master, conf, tasks=100) == expected
    assert workers(of, master, conf, tasks=1) == 1


# -- the pool ------------------------------------------------------------------------------------


def _square(number: int) -> int:
    return number * number


def _fail(error: Exception) -> None:
    raise error


def _die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail_or_wait(task: Exception | int) -> None:
    if isinstance(task, Exception):
        raise task
    signal.pause()


def _priority(_: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_every_task_is_done_once_in_another_process_of_low_priority() -> None:
    """More tasks than workers."""
    assert sorted(process_pool.run(range(7), _square, workers=2)) == [n * n for n in range(7)]
    assert process_pool.run([0], _priority, workers=2) == [
        min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    ]


@pytest.mark.parametrize(
    "error",
    [
        ObjectMissing("data/1"),
        CorruptRecord("1.seg", 4096, "chain CRC is 1: expected 2", index=7),
        PermissionError(13, "Permission denied", "/backups"),
    ],
)
def test_what_a_worker_raises_is_raised_here(error: Exception) -> None:
    """Of the same class, with the same words and the same attributes."""
    with pytest.raises(type(error)) as raised:
        process_pool.run([error], _fail, workers=1)

    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert raised.value.__dict__ == error.__dict__


def test_a_worker_that_is_killed_is_one_sentence() -> None:
    """As the kernel kills what takes too much memory."""
    with pytest.raises(WorkerFailed, match="out of memory"):
        process_pool.run([1, 2], _die, workers=1)


def test_a_pool_whose_work_failed_is_gone_with_all_its_threads() -> None:
    """Else Python's own end wakes the pool's thread by a pipe that the thread is closing."""
    before = set(threading.enumerate())

    tasks: list[Exception | int] = [ObjectMissing("data/1"), 2, 3]
    with pytest.raises(ObjectMissing):
        process_pool.run(tasks, _fail_or_wait, workers=3)

    assert set(threading.enumerate()) <= before


def _errors(kind: type[DledgerError] = DledgerError) -> Iterator[type[DledgerError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ in ("dledger.errors", "dledger_pipeline.errors"):
            yield from _errors(each)


@pytest.mark.parametrize("kind", sorted(_errors(), key=attrgetter("__qualname__")))
def test_every_error_pickles(kind: type[DledgerError]) -> None:
    """Whatever its constructor takes: here a 7 for each argument that it must have."""
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    named = {each.name: 7 for each in needed if each.kind is each.KEYWORD_ONLY}
    error = kind(*(7 for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD), **named)

    again = pickle.loads(pickle.dumps(error))  # noqa: S301, our own

    assert type(again) is kind
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


# -- backups -------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    """Return the address of a node with a log of some 3 MiB."""
    log = entries(10_000)
    with export_server(data_directory(tmp_path / "node", log, segment_bytes=1 << 20)) as address:
        yield address


def test_both_runners_write_the_same_objects(
    spark: SparkSession, node: str, tmp_path: Path
) -> None:
    """Byte for byte, and both say after each range how far they are."""
    written, said = {}, {}
    for name in (RunnerName.SPARK, RunnerName.PLAIN):
        store = Store.open(f"file://{tmp_path}/{name}")
        said[name] = list[str]()
        request = BackupRequest(endpoints=(node,), store=store, target_bytes=1 << 20, runner=name)
        backup(request, Progress("backup", said[name].append))
        written[name] = contents(store)

    assert written[RunnerName.PLAIN] == written[RunnerName.SPARK]
    ranges = sum("/data/" in name for name in written[RunnerName.PLAIN])
    assert ranges > 2
    for lines in said.values():
        steps = [line for line in lines if f" of {ranges} ranges: " in line]
        assert [line.split()[0] for line in steps] == [str(n) for n in range(1, ranges + 1)]
        assert steps[-1].endswith(" MB/s")


def test_the_rate_is_shared_by_all_workers(
    monkeypatch: pytest.MonkeyPatch, node: str, tmp_path: Path
) -> None:
    """Each of two is told half of it, whichever range it has."""
    told: list[float] = []

    def noting(count: int, _: object) -> runner.Runner:
        def run(tasks: Sequence[Any], work: runner.Work) -> list[object]:
            told.extend(task.entries.bytes_per_s for task in tasks)
            assert count == 2
            return [work(task) for task in tasks]

        return run

    monkeypatch.setattr("dledger_pipeline.jobs.backup.plain", noting)
    request = BackupRequest(
        endpoints=(node,),
        store=Store.open(f"file://{tmp_path}/store"),
        target_bytes=1 << 20,
        master="local[2]",
        bytes_per_s=1e12,
    )

    backup(request, Progress("backup"))

    assert set(told) == {5e11}


def test_a_plain_backup_needs_neither_spark_nor_java(node: str, tmp_path: Path) -> None:
    """A small backup, with no option that says so, where Spark is not installed."""
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from dledger_pipeline.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = ["backup", "--endpoint", node, "--store", f"file://{tmp_path}/store"]
    path = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))

    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--target-mib", "1", "--json"],
        env={**os.environ, "PYTHONPATH": path, "PATH": str(tmp_path), "JAVA_HOME": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "local worker" in done.stderr
    assert '"phase": "Completed"' in done.stdout
