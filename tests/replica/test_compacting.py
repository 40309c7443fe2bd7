"""What a claim lets go and what is copied at once: pure; the sample, too."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from dledger.broker.commands import SetRetention
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Rekept
from dledger.common.offset_set import OffsetSet
from dledger.replica.compacting import (
    MAX_SAMPLE,
    Claim,
    due_of,
    find_going,
    first_young,
    may_be_copied,
    sample_of,
)
from dledger.replica.rolling import Alone, Due, next_roll, rekeep_of, soon_due
from dledger.types import Entry, EntryKind
from tests.broker.log import Log

_CLAIM = Claim(
    as_of_index=1, as_of_chain=0, topic="t", generation=1, queue_id=0, first=0, to=1, stays=b""
)


class Table:
    """A log with the compacted topic t, of one queue; and which offset each key has."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.create()
        self.log.append(SetRetention(name="t", hours=0).encode())
        self.newest: dict[str, int] = {}

    @property
    def queue(self) -> ConsumeQueue:
        return self.log.state.topics.queue("t", 0)

    def produce(self, keys: Iterable[str]) -> None:
        said = list(keys)
        count = len(said)
        batch = Columns(
            message_ids=[f"{key} {self.queue.end + at}" for at, key in enumerate(said)],
            bodies=[b"x"] * count,
            born_at_ms=[0] * count,
            keys=[(key,) for key in said],
        )
        first = self.queue.end
        self.log.append(encode_produce(batch, client_id="c", topic="t", queue_id=0))
        self.newest |= {key: first + at for at, key in enumerate(said)}

    def round(self, reached: int) -> int:
        """Let go of what is beaten; return how many commands that took."""
        as_of = len(self.log.entries)
        claim = replace(_CLAIM, as_of_index=as_of, to=self.queue.end)
        stays = OffsetSet(0, self.queue.end, self.newest.values())
        blocks, part = tuple(self.queue.blocks or ()), self.queue.part(1, as_of)
        going = find_going(claim, stays, blocks, part, read=self.read, is_old=lambda _: True)
        due = due_of(claim, going, blocks, part, reached, new=Alone())
        return self.copy(due)

    def copy(self, due: Due) -> int:
        topic, commands = self.log.state.topics.named("t"), 0
        while (roll := next_roll(topic, 0, self.queue, due)) is not None:
            command, _ = rekeep_of(roll, self.read, lambda offset, _: offset not in due.goes)
            (result,) = self.log.append(command)
            assert isinstance(result, Rekept)
            commands += 1
        return commands

    def lengths(self) -> list[int]:
        return [block.length for block in self.queue.blocks or ()]

    def read(self, index: int) -> Entry:
        return self.log.entries[index - 1]


def test_a_block_is_copied_once_half_of_it_goes() -> None:
    """Before that it would be written for little; its readers get what is beaten meanwhile."""
    table = Table()
    table.produce(map(str, range(100)))
    table.copy(Due.below(len(table.log.entries) + 1))
    assert table.lengths() == [100]

    table.produce(map(str, range(49)))
    assert table.round(reached=0) == 0
    table.produce(["49"])
    assert table.round(reached=0) == 1

    assert table.lengths() == [50]


def test_of_the_log_only_the_front_is_copied_up_to_the_last_that_goes() -> None:
    """What lies behind it would be written for nothing, and is not due."""
    table = Table()
    table.produce("ab")
    table.produce("cd")
    table.produce("a")
    end = len(table.log.entries) + 1

    assert table.round(reached=end) == 1

    assert (table.queue.log_first, table.lengths()) == (1, [])
    assert table.round(reached=end) == 0


def test_blocks_do_not_rise_with_time_while_keys_are_written_again_and_again() -> None:
    """A round an hour, retention of 24: what is live is written about once in that time."""
    table, rng = Table(), random.Random(1)
    marks, counts, rekept = list[int](), list[int](), 0
    table.produce(map(str, range(1_500)))
    for hour in range(240):
        table.produce(str(rng.randrange(1_500)) for _ in range(30))
        marks.append(len(table.log.entries) + 1)
        if hour > 24:
            due = Due.below(marks[-25], soon=soon_due(marks[-25], len(table.log.entries)))
            before = len(table.log.entries)
            table.round(reached=marks[-24])
            table.copy(due)
            rekept += sum(map(len, (entry.data for entry in table.log.entries[before:])))
            table.log.retain(marks[-25])
            counts.append(len(table.lengths()))

    stored = sum(len(entry.data) for entry in table.log.entries)
    assert max(counts[108:]) <= 1.2 * max(counts[:108])
    assert max(counts) <= 40
    assert stored <= 3.6 * (stored - rekept)


@pytest.mark.parametrize("seed", range(20))
def test_a_block_that_is_not_looked_into_would_not_have_been_copied(seed: int) -> None:
    """Which these are is told by a claim's bits; what is copied, and goes with it, is the same."""
    rng, table, looked_into = random.Random(seed), Table(), 0
    for _ in range(12):
        table.produce(f"{rng.random()}" for _ in range(rng.choice((3, 40, 90))))
        table.copy(Due.below(len(table.log.entries) + 1, soon=0))
    blocks, end, as_of = tuple(table.queue.blocks or ()), table.queue.end, len(table.log.entries)
    topic = table.log.state.topics.named("t")
    for _ in range(25):
        share, reached = rng.choice((0.02, 0.45, 0.5, 0.55)), rng.choice((0, 0, as_of // 2))
        stays = OffsetSet(0, end, (at for at in range(end) if rng.random() >= share))
        claim = replace(_CLAIM, as_of_index=as_of, to=end)
        near = [block for block in blocks if may_be_copied(claim, stays, block, reached)]
        looked_into += len(near)
        rolls = []
        for some in (blocks, near):
            going = find_going(claim, stays, some, None, read=table.read, is_old=lambda _: True)
            due = due_of(claim, going, some, None, reached, new=Alone())
            roll = next_roll(topic, 0, table.queue, due)
            rolls.append((roll, [block for block in blocks if due.is_block(block)]))
        assert rolls[0] == rolls[1]

    assert 0 < looked_into < 25 * len(blocks)


def test_what_is_young_is_found_by_the_logs_time() -> None:
    """Raft's own entries have none."""

    def read(index: int) -> Entry:
        at_ms = 0 if index in raft else 100 * index
        return Entry(
            term=1, index=index, kind=EntryKind.DATA, timestamp_ms=at_ms, crc32c=0, data=b""
        )

    for raft in ({1, 2, 7, 8, 9}, set(), set(range(1, 20))):
        for young in range(1, 14):
            found = first_young(1, 13, read=read, is_old=lambda at_ms: at_ms < 100 * young)  # noqa: B023
            data = [index for index in range(1, 13) if index not in raft]
            assert [index for index in data if index >= found] == [
                index for index in data if index >= young
            ]


def test_a_sample_is_of_one_percent_and_bounded() -> None:
    """The same of the same claim; another secret, and another claim, give another one."""
    going = OffsetSet(0, 200_000, range(0, 200_000, 2))
    few = OffsetSet(0, 200_000, range(0, 20_000, 2))
    claim = replace(_CLAIM, to=200_000)

    assert len(sample_of(claim, going, b"s")) == MAX_SAMPLE
    assert 50 < len(sample_of(claim, few, b"s")) < 200
    assert sample_of(claim, few, b"s") == sample_of(replace(claim, proofs={1: 2}), few, b"s")
    assert sample_of(claim, few, b"s") != sample_of(claim, few, b"other")
    assert sample_of(claim, few, b"s") != sample_of(replace(claim, stays=b"x"), few, b"s")
    assert len(sample_of(claim, OffsetSet(0, 200_000, [7]), b"s")) == 1
    assert sample_of(claim, OffsetSet(0, 200_000), b"s") == []


def test_what_is_gone_since_changes_the_sample_of_the_rest_little() -> None:
    """So that a claim that is said again need not bring new proofs."""
    going = OffsetSet(0, 20_000, range(20_000))
    before = sample_of(replace(_CLAIM, to=20_000), going, b"s")
    for offset in range(10_000):
        going.discard(offset)

    after = sample_of(replace(_CLAIM, to=20_000), going, b"s")

    assert set(after) <= set(before)
