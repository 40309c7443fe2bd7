"""A node's engine over a log in memory, whose topic keeps its messages for ever by copying them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dledger.broker.commands import SetRetention
from dledger.broker.results import Rekept
from dledger.errors import OffsetOutOfRange
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.types import Entry
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine

BODY = "x" * 200


class Disk(PartOfEngine):
    """A node's engine with a queue of entries of ten messages, 40 in all, that was rolled whole."""

    def __init__(self, *, without: Sequence[int] = (), entries: int = 4, body: str = BODY) -> None:
        self.log = Log()
        self.state = self.log.state
        self.first_entry = 1
        self.log.create(topic="orders")
        self.log.append(SetRetention(name="orders", hours=0).encode())
        for _ in range(entries):
            self.produce(10, body)
        if entries:
            self.roll()
        if without:
            self.roll(without)

    def produce(self, count: int, body: str) -> None:
        self.log.now_ms += 1_000
        end = self.state.topics.queue("orders", 0).end
        self.log.produce(*(f"{body} {end + row}" for row in range(count)), topic="orders")

    def roll(self, without: Sequence[int] = (), *, before: int = 0) -> range:
        """Copy what comes next, without some offsets; return which offsets it decided."""
        topic = self.state.topics.named("orders")
        queue = self.state.topics.queue("orders", 0)
        roll = next_roll(topic, 0, queue, Due.below(before or len(self.log.entries) + 1))
        assert roll is not None
        left = tuple(
            each._replace(first=each.first + number, row=each.row + number, length=1)
            for each in roll.stretches
            for number in range(each.length)
            if each.first + number not in without
        )
        command, _ = rekeep_of(
            replace(roll, stretches=left),
            lambda index: self.log.entries[index - 1],
            lambda *_: True,
        )
        before_it = queue.count
        (result,) = self.log.append(command)
        count = self.state.topics.queue("orders", 0).count
        assert result == Rekept(before_it - count)
        return range(roll.first, roll.to)

    def retain(self) -> None:
        """Drop the entries that nobody needs any more."""
        lowest = self.state.topics.queue("orders", 0).lowest_index
        assert lowest is not None
        self.log.retain(lowest)
        self.first_entry = lowest

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Nothing is slow here."""

    async def read_entry(self, index: int) -> Entry:
        if index < self.first_entry:
            raise OffsetOutOfRange(index, first=self.first_entry, last=len(self.log.entries))
        return self.log.entries[index - 1]
