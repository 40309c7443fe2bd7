"""Who may take room on the disks of a group, and what goes to make some: pure, values in and out.

All thresholds are in free bytes of one file system, and ordered: ``reserve < refuse < drop``.

- Below `Limits.drop_bytes` the oldest segments of messages go, however young they are.
- An entry of users' data is taken only if, with it written, one segment for the commands that free
  consumers (RECEIVE, ACK, RETAIN, ...) and the reserve are left: `Limits.needed`. So is, while
  messages are held, room to copy them out of one segment, or none could ever go.
- `Limits.reserve_bytes` is for votes, marks, and a snapshot beside the old one. No segment uses it.

A member's own bytes go against what its group asked for (its budget), not against the file system,
which it may share. What others put there counts only where free space itself ends, and only as
much of it as has been there for an hour (`ForeignUse`): a neighbour that comes and goes costs
leadership and sends, not messages. Nothing goes that cannot make room. Which rules held, and which
did not, was tried by models first (ADR 44). Called by `room_keeper` and `maintenance`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dledger.raft.quorum import is_majority, majority
from dledger.types import NodeId

LEAST_VOLUME_BYTES: Final = 64 << 20
"""The smallest volume on which all of this holds, with entries of 16 MiB and a small state."""
LEAST_SEGMENT_BYTES: Final = 1 << 20
SEGMENTS_A_VOLUME: Final = 32
SMALL_FILES_BYTES: Final = 4 << 20
"""Hard state, identity, marks, index files: what must always find room."""
ENTRY_OVERHEAD_BYTES: Final = 8 << 10
"""A segment's header page, a record's header, and the rest of a block."""
SETTLED_S: Final = 3600.0
"""Foreign bytes that have been there for this long are there to stay: messages go for them."""
_MINUTE_S: Final = 60.0
HAND_OVER_EVERY_S: Final = 300.0
"""The least time between two hand-overs for room to one member, and before one goes back."""
HOPELESS: Final = 1 << 62
"""What a member asks to be dropped that no dropping would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The thresholds of one disk, in bytes.

    Attributes:
        segment_bytes: The size of a new segment.
        reserve_bytes: Free space that no segment uses.
        copies_bytes: What it takes to copy messages that are held out of the oldest segment, before
            that can go; 0: nothing is held.
    """

    segment_bytes: int
    reserve_bytes: int
    copies_bytes: int = 0

    @classmethod
    def of(cls, *, segment_bytes: int, snapshot_bytes: int) -> Limits:
        """Return the limits of a node with segments, and a newest snapshot, of these sizes.

        The snapshot counts twice: the next one is written beside it, and may have grown.
        """
        return cls(
            segment_bytes=segment_bytes, reserve_bytes=SMALL_FILES_BYTES + 2 * snapshot_bytes
        )

    @property
    def refuse_bytes(self) -> int:
        """Below this no entry of users' data is taken: a segment for it, one for commands."""
        return self.reserve_bytes + self.copies_bytes + 2 * self.segment_bytes

    @property
    def drop_bytes(self) -> int:
        """Below this the oldest messages go: the active segment cannot, and one more is begun."""
        return self.refuse_bytes + 2 * self.segment_bytes

    def needed(self, entry_bytes: int, pending_bytes: int = 0) -> int:
        """Return the free bytes with which an entry of this size is taken.

        By what it needs, not by segments: an entry larger than a segment gets a larger one.
        *pending_bytes*: of `written`, for entries that were taken and may not be on the disk yet.
        """
        own = max(self.segment_bytes, entry_bytes + ENTRY_OVERHEAD_BYTES)
        return self.reserve_bytes + self.copies_bytes + self.segment_bytes + own + pending_bytes

    def largest(self, free_bytes: int) -> int:
        """Return the size of the largest entry for which *free_bytes* are enough; -1: none is."""
        left_bytes = free_bytes - self.needed(0)
        return -1 if left_bytes < 0 else left_bytes + self.segment_bytes - ENTRY_OVERHEAD_BYTES

    def written(self, sizes: Iterable[int]) -> int:
        """Return the most that new segments for entries of these sizes take, in bytes.

        A small one makes the rest of a segment useless that is smaller than itself, so the small
        ones together fill at least half of each segment but the first. A large one may need a
        segment of its own, and the next entry after it one more.
        """
        small = large = 0
        for size in sizes:
            if size <= self.segment_bytes // 2:
                small += size
            else:
                large += max(self.segment_bytes, size + ENTRY_OVERHEAD_BYTES) + self.segment_bytes
        return -(-2 * small // self.segment_bytes) * self.segment_bytes + large


def segment_bytes_for(volumes: Iterable[int], *, most: int) -> int:
    """Return the size of a group's new segments: a 32nd of its smallest volume, a power of two.

    One size for the group: retention goes by entries, and each member must get room by it.

    Args:
        volumes: What each member may use, in bytes.
        most: The largest size, as configured.
    """
    share = max(min(volumes) // SEGMENTS_A_VOLUME, LEAST_SEGMENT_BYTES)
    return min(1 << (share.bit_length() - 1), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRoom:
    """One member's disk.

    Attributes:
        total_bytes, free_bytes: Of the file system, without what is root's alone.
        own_bytes: What this member's files take.
        budget_bytes: What the group asked for; 0: the file system is all its own.
        settled_bytes: The foreign bytes that have been there for an hour.
        first_index: The oldest entry whose messages the member keeps.
        going_bytes: Those of its own bytes that hold only older ones and go by themselves.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int
    budget_bytes: int
    settled_bytes: int
    first_index: int = 0
    going_bytes: int = 0

    @property
    def volume_bytes(self) -> int:
        """What the member may use at most."""
        return min(self.budget_bytes or self.total_bytes, self.total_bytes)

    @property
    def foreign_bytes(self) -> int:
        """What others have put on the file system."""
        return max(0, self.total_bytes - self.free_bytes - self.own_bytes)

    @property
    def new_foreign_bytes(self) -> int:
        """Those of them that came within the last hour."""
        return max(0, self.foreign_bytes - self.settled_bytes)

    def watermark_bytes(self, percent: int) -> int:
        """Return what own bytes may take before the oldest messages go, if they go for room."""
        return self.volume_bytes * percent // 100

    def asks(
        self,
        limits: Limits,
        *,
        percent: int,
        droppable_bytes: int,
        needed_bytes: int,
        first_index: int = 0,
    ) -> int:
        """Return how many bytes of messages should go; `HOPELESS` if that would make no room.

        What was let go and is still there counts as gone. A member that has not heard yet of the
        last that was let go asks nothing until it has: it would ask for the same room again.

        Args:
            limits: The thresholds of this disk.
            percent: How much of the budget own bytes may take; 0: messages never go for room.
            droppable_bytes: What could go at all: the sealed segments that are kept.
            needed_bytes: The free bytes that are needed now.
            first_index: The oldest entry whose messages the leader keeps.
        """
        lacks = self.free_bytes < needed_bytes
        if not percent:
            return HOPELESS if lacks else 0
        if self.first_index < first_index:
            return 0
        free_bytes = self.free_bytes + self.going_bytes
        above_share = self.own_bytes - self.going_bytes - self.watermark_bytes(percent)
        target = max(limits.drop_bytes, needed_bytes)
        short = target - free_bytes - self.new_foreign_bytes
        excess = max(0, above_share, short)
        if free_bytes + min(excess, droppable_bytes) < needed_bytes:
            return HOPELESS
        return excess


def asks_of_group(asks: Mapping[NodeId, int], voter_sets: Collection[Set[NodeId]]) -> int:
    """Return what a majority of the voters (of each set of a joint membership) asks to be dropped.

    A majority then has the room that it asks for: a single full disk costs its own member's part in
    the group, not everybody's messages. A voter that was not heard has no room that is known of.

    Returns:
        `HOPELESS` if no dropping gives a majority room.
    """
    return max(
        (
            sorted(asks.get(voter, HOPELESS) for voter in voters)[majority(len(voters)) - 1]
            for voters in voter_sets
            if voters
        ),
        default=0,
    )


def _has_majority(known: Collection[NodeId], voter_sets: Collection[Set[NodeId]]) -> bool:
    return all(is_majority(known, voters) for voters in voter_sets if voters)


class Verdict(Enum):
    """What becomes of an entry of users' data."""

    TAKE = "take"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether an entry is taken, and how many bytes of messages go, for it or anyway."""

    verdict: Verdict
    drop_bytes: int


def decide(
    *,
    own: NodeId,
    asks: Mapping[NodeId, int],
    lacking: Collection[NodeId],
    voter_sets: Collection[Set[NodeId]],
    may_hand_over: bool,
) -> Decision:
    """Return what a leader does with an entry.

    It is taken if the leader and a majority of voters have room for it. It waits if some messages
    go that make room, or if leadership goes to a member with room. Else it is refused.

    Args:
        own: The leader.
        asks: What each member whose disk is known asks to be dropped, `DiskRoom.asks`.
        lacking: Those of them that lack the needed room now.
        voter_sets: The voters; two sets while a membership is joint. If fewer than a majority of
            them are known, the leader goes by its own disk.
        may_hand_over: Whether there is a member to hand leadership to (`heir`).
    """
    by_group = _has_majority(asks, voter_sets)
    ready = [voter for voter in asks if voter not in lacking]
    takes = own not in lacking and (not by_group or _has_majority(ready, voter_sets))
    drop = asks_of_group(asks, voter_sets) if by_group else asks[own]
    if own in lacking and not may_hand_over and drop != HOPELESS:
        drop = max(drop, asks[own])
    if drop == HOPELESS:
        waits = own in lacking and may_hand_over and _has_majority(ready, voter_sets)
        return Decision(verdict=_verdict(takes=takes, waits=waits), drop_bytes=0)
    return Decision(verdict=_verdict(takes=takes, waits=True), drop_bytes=drop)


def _verdict(*, takes: bool, waits: bool) -> Verdict:
    if takes:
        return Verdict.TAKE
    return Verdict.WAIT if waits else Verdict.REFUSE


def heir(spare_bytes: Mapping[NodeId, int], *, segment_bytes: int) -> NodeId | None:
    """Return who leads better than a leader without room: the one with most, if that is enough.

    *spare_bytes* are the free bytes of each other voter above its own refusal point. Two segments
    are enough: with less it would be without room in its turn at once.
    """
    best = max(spare_bytes, key=lambda each: (spare_bytes[each], each), default=None)
    return best if best is not None and spare_bytes[best] >= 2 * segment_bytes else None


class ForeignUse:
    """The least foreign use of a disk within the last hour, by the minute.

    What a node finds there at its first look is taken for settled: it cannot know since when.
    """

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, int]] = deque()

    def seen(self, foreign_bytes: int, now_s: float) -> int:
        """Note what is there now, monotonic seconds; return the least of the last hour."""
        minute = int(now_s // _MINUTE_S)
        if self._minutes and self._minutes[-1][0] == minute:
            foreign_bytes = min(foreign_bytes, self._minutes.pop()[1])
        self._minutes.append((minute, foreign_bytes))
        while self._minutes[0][0] < minute - SETTLED_S // _MINUTE_S:
            self._minutes.popleft()
        return min(least for _, least in self._minutes)
