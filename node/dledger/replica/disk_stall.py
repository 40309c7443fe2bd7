"""When a leader's disk is too slow for it to lead. A pure decision, for the driver."""

from __future__ import annotations

from dataclasses import dataclass


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
