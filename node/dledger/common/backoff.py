"""Trying again: pauses that grow, and attempts until a deadline.

Used by all that reaches for something which may be away for a while: links between nodes, door
processes, clients, the spool, the operator's rounds, the pipeline's reader. No chance is added to a
pause: what tries again here is one for each peer, process or stream, not a crowd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dledger.errors import Unavailable

_T = TypeVar("_T")
_MOST_DOUBLINGS: Final = 30


def doubled_s(times: int, *, first_s: float, most_s: float) -> float:
    """Return *first_s* seconds, doubled *times* times, but no more than *most_s*."""
    return min(first_s * (1 << min(times, _MOST_DOUBLINGS)), most_s)


class Backoff:
    """How long to wait after each failure of a row: twice as long as after the one before.

    Args:
        first_s: The first pause, in seconds.
        most_s: The longest.
        at_once: Whether a row begins with a pause of nothing instead; *first_s* comes second.
        calm_s: What lasted longer than this before it failed begins a new row; None: *most_s*.
    """

    __slots__ = ("_at_once", "_calm_s", "_failures", "_first_s", "_most_s")

    def __init__(
        self, first_s: float, most_s: float, *, at_once: bool = False, calm_s: float | None = None
    ) -> None:
        self._first_s, self._most_s, self._at_once = first_s, most_s, at_once
        self._calm_s = most_s if calm_s is None else calm_s
        self._failures = 0

    def reset(self) -> None:
        """Begin a new row: it has succeeded, or there is reason to think that it will."""
        self._failures = 0

    def next_s(self, lasted_s: float = 0.0) -> float:
        """Return how long to wait before the next attempt, after one that lasted *lasted_s*."""
        if lasted_s > self._calm_s:
            self.reset()
        doublings = self._failures - self._at_once
        self._failures += 1
        if doublings < 0:
            return 0.0
        return doubled_s(doublings, first_s=self._first_s, most_s=self._most_s)


async def retry(
    attempt: Callable[[float], Awaitable[_T]], *, timeout_s: float, pause_s: float
) -> _T:
    """Return what *attempt* returns; try again while it raises Unavailable and there is time.

    Args:
        attempt: Tries once. It is told how many seconds are left, at least *pause_s*.
        timeout_s: In all. No attempt begins later.
        pause_s: Between two attempts.

    Raises:
        Unavailable: The last attempt's, when the time is up.
        Exception: Whatever else *attempt* raises, at once.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        try:
            return await attempt(max(pause_s, deadline_s - loop.time()))
        except Unavailable:
            if loop.time() + pause_s >= deadline_s:
                raise
        await asyncio.sleep(pause_s)
