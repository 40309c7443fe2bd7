"""When a leader should step down, and its final message. Pure decisions, called by the driver.

The reasons are a disk that is too slow, a majority that no longer acknowledges entries, and a disk
that has failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.raft.core import Raft
from dledger.raft.messages import TimeoutNow


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """How long a single write and sync of a leader may take.

    Attributes:
        stall_s: The limit in any case. When all disks are slow, as on a single machine, another
            leader would not help, so this limit is the longer one.
        behind_s: The limit once the group has committed what is being written: the other disks
            were faster, and this leader's responses wait for its own.
    """

    stall_s: float = 1.0  # a promise is a second (P3); healthy disks have hiccups of less
    behind_s: float = 0.5  # as long as followers wait for a leader that is silent


class StallWatch:
    """Checks a leader's disk at every tick, and decides when to step down because of it."""

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._behind_since_s: float | None = None

    def exceeded(self, now_s: float, *, busy_since_s: float | None, is_behind: bool) -> bool:
        """Whether the sync running since *busy_since_s*, if any, takes too long.

        Time before the group committed the entries does not count towards *behind_s*: disks that
        stalled together recover one after the other.
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
    """Checks at every tick whether entries wait, and since when the commit index is unchanged.

    A leader that hears from no quorum steps down within an election timeout (thesis 6.2). But
    followers may answer heartbeats, which use a separate connection, and yet acknowledge no entry:
    then nothing is committed although the leader seems healthy.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._waits_behind: int | None = None

    def look(self, now_s: float, waits_behind: int | None) -> None:
        """Record the state at this tick.

        Args:
            now_s: The current time, monotonic seconds.
            waits_behind: The commit index if this node leads and has an entry behind it; else None.
        """
        if waits_behind is None:
            self._since_s = None
        elif self._since_s is None or waits_behind != self._waits_behind:
            self._since_s = now_s
        self._waits_behind = waits_behind

    def waited_s(self, now_s: float) -> float:
        """Return for how long entries have waited without any being committed; 0 if none waits."""
        return 0.0 if self._since_s is None else now_s - self._since_s


def last_words(core: Raft) -> TimeoutNow | None:
    """Return a TimeoutNow to the best follower, to campaign at once; None if there is none.

    This is the last message of a leader whose disk has failed. It depends on no write of this node.
    A candidate with an older log loses the election (Raft 5.4.1), so it is safe; a follower with
    every entry wins, otherwise the election timeouts decide, as they would without it. It is the
    final step of a leadership transfer without the earlier ones (thesis 3.10).
    """
    best = core.transfer_candidate()
    if best is None:
        return None
    return TimeoutNow(sender=core.id, recipient=best, term=core.term)
