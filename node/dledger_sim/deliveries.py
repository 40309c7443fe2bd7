"""What consumers of one group were handed, and what they were told of their acknowledgements.

A message comes again until it is acknowledged, but not while somebody's lease of it lasts; once its
acknowledgement is answered well, no receive that begins then may bring it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from dledger_sim.checkers import ViolationError

Place: TypeAlias = tuple[int, int]
"""Queue id and queue offset."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """One delivery of a message, as its consumer knows it. Times are of the simulation.

    Attributes:
        handle: Its receipt handle.
        attempt: Which delivery it is, as the node says.
        body: What was handed out.
        arrived_us: When its consumer had it.
        least_us: The lease lasts until then, or longer: it began after the receive did.
        acks: How many acknowledgements were sent.
        first_ack_us: When the first of them was.
        is_doubtful: Whether one of them may have been carried out, as far as is known.
    """

    handle: str
    attempt: int
    body: bytes
    arrived_us: int
    least_us: int
    acks: int = 0
    first_ack_us: int = 0
    is_doubtful: bool = False


@dataclass(slots=True)
class Deliveries:
    """All that one group's consumers were told.

    In a FIFO topic (*in_order*) only the delivery of its group's oldest message counts.
    """

    leases: dict[Place, list[Lease]] = field(default_factory=dict)
    acknowledged_us: dict[Place, int] = field(default_factory=dict)
    received: int = 0
    in_order: bool = False

    def note(self, place: Place, lease: Lease, *, began_us: int) -> None:
        """Check a delivery of a receive that began at *began_us*. Raises ViolationError."""
        self.received += 1
        acknowledged_us = self.acknowledged_us.get(place)
        if acknowledged_us is not None and began_us > acknowledged_us:
            raise ViolationError(f"{place} comes again, and its acknowledgement was answered")
        before = self.leases.setdefault(place, [])
        for other in before:
            self._compare(place, other, lease, began_us)
        if all(other.handle != lease.handle for other in before):
            before.append(lease)

    def _compare(self, place: Place, other: Lease, lease: Lease, began_us: int) -> None:
        if other.body != lease.body:
            raise ViolationError(f"{place} is {other.body[:30]!r} and {lease.body[:30]!r}")
        if other.handle == lease.handle:
            return
        if lease.arrived_us < other.least_us and place not in self.acknowledged_us:
            raise ViolationError(
                f"{place} is handed out at {lease.arrived_us} us, and is leased to another "
                f"consumer until {other.least_us} us at least"
            )
        if began_us > other.arrived_us and lease.attempt < other.attempt + (not self.in_order):
            raise ViolationError(
                f"{place} is delivered for the {lease.attempt}. time behind the {other.attempt}."
            )

    def note_ack(self, lease: Lease, now_us: int = 0) -> None:
        """Note that an acknowledgement is sent: it may be carried out from now on."""
        if not lease.acks:
            lease.first_ack_us = now_us
        lease.acks += 1
        lease.is_doubtful = True

    def note_answer(self, place: Place, lease: Lease, now_us: int, *, held: bool) -> None:
        """Check what was said of an acknowledgement. Raises ViolationError."""
        if held:
            self.acknowledged_us.setdefault(place, now_us)
            return
        if lease.acks == 1 and now_us < lease.least_us and place not in self.acknowledged_us:
            raise ViolationError(f"the lease of {place} lasts, and its handle is called stale")
        self.note_refusal(lease)

    def note_refusal(self, lease: Lease) -> None:
        """Note that the newest acknowledgement did nothing."""
        if lease.acks == 1:
            lease.is_doubtful = False

    def check_stored(self, bodies: dict[Place, bytes]) -> None:
        """Check that what was handed out is what is stored. Raises ViolationError."""
        for place, leases in self.leases.items():
            if bodies.get(place) != leases[0].body:
                raise ViolationError(
                    f"{place} was handed out as {leases[0].body[:30]!r}; "
                    f"{bodies.get(place, b'nothing')[:30]!r} is there"
                )

    def missing(self, places: set[Place]) -> set[Place]:
        """Return which of *places* have yet to be received and acknowledged."""
        return {place for place in places - self.acknowledged_us.keys() if not self._may_be(place)}

    def _may_be(self, place: Place) -> bool:
        """Whether a message may be acknowledged, for all that is known."""
        return any(lease.is_doubtful for lease in self.leases.get(place, ()))
