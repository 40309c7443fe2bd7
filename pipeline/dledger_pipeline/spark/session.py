"""Spark for our jobs: a quiet session, and tasks whose errors keep their type.

The only module that starts Spark. `one_task_each` runs a function once for each of some items, on
any worker, and `collect` does so for functions that return a dataclass; `typed_errors` raises the
error of a failed task. Spark reports that error as a Python traceback in the text of its own and in
no other way, so its class is read from there. Used by the jobs `backup`, `compact` and `query`, and
by users for queries.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dledger.common.memory import keep_blocks
from dledger.errors import DledgerError, rebuilt
from dledger_pipeline.errors import SparkFailed
from dledger_pipeline.log.records import schema
from dledger_pipeline.spark.master import LOCAL, is_local

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
R = TypeVar("R", bound="DataclassInstance")

_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
_LOCALHOST: Final = "127.0.0.1"
_USER: Final = "dledger"
"""What Spark calls a user without a name."""
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL_DEFAULTS: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    "spark.driver.host": _LOCALHOST,
    "spark.driver.bindAddress": _LOCALHOST,
}
_JSON_SCHEMA: Final = schema(found=pa.string())
_STOP_S: Final = 5.0
"""A pod that is to end has ten."""
_TOO_LARGE: Final = re.compile(r"bigger than spark\.driver\.maxResultSize \(([^)]+)\)")
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$", re.MULTILINE)


@contextmanager
def spark_session(
    name: str, master: str = LOCAL, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end; where a session is active, join that and leave it.

    KeyboardInterrupt ends what was started, without waiting for tasks.

    Args:
        name: What the application is called.
        master: A Spark master URL; ``k8s://...`` runs executors as pods, in client mode.
        conf: Spark settings; they win over ours.

    Raises:
        SparkFailed: Java is missing, or Spark did not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    others = _children()
    session = _start(name, master, conf or {})
    started = _children() - others
    try:
        yield session
    except KeyboardInterrupt:
        for pid in started:
            _end(pid)
        raise
    except BaseException:
        session.stop()
        raise
    else:
        session.stop()


def _start(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    _check_java()
    name_user()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = _DEFAULTS | (_LOCAL_DEFAULTS if is_local(master) else {}) | dict(conf)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    others, on_ctrl_c = _children(), signal.getsignal(signal.SIGINT)
    try:
        session = builder.getOrCreate()
    except KeyboardInterrupt:
        for pid in _children() - others:  # a JVM that is starting ignores Ctrl-C and stays
            os.kill(pid, signal.SIGKILL)
        raise
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(
            f"Spark did not start with master {master}; Java's own message is above: "
            f"{first_line(error)}"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_ctrl_c)  # Spark's own would ask a JVM that may be busy
    return session


def _end(pid: int) -> None:
    """End a child: let it delete its executors and files, but not take long over it."""
    with contextlib.suppress(ProcessLookupError):
        child = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(child, signal.SIGTERM)
            if not select.select([child], [], [], _STOP_S)[0]:
                signal.pidfd_send_signal(child, signal.SIGKILL)
        finally:
            os.close(child)


def _children() -> set[int]:
    """Return the pids of this process's children."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for each in lists for pid in each.read_text("ascii").split()}


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and not shutil.which("java"):
        raise SparkFailed(
            "Spark needs Java 17 or newer and there is no `java` on PATH; install it "
            "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )


def name_user() -> None:
    """Give Spark a name and a home for a user that the system has none for.

    Java's own are then ``?``, which Spark takes for a path; Hadoop asks the system for the name.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        named = f"-Duser.name={_USER} -Duser.home={tempfile.gettempdir()}"
        given = os.environ.get("SPARK_SUBMIT_OPTS", "")
        if "-Duser.home=" not in given:
            os.environ["SPARK_SUBMIT_OPTS"] = f"{given} {named}".strip()
        os.environ.setdefault("SPARK_USER", _USER)


def one_task_each(
    spark: SparkSession,
    items: Sequence[T],
    work: Callable[[T], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return the rows that *work* makes of each of *items* (at least one), a task for each.

    Args:
        spark: The session.
        items: Pickled to all executors.
        work: A function that executors can import.
        schema: Of the batches that *work* yields.
    """
    shared = spark.sparkContext.broadcast(list(items))

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_blocks()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(shared.value[number])

    numbered = spark.range(0, len(items), 1, len(items))
    return numbered.mapInArrow(run, from_arrow_schema(schema))


def collect(
    spark: SparkSession, items: Sequence[T], work: Callable[[T], R | None], made: Callable[..., R]
) -> list[R]:
    """Return the dataclass that *work* makes of each item, unless it makes none.

    See `one_task_each`. Results travel as JSON; *made* returns one of its fields, which are texts,
    numbers, or JSON objects of these.
    """
    rows = one_task_each(spark, items, partial(_as_json, work), _JSON_SCHEMA).collect()
    return [made(**json.loads(row[0])) for row in rows]


def _as_json(work: Callable[[T], R | None], item: T) -> Iterator[pa.RecordBatch]:
    found = work(item)
    if found is not None:
        yield pa.RecordBatch.from_pylist([{"found": json.dumps(asdict(found))}], _JSON_SCHEMA)


def told(
    spark: SparkSession, done: Callable[[tuple[int, int]], None]
) -> Accumulator[tuple[int, int]]:
    """Return what tasks `add` two numbers to; *done* is told of them once the task is done.

    It is told in a thread of Spark's, and twice of a task that was done twice.
    """
    return spark.sparkContext.accumulator((0, 0), _Telling(done))


class _Telling(AccumulatorParam[tuple[int, int]]):
    """Adds up; the driver's own also tells. Workers have a copy that does not."""

    def __init__(self, done: Callable[[tuple[int, int]], None] | None = None) -> None:
        self._done = done

    def __reduce__(self) -> tuple[object, ...]:
        return _Telling, ()

    def zero(self, _value: tuple[int, int]) -> tuple[int, int]:
        return 0, 0

    def addInPlace(  # noqa: N802, Spark calls it
        self, value1: tuple[int, int], value2: tuple[int, int]
    ) -> tuple[int, int]:
        if self._done is not None:
            self._done(value2)
        return value1[0] + value2[0], value1[1] + value2[1]


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise the error that a task raised, instead of Spark's.

    Raises:
        DledgerError: Of the class and with the message that it had in the task.
        SparkFailed: It was none of our errors.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _typed(error) from error


def _typed(error: Exception) -> DledgerError:
    classes = {each.__name__: each for each in _subclasses(DledgerError)}
    for name, message in reversed(_RAISED.findall(str(error))):
        if name in classes:
            return rebuilt(classes[name], (message,))
    too_large = _TOO_LARGE.search(str(error))
    if too_large:
        return SparkFailed(
            f"what the driver would have to hold is larger than spark.driver.maxResultSize "
            f"({too_large[1]}); raise it by --conf spark.driver.maxResultSize=..."
        )
    return SparkFailed(f"Spark failed: {first_line(error)}")


def _subclasses(base: type[DledgerError]) -> Iterator[type[DledgerError]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


def first_line(error: Exception) -> str:
    """Return the last line of a Python traceback in the error's text, else its first line."""
    text = str(error).strip()
    raised = _RAISED.findall(text)
    if "Traceback" in text and raised:
        return ": ".join(raised[-1])
    return text.splitlines()[0] if text else type(error).__name__
