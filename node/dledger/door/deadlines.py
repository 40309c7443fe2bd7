"""Until when calls may take: of all connections of a port, with one timer for those of a moment.

A timer of its own would be a good part of what a call costs that waits, and takes longer to be set
and cancelled than all that is done here.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final, Protocol

MOMENT_S: Final = 0.1
"""So much later than it says a call may end; its client counts for itself."""


class Ends(Protocol):
    """Who ends calls whose time is up."""

    def end_late(self, call: Any) -> None:
        """End one."""


class Moment:
    """Calls that end together."""

    __slots__ = ("calls", "number", "timer")

    def __init__(self, number: int, timer: asyncio.TimerHandle) -> None:
        self.number, self.timer = number, timer
        self.calls: dict[Any, Ends] = {}


class Deadlines:
    """Of one port."""

    __slots__ = ("_moments",)

    def __init__(self) -> None:
        self._moments: dict[int, Moment] = {}

    def __len__(self) -> int:
        """Return how many timers there are."""
        return len(self._moments)

    def enter(self, call: Any, ends: Ends, deadline_s: float) -> Moment:
        """Have a call ended at its time, unless it leaves before: by what is returned.

        Args:
            call: Which.
            ends: Who ends it.
            deadline_s: Event-loop time; up to `MOMENT_S` later is meant.
        """
        number = math.ceil(deadline_s / MOMENT_S)
        moment = self._moments.get(number)
        if moment is None:
            loop = asyncio.get_running_loop()
            timer = loop.call_at(number * MOMENT_S, self._end, number)
            moment = self._moments[number] = Moment(number, timer)
        moment.calls[call] = ends
        return moment

    def leave(self, call: Any, moment: Moment) -> None:
        """Forget a call that has ended."""
        moment.calls.pop(call, None)
        if not moment.calls and self._moments.get(moment.number) is moment:
            moment.timer.cancel()
            del self._moments[moment.number]

    def _end(self, number: int) -> None:
        moment = self._moments.pop(number)
        while moment.calls:
            call, ends = moment.calls.popitem()
            ends.end_late(call)
