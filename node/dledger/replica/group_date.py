"""The date of a group: which of its members' wall clocks is believed. Pure functions.

A wall clock may be wrong by anything, so none is believed alone. With n voters, a minority of
f = (n - 1) // 2 may be wrong at a time. Called by `dating`; adr 43 has the cases that were tried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from dledger.raft.quorum import majority
from dledger.types import NodeId

LEAP_MS: Final = 5_000
"""How far the date may be ahead of the log's time before the log leaps to it."""
AHEAD_MS: Final = 1_000
"""How far the log's time may be ahead of the date before it runs slower."""


def group_date(
    clocks: Mapping[NodeId, int], voter_sets: Sequence[Collection[NodeId]]
) -> int | None:
    """Return the date of a group, Unix milliseconds; None if too few clocks were heard.

    Args:
        clocks: The clocks that were heard, one's own included, as they are now.
        voter_sets: The voters; in a joint membership both sets. The earlier of their dates counts.
    """
    dates = [_date(sorted(clocks[v] for v in voters if v in clocks), len(voters))
             for voters in voter_sets]  # fmt: skip
    known = [date for date in dates if date is not None]
    return min(known) if known and len(known) == len(dates) else None


def _date(heard: Sequence[int], voters: int) -> int | None:
    """Return the highest clock that no minority can have pushed ahead; never above the middle.

    With all heard it is exact as long as a majority is. With fewer, a minority may hold it behind,
    which is the side to err on: what waits a little longer is not lost.
    """
    if len(heard) < majority(voters):
        return None
    minority = (voters - 1) // 2
    return heard[min(len(heard) - minority - 1, (len(heard) - 1) // 2)]
