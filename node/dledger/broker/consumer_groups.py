"""All consumer groups and their deliveries: applies RECEIVE, ACK, RENEW and the like.

Owned by `state`, which routes commands here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from dledger.broker import commands
from dledger.broker.active_time import ActiveTime
from dledger.broker.attempts import QueuePosition
from dledger.broker.backlogs import backlog
from dledger.broker.beginnings import OLDEST
from dledger.broker.commands import LeaseRef
from dledger.broker.consumer_group import MAX_GROUPS, ConsumerGroup
from dledger.broker.dead_letter import DeadLetter
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.editions import Edition
from dledger.broker.fifo_deliveries import FifoDeliveries
from dledger.broker.filter_room import FilterRoom
from dledger.broker.filters import tag_codes
from dledger.broker.group_filters import USE_IS_SAID_MS, TopicFilters
from dledger.broker.held_leases import HeldLeases
from dledger.broker.kept_messages import Codes
from dledger.broker.lease_columns import Lease
from dledger.broker.lived_time import LivedTime
from dledger.broker.queue_positions import Payload
from dledger.broker.redelivery import (
    DEFAULT,
    IN_ORDER,
    PREFIX_LENGTH,
    WITHOUT_END,
    Retries,
    check_retries,
)
from dledger.broker.results import (
    Acked,
    DeadLettered,
    Delivery,
    FilterUsed,
    GroupCreated,
    GroupDeleted,
    GroupSet,
    GroupsExpired,
    GroupSought,
    InvisibilityChanged,
    LeaseChanged,
    Produced,
    Received,
    Released,
    SoughtQueue,
    Spent,
)
from dledger.broker.snapshot_codec import Encoded, Reader, number, text
from dledger.broker.state_changes import QueueKey, StateChanges
from dledger.broker.topic_store import TopicStore
from dledger.broker.topics import FIFO, TYPES, Topic
from dledger.checks.names import DEAD_LETTERS, check_name
from dledger.common.status import Backlog
from dledger.errors import (
    FilterInUse,
    InvalidArgument,
    InvalidReceiptHandle,
    LimitReached,
    TopicMadeAnew,
    UnknownGroup,
    UnknownTopic,
)

MAX_GAP_MS = 3_600_000
"""The most that a gap between two entries counts towards the expiry of an unused group."""
MAX_RECEIVE = 1_024
"""Messages that one RECEIVE may hand out."""


class Progress(NamedTuple):
    """How far a group is in a queue.

    Attributes:
        committed: The lowest offset that is not consumed.
        next: The lowest one that was never delivered.
        held: How many messages are leased, by the client that they are renewed for; "" for others.
    """

    committed: int
    next: int
    held: Counter[str]


class ConsumerGroups:
    """All consumer groups. Part of `state.BrokerState`, and as deterministic.

    *changes* collects the queues whose leases change. Leases end by *time*, as lived; all their
    ends, here and in `deliveries`, are lived time.
    """

    def __init__(
        self, topics: TopicStore, changes: StateChanges, edition: Edition, time: LivedTime
    ) -> None:
        self._topics, self._changes, self._edition = topics, changes, edition
        self._time = time
        self._groups: dict[str, ConsumerGroup] = {}
        self._receives = 0
        self._active = ActiveTime(MAX_GAP_MS)
        # A use is said this often. So a pause of the whole group, however long, counts no more than
        # one that its members had said nothing in anyway, and their filters outlive it.
        self._filters_active = ActiveTime(USE_IS_SAID_MS)
        self._room = FilterRoom()

    @property
    def active_ms(self) -> int:
        """The log's time without its gaps, by which unused groups expire (`active_time`)."""
        return self._active.ms

    @property
    def filters_ms(self) -> int:
        """The log's time without its gaps, by which unused filters are gone (`active_time`)."""
        return self._filters_active.ms

    @property
    def kept_bytes(self) -> int:
        """The size of what is kept for filters, of all groups; see `filter_room`."""
        return self._room.kept_bytes

    def advance(self, log_ms: int) -> None:
        """Advance to an entry's timestamp, Unix milliseconds, before the entry is applied."""
        self._active.advance(log_ms)
        self._filters_active.advance(log_ms)

    def exists(self, name: str) -> bool:
        """Whether the consumer group exists."""
        return name in self._groups

    def was_used(self, name: str, now_ms: int, *, within_ms: int) -> bool:
        """Whether the group exists and was used within *within_ms* before *now_ms*, log's time."""
        group = self._groups.get(name)
        return group is not None and self._active.at(now_ms) - group.used_ms < within_ms

    def is_filter_said(
        self, group: str, topic: str, tags: tuple[str, ...] | None, now_ms: int
    ) -> bool:
        """Whether a poll with this filter has no use of it to commit at *now_ms*, before it waits.

        There is something to commit if the filter is new, or if there are others and it was last
        used `USE_IS_SAID_MS` ago.
        """
        found = self._groups.get(group)
        filters = None if found is None else found.filters(topic)
        return filters is not None and filters.is_said(
            tag_codes(tags), self._filters_active.at(now_ms)
        )

    def _in_order(self, topic: str) -> bool:
        found = self._topics.get(topic)
        return found is not None and TYPES[found.type].in_order

    def is_expression_said(self, group: str, topic: str, sql: str, now_ms: int) -> bool:
        """Whether a poll with this expression has no use of it to commit at *now_ms*.

        Either it is said, or another one is in use, and nothing that it says will change that.
        """
        found = self._groups.get(group)
        filters = None if found is None else found.filters(topic)
        return filters is not None and filters.is_expression_said(
            sql, self._filters_active.at(now_ms)
        )

    def filter_beside(self, group: str, topic: str, sql: str) -> str | None:
        """Return the filter because of which an expression is not served; None: it is."""
        found = self._groups.get(group)
        filters = None if found is None else found.filters(topic)
        return None if filters is None else filters.beside(sql)

    def peek(self, group: str, topic: str, queue_id: int) -> HeldLeases | None:
        """Return a group's deliveries of a queue, to be read, if there are any."""
        return self._peek(group, topic, queue_id)

    def next_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset in a queue from which on a group was handed out nothing yet."""
        queue = self._topics.queue(topic, queue_id)
        found = self._groups.get(group)
        if found is None:
            return queue.first
        deliveries = found.peek(topic, queue_id)
        return found.beginning.in_queue(queue) if deliveries is None else deliveries.next_offset

    def available(
        self,
        group: str,
        topic: str,
        queue_ids: Sequence[int],
        lived_ms: int,
        *,
        enough: int,
        codes: Codes = None,
    ) -> int:
        """Return how many messages a RECEIVE with a filter could hand out.

        *lived_ms* is when it would be applied, in lived time. Zero means that a RECEIVE is not
        worth proposing. Counting stops at *enough*: a result that reaches it may be too low. It may
        be too high where the group has no other filter: then somebody has to pass over what the
        only one does not name. In a FIFO topic message groups are counted, not messages.
        """
        queues, found = self._topics.queues(topic), self._groups.get(group)
        topic_type = TYPES[self._topics.named(topic).type]
        if topic_type.in_order:
            return self._groups_to(
                found, topic, queue_ids, lived_ms=lived_ms, enough=enough, codes=codes
            )
        filters = None if found is None else found.filters(topic)
        differ = filters is not None and filters.differ
        count = 0
        for queue_id in queue_ids:
            queue = queues[queue_id]
            deliveries = found.peek(topic, queue_id) if found else None
            if deliveries is None:
                count += queue.count if found is None else found.unread_in(queue)
            elif not topic_type.may_deliver(len(deliveries.leases)):
                continue
            elif not isinstance(deliveries, QueueDeliveries):
                raise AssertionError(f"deliveries in order of topic {topic}")
            elif filters is not None and (differ or deliveries.kept is not None):
                count += deliveries.available_to(
                    codes, queue, lived_ms, enough=enough - count, filters=filters
                )
            else:
                end = queue.end
                if queue.has_gaps:  # as if the messages had none between them
                    position = deliveries.next_offset
                    end = position + queue.count_from(position)
                count += deliveries.available(end, lived_ms, enough=enough - count)
            if count >= enough:
                break
        return count

    def _groups_to(
        self,
        found: ConsumerGroup | None,
        topic: str,
        queue_ids: Sequence[int],
        *,
        lived_ms: int,
        enough: int,
        codes: Codes,
    ) -> int:
        """Return of how many message groups a RECEIVE could hand out something."""
        queues, count = self._topics.queues(topic), 0
        for queue_id in queue_ids:
            queue = queues[queue_id]
            deliveries = found.peek(topic, queue_id) if found else None
            if isinstance(deliveries, FifoDeliveries):
                count += deliveries.groups_to(codes, queue, lived_ms, enough=enough - count)
            else:  # the first RECEIVE says more
                count += bool(queue.count if found is None else found.unread_in(queue))
            if count >= enough:
                break
        return count

    def holds_attempt(self, group: str, topic: str, attempt_id: str) -> bool:
        """Whether this attempt was answered before and still holds some of its messages."""
        found = self._groups.get(group)
        return found is not None and found.recall(topic, attempt_id) is not None

    def next_expiry(self, group: str, topic: str, queue_ids: Sequence[int]) -> float:
        """Return when the next lease of these queues ends, in lived time; infinity if none."""
        found = (self._peek(group, topic, queue_id) for queue_id in queue_ids)
        return min((each.next_expiry() for each in found if each), default=float("inf"))

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """Return the lowest offset of the queue that *group* has not consumed yet."""
        queue, found = self._topics.queue(topic, queue_id), self._groups.get(group)
        return queue.first if found is None else found.position(topic, queue_id, queue)

    def progress(self, group: str, topic: str, queue_id: int) -> Progress:
        """Return how far *group* is in a queue. Raises UnknownGroup or UnknownTopic."""
        queue, found = self._topics.queue(topic, queue_id), self._group(group)
        deliveries = found.peek(topic, queue_id)
        if deliveries is None:
            begins = found.position(topic, queue_id, queue)
            return Progress(begins, begins, Counter())
        held = Counter(lease.client_id for lease in deliveries.leases.values())
        return Progress(deliveries.committed, deliveries.next_offset, held)

    def filters_of(self, group: str, topic: str) -> list[str]:
        """Return the filters in use of a group for a topic, as people write them, sorted."""
        filters = self._group(group).filters(topic)
        return sorted(use.text for _, use in filters or ())

    def begins_at_ms(self, group: str) -> int:
        """Return before which time nothing is for a group; 0: it began with the oldest message."""
        return self._group(group).beginning.stored_ms

    def lease(self, group: str, topic: str, ref: LeaseRef) -> Lease | None:
        """Return the lease that *ref* names; None if it is stale or the message is consumed."""
        found = self._peek(group, topic, ref.queue_id)
        lease = found.leases.get(ref.offset) if found else None
        return lease if lease is not None and lease.receive_id == ref.receive_id else None

    def backlog(self, group: str, topic: str) -> Backlog:
        """Return a group's backlog in a topic. Raises UnknownGroup or UnknownTopic."""
        return backlog(self._group(group), topic, self._topics.queues(topic))

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(self._groups)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group has read from, sorted; none if it does not exist."""
        found = self._groups.get(group)
        return found.topics() if found is not None else []

    def waiting_shares(self) -> dict[str, float]:
        """Return how full its fullest FIFO queue is with waiting messages, of groups with some."""
        if not any(TYPES[topic.type].in_order for topic in self._topics.all()):
            return {}
        shares = {name: group.waiting_share() for name, group in self._groups.items()}
        return {name: share for name, share in shares.items() if share}

    def readers_of(self, topic: str) -> list[str]:
        """Return the groups that have read from a topic, sorted."""
        return sorted(group.name for group in self._groups.values() if group.reads(topic))

    def renewable(self, before_ms: int) -> Iterator[tuple[QueueKey, int, Lease]]:
        """Yield (queue, offset, lease) of renewed leases that end before *before_ms*, lived."""
        for group in self._groups.values():
            for topic, queue_id, deliveries in group.all_deliveries():
                for offset, lease in deliveries.renewable(before_ms):
                    yield (group.name, topic, queue_id), offset, lease

    def handed_out(
        self, receives: Mapping[QueueKey, Container[int]]
    ) -> Iterator[tuple[QueueKey, int, Lease]]:
        """Yield the leases of these RECEIVEs, by queue, that are not known to have arrived."""
        for key, receive_ids in receives.items():
            if found := self._peek(*key):
                for offset, lease in found.handed_out(receive_ids):
                    yield key, offset, lease

    def create(self, command: commands.CreateGroup) -> GroupCreated:
        """Create a group if it does not exist, and mark it as used."""
        check_name("consumer group", command.name)
        beginning = command.beginning
        if beginning != OLDEST and (beginning.entry < 1 or beginning.stored_ms < 0):
            raise InvalidArgument(f"no group begins at {beginning}")
        if command.name in self._groups:
            self._used(command.name)
            return GroupCreated(command.name, created=False)
        if len(self._groups) >= MAX_GROUPS:
            raise LimitReached(f"there are {MAX_GROUPS} groups already, which is the limit")
        self._groups[command.name] = ConsumerGroup(command.name, self._edition.number, beginning)
        self._used(command.name)
        return GroupCreated(command.name, created=True)

    def delete(self, command: commands.DeleteGroup) -> GroupDeleted:
        """Delete a group; raise UnknownGroup if it does not exist."""
        self._own(command.name).leave()
        del self._groups[command.name]
        self._changes.groups_gone.add(command.name)
        return GroupDeleted(command.name)

    def forget_topic(self, topic: str) -> None:
        """Forget all groups' deliveries of a topic that was deleted."""
        for group in list(self._groups.values()):
            if group.reads(topic) or group.filters(topic) is not None:
                self._own(group.name).forget(topic)

    def receive(self, command: commands.Receive) -> Received:
        """Deliver messages; a repeated attempt gets the messages that it still holds."""
        group = self._used(command.group)
        self._topics.queue(command.topic, command.queue_id)
        topic = self._topics.named(command.topic)
        codes, filters = self._use(group, topic, command.tags)
        until = self._time.lived_ms + command.invisible_ms
        earlier = group.recall(command.topic, command.attempt_id) if command.attempt_id else None
        receive_id, positions = (
            (0, []) if earlier is None else self._still_there(command.topic, *earlier)
        )
        spent: list[QueuePosition] = []
        if positions:
            group.lease_anew(command.topic, receive_id, positions, until)
        else:
            self._receives += 1
            receive_id = self._receives
            positions = self._take(
                group, command, receive_id, until, codes=codes, filters=filters, spent=spent
            )
            if command.attempt_id and positions:
                group.remember(command.topic, command.attempt_id, receive_id, positions)
                self._changes.attempts.add((group.name, command.topic, command.attempt_id))
        for queue_id, _ in positions:
            self._changes.leases.add((group.name, command.topic, queue_id))
        return Received(
            topic=topic.name,
            generation=topic.generation,
            receive_id=receive_id,
            visible_at_ms=until,
            deliveries=tuple([self._delivery(group, command.topic, each) for each in positions]),
            spent=self._all_spent(group, command.topic, spent) if spent else (),
        )

    def receive_at(self, command: commands.ReceiveAt) -> Received:
        """Deliver what the leader found with an expression; a repeated attempt as by `receive`."""
        group = self._used(command.group)
        queue = self._topics.queue(command.topic, command.queue_id)
        topic = self._topics.named(command.topic)
        _check_expressions(topic)
        if command.generation != topic.generation or command.stop > queue.end:
            raise InvalidArgument(
                f"queue {command.queue_id} of topic {topic.name!r} has no messages up to "
                f"{command.stop} in generation {command.generation}"
            )
        if len(command.take) + len(command.again) + len(command.done) > MAX_RECEIVE:
            raise InvalidArgument(f"more than {MAX_RECEIVE} messages at once")
        self._use_expression(group, command.topic, command.sql)
        if (other := self.filter_beside(command.group, command.topic, command.sql)) is not None:
            raise FilterInUse.of(other)
        until = self._time.lived_ms + command.invisible_ms
        earlier = group.recall(command.topic, command.attempt_id) if command.attempt_id else None
        receive_id, positions = (
            (0, []) if earlier is None else self._still_there(command.topic, *earlier)
        )
        spent: list[QueuePosition] = []
        if positions:
            group.lease_anew(command.topic, receive_id, positions, until)
        else:
            self._receives += 1
            receive_id = self._receives
            positions = self._take_at(group, command, receive_id, until, spent=spent)
            if command.attempt_id and positions:
                group.remember(command.topic, command.attempt_id, receive_id, positions)
                self._changes.attempts.add((group.name, command.topic, command.attempt_id))
        self._changes.leases.add((group.name, command.topic, command.queue_id))
        return Received(
            topic=topic.name,
            generation=topic.generation,
            receive_id=receive_id,
            visible_at_ms=until,
            deliveries=tuple([self._delivery(group, command.topic, each) for each in positions]),
            spent=self._all_spent(group, command.topic, spent) if spent else (),
        )

    def _take_at(
        self,
        group: ConsumerGroup,
        command: commands.ReceiveAt,
        receive_id: int,
        until: int,
        *,
        spent: list[QueuePosition],
    ) -> list[QueuePosition]:
        queue = self._topics.queue(command.topic, command.queue_id)
        deliveries = group.deliveries(command.topic, command.queue_id, queue)
        if not TYPES[self._topics.named(command.topic).type].may_deliver(len(deliveries.leases)):
            return []
        if not isinstance(deliveries, QueueDeliveries):
            raise AssertionError(f"an expression for topic {command.topic}")
        worn: list[int] = []
        taken = deliveries.take_at(
            queue,
            command,
            now_ms=self._time.lived_ms,
            lease_until_ms=until,
            receive_id=receive_id,
            max_attempts=group.max_attempts,
            spent=worn,
        )
        spent += [(command.queue_id, offset) for offset in worn]
        return [(command.queue_id, offset) for offset in taken]

    def _still_there(
        self, topic: str, receive_id: int, positions: list[QueuePosition]
    ) -> tuple[int, list[QueuePosition]]:
        """Return what of an earlier receive is still there: a message may go while it is leased."""
        queues = self._topics.queues(topic)
        there = [(queue_id, o) for queue_id, o in positions if queues[queue_id].has(o)]
        return receive_id, there

    def use_filter(self, command: commands.UseFilter) -> FilterUsed:
        """Note that a member waits for messages that its filter names."""
        group = self._used(command.group)
        topic = self._topics.named(command.topic)
        if command.sql:
            _check_expressions(topic)
            self._use_expression(group, command.topic, command.sql)
        else:
            self._use(group, topic, command.tags)
        return FilterUsed()

    def _use_expression(self, group: ConsumerGroup, topic: str, sql: str) -> None:
        """Note the use of an expression, and that it waits if there are others."""
        filters = group.own_filters(topic, self._room)
        filters.use_expression(sql, self.filters_ms)
        self._end_unused(group, topic, filters)

    def _use(
        self, group: ConsumerGroup, topic: Topic, tags: tuple[str, ...] | None
    ) -> tuple[Codes, TopicFilters | None]:
        """Note the use of a filter.

        Returns:
            Its codes, and the filters of the topic if there are others beside it.
        """
        filters = group.own_filters(topic.name, self._room)
        codes = tag_codes(tags)
        if topic.type == FIFO.name:
            filters.use_alone(codes, tags, self.filters_ms)
            return codes, None
        if filters.is_only(codes):
            return codes, None
        filters.use(codes, tags, self.filters_ms)
        self._end_unused(group, topic.name, filters)
        return codes, filters if filters.differ else None

    def _end_unused(self, group: ConsumerGroup, topic: str, filters: TopicFilters) -> None:
        if gone := filters.end_unused(self.filters_ms):
            ended = group.end_unnamed(topic, filters)
            self._changes.leases.update((group.name, topic, each) for each in ended)
            # Several that go at once share what was kept: it is told with the last one.
            messages = [0] * (len(gone) - 1) + [sum(ended.values())]
            rows = zip(gone, messages, strict=True)
            self._changes.filters_gone.extend((group.name, topic, *row) for row in rows)

    def _take(
        self,
        group: ConsumerGroup,
        command: commands.Receive,
        receive_id: int,
        until: int,
        *,
        codes: Codes,
        filters: TopicFilters | None,
        spent: list[QueuePosition],
    ) -> list[tuple[int, int]]:
        queues = self._topics.queues(command.topic)
        topic_type = TYPES[self._topics.named(command.topic).type]
        hint = command.queue_id
        limit = min(command.limit, MAX_RECEIVE)
        if command.any_queue and topic_type.highest_first:
            order = [*range(len(queues) - 1, -1, -1)]
        else:
            order = [*range(hint, len(queues)), *range(hint)] if command.any_queue else [hint]
        positions: list[tuple[int, int]] = []
        # Dead letters stay what they are.
        is_dead = command.topic[:PREFIX_LENGTH] == DEAD_LETTERS
        max_attempts = WITHOUT_END if is_dead else group.max_attempts
        worn: list[int] = []
        for queue_id in order:
            if len(positions) >= limit or (positions and topic_type.in_order):
                break
            queue = queues[queue_id]
            deliveries = group.deliveries(command.topic, queue_id, queue)
            if not topic_type.may_deliver(len(deliveries.leases)):
                continue
            taken = deliveries.take(
                queue,
                limit=limit - len(positions),
                codes=codes,
                now_ms=self._time.lived_ms,
                lease_until_ms=until,
                receive_id=receive_id,
                client_id=command.client_id,
                filters=filters,
                max_attempts=max_attempts,
                spent=worn,
            )
            if worn:
                spent += [(queue_id, offset) for offset in worn]
                worn = []
                self._changes.leases.add((group.name, command.topic, queue_id))
            if filters is not None:  # what was passed over may be for others that wait
                self._changes.leases.add((group.name, command.topic, queue_id))
                if deliveries.waits(codes, queue, filters):
                    self._changes.filters_full.add((group.name, command.topic, queue_id))
            positions += [(queue_id, offset) for offset in taken]
        return positions

    def _delivery(self, group: ConsumerGroup, topic: str, position: tuple[int, int]) -> Delivery:
        queue_id, offset = position
        queue = self._topics.queue(topic, queue_id)
        found = queue.locate(offset)
        return Delivery(
            queue_id=queue_id,
            offset=offset,
            attempt=group.deliveries(topic, queue_id, queue).leases[offset].attempt,
            payload=found.payload,
            row=found.row,
        )

    def open_offsets(self, group: str, topic: str, queue_id: int) -> Iterator[tuple[int, bool]]:
        """Yield (offset, whether it was delivered) of what a group has not consumed, ascending."""
        found = self._peek(group, topic, queue_id)
        passed = found.waiting if isinstance(found, FifoDeliveries) else ()
        leased = found.leases if found else {}
        for offset in sorted((*leased, *passed)):
            yield offset, offset in leased
        end = self._topics.queue(topic, queue_id).end
        for offset in range(self.next_offset(group, topic, queue_id), end):
            yield offset, False

    def _all_spent(
        self, group: ConsumerGroup, topic: str, spent: Sequence[QueuePosition]
    ) -> tuple[Spent, ...]:
        return tuple([self._spent(group, topic, *each) for each in spent])

    def find_leased(self, group: str, topic: str, ref: LeaseRef) -> Spent | None:
        """Return the message of a lease; None: the lease is over, or another's by now."""
        lease = self.lease(group, topic, ref)
        if lease is None or not self._topics.queue(topic, ref.queue_id).has(ref.offset):
            return None
        return self._spent(self._group(group), topic, ref.queue_id, ref.offset)

    def _spent(self, group: ConsumerGroup, topic: str, queue_id: int, offset: int) -> Spent:
        deliveries = group.peek(topic, queue_id)
        if deliveries is None:
            raise AssertionError("a message that was never delivered")
        lease, found = deliveries.leases[offset], self._topics.queue(topic, queue_id).locate(offset)
        return Spent(
            lease=LeaseRef(queue_id, offset, lease.receive_id),
            attempts=lease.attempt,
            payload=found.payload,
            row=found.row,
        )

    def ack(self, command: commands.Ack) -> Acked:
        """Mark messages as consumed."""
        group = self._used(command.group)
        return Acked(tuple([self._ack(group, command.topic, lease) for lease in command.leases]))

    def _ack(self, group: ConsumerGroup, topic: str, lease: LeaseRef) -> bool:
        deliveries = group.own(topic, lease.queue_id)
        if deliveries is None:
            return False
        if deliveries.lacks_room(self._topics.queues(topic)[lease.queue_id].end):
            self._changes.leases.add((group.name, topic, lease.queue_id))
        return deliveries.ack(lease.offset, lease.receive_id)

    def set(self, command: commands.SetGroup) -> GroupSet:
        """Set a group's retries. Raises UnknownGroup or InvalidArgument."""
        check_retries(command.retries)
        group = self._used(command.name)
        before = group.retries
        group.set_retries(command.retries)
        return GroupSet(before)

    def retries(self, name: str, topic: str = "") -> Retries:
        """Return a group's retries for a topic; the default's if there is no such group yet."""
        found = self._groups.get(name)
        its = DEFAULT if found is None else found.retries
        return IN_ORDER if its == DEFAULT and self._in_order(topic) else its

    def dead_letter(self, command: DeadLetter, payload: Payload) -> DeadLettered:
        """End a lease, and append its message to the group's dead letters.

        Raises:
            UnknownGroup, UnknownTopic: There is no such group, or topic of this generation.
            InvalidReceiptHandle: The lease is another's by now.
            InvalidArgument: It is a dead letter already.
            LimitReached: The topic of the dead letters is not there, and there are too many.
        """
        moved, lease = command.moved, command.lease
        topic = self._topics.named(moved.topic)
        if topic.generation != moved.generation:
            raise UnknownTopic(topic.name)
        if topic.name.startswith(DEAD_LETTERS):
            raise InvalidArgument(f"messages of topic {topic.name!r} are dead letters already")
        group = self._used(command.group)
        deliveries = group.own(topic.name, lease.queue_id)
        held = None if deliveries is None else deliveries.leases.get(lease.offset)
        stored: Produced | None = None
        if held is not None and held.receive_id == lease.receive_id:
            stored = self._topics.append_dead_letter(command.batch, payload)
        if not self._ack(group, topic.name, lease):
            raise _stale(lease)
        return DeadLettered(stored)

    def change_invisible(self, command: commands.ChangeInvisible) -> LeaseChanged:
        """Change the end of one lease; raise InvalidReceiptHandle if the handle is stale."""
        until = self._time.lived_ms + command.invisible_ms
        group = self._used(command.group)
        lease = command.lease
        deliveries = group.own(command.topic, lease.queue_id)
        self._changes.leases.add((group.name, command.topic, lease.queue_id))
        if deliveries is None:
            raise _stale(lease)
        receive_id = deliveries.change(
            lease.offset, lease.receive_id, until, suspend=command.suspend
        )
        if receive_id is None:
            raise _stale(lease)
        return LeaseChanged(receive_id)

    def renew(self, command: commands.Renew) -> InvisibilityChanged:
        """Extend leases; stale ones are skipped."""
        until = self._time.lived_ms + command.invisible_ms
        group = self._used(command.group)
        leases = command.leases
        changed = sum(
            self._renew(group, command.topic, lease, until, arrived=command.arrived)
            for lease in leases
        )
        return InvisibilityChanged(changed)

    def _renew(
        self, group: ConsumerGroup, topic: str, lease: LeaseRef, until: int, *, arrived: bool
    ) -> bool:
        deliveries = group.own(topic, lease.queue_id)
        self._changes.leases.add((group.name, topic, lease.queue_id))
        return deliveries is not None and deliveries.renew(
            lease.offset, lease.receive_id, until, arrived=arrived
        )

    def release(self, command: commands.Release) -> Released:
        """End the leases that were renewed for a client that has gone."""
        group = self._used(command.group)
        released = 0
        for topic, queue_id, found in group.all_deliveries():
            if found.keeps_for(command.client_id):
                queue = self._topics.queue(topic, queue_id)
                deliveries = group.deliveries(topic, queue_id, queue)
                released += deliveries.release(command.client_id, self._time.lived_ms)
                self._changes.leases.add((group.name, topic, queue_id))
        return Released(released)

    def seek(self, command: commands.SeekGroup) -> GroupSought:
        """Let a group go on from other offsets. Raises as `would_seek`."""
        sought, group = self.would_seek(command), self._used(command.group)
        for each in sought.queues:
            queue = self._topics.queue(command.topic, each.queue_id)
            group.seek(command.topic, each.queue_id, queue, each.offset)
            self._changes.leases.add((group.name, command.topic, each.queue_id))
        return sought

    def would_seek(self, command: commands.SeekGroup) -> GroupSought:
        """Return what `seek` would do, and change nothing.

        Raises:
            UnknownGroup, UnknownTopic: There is none; TopicMadeAnew: another is meant.
            InvalidArgument: A queue is none of the topic's, or ends before the offset.
        """
        topic, queues = self._topics.named(command.topic), self._topics.queues(command.topic)
        if topic.generation != command.generation:
            raise TopicMadeAnew(topic.name)
        for queue_id, offset in command.offsets:
            if not 0 <= queue_id < len(queues):
                raise InvalidArgument(
                    f"topic {topic.name!r} has queues 0 to {len(queues) - 1}: {queue_id}"
                )
            if not 0 <= offset <= queues[queue_id].end:
                raise InvalidArgument(
                    f"queue {queue_id} of topic {topic.name!r} ends at offset "
                    f"{queues[queue_id].end}: {offset}"
                )
        group = self._group(command.group)
        sought = []
        for queue_id, offset in command.offsets:
            queue, deliveries = queues[queue_id], group.peek(topic.name, queue_id)
            before, to = group.position(topic.name, queue_id, queue), max(offset, queue.first)
            sought.append(
                SoughtQueue(queue_id, before, to, len(deliveries.leases) if deliveries else 0)
            )
        return GroupSought(tuple(sought))

    def expire(self, command: commands.ExpireGroups) -> GroupsExpired:
        """Delete the groups that have not been used for long.

        Raises:
            InvalidArgument: *before_ms* is later than the log's own time.
        """
        if command.before_ms > self.active_ms:
            raise InvalidArgument(f"it is {self.active_ms}, before {command.before_ms}")
        gone = self._unused(command.before_ms)
        for name in gone:
            self._own(name).leave()
            del self._groups[name]
        self._changes.groups_gone.update(gone)
        return GroupsExpired(len(gone))

    def any_unused(self, before_ms: int) -> bool:
        """Whether `expire` would delete a group."""
        return bool(self._unused(before_ms))

    def _unused(self, before_ms: int) -> list[str]:
        lived_ms = self._time.lived_ms
        return [g.name for g in self._groups.values() if g.is_unused(before_ms, lived_ms)]

    def drop_before_first_offsets(self) -> None:
        """Forget deliveries of messages that their queues do not keep any longer."""
        for name, group in list(self._groups.items()):
            for topic, queue_id, deliveries in group.all_deliveries():
                self._drop_before_first(name, topic, queue_id, deliveries)

    def drop_before_first_offset(self, topic: str, queue_id: int) -> None:
        """Forget the deliveries of messages that one queue does not keep any longer."""
        for name, group in list(self._groups.items()):
            if (deliveries := group.peek(topic, queue_id)) is not None:
                self._drop_before_first(name, topic, queue_id, deliveries)

    def _drop_before_first(
        self, group: str, topic: str, queue_id: int, deliveries: HeldLeases
    ) -> None:
        queue = self._topics.queue(topic, queue_id)
        if deliveries.reaches_below(queue.first):
            own = self._own(group).deliveries(topic, queue_id, queue)
            if own.drop_before(queue.first):
                self._changes.leases.add((group, topic, queue_id))

    def _used(self, name: str) -> ConsumerGroup:
        """Return a group, to be changed, and mark it as used."""
        group = self._own(name)
        group.used_ms = self.active_ms
        return group

    def _own(self, name: str) -> ConsumerGroup:
        """Return a group, to be changed."""
        group = self._group(name)
        if group.edition != self._edition.number:
            group = self._groups[name] = group.copy(self._edition.number)
        return group

    def _group(self, name: str) -> ConsumerGroup:
        group = self._groups.get(name)
        if group is None:
            raise UnknownGroup(name)
        return group

    def _peek(self, group: str, topic: str, queue_id: int) -> HeldLeases | None:
        found = self._groups.get(group)
        return found.peek(topic, queue_id) if found else None

    def freeze(self) -> Encoded:
        """Return a function that encodes the present state; it may be called from any thread."""
        groups = list(self._groups.values())
        times = self._active.encoded() + self._filters_active.encoded()
        return partial(_encoded, times, self._receives, groups)

    def read(self, source: Reader) -> None:
        """Read everything from a snapshot into this empty object. Raises MalformedStateError."""
        self._active.read(source)
        self._filters_active.read(source)
        self._receives = source.number()
        for _ in range(source.number(high=MAX_GROUPS)):
            name = source.text()
            self._groups[name] = ConsumerGroup.read(
                name, source, self._topics.queue, self._room, self.filters_ms
            )

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        groups = [[name, group.canonical()] for name, group in sorted(self._groups.items())]
        times = [self._active.canonical(), self._filters_active.canonical()]
        return [times, self._receives, groups]


def _check_expressions(topic: Topic) -> None:
    if TYPES[topic.type].in_order:
        raise InvalidArgument(
            f"topic {topic.name!r} is FIFO, where an SQL92 filter is not served: filter by tag"
        )


def _stale(lease: LeaseRef) -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        f"the receipt handle for queue {lease.queue_id}, offset "
        f"{lease.offset} is stale: the message was acked or delivered again"
    )


def _encoded(times: bytes, receives: int, groups: list[ConsumerGroup]) -> Iterator[bytes]:
    """Yield the bytes for a snapshot; groups by name."""
    yield times + number(receives)
    yield number(len(groups))
    for group in sorted(groups, key=lambda group: group.name):
        yield text(group.name)
        yield from group.encoded()
