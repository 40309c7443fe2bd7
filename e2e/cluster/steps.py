"""Says on standard error what is being done and how long it took; plain lines, terminal or not."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Steps:
    """A clock that starts when it is made, and a line for the start and the end of each step."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._started_s = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print one line with the time since the beginning."""
        with self._lock:
            line = f"[{time.monotonic() - self._started_s:6.1f} s] {text}\n"
            (self._out or sys.stderr).write(line)
            (self._out or sys.stderr).flush()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print the start of *name*, and how it ended after how long."""
        began_s = time.monotonic()
        self.say(f"start  {name}")
        ended = "failed"
        try:
            yield
            ended = "done  "
        finally:
            self.say(f"{ended} {name} ({time.monotonic() - began_s:.1f} s)")
