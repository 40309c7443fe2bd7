"""How a node takes its next snapshot after it died during the last one. Pure.

Taking a snapshot may kill the process, because it takes longer than the watchdog allows or more
memory than there is. The snapshot would still be due after the restart, and so on for ever, on all
nodes of the group at about the same entry. Therefore each attempt leaves a marker on the disk, and
after a crash the next attempt waits, longer each time and for a random time on each node, while the
log grows; the watchdog allows it more time; and a leader first transfers leadership. Each attempt
is more likely to succeed than the last. If none does, the log grows until the disk is full, and
writes are refused with DiskFull. Called by `maintenance` and `snapshots`.

One death alone is more likely somebody's kill, a power cut or a restart. Where messages wait for
the room that the snapshot would make, the first attempt after it comes within seconds.
"""

from __future__ import annotations

from typing import Final

from dledger.common.backoff import doubled_s
from dledger.common.watchdog import LOOKS

FIRST_WAIT_S: Final = 60.0
FIRST_WAIT_FOR_ROOM_S: Final = 3.0
MOST_WAIT_S: Final = 3_600.0
MOST_TRANSFERS: Final = 3
"""How often a leader tries to transfer leadership before a snapshot; then it takes it anyway."""
_FIRST_LOOKS: Final = 3 * LOOKS
"""Freezing the state is bounded work, so an event loop that does it is not stuck yet."""
_MOST_LOOKS: Final = 60 * LOOKS


def wait_s(unfinished: int, spread: float, *, for_room: bool) -> float:
    """Return for how many seconds after its start a node takes no snapshot by policy.

    Args:
        unfinished: Consecutive attempts during which the process died.
        spread: Random, in [0, 1), so that the nodes of a group wait for different times.
        for_room: Whether the disk is short of the room that a snapshot lets go.
    """
    if not unfinished:
        return 0.0
    if for_room and unfinished == 1:
        return FIRST_WAIT_FOR_ROOM_S * (1 + spread)
    grown_s = doubled_s(unfinished - 1, first_s=FIRST_WAIT_S, most_s=MOST_WAIT_S)
    return grown_s * (1 + spread)


def looks(unfinished: int) -> int:
    """Return after how many failed checks the watchdog gives up on freezing the state."""
    return min(_FIRST_LOOKS << min(unfinished, 30), _MOST_LOOKS)
