"""Admin.Compact at the leader: lets go of what newer messages of the same keys have replaced.

What goes is decided in `compacting`, `copier` writes it. Nothing is remembered between two calls:
whoever gets an error, or another leader, says the same again. A call ends between two commands when
its caller's time is over or it is gone, and when this node leads no more.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.kept_blocks import KeptBlock
from dledger.broker.lived_time import older_than
from dledger.broker.state import BrokerState
from dledger.broker.topics import Compaction, Topic
from dledger.common.metrics import NodeMetrics
from dledger.common.offset_set import OffsetSet
from dledger.errors import (
    EntryDropped,
    InvalidArgument,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    Refused,
    UnknownTopic,
)
from dledger.replica.compacting import (
    Claim,
    Row,
    due_of,
    find_going,
    hold_alone,
    judge,
    may_be_copied,
    read_row,
    sample_of,
)
from dledger.replica.copier import Copier
from dledger.replica.driver import Driver
from dledger.replica.rolling import Alone, Due
from dledger.store.commit_log import CommitLog

logger = logging.getLogger(__name__)

_MOST_CALLS: Final = 4
"""At once; each may have a few bitmaps of 1 MiB in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What came of a claim.

    Attributes:
        ask: Nothing was done: the same is to be said again, with proofs of these offsets.
        kept: Messages that were copied forward.
        let_go: Messages that are gone.
        written_bytes: Of the log.
        later: Messages that may go, and go when they are next copied; or that the call's time was
            too short for. In blocks that were not looked into, what is said of their offsets.
    """

    ask: tuple[int, ...] = ()
    kept: int = 0
    let_go: int = 0
    written_bytes: int = 0
    later: int = 0


class _Found(NamedTuple):
    """What a claim says of a queue, as that was at one moment.

    Attributes:
        stays, alone: What it says.
        may_go: How many messages may go by it; some may be gone already.
        due: What is copied at once, and which of them go with that.
        sample: Which of these, and of the tombstones that are marked as alone, are proved before.
    """

    stays: OffsetSet
    alone: OffsetSet
    may_go: int
    due: Due
    sample: list[int]


class Compactor:
    """Serves claims, of one node while it leads.

    *reach* returns below which index retention drops messages within so many milliseconds, as far
    as can be told now. *secret* chooses what callers have to prove; empty: one that nobody knows.
    """

    def __init__(
        self,
        driver: Driver,
        log: CommitLog,
        state: BrokerState,
        copier: Copier,
        *,
        metrics: NodeMetrics,
        reach: Callable[[int], Awaitable[int]],
        secret: bytes = b"",
    ) -> None:
        self._driver, self._log, self._state, self._copier = driver, log, state, copier
        self._metrics, self._reach = metrics, reach
        self._secret = secret or secrets.token_bytes(32)
        self._calls = 0

    async def compact(self, claim: Claim, *, timeout_s: float) -> Compacted:
        """Let go of what a claim says may go, as far as it is true and worth a copy now.

        Raises:
            NotLeader: This node does not lead, or not any more.
            Overloaded: Too many claims are under way.
            InvalidArgument: It cannot be right, or what it says of a sampled message is a lie.
            UnknownTopic: There is no such topic, or not any more.
            Refused: The topic is not compacted, or the log has another history than the caller saw.
            EntryDropped: Retention was quicker than the caller, who reads the log again.
            DledgerError: An entry cannot be read.
        """
        if self._calls >= _MOST_CALLS:
            raise Overloaded(f"{self._calls} queues are being compacted; try again later")
        self._calls += 1
        try:
            return await self._compact(claim, until_s=_now_s() + timeout_s)
        finally:
            self._calls -= 1

    async def _compact(self, claim: Claim, until_s: float) -> Compacted:
        topic, how = self._check(claim)
        found = await self._find(claim, how)
        if not claim.proofs.keys() >= set(found.sample):
            return Compacted(ask=tuple(found.sample))
        await self._check_sample(claim, found)
        done = await self._copy(topic, claim.queue_id, found.due, until_s)
        return replace(done, later=max(0, found.may_go - done.let_go))

    async def _copy(self, topic: Topic, queue_id: int, due: Due, until_s: float) -> Compacted:
        kept = let_go = written_bytes = 0
        while _now_s() < until_s:
            copied = await self._copier.copy_next(
                topic, queue_id, due, lambda _: lambda offset, _: offset not in due.goes
            )
            if copied is None:
                break
            kept, let_go = kept + copied.kept, let_go + copied.dropped
            written_bytes += copied.size_bytes
            self._metrics.let_go_messages.inc(copied.dropped)
        if not self._state.topics.is_there(topic):
            raise UnknownTopic(topic.name)
        return Compacted(kept=kept, let_go=let_go, written_bytes=written_bytes)

    # -- what is checked ---------------------------------------------------------------------------

    def _check(self, claim: Claim) -> tuple[Topic, Compaction]:
        """Return the topic and how it is compacted. Raises like `compact`."""
        claim.check()
        if not self._driver.is_serving_leader():
            raise NotLeader(self._driver.core.leader)
        self._check_history(claim)
        topic = self._state.topics.named(claim.topic)
        if topic.generation != claim.generation:
            raise UnknownTopic(topic.name)
        if topic.compaction is None:
            raise Refused(
                f"topic {topic.name!r} is not compacted: it keeps all its messages; a compacted "
                "topic is made as one"
            )
        end = self._state.topics.queue(topic.name, claim.queue_id).end
        if claim.to > end:
            raise InvalidArgument(
                f"offsets [{claim.first}, {claim.to}) of topic {topic.name!r}, queue "
                f"{claim.queue_id}: it ends at {end}"
            )
        return topic, topic.compaction

    def _check_history(self, claim: Claim) -> None:
        """Check that the caller has seen this log up to its entry.

        After a group was forced, an archive may know winners that it lost, and by them drop what
        the group has.

        Raises:
            Refused: It has seen another.
            EntryDropped: Nobody can tell any more.
        """
        index, committed = claim.as_of_index, self._driver.core.commit_index
        if index > committed:
            raise Refused(
                f"entry {index} is not committed here, the newest is {committed}: the caller has "
                "seen another history of this group"
            )
        try:
            chain = self._log.chain(index)
        except OffsetOutOfRange:
            raise EntryDropped(
                f"entry {index} is not in the log any more, which begins at {self._log.first_index}"
                ": whether the caller has seen this history cannot be told; begin a round as of a "
                "newer entry"
            ) from None
        if chain != claim.as_of_chain:
            raise Refused(
                f"the chain at entry {index} is {chain:#010x} here and {claim.as_of_chain:#010x} "
                "where the caller has read: another history, as after `dledger force-new-group`; "
                "begin a round from a backup of this one"
            )

    async def _find(self, claim: Claim, how: Compaction) -> _Found:
        queue = self._state.topics.queue(claim.topic, claim.queue_id)
        first_index = max(self._state.first_index, self._log.first_index)
        part = queue.part(first_index, claim.as_of_index)
        blocks = tuple(queue.blocks or ())
        is_old, is_over = self._older_than(how.min_lag_ms), self._older_than(how.tombstone_ms)
        now_ms = self._driver.log_clock.now_ms()  # not before: the caller's entry is committed
        reached = claim.as_of_index + 1
        if claim.again_in_ms:
            reached = min(reached, await self._reach(claim.again_in_ms))

        def find() -> _Found:
            stays = OffsetSet.unpack(claim.first, claim.to, claim.stays)
            alone, read = claim.lone_offsets(), self._copier.read
            near, of_others = list[KeptBlock](), 0
            for block in blocks:
                if block.entry > claim.as_of_index:  # copied since: the caller may not have seen it
                    of_others += len(stays.rows_missing(block.offsets()))
                elif may_be_copied(claim, stays, block, reached):
                    near.append(block)
                else:
                    of_others += stays.count_missing(block.first, block.end)
            going = find_going(claim, stays, near, part, read=read, is_old=is_old)
            new = hold_alone(going, alone, near, read=read, is_over=is_over)
            due = due_of(claim, going, near, part, reached, new=Alone(new, now_ms))
            sampled = (
                sample_of(claim, each, self._secret) for each in (due.goes, due.alone.offsets)
            )
            may_go = len(going) + of_others
            return _Found(stays, alone, may_go, due, sorted(chain.from_iterable(sampled)))

        return await asyncio.to_thread(find)

    def _older_than(self, age_ms: int) -> Callable[[int], bool]:
        """Return whether a message that was stored then (Unix ms) is of this age, in lived time."""
        leaps, lived_ms = self._state.time.leaps, self._driver.log_clock.lived_ms()
        return older_than(age_ms, leaps=leaps, lived_ms=lived_ms)

    async def _check_sample(self, claim: Claim, found: _Found) -> None:
        """Check what is said of the sampled messages, and let those stay that are not proved.

        Raises:
            InvalidArgument: The first lie.
        """
        queue = self._state.topics.queue(claim.topic, claim.queue_id)
        named = {*found.sample, *(claim.proofs[offset] for offset in found.sample)}
        rows = await asyncio.to_thread(self._rows(queue, named))
        try:
            unproved = judge(
                claim,
                found.stays,
                found.alone,
                found.sample,
                rows,
                end=queue.end,
            )
        except InvalidArgument as error:
            self._metrics.compaction_lies.inc()
            logger.error("a round of compaction is refused: %s", error)
            raise
        for offset in unproved:
            found.due.goes.discard(offset)

    def _rows(
        self, queue: ConsumeQueue, offsets: Iterable[int]
    ) -> Callable[[], dict[int, Row | None]]:
        """Return what reads those of the messages that are there; it blocks."""
        places = {offset: queue.locate(offset) for offset in offsets if queue.has(offset)}
        return lambda: {
            offset: read_row(place, self._copier.read) for offset, place in places.items()
        }


def _now_s() -> float:
    return asyncio.get_running_loop().time()
