"""A group on small and large disks, driven by the shipped decisions: what is written, what goes.

Values only: no file is made. Each member's disk has the group's segments, a snapshot, and what
other programs put there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dledger.replica.room import (
    ENTRY_OVERHEAD_BYTES,
    Decision,
    DiskRoom,
    ForeignUse,
    Limits,
    Verdict,
    decide,
    heir,
    segment_bytes_for,
)
from dledger.types import NodeId

MIB = 1 << 20
ROUND_S = 60.0
_STATE_BYTES = 300


@dataclass(slots=True)
class Outcome:
    """What happened in a world; every count but `taken`, `waited` and `dropped` should be 0.

    Attributes:
        wrongly_refused: Sends that were refused although messages could go, and room be made.
        in_vain: Drops after which a majority, or the leader, was still without room.
        for_neighbours: Bytes dropped for foreign files that had come within the hour.
        stuck: Entries that were taken and found no room, on the leader or on a majority.
        state_stuck: Commands that free consumers and found no room, though nothing foreign grew.
        waited_too_long: Sends that waited for more rounds than a drop takes.
    """

    taken: int = 0
    refused: int = 0
    waited: int = 0
    dropped: int = 0
    wrongly_refused: int = 0
    in_vain: int = 0
    for_neighbours: int = 0
    stuck: int = 0
    state_stuck: int = 0
    waited_too_long: int = 0


@dataclass(slots=True)
class Member:
    """One member's disk."""

    total_bytes: int
    foreign_bytes: int = 0
    foreign: ForeignUse = field(default_factory=ForeignUse)


class World:
    """A group, and its leader's decisions."""

    def __init__(
        self, totals: list[int], *, snapshot_bytes: int, percent: int, most: int = 64 * MIB
    ) -> None:
        self.members = {NodeId(f"n{n}"): Member(total) for n, total in enumerate(totals)}
        self.leader = NodeId("n0")
        self.percent, self.snapshot_bytes = percent, snapshot_bytes
        segment_bytes = segment_bytes_for(totals, most=most)
        self.limits = Limits.of(segment_bytes=segment_bytes, snapshot_bytes=snapshot_bytes)
        self.segments: deque[int] = deque([segment_bytes])  # the last is the active one
        self.left = segment_bytes
        self.out = Outcome()
        self.now_s = 0.0
        self.calm = False

    @property
    def voters(self) -> frozenset[NodeId]:
        """All members."""
        return frozenset(self.members)

    @property
    def own_bytes(self) -> int:
        """What each member's files take."""
        return sum(self.segments) + self.snapshot_bytes

    @property
    def droppable_bytes(self) -> int:
        """The sealed segments."""
        return sum(self.segments) - self.segments[-1]

    def free(self, member: NodeId) -> int:
        """Return a member's free bytes."""
        one = self.members[member]
        return one.total_bytes - one.foreign_bytes - self.own_bytes

    def neighbours(self, shares: list[int]) -> None:
        """Let a round begin in which other programs use these hundredths of the disks."""
        self.now_s += ROUND_S
        for member, share in zip(self.members.values(), shares, strict=True):
            wanted = member.total_bytes * share // 100
            member.foreign_bytes = min(wanted, max(0, member.total_bytes - self.own_bytes))
            member.foreign.seen(member.foreign_bytes, self.now_s)

    def disk(self, member: NodeId) -> DiskRoom:
        """Return what a member tells of its disk."""
        one = self.members[member]
        return DiskRoom(
            total_bytes=one.total_bytes,
            free_bytes=self.free(member),
            own_bytes=self.own_bytes,
            budget_bytes=0,
            settled_bytes=one.foreign.seen(one.foreign_bytes, self.now_s),
        )

    def decision(self, entry_bytes: int, pending_bytes: int = 0) -> Decision:
        """Return what the leader does with an entry."""
        needed = self.limits.needed(entry_bytes, pending_bytes)
        asks = {
            member: self.disk(member).asks(
                self.limits,
                percent=self.percent,
                droppable_bytes=self.droppable_bytes,
                needed_bytes=needed,
            )
            for member in self.members
        }
        return decide(
            own=self.leader,
            asks=asks,
            lacking=[member for member in self.members if self.free(member) < needed],
            voter_sets=[self.voters],
            may_hand_over=self._heir() is not None,
        )

    def _heir(self) -> NodeId | None:
        if self.free(self.leader) >= self.limits.refuse_bytes:
            return None
        spare = {
            member: self.free(member) - self.limits.refuse_bytes
            for member in self.members
            if member != self.leader
        }
        return heir(spare, segment_bytes=self.limits.segment_bytes)

    def send(self, sizes: list[int]) -> None:
        """Send entries at once: each is taken, or waits for room, or is refused; then all written.

        The pipeline has them under way together, so that each must leave room for those before.
        """
        under_way: list[int] = []
        for size in sizes:
            pending = self.limits.written(under_way)
            for waited in range(8):
                decision = self.decision(size, pending)
                if decision.verdict is not Verdict.WAIT:
                    break
                self.out.waited += 1
                self._make_room(size, pending)
                self.out.waited_too_long += waited == 7
            if decision.verdict is Verdict.TAKE:
                under_way.append(size)
            elif decision.verdict is Verdict.REFUSE:
                self.out.refused += 1
                self.out.wrongly_refused += self._could_be_taken(size, pending)
        for size in under_way:
            self.out.stuck += not self._write(size)
            self.out.taken += 1

    def _make_room(self, size: int, pending: int) -> None:
        """Hand leadership over, or let messages go, as a round of maintenance does."""
        heir_now = self._heir()
        if heir_now is not None:
            self.leader = heir_now
            return
        self.maintain(size, pending)

    def maintain(self, size: int = 0, pending: int = 0) -> None:
        """Let messages go as the leader decides."""
        needed = self.limits.needed(size, pending)
        lacking = [member for member in self.members if self.free(member) < needed]
        new = {member: self.disk(member).new_foreign_bytes for member in self.members}
        excess = self.decision(size, pending).drop_bytes
        dropped = 0
        while len(self.segments) > 1 and dropped < excess:
            dropped += self.segments.popleft()
        self.out.dropped += dropped
        if not dropped:
            return
        ready = sum(self.free(member) >= needed for member in self.members)
        self.out.in_vain += bool(lacking) and ready <= len(self.members) // 2
        if self._within_all_limits(dropped, new, needed):
            self.out.for_neighbours += dropped

    def _within_all_limits(self, dropped: int, new: dict[NodeId, int], needed: int) -> bool:
        """Whether, before the drop, no disk was short but for what came within the hour."""
        return all(
            self.own_bytes + dropped <= one.total_bytes * self.percent // 100
            and self.free(member) - dropped + new[member] >= max(self.limits.drop_bytes, needed)
            for member, one in self.members.items()
        )

    def _could_be_taken(self, size: int, pending: int) -> bool:
        """Whether dropping all that may go would have made room: nothing foreign is new."""
        if not self.percent or any(self.disk(each).new_foreign_bytes for each in self.members):
            return False
        needed = self.limits.needed(size, pending)
        room = {member: self.free(member) + self.droppable_bytes for member in self.members}
        ready = sum(bytes_ >= needed for bytes_ in room.values())
        return room[self.leader] >= needed and ready > len(self.members) // 2

    def _write(self, size: int) -> bool:
        """Write an entry, then a command that frees consumers; whether both found room."""
        fits = self._put(size + ENTRY_OVERHEAD_BYTES // 2)
        self.out.state_stuck += not self._put(_STATE_BYTES)
        return fits

    def _put(self, size: int) -> bool:
        if size > self.left:
            self.left = max(self.limits.segment_bytes, size + ENTRY_OVERHEAD_BYTES // 2)
            self.segments.append(self.left)
        self.left -= size
        reserve = self.limits.reserve_bytes
        roomy = sum(self.free(member) >= reserve for member in self.members)
        return self.free(self.leader) >= reserve and roomy > len(self.members) // 2
