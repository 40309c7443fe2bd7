"""A node's periodic maintenance: snapshots by policy, retention, and expiry of unused groups.

Owned by the node, which calls `run` every second. Retention has three steps, and a crash may follow
each of them: the leader commits RETAIN, so that every node's state forgets the same messages; each
node takes a snapshot that no longer needs them; then its log drops the segments.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from dledger.broker.commands import ExpireGroups, Retain
from dledger.broker.lived_time import lived_at
from dledger.broker.results import Retained
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.errors import DiskFull, DledgerError, StorageError
from dledger.files.files import DiskUsage
from dledger.replica import snapshot_backoff
from dledger.replica.compactor import Compactor
from dledger.replica.copier import Copier
from dledger.replica.driver import Driver
from dledger.replica.held_roller import HeldRoller
from dledger.replica.retention import (
    HOUR_MS,
    RetentionPolicy,
    count_without,
    first_index_without,
    keep_from,
    size_bytes_of,
)
from dledger.replica.roller import Roller, Wanted
from dledger.replica.room_keeper import Measured
from dledger.replica.slow_followers import SlowFollowers
from dledger.replica.snapshots import Snapshots
from dledger.store.commit_log import CommitLog
from dledger.store.log_index import SealedSegment

logger = logging.getLogger(__name__)

_ROUNDS_BETWEEN_LOOKS: Final = 60
"""How often all consumer groups are checked for unused ones; a round is a second."""
_EARLY_TOLD_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """When a snapshot is due: after both this many bytes and this many entries since the last one.

    Attributes:
        size_bytes: Bytes of log.
        entries: Number of entries.
        rest_rounds: Least rounds of maintenance (a second each) between two snapshots that are
            taken only so that retention can drop segments; otherwise each segment would cause one.
    """

    size_bytes: int
    entries: int
    rest_rounds: int = 10


class Maintenance:
    """Runs the maintenance of one node's disk.

    *usage* returns how full the file system is, without what is root's alone. It may block.
    *secret*: see `Compactor`.
    """

    def __init__(
        self,
        driver: Driver,
        log: CommitLog,
        state: BrokerState,
        snapshots: Snapshots,
        *,
        retention: RetentionPolicy,
        policy: SnapshotPolicy,
        metrics: NodeMetrics,
        usage: Callable[[], DiskUsage],
        now_s: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = random.random,
        secret: bytes = b"",
    ) -> None:
        self._driver = driver
        self._log = log
        self._state = state
        self._snapshots = snapshots
        self._retention = retention
        self._policy = policy
        self._metrics = metrics
        copier = Copier(driver, log, state, metrics=metrics)
        self._roller = Roller(driver, log, state, copier)
        self._held_roller = HeldRoller(driver, log, state, copier, metrics=metrics)
        self.compactor = Compactor(
            driver, log, state, copier, metrics=metrics, reach=self._reach, secret=secret
        )
        self._usage = usage
        self._now_s = now_s
        self._started_s, self._spread = now_s(), spread()
        self._transfers = 0
        self._slow_followers = SlowFollowers()
        self._waits = False
        self._bytes_at_snapshot = 0
        self._rounds = policy.rest_rounds
        self._rounds_led = self._early_dropped = 0
        self._early_told_s = -_EARLY_TOLD_EVERY_S
        self._newest_ms: dict[int, int] = {}

    def retain_by(self, policy: RetentionPolicy) -> None:
        """Go by another policy from now on."""
        self._retention = policy

    async def measure(self) -> None:
        """Look at the disk, and let the driver and the log go by what is found."""
        self._driver.measured(await asyncio.to_thread(self._look))
        room = self._driver.room
        self._log.fit(
            segment_bytes=room.segment_bytes,
            reserve_bytes=room.limits.reserve_bytes,
            makes_spares=room.has_room_for_spare,
        )

    def _look(self) -> Measured:
        allocated_bytes = self._log.allocated_bytes  # before: what is made now counts twice
        first_index = self._state.first_index  # before: what goes meanwhile is not yet known of
        sealed = self._log.sealed()
        usage, newest = self._usage(), self._snapshots.newest()
        return Measured(
            total_bytes=usage.total_bytes,
            free_bytes=usage.free_bytes,
            own_bytes=self._log.disk_bytes + self._snapshots.disk_bytes,
            droppable_bytes=size_bytes_of(sealed),
            snapshot_bytes=newest.size_bytes if newest is not None else 0,
            allocated_bytes=allocated_bytes,
            first_index=first_index,
            going_bytes=size_bytes_of(sealed[: count_without(sealed, first_index)]),
            held_bytes=self._held_roller.most_of_segment(sealed) if self._state.held.count else 0,
        )

    async def run(self, *, by_need: bool = False) -> None:
        """Run one round: do what is due.

        *by_need*: room is wanted before the next second; what goes by seconds waits for that.
        """
        self._rounds += not by_need
        await self.measure()
        try:
            if self._driver.hand_over_for_room():
                return
            await self._propose_retention()
            if not by_need:
                await self._propose_expiry()
                followers = self._driver.core.progress()
                self._waits = self._slow_followers.get_on(followers, self._state.first_index)
            if self._waits and not self._driver.room.is_awaited:
                return
            if self._is_snapshot_due() and not self._should_wait():
                await self.take_snapshot()
            await self._drop()
        except StorageError:
            return  # the driver was told, and stops the node
        except DiskFull as error:
            logger.warning("no snapshot: %s", error)
        except DledgerError as error:
            logger.info("retention is postponed: %s", error)

    async def take_snapshot(self) -> int:
        """Take a snapshot now; see `Snapshots.take`."""
        applied_bytes = self._driver.applied_bytes
        index = await self._snapshots.take()
        self._bytes_at_snapshot, self._rounds = applied_bytes, 0
        return index

    def _should_wait(self) -> bool:
        """Whether a snapshot is postponed because this node died while it took the last ones."""
        unfinished = self._snapshots.unfinished
        if not unfinished:
            return False
        wait_s = snapshot_backoff.wait_s(
            unfinished, self._spread, for_room=self._driver.room.is_short
        )
        return self._now_s() - self._started_s < wait_s or self._hands_over()

    def _hands_over(self) -> bool:
        """Transfer leadership before the loop may block; False if there is no candidate."""
        if (
            not self._driver.is_serving_leader()
            or self._transfers == snapshot_backoff.MOST_TRANSFERS
        ):
            return False
        self._transfers += 1
        try:
            target = self._driver.transfer_leadership(None)
        except DledgerError as error:
            logger.info("taking a snapshot while leading: %s", error)
            return False
        logger.info("transferring leadership to %s before a snapshot: the last one failed", target)
        return True

    def _is_snapshot_due(self) -> bool:
        applied = self._driver.applied_index - self._snapshots.index
        size_bytes = self._driver.applied_bytes - self._bytes_at_snapshot
        if applied >= self._policy.entries and size_bytes >= self._policy.size_bytes:
            return True
        if self._rounds <= self._policy.rest_rounds and not self._driver.room.is_short:
            return False
        segments = self._log.sealed()
        by_state = first_index_without(segments, self._state.first_index)
        return by_state > first_index_without(segments, self._snapshots.first_index)

    async def _drop(self) -> None:
        first_index = first_index_without(self._log.sealed(), self._snapshots.first_index)
        if first_index > self._log.first_index:
            await asyncio.to_thread(self._log.drop_before, first_index)
            await self.measure()
            logger.info("dropped the log below entry %d", first_index)

    async def _propose_retention(self) -> None:
        topics, held = self._state.topics, self._state.held
        if not self._driver.is_serving_leader():
            if held.full:
                self._held_roller.rest()
            if topics.full:
                self._roller.rest()
            return
        index, of_age = await self._decide()
        if topics.longer or topics.full:
            hours = self._retention.hours
            await self._roller.drop_past(group_hours=hours)
            index = await self._roller.make_way(Wanted(index, of_age), group_hours=hours)
        if held.count or held.full:
            await self._held_roller.cancel_orphans()
            index = await self._held_roller.make_way(Wanted(index, of_age))
        if index <= self._state.first_index:
            return
        logger.info("retention: messages in entries below %d are dropped", index)
        grown = topics.grown_bytes
        retained = await self._driver.propose(Retain(before_index=index).encode(), grows=False)
        if index > of_age and isinstance(retained, Retained):
            self._went_early(retained.dropped, grown)

    async def _decide(self, in_ms: int = 0) -> tuple[int, int]:
        """Return what `_keep_from` does, for now or for the time after *in_ms* more."""
        return await asyncio.to_thread(
            self._keep_from,
            self._driver.room.decision().drop_bytes,
            self._driver.log_clock.lived_ms() + in_ms,
            self._state.time.leaps,
        )

    async def _reach(self, in_ms: int) -> int:
        """Return the index below which messages go within *in_ms*, as far as can be told now."""
        index, _ = await self._decide(in_ms)
        everything = 0 < self._retention.hours * HOUR_MS <= in_ms
        return self._log.last_index + 1 if everything else index

    def _went_early(self, dropped: int, grown: dict[str, int]) -> None:
        """Log, once a minute at most, which topic used the space for which messages went early."""
        self._metrics.early_dropped_messages.inc(dropped)
        self._early_dropped += dropped
        now_s = self._now_s()
        if now_s - self._early_told_s < _EARLY_TOLD_EVERY_S:
            return
        dropped, self._early_dropped, self._early_told_s = self._early_dropped, 0, now_s
        topic = max(grown, key=lambda each: (grown[each], each), default="")
        logger.warning(
            "the disk is above its watermark (%s): %d messages of all topics were dropped before "
            "their retention time; topic %s used most of the space, %d MiB since this was last "
            "logged or since this node started",
            self._driver.room.ours(),
            dropped,
            topic,
            grown.get(topic, 0) >> 20,
        )
        grown.clear()

    async def _propose_expiry(self) -> None:
        """Every minute, on the leader: delete the groups that have been unused for too long.

        A new leader begins a minute later: whoever could not poll meanwhile says so before.
        """
        self._rounds_led = self._rounds_led + 1 if self._driver.is_serving_leader() else 0
        if not self._rounds_led or self._rounds_led % _ROUNDS_BETWEEN_LOOKS:
            return
        before_ms = self._retention.unused_before_ms(self._state.groups.active_ms)
        if before_ms and self._state.groups.any_unused(before_ms):
            logger.info("deleting consumer groups last used before %d (Unix ms)", before_ms)
            await self._driver.propose(ExpireGroups(before_ms=before_ms).encode(), grows=False)

    def _keep_from(
        self, excess_bytes: int, lived_ms: int, leaps: tuple[tuple[int, int], ...]
    ) -> tuple[int, int]:
        """Return the first index whose messages are kept, and what it would be with more space."""
        sealed = self._log.sealed()
        decide = partial(
            keep_from,
            sealed[count_without(sealed, self._state.first_index) :],
            self._retention,
            applied_index=self._driver.applied_index,
            lived_ms=lived_ms,
            newest_ms=lambda segment: lived_at(leaps, self._newest(segment)),
        )
        of_age = decide(excess_bytes=0)
        return (decide(excess_bytes=excess_bytes) if excess_bytes else of_age), of_age

    def _newest(self, segment: SealedSegment) -> int:
        """Return the newest timestamp in a segment; Raft's own entries have none."""
        found = self._newest_ms.get(segment.first_index)
        if found is None:
            found = self._read_newest(segment)
            self._newest_ms = {segment.first_index: found}
        return found

    def _read_newest(self, segment: SealedSegment) -> int:
        for index in range(segment.last_index, segment.first_index - 1, -1):
            (entry,) = self._log.read(index, index, 0)
            if entry.timestamp_ms:
                return entry.timestamp_ms
        return 0
