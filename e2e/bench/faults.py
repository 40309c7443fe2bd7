"""The faults that are injected into a leader, how each is undone, and a soak's round of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from e2e.bench.disks import Disks
from e2e.bench.elections import Made
from e2e.bench.process_group import ProcessGroup
from e2e.harness.proxy import Links

_ENDS_S: Final = 30.0
SETTLED_S: Final = 2.0
"""What is left of an election when every node takes part again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to lose a leader.

    Attributes:
        name: As it stands in the rows.
        make: Does it to node *index* of the group.
        heal: Takes it back; afterwards the node runs, or has ended.
        ends_with: The exit codes that it may end the node with; without any the node runs on.
        watch_s: How long it may take until the fault shows; a gap is looked for so long at least.
    """

    name: str
    make: Callable[[ProcessGroup, int], None]
    heal: Callable[[ProcessGroup, int], None]
    ends_with: Collection[int] = ()
    watch_s: float = 3.0

    def amiss(self, exit_code: int | None) -> str:
        """Return what of the node's end the fault does not explain; "" if nothing.

        Args:
            exit_code: The node's once the fault was taken back; None if it runs.
        """
        if exit_code is None:
            return "did not end" if self.ends_with else ""
        return "" if exit_code in self.ends_with else f"ended with {exit_code}"


def _signal(number: signal.Signals) -> Callable[[ProcessGroup, int], None]:
    return lambda group, index: group.nodes[index].send(number)


def _ended(group: ProcessGroup, index: int) -> None:
    """Wait for the end of a node that was told to end; one that does not is killed."""
    if not group.nodes[index].wait(_ENDS_S):
        group.nodes[index].kill()


KILL: Final = Fault(
    name="SIGKILL", make=_signal(signal.SIGKILL), heal=_ended, ends_with=(-signal.SIGKILL,)
)
TERM: Final = Fault(name="SIGTERM", make=_signal(signal.SIGTERM), heal=_ended, ends_with=(0,))
STOP: Final = Fault(
    name="SIGSTOP", make=_signal(signal.SIGSTOP), heal=_signal(signal.SIGCONT), watch_s=5.0
)


def cut(links: Links) -> Fault:
    """Return the loss of all links between the leader and its peers; clients reach all nodes."""
    return Fault(
        name="cut link",
        make=lambda _, index: links.cut(index),
        heal=lambda *_: links.heal(),
        watch_s=5.0,
    )


def stall(disks: Disks) -> Fault:
    """Return a disk that takes no write and no sync, without an error."""
    return Fault(
        name="stalled disk",
        make=lambda _, index: disks.freeze(index),
        heal=lambda *_: disks.thaw(),
        watch_s=5.0,
    )


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
