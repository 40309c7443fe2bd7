"""Repairs a damaged log while the node runs: from memory, else from any peer with the entries.

As a last resort the node reads its own disk again: a read may fail once and succeed later, and a
group of one has no peers.
Entries that every member has dropped arrive as a snapshot, if this node has not applied them yet.
Owned by the node, beside its driver. Entries are checked against the identities that the log has
kept (`CommitLog.repair`), so any peer may send them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from dledger.common.backoff import Backoff
from dledger.common.metrics import NodeMetrics
from dledger.errors import (
    DiskFull,
    StorageError,
    Unavailable,
)
from dledger.raft.view import RaftView
from dledger.store.commit_log import CommitLog
from dledger.types import Entry, NodeId

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_MAX_WAIT_S: Final = 4.0
_BATCH_BYTES: Final = 4 << 20
_MAX_RANGES: Final = 64
PATIENCE_S: Final = 5.0
"""A leader that could not repair its log for this long transfers leadership."""


class Source(Protocol):
    """The peers, as `peers.records.RecordsClient` reaches them."""

    def peers(self) -> Sequence[NodeId]:
        """Return the peers that can be asked now."""

    def fetch(self, peer: NodeId, first: int, last: int) -> Awaitable[tuple[Entry, ...]]:
        """Return entries of [first, last], possibly not all of them. Raises Unavailable."""


class RepairEvents(Protocol):
    """What the repairer reports to the driver, on the event loop."""

    def log_repaired(self, entries: Sequence[Entry]) -> None:
        """Note entries that can be read again, and check whether the log is whole."""

    def entries_lost(self, damaged: Sequence[range]) -> None:
        """Ask for a snapshot if any of these entries is needed: no peer can send them now."""

    def hand_over_damaged(self) -> None:
        """Transfer leadership, if this node leads: its log stays damaged."""

    def disk_failed(self, error: BaseException) -> None:
        """Stop the node: what the disk holds is unknown."""


class LogRepairer:
    """Watches for faulty entries and fetches them, trying one peer after another."""

    def __init__(
        self,
        log: CommitLog,
        source: Source,
        events: RepairEvents,
        *,
        now_s: Callable[[], float],
        metrics: NodeMetrics,
    ) -> None:
        self._log = log
        self._source = source
        self._events = events
        self._now_s = now_s
        self._metrics = metrics
        self._turn = self._tried_up_to = 0
        self._backoff = Backoff(2 * _POLL_S, _MAX_WAIT_S)
        self._damaged_since_s: float | None = None

    async def run(self) -> None:
        """Repair until cancelled, or until the disk fails."""
        while True:
            try:
                wait_s = await self._round()
            except DiskFull as error:
                logger.warning("no room to repair the log: %s", error)
                wait_s = _MAX_WAIT_S
            except StorageError as error:
                self._events.disk_failed(error)
                return
            await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        """Wait *wait_s*, or until the damaged entries are dropped and the log is whole that way.

        A node may not campaign before it notices that, and its group may need it as leader.
        """
        while True:
            await asyncio.sleep(min(wait_s, _POLL_S))
            wait_s -= _POLL_S
            if wait_s <= 0 or self._log.is_whole:
                return

    async def _round(self) -> float:
        """Try some damaged ranges once each; return after how many seconds to check again."""
        if self._log.is_whole:
            if self._damaged_since_s is not None:
                self._note_whole()
            self._backoff.reset()
            return _POLL_S
        self._note_damage()
        repaired_count = 0
        damages = self._next_damages()
        for damaged in damages:
            repaired_count += await self._repair_range(damaged.start, damaged.stop - 1)
        if damages and not repaired_count:
            self._tried_up_to = damages[-1].stop
            self._events.entries_lost(damages)
        if repaired_count:
            self._backoff.reset()
            return 0.0
        return self._backoff.next_s()

    def _next_damages(self) -> Sequence[range]:
        """Return the ranges to try now: a few at a time, after those that were tried last."""
        damages = self._log.faulty
        behind = [damaged for damaged in damages if damaged.start >= self._tried_up_to]
        if not behind:
            self._tried_up_to = 0
        return (behind or list(damages))[:_MAX_RANGES]

    def _note_damage(self) -> None:
        now_s = self._now_s()
        if self._damaged_since_s is None:
            self._damaged_since_s = now_s
            logger.error("%d entries of the log are damaged", self._log.faulty_count)
            self._events.log_repaired(())
        elif now_s - self._damaged_since_s >= PATIENCE_S:
            self._events.hand_over_damaged()

    def _note_whole(self) -> None:
        self._damaged_since_s = None
        logger.warning("the log is whole again")
        self._events.log_repaired(())

    async def _repair_range(self, first: int, last: int) -> int:
        """Repair [first, last] as far as memory, or the next peer that answers, has it."""
        remembered = self._log.recent(first, last, _BATCH_BYTES)
        if remembered is not None:
            return await self._repair(remembered)
        peers = self._source.peers()
        for number in range(len(peers)):
            entries = await self._ask(peers[(self._turn + number) % len(peers)], first, last)
            if repaired_count := await self._repair(entries):
                return repaired_count
        self._turn += 1
        return await self._repair(await asyncio.to_thread(self._log.reread, first, last))

    async def _ask(self, peer: NodeId, first: int, last: int) -> tuple[Entry, ...]:
        try:
            return await self._source.fetch(peer, first, last)
        except Unavailable as error:
            logger.info("entries [%d, %d] from %s: %s", first, last, peer, error)
            return ()

    async def _repair(self, entries: tuple[Entry, ...]) -> int:
        repaired = await asyncio.to_thread(self._log.repair, entries) if entries else ()
        if repaired:
            self._metrics.repaired_entries.inc(len(repaired))
            logger.warning("repaired entries [%d, %d]", repaired[0].index, repaired[-1].index)
            self._events.log_repaired(repaired)
        return len(repaired)


def first_needed(damaged: Sequence[range], applied_index: int) -> int | None:
    """Return the first of these entries that is not applied yet; None if all are."""
    ahead = (each for each in damaged if each.stop > applied_index + 1)
    return next((max(each.start, applied_index + 1) for each in ahead), None)


def is_stuck_behind(damaged: Sequence[range], core: RaftView) -> bool:
    """Whether every other voter needs entries that are damaged here, now or later.

    Then this leader can commit nothing more, and a leadership transfer would never complete, since
    no candidate can catch up. Others with shorter logs may still be elected: what they lack was
    never committed (Raft 5.4.1).
    """
    voters = core.membership.voter_ids
    matches = [one.match_index for peer, one in core.progress().items() if peer in voters]
    return bool(damaged and matches) and max(matches) < damaged[-1].stop - 1
