"""A broker group as the producer sees it, with the knobs of a test; it dedupes as a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from dledger.broker.body_digests import digests_of
from dledger.broker.deduplication import DeduplicationWindow
from dledger.errors import DledgerError, Unavailable
from dledger.types import Appended, Record


class FakeGroup:
    """Stores messages by topic.

    Attributes:
        down: It takes nothing, and says so at once.
        failing: What it raises for a batch, if anything; it has stored nothing then.
        lose_outcomes: How many batches it stores next without saying so.
        odds: How often it fails by chance; half of that after it stored the batch.
        stored: Message ids by topic, in order.
        batches: The sizes of what it was sent.
    """

    def __init__(self, seed: int = 0) -> None:
        self.down = False
        self.failing: Callable[[str, Sequence[Record]], DledgerError | None] = lambda *_: None
        self.lose_outcomes = 0
        self.odds = 0.0
        self.stored: dict[str, list[str]] = {}
        self.batches: list[int] = []
        self.client_ids: list[str] = []
        self.closed = False
        self._rng = Random(seed)
        self._window = DeduplicationWindow()

    def connect(self, client_id: str) -> FakeGroup:
        """Take a producer in."""
        self.client_ids.append(client_id)
        return self

    async def append(
        self, topic: str, records: Sequence[Record], *, queue_id: int, timeout_s: float
    ) -> Appended:
        await asyncio.sleep(0)
        self.batches.append(len(records))
        fate = self._rng.random()
        if self.down or fate < self.odds / 2:
            raise Unavailable("nobody listens")
        if error := self.failing(topic, records):
            raise error
        stored = self._store(topic, records, max(queue_id, 0))
        if self.lose_outcomes or fate < self.odds:
            self.lose_outcomes = max(0, self.lose_outcomes - 1)
            raise Unavailable("the connection broke")
        return stored

    def _store(self, topic: str, records: Sequence[Record], queue_id: int) -> Appended:
        ids = self.stored.setdefault(topic, [])
        offsets: list[int] = []
        for record in records:
            key = record.message_id.encode()
            found = self._window.find(self.client_ids[-1], topic, key) if key else None
            if found is not None:
                offsets.append(found.offset)
                continue
            self._window.remember(
                self.client_ids[-1],
                topic,
                (key,),
                digests_of([record.body]),
                queue_id=queue_id,
                first=len(ids),
            )
            offsets.append(len(ids))
            ids.append(record.message_id)
        return Appended(queue_id=queue_id, offsets=tuple(offsets), index=1)

    async def close(self) -> None:
        self.closed = True
