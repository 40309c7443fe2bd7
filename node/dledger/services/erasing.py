"""Admin.Erase at the leader: finds the messages of a key, and has them erased.

Nothing is remembered between two calls: whoever gets an error, or another leader, says the same
again, and a second round finds nothing. A call looks through as many messages as it can in about a
second, in steps between which the event loop goes on. The key is in memory while it is looked for,
and in no command, error or line of a log.

What compaction has let go before is not found, and backups show it. Who has read these says where
it was (`Older`): the leader checks what it still can, and has that erased, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.erase import MAX_OFFSETS, Erase
from dledger.broker.key_queues import queue_of_key
from dledger.broker.queue_positions import Stretch
from dledger.broker.results import Erased
from dledger.broker.topics import MAX_QUEUES, Topic
from dledger.common.metrics import NodeMetrics
from dledger.errors import InvalidArgument, OffsetOutOfRange, Refused, UnknownTopic
from dledger.requests.engine import Engine
from dledger.services.stored_messages import messages_in
from dledger.types import MAX_NUMBER, Entry

logger = logging.getLogger(__name__)

_CALL_S: Final = 1.0
"""How long a call looks for more; it always does one step."""
_SLICES: Final = 512
_STEP_BYTES: Final = 1 << 20
"""Slices of a step, and bytes of the payloads that they lie in; one payload is always looked at."""
_APPLIED_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be erased.

    Attributes:
        topic: The topic's name.
        key: Exactly this one; never shown.
        generation: Which topic of that name; 0: the one that there is.
        first, end: Queue offsets ``[first, end)`` of the key's queue; *end* 0: all that there are.
        only_count: Nothing is erased.
    """

    topic: str
    key: str = field(repr=False)
    generation: int = 0
    first: int = 0
    end: int = 0
    only_count: bool = False

    def check(self) -> None:
        """Raise InvalidArgument if it cannot be right, whatever the group has."""
        _check_key(self.key)
        if self.first < 0 or self.end < 0:
            raise InvalidArgument(f"[{self.first}, {self.end}) is no range of queue offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """Messages of a key that somebody has read in a backup; most of them are gone here.

    Attributes:
        topic: The topic's name.
        key: Exactly this one; never shown.
        generation: Which topic of that name: the one that there is, or one that was deleted.
        queue_id: Their queue.
        offsets: Where they are, or were; ascending.
        first_entry: None of them was stored before this entry.
        only_check: Nothing is erased.
    """

    topic: str
    key: str = field(repr=False)
    generation: int
    queue_id: int
    offsets: tuple[int, ...]
    first_entry: int
    only_check: bool = False

    def check(self) -> None:
        """Raise InvalidArgument if it cannot be right, whatever the group has."""
        _check_key(self.key)
        if not 1 <= len(self.offsets) <= MAX_OFFSETS:
            raise InvalidArgument(f"{len(self.offsets)} offsets, of at most {MAX_OFFSETS}")
        bounds = (-1, *self.offsets, MAX_NUMBER)
        if not all(lower < higher for lower, higher in pairwise(bounds)):
            raise InvalidArgument(f"offsets that do not ascend in [0, {MAX_NUMBER})")
        if not 0 <= self.queue_id < MAX_QUEUES:
            raise InvalidArgument(f"no topic has a queue {self.queue_id}")


def _check_key(key: str) -> None:
    if not key:
        raise InvalidArgument("the key is empty, which no message's is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing:
    """How far a call has come.

    Attributes:
        generation: Which topic it was.
        messages: How many it has erased, or counted.
        first_entry: The lowest entry that stored one of them; 0: there was none.
        erase_entry: The entry of its last command; 0: none.
        next: Where to go on, up to *end*, the queue's end when the first call began.
    """

    generation: int
    messages: int
    first_entry: int
    erase_entry: int
    next: int
    end: int


class Hit(NamedTuple):
    """A message of the key: its queue offset, and the entry that stored it."""

    offset: int
    entry: int


class Eraser:
    """Serves who erases, one call at a time."""

    def __init__(self, engine: Engine, metrics: NodeMetrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._turn = asyncio.Lock()

    async def erase(self, wanted: Wanted) -> Erasing:
        """Erase the messages of a key, as far as a call goes.

        Raises:
            NotLeader: This node does not lead, or not any more.
            InvalidArgument: The key or the range cannot be right.
            UnknownTopic: There is no such topic, or not any more.
            Refused: It is not compacted.
            DledgerError: An entry cannot be read.
        """
        wanted.check()
        async with self._turn:
            await self._catch_up()
            return await self._erase(wanted, self._topic_of(wanted))

    async def _catch_up(self) -> None:
        """Wait for what is committed: a leader that lost its majority knows no newer messages."""
        await self._engine.wait_applied(await self._engine.read_index(), _APPLIED_S)

    def _topic_of(self, wanted: Wanted) -> Topic:
        topic = self._engine.state.topics.named(wanted.topic)
        if wanted.generation not in {0, topic.generation}:
            raise UnknownTopic(wanted.topic)
        _check_compacted(topic)
        return topic

    async def erase_older(self, older: Older) -> Erased:
        """Have messages erased, of which the group may have nothing any more but its backups.

        Of those that are gone the caller is believed.

        Returns:
            How many of them were there, and an entry by which the command is in the log (0: it only
            was to be checked).

        Raises:
            NotLeader, DledgerError: As `erase` does.
            InvalidArgument: One is there and is a message of another key, or cannot be. Nothing was
                done.
            Refused: The topic is not compacted.
        """
        older.check()
        async with self._turn:
            await self._catch_up()
            try:
                hits = await self._check(older)
            except InvalidArgument as error:
                self._metrics.erase_lies.inc()
                logger.error("the erasing of older messages is refused: %s", error)
                raise
            if older.only_check:
                return Erased(len(hits), 0)
            return await self._say_older(older, hits)

    async def _check(self, older: Older) -> list[Hit]:
        """Return which of the messages are there, each of the key."""
        topic = self._topic_as_told(older)
        if topic is None:
            return []
        key, queue = older.key.encode(), self._queue(topic, older.queue_id)
        if older.queue_id != queue_of_key(key, topic.queues):
            raise InvalidArgument(
                f"nothing was done: the key has no messages in queue {older.queue_id} of topic "
                f"{topic.name!r}"
            )
        if older.offsets[-1] >= queue.end:
            raise InvalidArgument(
                f"nothing was done: queue {older.queue_id} of topic {topic.name!r} has not come "
                f"to offset {older.offsets[-1]}: it ends at {queue.end}"
            )
        there, hits = await self._rows(topic, older, key)
        if others := there - {hit.offset for hit in hits}:
            raise InvalidArgument(
                f"nothing was done: offset {min(others)} of queue {older.queue_id} of topic "
                f"{topic.name!r} is a message of another key, and so are {len(others)} in all"
            )
        return hits

    def _topic_as_told(self, older: Older) -> Topic | None:
        """Return the topic; None if it was deleted."""
        topics = self._engine.state.topics
        if not 1 <= older.generation <= topics.made:
            raise InvalidArgument(f"nothing was done: there never was a topic {older.generation}")
        found = (each for each in topics.all() if each.generation == older.generation)
        topic = next(found, None)
        if topic is not None:
            if topic.name != older.topic:
                raise InvalidArgument(
                    f"nothing was done: topic {older.generation} is {topic.name!r}, "
                    f"not {older.topic!r}"
                )
            _check_compacted(topic)
        return topic

    async def _rows(self, topic: Topic, older: Older, key: bytes) -> tuple[set[int], list[Hit]]:
        """Return which offsets are there, and which of these have the key."""
        slices = rows_at(self._queue(topic, older.queue_id), older.offsets)
        try:
            hits = await self._hits(slices, key)
        except OffsetOutOfRange:  # see `_look`
            slices = rows_at(self._queue(topic, older.queue_id), older.offsets)
            hits = await self._hits(slices, key)
        return {each.first for each in slices}, hits

    async def _say_older(self, older: Older, hits: Sequence[Hit]) -> Erased:
        command = Erase(
            generation=older.generation,
            queue_id=older.queue_id,
            first_entry=max(min([older.first_entry, *(hit.entry for hit in hits)]), 0),
            offsets=older.offsets,
        )
        try:
            result = await self._engine.propose(command.encode())
        except UnknownTopic:  # as the state says of a topic that is gone; the log has the command
            return Erased(0, self._engine.state.applied_index)
        return _result_of(result)

    async def _erase(self, wanted: Wanted, topic: Topic) -> Erasing:
        key = wanted.key.encode()
        queue_id = queue_of_key(key, topic.queues)
        at, end = wanted.first, wanted.end or self._queue(topic, queue_id).end
        messages, first_entry, erase_entry = 0, 0, 0
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + _CALL_S
        while at < end:
            at, hits = await self._look(topic, queue_id, at, end, key)
            if hits:
                lowest = min(hit.entry for hit in hits)
                first_entry = min(first_entry or lowest, lowest)
                done = await self._say(topic, queue_id, hits, lowest, only_count=wanted.only_count)
                messages += done.messages
                erase_entry = done.entry if done.messages else erase_entry
            if now_s() >= until_s:
                break
            await asyncio.sleep(0)
        return Erasing(
            generation=topic.generation,
            messages=messages,
            first_entry=first_entry,
            erase_entry=erase_entry,
            next=min(at, end),
            end=end,
        )

    async def _say(
        self, topic: Topic, queue_id: int, hits: Sequence[Hit], lowest: int, *, only_count: bool
    ) -> Erased:
        if only_count:
            return Erased(len(hits), 0)
        command = Erase(
            generation=topic.generation,
            queue_id=queue_id,
            first_entry=lowest,
            offsets=tuple(hit.offset for hit in hits),
        )
        return _result_of(await self._engine.propose(command.encode()))

    def _queue(self, topic: Topic, queue_id: int) -> ConsumeQueue:
        topics = self._engine.state.topics
        if not topics.is_there(topic):
            raise UnknownTopic(topic.name)
        return topics.queue(topic.name, queue_id)

    async def _look(
        self, topic: Topic, queue_id: int, first: int, end: int, key: bytes
    ) -> tuple[int, list[Hit]]:
        """Look through the next step; return the offset behind it, and what was found."""
        slices, behind = next_step(self._queue(topic, queue_id), first, end)
        try:
            return behind, await self._hits(slices, key)
        except OffsetOutOfRange:  # they were copied elsewhere before retention came so far
            slices, behind = next_step(self._queue(topic, queue_id), first, end)
            return behind, await self._hits(slices, key)

    async def _hits(self, slices: Sequence[Stretch], key: bytes) -> list[Hit]:
        self._engine.read_ahead(list(dict.fromkeys([each.entry for each in slices])))
        found: list[Hit] = []
        for (index, start, end), rows in groupby(slices, key=lambda each: each[3:]):
            entry = await self._engine.read_entry(index)
            if entry.data.find(key, start, end) >= 0:  # most payloads have it nowhere
                found += await asyncio.to_thread(hits_in, entry, list(rows), key.decode())
        return found


def _check_compacted(topic: Topic) -> None:
    if topic.compaction is None:
        raise Refused(
            f"topic {topic.name!r} is not compacted, so its messages have any number of keys, "
            "or none, and go with its retention: nothing is erased; delete the topic if none "
            "of them may stay"
        )


def _result_of(result: object) -> Erased:
    if not isinstance(result, Erased):
        raise TypeError(f"ERASE answered {result!r}")
    return result


def rows_at(queue: ConsumeQueue, offsets: Sequence[int]) -> list[Stretch]:
    """Return the messages of a queue that are at *offsets*, each alone."""
    places = ((offset, queue.locate(offset)) for offset in filter(queue.has, offsets))
    return [
        Stretch(offset, 1, at.row, at.payload.index, at.payload.start, at.payload.end)
        for offset, at in places
    ]


def next_step(queue: ConsumeQueue, first: int, end: int) -> tuple[list[Stretch], int]:
    """Return the next messages of a queue in ``[first, end)``, and the offset behind them.

    At most as many as one ERASE may name.
    """
    found: list[Stretch] = []
    rows = size_bytes = 0
    for each in queue.stretches(max(first, queue.first)):
        if each.first >= end:
            break
        if len(found) == _SLICES or rows == MAX_OFFSETS or size_bytes >= _STEP_BYTES:
            return found, each.first
        length = min(each.length, end - each.first, MAX_OFFSETS - rows)
        if not found or found[-1][3:] != each[3:]:
            size_bytes += each.end - each.start
        found.append(each._replace(length=length))
        rows += length
        if length < each.length:
            return found, each.first + length
    return found, end


def hits_in(entry: Entry, rows: Sequence[Stretch], key: str) -> list[Hit]:
    """Return which messages of one payload have just this key. May be called from any thread."""
    return [
        Hit(each.offset, each.entry)
        for each in messages_in(entry, rows)
        if each.message.keys == (key,)
    ]
