"""A run that comes to no end is ended by force, and so told with its seed like any that fails.

A loop of Python that waits for what cannot come takes CPU for ever; a lock that nobody gives back
takes none. Normal runs take a second or two of CPU.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

CPU_S: Final = 120.0
WALL_S: Final = 1800.0
_AGAIN_S: Final = 1.0
"""A task keeps what is raised in it, whatever it is; then it is raised again elsewhere."""


class StalledError(BaseException):
    """A run goes on for ever. No `Exception`: what catches those in a node is not to catch it."""


@contextmanager
def ended_by_force(*, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> Iterator[None]:
    """Raise StalledError in what takes longer, where it is then; in the main thread only.

    Args:
        cpu_s: CPU seconds of this process.
        wall_s: Seconds on the wall: far more, since others may have the machine.
    """
    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, cpu_s, f"{cpu_s:.0f} s of CPU"),
        (signal.ITIMER_REAL, signal.SIGALRM, wall_s, f"{wall_s:.0f} s"),
    )
    before = [signal.signal(number, _raiser(what)) for _, number, _, what in timers]
    try:
        for timer, _, limit_s, _ in timers:
            signal.setitimer(timer, limit_s, _AGAIN_S)
        yield
    finally:
        for (timer, number, _, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def _raiser(what: str) -> signal._HANDLER:
    def stalled(_: int, __: FrameType | None) -> None:
        raise StalledError(f"the run has not ended after {what}")

    return stalled


def while_true(condition: Callable[[], bool], *, most: int = 10_000) -> Iterator[None]:
    """Yield as long as *condition* holds; raises StalledError when that is *most* times."""
    for _ in range(most):
        if not condition():
            return
        yield
    raise StalledError(f"nothing has changed after {most} rounds")
