"""What the Python load programs have in common: `e2e.bench.loads` says what they are asked."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from dledger.errors import DledgerError

Answer = dict[str, Any]
Mode = Callable[..., Coroutine[Any, Any, Answer]]
"""Takes what is asked beside the mode, as keyword arguments."""
MAX_UNDER_WAY: Final = 4096
"""Requests of an open loop at once; beyond, a due request waits, and its latency shows it."""


async def serve(modes: Mapping[str, Mode]) -> int:
    """Answer one request after the other until the input ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer = await modes[asked.pop("mode")](**asked)
        except DledgerError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


async def closed_loop(
    window: int, seconds: float, attempt: Callable[[float], Coroutine[Any, Any, object]]
) -> None:
    """Keep *window* attempts under way for so long; each is given when it began (monotonic)."""
    end_s = time.monotonic() + seconds

    async def worker() -> None:
        while (now_s := time.monotonic()) < end_s:
            await attempt(now_s)

    await asyncio.gather(*(worker() for _ in range(window)))


async def open_loop(
    offsets_s: Iterable[float],
    attempt: Callable[[float], Coroutine[Any, Any, object]],
    *,
    most: int = MAX_UNDER_WAY,
) -> None:
    """Begin an attempt at each offset from now, whatever became of those before; wait for all.

    Each is given when it was due (monotonic). It ends early when it is cancelled, without an error;
    an attempt that raises ends it with that.
    """
    free = asyncio.Semaphore(most)
    errors: list[BaseException] = []
    under_way: set[asyncio.Task[object]] = set()

    def ended(task: asyncio.Task[object]) -> None:
        under_way.discard(task)
        free.release()
        if error := task.exception():
            errors.append(error)

    began_s = time.monotonic()
    with suppress(asyncio.CancelledError):
        for offset_s in offsets_s:
            if errors:
                break
            due_s = began_s + offset_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await free.acquire()
            task = asyncio.create_task(attempt(due_s))
            under_way.add(task)
            task.add_done_callback(ended)
    if under_way:
        await asyncio.wait(under_way)
    if errors:
        raise errors[0]


def every(period_s: float) -> Iterable[float]:
    """Return offsets without an end."""
    return (number * period_s for number in itertools.count())


class Tally:
    """What is counted while a load runs; threads share it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.end_s = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._latencies_us: list[int] = []
        self._failures = 0

    def is_running(self) -> bool:
        """Whether the load goes on."""
        return time.monotonic() < self.end_s

    def note(self, began_s: float, messages: int = 1, *, late: bool = False) -> None:
        """Count messages that one call brought; behind the end only if it may be *late*."""
        now_s = time.monotonic()
        if late or now_s <= self.end_s:
            with self._lock:
                self._latencies_us += [round((now_s - began_s) * 1e6)] * messages

    def note_failure(self) -> None:
        """Count a failed call."""
        with self._lock:
            self._failures += 1

    def answer(self) -> Answer:
        """Return it in the bench's language."""
        return {
            "requests": len(self._latencies_us),
            "failures": self._failures,
            "seconds": self._seconds,
            "latencies_us": self._latencies_us,
        }
