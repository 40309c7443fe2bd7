"""Random histories of topics whose messages are copied forward and let go, and their backups.

The state of the broker says what is visible after each entry (`tests/broker` holds that to a
model); what each message was when it was stored is noted here. Backups come at any moment: before
or after a copy, late or in time, with a gap, a base, or neither; and older entries are trimmed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dledger.broker.commands import CreateTopic, DeleteTopic, Retain, SetRetention
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.message import DELETES, TOMBSTONE, Columns, Message, is_tombstone
from dledger.broker.produce import ProduceFrame
from dledger.broker.rekeep import REKEPT, Kept, Origin, origins
from dledger.broker.results import Produced
from dledger.broker.state import BrokerState
from dledger.broker.topics import Topic
from dledger.types import Entry
from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.manifest import Manifest, RestorePoint, first_manifest
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.entry_batches import produced
from tests.pipeline.logs import GROUP_ID, batches, written_base
from tests.pipeline.message_logs import checked_entries
from tests.pipeline.placing import seen, told, written

QUEUES = 2
Place = tuple[int, int, int]
"""Generation, queue id, queue offset."""


@dataclass(frozen=True)
class Stored:
    """A message as it was stored."""

    topic: str
    keys: tuple[str, ...]
    body: bytes
    is_tombstone: bool
    index: int
    stored_at_ms: int
    born_host: str


class KeptWorld:
    """A log, what was there after each of its entries, and its newest backup."""

    def __init__(self, seed: int, store: Store) -> None:
        self.rng, self.store = random.Random(seed), store
        self.log = Log()
        self.stored: dict[Place, Stored] = {}
        self.visible: list[frozenset[Place]] = [frozenset()]
        self.topics: list[dict[str, int]] = [{}]
        self.manifest: Manifest | None = None
        self._said: list[bytes] = []

    @property
    def state(self) -> BrokerState:
        """The broker's state after all entries."""
        return self.log.state

    def commit(self, command: bytes) -> object:
        """Append an entry; note what is visible behind it."""
        (result,) = self.log.append(command)
        places = {
            (topic.generation, queue_id, offset)
            for topic, queue_id, queue in self._queues()
            for each in queue.stretches(queue.first)
            for offset in range(each.first, each.first + each.length)
        }
        self.visible.append(frozenset(places))
        self.topics.append({each.name: each.generation for each in self.state.topics.all()})
        return result

    def _queues(self) -> list[tuple[Topic, int, ConsumeQueue]]:
        topics = self.state.topics
        return [
            (topic, queue_id, queue)
            for topic in topics.all()
            for queue_id, queue in enumerate(topics.queues(topic.name))
        ]

    # -- steps -----------------------------------------------------------------------------------

    def create(self) -> None:
        """Make a topic that keeps its messages for ever."""
        name = self.rng.choice("ab")
        if self.state.topics.get(name) is None:
            self.commit(CreateTopic(name=name, type="NORMAL", queues=QUEUES).encode())
            self.commit(SetRetention(name=name, hours=0).encode())

    def delete(self) -> None:
        """Delete one, now and then."""
        if self.rng.random() < 0.15 and (topics := self.state.topics.all()):
            topic = self.rng.choice(topics)
            command = DeleteTopic(name=topic.name, generation=topic.generation)
            self.commit(command.encode())

    def produce(self) -> None:
        """Store some messages, tombstones and messages of several keys among them."""
        if not (topics := self.state.topics.all()):
            return
        topic, host = self.rng.choice(topics), self.rng.choice(("", "h1", "hé2"))
        self.log.now_ms += self.rng.choice((0, 10, 1000))
        messages, queue_id = self._batch()
        result = self.commit(produced(*messages, topic=topic.name, queue_id=queue_id, host=host))
        assert isinstance(result, Produced)
        for message, offset in zip(messages, result.offsets, strict=True):
            self.stored[topic.generation, queue_id, offset] = Stored(
                topic.name,
                message.keys,
                message.body,
                is_tombstone(message.properties),
                len(self.log.entries),
                self.log.now_ms,
                host,
            )

    def _batch(self) -> tuple[list[Message], int]:
        """Return some messages, and their queue."""
        messages = [self._message(len(self.stored) + row) for row in range(self.rng.randint(1, 4))]
        return messages, self.rng.randrange(QUEUES)

    def _message(self, number: int) -> Message:
        keys = self.rng.sample(["k1", "k2", "k3", "k4"], self.rng.choice((1, 1, 1, 2)))
        properties = {TOMBSTONE: DELETES} if self.rng.random() < 0.2 else {"n": str(number)}
        name = self.rng.choice(("", f"id-{number}"))
        return Message(
            message_id=name, body=b"%d" % number, keys=tuple(keys), properties=properties
        )

    def copy(self) -> None:
        """Copy some messages forward, and let others of that range of offsets go."""
        queues = [each for each in self._queues() if each[2].first < each[2].end]
        if not queues:
            return
        topic, queue_id, queue = self.rng.choice(queues)
        blocks = tuple(queue.blocks or ())
        first = self.rng.choice([block.first for block in blocks] or [queue.log_first])
        ends = [block.end for block in blocks if block.end > first]
        ends += range(queue.log_first + 1, queue.end + 1)
        if ends:
            command = self._rekeep(topic, queue_id, queue, first, self.rng.choice(ends))
            self._said.append(command)
            self.commit(command)

    def move_on(self) -> None:
        """Copy all that is there, and let everything before go."""
        self.copy_all()
        self.commit(Retain(before_index=len(self.log.entries)).encode())

    def copy_all(self) -> None:
        """Copy all that is there."""
        for topic, queue_id, queue in self._queues():
            if queue.first < queue.end:
                first = queue.blocks.first if queue.blocks else queue.log_first
                everything = self._rekeep(topic, queue_id, queue, first, queue.end, let_go=0)
                self.commit(everything)

    def _rekeep(
        self,
        topic: Topic,
        queue_id: int,
        queue: ConsumeQueue,
        first: int,
        to: int,
        *,
        let_go: float = 0.2,
    ) -> bytes:
        rows = [
            (offset, self._read(each.entry, each.start, each.end, each.row + offset - each.first))
            for each in queue.stretches(max(first, queue.first))
            for offset in range(each.first, each.first + each.length)
            if offset < to and self.rng.random() >= let_go
        ]
        return Kept(
            topic=topic.name,
            generation=topic.generation,
            queue_id=queue_id,
            first=first,
            to=to,
            offsets=[offset for offset, _ in rows],
            origins=[origin for _, (_, origin) in rows],
            messages=Columns.of([message for _, (message, _) in rows]) if rows else None,
        ).encode()

    def _read(self, index: int, start: int, end: int, row: int) -> tuple[Message, Origin]:
        entry = self.log.entries[index - 1]
        frame = ProduceFrame(entry.data, start, end)
        origin = Origin(index, entry.timestamp_ms, frame.born_host)
        if entry.data[start - 1] == REKEPT:
            origin = origins(entry, start, end)[row]
        message = frame.message(row)
        return replace(message, message_id=message.message_id or f"made-up-{index}-{row}"), origin

    def copy_late(self) -> None:
        """Say again what a deposed leader has said: it is refused, or harmless."""
        if self._said:
            self.commit(self.rng.choice(self._said))

    def retain(self) -> None:
        """Let older entries go, but for what is held."""
        self.commit(Retain(before_index=self.rng.randint(1, len(self.log.entries))).encode())

    # -- backups ---------------------------------------------------------------------------------

    def back_up(self, *, with_base: bool = False) -> None:
        """Back up some or all of what is new, with what the node knows of it by now."""
        now, previous = len(self.log.entries), self.manifest
        chains = [0, *batches(self._entries())[0].column("chain_crc32c").to_pylist()]
        follows = previous.last_index + 1 if previous else 1
        first = max(follows, self.state.first_index)
        base, last = None, self.rng.randint(min(first, now), now)
        if with_base or first > follows or self.rng.random() < 0.2:
            oldest, last = self.state.first_index, now
            base = written_base(self.store, BrokerState.decode(self.state.encode()), oldest, chains)
        if last < first:
            return
        merged = int(previous is not None and first == follows and self.rng.random() < 0.3)
        tail = previous.files[-merged:] if previous and merged else ()
        kept_from = max(self.state.first_index, self.state.topics.copied_below)
        size, rows = self.rng.randint(3, 9), list[ManifestRow]()
        for at in range(first, last + 1, size):
            end = min(at + size - 1, last)
            places = told(self.state, at, end) if kept_from <= at else None
            part = self._entries()[at - 1 : end]
            rows.append(written(self.store, part, chains[at - 1], () if rows else tail, places))
        if previous is None:
            made = first_manifest("orders", GROUP_ID, rows, base)
        else:
            made = previous.followed_by(rows, replacing=merged, base=base)
        made = replace(made, topics=made.topics.seen(seen(self.state, now)))
        kept = self.state.first_index if last == now else 1
        kept = max([kept, *(point.kept_from for point in made.points)])
        made = made.seen(RestorePoint(last_index=last, kept_from=kept, as_of_ms=self.log.now_ms))
        self.manifest = made

    def trim(self) -> None:
        """Let the backup's oldest entries go, as `gc --keep-days` does."""
        if self.manifest is not None and self.manifest.bases:
            base = self.rng.choice(self.manifest.bases)
            self.manifest = self.manifest.without_before(base.as_of_ms)

    def _entries(self) -> Sequence[Entry]:
        return checked_entries(self.log)
