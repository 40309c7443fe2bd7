"""A thread that does one piece of work after the other, and tells the event loop of each.

For what is done at every write: a third of the processor time of an executor's future, and one
turn of the event loop less.
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
    """Does what it is given, in order, beside the event loop."""

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Do *work*, then call *done* on the running loop, with what it raised if it did."""

    async def close(self) -> None:
        """Take no more work, and return once what was given is done."""


class WorkThread:
    """A `Worker` that is a thread. Whoever gives it work bounds how much of that waits.

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
            except BaseException as raised:  # noqa: BLE001 - whatever it is, the loop must know
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, error)
            del given, loop, work, done, error
