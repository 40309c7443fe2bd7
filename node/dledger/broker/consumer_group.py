"""One consumer group: deliveries, filters, and the receives whose results it may ask for again.

Owned by `consumer_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from dledger.broker.attempts import Attempts, QueuePosition
from dledger.broker.beginnings import OLDEST, Beginning
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.fifo_deliveries import FifoDeliveries
from dledger.broker.filter_room import FilterRoom
from dledger.broker.group_filters import TopicFilters
from dledger.broker.held_leases import HeldLeases
from dledger.broker.redelivery import DEFAULT, Retries, attempts_of, check_retries
from dledger.broker.snapshot_codec import Reader, column, number, text
from dledger.errors import Refused

MAX_GROUPS = 10_000
_BEGINS: Final = 1 << 32
"""In the number of filters: where the group begins follows it."""
_SETS_RETRIES: Final = 1 << 33
"""In the number of filters: what a SET_GROUP has set follows it."""
QueueOf = Callable[[str, int], ConsumeQueue]
"""Returns the queue of a (topic, queue id), or raises Refused."""


class ConsumerGroup:
    """One consumer group, over all the topics it reads."""

    __slots__ = (
        "_attempts",
        "_deliveries",
        "_filters",
        "beginning",
        "edition",
        "max_attempts",
        "name",
        "retries",
        "used_ms",
    )

    def __init__(self, name: str, edition: int = 0, beginning: Beginning = OLDEST) -> None:
        self.name, self.beginning = name, beginning
        self.edition = edition
        """Which edition of the state this is of; see `editions`."""
        self.set_retries(DEFAULT)
        self.used_ms = 0
        """When a member last called, by the log's time, Unix milliseconds."""
        self._deliveries: dict[str, dict[int, HeldLeases]] = {}
        """By topic, then queue id, so that a topic can be deleted in one step."""
        self._filters: dict[str, TopicFilters] = {}
        self._attempts = Attempts()

    def copy(self, edition: int) -> ConsumerGroup:
        """Return a copy that may be changed; this object must no longer be.

        The deliveries of a queue are copied only when they are changed: see `own`.
        """
        other = ConsumerGroup(self.name, edition, self.beginning)
        other.used_ms = self.used_ms
        other.set_retries(self.retries)
        other._deliveries = {topic: queues.copy() for topic, queues in self._deliveries.items()}
        other._filters = {topic: found.copy() for topic, found in self._filters.items()}
        other._attempts = self._attempts.copy()
        return other

    def set_retries(self, retries: Retries) -> None:
        """Set how often its messages are delivered, and when again."""
        self.retries = retries
        self.max_attempts = attempts_of(self.name, retries)

    def is_unused(self, before_ms: int, lived_ms: int) -> bool:
        """Whether it was last used before *before_ms* and has no lease left at *lived_ms*."""
        return self.used_ms < before_ms and not any(
            lease.visible_at_ms > lived_ms
            for _, _, deliveries in self._each()
            for lease in deliveries.leases.values()
        )

    def deliveries(self, topic: str, queue_id: int, queue: ConsumeQueue) -> HeldLeases:
        """Return the deliveries of a queue, to be changed; new ones start where the group does."""
        found = self.own(topic, queue_id)
        if found is None:
            kind = QueueDeliveries if queue.groups is None else FifoDeliveries
            found = kind(self.beginning.in_queue(queue), self.edition)
            self._deliveries.setdefault(topic, {})[queue_id] = found
        return found

    def position(self, topic: str, queue_id: int, queue: ConsumeQueue) -> int:
        """Return the lowest offset that is not consumed."""
        found = self.peek(topic, queue_id)
        return self.beginning.in_queue(queue) if found is None else found.committed

    def unread_in(self, queue: ConsumeQueue) -> int:
        """Return how many messages of a queue that it has not read yet are for this group."""
        if self.beginning == OLDEST:
            return queue.count
        return queue.count_from(self.beginning.in_queue(queue))

    def seek(self, topic: str, queue_id: int, queue: ConsumeQueue, offset: int) -> None:
        """Deliver a queue from *offset* on, as if nothing of it had been delivered before.

        Receive ids are never used again, so whoever has a message from before acks nothing with
        that, and an attempt that is repeated finds nothing that it holds.
        """
        before = self.peek(topic, queue_id)
        if before is not None and before.kept:
            before.kept.leave()
        kind = QueueDeliveries if queue.groups is None else FifoDeliveries
        sought = kind(offset, self.edition)
        self._deliveries.setdefault(topic, {})[queue_id] = sought

    def own(self, topic: str, queue_id: int) -> HeldLeases | None:
        """Return the deliveries of a queue, to be changed, if there are any.

        The group itself must be of the current edition.
        """
        found = self.peek(topic, queue_id)
        if found is not None and found.edition != self.edition:
            found = self._deliveries[topic][queue_id] = found.copy(self.edition)
        return found

    def peek(self, topic: str, queue_id: int) -> HeldLeases | None:
        """Return the deliveries of a queue, to be read, if there are any."""
        queues = self._deliveries.get(topic)
        return None if queues is None else queues.get(queue_id)

    def all_deliveries(self) -> list[tuple[str, int, HeldLeases]]:
        """Return (topic, queue id, deliveries) of every queue this group has read."""
        return list(self._each())

    def _each(self) -> Iterator[tuple[str, int, HeldLeases]]:
        for topic, queues in self._deliveries.items():
            for queue_id, deliveries in queues.items():
                yield topic, queue_id, deliveries

    def waiting_share(self) -> float:
        """Return how full the fullest of its FIFO queues is with messages that wait; 0 to 1."""
        shares = [
            found.waiting_share
            for _, _, found in self._each()
            if isinstance(found, FifoDeliveries) and found.waiting
        ]
        return max(shares, default=0.0)

    def topics(self) -> list[str]:
        """Return the topics that this group has read from, sorted."""
        return sorted(self._deliveries)

    def reads(self, topic: str) -> bool:
        """Whether this group has read from a topic."""
        return topic in self._deliveries

    def filters(self, topic: str) -> TopicFilters | None:
        """Return the filters in use for a topic; None if there were none yet."""
        return self._filters.get(topic)

    def own_filters(self, topic: str, room: FilterRoom) -> TopicFilters:
        """Return the filters in use for a topic, to be changed; they count in *room*."""
        found = self._filters.get(topic)
        if found is None:
            found = self._filters[topic] = TopicFilters(room)
        return found

    def end_unnamed(self, topic: str, filters: TopicFilters) -> dict[int, int]:
        """Forget what is kept for filters that are gone: (queue id: how many messages)."""
        ended: dict[int, int] = {}
        for queue_id, found in list(self._deliveries.get(topic, {}).items()):
            if found.kept and (own := self.own(topic, queue_id)) is not None:
                ended[queue_id] = own.end_unnamed(filters.names)
        return ended

    def forget(self, topic: str) -> None:
        """Forget the deliveries and filters of a topic that was deleted.

        Attempts on the topic then hold no messages and are dropped for that reason.
        """
        for found in self._deliveries.pop(topic, {}).values():
            if found.kept:
                found.kept.leave()
        if (filters := self._filters.pop(topic, None)) is not None:
            filters.leave()

    def leave(self) -> None:
        """Take what is kept, and the filters, out of the sums: the group is deleted."""
        for topic in {*self._deliveries, *self._filters}:
            self.forget(topic)

    def remember(
        self, topic: str, attempt_id: str, receive_id: int, positions: Sequence[QueuePosition]
    ) -> None:
        """Remember the messages given to an attempt, in case the client repeats it."""
        self._attempts.remember(topic, attempt_id, receive_id, positions, self._holds)

    def recall(self, topic: str, attempt_id: str) -> tuple[int, list[QueuePosition]] | None:
        """Return an earlier attempt's receive id and what it still holds; None if nothing."""
        return self._attempts.recall(topic, attempt_id, self._holds)

    def lease_anew(
        self, topic: str, receive_id: int, held: Iterable[QueuePosition], until_ms: int
    ) -> None:
        """Extend the leases that `recall` found to *until_ms*: they are delivered again."""
        for queue_id, offset in held:
            if (deliveries := self.own(topic, queue_id)) is not None:
                deliveries.extend(offset, receive_id, until_ms)

    def _holds(self, topic: str, receive_id: int, position: QueuePosition) -> bool:
        queue_id, offset = position
        deliveries = self.peek(topic, queue_id)
        lease = deliveries.leases.get(offset) if deliveries else None
        return lease is not None and lease.receive_id == receive_id

    def encoded(self) -> Iterator[bytes]:
        """Yield the group, without its name, for a snapshot.

        Filters by topic, deliveries by queue, attempts.
        """
        yield number(self.used_ms)
        begins = self.beginning != OLDEST
        sets_retries = self.retries != DEFAULT
        more = (_BEGINS if begins else 0) | (_SETS_RETRIES if sets_retries else 0)
        yield number(len(self._filters) | more)
        if begins:
            yield number(self.beginning.entry)
            yield number(self.beginning.stored_ms)
        if sets_retries:
            yield number(self.retries.max_attempts)
            yield from column("Q", len(self.retries.backoff_ms), self.retries.backoff_ms)
        for topic, filters in sorted(self._filters.items()):
            yield text(topic)
            yield from filters.encoded()
        yield number(sum(map(len, self._deliveries.values())))
        for topic, queue_id, deliveries in self._sorted():
            yield text(topic)
            yield number(queue_id)
            yield from deliveries.encoded()
        yield from self._attempts.encoded(self._holds)

    def _sorted(self) -> Iterator[tuple[str, int, HeldLeases]]:
        for topic, queues in sorted(self._deliveries.items()):
            for queue_id, deliveries in sorted(queues.items()):
                yield topic, queue_id, deliveries

    @classmethod
    def read(
        cls, name: str, source: Reader, queue: QueueOf, room: FilterRoom, filters_ms: int
    ) -> ConsumerGroup:
        """Read a group from a snapshot. Raises MalformedStateError.

        Args:
            name: Its name.
            source: The snapshot.
            queue: Finds queues.
            room: What its filters, and what is kept for them, count in.
            filters_ms: No filter was used later, by `ConsumerGroups.filters_ms`.
        """
        group = cls(name)
        group.used_ms = source.number()
        filters = source.number()
        if filters & _BEGINS:
            group.beginning = Beginning(source.number(1), source.number())
        if filters & _SETS_RETRIES:
            group.set_retries(_retries(source))
        for _ in range(filters & ~(_BEGINS | _SETS_RETRIES)):
            topic = source.text()
            first = _checked(source, name, queue, topic, 0)
            if topic in group._filters:
                raise source.malformed(f"filters of group {name!r} for topic {topic!r} twice")
            group._filters[topic] = TopicFilters.read(source, room, filters_ms)
            group._filters[topic].ages = first.groups is not None
        for _ in range(source.number()):
            topic, queue_id = source.text(), source.number()
            found = _checked(source, name, queue, topic, queue_id)
            deliveries: HeldLeases
            if found.groups is None:
                deliveries = QueueDeliveries.read(source, found, group._filters.get(topic))
            else:
                deliveries = FifoDeliveries.read(source, found)
            group._deliveries.setdefault(topic, {})[queue_id] = deliveries
        group._attempts = Attempts.read(source)
        return group

    def canonical(self) -> list[object]:
        """Return the group as plain values, in one order on every node."""
        return [
            self.used_ms,
            [self.beginning.entry, self.beginning.stored_ms],
            [self.retries.max_attempts, *self.retries.backoff_ms],
            [[topic, filters.canonical()] for topic, filters in sorted(self._filters.items())],
            [[topic, queue_id, found.canonical()] for topic, queue_id, found in self._sorted()],
            self._attempts.canonical(self._holds),
        ]


def _retries(source: Reader) -> Retries:
    """Read what a SET_GROUP has set."""
    found = Retries(source.number(), tuple(source.column("Q")))
    try:
        check_retries(found)
    except Refused as error:
        raise source.malformed(str(error)) from error
    return found


def _checked(source: Reader, group: str, queue: QueueOf, topic: str, queue_id: int) -> ConsumeQueue:
    """Return a queue that a group's part names, or raise MalformedStateError."""
    try:
        return queue(topic, queue_id)
    except Refused as error:
        raise source.malformed(f"deliveries of group {group!r}: {error}") from error
