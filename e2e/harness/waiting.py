"""Waits for conditions, with a deadline each, and the error of a run that cannot go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from e2e.cluster.errors import TimedOut
from e2e.cluster.shell import until

_T = TypeVar("_T")
_POLL_S: Final = 0.05


class HarnessError(Exception):
    """The run cannot go on; the message says what happened, or what did not happen in time."""


def eventually(
    what: str, probe: Callable[[], _T | None], deadline_s: float, poll_s: float = _POLL_S
) -> _T:
    """Return the first truthy answer of *probe*.

    Raises:
        HarnessError: There was none within *deadline_s*.
    """
    try:
        return until(what, probe, timeout_s=deadline_s, interval_s=poll_s)
    except TimedOut as late:
        raise HarnessError(str(late)) from None


async def eventually_async(
    what: str, probe: Callable[[], Awaitable[_T | None]], deadline_s: float, poll_s: float = _POLL_S
) -> _T:
    """Do what `eventually` does, for a probe that is awaited. Raises HarnessError."""
    end_s = time.monotonic() + deadline_s
    while not (answer := await probe()):
        if time.monotonic() >= end_s:
            raise HarnessError(f"{what}: not within {deadline_s:g} s")
        await asyncio.sleep(poll_s)
    return answer


async def came_true(holds: Callable[[], object], deadline_s: float) -> bool:
    """Wait until *holds*, which must not block; return whether it did within the deadline."""
    end_s = time.monotonic() + deadline_s
    while True:
        if (held := bool(holds())) or time.monotonic() >= end_s:
            return held
        await asyncio.sleep(_POLL_S)
