"""How long there was no leader, and when there should have been one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from e2e.chaos.history import Probe

Cut: TypeAlias = tuple[str, str]
"""Messages from the first to the second do not arrive."""


def is_able(nodes: Collection[str], down: Collection[str], cuts: Collection[Cut]) -> bool:
    """Whether some running node can talk both ways with a majority, itself included."""
    up = [node for node in nodes if node not in down]
    return any(2 * sum(_talk(node, other, cuts) for other in up) > len(nodes) for node in up)


def first_leader_s(probes: Iterable[Probe], since_s: float) -> float | None:
    """Return when the first write that began after *since_s* was acknowledged; None if never.

    Only a leader that a majority follows acknowledges; so there was one then.
    """
    return min((p.ended_s for p in probes if p.invoked_s >= since_s), default=None)


def longest_gap_s(probes: Iterable[Probe], start_s: float, end_s: float) -> float:
    """Return the longest time in [start_s, end_s) without an acknowledgement."""
    times_s: Sequence[float] = sorted(
        {start_s, end_s, *(p.ended_s for p in probes if start_s <= p.ended_s < end_s)}
    )
    return max(
        (later - earlier for earlier, later in pairwise(times_s)),
        default=0.0,
    )


def _talk(one: str, other: str, cuts: Collection[Cut]) -> bool:
    return (one, other) not in cuts and (other, one) not in cuts
