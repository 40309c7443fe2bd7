"""Spark for our jobs: what tasks raise comes back as it was, what is not ours in one line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dledger.errors import CorruptRecord, DledgerError
from dledger_pipeline.errors import ObjectMissing, SparkFailed
from dledger_pipeline.spark.session import (
    name_user,
    one_task_each,
    spark_session,
    typed_errors,
)
from tests.waiting import eventually_blocking

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
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
        (lambda: ZeroDivisionError("by 0"), SparkFailed, "Spark failed: ZeroDivisionError: by 0"),
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


@pytest.mark.slow
@pytest.mark.found
def test_ctrl_c_while_spark_starts_ends_its_jvm() -> None:
    """It ignores the terminal's Ctrl-C and, half up, never ends by itself."""
    program = "from dledger_pipeline.spark.session import spark_session as s\nwith s('x'): pass"
    path = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))
    starting = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    (jvm,) = eventually_blocking(lambda: _javas_of(starting.pid))

    starting.send_signal(signal.SIGINT)

    assert starting.wait() == -signal.SIGINT
    try:
        eventually_blocking(lambda: not _is_java(jvm), deadline_s=20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.found
@pytest.mark.skipif(os.getuid() != 0, reason="only root may start a program as another user")
def test_spark_starts_for_a_user_that_the_system_does_not_know(tmp_path: Path) -> None:
    """As a namespace may give to pods: without an entry, Java has neither its name nor a home."""
    tmp_path.chmod(0o777)
    program = (
        "from dledger_pipeline.spark.session import spark_session\n"
        "with spark_session('x', 'local[1]') as spark: print('rows', spark.range(3).count())"
    )
    path = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path), "HOME": "/"},
        cwd=tmp_path,
        user=1000650000,
        group=1000650000,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "rows 3" in done.stdout, done.stderr


def test_a_user_with_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what somebody gives Java already stays; for a stranger, both are added once."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dx=1")
    monkeypatch.setenv("SPARK_USER", "me")
    name_user()
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Dx=1"

    monkeypatch.setattr(os, "getuid", lambda: 1000650000)
    for _ in range(2):
        name_user()

    home = f"-Duser.home={tempfile.gettempdir()}"
    assert os.environ["SPARK_SUBMIT_OPTS"] == f"-Dx=1 -Duser.name=dledger {home}"


def _javas_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii").split()
    return [int(pid) for pid in children if _is_java(int(pid))]


def _is_java(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8") == "java\n"
    return False
