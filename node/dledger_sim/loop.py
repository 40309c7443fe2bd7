"""Simulated time, and an asyncio event loop for each life of a process, all on one virtual clock.

What is due next happens next; the order of ties is the order of asking. A loop has what the
shipped driver asks of one, and nothing else: callbacks, timers, futures, tasks and jobs for
executors. A job takes virtual time; it runs at one moment of that time and is reported at its
end, so that effects on disk may be older than what the loop knows of them. `kill` ends everything
at once, as the end of a process does; `pause` lets time pass without it (SIGSTOP).
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

MS: Final = 1000
S: Final = 1000 * MS
"""In the unit of simulated time, a microsecond."""
MAX_AT_ONCE: Final = 100_000
"""Actions at one moment; more are an endless loop in which time does not advance."""
MAX_ACTIONS: Final = 20_000_000
"""In a whole run, which takes some ten thousand."""


class StalledError(BaseException):
    """A run does not end. Not an `Exception`, so that handlers in a node do not catch it."""


class Clock:
    """A queue of actions by time, in microseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self._count = self._done = self._done_before = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let *action* happen after a delay."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._count, action))

    def run_until(self, end_us: int, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to *end_us*; returns whether *stop* became true before.

        Raises:
            StalledError: Time stands still, or the run has too many actions.
        """
        while self._queue and self._queue[0][0] <= end_us:
            at_us, _, action = heapq.heappop(self._queue)
            self._count_action(at_us)
            action()
            if stop is not None and stop():
                return True
        self.now_us = end_us
        return False

    def _count_action(self, at_us: int) -> None:
        if at_us > self.now_us:
            self._done_before = self._done
        self.now_us = at_us
        self._done += 1
        if self._done - self._done_before > MAX_AT_ONCE:
            raise StalledError(f"{MAX_AT_ONCE} actions, and it is still {at_us} us")
        if self._done > MAX_ACTIONS:
            raise StalledError(f"{MAX_ACTIONS} actions by {at_us} us")


T = TypeVar("T")
Dial: TypeAlias = Callable[
    [Callable[[], asyncio.BaseProtocol], str],
    Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]],
]
"""Connects a protocol to the process of that name. Raises OSError."""


@dataclass(slots=True)
class Job:
    """Work of a thread: when it has run, *future* is told later."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    has_run: bool = False
    result: Any = None
    error: Exception | None = None

    def run(self) -> None:
        """Do the work, and keep what comes of it."""
        self.has_run = True
        try:
            self.result = self.function()
        except Exception as error:  # noqa: BLE001 - whatever a thread raises is its result
            self.error = error

    def report(self) -> None:
        """Hand over what came of it."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Handle(asyncio.TimerHandle):
    """A callback that can be cancelled; without contexts and debugging, which cost most."""

    def __init__(
        self, loop: ProcessLoop, callback: Callable[..., object], args: tuple[Any, ...], when: float
    ) -> None:
        self._loop: Any = loop
        self._callback: Any = callback
        self._args: Any = args
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def step(self) -> None:
        if not self._cancelled:
            self._loop.step(self)

    def step_aside(self) -> None:
        self._loop.step(self, aside=True)

    def call(self) -> None:
        if not self._cancelled:
            self._callback(*self._args)


@contextmanager
def generators_end_unseen() -> Iterator[None]:
    """Let asynchronous generators that begin within end without a word when nobody has them.

    A process that is killed leaves some amid their work. Python would have them do the rest of it,
    in a process that is gone. Those of processes that live are closed by whoever iterates.
    """
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)


class ProcessLoop:
    """The event loop of one process; of `asyncio.AbstractEventLoop` only what is asked of it.

    Args:
        clock: The time that all processes share.
        job_us: Draws how long a job takes, and when within that time it runs, in microseconds.
        after_step: Called after each callback, for whoever checks.

    Attributes:
        dial: How it connects to another process; None: it cannot.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        job_us: Callable[[], tuple[int, int]],
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._job_us = job_us
        self._after_step = after_step
        self._asyncio = cast("asyncio.AbstractEventLoop", self)
        self._alive = True
        self._untaken: Exception | None = None
        self._paused_until_us = 0
        self._held: deque[_Handle] = deque()
        self._jobs: dict[Executor, deque[Job]] = {}
        self._loose_jobs: list[Job] = []
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], None] = WeakKeyDictionary()
        self.dial: Dial | None = None

    # What the simulation asks

    @property
    def is_paused(self) -> bool:
        """Whether nothing runs for the time being."""
        return self._clock.now_us < self._paused_until_us or bool(self._held)

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Let the process do something now, or when its pause is over."""
        self.step(_Handle(self, callback, args, 0.0))

    def pause(self, pause_us: int) -> None:
        """Stop running for a while; what would have run then runs at its end, in order."""
        self._paused_until_us = self._clock.now_us + pause_us
        self._clock.after(pause_us, self._resume)

    def resume(self) -> None:
        """End a pause early."""
        self._paused_until_us = self._clock.now_us
        self._resume()

    def kill(self) -> list[Job]:
        """End the process; returns the jobs under way that have not run, in order."""
        self._alive = False
        self._held.clear()
        running, outer = asyncio.current_task(self._asyncio), _get_running_loop()
        over = {running}  # it ends by itself: none of its later steps is run
        _set_running_loop(self._asyncio)
        try:
            while left := [task for task in self._tasks if task not in over]:
                over.update(left)
                for task in left:  # what it does now nobody sees, and what it begins is over, too
                    with suppress(RuntimeError):
                        task.get_coro().close()
        finally:
            _set_running_loop(outer)
        begun = [jobs[0] for jobs in self._jobs.values() if jobs] + self._loose_jobs
        return [job for job in begun if not job.has_run]

    def step(self, handle: _Handle, *, aside: bool = False) -> None:
        """Run one callback, if the process lives and does not pause.

        What happens *aside*, in threads, is not followed by a check: the loop cannot see it yet.
        """
        if not self._alive:
            return
        if self.is_paused:
            self._held.append(handle)
            return
        outer = _get_running_loop()  # what runs now may put something into its own loop
        _set_running_loop(self._asyncio)
        try:
            handle.call()
        finally:
            _set_running_loop(outer)
        if self._untaken is not None:
            raise self._untaken
        if not aside:
            self._after_step()

    def _resume(self) -> None:
        if self._clock.now_us < self._paused_until_us:
            return
        held, self._held = self._held, deque()
        for handle in held:
            self._clock.after(0, handle.step)

    # What the driver asks

    def time(self) -> float:
        """Return seconds since the simulation began."""
        return self._clock.now_us / S

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback after those that are due already."""
        del context
        handle = _Handle(self, callback, args, 0.0)
        if self._alive:
            self._clock.after(0, handle.step)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback soon; jobs are the only other threads, and run on the same clock."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after *delay* seconds."""
        del context
        handle = _Handle(self, callback, args, self.time() + delay)
        if self._alive:
            self._clock.after(_whole_us(delay), handle.step)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a time."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        return asyncio.Future(loop=self._asyncio)

    def create_task(self, coro: Any, *, name: str | None = None, **_: Any) -> asyncio.Task[Any]:
        """Return a new task."""
        task = asyncio.Task(coro, loop=self._asyncio, name=name)
        self._tasks[task] = None
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Let a thread do something; the jobs of one executor run one after the other."""
        job = Job(lambda: func(*args), self.create_future())
        if executor is None:
            self._loose_jobs.append(job)
            self._begin(job, lambda: self._loose_jobs.remove(job))
        else:
            jobs = self._jobs.setdefault(executor, deque())
            jobs.append(job)
            if len(jobs) == 1:
                self._begin_next(jobs)
        return job.future

    def _begin_next(self, jobs: deque[Job]) -> None:
        def ended() -> None:
            jobs.popleft()
            if jobs:
                self._begin_next(jobs)

        self._begin(jobs[0], ended)

    def _begin(self, job: Job, ended: Callable[[], object]) -> None:
        def report() -> None:
            ended()
            job.report()

        total_us, until_run_us = self._job_us()
        self._clock.after(until_run_us, _Handle(self, job.run, (), 0.0).step_aside)
        self._clock.after(total_us, _Handle(self, report, (), 0.0).step_aside)

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: object
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect to another process. Raises OSError."""
        if self.dial is None:
            raise OSError(f"this process has no way to {host}:{port}")
        return await self.dial(factory, host)

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._alive

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return not self._alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody took, to be raised; what a dead process leaves behind is nobody's."""
        error = context.get("exception")
        if self._alive and error is not None:
            self._untaken = error


def _whole_us(delay_s: float) -> int:
    """Return a delay in whole microseconds; what is less than one takes one.

    Else whoever waits for the rest of a time, again and again, would wait for ever.
    """
    return max(1, round(delay_s * S)) if delay_s > 0 else 0
