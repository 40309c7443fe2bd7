"""Making a damaged log whole while the node runs: from memory, else from any peer that has it.

Else from its own disk after all: a read may fail but once, and a group of one has no peers.

What all have dropped comes as the state of a snapshot, if it is still to be applied.
Owned by the node, beside its driver. What arrives is checked against the identities that the log
kept (`CommitLog.repair`), so it does not matter who sends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

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
"""A leader that could not mend its log for so long hands over."""


class Source(Protocol):
    """The peers, as `peers.records.RecordsClient` reaches them."""

    def peers(self) -> Sequence[NodeId]:
        """Return who can be asked now."""

    def fetch(self, peer: NodeId, first: int, last: int) -> Awaitable[tuple[Entry, ...]]:
        """Return entries of [first, last], perhaps not all. Raises Unavailable."""


class RepairEvents(Protocol):
    """What the driver is told, on the event loop."""

    def log_repaired(self, entries: Sequence[Entry]) -> None:
        """Note entries that can be read again, and look whether the log is whole."""

    def entries_lost(self, damaged: Sequence[range]) -> None:
        """Ask for a snapshot, if any of these is needed: no peer gives them now."""

    def hand_over_damaged(self) -> None:
        """Give leadership away, if this node has it: its log stays damaged."""

    def disk_failed(self, error: BaseException) -> None:
        """Stop: what the disk holds is unknown."""


class LogRepairer:
    """Watches for faulty entries, and fetches them, one peer after the other."""

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
        self._damaged_since_s: float | None = None

    async def run(self) -> None:
        """Repair until cancelled, or until the disk fails."""
        wait_s = _POLL_S
        while True:
            try:
                wait_s = await self._round(wait_s)
            except DiskFull as error:
                logger.warning("no room to repair the log: %s", error)
                wait_s = _MAX_WAIT_S
            except StorageError as error:
                self._events.disk_failed(error)
                return
            await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        """Wait so long, or until the log is whole without us: what was damaged may be dropped.

        Who cannot campaign before it hears of that would be missed by a group that waits for it.
        """
        while True:
            await asyncio.sleep(min(wait_s, _POLL_S))
            wait_s -= _POLL_S
            if wait_s <= 0 or self._log.is_whole:
                return

    async def _round(self, wait_s: float) -> float:
        """Try some damaged ranges once, each; return when to look again."""
        if self._log.is_whole:
            if self._damaged_since_s is not None:
                self._note_whole()
            return _POLL_S
        self._note_damage()
        mended = 0
        damages = self._next_damages()
        for damaged in damages:
            mended += await self._mend(damaged.start, damaged.stop - 1)
        if damages and not mended:
            self._tried_up_to = damages[-1].stop
            self._events.entries_lost(damages)
        return 0.0 if mended else min(max(wait_s, _POLL_S) * 2, _MAX_WAIT_S)

    def _next_damages(self) -> Sequence[range]:
        """Return what is tried now: so many of a time, behind those that were tried in vain."""
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

    async def _mend(self, first: int, last: int) -> int:
        """Repair what memory, or else the next peer that helps, gives of [first, last]."""
        remembered = self._log.recent(first, last, _BATCH_BYTES)
        if remembered is not None:
            return await self._repair(remembered)
        peers = self._source.peers()
        for number in range(len(peers)):
            entries = await self._ask(peers[(self._turn + number) % len(peers)], first, last)
            if mended := await self._repair(entries):
                return mended
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
    """Return the first of these entries that is still to be applied; None: all are applied."""
    ahead = (each for each in damaged if each.stop > applied_index + 1)
    return next((max(each.start, applied_index + 1) for each in ahead), None)


def is_stuck_behind(damaged: Sequence[range], core: RaftView) -> bool:
    """Whether all other voters wait, or will, for what is damaged here: none can get all of it.

    Then nothing more is committed under it, and a hand-over would never come about. Others may
    have shorter logs and still be elected: what they lack was never committed (Raft 5.4.1).
    """
    voters = core.membership.voter_ids
    matches = [one.match_index for peer, one in core.progress().items() if peer in voters]
    return bool(damaged and matches) and max(matches) < damaged[-1].stop - 1
