"""What compacted topics must have at each entry, on every node: what was stored, less what may go.

A model beside the broker's state, told each entry once, when the first node applies it. It knows
only what was stored, and by which rule a message may go: a newer one of its key has beaten it, it
is a tombstone that is alone and old, or it was erased. It holds nodes against that: where a REKEEP
or an ERASE is applied, and whenever a run is audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from dledger.broker.command_frame import CommandType, split
from dledger.broker.erase import Erase
from dledger.broker.message import is_tombstone
from dledger.broker.produce import ProduceFrame
from dledger.broker.rekeep import Rekeep
from dledger.broker.results import Erased, Produced, Received, Rekept, TopicCreated, TopicDeleted
from dledger.broker.topics import Compaction, Topic
from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError
from dledger_sim.process import Process


class Stored(NamedTuple):
    """A message, and when it was stored: in lived time, as the log has it (`checkers.LogTime`)."""

    key: str
    is_tombstone: bool
    lived_ms: int


@dataclass(slots=True)
class _Queue:
    """What was stored in a queue.

    Attributes:
        rows: All that ever was, by queue offset.
        there: Those that are there; ascending, since none comes back.
        erased: Those that an ERASE let go.
        newest: The newest ever of each key.
        alone_ms: Since when the newest of each key has been its only one, in lived time.
    """

    rows: dict[int, Stored] = field(default_factory=dict)
    there: dict[int, None] = field(default_factory=dict)
    erased: set[int] = field(default_factory=set)
    newest: dict[str, int] = field(default_factory=dict)
    alone_ms: dict[str, int] = field(default_factory=dict)

    def store(self, offset: int, row: Stored) -> None:
        self.rows[offset] = row
        self.there[offset] = None
        self.newest[row.key] = offset
        self._look(row.key, row.lived_ms)

    def drop(self, offset: int, lived_ms: int) -> None:
        del self.there[offset]
        self._look(self.rows[offset].key, lived_ms)

    def _look(self, key: str, lived_ms: int) -> None:
        """See whether the newest message of a key is alone by now."""
        if self.of_key(key) == [self.newest[key]]:
            self.alone_ms.setdefault(key, lived_ms)
        else:
            self.alone_ms.pop(key, None)

    def of_key(self, key: str) -> list[int]:
        """Return where messages of a key are."""
        return [offset for offset in self.there if self.rows[offset].key == key]


@dataclass(slots=True)
class _Table:
    topic: Topic
    compaction: Compaction
    queues: list[_Queue]


class CompactedTopics:
    """Those of one group.

    Attributes:
        let_go: How many messages rounds of compaction have let go.
        erased: How many were erased.
    """

    def __init__(self) -> None:
        self.let_go = self.erased = 0
        self._index = 0
        self._tables: dict[int, _Table] = {}
        self._digests: dict[int, tuple[int, str]] = {}
        self._told: list[tuple[Entry, Sequence[object], int]] = []

    # -- what is told ------------------------------------------------------------------------------

    def apply(self, process: Process, entry: Entry, results: Sequence[object]) -> None:
        """Check an entry that *process* has applied, for the first time or again."""
        if entry.kind is not EntryKind.DATA:
            return
        if entry.index > self._index:
            self._index = entry.index
            lived_ms = process.state.broker.time.lived_ms
            if self._note(entry, results, lived_ms):
                self._told.append((entry, results, lived_ms))
        if any(isinstance(one, Rekept | Erased) for one in results):
            self._compare(process, entry.index)

    def forget_behind(self, index: int) -> None:
        """Forget entries that a lost majority has taken along."""
        told = [one for one in self._told if one[0].index <= index]
        self._digests = {at: one for at, one in self._digests.items() if at <= index}
        self._tables, self._told, self.let_go, self.erased = {}, told, 0, 0
        for each in told:
            self._note(*each)
        self._index = min(self._index, index)

    def _note(self, entry: Entry, results: Sequence[object], lived_ms: int) -> bool:
        """Do what its commands did; return whether any was about compacted topics."""
        matters = False
        for (kind, start, end), result in zip(split(entry.data), results, strict=False):
            if isinstance(result, TopicCreated) and result.created and result.topic.compaction:
                self._create(result.topic, result.topic.compaction)
            elif isinstance(result, TopicDeleted):
                self._tables.pop(result.topic.generation, None)
            elif isinstance(result, Produced) and kind == CommandType.PRODUCE:
                self._store(ProduceFrame(entry.data, start, end), result, lived_ms)
            elif isinstance(result, Rekept):
                self._rekeep(Rekeep(entry.data, start, end), result, lived_ms)
            elif isinstance(result, Erased):
                self._erase(Erase.decode(entry.data, start, end), result, lived_ms)
            elif isinstance(result, Received):
                self._receive(result)
                continue
            else:
                continue
            matters = True
        return matters

    def _create(self, topic: Topic, compaction: Compaction) -> None:
        queues = [_Queue() for _ in range(topic.queues)]
        self._tables[topic.generation] = _Table(topic, compaction, queues)

    def _store(self, batch: ProduceFrame, result: Produced, lived_ms: int) -> None:
        table = self._tables.get(result.generation)
        if table is None:
            return
        known = {*result.repeats, *result.conflicts}
        for row, place in enumerate(zip(result.queue_ids, result.offsets, strict=True)):
            if row in known:
                continue
            message = batch.message(row)
            queue_id, offset = place
            stored = Stored(message.keys[0], is_tombstone(message.properties), lived_ms)
            table.queues[queue_id].store(offset, stored)

    def _rekeep(self, command: Rekeep, result: Rekept, lived_ms: int) -> None:
        table = self._tables.get(command.generation)
        if table is None:
            return
        queue, stay = table.queues[command.queue_id], set(command.offsets)
        if back := sorted(stay - queue.there.keys()):
            raise ViolationError(
                f"a REKEEP brings {back} of {table.topic.name}, queue {command.queue_id} back"
            )
        inside = [each for each in queue.there if command.first <= each < command.to]
        goes = [each for each in inside if each not in stay]
        if len(goes) != result.dropped:
            raise ViolationError(f"a REKEEP lets {len(goes)} go and tells {result.dropped}")
        for offset in goes:
            if why := _not_yet(queue, offset, table.compaction, lived_ms):
                raise ViolationError(
                    f"{table.topic.name}, queue {command.queue_id}: offset {offset} goes, {why}"
                )
            queue.drop(offset, lived_ms)
        self.let_go += len(goes)

    def _erase(self, command: Erase, result: Erased, lived_ms: int) -> None:
        table = self._tables.get(command.generation)
        if table is None:
            return
        queue = table.queues[command.queue_id]
        found = [each for each in command.offsets if each in queue.there]
        if len(found) != result.messages:
            raise ViolationError(f"an ERASE finds {len(found)} and tells {result.messages}")
        for offset in found:
            queue.drop(offset, lived_ms)
        queue.erased.update(found)
        self.erased += len(found)

    def _receive(self, result: Received) -> None:
        table = self._tables.get(result.generation)
        for each in result.deliveries if table is not None else ():
            assert table is not None  # noqa: S101 - or there is nothing to go through
            if each.offset not in table.queues[each.queue_id].there:
                raise ViolationError(
                    f"offset {each.offset} of {result.topic}, queue {each.queue_id} is handed out, "
                    "and is not there"
                )

    # -- what nodes have ---------------------------------------------------------------------------

    def _compare(self, process: Process, index: int) -> None:
        """Compare a node that has just applied an entry with others there, and with the model."""
        topics = process.state.broker.topics
        queues = [
            queue.canonical()
            for topic in topics.all()
            if topic.compaction
            for queue in topics.queues(topic.name)
        ]
        digest = crc32(repr(queues).encode())
        known = self._digests.setdefault(index, (digest, process.id))
        if known[0] != digest:
            raise ViolationError(
                f"compacted topics of {process.id} differ at entry {index} from those of {known[1]}"
            )
        if index == self._index:
            self.check(process)

    def check(self, process: Process) -> None:
        """Check that a node which has applied all that any has has just what must be there."""
        topics = process.state.broker.topics
        for table in self._tables.values():
            name = table.topic.name
            queues = topics.queues(name) if topics.is_there(table.topic) else ()
            found = {
                (queue_id, offset)
                for queue_id, queue in enumerate(queues)
                for offset in range(queue.first, queue.end)
                if queue.has(offset)
            }
            wanted = {
                (queue_id, offset)
                for queue_id, queue in enumerate(table.queues)
                for offset in queue.there
            }
            if found != wanted:
                raise ViolationError(
                    f"{process.id} lacks {sorted(wanted - found)} of {name}, and has "
                    f"{sorted(found - wanted)} that must be gone"
                )

    def end_of(self, name: str, queue_id: int) -> tuple[int, int]:
        """Return of which generation a topic is, and where a queue of it ends; 0: there is none."""
        for generation, table in self._tables.items():
            if table.topic.name == name:
                return generation, max(table.queues[queue_id].rows, default=-1) + 1
        return 0, 0

    def check_erased(self, generation: int, queue_id: int, key: str, end: int) -> None:
        """Check that nobody is shown a key any more below offset *end*: its ERASE was answered."""
        table = self._tables.get(generation)
        left = [] if table is None else table.queues[queue_id].of_key(key)
        if shown := [offset for offset in left if offset < end]:
            raise ViolationError(
                f"key {key!r} was erased below {end}, and is at {shown} of queue {queue_id}"
            )

    def find_gone(self, name: str) -> set[tuple[int, int]]:
        """Return at which queue ids and offsets of a topic there is no message any more."""
        return {
            (queue_id, offset)
            for table in self._tables.values()
            if table.topic.name == name
            for queue_id, queue in enumerate(table.queues)
            for offset in queue.rows.keys() - queue.there.keys()
        }


def _not_yet(queue: _Queue, offset: int, how: Compaction, lived_ms: int) -> str:
    """Return why a message must not go; empty: it may."""
    row = queue.rows[offset]
    age_ms = lived_ms - row.lived_ms
    if age_ms < how.min_lag_ms:
        return f"{age_ms} ms old, of at least {how.min_lag_ms}"
    if queue.newest[row.key] > offset:
        return ""
    if not row.is_tombstone:
        return f"the newest of key {row.key!r}"
    if others := [each for each in queue.of_key(row.key) if each != offset]:
        return f"a tombstone of key {row.key!r}, which is at {others} as well"
    alone_ms = lived_ms - queue.alone_ms[row.key]
    if alone_ms < how.tombstone_ms:
        return f"a tombstone, alone for {alone_ms} ms, of at least {how.tombstone_ms}"
    return ""
