"""Keeps what is known of the room on the members' disks, and asks `room` what follows from it.

Owned by the driver, on the event loop; `maintenance` measures this node's disk, once a second and
after each drop. Between two looks the room shrinks by the segments that this node's log made since,
and by those that entries on their way to the disk may still need. What other members have comes
with their reports (`reports`), less what this log took since: they write the same entries.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from dledger.common import defaults
from dledger.common.reports import Room
from dledger.errors import DiskFull
from dledger.raft.quorum import majority
from dledger.replica.reports import Reports
from dledger.replica.room import (
    HAND_OVER_EVERY_S,
    LEAST_SEGMENT_BYTES,
    SETTLED_S,
    SMALL_FILES_BYTES,
    Decision,
    DiskRoom,
    ForeignUse,
    Limits,
    Verdict,
    decide,
    heir,
    segment_bytes_for,
)
from dledger.types import Entry, NodeId

logger = logging.getLogger(__name__)

_UNMEASURED: Final = 1 << 62
_TRANSFER_S: Final = 3.0
"""For how long a hand-over that was begun may still succeed."""
_SHORT_S: Final = 10.0
"""For how long a disk is short of room before that is told: a drop may be under way."""
_LOOKS: Final = 16
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomConfig:
    """What a node is told of its room.

    Attributes:
        segment_bytes: The largest size of a new segment.
        least_segment_bytes: The smallest.
        small_files_bytes: What is kept for votes and marks.
        budget_bytes: What the group asked for as this node's storage; 0: the file system.
        percent: How much of that own bytes may take before the oldest messages go; 0: they never
            go for room.
    """

    segment_bytes: int = defaults.SEGMENT_BYTES
    least_segment_bytes: int = LEAST_SEGMENT_BYTES
    small_files_bytes: int = SMALL_FILES_BYTES
    budget_bytes: int = 0
    percent: int = defaults.WATERMARK_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One look at this node's disk; sizes in bytes.

    Attributes:
        total_bytes, free_bytes: Of the file system, without what is root's alone.
        own_bytes: What this node's files take.
        droppable_bytes: The sealed segments of its log.
        snapshot_bytes: The newest snapshot.
        allocated_bytes: What the log had made of segments since it was opened, before the look.
        first_index: The oldest entry whose messages the state keeps.
        going_bytes: The sealed segments that have only older ones: a snapshot lets them go.
        held_bytes: The most that messages which are held take of one sealed segment; 0: none are.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int
    droppable_bytes: int = 0
    snapshot_bytes: int = 0
    allocated_bytes: int = 0
    first_index: int = 0
    going_bytes: int = 0
    held_bytes: int = 0


class RoomKeeper:
    """The room of one group, as one member sees it.

    Args:
        own_id: This member.
        config: What it was told.
        reports: The other members' reports.
        voter_sets: Returns the voters; two sets while a membership is joint.
        allocated_bytes: Returns what the log has made of segments since it was opened.
        now_s: The monotonic clock.

    Attributes:
        refusal: Why users' data is refused; None if it is taken, or waits.
        limits: The thresholds now.
        wanted: Set when a command waits for room, or messages should go for it.
    """

    def __init__(
        self,
        own_id: NodeId,
        *,
        config: RoomConfig,
        reports: Reports,
        voter_sets: Callable[[], Sequence[Set[NodeId]]],
        allocated_bytes: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        self._own_id, self._config, self._reports = own_id, config, reports
        self._voter_sets, self._allocated, self._now_s = voter_sets, allocated_bytes, now_s
        self.refusal: DiskFull | None = None
        self.wanted = asyncio.Event()
        self.limits = self._limits(config.segment_bytes, 0)
        self._measured: Measured | None = None
        self._looks: deque[tuple[float, int]] = deque(maxlen=_LOOKS)
        self._foreign: dict[NodeId, ForeignUse] = {}
        self._disks: dict[NodeId, DiskRoom] = {}
        self._volumes: dict[NodeId, int] = {}
        self._pending: deque[tuple[int, int]] = deque()
        self._entry_bytes = self._easy_bytes = 0
        self._write_refusal: DiskFull | None = None
        self._handed_s: dict[NodeId, float] = {}
        self._led_before: NodeId | None = None
        self._led_s = -HAND_OVER_EVERY_S
        self._told_new = False
        self._short_since_s = math.inf

    @property
    def segment_bytes(self) -> int:
        """The size of the group's new segments."""
        return self.limits.segment_bytes

    @property
    def disk(self) -> DiskRoom | None:
        """This node's disk at the last look; None before the first."""
        return self._disks.get(self._own_id)

    @property
    def watermark_bytes(self) -> int | None:
        """What this node's files may take before the oldest messages go; None: they never do."""
        percent = self._config.percent
        return self.disk.watermark_bytes(percent) if self.disk and percent else None

    @property
    def shortage(self) -> DiskFull | None:
        """Why this member takes no users' data, or could take none: what an operator should know.

        A follower without room is told, too, once that lasts: the group goes on without it.
        """
        if self.refusal is not None or self._now_s() - self._short_since_s < _SHORT_S:
            return self.refusal
        return DiskFull(
            f"this member's disk has {self._free_bytes()} bytes free and needs "
            f"{self.limits.refuse_bytes} to take part in writes: {self.ours()}; free some space or "
            "grow the volume, it takes part again by itself"
        )

    def configure(self, *, budget_bytes: int, percent: int) -> None:
        """Go by another budget and watermark from the next look on."""
        self._config = replace(self._config, budget_bytes=budget_bytes, percent=percent)

    # -- looks ------------------------------------------------------------------------------------

    def measured(self, found: Measured, *, retrying: bool = False) -> None:
        """Take a look at the disk; *retrying*: a write still waits for room, so there is none."""
        now_s = self._now_s()
        self._measured = found
        self._looks.append((now_s, found.allocated_bytes))
        if not retrying:
            self._write_refusal = None
        self._reports.room = Room(
            total_bytes=found.total_bytes,
            free_bytes=found.free_bytes,
            own_bytes=found.own_bytes,
            budget_bytes=self._config.budget_bytes,
            first_index=found.first_index,
            going_bytes=found.going_bytes,
        )
        self._see(self._own_id, self._reports.room, now_s)
        heard = self._reports.heard()
        for member, one in heard.items():
            if one.report.room is not None:
                self._see(member, one.report.room, now_s)
        self._forget_strangers()
        for member in self._disks.keys() - heard.keys() - {self._own_id}:
            del self._disks[member]
        self.limits = self._limits(
            segment_bytes_for(self._volumes.values(), most=self._config.segment_bytes),
            found.snapshot_bytes,
            found.held_bytes,
        )
        self._easy_bytes = self._least_of_majority() - self.limits.drop_bytes
        self._judge()

    def _limits(self, segment_bytes: int, snapshot_bytes: int, held_bytes: int = 0) -> Limits:
        config = self._config
        segment_bytes = max(segment_bytes, min(config.least_segment_bytes, config.segment_bytes))
        return Limits(
            segment_bytes=segment_bytes,
            reserve_bytes=config.small_files_bytes + 2 * snapshot_bytes,
            # Copies may begin in the middle of one segment, and end in another.
            copies_bytes=held_bytes + segment_bytes if held_bytes else 0,
        )

    def _see(self, member: NodeId, room: Room, now_s: float) -> None:
        foreign = max(0, room.total_bytes - room.free_bytes - room.own_bytes)
        settled = self._foreign.setdefault(member, ForeignUse()).seen(foreign, now_s)
        disk = DiskRoom(
            total_bytes=room.total_bytes,
            free_bytes=room.free_bytes,
            own_bytes=room.own_bytes,
            budget_bytes=room.budget_bytes,
            first_index=room.first_index,
            going_bytes=room.going_bytes,
            # Index files and the blocks of a file system are not counted to the byte.
            settled_bytes=settled + self.limits.segment_bytes,
        )
        self._disks[member] = disk
        self._volumes[member] = disk.volume_bytes

    def _forget_strangers(self) -> None:
        """Forget who is no voter any more; a voter that is silent keeps its volume."""
        voters = {self._own_id}.union(*self._voter_sets())
        for known in (self._foreign, self._disks, self._volumes, self._handed_s):
            for member in known.keys() - voters:
                del known[member]

    def _judge(self) -> None:
        """Refuse users' data, or take it, and tell when that turns."""
        if self._free_bytes() >= self.limits.refuse_bytes:
            self._short_since_s = math.inf
        elif self._short_since_s == math.inf:
            self._short_since_s = self._now_s()
        decision = self.decision()
        before = self.refusal
        self.refusal = self._write_refusal or (
            self._refused(0) if decision.verdict is Verdict.REFUSE else None
        )
        if before is None and self.refusal is not None:
            logger.warning("disk full: %s", self.refusal)
        elif before is not None and self.refusal is None:
            logger.warning("disk has room again: %d bytes free; writes resume", self._free_bytes())
        if decision.drop_bytes:
            self.wanted.set()
        self._tell_new_foreign()

    def _tell_new_foreign(self) -> None:
        disk = self.disk
        new = disk is not None and disk.free_bytes < self.limits.drop_bytes < (
            disk.free_bytes + disk.new_foreign_bytes
        )
        if new and not self._told_new and disk is not None:
            logger.warning("%s", _new_foreign(disk))
        self._told_new = new

    # -- room --------------------------------------------------------------------------------------

    def _free_bytes(self) -> int:
        if self._measured is None:
            return _UNMEASURED
        taken = self._allocated() - self._measured.allocated_bytes
        return max(0, self._measured.free_bytes - taken)

    def _droppable_bytes(self, look: Measured) -> int:
        """Return what could go: what was sealed at the look, and all but two segments since.

        Those two are the last, and a spare one. Without what came since, a fast writer would be
        refused on a new disk that it filled between two looks: nothing was sealed at the first.
        """
        sealed_bytes = self._allocated() - look.allocated_bytes - 2 * self.segment_bytes
        return max(0, look.droppable_bytes - look.going_bytes) + max(0, sealed_bytes)

    def _free_of(self, member: NodeId) -> int:
        """Return the free bytes of a member, less what the log has taken since it told them."""
        if member == self._own_id:
            return self._free_bytes()
        heard = self._reports.heard()[member]
        told_s = heard.heard_s - heard.waited_s
        before = [bytes_ for at_s, bytes_ in self._looks if at_s <= told_s] or [
            self._looks[0][1] if self._looks else 0
        ]
        return max(0, self._disks[member].free_bytes - (self._allocated() - before[-1]))

    def room_bytes(self) -> int:
        """Return how large an entry of users' data may be now; below 0: none is taken."""
        if self._measured is None:
            return _UNMEASURED
        if self._write_refusal is not None:
            return -1
        taken = self._allocated() - self._measured.allocated_bytes  # each message comes by
        pending = self.limits.written(size for _, size in self._pending)
        easy = self._easy_bytes - taken - pending
        if easy > 0:  # as nearly always: the room was enough at the last look, and is still
            return self.limits.largest(easy + self.limits.drop_bytes)
        return self.limits.largest(self._least_of_majority() - pending)

    def _least_of_majority(self) -> int:
        """Return the free bytes that this disk has, and those of a majority if it was heard."""
        free = {member: self._free_of(member) for member in self._heard_of()}
        least = self._free_bytes()
        for voters in self._voter_sets():
            known = sorted((free[each] for each in voters if each in free), reverse=True)
            if len(known) >= majority(len(voters)):
                least = min(least, known[majority(len(voters)) - 1])
        return least

    def _heard_of(self) -> Set[NodeId]:
        return self._disks.keys() & (self._reports.heard().keys() | {self._own_id})

    def decision(self) -> Decision:
        """Return what follows for the entry that waits for room, or for the next small one."""
        if self._measured is None:
            return Decision(verdict=Verdict.TAKE, drop_bytes=0)
        pending = self.limits.written(size for _, size in self._pending)
        needed = self.limits.needed(self._entry_bytes, pending)
        droppable = self._droppable_bytes(self._measured)
        asks, lacking = dict[NodeId, int](), set[NodeId]()
        for member in self._heard_of():
            disk = self._disks[member]
            free_bytes = self._free_of(member)
            own_bytes = disk.own_bytes + disk.free_bytes - free_bytes
            now = replace(disk, free_bytes=free_bytes, own_bytes=own_bytes)
            asks[member] = now.asks(
                self.limits,
                percent=self._config.percent,
                droppable_bytes=droppable,
                needed_bytes=needed,
                first_index=self._measured.first_index,
            )
            if free_bytes < needed:
                lacking.add(member)
        return decide(
            own=self._own_id,
            asks=asks,
            lacking=lacking,
            voter_sets=self._voter_sets(),
            may_hand_over=self._is_handing_over() or self.heir() is not None,
        )

    def waits(self, entry_bytes: int) -> DiskFull | None:
        """Note that an entry of this size found no room; return why it is refused, if it is.

        Else it waits, and `wanted` is set: room is made for it.
        """
        self._entry_bytes = entry_bytes
        if self._write_refusal is not None:
            return self._write_refusal
        if self.decision().verdict is Verdict.REFUSE:
            return self._refused(entry_bytes)
        self.wanted.set()
        return None

    def satisfied(self) -> None:
        """Note that no entry waits for room."""
        self._entry_bytes = 0

    @property
    def is_awaited(self) -> bool:
        """Whether an entry waits for room."""
        return self._entry_bytes > 0

    @property
    def is_short(self) -> bool:
        """Whether this disk is so full that its segments should go at once, not in a while."""
        return self._measured is not None and self._free_bytes() < self.limits.drop_bytes

    @property
    def has_room_for_spare(self) -> bool:
        """Whether a segment may be made ahead of time: only above the refusal point."""
        return self._free_bytes() - self.segment_bytes >= self.limits.refuse_bytes

    # -- what is on its way to the disk ------------------------------------------------------------

    def takes(self, index: int, size_bytes: int) -> None:
        """Note an entry that this leader makes."""
        self._pending.append((index, size_bytes))

    def writes(self, entries: Sequence[Entry]) -> None:
        """Note entries that go to the disk; they may replace others that were on their way."""
        first = entries[0].index
        while self._pending and self._pending[-1][0] >= first:
            self._pending.pop()
        self._pending.extend((entry.index, len(entry.data)) for entry in entries)

    def wrote(self, index: int) -> None:
        """Note that everything up to *index* is on the disk."""
        while self._pending and self._pending[0][0] <= index:
            self._pending.popleft()

    def write_refused(self, error: DiskFull) -> None:
        """Note a write that found no room: users' data is refused until it does."""
        if self._write_refusal is None:
            logger.error("disk full while writing the log: %s", error)
        self._write_refusal = self.refusal = error

    def write_succeeded(self, *, retrying: bool) -> None:
        """Note that a write found room."""
        if not retrying and self._write_refusal is not None:
            self._write_refusal = None
            self._judge()

    # -- leadership --------------------------------------------------------------------------------

    def leads(self, before: NodeId | None) -> None:
        """Note that this member leads from now on, and who did before."""
        self._led_s, self._led_before = self._now_s(), before

    def heir(self) -> NodeId | None:
        """Return who should lead in this member's place, since it has no room; None: nobody.

        To each at most once in five minutes, and not back to whom leadership came from within that.
        """
        now_s = self._now_s()
        if self._measured is None or self._free_bytes() >= self.limits.refuse_bytes:
            return None
        lately = {each for each, at_s in self._handed_s.items() if now_s - at_s < HAND_OVER_EVERY_S}
        if self._led_before is not None and now_s - self._led_s < HAND_OVER_EVERY_S:
            lately.add(self._led_before)
        spare = {
            member: self._free_of(member) - self.limits.refuse_bytes
            for member in self._heard_of() - lately
            if member != self._own_id
        }
        return heir(spare, segment_bytes=self.segment_bytes)

    def _is_handing_over(self) -> bool:
        last_s = max(self._handed_s.values(), default=-HAND_OVER_EVERY_S)
        return self._now_s() - last_s < _TRANSFER_S

    def is_roomy(self, member: NodeId) -> bool:
        """Whether a member has room to lead, as far as is known."""
        if member not in self._heard_of():
            return True
        return self._free_of(member) >= self.limits.refuse_bytes

    def handed_over(self, target: NodeId) -> None:
        """Note that leadership is being handed over to *target* for room."""
        self._handed_s[target] = self._now_s()

    # -- words -------------------------------------------------------------------------------------

    def _refused(self, entry_bytes: int) -> DiskFull:
        disk, free_bytes = self.disk, self._free_bytes()
        needed = self.limits.needed(entry_bytes)
        if disk is None or free_bytes >= needed:
            return DiskFull(
                "a majority of the group's members have no room on their disks; free some space or "
                "grow the volumes, writes resume by themselves"
            )
        why = f"; {_new_foreign(disk)}" if disk.new_foreign_bytes else ""
        return DiskFull(
            f"the disk of the leader has {free_bytes} bytes free and keeps {needed} in reserve, "
            f"and no message may go for it{why}; free some space or grow the volume, writes resume "
            "by themselves"
        )

    def ours(self) -> str:
        """Return how much of the disk is this node's, in words."""
        disk = self.disk
        if disk is None:
            return "the disk was not measured yet"
        return (
            f"{_size(disk.own_bytes)} of the {_size(disk.volume_bytes)} that are its own are used, "
            f"others use {_size(disk.foreign_bytes)} of the disk of {_size(disk.total_bytes)}"
        )


def late_for_room(waited_s: float) -> DiskFull:
    """Return why a command that waited for room this long is refused."""
    return DiskFull(
        f"no room was made on the group's disks within {waited_s:.0f} s, though messages may go "
        "for it; send it again"
    )


def _new_foreign(disk: DiskRoom) -> str:
    return (
        f"other programs' files took {_size(disk.new_foreign_bytes)} of this node's disk within "
        f"the last hour; messages go for them only when they have been there for "
        f"{SETTLED_S / 3600:.0f} h"
    )


def _size(size_bytes: int) -> str:
    if size_bytes >= _GIB:
        return f"{size_bytes / _GIB:.1f} GiB"
    return f"{size_bytes / (1 << 20):.1f} MiB"
