"""Admin.FindMessages at the leader: looks through a queue for messages by offset, id or key.

Nothing is remembered between two calls. A call looks through as many messages as it can in about a
second, in steps between which the event loop goes on; its caller goes on where it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.queue_positions import Stretch
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument, OffsetOutOfRange, TopicMadeAnew, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.places import Places
from dledger.services.erasing import next_step
from dledger.services.stored_messages import StoredMessage, messages_in
from dledger.types import Entry

_CALL_S: Final = 1.0
"""How long a call looks for more; it always does one step."""
_FOUND_BYTES: Final = 1 << 20
"""Of what a call returns; one message is always returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What is looked for: messages with this id, or with this key; with neither, all.

    Attributes:
        topic: The topic's name.
        generation: Which topic of that name; 0: the one that there is.
        queue_id: The queue.
        first, end: Queue offsets ``[first, end)``; *end* 0: all that there are.
    """

    topic: str
    generation: int
    queue_id: int
    first: int
    end: int
    message_id: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """How far a call has come; *next* is where to go on, up to *end*."""

    generation: int
    found: Sequence[StoredMessage]
    next: int
    end: int


class Finder:
    """Serves who looks, one call at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._places = engine, Places(engine)
        self._turn = asyncio.Lock()

    async def find(self, sought: Sought) -> Looked:
        """Return what is found, as far as a call goes.

        Raises:
            NotLeader: This node does not lead, or not any more.
            InvalidArgument: The range, or the queue, cannot be.
            UnknownTopic: There is no such topic, or not any more.
            DledgerError: An entry cannot be read.
        """
        if sought.first < 0 or sought.end < 0:
            raise InvalidArgument(f"[{sought.first}, {sought.end}) is no range of queue offsets")
        async with self._turn:
            await self._places.settle()
            topic = self._engine.state.topics.named(sought.topic)
            if sought.generation not in {0, topic.generation}:
                raise TopicMadeAnew(topic.name)
            return await self._look(sought, topic)

    def _queue(self, sought: Sought, topic: Topic) -> ConsumeQueue:
        topics = self._engine.state.topics
        if not topics.is_there(topic):
            raise UnknownTopic(topic.name)
        return topics.queue(topic.name, sought.queue_id)

    async def _look(self, sought: Sought, topic: Topic) -> Looked:
        queue = self._queue(sought, topic)
        at, end = max(sought.first, queue.first), sought.end or queue.end
        found, size_bytes, until_s = list[StoredMessage](), 0, time.monotonic() + _CALL_S
        missed = -1
        while at < end and size_bytes < _FOUND_BYTES:
            slices, at = next_step(self._queue(sought, topic), at, end)
            for (index, *_), same in groupby(slices, key=lambda each: each[3:]):
                rows = list(same)
                try:
                    entry = await self._engine.read_entry(index)
                except OffsetOutOfRange:
                    if missed == rows[0].first:
                        raise
                    missed = at = rows[0].first  # copied elsewhere meanwhile, or dropped
                    break
                hits = await asyncio.to_thread(found_in, entry, rows, sought)
                found += hits
                size_bytes += sum(len(each.message.body) for each in hits)
                if size_bytes >= _FOUND_BYTES:
                    at = hits[-1].offset + 1
                    break
            if time.monotonic() >= until_s:
                break
            await asyncio.sleep(0)
        return Looked(generation=topic.generation, found=found, next=min(at, end), end=end)


def found_in(entry: Entry, rows: Sequence[Stretch], sought: Sought) -> list[StoredMessage]:
    """Return what of one payload is looked for. May be called from any thread."""
    return [
        each
        for each in messages_in(entry, rows)
        if (not sought.key or sought.key in each.message.keys)
        and (not sought.message_id or sought.message_id == each.message.message_id)
    ]
