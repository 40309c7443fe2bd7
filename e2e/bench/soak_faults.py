"""What is done to a group during a soak, one after the other, and when it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from e2e.bench.elections import Made
from e2e.bench.faults import KILL, STOP, TERM, Fault, cut
from e2e.bench.process_group import ProcessGroup
from e2e.harness.proxy import Links

SETTLED_S: Final = 2.0
"""What is left of an election when every node takes part again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault of the round.

    Attributes:
        fault: What is done.
        hold_s: How long it stays.
        hits_leader: To the leader, or to a follower.
    """

    fault: Fault
    hold_s: float
    hits_leader: bool

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.fault.name} of {'the leader' if self.hits_leader else 'a follower'}"


def round_of(links: Links) -> Iterator[Planned]:
    """Yield faults for ever: each kind to the leader and to a follower, in turn."""
    kinds = ((KILL, 1.0), (STOP, 2.0), (TERM, 0.0), (cut(links), 3.0), (STOP, 1.0), (STOP, 3.0))
    return cycle(
        Planned(fault=fault, hold_s=hold_s, hits_leader=hits_leader)
        for fault, hold_s in kinds
        for hits_leader in (True, False)
    )


def make(planned: Planned, group: ProcessGroup, number: int) -> Made:
    """Make one fault, hold it, take it back, wait until the group is whole.

    Args:
        planned: Which.
        group: To whom.
        number: How many were made before; chooses the follower, in turn.
    """
    leader = group.wait_whole()
    followers = [index for index in range(len(group.specs)) if index != leader]
    victim = leader if planned.hits_leader else followers[number // 2 % len(followers)]
    begin_s = time.monotonic()
    try:
        planned.fault.make(group, victim)
        time.sleep(planned.hold_s)
    finally:
        planned.fault.heal(group, victim)
    amiss = planned.fault.amiss(group.nodes[victim].exit_code)
    if not group.nodes[victim].is_running():
        group.restart(victim)
    group.wait_whole()
    return Made(
        name=f"{planned.name}, {group.specs[victim].name}",
        begin_s=begin_s,
        end_s=time.monotonic() + SETTLED_S,
        hits_leader=planned.hits_leader,
        amiss=amiss,
    )
