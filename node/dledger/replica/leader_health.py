"""When a leader should let another lead, and what it says last. Pure decisions, for the driver.

Its disk may be too slow, a majority may have stopped acknowledging, or its disk may have failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.raft.core import Raft
from dledger.raft.messages import TimeoutNow


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """How long one write and sync of a leader may take.

    Attributes:
        stall_s: In any case. When all disks are slow, as on one machine, nobody is behind and a
            change would not help: it comes only after this time.
        behind_s: Once the group has committed what is being written: the others' disks were
            faster, and what we answer waits for ours.
    """

    stall_s: float = 1.0  # a promise is a second (P3); healthy disks have hiccups of less
    behind_s: float = 0.5  # as long as followers wait for a leader that is silent


class StallWatch:
    """Looks at a leader's disk at every tick, and says when it is a reason to step down."""

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._behind_since_s: float | None = None

    def exceeded(self, now_s: float, *, busy_since_s: float | None, is_behind: bool) -> bool:
        """Whether the sync under way since *busy_since_s*, if any, takes too long.

        Time before the others were faster is not time behind: disks that hung together come back
        one after the other.
        """
        if busy_since_s is None or not is_behind:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now_s
        if busy_since_s is None:
            return False
        if now_s - busy_since_s >= self._limits.stall_s:
            return True
        if self._behind_since_s is None:
            return False
        return now_s - max(busy_since_s, self._behind_since_s) >= self._limits.behind_s


class CommitWatch:
    """Looks at every tick whether entries wait, and since when the commit index stands still.

    A leader that hears no quorum at all steps down within an election timeout (thesis 6.2). But
    followers may answer heartbeats, which have a connection of their own, and acknowledge no entry:
    then nothing is committed, under a leader that seems well.
    """

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


def last_words(core: Raft) -> TimeoutNow | None:
    """Return the request to the best follower to campaign at once; None without one.

    It rests on no write of ours, and need not be granted: whoever has an older log loses. A
    follower that has everything wins; else the others' timeouts decide, as without it. It is the
    end of a hand-over without its beginning (thesis 3.10).
    """
    best = core.transfer_candidate()
    if best is None:
        return None
    return TimeoutNow(sender=core.id, recipient=best, term=core.term)
