"""Applies the commands on held messages: PRODUCE_HELD, RELEASE_HELD, CANCEL_HELD, and others.

Nothing is decided here that a leader could not decide twice: which messages are named is in the
command, and one that is held no longer is passed over. So when two leaders propose the same, each
message is delivered once. Owned by `state`, which routes commands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dledger.broker.commands import CancelHeld, CheckHeld, PauseHeld, ResumeHeld
from dledger.broker.deduplication import DeduplicationWindow
from dledger.broker.held_bucket import Place
from dledger.broker.held_commands import ProduceHeld, ReleaseHeld, What
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import HELD_QUEUE, Fate, Kind
from dledger.broker.lived_time import LivedTime
from dledger.broker.open_halves import OpenHalf
from dledger.broker.produce import NO_QUEUE
from dledger.broker.queue_positions import Payload
from dledger.broker.replayed_lanes import ReplayedLanes
from dledger.broker.results import (
    HeldCancelled,
    HeldChecked,
    HeldMoved,
    HeldPaused,
    HeldReleased,
    HeldResumed,
    Produced,
)
from dledger.broker.retries import Rows
from dledger.broker.topic_store import TopicStore
from dledger.errors import InvalidArgument


class Holding:
    """What applies them, to *held* and to the queues of *topics*."""

    def __init__(
        self,
        held: HeldMessages,
        topics: TopicStore,
        dedupe: DeduplicationWindow,
        lanes: ReplayedLanes,
        time: LivedTime,
    ) -> None:
        self._held, self._topics = held, topics
        self._dedupe, self._lanes, self._time = dedupe, lanes, time

    def produce(self, command: ProduceHeld, index: int) -> Produced:
        """Hold the new messages of a command in entry *index*.

        The result names `HELD_QUEUE`, and as offsets what the messages are called, packed; what
        was sent before has the same, also when it was delivered or cancelled since.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: It is compacted, or has no such queue.
            LimitReached: Too many messages are held, or too many halves have no end.
            MalformedCommandError: A column that is needed here is malformed.
        """
        batch = command.batch
        topic = self._topics.named(batch.topic)
        if topic.compaction is not None:
            raise InvalidArgument(f"topic {topic.name!r} is compacted: nothing is held for it")
        if batch.queue_id != NO_QUEUE:
            self._topics.queue(batch.topic, batch.queue_id)
        batch.tags()
        log_ms, mark = self._time.log_ms, batch.replay
        replayed = 0 if mark is None else mark.count_known(self._lanes.last(mark.key), batch.count)
        rows = self._rows(command, replayed)
        self._held.pass_to(log_ms)
        hours = [self._held.hour_of(command.due_ms[row], log_ms) for row in rows.new]
        self._held.check_room(hours)
        if command.kind is Kind.HALF:
            self._held.open_halves.check_room(topic.generation, len(hours))
        if batch.has_ids:
            self._dedupe.heard(batch.client_id, batch.topic, log_ms)
        self._hold(command, index, topic.generation, rows, hours)
        # As in `TopicStore.replay`.
        done = rows.conflicts[0] if rows.conflicts else batch.count
        if mark is not None and done:
            whose = batch.topic, batch.client_id
            last, lived_ms = mark.first + done - 1, self._time.lived_ms
            self._lanes.advance(mark.key, last, whose=whose, lived_ms=lived_ms)
        queue_ids, offsets = zip(*rows.positions(), strict=True)
        return Produced(
            topic=batch.topic,
            queue_ids=queue_ids,
            offsets=offsets,
            index=index if rows.new else 0,
            generation=topic.generation,
            stored=len(rows.new),
            repeats=rows.repeats,
            conflicts=rows.conflicts,
        )

    def _rows(self, command: ProduceHeld, replayed: int) -> Rows:
        """Sort the messages of a command into new ones, repeats, and conflicts."""
        batch = command.batch
        scope, ids, known = (batch.client_id, batch.topic), batch.message_ids(), None
        if batch.has_ids and not self._dedupe.is_new(*scope, batch.ids()):
            known = [self._dedupe.find(*scope, each) for each in ids]
        due_ms = command.due_ms if command.kind is Kind.TIMER else ()
        return Rows(ids, batch.body_digests(due_ms), known or [None] * batch.count, replayed)

    def _hold(
        self, command: ProduceHeld, index: int, generation: int, rows: Rows, hours: Sequence[int]
    ) -> None:
        """Hold the new rows, and remember the ids of those that follow each other together."""
        batch, digests = command.batch, rows.digests
        size_bytes = (command.end - command.inner) // batch.count
        for some, hour in _stretches(rows, hours):
            refs = [
                self._held.add(
                    hour,
                    command.due_ms[row],
                    Place(index, command.inner, command.end, row),
                    generation=generation,
                    kind=command.kind,
                    size_bytes=size_bytes,
                )
                for row in some
            ]
            for row, ref in zip(some, refs, strict=True):
                rows.stored(row, HELD_QUEUE, ref.number)
                if command.kind is Kind.HALF:
                    half = OpenHalf(generation, self._time.log_ms, 0, command.due_ms[row])
                    self._held.open_halves.add(ref, half)
            if rows.ids[some[0]]:
                self._dedupe.remember(
                    batch.client_id,
                    batch.topic,
                    tuple(rows.ids[some.start : some.stop]),
                    digests[some.start : some.stop],
                    queue_id=HELD_QUEUE,
                    first=refs[0].number,
                )

    def release(self, command: ReleaseHeld, index: int) -> HeldReleased | HeldMoved:
        """Deliver, or move, those messages of a command in entry *index* that are still held.

        Delivering takes them away and appends them in one step, so each is appended once. Where
        their topic is gone they are cancelled.

        Raises:
            InvalidArgument: The topic does not have the requested queue. Nothing is changed.
            MalformedCommandError: A tag is malformed; likewise.
        """
        batch, payload = command.batch, Payload(index, command.inner, command.end)
        self._held.pass_to(self._time.log_ms)
        if command.what is What.MOVE:
            return HeldMoved(self._held.move(command.refs, payload))
        topic = self._topics.get(batch.topic)
        is_there = topic is not None and topic.generation == command.generation
        if is_there:
            batch.tags()
            if batch.queue_id != NO_QUEUE:
                self._topics.queue(batch.topic, batch.queue_id)
        fate = Fate.DELIVERED if is_there else Fate.CANCELLED
        before = tuple(self._held.remove(ref, fate) for ref in command.refs)
        rows = [row for row, each in enumerate(before) if each is Fate.HELD]
        stored = self._topics.append_released(batch, payload, rows) if is_there and rows else None
        return HeldReleased(before=before, stored=stored)

    def cancel(self, command: CancelHeld) -> HeldCancelled:
        """Hold messages no longer, which nobody gets then; the result says what each was before."""
        self._held.pass_to(self._time.log_ms)
        return HeldCancelled(tuple(self._held.remove(ref, Fate.CANCELLED) for ref in command.refs))

    def pause(self, command: PauseHeld) -> HeldPaused:
        """Let what is held wait for a word, once for each pause."""
        return HeldPaused(self._held.pause(command.pause_id))

    def resume(self, command: ResumeHeld) -> HeldResumed:
        """Let what waits go on, or cancel it."""
        self._held.pass_to(self._time.log_ms)
        return HeldResumed(self._held.resume(cancels=command.cancels))

    def check(self, command: CheckHeld) -> HeldChecked:
        """Count a check of halves, those that have no end."""
        halves = self._held.open_halves
        return HeldChecked(tuple(halves.check(ref, command.next_ms) for ref in command.refs))


def _stretches(rows: Rows, hours: Sequence[int]) -> Iterator[tuple[range, int]]:
    """Yield consecutive new rows of one hour that all have an id, or none: their slots follow."""
    new, ids, start = rows.new, rows.ids, 0
    for at in range(1, len(new) + 1):
        if (
            at == len(new)
            or new[at] != new[at - 1] + 1
            or hours[at] != hours[start]
            or bool(ids[new[at]]) != bool(ids[new[start]])
        ):
            yield range(new[start], new[at - 1] + 1), hours[start]
            start = at
