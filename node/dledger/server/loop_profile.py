"""How long the event loop's turns take, in processor time: what keeps all else waiting meanwhile.

A beat of the loop every 20 ms looks at how much the loop's thread has computed since the one
before. A turn that takes longer holds the next beat up, so it is seen whole, with at most a beat's
worth of other work: the figure may be 20 ms too high, never too low. Processor time, because wall
time says as much about the neighbours on a machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.02
LONG_S: Final = 0.25
"""A turn worth a line in the log: half of an election timeout."""


class LoopProfile:
    """Measures the event loop that it was started on.

    Args:
        observe: Is given the CPU seconds between each two beats.
        cpu_s: The clock; by default that of the calling thread.
    """

    def __init__(
        self, observe: Callable[[float], None], cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._observe, self._cpu_s = observe, cpu_s
        self._seen_s = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure the running event loop."""
        self._seen_s = self._cpu_s()
        self._wait()

    def stop(self) -> None:
        """Measure no longer."""
        if self._handle is not None:
            self._handle.cancel()

    def _wait(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now_s = self._cpu_s()
        taken_s, self._seen_s = now_s - self._seen_s, now_s
        self._observe(taken_s)
        if taken_s >= LONG_S:
            logger.warning("the event loop computed for %.0f ms in one piece", taken_s * 1000)
        self._wait()
