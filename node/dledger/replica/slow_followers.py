"""The slow followers that a leader waits for before it drops entries they need.

A snapshot that takes long to send would be replaced by a newer one, or the log after it dropped,
before the follower has both; the leader would then send the next one, and so on for ever. So
snapshots and log truncation wait while such a follower makes progress. Owned by `maintenance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger.raft.progress import Progress, ProgressState
from dledger.types import NodeId

MAX_ROUNDS: Final = 600
"""The most rounds in a row, a second each, that maintenance waits: the disk must not fill up."""


class SlowFollowers:
    """The followers of one leader that lack entries which retention has dropped."""

    def __init__(self) -> None:
        self._places: dict[NodeId, tuple[int, int]] = {}
        self._rounds = 0

    def get_on(self, progress: Mapping[NodeId, Progress], first_index: int) -> bool:
        """Whether a follower that was slow at the last call, and still is, has made progress since.

        Args:
            progress: The leader's view of each follower; empty when not leading.
            first_index: The oldest entry that retention keeps.
        """
        before, self._places = self._places, _places(progress, first_index)
        moves = any(before.get(peer, place) != place for peer, place in self._places.items())
        self._rounds = self._rounds + 1 if moves else 0
        return moves and self._rounds <= MAX_ROUNDS


def _places(progress: Mapping[NodeId, Progress], first_index: int) -> dict[NodeId, tuple[int, int]]:
    return {
        peer: (one.match_index, one.snapshot_offset)
        for peer, one in progress.items()
        if one.state is ProgressState.SNAPSHOT or one.match_index < first_index - 1
    }
