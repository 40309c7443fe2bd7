"""How long a leader has been without a majority's word on what it wrote. Pure, for the driver.

A leader that hears no quorum at all steps down within an election timeout (thesis 6.2). But one may
answer heartbeats, which have a connection of their own, and acknowledge no entry: then nothing is
committed, under a leader that seems well.
"""

from __future__ import annotations


class CommitWatch:
    """Looks at every tick whether entries wait, and since when the commit index stands still."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._commit_index = 0

    def look(self, now_s: float, *, waits: bool, commit_index: int) -> None:
        """Take note of how it is.

        Args:
            now_s: The time.
            waits: Whether this node leads, and an entry of its log is not committed.
            commit_index: The commit index.
        """
        if not waits:
            self._since_s = None
        elif self._since_s is None or commit_index != self._commit_index:
            self._since_s = now_s
        self._commit_index = commit_index

    def waited_s(self, now_s: float) -> float:
        """Return for how long entries have waited without any being committed; 0 if none waits."""
        return 0.0 if self._since_s is None else now_s - self._since_s
