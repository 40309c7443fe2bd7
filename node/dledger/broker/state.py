"""The broker's replicated state: what the committed entries mean, taken together.

`BrokerState` is pure and deterministic: no clock, no I/O, no randomness. The driver applies every
committed entry in order on every node; equal logs give equal states (`digest`). Time is the
entries' own, and never goes backwards even where a new leader's clock is behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from dledger.broker import commands
from dledger.broker.commands import LeaseRef
from dledger.broker.consume_queue import ConsumeQueue, Payload
from dledger.broker.dedupe import DedupeWindow
from dledger.broker.deliveries import Lease, QueueDeliveries
from dledger.broker.filters import tag_codes
from dledger.broker.frames import CommandType, MalformedCommandError, split
from dledger.broker.groups import MAX_GROUPS, Group
from dledger.broker.produce import NO_QUEUE, ProduceFrame
from dledger.broker.results import (
    Acked,
    Delivery,
    GroupCreated,
    InvisibilityChanged,
    Produced,
    Received,
    Released,
    TopicCreated,
)
from dledger.broker.topics import MAX_TOPICS, Topic, check_name, checked_topic
from dledger.errors import (
    DledgerError,
    InvalidArgument,
    InvalidReceiptHandle,
    UnknownGroup,
    UnknownTopic,
)
from dledger.types import Entry, EntryKind

MAX_RECEIVE = 1_024
"""Messages that one RECEIVE may hand out."""


class BrokerState:
    """Topics, queues, groups and the dedupe window after some prefix of the log.

    Attributes:
        applied_index: The last applied entry; 0 before the first.
        now_ms: The log's time, Unix milliseconds: the highest timestamp so far.
    """

    def __init__(self, dedupe: DedupeWindow | None = None) -> None:
        self.applied_index = 0
        self.now_ms = 0
        self._topics: dict[str, Topic] = {}
        self._queues: dict[str, list[ConsumeQueue]] = {}
        self._turns: dict[str, int] = {}
        self._groups: dict[str, Group] = {}
        self._dedupe = dedupe or DedupeWindow()
        self._changed: set[tuple[str, int]] = set()
        self._receives = 0
        self._handlers: dict[type, Callable[[Any], object]] = {
            commands.CreateTopic: self._create_topic,
            commands.CreateGroup: self._create_group,
            commands.Receive: self._receive,
            commands.Ack: self._ack,
            commands.ChangeInvisible: self._change_invisible,
            commands.Renew: self._renew,
            commands.Release: self._release,
        }

    def apply(self, entry: Entry) -> list[object]:
        """Apply the next committed entry.

        Returns:
            One result for each command in the entry: a value of `results`, or the DledgerError
            that refused it. A refused command changes nothing.
        """
        if entry.index <= self.applied_index:
            raise AssertionError(f"entry {entry.index} applied after {self.applied_index}")
        self.applied_index = entry.index
        self.now_ms = max(self.now_ms, entry.timestamp_ms)
        if entry.kind is not EntryKind.DATA:
            return []
        results: list[object] = []
        try:
            for kind, start, end in split(entry.data):
                results.append(self._apply(kind, entry, start, end))
        except MalformedCommandError as error:
            results.append(InvalidArgument(str(error)))
        return results

    def _apply(self, kind: int, entry: Entry, start: int, end: int) -> object:
        try:
            if kind == CommandType.PRODUCE:
                batch = ProduceFrame(entry.data, start, end)
                return self._produce(batch, Payload(entry.index, start, end))
            command = commands.decode(kind, entry.data[start:end])
            return self._handlers[type(command)](command)
        except DledgerError as error:
            return error
        except MalformedCommandError as error:
            return InvalidArgument(str(error))

    # Questions; they change nothing, and any node may ask them.

    def topic(self, name: str) -> Topic | None:
        """Return the topic of this name, if there is one."""
        return self._topics.get(name)

    def topics(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def has_group(self, name: str) -> bool:
        """Whether the consumer group exists."""
        return name in self._groups

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue to read positions from.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: The topic has no queue of this id.
        """
        queues = self._queues_of(topic)
        if not 0 <= queue_id < len(queues):
            raise InvalidArgument(f"topic {topic!r} has queues 0 to {len(queues) - 1}: {queue_id}")
        return queues[queue_id]

    def messages(self, topic: str) -> int:
        """Return how many messages a topic has, the sum of its queues' end offsets."""
        return sum(queue.end for queue in self._queues_of(topic))

    def available(self, group: str, topic: str, queue_ids: Sequence[int], now_ms: int) -> int:
        """Return how many messages a RECEIVE could hand out at *now_ms*; filters may make it fewer.

        Zero means that a RECEIVE is not worth proposing.
        """
        queues = self._queues_of(topic)
        return sum(
            found.available(queues[queue_id].end, now_ms)
            if (found := self._peek(group, topic, queue_id))
            else queues[queue_id].end
            for queue_id in queue_ids
        )

    def holds_attempt(self, group: str, topic: str, attempt_id: str) -> bool:
        """Whether this attempt was answered before and still holds some of what it was given."""
        found = self._groups.get(group)
        return found is not None and found.recall(topic, attempt_id) is not None

    def next_expiry(self, group: str, topic: str, queue_ids: Sequence[int]) -> float:
        """Return when the next lease of these queues ends (Unix ms); infinity if there is none."""
        found = (self._peek(group, topic, queue_id) for queue_id in queue_ids)
        return min((each.next_expiry() for each in found if each), default=float("inf"))

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset before which *group* is done with the queue."""
        found = self._peek(group, topic, queue_id)
        return found.committed if found else 0

    def renewable(self, before_ms: int) -> Iterator[tuple[str, str, int, int, Lease]]:
        """Yield (group, topic, queue id, offset, lease) of client-kept leases ending earlier."""
        for group in self._groups.values():
            for topic, queue_id, deliveries in group.all_deliveries():
                for offset, lease in deliveries.renewable(before_ms):
                    yield group.name, topic, queue_id, offset, lease

    def take_changed(self) -> set[tuple[str, int]]:
        """Return the (topic, queue id) that got messages or whose leases changed since last asked.

        For the one shell that wakes waiting readers; no part of the replicated state.
        """
        changed, self._changed = self._changed, set()
        return changed

    def digest(self) -> str:
        """Return a hash of the whole state; equal on all nodes that applied the same entries.

        It visits everything: for tests and comparisons, not for the write path.
        """
        return blake2b(json.dumps(self._canonical()).encode(), digest_size=16).hexdigest()

    def _canonical(self) -> list[object]:
        return [
            self.applied_index,
            self.now_ms,
            self._receives,
            [[t.name, t.type, t.queues, self._turns[t.name]] for t in self.topics()],
            [[name, [q.canonical() for q in qs]] for name, qs in sorted(self._queues.items())],
            [[name, group.canonical()] for name, group in sorted(self._groups.items())],
            self._dedupe.canonical(),
        ]

    # Commands.

    def _create_topic(self, command: commands.CreateTopic) -> TopicCreated:
        topic = checked_topic(name=command.name, type=command.type, queues=command.queues)
        existing = self._topics.get(topic.name)
        if existing is not None and existing != topic:
            raise InvalidArgument(
                f"topic {topic.name!r} exists with type {existing.type} and {existing.queues} "
                f"queues, not type {topic.type} and {topic.queues} queues"
            )
        if existing is None and len(self._topics) >= MAX_TOPICS:
            raise InvalidArgument(f"there are {MAX_TOPICS} topics already, which is the limit")
        if existing is None:
            self._topics[topic.name] = topic
            self._queues[topic.name] = [ConsumeQueue() for _ in range(topic.queues)]
            self._turns[topic.name] = 0
        return TopicCreated(topic, existing is None)

    def _create_group(self, command: commands.CreateGroup) -> GroupCreated:
        check_name("consumer group", command.name)
        if command.name in self._groups:
            return GroupCreated(command.name, created=False)
        if len(self._groups) >= MAX_GROUPS:
            raise InvalidArgument(f"there are {MAX_GROUPS} groups already, which is the limit")
        self._groups[command.name] = Group(command.name)
        return GroupCreated(command.name, created=True)

    def _produce(self, batch: ProduceFrame, payload: Payload) -> Produced:
        queues = self._queues_of(batch.topic)
        if batch.queue_id != NO_QUEUE:
            self.queue(batch.topic, batch.queue_id)
        tags = batch.tags()
        ids = batch.message_ids() if batch.has_ids else None
        if ids is not None and not self._is_plain(batch, ids):
            return self._produce_each(batch, ids, tags, payload)
        queue_id = self._choose_queue(batch)
        queue = queues[queue_id]
        first = queue.append(payload, range(batch.count), tags)
        self._changed.add((batch.topic, queue_id))
        if ids is not None:
            self._dedupe.remember(batch.client_id, batch.topic, ids, queue_id=queue_id, first=first)
        return Produced(
            topic=batch.topic,
            queue_ids=(queue_id,) * batch.count,
            offsets=range(first, queue.end),
            index=payload.index,
            stored=batch.count,
        )

    def _is_plain(self, batch: ProduceFrame, ids: list[bytes]) -> bool:
        return b"" not in ids and self._dedupe.is_new(batch.client_id, batch.topic, ids)

    def _produce_each(
        self, batch: ProduceFrame, ids: list[bytes], tags: list[bytes] | None, payload: Payload
    ) -> Produced:
        """Store a batch of which some messages are known, or have no id: one by one."""
        scope = (batch.client_id, batch.topic)
        known = (self._dedupe.find(*scope, message_id) for message_id in ids)
        home = next((place[0] for place in known if place), None)
        queue_id = self._choose_queue(batch, default=home)
        queue = self._queues[batch.topic][queue_id]
        places: list[tuple[int, int]] = []
        before = queue.end
        self._changed.add((batch.topic, queue_id))
        for row, message_id in enumerate(ids):
            place = self._dedupe.find(*scope, message_id)
            if place is None:
                offset = queue.append(payload, range(row, row + 1), tags)
                place = (queue_id, offset)
                if message_id:
                    self._dedupe.remember(*scope, [message_id], queue_id=queue_id, first=offset)
            places.append(place)
        queue_ids, offsets = zip(*places, strict=True)
        return Produced(
            topic=batch.topic,
            queue_ids=queue_ids,
            offsets=offsets,
            index=self._queues[batch.topic][queue_ids[0]].locate(offsets[0]).payload.index,
            stored=queue.end - before,
        )

    def _choose_queue(self, batch: ProduceFrame, default: int | None = None) -> int:
        """Return the queue a batch asks for, or *default*, or the topic's next one in turn."""
        if batch.queue_id != NO_QUEUE:
            return batch.queue_id
        if default is not None:
            return default
        turn = self._turns[batch.topic]
        self._turns[batch.topic] = (turn + 1) % len(self._queues[batch.topic])
        return turn

    def _receive(self, command: commands.Receive) -> Received:
        group = self._group(command.group)
        self.queue(command.topic, command.queue_id)
        until = self.now_ms + command.invisible_ms
        earlier = group.recall(command.topic, command.attempt_id) if command.attempt_id else None
        if earlier is not None:
            receive_id, places = earlier
        else:
            self._receives += 1
            receive_id = self._receives
            places = self._take(group, command, receive_id, until)
            if command.attempt_id and places:
                group.remember(command.topic, command.attempt_id, receive_id, tuple(places))
        return Received(
            topic=command.topic,
            receive_id=receive_id,
            visible_at_ms=until,
            deliveries=tuple(self._delivery(group, command.topic, place) for place in places),
        )

    def _take(
        self, group: Group, command: commands.Receive, receive_id: int, until: int
    ) -> list[tuple[int, int]]:
        queues = self._queues[command.topic]
        hint, codes = command.queue_id, tag_codes(command.tags)
        limit = min(command.limit, MAX_RECEIVE)
        order = [*range(hint, len(queues)), *range(hint)] if command.any_queue else [hint]
        places: list[tuple[int, int]] = []
        for queue_id in order:
            if len(places) >= limit:
                break
            taken = group.deliveries(command.topic, queue_id).take(
                queues[queue_id],
                limit=limit - len(places),
                codes=codes,
                now_ms=self.now_ms,
                lease_until_ms=until,
                receive_id=receive_id,
                client_id=command.client_id,
            )
            places.extend((queue_id, offset) for offset in taken)
        return places

    def _delivery(self, group: Group, topic: str, place: tuple[int, int]) -> Delivery:
        queue_id, offset = place
        found = self._queues[topic][queue_id].locate(offset)
        return Delivery(
            queue_id=queue_id,
            offset=offset,
            attempt=group.deliveries(topic, queue_id).leases[offset].attempt,
            payload=found.payload,
            row=found.row,
        )

    def _ack(self, command: commands.Ack) -> Acked:
        group = self._group(command.group)
        outcomes = tuple(
            deliveries.ack(lease.offset, lease.receive_id)
            if (deliveries := group.peek(command.topic, lease.queue_id))
            else False
            for lease in command.leases
        )
        return Acked(outcomes)

    def _change_invisible(self, command: commands.ChangeInvisible) -> InvisibilityChanged:
        until = self.now_ms + command.invisible_ms
        group = self._group(command.group)
        if not self._extend(group, command.topic, command.lease, until):
            raise InvalidReceiptHandle(
                f"the receipt handle for queue {command.lease.queue_id}, offset "
                f"{command.lease.offset} is stale: the message was acked or delivered again"
            )
        return InvisibilityChanged(1)

    def _renew(self, command: commands.Renew) -> InvisibilityChanged:
        until = self.now_ms + command.invisible_ms
        group = self._group(command.group)
        leases = command.leases
        changed = sum(self._extend(group, command.topic, lease, until) for lease in leases)
        return InvisibilityChanged(changed)

    def _extend(self, group: Group, topic: str, lease: LeaseRef, until: int) -> bool:
        deliveries = group.peek(topic, lease.queue_id)
        self._changed.add((topic, lease.queue_id))
        return deliveries is not None and deliveries.extend(lease.offset, lease.receive_id, until)

    def _release(self, command: commands.Release) -> Released:
        group = self._group(command.group)
        released = 0
        for topic, queue_id, deliveries in group.all_deliveries():
            count = deliveries.release(command.client_id, self.now_ms)
            released += count
            if count:
                self._changed.add((topic, queue_id))
        return Released(released)

    def _queues_of(self, topic: str) -> list[ConsumeQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            raise UnknownTopic(topic)
        return queues

    def _group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise UnknownGroup(name)
        return group

    def _peek(self, group: str, topic: str, queue_id: int) -> QueueDeliveries | None:
        found = self._groups.get(group)
        return found.peek(topic, queue_id) if found else None
