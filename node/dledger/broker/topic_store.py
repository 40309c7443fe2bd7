"""Topics, their queues, and what is known of repeats: applies PRODUCE and topic commands.

Owned by `state`, which routes commands here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Final, NamedTuple

from dledger.broker import commands
from dledger.broker.body_digests import Digests, digest_of, with_times
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.deduplication import DeduplicationWindow
from dledger.broker.editions import Edition
from dledger.broker.erase import Erase
from dledger.broker.held_refs import HELD_QUEUE
from dledger.broker.id_runs import IdRun
from dledger.broker.key_queues import check_keyed
from dledger.broker.lived_time import LivedTime
from dledger.broker.produce import NO_QUEUE, ProduceFrame
from dledger.broker.queue_positions import Payload
from dledger.broker.rekeep import Rekeep
from dledger.broker.replayed_lanes import ReplayedLanes
from dledger.broker.results import (
    NOWHERE,
    Produced,
    RetentionSet,
    TopicCreated,
    TopicDeleted,
    TopicGrown,
)
from dledger.broker.retries import Rows
from dledger.broker.snapshot_codec import Encoded, Reader, number, text
from dledger.broker.topics import (
    MAX_COMPACTION_MS,
    MAX_QUEUES,
    MAX_QUEUES_IN_ALL,
    MAX_RETENTION_HOURS,
    MAX_TOPICS,
    NORMAL,
    TYPES,
    Compaction,
    Topic,
    checked_topic,
)
from dledger.common.replay_mark import ReplayMark
from dledger.errors import DiskFull, InvalidArgument, LimitReached, UnknownTopic

_KEEPS_LONGER: Final = 1 << 16
"""In a topic's number of queues in a snapshot: its own retention follows."""
_IS_COMPACTED: Final = 1 << 17
"""Likewise: the times of its compaction follow, in milliseconds; it is kept for ever."""


class Gone(NamedTuple):
    """How many *messages* of one queue are gone, and whether it begins at a later offset now."""

    topic: str
    messages: int
    from_front: bool


class TopicStore:
    """All topics of a group. Part of `state.BrokerState`, and as deterministic.

    *changed* collects the (topic, queue id) that get messages.
    """

    def __init__(
        self,
        dedupe: DeduplicationWindow,
        lanes: ReplayedLanes,
        changed: set[tuple[str, int]],
        edition: Edition,
    ) -> None:
        self._topics: dict[str, Topic] = {}
        self._queues: dict[str, list[ConsumeQueue]] = {}
        self._turns: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self.longer: dict[int, str] = {}
        """Topics that keep their messages longer: names by generation; read-only for callers."""
        self._queues_in_all = 0
        self._made = 0
        self._dedupe, self._lanes = dedupe, lanes
        self._dedupe.edition = self._edition = edition
        self._changed = changed
        self.grown_bytes: dict[str, int] = {}
        """Bytes that PRODUCE added to each topic that there is, since a caller last emptied this;
        not part of the replicated state."""
        self.full = ""
        """Why the leader takes no messages of topics that keep theirs longer; empty: it takes them.
        Not part of the replicated state."""

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name, if there is one."""
        return self._topics.get(name)

    def named(self, name: str) -> Topic:
        """Return the topic of this name, or raise UnknownTopic."""
        found = self._topics.get(name)
        if found is None:
            raise UnknownTopic(name)
        return found

    @property
    def made(self) -> int:
        """How many topics there ever were."""
        return self._made

    @property
    def deletions(self) -> int:
        """How many topics were ever deleted."""
        return self._made - len(self._topics)

    def is_there(self, topic: Topic) -> bool:
        """Whether exactly this topic still exists, not a new one of the same name."""
        found = self._topics.get(topic.name)
        return found is not None and found.generation == topic.generation

    def all(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def queues(self, topic: str) -> list[ConsumeQueue]:
        """Return a topic's queues by id, or raise UnknownTopic."""
        queues = self._queues.get(topic)
        if queues is None:
            raise UnknownTopic(topic)
        return queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, to be read.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: The topic has no queue of this id.
        """
        queues = self.queues(topic)
        if not 0 <= queue_id < len(queues):
            raise InvalidArgument(f"topic {topic!r} has queues 0 to {len(queues) - 1}: {queue_id}")
        return queues[queue_id]

    def _own(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue that exists, to be changed."""
        queues = self._queues[topic]
        queue = queues[queue_id]
        if queue.edition != self._edition.number:
            queue = queues[queue_id] = queue.copy(self._edition.number)
        return queue

    def named_from(self, prefix: str) -> list[str]:
        """Return the names of the topics that begin so, sorted."""
        return sorted(name for name in self._topics if name.startswith(prefix))

    def messages(self, topic: str) -> int:
        """Return how many messages a topic keeps, or raise UnknownTopic."""
        return self._kept[self.named(topic).name]

    def is_taken(
        self, client_id: str, topic: str, message_id: str, body: bytes, *, deliver_at_ms: int = 0
    ) -> bool:
        """Whether an id is remembered as that of a message with another body, or another time."""
        known = self._dedupe.find(client_id, topic, message_id.encode())
        (digest,) = with_times(array("Q", (digest_of(body),)), (deliver_at_ms,))
        return known is not None and known.digest != digest

    @property
    def remembered_ids(self) -> int:
        """Number of ids in the deduplication window; at most `deduplication.MAX_IDS`."""
        return len(self._dedupe)

    @property
    def replayed_lanes(self) -> int:
        """Number of lanes whose last sequence is known; at most `replayed_lanes.MAX_LANES`."""
        return len(self._lanes)

    def create(self, command: commands.CreateTopic) -> TopicCreated:
        """Create a topic, or find it with the same settings.

        Raises:
            InvalidArgument: It exists with other settings, or the settings are not valid.
            LimitReached: There would be too many topics, or too many queues of all topics together.
        """
        topic = checked_topic(
            name=command.name,
            type=command.type,
            queues=command.queues,
            compaction=command.compaction,
        )
        existing = self._topics.get(topic.name)
        if existing is not None and existing != topic:
            raise InvalidArgument(f"topic {topic.name!r} exists with {existing}, not {topic}")
        if existing is None:
            self._check_topics()
            self._check_queues(topic.name, topic.queues)
            self._made += 1
            topic = replace(topic, generation=self._made)
            self._queues_in_all += topic.queues
            self._topics[topic.name] = topic
            edition, is_compacted = self._edition.number, topic.compaction is not None
            self._queues[topic.name] = [
                ConsumeQueue(edition, begins_at_0=is_compacted) for _ in range(topic.queues)
            ]
            self._turns[topic.name] = self._kept[topic.name] = 0
            if topic.retention_hours is not None:
                self.longer[topic.generation] = topic.name
        return TopicCreated(existing or topic, existing is None)

    def grow(self, command: commands.GrowTopic) -> TopicGrown:
        """Add empty queues behind those that a topic has, or find it with as many as asked for.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: It has more queues, may not have so many, or is compacted.
            LimitReached: There would be too many queues of all topics together.
        """
        topic = self.named(command.name)
        if topic.compaction is not None:
            raise InvalidArgument(
                f"topic {topic.name!r} is compacted, and its keys lie in its {topic.queues} queues "
                "for ever: it does not grow; copy it into a new topic with more queues"
            )
        grown = checked_topic(name=topic.name, type=topic.type, queues=command.queues)
        more = grown.queues - topic.queues
        if more < 0:
            raise InvalidArgument(
                f"topic {topic.name!r} has {topic.queues} queues, and its messages are in them: it "
                f"cannot have {grown.queues}"
            )
        self._check_queues(topic.name, more)
        self._queues_in_all += more
        grown = self._topics[topic.name] = replace(topic, queues=grown.queues)
        self._queues[topic.name] += [ConsumeQueue(self._edition.number) for _ in range(more)]
        return TopicGrown(grown, topic.queues)

    def delete(self, command: commands.DeleteTopic) -> TopicDeleted:
        """Delete a topic with its messages, its part of the deduplication window and its lanes.

        Raises:
            UnknownTopic: There is no topic of this name, or it is a new one by now.
        """
        topic = self._topics.get(command.name)
        if topic is None or topic.generation != command.generation:
            raise UnknownTopic(command.name)
        messages = self._kept.pop(topic.name)
        self.grown_bytes.pop(topic.name, None)
        del self._topics[topic.name], self._queues[topic.name], self._turns[topic.name]
        self.longer.pop(topic.generation, None)
        self._queues_in_all -= topic.queues
        self._dedupe.forget_topic(topic.name)
        self._lanes.forget_topic(topic.name)
        return TopicDeleted(topic, messages)

    def _check_topics(self) -> None:
        if len(self._topics) >= MAX_TOPICS:
            raise LimitReached(f"there are {MAX_TOPICS} topics already, which is the limit")

    def _check_queues(self, topic: str, more: int) -> None:
        if self._queues_in_all + more > MAX_QUEUES_IN_ALL:
            raise LimitReached(
                f"the topics have {self._queues_in_all} queues together; {more} more for "
                f"{topic!r} are above the limit of {MAX_QUEUES_IN_ALL}"
            )

    def replay(
        self, batch: ProduceFrame, mark: ReplayMark, payload: Payload, time: LivedTime
    ) -> Produced:
        """Store the new messages of *batch*, a replay with this *mark*; as `produce`."""
        known = mark.count_known(self._lanes.last(mark.key), batch.count)
        produced = self.produce(batch, payload, time.log_ms, known)
        # Never past a conflict: that row is not stored yet, and must not be known when it comes.
        done = produced.conflicts[0] if produced.conflicts else batch.count
        if done:
            last, whose = mark.first + done - 1, (batch.topic, batch.client_id)
            self._lanes.advance(mark.key, last, whose=whose, lived_ms=time.lived_ms)
        return produced

    def produce(
        self, batch: ProduceFrame, payload: Payload, now_ms: int, replayed: int = 0
    ) -> Produced:
        """Store the new messages of *batch*, and return the position of each message.

        *now_ms* is the log's time; the first *replayed* messages are stored already.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: The topic does not have the requested queue.
            IllegalKey, SeveralQueues: It is compacted, and the messages' keys do not fit it.
            MalformedCommandError: A column that is needed here is malformed.
        """
        if batch.queue_id != NO_QUEUE:
            self.queue(batch.topic, batch.queue_id)
        else:
            self.queues(batch.topic)
        if self._topics[batch.topic].compaction is not None:
            check_keyed(batch, self._topics[batch.topic])
        tags = batch.tags()
        ids = batch.ids() if batch.has_ids else None
        if ids is not None or replayed:
            digests = batch.body_digests()
        if ids is not None:
            self._dedupe.heard(batch.client_id, batch.topic, now_ms)
        if replayed:
            return self._produce_each(batch, tags, digests, payload, replayed)
        if ids is not None:
            all_have_one = isinstance(ids, IdRun) or b"" not in ids
            if not (all_have_one and self._dedupe.is_new(batch.client_id, batch.topic, ids)):
                return self._produce_each(batch, tags, digests, payload)
        queue_id = self._choose_queue(batch)
        queue = self._own(batch.topic, queue_id)
        first = queue.append(payload, range(batch.count), tags)
        self._kept[batch.topic] += batch.count
        self._changed.add((batch.topic, queue_id))
        self._grew(batch.topic, payload)
        if ids is not None:
            scope = (batch.client_id, batch.topic)
            self._dedupe.remember(*scope, ids, digests, queue_id=queue_id, first=first)
        return Produced(
            topic=batch.topic,
            queue_ids=(queue_id,) * batch.count,
            offsets=range(first, queue.end),
            index=payload.index,
            generation=self._topics[batch.topic].generation,
            stored=batch.count,
        )

    def append_dead_letter(self, batch: ProduceFrame, payload: Payload) -> Produced:
        """Append a dead letter to its topic, which is made if it is not there.

        Raises:
            LimitReached: It is not there, and there are too many topics or queues.
            MalformedCommandError: Its tag is malformed.
        """
        tags = batch.tags()
        if batch.topic not in self._topics:
            self.create(commands.CreateTopic(name=batch.topic, type=NORMAL.name, queues=1))
        offset = self._own(batch.topic, 0).append(payload, range(1), tags)
        self._kept[batch.topic] += 1
        self._changed.add((batch.topic, 0))
        self._grew(batch.topic, payload)
        return Produced(
            topic=batch.topic,
            queue_ids=(0,),
            offsets=(offset,),
            index=payload.index,
            generation=self._topics[batch.topic].generation,
            stored=1,
        )

    def append_released(
        self, batch: ProduceFrame, payload: Payload, rows: Sequence[int]
    ) -> Produced:
        """Append some rows of a payload, ascending and at least one, to a topic that is there.

        The caller has checked queue and tags.
        """
        queue_id, tags = self._choose_queue(batch), batch.tags()
        queue = self._own(batch.topic, queue_id)
        places = [(NOWHERE, NOWHERE)] * batch.count
        for some in _stretches(rows):
            first = queue.append(payload, some, tags)
            for row in some:
                places[row] = queue_id, first + row - some.start
        self._kept[batch.topic] += len(rows)
        self._changed.add((batch.topic, queue_id))
        self._grew(batch.topic, payload)
        queue_ids, offsets = zip(*places, strict=True)
        return Produced(
            topic=batch.topic,
            queue_ids=queue_ids,
            offsets=offsets,
            index=payload.index,
            generation=self._topics[batch.topic].generation,
            stored=len(rows),
        )

    def _grew(self, topic: str, payload: Payload) -> None:
        size_bytes = payload.end - payload.start
        self.grown_bytes[topic] = self.grown_bytes.get(topic, 0) + size_bytes

    def _produce_each(
        self,
        batch: ProduceFrame,
        tags: list[bytes] | None,
        digests: Digests,
        payload: Payload,
        replayed: int = 0,
    ) -> Produced:
        """Store a batch row by row, because some of its messages are known or have no id."""
        scope, ids = (batch.client_id, batch.topic), batch.message_ids()
        known = [self._dedupe.find(*scope, message_id) for message_id in ids]
        rows = Rows(ids, digests, known, replayed)
        if rows.new:
            queue_id = self._choose_queue(batch, home=rows.home)
            queue = self._own(batch.topic, queue_id)
            self._changed.add((batch.topic, queue_id))
            self._grew(batch.topic, payload)
            for row in rows.new:
                offset = queue.append(payload, range(row, row + 1), tags)
                rows.stored(row, queue_id, offset)
                if ids[row]:
                    one, its = (ids[row],), digests[row : row + 1]
                    self._dedupe.remember(*scope, one, its, queue_id=queue_id, first=offset)
            self._kept[batch.topic] += len(rows.new)
        positions = rows.positions()
        queue_ids, offsets = zip(*positions, strict=True)
        return Produced(
            topic=batch.topic,
            queue_ids=queue_ids,
            offsets=offsets,
            index=self._index_of(batch.topic, positions),
            generation=self._topics[batch.topic].generation,
            stored=len(rows.new),
            repeats=rows.repeats,
            conflicts=rows.conflicts,
        )

    def _index_of(self, topic: str, positions: Sequence[tuple[int, int]]) -> int:
        """Return the entry that holds the first stored message; 0 if none is still kept."""
        queue_id, offset = next(
            (position for position in positions if position[1] != NOWHERE), (0, NOWHERE)
        )
        if queue_id == HELD_QUEUE:
            return 0
        queue = self._queues[topic][queue_id]
        return queue.locate(offset).payload.index if queue.has(offset) else 0

    def _choose_queue(self, batch: ProduceFrame, home: int | None = None) -> int:
        """Return the queue that a batch asks for, else the one that the topic's type chooses."""
        if batch.queue_id != NO_QUEUE:
            return batch.queue_id
        turn = self._turns[batch.topic]
        chosen = TYPES[self._topics[batch.topic].type].queue_for(home=home, turn=turn)
        if home is None:
            self._turns[batch.topic] = (turn + 1) % len(self._queues[batch.topic])
        return chosen

    def drop_before(self, index: int) -> int:
        """Forget the messages in entries below *index*; return how many."""
        dropped = 0
        for topic, queues in self._queues.items():
            for queue_id, queue in enumerate(queues):
                if queue.first < queue.end:
                    gone = self._own(topic, queue_id).drop_before(index)
                    self._kept[topic] -= gone
                    dropped += gone
        return dropped

    # -- what is kept for longer than the group's retention ----------------------------------------

    def keeping_longer(self) -> list[Topic]:
        """Return the topics that have a retention of their own, in the order of their making."""
        return [self._topics[name] for _, name in sorted(self.longer.items())]

    def check_takes(self, name: str) -> None:
        """Raise DiskFull if new messages of this topic are refused for those that it keeps."""
        topic = self._topics.get(name)
        if self.full and topic is not None and topic.retention_hours is not None:
            raise DiskFull(f"topic {name!r} takes no messages: {self.full}")

    def set_retention(self, command: commands.SetRetention) -> RetentionSet:
        """Set, change or end a topic's own retention; what only that had kept goes with its end.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: There is no such retention, or the topic is compacted.
        """
        topic, hours = self.named(command.name), command.hours
        if topic.compaction is not None:
            raise InvalidArgument(
                f"topic {topic.name!r} is compacted: the newest message of each key is kept for "
                "ever, and nothing else decides what goes; delete the topic if it is not needed"
            )
        if hours is not None and not 0 <= hours <= MAX_RETENTION_HOURS:
            raise InvalidArgument(
                f"a topic's retention is 1 to {MAX_RETENTION_HOURS} hours, or 0 for ever: {hours}"
            )
        self._topics[topic.name] = replace(topic, retention_hours=hours)
        dropped = 0
        if hours is None:
            self.longer.pop(topic.generation, None)
            for queue_id, queue in enumerate(self._queues[topic.name]):
                if queue.was_copied:
                    dropped += self._own(topic.name, queue_id).forget_blocks()
        else:
            self.longer[topic.generation] = topic.name
        self._kept[topic.name] -= dropped
        return RetentionSet(before=topic.retention_hours, dropped=dropped)

    def rekeep(self, command: Rekeep, index: int) -> Gone:
        """Copy, move or drop messages that a topic keeps longer; return what is gone.

        Raises:
            UnknownTopic: There is no topic of this generation that keeps anything longer.
            InvalidArgument: It is another topic's payload, there is no such queue, or see
                `ConsumeQueue.rekeep`. Nothing is changed.
        """
        name = self.longer.get(command.generation)
        if name is None:
            raise UnknownTopic(f"generation {command.generation}")
        if command.offsets and command.topic != name:
            raise InvalidArgument(f"a payload of topic {command.topic!r} for topic {name!r}")
        self.queue(name, command.queue_id)
        queue = self._own(name, command.queue_id)
        first = queue.first
        messages = queue.rekeep(
            command.first,
            command.to,
            Payload(index, command.inner, command.end),
            command.offsets,
            newest_ms=command.newest_ms,
        )
        self._kept[name] -= messages
        return Gone(name, messages, queue.first > first)

    def erase(self, command: Erase) -> Gone:
        """Erase messages of a compacted topic; return what is gone.

        Raises:
            UnknownTopic: There is no topic of this generation that keeps anything longer.
            InvalidArgument: It is not compacted, or has no such queue. Nothing is changed.
        """
        topic = self._topics.get(self.longer.get(command.generation, ""))
        if topic is None:
            raise UnknownTopic(f"generation {command.generation}")
        if topic.compaction is None:
            raise InvalidArgument(f"topic {topic.name!r} is not compacted")
        self.queue(topic.name, command.queue_id)
        messages = self._own(topic.name, command.queue_id).erase(command.offsets)
        self._kept[topic.name] -= messages
        return Gone(topic.name, messages, from_front=False)  # such a queue begins at 0 for ever

    @property
    def copied_below(self) -> int:
        """The entry below which messages may have been copied, so that it does not say all.

        0 where none were, or retention has come so far.
        """
        queues = (queue for name in self.longer.values() for queue in self._queues[name])
        return max((queue.copied_below for queue in queues), default=0)

    def lowest_held(self) -> int | None:
        """Return the lowest entry that a topic with its own retention needs; None: they need none.

        RETAIN drops nothing from there on: what is kept for longer is copied first.
        """
        held = (queue.lowest_index for name in self.longer.values() for queue in self._queues[name])
        return min((index for index in held if index is not None), default=None)

    def freeze(self) -> Encoded:
        """Return a function that encodes the present state; it may be called from any thread."""
        queues = {name: tuple(queues) for name, queues in self._queues.items()}
        topics = list(self._topics.values())
        turns = self._turns.copy()
        repeats = self._dedupe.freeze(), self._lanes.freeze()
        return partial(_encoded, self._made, topics, turns, queues, repeats)

    def read(self, source: Reader) -> None:
        """Read everything from a snapshot into this empty object. Raises MalformedStateError."""
        self._made = source.number()
        for _ in range(source.number(high=MAX_TOPICS)):
            room = min(MAX_QUEUES, MAX_QUEUES_IN_ALL - self._queues_in_all)
            name, kind, queues = source.text(), source.text(), source.number(1)
            keeps_longer, is_compacted = queues & _KEEPS_LONGER, queues & _IS_COMPACTED
            queues &= ~(_KEEPS_LONGER | _IS_COMPACTED)
            if not 1 <= queues <= room:
                raise source.malformed(f"topic {name!r} has {queues} queues, of {room} at most")
            generation = source.number(1, self._made)
            hours = source.number(high=MAX_RETENTION_HOURS) if keeps_longer else None
            compaction = _compaction(source) if is_compacted else None
            if is_compacted and keeps_longer:
                raise source.malformed(f"topic {name!r} is compacted, and has another retention")
            if kind not in TYPES:
                raise source.malformed(f"topic {name!r} has the unknown type {kind!r}")
            self._queues_in_all += queues
            hours = 0 if is_compacted else hours
            self._topics[name] = Topic(
                name=name,
                type=kind,
                queues=queues,
                compaction=compaction,
                generation=generation,
                retention_hours=hours,
            )
            self._turns[name] = source.number(high=queues - 1)
            self._queues[name] = [
                ConsumeQueue.read(source, begins_at_0=compaction is not None) for _ in range(queues)
            ]
            self._kept[name] = sum(queue.count for queue in self._queues[name])
            if hours is not None:
                self.longer[generation] = name
            elif any(queue.was_copied for queue in self._queues[name]):
                raise source.malformed(f"topic {name!r} has blocks, and keeps nothing longer")
            if compaction is None and any(queue.erased for queue in self._queues[name]):
                raise source.malformed(f"topic {name!r} is not compacted, and erased")
        self._dedupe.read(source)
        self._lanes.read(source, self._topics)

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        return [
            self._made,
            [
                [*astuple(topic), self._turns[topic.name], self._kept[topic.name]]
                for topic in self.all()
            ],
            [[name, [q.canonical() for q in qs]] for name, qs in sorted(self._queues.items())],
            self._dedupe.canonical(),
            self._lanes.canonical(),
        ]


def _stretches(rows: Sequence[int]) -> Iterator[range]:
    """Yield consecutive rows together."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[at - 1] + 1:
            yield range(rows[start], rows[at - 1] + 1)
            start = at


def _more_of(topic: Topic) -> tuple[int, tuple[int, ...]]:
    """Return what a snapshot says of a topic that most have not: its mark, and the numbers."""
    if topic.compaction is not None:
        return _IS_COMPACTED, (topic.compaction.min_lag_ms, topic.compaction.tombstone_ms)
    hours = topic.retention_hours
    return (0, ()) if hours is None else (_KEEPS_LONGER, (hours,))


def _compaction(source: Reader) -> Compaction:
    min_lag_ms = source.number(high=MAX_COMPACTION_MS)
    return Compaction(min_lag_ms=min_lag_ms, tombstone_ms=source.number(high=MAX_COMPACTION_MS))


def _encoded(
    made: int,
    topics: list[Topic],
    turns: dict[str, int],
    queues: dict[str, tuple[ConsumeQueue, ...]],
    repeats: Sequence[Encoded],
) -> Iterator[bytes]:
    """Yield the bytes for a snapshot; topics by name."""
    yield number(made)
    yield number(len(topics))
    for topic in sorted(topics, key=lambda topic: topic.name):
        yield text(topic.name)
        yield text(topic.type)
        more, numbers = _more_of(topic)
        yield number(topic.queues | more)
        yield number(topic.generation)
        yield b"".join(map(number, numbers))
        yield number(turns[topic.name])
        for queue in queues[topic.name]:
            yield from queue.encoded()
    for part in repeats:
        yield from part()
