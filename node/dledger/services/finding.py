"""Admin.FindMessages at the leader: looks through a queue for messages by offset, id or key.

Nothing is remembered between two calls. A call looks through as many messages as it can in about a
second, in steps between which the event loop goes on; its caller goes on where it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.message import Message, id_of_place
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Stretch
from dledger.broker.rekeep import REKEPT, origins
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument, TopicMadeAnew, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.places import Places
from dledger.services.erasing import next_step
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


class Found(NamedTuple):
    """A message, where it is, and when it was stored."""

    offset: int
    entry: int
    stored_at_ms: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """How far a call has come; *next* is where to go on, up to *end*."""

    generation: int
    found: Sequence[Found]
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
        found, size_bytes, until_s = list[Found](), 0, time.monotonic() + _CALL_S
        while at < end and size_bytes < _FOUND_BYTES:
            slices, at = next_step(self._queue(sought, topic), at, end)
            for (index, *_), rows in groupby(slices, key=lambda each: each[3:]):
                entry = await self._engine.read_entry(index)
                hits = await asyncio.to_thread(found_in, entry, list(rows), sought)
                found += hits
                size_bytes += sum(len(each.message.body) for each in hits)
                if size_bytes >= _FOUND_BYTES:
                    at = hits[-1].offset + 1
                    break
            if time.monotonic() >= until_s:
                break
            await asyncio.sleep(0)
        return Looked(generation=topic.generation, found=found, next=min(at, end), end=end)


def found_in(entry: Entry, rows: Sequence[Stretch], sought: Sought) -> list[Found]:
    """Return what of one payload is looked for. May be called from any thread.

    One that cannot be decoded is passed over: nobody is shown it.
    """
    start, end = rows[0].start, rows[0].end
    theirs = origins(entry, start, end) if entry.data[start - 1] == REKEPT else None
    frame, found = ProduceFrame(entry.data, start, end), list[Found]()
    for each in rows:
        for number in range(each.length):
            row = each.row + number
            try:
                message = frame.message(row)
            except MalformedCommandError:
                continue
            own_id = message.message_id or id_of_place(entry.index, start, row)
            if (sought.key and sought.key not in message.keys) or (
                sought.message_id and sought.message_id != own_id
            ):
                continue
            origin = None if theirs is None else theirs[row]
            place = (
                (entry.index, entry.timestamp_ms)
                if origin is None
                else (origin.entry, origin.stored_at_ms)
            )
            found.append(Found(each.first + number, *place, replace(message, message_id=own_id)))
    return found
