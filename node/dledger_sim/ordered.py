"""What consumers of a FIFO topic saw of its message groups, and whether that was their order.

Each receive gets, of a group, the oldest messages that are not done: what lies before one in its
group was acknowledged by then, perhaps, or is handed out with it. And no two receives have messages
of one group at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from dledger_sim.checkers import ViolationError
from dledger_sim.deliveries import Lease, Place

Group: TypeAlias = tuple[int, str]
"""Queue id and message group."""


class Handed(NamedTuple):
    """A message of a receive, and the offsets of its group that came with it."""

    offset: int
    lease: Lease
    receive: str
    together: frozenset[int]


@dataclass(slots=True)
class Ordered:
    """All that one consumer group's consumers were handed, by message group."""

    handed: defaultdict[Group, list[Handed]] = field(default_factory=lambda: defaultdict(list))

    def note(self, receive: str, messages: Iterable[tuple[Place, str, Lease]]) -> None:
        """Note what a receive has brought."""
        by_group: defaultdict[Group, list[tuple[int, Lease]]] = defaultdict(list)
        for (queue_id, offset), name, lease in messages:
            by_group[queue_id, name].append((offset, lease))
        for group, found in by_group.items():
            offsets = [offset for offset, _ in found]
            if offsets != sorted(offsets):
                raise ViolationError(f"{group} is handed out as {offsets}")
            together = frozenset(offsets)
            self.handed[group] += [Handed(o, lease, receive, together) for o, lease in found]

    def check(self, stored: Iterable[tuple[Place, str]]) -> None:
        """Compare with what is stored, as (place, message group). Raises ViolationError."""
        there: defaultdict[Group, set[int]] = defaultdict(set)
        for (queue_id, offset), name in stored:
            there[queue_id, name].add(offset)
        for group, found in self.handed.items():
            leases: defaultdict[int, list[Lease]] = defaultdict(list)
            for each in found:
                leases[each.offset].append(each.lease)
            for each in found:
                self._check_one(group, each, there[group], leases)
                self._check_alone(group, each, found)

    @staticmethod
    def _check_one(
        group: Group, each: Handed, there: set[int], leases: dict[int, list[Lease]]
    ) -> None:
        for before in there:
            if before < each.offset and before not in each.together:
                acked = [one.first_ack_us for one in leases.get(before, ()) if one.acks]
                if not acked or min(acked) > each.lease.arrived_us:
                    raise ViolationError(
                        f"{group}: {each.offset} is handed out at {each.lease.arrived_us} us, and "
                        f"{before} is not acknowledged by then"
                    )

    @staticmethod
    def _check_alone(group: Group, each: Handed, found: Iterable[Handed]) -> None:
        for other in found:
            if other.receive == each.receive or other.lease.acks:
                continue
            if other.lease.arrived_us < each.lease.arrived_us < other.lease.least_us:
                raise ViolationError(
                    f"{group}: {each.offset} is handed out at {each.lease.arrived_us} us, and "
                    f"{other.offset} is leased to another until {other.lease.least_us} us"
                )
