"""A compacted topic for tests of its readers: lets go by hand, and knows what is right."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.key_queues import queue_of_key
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Stretch
from dledger.client import Client, Compaction, Record
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.requests.engine import Engine
from dledger.types import MAX_NUMBER

TOPIC = "prices"
FIRST = "first"
"""The key of the first message of each queue, which is never let go."""


class CompactedTopic:
    """The topic, in a group that runs: the client port and the engine of its leader.

    Attributes:
        rows: What a table has: the body of each key that is not deleted.
    """

    def __init__(self, address: str, engine: Engine, queues: int) -> None:
        self._address, self._engine, self._queues = address, engine, queues
        self.rows: dict[str, bytes] = {}

    async def create(self) -> None:
        """Make it, with a first message in each queue."""
        async with Client(self._address) as client:
            await client.create_topic(TOPIC, queues=self._queues, compaction=Compaction())
        self.rows.clear()
        keys = (f"{FIRST}-{number}" for number in range(1 << 10))
        firsts = {self.queue_of(key): key for key in keys}
        for key in firsts.values():
            await self.put(key, b"")

    def queue_of(self, key: str) -> int:
        return queue_of_key(key.encode(), self._queues)

    async def put(self, key: str, body: bytes) -> None:
        """Store a key's new message."""
        no_tombstone = {"dledger.tombstone": "false"}
        await self._append(key, Record(body=body or b"-", keys=(key,), properties=no_tombstone))
        self.rows[key] = body or b"-"

    async def delete(self, key: str) -> None:
        """Store a key's tombstone."""
        record = Record(body=b"gone", keys=(key,), properties={"dledger.tombstone": "true"})
        await self._append(key, record)
        self.rows.pop(key, None)

    async def _append(self, key: str, record: Record) -> None:
        async with Client(self._address) as client:
            await client.append(TOPIC, [record])

    def queue(self, queue_id: int) -> ConsumeQueue:
        return self._engine.state.topics.queue(TOPIC, queue_id)

    async def _messages(self, queue_id: int) -> list[tuple[Stretch, str]]:
        """Return each message that is there: where, and its key."""
        queue, found = self.queue(queue_id), list[tuple[Stretch, str]]()
        for each in list(queue.stretches(queue.first)):
            data = (await self._engine.read_entry(each.entry)).data
            frame = ProduceFrame(data, each.start, each.end)
            for number in range(each.length):
                one = each._replace(first=each.first + number, row=each.row + number, length=1)
                found.append((one, frame.message(one.row).keys[0]))
        return found

    def offsets(self, queue_id: int) -> list[int]:
        """Return the queue offsets of the messages that are there."""
        stretches = self.queue(queue_id).stretches(self.queue(queue_id).first)
        return [each.first + number for each in stretches for number in range(each.length)]

    async def compact(self, queue_id: int, *, spare: Collection[int] = ()) -> None:
        """Let go of what newer messages have replaced, but for the offsets in *spare*."""
        there = await self._messages(queue_id)
        newest = {key: each.first for each, key in there}
        topic = self._engine.state.topics.named(TOPIC)
        due = Due.below(MAX_NUMBER)
        roll = next_roll(topic, queue_id, self.queue(queue_id), due)
        if roll is None:
            return
        stays = tuple(
            each
            for each, _ in there
            if roll.first <= each.first < roll.to and each.first in {*newest.values(), *spare}
        )
        entries = {each.entry: await self._engine.read_entry(each.entry) for each in stays}
        rolled = replace(roll, stretches=stays)
        command, _ = rekeep_of(rolled, entries.__getitem__, lambda *_: True)
        await self._engine.propose(command)
