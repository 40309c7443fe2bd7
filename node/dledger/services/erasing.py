"""Admin.Erase at the leader: finds the messages of a key, and has them erased.

Nothing is remembered between two calls: whoever gets an error, or another leader, says the same
again, and a second round finds nothing. A call looks through as many messages as it can in about a
second, in steps between which the event loop goes on. The key is in memory while it is looked for,
and in no command, error or line of a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.erase import MAX_OFFSETS, Erase
from dledger.broker.key_queues import queue_of_key
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Stretch
from dledger.broker.rekeep import REKEPT, origins
from dledger.broker.results import Erased
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument, OffsetOutOfRange, Refused, UnknownTopic
from dledger.requests.engine import Engine
from dledger.types import Entry

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
        if not self.key:
            raise InvalidArgument("the key is empty, which no message's is")
        if self.first < 0 or self.end < 0:
            raise InvalidArgument(f"[{self.first}, {self.end}) is no range of queue offsets")


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

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
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
            # A leader that has lost its majority knows of no newer messages.
            await self._engine.wait_applied(await self._engine.read_index(), _APPLIED_S)
            return await self._erase(wanted, self._topic_of(wanted))

    def _topic_of(self, wanted: Wanted) -> Topic:
        topic = self._engine.state.topics.named(wanted.topic)
        if wanted.generation not in {0, topic.generation}:
            raise UnknownTopic(wanted.topic)
        if topic.compaction is None:
            raise Refused(
                f"topic {topic.name!r} is not compacted, so its messages have any number of keys, "
                "or none, and go with its retention: nothing is erased; delete the topic if none "
                "of them may stay"
            )
        return topic

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
        result = await self._engine.propose(command.encode())
        if not isinstance(result, Erased):
            raise TypeError(f"ERASE answered {result!r}")
        return result

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
    """Return which messages of one payload have just this key. May be called from any thread.

    One that cannot be decoded is passed over: nobody is shown it.
    """
    start, end = rows[0].start, rows[0].end
    theirs = origins(entry, start, end) if entry.data[start - 1] == REKEPT else None
    frame, found = ProduceFrame(entry.data, start, end), list[Hit]()
    for each in rows:
        for number in range(each.length):
            row = each.row + number
            try:
                has_it = frame.message(row).keys == (key,)
            except MalformedCommandError:
                continue
            if has_it:
                stored = entry.index if theirs is None else theirs[row].entry
                found.append(Hit(each.first + number, stored))
    return found
