"""A pool of processes that runs the tasks of a job on this machine, without Spark.

Workers give way to whatever else runs here, and end with the process that started them, however
that ends. Used by `runner`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Final, TypeVar

from dledger.common.memory import keep_blocks
from dledger_pipeline.errors import WorkerFailed

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")
_NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_HELD: Final = (signal.SIGINT, signal.SIGTERM)


def run(
    tasks: Sequence[_Task],
    work: Callable[[_Task], _Found],
    *,
    workers: int,
    done: Callable[[_Task, _Found], None] = lambda *_: None,
) -> list[_Found]:
    """Return what *work* returns of each of *tasks*, in the order in which they are done.

    Args:
        tasks: Pickled, as are results and errors.
        work: A function that workers can import.
        workers: How many tasks run at once.
        done: Told each one and what it returned, at once.

    Raises:
        WorkerFailed: A worker was killed.
        Exception: What *work* raised; the other tasks are ended then.
    """
    results = []
    with _pool(min(workers, len(tasks))) as pool:
        try:
            submitted = _submitted(pool, tasks, work)
            for future in as_completed(submitted):
                results.append(future.result())
                done(submitted[future], results[-1])
        except BrokenProcessPool as error:
            raise WorkerFailed(
                "a worker process was killed before its work was done (out of memory?); "
                "nothing was published"
            ) from error
    return results


def _submitted(
    pool: ProcessPoolExecutor, tasks: Sequence[_Task], work: Callable[[_Task], _Found]
) -> dict[Future[_Found], _Task]:
    """Submit the tasks, which starts workers."""
    with _undisturbed():
        return {pool.submit(work, task): task for task in tasks}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait for the end of the block, so that no worker starts of which nobody knows.

    Workers that start in it inherit the mask: Ctrl-C, which a terminal sends to them as well, finds
    none of them without a handler. For this process a mask is not enough: another thread takes the
    signal, and Python calls the handler in this one all the same.
    """
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {
        each: signal.signal(each, lambda number, _: came.append(number))
        for each in (_HELD if is_main else ())
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in handlers.items():
            signal.signal(each, handler)
    for number in came:
        signal.raise_signal(number)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool; if the block is left before all is done, whatever still runs is killed.

    That is safe: an object is there as a whole or not at all.
    """
    others = set(multiprocessing.active_children())
    with _undisturbed():
        pool = ProcessPoolExecutor(
            workers,
            # A fork would have threads of gRPC's and Arrow's, but in name only.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(os.getpid(),),
        )
    try:
        yield pool
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        raise
    finally:
        # Waits for the pool's thread: after a first call with wait=False nobody would, and Python's
        # own end would write to the pipe that the thread is closing.
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Make this process a worker of *parent*."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before this process could ask for the signal
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    os.nice(_NICE)
    keep_blocks()
