"""How quickly a follower that is behind gets what it lacks, while clients are served without it.

All it lacks at once would keep the leader's disk and network busy, and clients would wait for them.
So while entries are committed, nobody gets more than a share of entries that are committed already
from one tick to the next. Where commits wait for the follower, or nobody writes, nothing is held
back; nor are ever the entries that are not committed yet.
"""

from __future__ import annotations

from typing import Final

from dledger.types import NodeId

_TIMES_SETTLED: Final = 2
"""Of what clients wrote in the tick before: whoever is behind has to come nearer."""


class FlowControl:
    """What each follower may still get in this tick. Sizes are bytes of entry data."""

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._room_bytes: int | None = None
        self._settled_bytes = 0
        self._sent_bytes: dict[NodeId, int] = {}

    def settled(self, size_bytes: int) -> None:
        """Note that an entry of this term was committed."""
        self._settled_bytes += size_bytes

    def tick(self) -> bool:
        """Begin the next share; returns whether somebody has used up the one before."""
        held = bool(self._sent_bytes) and not all(map(self.admits, self._sent_bytes))
        self._sent_bytes.clear()
        self._room_bytes = None
        if self._settled_bytes:
            self._room_bytes = max(self._least_bytes, _TIMES_SETTLED * self._settled_bytes)
        self._settled_bytes = 0
        return held

    def admits(self, peer: NodeId) -> bool:
        """Whether *peer* may get more committed entries now; the last message may exceed it."""
        return self._room_bytes is None or self._sent_bytes.get(peer, 0) < self._room_bytes

    def sent(self, peer: NodeId, size_bytes: int) -> None:
        """Note what *peer* was sent of committed entries."""
        if self._room_bytes is not None:
            self._sent_bytes[peer] = self._sent_bytes.get(peer, 0) + size_bytes
