"""Measures how long iterations of the event loop take, in CPU time: all else waits meanwhile.

A timer fires every 20 ms and reads the CPU time that the loop's thread has used since the last
time. A longer iteration delays the timer, so it is measured whole, plus at most 20 ms of other
work: the figure may be 20 ms too high, never too low. CPU time, because wall time depends on other
processes of the machine.
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
"""An iteration this long is logged: half of an election timeout."""


class LoopProfile:
    """Measures the event loop that it was started on.

    Args:
        observe: Called with the CPU seconds between two timer events.
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
            logger.warning("the event loop was busy for %.0f ms without a break", taken_s * 1000)
        self._wait()
