"""Long work in a thread, in short turns, so that the event loop has the interpreter in between.

Two threads that compute share the interpreter by turns of `sys.getswitchinterval`, and the loop
gives it up at every system call: beside a thread that computes for half a second it does next to
nothing for that long. It is not held up by one that sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

_T = TypeVar("_T")
_WORK_S: Final = 0.001
_REST_S: Final = 0.004


def in_short_turns(pieces: Iterable[_T]) -> Iterator[_T]:
    """Yield *pieces*; sleep 4 ms whenever making them has taken 1 ms since the last sleep."""
    turn_ends_s = time.perf_counter() + _WORK_S
    for piece in pieces:
        yield piece
        if time.perf_counter() >= turn_ends_s:
            time.sleep(_REST_S)
            turn_ends_s = time.perf_counter() + _WORK_S
