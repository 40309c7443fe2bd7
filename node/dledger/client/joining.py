"""Joins single records of many callers into batches: those that wait while others are under way.

The records to one queue of a topic have a *lane*. At most `UNDER_WAY` of a lane's batches are
unanswered at a time; what comes meanwhile is one batch, up to its limits. Nothing lingers: a record
that finds the lane free is sent at once, alone. Used by `append_stream`.

A record joins only if a node would take it, by the same rules (`joinable`). So what a node can
still refuse a whole batch for is what its records have in common, such as the topic.

In a compacted topic the keys choose the queue, in a FIFO topic the message groups, in one of type
PRIORITY the priorities, and a batch is of one. A producer learns that, and how many queues there
are, from the node that refuses its first batch of several; that batch is taken apart. From then on
each queue has its lane, as if each record had asked for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from typing import Final

from dledger.broker.message import Columns
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.broker.queue_choice import queue_of_record
from dledger.checks.messages import check_record
from dledger.checks.names import is_client_id, is_name
from dledger.client.message_ids import MessageIds
from dledger.client.unanswered import Batch, Call
from dledger.common.limits import MAX_BODY_BYTES, MAX_MESSAGES, MAX_REQUEST_BYTES
from dledger.errors import Refused
from dledger.types import Record

UNDER_WAY: Final = 4
"""Batches of one lane that are unanswered at once: some are synced while the next is on its way."""
_QUEUE_IDS: Final = range(NO_QUEUE, 1 << 31)
_ROW_BYTES: Final = 64
"""What a record takes in a batch beside its texts and its body, about, with an id made up."""


def joinable(record: Record | bytes) -> Record | bytes | None:
    """Return a record that may share a batch, or None.

    None is the answer for what a node would refuse, and for what cannot be encoded: such a record
    goes alone, so that it fails by itself. What its caller may still change is copied.
    """
    if type(record) is bytes:
        return record if 0 < len(record) <= MAX_BODY_BYTES else None
    if not isinstance(record, Record) or type(record.body) is not bytes:
        return None
    try:
        check_record(record)
        return replace(
            record,
            keys=tuple(record.keys),
            properties=dict(record.properties),
            born_at_ms=index(record.born_at_ms),
        )
    except (Refused, AttributeError, TypeError, ValueError):
        return None


def _is_text(text: str) -> bool:
    """Whether UTF-8 can encode it, which it cannot if it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def size_of(record: Record | bytes) -> int:
    """Return what a record takes in a batch, about."""
    if isinstance(record, bytes):
        return len(record) + _ROW_BYTES
    group = "" if record.typed is None else record.typed.message_group
    texts = (record.message_id, record.tag, group, *record.keys)
    pairs = sum(len(name) + len(value) for name, value in record.properties.items())
    return len(record.body) + _ROW_BYTES + sum(map(len, texts)) + pairs


def columns_of(given: Sequence[Record | bytes], ids: MessageIds) -> Columns:
    """Return a batch as columns; records without an id get one of *ids*."""
    made_up = ids.take(len(given))
    bodies = [record for record in given if isinstance(record, bytes)]
    if len(bodies) == len(given):
        return Columns(message_ids=made_up, bodies=bodies, born_at_ms=[0] * len(bodies))
    batch = [Record(body=r) if isinstance(r, bytes) else r for r in given]
    return Columns(
        message_ids=[r.message_id or made_up[row] for row, r in enumerate(batch)],
        bodies=[record.body for record in batch],
        born_at_ms=[record.born_at_ms for record in batch],
        tags=[record.tag for record in batch],
        keys=[record.keys for record in batch],
        properties=[record.properties for record in batch],
        typed=[r.typed for r in batch] if any(r.typed for r in batch) else (),
    )


def encode(batch: Batch, ids: MessageIds, client_id: str) -> None:
    """Give a batch of single records its command: none joins it any more."""
    records = [call.record for call in batch.calls if call.record is not None]
    columns = columns_of(records, ids)
    batch.message_ids = columns.message_ids
    batch.made_up = not any(isinstance(each, Record) and each.message_id for each in records)
    batch.command = encode_produce(
        columns, client_id=client_id, topic=batch.topic, queue_id=batch.queue_id
    )


def taken_apart(batch: Batch, ids: MessageIds, client_id: str) -> list[Batch]:
    """Return its records in batches of their own, with the ids that they have."""
    parts = []
    for call, message_id in zip(batch.calls, batch.message_ids, strict=True):
        one = call.record
        record = Record(body=one) if isinstance(one, bytes) else one
        if record is not None:
            call.record = replace(record, message_id=message_id)
        part = Batch(batch.topic, batch.queue_id, lane=batch.lane)
        part.add(call)
        encode(part, ids, client_id)
        parts.append(part)
    return parts


class _Lane:
    """The single records to one queue of a topic.

    Attributes:
        newest: The batch that the next record joins, if it still may.
        held: Batches that wait until fewer are under way.
        under_way: Batches that are released and not answered.
    """

    __slots__ = ("held", "newest", "under_way")

    def __init__(self) -> None:
        self.newest: Batch | None = None
        self.held: deque[Batch] = deque()
        self.under_way = 0


class Lanes:
    """All lanes of a stream.

    Args:
        client_id: Who sends; an id that nodes refuse has no lanes.
        release: Takes a batch that may be sent, in order. Records may join it until it is encoded.
        max_bytes: The limit of a batch that more than one record is in.
    """

    def __init__(self, client_id: str, release: Callable[[Batch], None], *, max_bytes: int) -> None:
        self._release, self._max_bytes = release, min(max_bytes, MAX_REQUEST_BYTES)
        self._topics: dict[str, dict[int, _Lane]] = {}
        self._own_queues: dict[str, int] = {}
        self._has_scope = is_client_id(client_id) and _is_text(client_id)

    def has_lane(self, topic: str, queue_id: int) -> bool:
        """Whether what all records of a lane have in common is what nodes may take."""
        return (
            self._has_scope
            and isinstance(queue_id, int)
            and (
                (topic in self._topics and queue_id in self._topics[topic])
                or (is_name(topic) and queue_id in _QUEUE_IDS)
            )
        )

    def add(self, call: Call) -> None:
        """Let a single record join what waits in its lane, or begin a batch."""
        number = self._number_of(call)
        lane = self._lane(call.topic, number)
        newest = lane.newest
        if newest is None or not self._has_room(newest, call):
            newest = lane.newest = Batch(call.topic, max(number, NO_QUEUE), lane=number)
            lane.held.append(newest)
        newest.add(call)
        if lane.held and lane.under_way < UNDER_WAY:
            self._release_one(lane)

    def learn(self, topic: str, queues: int) -> None:
        """Note that a topic chooses the queues and has so many, as a node says."""
        self._own_queues[topic] = queues

    def _number_of(self, call: Call) -> int:
        """Return the number of the lane that a record goes to.

        It is the queue that it asks for, `NO_QUEUE`, or below that one for each queue that a topic
        chooses: such a batch names no queue, as its topic may be another one by now.
        """
        queues, record = self._own_queues.get(call.topic), call.record
        if queues is None or not isinstance(record, Record):
            return call.queue_id
        chosen = queue_of_record(record, queues)
        if chosen is None:
            return call.queue_id
        return NO_QUEUE - 1 - chosen if call.queue_id in {NO_QUEUE, chosen} else call.queue_id

    def close(self, topic: str, queue_id: int) -> None:
        """Release all that must be stored before something else that goes to a queue."""
        for number, lane in self._topics.get(topic, {}).items():
            if number == queue_id or min(number, queue_id) <= NO_QUEUE:
                self._close(lane)

    def left(self, batch: Batch, parts: int = 0) -> None:
        """Note that a released batch is answered, or was replaced by its *parts*."""
        lanes, number = self._topics[batch.topic], batch.lane
        if number is None:
            raise AssertionError(f"batch {batch.id} is of no lane")
        lane = lanes[number]
        lane.under_way += parts - 1
        if lane.newest is batch:
            lane.newest = None
        if lane.held:
            if lane.under_way < UNDER_WAY:
                self._release_one(lane)
        elif not lane.under_way:
            del lanes[number]
            if not lanes:
                del self._topics[batch.topic]

    def drained(self) -> list[Batch]:
        """Release nothing more; return all batches that were held."""
        lanes = [lane for of_topic in self._topics.values() for lane in of_topic.values()]
        held = [batch for lane in lanes for batch in lane.held]
        for lane in lanes:
            lane.under_way += len(lane.held)
            lane.held.clear()
            lane.newest = None
        return held

    def _lane(self, topic: str, queue_id: int) -> _Lane:
        """Return the lane to a queue.

        What goes to no queue in particular may come to any, so it keeps its order with all.
        """
        lanes = self._topics.setdefault(topic, {})
        if NO_QUEUE in lanes if queue_id != NO_QUEUE else len(lanes) > (NO_QUEUE in lanes):
            for number, lane in lanes.items():
                if number != queue_id and NO_QUEUE in {number, queue_id}:
                    self._close(lane)
        found = lanes.get(queue_id)
        if found is None:
            found = lanes[queue_id] = _Lane()
        return found

    def _close(self, lane: _Lane) -> None:
        lane.newest = None
        while lane.held:
            self._release_one(lane)

    def _has_room(self, batch: Batch, call: Call) -> bool:
        return (
            not batch.command
            and batch.count < MAX_MESSAGES
            and batch.size_bytes + call.size_bytes <= self._max_bytes
        )

    def _release_one(self, lane: _Lane) -> None:
        lane.under_way += 1
        self._release(lane.held.popleft())
