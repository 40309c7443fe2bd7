"""Ends a process whose event loop is stuck: it can neither lead, follow nor stop by itself.

A thread checks whether a counter on the event loop moves. It counts its own checks instead of time,
so that a process that was paused as a whole does not count as stuck. Work that is known to take
long, and to end, gets more time (`during`). Used by ``dledger node``.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
LOOKS: Final = 10
EXIT_STUCK: Final = 4


class Stillness:
    """Counts checks that found a number unchanged.

    Args:
        looks: How many in a row mean that it is stuck; may be changed.
    """

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self._seen: int | None = None
        self._same = 0

    def look(self, beat: int) -> bool:
        """Check the current *beat*; return whether it is stuck."""
        self._same = self._same + 1 if beat == self._seen else 0
        self._seen = beat
        return self._same >= self.looks


def end_process(doing: str, still_s: float) -> None:
    """Write the stack of every thread to standard error, and exit without any cleanup.

    Args:
        doing: What the event loop was doing, as given to `Watchdog.during`; may be empty.
        still_s: How long it has not run.
    """
    logger.critical("the event loop has not run for %g s%s: this process ends", still_s, doing)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_STUCK)


class Watchdog:
    """Watches the event loop that it was started on.

    Args:
        on_stuck: Called once, on the watchdog's thread, as `end_process` is.
        look_s: The time between two checks.
        looks: How many checks in a row must find the loop unchanged for it to be stuck.
    """

    def __init__(
        self,
        on_stuck: Callable[[str, float], None] = end_process,
        *,
        look_s: float = LOOK_S,
        looks: int = LOOKS,
    ) -> None:
        self._on_stuck, self._look_s = on_stuck, look_s
        self._stillness = Stillness(looks)
        self._doing = ""
        self._beat = 0
        self._ended = threading.Event()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start watching the running event loop."""
        self._beats()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._handle is not None:
            self._handle.cancel()

    @property
    def is_patient(self) -> bool:
        """Whether the loop does work that has extra time."""
        return self._doing != ""

    @contextmanager
    def during(self, work: str, *, looks: int) -> Iterator[None]:
        """Allow the loop at least *looks* checks while it does *work*, which the log names."""
        before = self._stillness.looks
        self._doing, self._stillness.looks = f", while it was to {work}", max(looks, before)
        try:
            yield
        finally:
            self._beat += 1  # the loop has moved: count from here on
            self._doing, self._stillness.looks = "", before

    def _beats(self) -> None:
        self._beat += 1
        self._handle = asyncio.get_running_loop().call_later(self._look_s / 2, self._beats)

    def _watch(self) -> None:
        while not self._ended.wait(self._look_s):
            if self._stillness.look(self._beat):
                self._on_stuck(self._doing, self._stillness.looks * self._look_s)
                return
