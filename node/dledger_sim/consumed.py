"""What consumer groups are given of topics of every type, by the log, beside a plain model.

Told each entry once, when the first node applies it. The model has lists of messages and, for each
group and queue, where it was told to begin, what is done, and what is leased until when. Each
RECEIVE must give what the model allows, and as much as it has: nothing that is leased or done, in a
FIFO topic the oldest of each message group that nobody holds, in a PRIORITY topic the highest
first. So a group gets everything from where it has sought on, and no group's seek touches another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NoReturn, TypeAlias

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    LeaseRef,
    Receive,
    SeekGroup,
    SetGroup,
    SetRetention,
    decode,
)
from dledger.broker.dead_letter import DeadLetter
from dledger.broker.held_commands import ReleaseHeld
from dledger.broker.key_queues import queue_of_key
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import (
    NOWHERE,
    Acked,
    DeadLettered,
    GroupSet,
    GroupSought,
    HeldReleased,
    LeaseChanged,
    Produced,
    Received,
    Retained,
    RetentionSet,
    TopicCreated,
    TopicGrown,
)
from dledger.broker.topics import TYPES, Topic
from dledger.errors import InvalidReceiptHandle
from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError
from dledger_sim.deliveries import Place
from dledger_sim.given import Before, Held, Reading, Stored, check_fifo, check_free

_NOTHING_OWN: Final = -1
_Reads: TypeAlias = Receive | Ack | ChangeInvisible | SeekGroup
_READS: Final = (Receive, Ack, ChangeInvisible, SeekGroup)


class PlainTopic:
    """A topic as a list of messages for each queue.

    Attributes:
        topic: Its settings.
        queues: All messages that were ever stored, by queue id.
        firsts: The first offset of each that retention has not let go.
    """

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.queues: defaultdict[int, list[Stored]] = defaultdict(list)
        self.firsts: defaultdict[int, int] = defaultdict(int)
        self.is_kept = False

    def retain(self, first_index: int) -> None:
        """Let go of what lies in earlier entries."""
        for queue_id, queue in self.queues.items() if not self.is_kept else ():
            while (first := self.firsts[queue_id]) < len(queue) and queue[
                first
            ].entry < first_index:
                self.firsts[queue_id] += 1

    def stored_from(self, queue_id: int, stored_ms: int) -> int:
        """Return the offset of the first message of a queue that was stored then or later."""
        queue = self.queues[queue_id]
        return next((o for o in range(len(queue)) if queue[o].stored_ms >= stored_ms), len(queue))


class Consumed:
    """Topics and groups, by the log.

    Attributes:
        topics: Those that are looked at: as soon as they are made.
        watched: Names of topics to look at.
        received: How many messages were handed out.
        sought, moved: How many seeks there were, and how many dead letters.
        newest: The newest entry.
    """

    def __init__(self) -> None:
        self.watched: set[str] = set()
        self.topics: dict[str, PlainTopic] = {}
        self.received = self.sought = self.moved = 0
        self._readings: defaultdict[tuple[str, str], defaultdict[int, Reading]] = defaultdict(
            lambda: defaultdict(Reading)
        )
        self._max_attempts: dict[str, int] = {}
        self._given: dict[tuple[str, str, str], int] = {}
        self._receive_ids: set[int] = set()
        self.newest = 0

    def apply(self, entry: Entry, results: Sequence[object], lived_ms: int) -> None:
        """Check an entry that is applied at *lived_ms*, and what it gave."""
        if entry.index <= self.newest or entry.kind is not EntryKind.DATA or not self.watched:
            return
        self.newest = entry.index
        for (kind, start, end), result in zip(split(entry.data), results, strict=True):
            if isinstance(result, Produced) and kind == CommandType.PRODUCE:
                self._store(ProduceFrame(entry.data, start, end), result, entry)
            elif isinstance(result, HeldReleased) and result.stored is not None:
                self._store(ReleaseHeld(entry.data, start, end).batch, result.stored, entry)
            elif isinstance(result, DeadLettered):
                self._move(DeadLetter(entry.data, start, end), result, entry)
            elif isinstance(result, Retained):
                for topic in self.topics.values():
                    topic.retain(result.first_index)
            elif isinstance(result, TopicCreated | TopicGrown):
                self._make(result)
            elif kind in _OF_GROUPS:
                self._apply(decode(kind, entry.data[start:end]), result, lived_ms)

    def _apply(self, command: object, result: object, lived_ms: int) -> None:
        if isinstance(command, SetGroup) and isinstance(result, GroupSet):
            self._max_attempts[command.name] = command.retries.max_attempts
        elif isinstance(command, SetRetention) and isinstance(result, RetentionSet):
            if command.name in self.topics:
                self.topics[command.name].is_kept = command.hours == 0
        elif isinstance(command, _READS) and command.topic in self.topics:
            self._apply_read(command, result, lived_ms)

    def _apply_read(self, command: _Reads, result: object, lived_ms: int) -> None:
        if isinstance(command, Receive) and isinstance(result, Received):
            self._receive(command, result, lived_ms)
        elif isinstance(command, Ack) and isinstance(result, Acked):
            for lease, outcome in zip(command.leases, result.outcomes, strict=True):
                self._ack(command.group, command.topic, lease, outcome=outcome)
        elif isinstance(command, ChangeInvisible):
            self._change(command, result, lived_ms)
        elif isinstance(command, SeekGroup) and isinstance(result, GroupSought):
            self._seek(command, result)

    # -- what is stored ----------------------------------------------------------------------------

    def _make(self, result: TopicCreated | TopicGrown) -> None:
        topic = result.topic
        if (
            isinstance(result, TopicGrown)
            and TYPES[topic.type].in_order
            and topic.queues > result.before
        ):
            self._fail(f"FIFO topic {topic.name} grows")
        if topic.name in self.topics:
            self.topics[topic.name].topic = topic
        elif topic.name in self.watched:
            self.topics[topic.name] = PlainTopic(topic)

    def _store(self, batch: ProduceFrame, result: Produced, entry: Entry) -> None:
        plain = self.topics.get(batch.topic)
        if plain is None:
            return
        groups = [b""] * batch.count if batch.typed is None else batch.typed.groups()
        rows = zip(
            count(), batch.message_ids(), groups, result.queue_ids, result.offsets, strict=False
        )
        for row, message_id, group, queue_id, offset in rows:
            if offset == NOWHERE or row in result.conflicts:
                continue
            queue = plain.queues[queue_id]
            one = Stored(message_id.decode(), group.decode(), entry.index, entry.timestamp_ms)
            if row in result.repeats:
                if offset < len(queue) and queue[offset].id != one.id:
                    self._fail(f"{one.id} is told to be where {queue[offset].id} is")
                continue
            if offset != len(queue):
                self._fail(f"{one.id} is stored at {offset} of a queue of {len(queue)}")
            if group and queue_of_key(group, plain.topic.queues) != queue_id:
                self._fail(f"group {one.group} has messages in queue {queue_id}")
            queue.append(one)

    def _move(self, command: DeadLetter, result: DeadLettered, entry: Entry) -> None:
        moved, lease = command.moved, command.lease
        if moved.topic not in self.topics:
            return
        reading = self._readings[command.group, moved.topic][lease.queue_id]
        if result.stored is None:
            self._ack(command.group, moved.topic, lease, outcome=True)
            return
        self.moved += 1
        held = reading.leases.get(lease.offset)
        if held is None or held.receive_id != lease.receive_id:
            self._fail(f"{lease} is moved to the dead letters, and is over")
        source = self.topics[moved.topic].queues[lease.queue_id][lease.offset]
        if (dead := command.batch.message(0).message_id) != source.id:
            self._fail(f"the dead letter of {source.id} is {dead}")
        reading.end(lease.offset)
        name = command.batch.topic
        if name not in self.topics:
            topic = Topic(name=name, type="NORMAL", queues=1, generation=result.stored.generation)
            self.topics[name] = PlainTopic(topic)
        self._store(command.batch, result.stored, entry)

    # -- what groups are given ---------------------------------------------------------------------

    def _receive(self, command: Receive, got: Received, lived_ms: int) -> None:
        readings = self._readings[command.group, command.topic]
        until_ms = lived_ms + command.invisible_ms
        self.received += len(got.deliveries)
        if got.visible_at_ms != until_ms:
            self._fail(f"leases until {got.visible_at_ms}, and not {until_ms}")
        if self._receive_again(command, got, readings):
            return
        plain, most = self.topics[command.topic], self._most(command.group, command.topic)
        if len(got.deliveries) > command.limit:
            self._fail(f"{len(got.deliveries)} messages for a limit of {command.limit}")
        for each in got.spent:
            readings[each.lease.queue_id].check_spent(each, lived_ms, most)
        queue_ids = range(plain.topic.queues) if command.any_queue else [command.queue_id]
        in_order = TYPES[plain.topic.type].in_order
        check = check_fifo if in_order else check_free
        check(command, got, Before(plain, readings, queue_ids, lived_ms))
        for one in got.deliveries:
            lease = Held(got.receive_id, until_ms, one.attempt)
            readings[one.queue_id].grant(one.offset, lease, most=most)
        if in_order and got.deliveries:
            queue_id = got.deliveries[0].queue_id
            queue = plain.queues[queue_id]
            names = {queue[each.offset].group for each in got.deliveries}
            readings[queue_id].put_back(queue, names, got.receive_id)

    def _receive_again(
        self, command: Receive, got: Received, readings: Mapping[int, Reading]
    ) -> bool:
        """Return whether a RECEIVE repeats an attempt, which gets what that still holds."""
        attempt = (command.group, command.topic, command.attempt_id)
        earlier = self._given.get(attempt, _NOTHING_OWN) if command.attempt_id else _NOTHING_OWN
        still = {
            (queue_id, offset)
            for queue_id, reading in readings.items()
            for offset, lease in reading.leases.items()
            if lease.receive_id == earlier and offset >= self.topics[command.topic].firsts[queue_id]
        }
        given = {(each.queue_id, each.offset) for each in got.deliveries}
        if still or got.receive_id in self._receive_ids:
            if given != still or got.receive_id != earlier:
                self._fail(f"a repeated attempt gets {given}, and holds {sorted(still)}")
            for queue_id, offset in given:
                readings[queue_id].leases[offset].until_ms = got.visible_at_ms
            return True
        self._receive_ids.add(got.receive_id)
        if command.attempt_id and given:
            self._given[attempt] = got.receive_id
        return False

    def _most(self, group: str, topic: str) -> int:
        """Return how often a group gets a message; 0: without end."""
        return 0 if topic.startswith("%DLQ%") else self._max_attempts.get(group, 17)

    def _ack(self, group: str, topic: str, lease: LeaseRef, *, outcome: bool) -> None:
        plain, reading = self.topics[topic], self._readings[group, topic][lease.queue_id]
        held = reading.leases.get(lease.offset)
        is_mine = held is not None and held.receive_id == lease.receive_id
        if lease.offset < plain.firsts[lease.queue_id]:
            return
        if outcome and not is_mine and reading.is_open(lease.offset):
            self._fail(f"{group} acknowledges {lease} of {topic}, which it does not hold")
        if is_mine and not outcome:
            self._fail(f"{group} holds {lease} of {topic}, which is called stale")
        if is_mine:
            reading.end(lease.offset)

    def _change(self, command: ChangeInvisible, result: object, lived_ms: int) -> None:
        lease = command.lease
        reading = self._readings[command.group, command.topic][lease.queue_id]
        held = reading.leases.get(lease.offset)
        is_mine = held is not None and held.receive_id == lease.receive_id
        if lease.offset < self.topics[command.topic].firsts[lease.queue_id]:
            return
        if is_mine and isinstance(result, InvalidReceiptHandle):
            self._fail(f"{command.group} holds {lease}, which is called stale")
        if held is None or not isinstance(result, LeaseChanged):
            return
        if is_mine:
            held.until_ms = lived_ms + command.invisible_ms
            held.before, held.receive_id = held.receive_id, result.receive_id
            held.is_suspended = command.suspend
        elif (held.before, held.receive_id) != (lease.receive_id, result.receive_id):
            self._fail(f"{command.group} changes {lease}, which it does not hold")

    def _seek(self, command: SeekGroup, result: GroupSought) -> None:
        self.sought += 1
        plain = self.topics[command.topic]
        for (queue_id, asked), told in zip(command.offsets, result.queues, strict=True):
            first = plain.firsts[queue_id]
            held = [
                o
                for o in self._readings[command.group, command.topic][queue_id].leases
                if o >= first
            ]
            if (told.offset, told.held) != (max(asked, first), len(held)):
                self._fail(f"a seek to {asked} of {queue_id}, where {len(held)} are held: {told}")
            self._readings[command.group, command.topic][queue_id] = Reading(told.offset)

    # -- in the end --------------------------------------------------------------------------------

    def undone(self) -> Iterator[tuple[str, str, Place]]:
        """Yield what a group has not consumed, of topics that it has read."""
        for (group, topic), readings in self._readings.items():
            plain = self.topics[topic]
            for queue_id in range(plain.topic.queues):
                stop = len(plain.queues[queue_id])
                for offset in range(plain.firsts[queue_id], stop):
                    if readings[queue_id].is_open(offset):
                        yield group, topic, (queue_id, offset)

    @staticmethod
    def _fail(what: str) -> NoReturn:
        raise ViolationError(what)


_OF_GROUPS: Final = frozenset(
    {
        CommandType.RECEIVE,
        CommandType.ACK,
        CommandType.CHANGE_INVISIBLE,
        CommandType.SEEK_GROUP,
        CommandType.SET_GROUP,
        CommandType.SET_RETENTION,
    }
)
