"""What SQL92 expressions find in queues: one scan for each (group, queue, expression).

The state has the tags of messages, and not their properties. So what an expression matches is found
by the leader, in the entries, and proposed with the range that was looked at (RECEIVE_AT). All
polls of a group take in turn from one scan: however many there are, a message is evaluated once. A
range in which nothing matches is proposed as well, so that a backlog is passed over for good.

A scan runs ahead of the state by what is proposed and not applied. If such a command comes to
nothing, or a seek has moved the group's offset, the scan begins anew at the state's offset. A
message may then be evaluated again, and none is left out, since a RECEIVE_AT whose range begins
beyond the group's offset delivers nothing new.

Evaluation takes turns with all else: `SLICE` messages at a time, and a quarter of the event loop.
Nothing here is stored. Used by `receiving`, on the leader only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import Receive, ReceiveAt
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.held_leases import MAX_LEASES
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Stretch
from dledger.broker.results import Received
from dledger.broker.topics import TYPES, Topic
from dledger.common.metrics import NodeMetrics
from dledger.errors import OffsetOutOfRange
from dledger.requests.engine import Engine
from dledger.rocketmq.expressions import TAGS, Expression, Properties
from dledger.types import Entry

SLICE: Final = 256
"""Messages that are evaluated before anything else may run."""
MOST_PASSED: Final = 4_096
"""Messages that one command takes or passes over."""
MAX_SCANS: Final = 1_024
"""Scans that are remembered; one that is not looks anew at what is not in the state yet."""
_RESTS: Final = 3
"""How many times as long as it worked the scan of all queues rests."""
_LEAST_REST_S: Final = 0.005

_Key: TypeAlias = tuple[str, str, int, int, str]


@dataclass(eq=False, slots=True)
class _Scan:
    """How far an expression has got in a queue.

    Attributes:
        queue: Its topic, and its number there.
        claimed: What lies before is in a command, or was.
        scanned: What lies before was evaluated.
        found: What matches in [*claimed*, *scanned*).
        again: Messages whose lease has ended that are in a command under way.
        under_way: How many commands are.
        is_lost: Whether a command came to nothing, so *claimed* may be too high.
        turn: Held by who evaluates.
    """

    queue: tuple[str, int]
    claimed: int = 0
    scanned: int = 0
    found: deque[int] = field(default_factory=deque)
    again: set[int] = field(default_factory=set)
    under_way: int = 0
    is_lost: bool = True
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begins_anew(self, position: int) -> bool:
        """Whether what was found ahead of the group's offset, *position*, does not count."""
        return self.is_lost or (position < self.claimed and not self.under_way)

    def follow(self, position: int) -> None:
        """Go on from the group's offset, unless the scan is rightly ahead of it."""
        if self.begins_anew(position) or position > self.scanned:
            self.claimed = self.scanned = position
            self.found.clear()
            self.is_lost = False
        elif position > self.claimed:
            self.claimed = position
            while self.found and self.found[0] < position:
                self.found.popleft()


@dataclass(frozen=True, slots=True)
class Claim:
    """What a poll is to propose; nobody else takes it, until it is settled."""

    command: ReceiveAt
    scan: _Scan


class ExpressionScans:
    """The scans of a node.

    Attributes:
        evaluations: How many messages were evaluated.
    """

    def __init__(self, engine: Engine, metrics: NodeMetrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._scans: OrderedDict[_Key, _Scan] = OrderedDict()
        self._free_s = 0.0
        self._turns = 0
        self.evaluations = 0

    def has_more(self, group: str, topic: Topic, queue_ids: Sequence[int], sql: str) -> bool:
        """Whether anything in these queues was not evaluated or not taken yet."""
        return any(self._queue_has_more(group, topic, each, sql) for each in queue_ids)

    def _queue_has_more(self, group: str, topic: Topic, queue_id: int, sql: str) -> bool:
        queue = self._engine.state.topics.queue(topic.name, queue_id)
        deliveries = self._deliveries(group, topic, queue_id)
        position = self._engine.state.groups.next_offset(group, topic.name, queue_id)
        scan = self._scans.get((group, topic.name, topic.generation, queue_id, sql))
        again = 0 if scan is None else len(scan.again)
        if deliveries is not None:
            if len(deliveries.find_ended(self._lived_ms(), again + 1)) > again:
                return True
            if len(deliveries.leases) >= MAX_LEASES:
                return False
        if scan is None or scan.begins_anew(position):
            return position < queue.end
        return bool(scan.found) or scan.claimed < scan.scanned or scan.scanned < queue.end

    async def claim(self, poll: Receive, topic: Topic, wanted: Expression) -> Claim | None:
        """Evaluate until there is something for a poll; None: there is nothing in its queues.

        Raises:
            UnknownTopic: It is gone.
            DledgerError: An entry cannot be read.
        """
        queues = len(self._engine.state.topics.queues(topic.name))
        queue_ids = [poll.queue_id]
        if poll.any_queue and TYPES[topic.type].highest_first:
            queue_ids = [*range(queues - 1, -1, -1)]
        elif poll.any_queue:  # from another one each time: in one there may be much that is passed
            self._turns += 1
            queue_ids = [(poll.queue_id + self._turns + each) % queues for each in range(queues)]
        for queue_id in queue_ids:
            if self._queue_has_more(poll.group, topic, queue_id, wanted.text):
                claim = await self._claim(poll, topic, queue_id, wanted)
                if claim is not None:
                    return claim
        return None

    async def _claim(
        self, poll: Receive, topic: Topic, queue_id: int, wanted: Expression
    ) -> Claim | None:
        scan = self._scan((poll.group, topic.name, topic.generation, queue_id, wanted.text))
        async with scan.turn:
            scan.follow(self._engine.state.groups.next_offset(poll.group, topic.name, queue_id))
            again, done = await self._look_at_ended(scan, poll, topic, queue_id, wanted)
            room = min(poll.limit - len(again), self._room(poll.group, topic, queue_id))
            start, left = scan.claimed, MOST_PASSED
            while len(scan.found) < room and left > 0:
                queue = self._engine.state.topics.queue(topic.name, queue_id)
                if scan.scanned >= queue.end:
                    break
                left -= await self._evaluate_slice(scan, queue, wanted)
            take = [scan.found.popleft() for _ in range(min(max(room, 0), len(scan.found)))]
            stop = scan.found[0] if scan.found else scan.scanned
            if stop == start and not again and not done:
                return None
            scan.claimed = stop
            scan.again.update(again, done)
            scan.under_way += 1
        command = ReceiveAt(
            group=poll.group,
            topic=topic.name,
            generation=topic.generation,
            queue_id=queue_id,
            sql=wanted.text,
            start=start,
            stop=stop,
            take=tuple(take),
            again=tuple(again),
            done=tuple(done),
            invisible_ms=poll.invisible_ms,
            attempt_id=poll.attempt_id,
            client_id=poll.client_id,
        )
        return Claim(command, scan)

    def repeat(self, poll: Receive, topic: Topic, wanted: Expression) -> ReceiveAt:
        """Return what asks for the messages that a poll's attempt holds, and for no others."""
        return ReceiveAt(
            group=poll.group,
            topic=topic.name,
            generation=topic.generation,
            queue_id=poll.queue_id,
            sql=wanted.text,
            start=0,
            stop=0,
            take=(),
            again=(),
            done=(),
            invisible_ms=poll.invisible_ms,
            attempt_id=poll.attempt_id,
            client_id=poll.client_id,
        )

    def _scan(self, key: _Key) -> _Scan:
        scan = self._scans.get(key)
        if scan is None:
            scan = self._scans[key] = _Scan((key[1], key[3]))
        self._scans.move_to_end(key)
        if len(self._scans) > MAX_SCANS:
            self._scans.popitem(last=False)
        return scan

    def settle(self, claim: Claim, received: Received | None) -> None:
        """Note how a claim's command ended; None: nobody knows, or it was refused.

        Once it is applied, the group's offset is behind its range, or it came to nothing.
        """
        command, scan = claim.command, claim.scan
        scan.under_way -= 1
        scan.again.difference_update(command.again, command.done)
        queue_id, topic = command.queue_id, self._engine.state.topics.get(command.topic)
        if (
            received is None
            or topic is None
            or topic.generation != command.generation
            or self._engine.state.groups.next_offset(command.group, topic.name, queue_id)
            < command.stop
        ):
            scan.is_lost = True

    def _deliveries(self, group: str, topic: Topic, queue_id: int) -> QueueDeliveries | None:
        """Return a group's deliveries of a queue; a FIFO topic has none that anybody scans for."""
        found = self._engine.state.groups.peek(group, topic.name, queue_id)
        return found if isinstance(found, QueueDeliveries) else None

    def _room(self, group: str, topic: Topic, queue_id: int) -> int:
        """Return how many messages of a queue the group may get before others are acked."""
        deliveries = self._deliveries(group, topic, queue_id)
        return MAX_LEASES - (0 if deliveries is None else len(deliveries.leases))

    async def _look_at_ended(
        self, scan: _Scan, poll: Receive, topic: Topic, queue_id: int, wanted: Expression
    ) -> tuple[list[int], list[int]]:
        """Return messages whose lease has ended that match, and those that do not."""
        deliveries = self._deliveries(poll.group, topic, queue_id)
        if deliveries is None:
            return [], []
        ended = deliveries.find_ended(self._lived_ms(), poll.limit + len(scan.again))
        queue = self._engine.state.topics.queue(topic.name, queue_id)
        asked = [each for each in ended if each not in scan.again][: poll.limit]
        there = sorted(filter(queue.has, asked))
        stretches = [Stretch(each, 1, *_place(queue, each)) for each in there]
        matching = set(await self._matching(stretches, wanted))
        return (
            [each for each in asked if each in matching],
            [each for each in asked if each not in matching],
        )

    async def _evaluate_slice(self, scan: _Scan, queue: ConsumeQueue, wanted: Expression) -> int:
        """Evaluate the next messages of a queue; return how many, at least one."""
        stretches = list(_first(queue.stretches(max(scan.scanned, queue.first)), SLICE))
        count, stop = sum(each.length for each in stretches), queue.end
        if count == SLICE:
            stop = stretches[-1].first + stretches[-1].length
        try:
            found = await self._matching(stretches, wanted)
        except OffsetOutOfRange:  # retention was faster: the queue begins behind it now
            if self._engine.state.topics.queue(*scan.queue).first <= scan.scanned:
                raise
            found, stop = [], scan.scanned
        scan.found.extend(found)
        scan.scanned = stop
        return max(count, 1)

    async def _matching(self, stretches: Sequence[Stretch], wanted: Expression) -> list[int]:
        """Return the offsets of what matches; rest after it."""
        now_s = asyncio.get_running_loop().time
        found: list[int] = []
        entry: Entry | None = None
        worked_s = 0.0
        for each in stretches:
            if entry is None or entry.index != each.entry:
                entry = await self._engine.read_entry(each.entry)
            began_s = now_s()
            found += _matches_in(entry, each, wanted)
            worked_s += now_s() - began_s
            self.evaluations += each.length
            self._metrics.filter_evaluated_messages.inc(each.length)
        await self._rest(worked_s)
        return found

    async def _rest(self, worked_s: float) -> None:
        """Leave the event loop to others for a time, that of all scans together."""
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s) + _RESTS * worked_s
        rest_s = self._free_s - now_s
        await asyncio.sleep(rest_s if rest_s >= _LEAST_REST_S else 0)

    def _lived_ms(self) -> int:
        return max(self._engine.lived_ms(), self._engine.state.time.lived_ms)


def _place(queue: ConsumeQueue, offset: int) -> tuple[int, int, int, int]:
    position = queue.locate(offset)
    payload = position.payload
    return position.row, payload.index, payload.start, payload.end


def _first(stretches: Iterable[Stretch], most: int) -> Iterator[Stretch]:
    """Yield the first *most* messages of some slices, at least one."""
    for each in stretches:
        yield each._replace(length=min(each.length, most))
        most -= each.length
        if most <= 0:
            return


def _matches_in(entry: Entry, stretch: Stretch, wanted: Expression) -> list[int]:
    """Return the offsets of what matches in a slice.

    What cannot be read counts: it is handed out, noted and set aside like any other that is broken.
    """
    frame = ProduceFrame(entry.data, stretch.start, stretch.end)
    rows = range(stretch.row, stretch.row + stretch.length)
    try:
        found = frame.properties(rows)
    except MalformedCommandError:
        if stretch.length == 1:
            return [stretch.first]
        alone = [
            stretch._replace(first=stretch.first + place, row=row, length=1)
            for place, row in enumerate(rows)
        ]
        return [offset for one in alone for offset in _matches_in(entry, one, wanted)]
    return [
        offset
        for offset, (tag, properties) in enumerate(found, stretch.first)
        if wanted.matches(_with_tag(tag, properties))
    ]


def _with_tag(tag: str, properties: dict[str, str]) -> Properties:
    """Return what an expression sees of a message: its tag is a property, too."""
    properties.pop(TAGS, None)
    if tag:
        properties[TAGS] = tag
    return properties
