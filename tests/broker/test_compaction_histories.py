"""Random histories of compacted topics: whatever their rounds do, who reads them gets one table.

To the steps of `test_rekeep_histories` come rounds of a job that reads the keys of what the log
keeps, as any job would: of messages as they were stored and as they were copied, whether that copy
was refused or not. What it says is said at once, late, twice, in parts and half done, to whatever
the topic is by then. Between all of this readers of tables go on, a few messages at a time; each of
them that takes no longer than tombstones are kept has in the end what the model has.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import log_runs
from dledger.broker.lived_time import older_than
from dledger.broker.message import TOMBSTONE
from dledger.broker.rekeep import REKEPT, Rekeep
from dledger.common.offset_set import OffsetSet
from dledger.replica import rolling
from dledger.replica.compacting import (
    Claim,
    due_of,
    find_going,
    hold_alone,
    judge,
    read_row,
    sample_of,
)
from dledger.replica.rolling import Alone, next_roll, rekeep_of
from tests.broker.test_rekeep_histories import _QUEUES, Row, TopicModel, World

_HISTORIES = int(os.environ.get("REKEEP_HISTORIES", "60"))
_SECRET = b"of this process"


@dataclass
class SlowReader:
    """A table reader that is in the middle of a queue, as `client.table_reader` reads it.

    Attributes:
        name, generation, queue_id: Of which topic and queue.
        as_of_ms: Up to when it has read everything; it gives up once that is too long ago.
        began_ms: When it began to catch up; None: it has.
        offset: It has read what was before.
        table: What it has.
    """

    name: str
    generation: int
    queue_id: int
    as_of_ms: int
    began_ms: int | None = None
    offset: int = 0
    table: dict[tuple[str, ...], bytes] = field(default_factory=dict)

    def read(self, rows: Mapping[int, Row], *, most: int, now_ms: int) -> bool:
        """Read up to so many of *rows*, of what is there now; return whether it has caught up."""
        self.began_ms = now_ms if self.began_ms is None else self.began_ms
        there = [offset for offset in sorted(rows) if offset >= self.offset]
        for offset in there[:most]:
            _read_into(self.table, rows[offset])
            self.offset = offset + 1
        return most >= len(there)


class CompactedWorld(World):
    """A world whose topics are compacted."""

    compacted = 1.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stored: defaultdict[tuple[int, int], dict[int, Row]] = defaultdict(dict)
        self.claims: list[Claim] = []
        self.min_lag_ms = self.rng.choice((0, 2_000))
        self.tombstone_ms = self.rng.choice((1_200, 1_200, 4_000))
        self.readers: list[SlowReader] = []

    def said(self, topic: TopicModel, queue_id: int) -> dict[str, Any]:
        is_tombstone = self.rng.random() < 0.3
        properties = {TOMBSTONE: "true"} if is_tombstone else {}
        return {**super().said(topic, queue_id), "properties": properties}

    def produce(self) -> None:
        super().produce()
        for topic in self.topics.values():
            for queue_id, rows in enumerate(topic.rows):
                stored = self.stored[topic.generation, queue_id]
                stored.update({o: row for o, row in rows.items() if o >= len(stored)})

    # -- the job -----------------------------------------------------------------------------------

    def say(self) -> None:
        """The job reads what the log keeps, and notes what it will say."""
        as_of = self.index
        for name, topic in self.topics.items():
            for queue_id in range(_QUEUES):
                seen = self._seen(topic.generation, queue_id, as_of)
                if seen:
                    self.claims += self._claims(name, topic.generation, queue_id, as_of, seen)

    def _seen(self, generation: int, queue_id: int, as_of: int) -> dict[int, Row]:
        stored = self.stored[generation, queue_id]
        seen = {o for o, row in stored.items() if row.entry in self.entries and row.entry <= as_of}
        for index, entry in self.entries.items():
            if index <= as_of and len(entry.data) > 5 and entry.data[4] == REKEPT:
                said = Rekeep(entry.data, 5, len(entry.data))
                if (said.generation, said.queue_id) == (generation, queue_id):
                    seen.update(said.offsets)
        return {offset: stored[offset] for offset in sorted(seen)}

    def _claims(
        self, name: str, generation: int, queue_id: int, as_of: int, seen: Mapping[int, Row]
    ) -> list[Claim]:
        of_key = defaultdict[tuple[str, ...], list[int]](list)
        for offset, row in seen.items():
            of_key[row.keys].append(offset)
        winners, alone, proofs = set[int](), set[int](), dict[int, int]()
        for offsets in of_key.values():
            newest = max(offsets)
            row = seen[newest]
            proofs.update(dict.fromkeys(offsets, newest))
            is_alone = TOMBSTONE in row.properties and len(offsets) == 1
            (alone if is_alone else winners).add(newest)
        whole = Claim(
            as_of_index=as_of,
            as_of_chain=0,
            topic=name,
            generation=generation,
            queue_id=queue_id,
            first=0,
            to=max(seen) + 1,
            stays=b"",
            proofs=proofs,
        )
        cut = self.rng.randint(0, whole.to)
        parts = {(0, whole.to)} if self.rng.random() < 0.5 else {(0, cut), (cut, whole.to)}
        return [
            replace(
                whole,
                first=first,
                to=to,
                stays=OffsetSet(first, to, (o for o in winners if first <= o < to)).pack(),
                alone=OffsetSet(first, to, (o for o in alone if first <= o < to)).pack(),
            )
            for first, to in parts
            if first < to
        ]

    # -- the leader --------------------------------------------------------------------------------

    def compact(self) -> None:
        """The leader is told one of the claims, late or at once; perhaps not for the last time."""
        if not self.claims:
            return
        claim = self.rng.choice(self.claims)
        if self.rng.random() < 0.7:
            self.claims.remove(claim)
        topic = self.topics.get(claim.topic)
        if topic is not None and topic.generation == claim.generation:
            self._compact(claim)

    def round(self) -> None:
        """All is read, told at once and done; then what has gone leaves the log with retention."""
        late, self.claims = self.claims, []
        self.say()
        for claim in self.claims:
            self._compact(claim, whole=True)
        self.claims = late
        self.retain()

    def _compact(self, claim: Claim, *, whole: bool = False) -> None:
        queue = self.state.topics.queue(claim.topic, claim.queue_id)
        blocks = tuple(queue.blocks or ())
        part = queue.part(self.state.first_index, claim.as_of_index)
        stays = OffsetSet.unpack(claim.first, claim.to, claim.stays)
        is_old = older_than(self.min_lag_ms, leaps=(), lived_ms=self.now_ms)
        going = find_going(claim, stays, blocks, part, read=self.read, is_old=is_old)
        rows = self.topics[claim.topic].rows[claim.queue_id]
        assert all(offset in rows for offset in going)
        is_over = older_than(self.tombstone_ms, leaps=(), lived_ms=self.now_ms)
        alone = claim.lone_offsets()
        new = hold_alone(going, alone, blocks, read=self.read, is_over=is_over)
        reached = self.rng.choice((claim.as_of_index + 1, self.rng.randint(1, self.index)))
        reached = claim.as_of_index + 1 if whole else reached
        due = due_of(claim, going, blocks, part, reached, new=Alone(new, self.now_ms))
        going = due.goes
        sample = [
            *sample_of(claim, going, _SECRET),
            *sample_of(claim, due.alone.offsets, _SECRET),
        ]
        assert bool(sample) == bool(len(going) or len(due.alone.offsets))
        found = {
            o: read_row(queue.locate(o), self.read)
            for each in sample
            for o in (each, claim.proofs[each])
            if queue.has(o)
        }
        for unproved in judge(claim, stays, alone, sample, found, end=queue.end):
            going.discard(unproved)
        topic, left = self.state.topics.named(claim.topic), self.rng.choice((1, 3, 1 << 30))
        left = 1 << 30 if whole else left
        while left and (
            roll := next_roll(
                topic, claim.queue_id, self.state.topics.queue(claim.topic, claim.queue_id), due
            )
        ):
            command, _ = rekeep_of(
                roll, self.read, lambda offset, _: offset not in going, due.alone
            )
            if self.rng.random() < 0.1:
                self.late.append(command)
                break
            assert self.rekeep(command)
            left -= 1
        else:
            if left and reached > claim.as_of_index:
                self._is_done(claim, going)

    def _is_done(self, claim: Claim, going: OffsetSet) -> None:
        """What may go is gone from the log; of a block less than half of the rows may go yet."""
        queue = self.state.topics.queue(claim.topic, claim.queue_id)
        assert not going.count(queue.log_first, queue.end)
        for block in queue.blocks or ():
            assert 2 * sum(offset in going for offset in block.offsets()) < block.length

    # -- readers -----------------------------------------------------------------------------------

    def read_on(self) -> None:
        """A reader reads on, or one begins; whoever takes too long gives up, as the real one."""
        if len(self.readers) < 4 and self.rng.random() < 0.5:
            self._begin_reader()
        self.readers = [each for each in self.readers if self._can_go_on(each)]
        if self.readers:
            self._read(self.rng.choice(self.readers), most=self.rng.choice((1, 1, 2, 4, 1 << 30)))

    def read_slowly(self) -> None:
        """A reader of what is not new any more stops midway, some rounds come, and it reads on."""
        for _ in range(self.rng.randint(0, 3)):
            self.produce()
        self.wait()
        reader = self._begin_reader()
        if reader is None:
            return
        self._read(reader, most=self.rng.randint(1, 8))
        for _ in range(self.rng.randint(2, 4)):
            self.round()
            self.now_ms += self.rng.choice((1, 200))
        if self._can_go_on(reader):
            self._read(reader, most=1 << 30)

    def _begin_reader(self) -> SlowReader | None:
        if not self.topics:
            return None
        name = self.rng.choice(sorted(self.topics))
        generation, queue_id = self.topics[name].generation, self.rng.randrange(_QUEUES)
        self.readers.append(SlowReader(name, generation, queue_id, self.now_ms))
        return self.readers[-1]

    def _read(self, reader: SlowReader, *, most: int) -> None:
        """Read so many messages; who has caught up has the model's table."""
        rows = self.topics[reader.name].rows[reader.queue_id]
        if reader.read(rows, most=most, now_ms=self.now_ms):
            stored = self.stored[reader.generation, reader.queue_id]
            assert reader.table == _table(stored), "who was fast enough has another table"
            assert reader.began_ms is not None
            reader.as_of_ms, reader.began_ms = reader.began_ms, None

    def _can_go_on(self, reader: SlowReader) -> bool:
        topic = self.topics.get(reader.name)
        is_there = topic is not None and topic.generation == reader.generation
        return is_there and self.now_ms - reader.as_of_ms <= self.tombstone_ms

    # -- what holds --------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        for topic in self.topics.values():
            for queue_id, rows in enumerate(topic.rows):
                stored = self.stored[topic.generation, queue_id]
                assert _table(rows) == _table(stored), "the newest of a key is not what is shown"


def _table(rows: Mapping[int, Row]) -> dict[tuple[str, ...], bytes]:
    """Return what a reader of these rows has in the end: the newest value of each key."""
    table = dict[tuple[str, ...], bytes]()
    for _, row in sorted(rows.items()):
        _read_into(table, row)
    return table


def _read_into(table: dict[tuple[str, ...], bytes], row: Row) -> None:
    if TOMBSTONE in row.properties:
        table.pop(row.keys, None)
    else:
        table[row.keys] = row.body


_STEPS = (
    *("create", "delete", "produce", "produce", "produce", "produce", "say", "say"),
    *("compact", "compact", "compact", "compact", "roll", "tell_late", "retain", "retain"),
    *("receive", "ack", "wait", "wait", "snapshot", "round", "round"),
    *("read_on", "read_on", "read_slowly", "read_slowly", "read_slowly", "read_slowly"),
)


@settings(max_examples=_HISTORIES, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(20, 90), st.sampled_from((2, 3, 1024)))
def test_rounds_leave_the_newest_of_each_key(seed: int, steps: int, sealed: int) -> None:
    """Stale, doubled, late and half done ones, of a job that knows nothing of older ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_runs, "_SEALED", sealed)
        patch.setattr(rolling, "MAX_ROWS", 7)
        patch.setattr(rolling, "MAX_BYTES", 40)
        patch.setattr(rolling, "_MAX_LOOKED_AT", 20)
        world = CompactedWorld(seed)
        world.create()
        for _ in range(steps):
            getattr(world, world.rng.choice(_STEPS))()
            world.check()
        world.drain("g")
        world.check()
