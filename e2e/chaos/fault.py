"""A fault that is on: what `nemesis` must know of it, whoever began it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from e2e.harness.proxy import Direction


@dataclass(slots=True)
class Fault:
    """Who is down for others, what is cut, and how it ends.

    *hit* says whether it had an effect; *settle*, if there is one, waits for that and says so
    instead; *undo* ends it; *repair* does what nodes do not do by themselves, and where it *costs
    a majority* for a while, the time without a leader says nothing.
    """

    nodes: Sequence[str]
    down: Sequence[str] = ()
    cuts: Sequence[Direction] = ()
    writable: bool = True
    undo: Callable[[], None] = lambda: None
    hit: Callable[[], bool] = lambda: True
    settle: Callable[[], Awaitable[bool]] | None = None
    repair: Callable[[], Awaitable[None]] | None = None
    costs_majority: bool = False
