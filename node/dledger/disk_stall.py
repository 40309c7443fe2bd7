"""When a leader's disk is too slow for it to lead. A pure decision, for the driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """How long one write and sync of a leader may take.

    Attributes:
        stall_s: In any case.
        behind_s: Once the group has committed what is being written: the others' disks were
            faster, and what we answer waits for ours.
    """

    stall_s: float = 1.0
    behind_s: float = 0.5

    def exceeded(self, busy_s: float, *, is_behind: bool) -> bool:
        """Whether a sync under way for *busy_s* is a reason to give leadership up.

        When all disks are slow, as on one machine, nobody is behind and a change would not help:
        it comes only after the longer time.
        """
        return busy_s >= (self.behind_s if is_behind else self.stall_s)
