"""Whom a leader waits for before it drops what they need.

A snapshot that takes long to send would give way to a newer one, or the log behind it be dropped,
before the follower has both; then the next one is sent, and so on for ever. So taking snapshots
and dropping the log wait while such a follower gets on. Owned by `maintenance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger.raft.progress import Progress, ProgressState
from dledger.types import NodeId

MAX_ROUNDS: Final = 600
"""For how many rounds in a row, of a second each, others wait: the disk must not fill up."""


class SlowFollowers:
    """The followers of one leader that lack what retention has let go."""

    def __init__(self) -> None:
        self._places: dict[NodeId, tuple[int, int]] = {}
        self._rounds = 0

    def get_on(self, progress: Mapping[NodeId, Progress], first_index: int) -> bool:
        """Whether one of them has moved since the last call, when it lagged as well.

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
