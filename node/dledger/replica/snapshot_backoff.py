"""How a node takes its next snapshot after it ended in the middle of one. Pure.

A process that dies while it takes a snapshot, because that takes longer than its watchdog waits or
more memory than there is, would find the snapshot still due when it is started again: for ever, and
all nodes of a group at about the same entry. So a try leaves a mark on the disk, and the next one
waits, ever longer and each node by a time of its own, while the log grows; the watchdog has more
patience with it; and a leader hands its lead over before. Each try is likelier to end well than the
one before. If none does, the log grows until the disk has no room, and writes are refused by name.
"""

from __future__ import annotations

from typing import Final

from dledger.common.watchdog import LOOKS

FIRST_WAIT_S: Final = 60.0
MOST_WAIT_S: Final = 3_600.0
MOST_TRANSFERS: Final = 3
"""So often a leader tries to hand its lead over before a snapshot; then it takes it itself."""
_FIRST_LOOKS: Final = 3 * LOOKS
"""Freezing the state is known work that ends: a loop that does it is not stuck yet."""
_MOST_LOOKS: Final = 60 * LOOKS


def wait_s(unfinished: int, spread: float) -> float:
    """Return how long after its start a node takes no snapshot by policy.

    Args:
        unfinished: Tries in a row in whose middle the process ended.
        spread: Random, in [0, 1): other nodes wait for another time.
    """
    if not unfinished:
        return 0.0
    return min(FIRST_WAIT_S * (1 << min(unfinished - 1, 30)), MOST_WAIT_S) * (1 + spread)


def looks(unfinished: int) -> int:
    """Return for how many looks in vain the watchdog bears with freezing the state."""
    return min(_FIRST_LOOKS << min(unfinished, 30), _MOST_LOOKS)
