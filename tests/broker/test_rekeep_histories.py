"""Random histories of topics that keep their messages longer, equal to a plain model.

With every step that a group has: batches of several rows, some of them repeats; rolls by a leader,
whole, half done, or told late by one that is deposed; retention; rows that go by age or are left
out, so that there are gaps; receives, acks, and leases on rows that vanish; snapshots, restarts and
nodes that join; topics that are deleted and made anew; retention that is changed. Some topics are
compacted: they begin at offset 0 for ever, whatever of their front is gone.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import consume_queue, log_runs
from dledger.broker.commands import (
    Ack,
    CreateGroup,
    CreateTopic,
    DeleteTopic,
    LeaseRef,
    Receive,
    Retain,
    SetRetention,
)
from dledger.broker.filters import tag_codes
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns, Message, id_of_place
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.rekeep import REKEPT, Rekeep, origins
from dledger.broker.results import Produced, Received, Rekept, Retained, RetentionSet, TopicCreated
from dledger.broker.state import BrokerState
from dledger.broker.topics import Compaction, Topic
from dledger.errors import DledgerError, InvalidArgument
from dledger.replica import rolling
from dledger.replica.rolling import Due
from dledger.types import Entry, EntryKind

_HISTORIES = int(os.environ.get("REKEEP_HISTORIES", "60"))
_QUEUES = 2
_KEYS = [
    [key for key in "0123456789" if queue_of_key(key.encode(), _QUEUES) == queue_id]
    for queue_id in range(_QUEUES)
]


@dataclass(frozen=True)
class Row:
    """A message as it was stored."""

    body: bytes
    tag: str
    message_id: str
    entry: int
    stored_at_ms: int
    born_host: str
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass
class TopicModel:
    """A topic: what is there by queue and offset, and what each queue's end is."""

    generation: int
    hours: int | None = None
    is_compacted: bool = False
    rows: list[dict[int, Row]] = field(default_factory=lambda: [{} for _ in range(_QUEUES)])
    ends: list[int] = field(default_factory=lambda: [0] * _QUEUES)
    ids: dict[str, tuple[int, int, Row]] = field(default_factory=dict)


class World:
    """A leader's state, its log, and nodes that joined later, beside the model."""

    compacted = 0.5
    """The share of topics that are compacted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state = BrokerState()
        self.joined: list[BrokerState] = []
        self.entries: dict[int, Entry] = {}
        self.index, self.now_ms = 0, 1_000_000
        self.topics: dict[str, TopicModel] = {}
        self.late: list[bytes] = []
        self.held: list[Received] = []
        self.got: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
        self.commit(CreateGroup(name="g").encode(), CreateGroup(name="late").encode())

    def commit(self, *commands: bytes) -> list[object]:
        self.index += 1
        entry = Entry(
            term=1,
            index=self.index,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms,
            crc32c=0,
            data=b"".join(commands),
        )
        self.entries[self.index] = entry
        results = self.state.apply(entry)
        for one in self.joined:
            assert list(map(repr, one.apply(entry))) == list(map(repr, results))
        return results

    def read(self, index: int) -> Entry:
        """Return an entry that the log still has: what was dropped is not asked for."""
        return self.entries[index]

    # -- steps -------------------------------------------------------------------------------------

    def create(self) -> None:
        name = self.rng.choice("ab")
        if name in self.topics:
            return
        compaction = Compaction() if self.rng.random() < self.compacted else None
        command = CreateTopic(name=name, type="NORMAL", queues=_QUEUES, compaction=compaction)
        (made,) = self.commit(command.encode())
        assert isinstance(made, TopicCreated)
        is_compacted = compaction is not None
        hours = 0 if is_compacted else None
        self.topics[name] = TopicModel(made.topic.generation, hours, is_compacted)
        if self.rng.random() < 0.9:
            self._set_retention(name, self.rng.choice((0, 0, 2)))

    def delete(self) -> None:
        if self.topics and self.rng.random() < 0.2:
            name = self.rng.choice(sorted(self.topics))
            generation = self.topics.pop(name).generation
            self.commit(DeleteTopic(name=name, generation=generation).encode())

    def change_retention(self) -> None:
        if self.topics and self.rng.random() < 0.3:
            self._set_retention(self.rng.choice(sorted(self.topics)), self.rng.choice((0, 2, None)))

    def _set_retention(self, name: str, hours: int | None) -> None:
        topic = self.topics[name]
        before = self._there(name)
        (done,) = self.commit(SetRetention(name=name, hours=hours).encode())
        if topic.is_compacted:
            assert isinstance(done, InvalidArgument)
            return
        assert isinstance(done, RetentionSet)
        assert done.before == topic.hours
        topic.hours = hours
        if hours is None:  # what only its own retention had kept is gone
            for queue_id in range(_QUEUES):
                first = self.state.topics.queue(name, queue_id).log_first
                rows = topic.rows[queue_id]
                topic.rows[queue_id] = {o: row for o, row in rows.items() if o >= first}
        assert done.dropped == before - self._there(name)

    def _there(self, name: str) -> int:
        return sum(map(len, self.topics[name].rows))

    def produce(self) -> None:
        if not self.topics:
            return
        name, queue_id = self.rng.choice(sorted(self.topics)), self.rng.randrange(_QUEUES)
        topic = self.topics[name]
        host = self.rng.choice(("", "10.0.0.1:80", "büro:1"))
        batch: dict[str, Message] = {}
        for number in range(self.rng.choice((1, 1, 2, 5, 12))):
            ids = [
                message_id
                for message_id, (its, _, _) in sorted(topic.ids.items())
                if its == queue_id or not topic.is_compacted
            ]
            if ids and self.rng.random() < 0.15:
                message_id = self.rng.choice(ids)
                known = topic.ids[message_id][2]
                message = Message(
                    message_id=message_id, body=known.body, tag=known.tag, keys=known.keys
                )
            else:
                message_id = f"m{self.rng.getrandbits(60):x}" if self.rng.random() < 0.8 else ""
                message = Message(
                    message_id=message_id,
                    body=self.rng.randbytes(4),
                    tag=self.rng.choice(("", "", "x")),
                    **self.said(topic, queue_id),
                )
            batch[message_id or f"without {number}"] = message
        messages = list(batch.values())
        command = encode_produce(
            Columns.of(messages), client_id="c", topic=name, queue_id=queue_id, born_host=host
        )
        (result,) = self.commit(command)
        assert isinstance(result, Produced)
        places = zip(messages, result.queue_ids, result.offsets, strict=True)
        for row, (message, found_queue, offset) in enumerate(places):
            if message.message_id in topic.ids:
                assert (found_queue, offset) == topic.ids[message.message_id][:2]
                continue
            assert (found_queue, offset) == (queue_id, topic.ends[queue_id])
            stored = Row(
                message.body,
                message.tag,
                message.message_id or id_of_place(self.index, 5, row),
                self.index,
                self.now_ms,
                host,
                message.keys,
                message.properties,
            )
            topic.ends[queue_id] += 1
            topic.rows[queue_id][offset] = stored
            if message.message_id:
                topic.ids[message.message_id] = (queue_id, offset, stored)

    def said(self, topic: TopicModel, queue_id: int) -> dict[str, Any]:
        """Return what else a new message says of itself."""
        return {"keys": (self.rng.choice(_KEYS[queue_id]),)} if topic.is_compacted else {}

    def roll(self) -> None:
        """A leader copies what is about to go, perhaps not all of it, perhaps too late."""
        self._roll(self.rng.randint(1, self.index))

    def _roll(self, before: int) -> None:
        for topic in self.state.topics.keeping_longer():
            for queue_id in range(_QUEUES):
                for command in self._rolls(topic, queue_id, before):
                    if self.rng.random() < 0.1:
                        self.late.append(command)
                        break
                    assert self.rekeep(command)

    def _rolls(self, topic: Topic, queue_id: int, before: int) -> Iterator[bytes]:
        queue, is_past = self.state.topics.queue(topic.name, queue_id), self._past(topic)
        while roll := rolling.next_roll(
            topic,
            queue_id,
            self.state.topics.queue(topic.name, queue_id),
            Due.below(before),
        ):
            command, _ = rolling.rekeep_of(
                roll, self.read, lambda _, origin: not is_past(origin.stored_at_ms)
            )
            yield command
        past = rolling.past_blocks(topic, queue_id, queue, is_past)
        if past is not None:
            yield past

    def _past(self, topic: Topic) -> Callable[[int], bool]:
        kept_ms = 3_000 * (topic.retention_hours or 1 << 40)
        return lambda stored_at_ms: self.now_ms - stored_at_ms >= kept_ms

    def leave_out(self) -> None:
        """What compaction does: some rows go, wherever they are, or all."""
        for topic in self.state.topics.keeping_longer():
            queue_id = self.rng.randrange(_QUEUES)
            queue = self.state.topics.queue(topic.name, queue_id)
            due = Due.below(self.rng.randint(1, self.index))
            roll = rolling.next_roll(topic, queue_id, queue, due)
            if roll is not None:
                odds = self.rng.choice((0.5, 0.5, 0.9, 1.0))
                gone = {at for at in range(roll.first, roll.to) if self.rng.random() < odds}
                lengths = [
                    each._replace(first=at, length=1, row=each.row + at - each.first)
                    for each in roll.stretches
                    for at in range(each.first, each.first + each.length)
                    if at not in gone
                ]
                command, _ = rolling.rekeep_of(
                    replace(roll, stretches=tuple(lengths)), self.read, lambda *_: True
                )
                assert self.rekeep(command)

    def tell_late(self) -> None:
        """What a deposed leader has made is refused, or does what it says: never more."""
        if self.late:
            self.rekeep(self.late.pop(self.rng.randrange(len(self.late))))

    def rekeep(self, command: bytes) -> bool:
        said = Rekeep(command, 5, len(command))
        before = self.state.topics.canonical()
        (result,) = self.commit(command)
        found = [t for t in self.topics.values() if t.generation == said.generation]
        if not isinstance(result, Rekept):
            assert isinstance(result, DledgerError), result
            assert self.state.topics.canonical() == before
            return False
        rows = found[0].rows[said.queue_id]
        gone = [o for o in rows if said.first <= o < said.to and o not in said.offsets]
        for offset in gone:
            del rows[offset]
        assert set(said.offsets) <= rows.keys(), "what is gone is back"
        assert result.dropped == len(gone)
        return True

    def retain(self) -> None:
        before = self.rng.randint(1, self.index)
        if self.rng.random() < 0.7:
            self._roll(before)
        held = self.state.topics.lowest_held()
        (result,) = self.commit(Retain(before_index=before).encode())
        assert isinstance(result, Retained)
        if held is not None:
            assert result.first_index <= max(held, result.first_index if held >= before else 0)
        first, dropped = self.state.first_index, 0
        for topic in self.topics.values():
            if topic.hours is None:
                for queue_id, rows in enumerate(topic.rows):
                    topic.rows[queue_id] = {o: r for o, r in rows.items() if r.entry >= first}
                    dropped += len(rows) - len(topic.rows[queue_id])
        assert result.dropped == dropped, "RETAIN has dropped what a topic keeps"
        for index in [index for index in self.entries if index < first]:
            del self.entries[index]

    def receive(self) -> None:
        if not self.topics:
            return
        name = self.rng.choice(sorted(self.topics))
        command = Receive(
            group="g",
            topic=name,
            queue_id=self.rng.randrange(_QUEUES),
            any_queue=self.rng.random() < 0.3,
            limit=self.rng.choice((1, 3, 32)),
            invisible_ms=2_000,
            tags=self.rng.choice((None, None, ("x",))),
            attempt_id=self.rng.choice(("", "one", "two")),
            client_id=self.rng.choice(("", "who")),
        )
        (result,) = self.commit(command.encode())
        self._take(name, result)
        if self.rng.random() < 0.5:
            self.held.append(result)  # type: ignore[arg-type]

    def _take(self, name: str, result: object) -> None:
        assert isinstance(result, Received), result
        topic = self.topics[name]
        for each in result.deliveries:
            row = topic.rows[each.queue_id].get(each.offset)
            assert row is not None, "a message that is gone is delivered"
            payload = each.payload
            frame = ProduceFrame(self.read(payload.index).data, payload.start, payload.end)
            assert frame.message(each.row).body == row.body
            self.got[name, topic.generation].add((each.queue_id, each.offset))

    def ack(self) -> None:
        if self.held:
            self._ack(self.held.pop(self.rng.randrange(len(self.held))))

    def _ack(self, received: Received, group: str = "g") -> None:
        leases = [LeaseRef(d.queue_id, d.offset, received.receive_id) for d in received.deliveries]
        self.commit(Ack(group=group, topic=received.topic, leases=tuple(leases)).encode())

    def wait(self) -> None:
        self.now_ms += self.rng.choice((1, 500, 2_500, 5_000))

    def snapshot(self) -> None:
        data = self.state.encode()
        other = BrokerState.decode(data)
        assert other.digest() == self.state.digest()
        assert other.encode() == data
        if self.rng.random() < 0.5:
            self.state = other
        else:
            self.joined = [*self.joined[-1:], other]

    # -- what holds --------------------------------------------------------------------------------

    def check(self) -> None:
        for one in self.joined:
            assert one.digest() == self.state.digest()
        for name, topic in self.topics.items():
            assert self.state.topics.messages(name) == self._there(name)
            for queue_id, rows in enumerate(topic.rows):
                self._check_queue(name, queue_id, rows)

    def _check_queue(self, name: str, queue_id: int, rows: dict[int, Row]) -> None:
        queue = self.state.topics.queue(name, queue_id)
        found = dict(self._found(queue))
        assert found == rows
        assert list(found) == sorted(found)
        begins_at_0 = self.topics[name].is_compacted
        assert queue.first == (0 if begins_at_0 else min(rows, default=queue.end))
        assert queue.end == self.topics[name].ends[queue_id]
        codes = {o: next(iter(tag_codes((row.tag,)) or ())) for o, row in rows.items()}
        for offset in self.rng.sample(range(queue.end + 1), min(3, queue.end + 1)):
            later = [o for o in rows if o >= offset]
            assert queue.has(offset) == (offset in rows)
            assert queue.count_from(offset) == len(later)
            runs = list(queue.runs(max(offset, queue.first)))
            assert [o for run in runs for o in range(run.first, run.end)] == sorted(later)
            if offset in rows:
                assert queue.code(offset) == (codes[offset] if rows[offset].tag else 0)
                place, length = queue.stretch(offset)
                assert place == queue.locate(offset)
                assert set(range(offset, offset + length)) <= rows.keys()
        part = queue.part(1, self.index)
        places = [
            offset
            for columns in ([] if part is None else part.columns())
            for first, end in pairwise([*columns.firsts, columns.end])
            for offset in range(first, end)
        ]
        assert places == [o for o in sorted(rows) if o >= queue.log_first]
        told_from = max(self.state.first_index, self.state.topics.copied_below)
        stored = [o for o, row in rows.items() if row.entry >= told_from]
        assert set(stored) <= set(places), "an export lacks what it says that it has"
        assert queue.lowest_index == min(
            (each.entry for each in queue.stretches(queue.first)), default=None
        )

    def _found(self, queue: consume_queue.ConsumeQueue) -> Iterator[tuple[int, Row]]:
        for first, length, row, index, start, end in queue.stretches(queue.first):
            entry = self.read(index)
            frame = ProduceFrame(entry.data, start, end)
            rekept = origins(entry, start, end) if entry.data[start - 1] == REKEPT else None
            for number in range(length):
                message = frame.message(row + number)
                message_id = message.message_id or id_of_place(index, start, row + number)
                origin = (index, entry.timestamp_ms, frame.born_host)
                if rekept is not None:
                    origin = rekept[row + number]
                said = (message.keys, message.properties)
                yield first + number, Row(message.body, message.tag, message_id, *origin, *said)

    def drain(self, group: str) -> None:
        """A group gets all that is there, and its receives come to an end."""
        for name, topic in self.topics.items():
            queues = list(range(_QUEUES))
            for _ in range(4 * sum(topic.ends) + 20):
                self.now_ms += 10_000
                if not self.state.groups.available(
                    group, name, queues, self.state.time.lived_at(self.now_ms), enough=1
                ):
                    break
                command = Receive(
                    group=group,
                    topic=name,
                    queue_id=0,
                    any_queue=True,
                    limit=32,
                    invisible_ms=9_000,
                )
                (result,) = self.commit(command.encode())
                self._take(name, result)
                assert isinstance(result, Received)
                self._ack(result, group)
            else:
                raise AssertionError("receives go on for ever")
            backlog = self.state.groups.backlog(group, name)
            assert (backlog.unread, backlog.held) == (0, 0)


STEPS = (
    *("create", "delete", "change_retention", "produce", "produce", "produce", "produce"),
    *("roll", "leave_out", "tell_late", "retain", "retain", "receive", "receive", "ack"),
    *("wait", "snapshot"),
)


@settings(max_examples=_HISTORIES, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(20, 90), st.sampled_from((2, 3, 1024)))
def test_histories_equal_a_plain_model(seed: int, steps: int, sealed: int) -> None:
    """Content, ids, tags, times, hosts and places are those of the model, on every node."""
    with pytest.MonkeyPatch.context() as patch:
        play(World(seed), STEPS, patch, steps=steps, sealed=sealed)


def play(
    world: World, choice: Sequence[str], patch: pytest.MonkeyPatch, *, steps: int, sealed: int
) -> None:
    """Do so many steps, each by chance; check the world after each, and that a group gets all."""
    patch.setattr(log_runs, "_SEALED", sealed)
    patch.setattr(rolling, "MAX_ROWS", 7)
    patch.setattr(rolling, "MAX_BYTES", 40)
    world.create()
    for _ in range(steps):
        getattr(world, world.rng.choice(choice))()
        world.check()
    world.drain("g")
    world.got.clear()
    world.drain("late")
    for name, topic in world.topics.items():
        there = {(queue_id, o) for queue_id in range(_QUEUES) for o in topic.rows[queue_id]}
        assert world.got[name, topic.generation] == there, "a new group reads it all"
    world.check()
