"""A limit of time for each test: one that hangs fails, says where, and the others go on.

A signal interrupts it, so it works wherever Python runs: in an event loop that waits for what never
comes, at a lock, in a fixture, in each process of ``-n 2``; and a process that a test forks has no
part in it. What is said then is the stack of every thread and of every task of asyncio: the stack
of a loop that waits shows no more than that. A test that Python cannot interrupt, since it is in C
and keeps the interpreter, ends its whole process after twice the time, and shows its stacks there;
pytest-xdist names the test and goes on in a new process.

The limits are for what never comes: far more than a busy machine takes. ``--time-limit 0`` has
none, for a debugger.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator, Mapping
from types import FrameType
from typing import Final, TypeAlias

import pytest

DEFAULT_S: Final = 300.0
"""Five times the longest short test, on a machine that has nothing else to do."""
LIMITS_S: Final[Mapping[str, float]] = {"alone": 900.0, "long": 1800.0, "e2e": 3600.0}
"""Of tests with these marks; the largest counts. A cluster may have to be built first."""
_AGAIN_S: Final = 5.0
"""A task of asyncio keeps what is raised in it, so it is raised again, until it is elsewhere."""
_BUILDS: Final = ("e2e/cluster/golang.py", "e2e/cluster/image.py")
"""Files whose functions may take as long as they take: the first test that needs a program that is
built from its sources waits for that."""
_MOST_TASKS: Final = 100

_Phase: TypeAlias = Generator[None, None, None]
_LIMIT = pytest.StashKey[float]()
_STDERR = pytest.StashKey[int]()


class TimeLimit(BaseException):
    """A test took too long. No Exception: the code under test must not handle it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-limit",
        type=float,
        default=DEFAULT_S,
        metavar="SECONDS",
        help=f"of a test without a mark that gives it more (default {DEFAULT_S:.0f}; 0: no limits)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # while a test runs, 2 is where its output is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[_STDERR])


def limit_s(item: pytest.Item) -> float:
    """Return the limit of each of a test's phases in seconds: of setup, call and teardown."""
    default: float = item.config.getoption("--time-limit")
    if not default:
        return 0.0
    marks = (LIMITS_S[mark.name] for mark in item.iter_markers() if mark.name in LIMITS_S)
    return max(default, *marks, 0.0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> _Phase:
    with _limited(item, "setup"):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> _Phase:
    with _limited(item, "call"):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> _Phase:
    with _limited(item, "teardown"):
        yield


@contextlib.contextmanager
def _limited(item: pytest.Item, phase: str) -> Iterator[None]:
    """Raise TimeLimit in what takes too long inside, wherever it is then."""
    limit = limit_s(item)
    if not limit or threading.current_thread() is not threading.main_thread():
        yield
        return
    stderr = item.config.stash[_STDERR]

    def strike(_: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback_later(limit, exit=True, file=stderr)
        if not _builds(frame):
            raise TimeLimit(f"{item.nodeid} ({phase}) took over {limit:g} s\n\n{stacks(frame)}")

    before = signal.signal(signal.SIGALRM, strike)
    faulthandler.dump_traceback_later(2 * limit, exit=True, file=stderr)
    signal.setitimer(signal.ITIMER_REAL, limit, min(limit, _AGAIN_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _builds(frame: FrameType | None) -> bool:
    return any(each.f_code.co_filename.endswith(_BUILDS) for each, _ in traceback.walk_stack(frame))


def stacks(frame: FrameType | None) -> str:
    """Return what every thread and every task does, the main thread being at *frame*."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    for ident, each in sys._current_frames().items():
        at = frame if ident == main and frame is not None else each
        out.write(f"-- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(at))}\n")
    for task in _tasks()[:_MOST_TASKS]:
        out.write(f"-- task {task.get_name()}\n")
        task.print_stack(file=out)
    return out.getvalue()


def _tasks() -> list[asyncio.Task[object]]:
    try:
        return sorted(asyncio.all_tasks(), key=asyncio.Task.get_name)
    except RuntimeError:  # no loop runs
        return []
