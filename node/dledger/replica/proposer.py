"""How commands become entries: queued, combined while an entry is in flight, answered when applied.

Owned by the driver, on the event loop. An idle leader proposes at once. Otherwise a small entry,
which costs each of three nodes a millisecond whatever its size, waits until the previous entry is
applied, and collects commands meanwhile. A large one leaves when the previous sync has finished;
a full one does not wait for that, and a few may be in flight together.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.broker.commands import Leap
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError
from dledger.raft.core import Raft
from dledger.replica.log_clock import Clock, LogClock
from dledger.replica.proposals import (
    MAX_ENTRY_BYTES,
    Command,
    Proposal,
    ProposalQueue,
    Waiters,
    closed,
)
from dledger.replica.room_keeper import RoomKeeper, late_for_room
from dledger.types import EntryKind

_PIPELINE_ENTRIES: Final = 4
ROOM_WAIT_S: Final = 5.0
"""How long users' data waits for room at most; its caller's deadline may end before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySizes:
    """The entry sizes at which a proposal stops waiting.

    Attributes:
        worth_bytes: From this size on an entry's cost is that of its bytes; below, the fixed cost
            of an entry dominates, so it waits for more commands.
        early_bytes: An entry of this size does not wait for the previous sync.
        max_bytes: Commands are combined up to this size; a larger command makes its own entry.
    """

    worth_bytes: int = 64 << 10  # measured: smaller entries cost by being one (ADR 26)
    early_bytes: int = 256 << 10  # a sync more costs it less than to wait for one
    max_bytes: int = MAX_ENTRY_BYTES


class Proposer:
    """The commands that one node was asked to commit and has not answered yet.

    Attributes:
        queue: Those that wait to become part of an entry.
        waiters: The callers of those in an entry, who wait for it to be applied.
    """

    def __init__(
        self,
        core: Raft,
        *,
        clock: Clock,
        log_clock: LogClock,
        metrics: NodeMetrics,
        max_queued_bytes: int,
        room: RoomKeeper,
        sizes: EntrySizes = EntrySizes(),
    ) -> None:
        self._room = room
        self._core, self._clock, self._log_clock, self._metrics = core, clock, log_clock, metrics
        self._sizes = sizes
        self.queue = ProposalQueue(max_queued_bytes, max_entry_bytes=sizes.max_bytes)
        self.waiters = Waiters(self._answered)

    def push(
        self, command: Command, *, line: str = "", producer: str = "", grows: bool = False
    ) -> asyncio.Future[object]:
        """Queue one framed command in a line; the future returns the result of applying it.

        One that *grows* the log with users' data waits for room, and may be refused with DiskFull.

        Raises:
            Overloaded: The queue is full.
        """
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.queue.push(Proposal(command, result, self._clock.monotonic_s(), line, producer, grows))
        return result

    def propose(self, *, disk_idle: bool) -> None:
        """Make entries of the queued commands, as far as sizes and limits allow.

        A command leaves the queue only if it enters the log. If a batch were refused here, later
        ones could go in once there is room, and one producer's batches would be out of order.
        """
        while self.queue.count and self._may_propose(disk_idle=disk_idle):
            room_bytes = self._room.room_bytes() if self.queue.growing_count else 0
            batch = self.queue.take_batch(room_bytes)
            if self.queue.held_bytes:
                self._hold(self.queue.held_bytes)
            elif self._room.is_awaited:
                self._room.satisfied()
            if not batch:
                if self.queue.held_bytes:
                    return
                continue
            data = b"".join([closed(proposal.command) for proposal in batch])
            term, index = self._core.propose(
                kind=EntryKind.DATA,
                data=data,
                crc32c=crc32c(data),
                timestamp_ms=self._log_clock.now_ms(),
            )
            self._room.takes(index, len(data))
            self.waiters.add(term, index, batch)
            self._metrics.batch(len(batch), len(data))

    def _hold(self, size_bytes: int) -> None:
        """Let users' data wait for room; where none can be made, refuse what waits for it."""
        refusal = self._room.waits(size_bytes)
        if refusal is not None:
            self.queue.refuse_growing(refusal, proposed_before_s=math.inf)
            self._room.satisfied()

    def look(self, now_s: float) -> None:
        """Refuse what has waited for room for too long; called at each tick."""
        if self.queue.held_bytes:
            late = late_for_room(ROOM_WAIT_S)
            self.queue.refuse_growing(late, proposed_before_s=now_s - ROOM_WAIT_S)
            if not self.queue.held_bytes:
                self._room.satisfied()

    def leap(self, to_ms: int) -> int:
        """Propose that the log's time leaps to *to_ms*, Unix milliseconds, later than it is.

        The entry is of that time, and so is everything behind it. Returns its index; 0 if the core
        takes no entry now.
        """
        if not self._core.has_room:
            return 0
        data = Leap(from_ms=self._log_clock.leap(to_ms), to_ms=to_ms).encode()
        _, index = self._core.propose(
            kind=EntryKind.DATA, data=data, crc32c=crc32c(data), timestamp_ms=to_ms
        )
        return index

    def _may_propose(self, *, disk_idle: bool) -> bool:
        if not self._core.has_room or not self._log_clock.is_dated:
            return False  # a commit, a sync, or the end of a transfer or of our term wakes us
        size_bytes, ahead = self.queue.size_bytes, len(self.waiters)
        if disk_idle:
            return (
                not ahead or size_bytes >= self._sizes.worth_bytes
            ) and not self._core.has_ready()
        return size_bytes >= self._sizes.early_bytes and ahead < _PIPELINE_ENTRIES

    def _answered(self, proposed_s: float) -> None:
        self._metrics.append_seconds.observe(self._clock.monotonic_s() - proposed_s)

    def outcome_lost(self) -> None:
        """Fail callers whose command is in an entry: this node will not learn its outcome."""
        self.waiters.fail_all()

    def refuse(self, error: DledgerError) -> None:
        """Refuse the queued commands with *error*; those in an entry have an unknown outcome."""
        self.queue.fail_all(error)
        self._room.satisfied()
        self.waiters.fail_all()
