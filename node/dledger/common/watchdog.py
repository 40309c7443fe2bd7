"""Ends a process whose event loop stands still: it can neither lead, follow nor stop by itself.

A thread looks at a beat of the loop. It counts its own looks rather than time, so that a process
that was frozen as a whole, and its watchdog with it, is not taken for one that is stuck. With work
that is known to take long and to end, it bears for longer (`during`).
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
    """Counts looks at a number that did not move.

    Args:
        looks: How many in a row make it stuck; may be changed.
    """

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self._seen: int | None = None
        self._same = 0

    def look(self, beat: int) -> bool:
        """Take the present beat; return whether it has stood still for all the looks."""
        self._same = self._same + 1 if beat == self._seen else 0
        self._seen = beat
        return self._same >= self.looks


def end_process(doing: str, still_s: float) -> None:
    """Write where every thread stands to standard error, and exit; nothing is cleaned up.

    Args:
        doing: What the event loop is at, as far as it has said; may be empty.
        still_s: For how long it has not run.
    """
    logger.critical("the event loop has not run for %g s%s: this process ends", still_s, doing)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_STUCK)


class Watchdog:
    """Watches the event loop that it was started on.

    Args:
        on_stuck: Called once, on the watchdog's thread, as `end_process` is.
        look_s: Between two looks.
        looks: Looks in vain, one after the other, until the loop is stuck.
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
        """Begin to watch the running event loop."""
        self._beats()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._ended.set()
        if self._handle is not None:
            self._handle.cancel()

    @property
    def is_patient(self) -> bool:
        """Whether the loop is at work that it was given more time for."""
        return self._doing != ""

    @contextmanager
    def during(self, work: str, *, looks: int) -> Iterator[None]:
        """Bear with the loop for so many looks while it does *work*, which is named if it fails."""
        before = self._stillness.looks
        self._doing, self._stillness.looks = f", while it was to {work}", max(looks, before)
        try:
            yield
        finally:
            self._beat += 1  # what stood still until now has moved, and is judged from here on
            self._doing, self._stillness.looks = "", before

    def _beats(self) -> None:
        self._beat += 1
        self._handle = asyncio.get_running_loop().call_later(self._look_s / 2, self._beats)

    def _watch(self) -> None:
        while not self._ended.wait(self._look_s):
            if self._stillness.look(self._beat):
                self._on_stuck(self._doing, self._stillness.looks * self._look_s)
                return
