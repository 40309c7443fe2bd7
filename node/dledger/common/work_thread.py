"""A thread that runs one callable after another and reports each to the event loop.

For work done at every write: it takes a third of the CPU time of an executor's future, and one
iteration of the event loop less. Used by the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

Done = Callable[[BaseException | None], None]
_Work = tuple[asyncio.AbstractEventLoop, Callable[[], None], Done]


class Worker(Protocol):
    """Runs callables in order, outside the event loop."""

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Run *work*, then call *done* on the running loop with its exception, or None."""

    async def close(self) -> None:
        """Accept no more work; return when all accepted work is done."""


class WorkThread:
    """A `Worker` that is a thread. The queue is not bounded here; callers must limit their work.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread = Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None], done: Done) -> None:
        """See `Worker`."""
        self._queue.put((asyncio.get_running_loop(), work, done))

    async def close(self) -> None:
        """See `Worker`."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        while (given := self._queue.get()) is not None:
            loop, work, done = given
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - every error is reported to the loop
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, error)
            del given, loop, work, done, error
