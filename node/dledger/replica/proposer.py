"""How commands become entries: queued, joined while an entry is on its way, answered when applied.

Owned by the driver, on the event loop. Send at once when idle. A small entry, which costs each of
three nodes a millisecond as well, waits until the one before is applied, and takes in what comes
meanwhile. One that is worth it leaves when the previous sync has ended; a full one goes early, a
few of them beside each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

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
from dledger.types import EntryKind

_PIPELINE_ENTRIES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySizes:
    """How large an entry becomes.

    Attributes:
        worth_bytes: From here on one costs by its bytes, below by being one.
        early_bytes: One that has so much does not wait for the sync before it.
        max_bytes: Nothing is joined to one beyond this; a larger command goes alone.
    """

    worth_bytes: int = 64 << 10  # measured: smaller entries cost by being one (ADR 26)
    early_bytes: int = 256 << 10  # a sync more costs it less than to wait for one
    max_bytes: int = MAX_ENTRY_BYTES


class Proposer:
    """What one node was asked to commit and has not answered yet."""

    def __init__(
        self,
        core: Raft,
        *,
        clock: Clock,
        log_clock: LogClock,
        metrics: NodeMetrics,
        max_queued_bytes: int,
        sizes: EntrySizes = EntrySizes(),
    ) -> None:
        self._core, self._clock, self._log_clock, self._metrics = core, clock, log_clock, metrics
        self._sizes = sizes
        self._queue = ProposalQueue(max_queued_bytes, max_entry_bytes=sizes.max_bytes)
        self._waiters = Waiters(self._answered)

    @property
    def queued_bytes(self) -> int:
        """Bytes of commands that wait to become part of an entry."""
        return self._queue.size_bytes

    def waits(self) -> bool:
        """Whether a command waits to become part of an entry."""
        return self._queue.count > 0

    def push(
        self, command: Command, *, line: str = "", producer: str = ""
    ) -> asyncio.Future[object]:
        """Queue one framed command in a line; the future gives what applying it gave.

        Raises:
            Overloaded: The queue is full.
        """
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._queue.push(Proposal(command, result, self._clock.monotonic_s(), line, producer))
        return result

    def propose(self, *, disk_idle: bool) -> None:
        """Make entries of what is queued, as far as it is their turn and there is room for them.

        What has left the queue is in the log. A batch that was refused here would be overtaken by
        those behind it, which go as soon as there is room: one producer's batches out of order.
        """
        while self._queue.count and self._may_propose(disk_idle=disk_idle):
            batch = self._queue.take_batch()
            if batch:
                self._propose(batch)

    def _propose(self, batch: Sequence[Proposal]) -> None:
        data = b"".join([closed(proposal.command) for proposal in batch])
        term, index = self._core.propose(
            kind=EntryKind.DATA,
            data=data,
            crc32c=crc32c(data),
            timestamp_ms=self._log_clock.now_ms(),
        )
        self._waiters.add(term, index, batch)
        self._metrics.batch(len(batch), len(data))

    def _may_propose(self, *, disk_idle: bool) -> bool:
        if not self._core.has_room:
            return False  # a commit, a sync, or the end of a hand-over or of our lead: all wake us
        size_bytes, ahead = self._queue.size_bytes, len(self._waiters)
        if disk_idle:
            return (
                not ahead or size_bytes >= self._sizes.worth_bytes
            ) and not self._core.has_ready()
        return size_bytes >= self._sizes.early_bytes and ahead < _PIPELINE_ENTRIES

    def applied(self, term: int, index: int, results: Sequence[object]) -> None:
        """Hand out an applied entry's results, one a command."""
        self._waiters.applied(term, index, results)

    def _answered(self, proposed_s: float) -> None:
        self._metrics.append_seconds.observe(self._clock.monotonic_s() - proposed_s)

    def outcome_lost(self) -> None:
        """Tell those whose command is in an entry that nobody here will know what became of it."""
        self._waiters.fail_all()

    def refuse(self, error: DledgerError) -> None:
        """End all of it: refuse what is queued with *error*; the rest has an unknown outcome."""
        self._queue.fail_all(error)
        self._waiters.fail_all()
