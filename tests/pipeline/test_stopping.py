"""A backup that is stopped, or killed, leaves no process behind, and nothing that counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dledger_pipeline.archive.catalog import newest
from dledger_pipeline.object_store.store import Store
from tests.pipeline.export_server import export_server
from tests.pipeline.logs import GROUP_ID, data_directory, entries
from tests.waiting import eventually_blocking

ROOT = Path(__file__).parents[2]
_PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
_PLAIN, _SPARK = ("--runner", "plain"), ("--runner", "spark")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a node with a log of some 3 MiB."""
    directory = tmp_path_factory.mktemp("stopping") / "node"
    data_directory(directory, entries(10_000), segment_bytes=1 << 20)
    with export_server(directory) as address:
        yield address


def descendants(pid: int) -> set[int]:
    """Return the processes that *pid* has started, and they in turn."""
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text("ascii").split()):
                found |= {child} | descendants(child)
    return found


def is_there(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for does not."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text("utf-8")
        return status.rpartition(")")[2].split()[0] != "Z"
    return False


def has_begun(pids: set[int]) -> bool:
    """Return whether there is a process at all."""
    return bool(pids)


def two_work(pids: set[int]) -> bool:
    """Return whether two workers of the pool have taken tasks: they have a lower priority then."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        return sum(os.getpriority(os.PRIO_PROCESS, pid) > own for pid in pids) == 2
    return False


def spark_works(pids: set[int]) -> bool:
    """Return whether one of Spark's workers is there, beside the process that forks them."""
    with suppress(OSError):
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        return sum(b"pyspark.daemon" in line for line in lines) > 1
    return False


@contextmanager
def _running(
    node: str, store: Store, said: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a backup that would take an hour, as the foreground job of a terminal does."""
    command = ["backup", "--endpoint", node, "--store", store.url, "--target-mib", "1"]
    with said.open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "dledger_pipeline", *command, "--rate", "0.001", *options],
            env={**os.environ, "PYTHONPATH": _PYTHONPATH},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield driver
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def _stopped(
    node: str,
    directory: Path,
    *options: str,
    number: signal.Signals,
    when: Callable[[set[int]], bool],
) -> None:
    store, said = Store.open(f"file://{directory}/store"), directory / "said"
    with _running(node, store, said, *options, "--master", "local[2]") as driver:

        def ready() -> set[int] | None:
            assert driver.poll() is None, said.read_text("utf-8")
            pids = descendants(driver.pid)
            return pids if when(pids) else None

        pids = eventually_blocking(ready, "the work is under way", 120)
        if number is signal.SIGINT:
            os.killpg(driver.pid, number)  # as a terminal does
        else:
            driver.send_signal(number)
        code = driver.wait(60)
        eventually_blocking(lambda: not any(map(is_there, pids)), "all its processes end", 60)

    lines = [line for line in said.read_text("utf-8").splitlines() if "incubator" not in line]
    assert newest(store, GROUP_ID) is None
    if number is signal.SIGKILL:
        assert code == -number
    else:
        assert code == 128 + number
        assert lines[-1] == f"dledger-pipeline: stopped by {number.name} before the work was done"
        assert lines[0].startswith("entries [1, 10000] of group orders")
        assert len(lines) == 2


@pytest.mark.slow
@pytest.mark.parametrize("when", [has_begun, two_work])
@pytest.mark.parametrize("number", _SIGNALS)
def test_a_stopped_pool_leaves_no_process(
    node: str, tmp_path: Path, number: signal.Signals, when: Callable[[set[int]], bool]
) -> None:
    """While workers start, and while they work; one sentence tells of it, and the exit code."""
    _stopped(node, tmp_path, *_PLAIN, number=number, when=when)


@pytest.mark.long
@pytest.mark.found
@pytest.mark.parametrize("when", [has_begun, spark_works])
@pytest.mark.parametrize("number", _SIGNALS)
def test_a_stopped_spark_leaves_no_process(
    node: str, tmp_path: Path, number: signal.Signals, when: Callable[[set[int]], bool]
) -> None:
    """Not its JVM and not its Python workers, which are no children of the driver's group."""
    _stopped(node, tmp_path, *_SPARK, number=number, when=when)
