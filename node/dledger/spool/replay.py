"""The task that sends spooled messages to the group, in order, with their original ids.

Owned by `producer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from dledger.common.backoff import Backoff
from dledger.errors import (
    CorruptSpool,
    DiskFull,
    DledgerError,
    FeatureNotReady,
    MessageRejected,
    RateLimited,
    Refused,
    SeveralQueues,
    Unavailable,
    UnknownTopic,
)
from dledger.spool.circuit_breaker import BATCH_BYTES, BATCH_RECORDS, CircuitBreaker
from dledger.spool.counters import Counts
from dledger.spool.reader import Chunk, Spooled
from dledger.spool.topic_sender import Upstream, queue_of
from dledger.spool.worker import Worker

TIMEOUT_S: Final = 5.0
BACKOFF_S: Final = (0.1, 1.0)
MAX_ODD_FAILURES: Final = 10
"""After so many internal errors in a row for a single message it is that message's fault."""

_log = logging.getLogger(__name__)

Report = Callable[[CorruptSpool | MessageRejected], None]


class Replay:
    """Replays chunk by chunk; a chunk is done when each of its messages is stored or rejected.

    Progress is saved after each chunk, and a chunk has far fewer messages than the group remembers
    ids of a client. So messages that are sent again, here or after a crash, are not stored twice.
    """

    def __init__(
        self,
        *,
        upstream: Upstream,
        worker: Worker,
        gate: CircuitBreaker,
        counts: Counts,
        report: Report,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self._batch_records = batch_records
        self._upstream, self._worker, self._gate = upstream, worker, gate
        self._counts, self._report = counts, report
        self._reported = 0
        self._backoff, self._odd_failures = Backoff(*BACKOFF_S), 0

    async def run(self) -> None:
        """Replay until cancelled, or until the disk fails (which is logged)."""
        try:
            while True:
                while not self._worker.spool.waiting:
                    await self._gate.wait()
                await self._next_chunk()
        except DledgerError:
            _log.exception("the replay has stopped; open the spool again once its disk works")
        finally:
            self._gate.broke()

    async def _next_chunk(self) -> None:
        spool = self._worker.spool
        chunk = await self._worker.run(
            lambda: spool.read(max_records=self._batch_records, max_bytes=BATCH_BYTES)
        )
        self.report_damage()
        if chunk is None:
            return
        refused = [pair for batch in _batches(chunk) for pair in await self._store(batch)]
        if refused:
            await keep_rejected(self._worker, self._counts, self._report, refused)
        await self._worker.run(lambda: spool.advance(chunk))
        self._counts.replayed += len(chunk.messages) - len(refused)
        self._gate.replayed(sum(spooled.size_bytes for spooled in chunk.messages))

    def report_damage(self) -> None:
        """Report the damage found since the last call."""
        damage = self._worker.spool.damage
        for one in damage[self._reported :]:
            self._counts.lost += one.messages
            self._report(one)
        self._reported = len(damage)

    async def _store(self, batch: Sequence[Spooled]) -> list[tuple[Spooled, str]]:
        """Store messages of one queue in order; return the refused ones with their reasons.

        A refused batch is halved until the faulty message is found. A failed batch is halved too:
        it may have been too large for a slow connection. In a compacted topic the keys choose the
        queue, in one of type PRIORITY the priorities: what is left is then stored queue by queue.
        """
        rest, limit = deque(batch), len(batch)
        refused: list[tuple[Spooled, str]] = []
        while rest:
            part = [rest[number] for number in range(min(limit, len(rest)))]
            error = await self._attempt(part)
            if error is None:
                limit *= 2
            elif isinstance(error, UnknownTopic) or (isinstance(error, Refused) and len(part) == 1):
                refused += [(spooled, str(error)) for spooled in part]
            elif isinstance(error, SeveralQueues) and (parts := _by_queue(rest, error)):
                return refused + [pair for each in parts for pair in await self._store(each)]
            else:
                limit = max(1, len(part) // 2)
                continue
            for _ in part:
                rest.popleft()
        return refused

    async def _attempt(self, part: Sequence[Spooled]) -> DledgerError | None:
        """Append *part* once; return the error, if any, after a backoff unless it is a refusal."""
        try:
            await self._upstream.append(
                part[0].message.topic,
                [spooled.message.record for spooled in part],
                queue_id=part[0].message.queue_id,
                timeout_s=TIMEOUT_S,
            )
        except Refused as error:
            self._succeeded()
            return error
        except DledgerError as error:
            passes = isinstance(error, Unavailable | RateLimited | DiskFull | FeatureNotReady)
            self._odd_failures += not passes
            if self._odd_failures >= MAX_ODD_FAILURES:
                self._odd_failures = 0
                return Refused(f"failed {MAX_ODD_FAILURES} times: {error}")
            self._gate.closed(error)
            await asyncio.sleep(self._backoff.next_s())
            return error
        self._succeeded()
        return None

    def _succeeded(self) -> None:
        self._gate.opened()
        self._backoff.reset()
        self._odd_failures = 0


async def keep_rejected(
    worker: Worker, counts: Counts, report: Report, refused: Sequence[tuple[Spooled, str]]
) -> None:
    """Write refused messages to a file, with their reasons; retry while the disk is full."""
    spool = worker.spool
    while True:
        try:
            path = await worker.run(lambda: spool.reject(refused))
            break
        except DiskFull as error:
            _log.warning("%s", error)
            await asyncio.sleep(BACKOFF_S[1])
    counts.rejected += len(refused)
    for spooled, reason in refused:
        message = spooled.message
        rejected = MessageRejected(
            message.topic, message.record.message_id, reason=reason, path=str(path)
        )
        _log.error("%s", rejected)
        report(rejected)


def _batches(chunk: Chunk) -> list[list[Spooled]]:
    """Group the messages by (topic, queue id); only within a group does the order matter."""
    return _group(chunk.messages, lambda one: (one.message.topic, one.message.queue_id))


def _by_queue(messages: Iterable[Spooled], error: SeveralQueues) -> list[list[Spooled]]:
    """Group messages by the queue that their topic chooses; none if that is no help."""
    groups = _group(messages, lambda one: queue_of(one.message, own_queues=error.queues))
    return groups if len(groups) > 1 else []


def _group(messages: Iterable[Spooled], key: Callable[[Spooled], Hashable]) -> list[list[Spooled]]:
    groups: dict[Hashable, list[Spooled]] = {}
    for spooled in messages:
        groups.setdefault(key(spooled), []).append(spooled)
    return list(groups.values())
