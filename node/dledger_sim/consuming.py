"""Who sends to topics of every type, and two consumer groups that read all of them, and seek.

One group seeks, gives up on messages and has few attempts; the other only consumes. What they are
given is held against `consumed`; in a healed group both come to the end of everything, and a node
has just what the model has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateGroup,
    CreateTopic,
    GrowTopic,
    LeaseRef,
    PauseHeld,
    Receive,
    ResumeHeld,
    SeekGroup,
    SetGroup,
    SetRetention,
)
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns
from dledger.broker.priorities import queue_of_priority
from dledger.broker.produce import encode_produce
from dledger.broker.redelivery import DEFAULT, Retries, dead_letter_topic
from dledger.broker.results import GroupSought, Received
from dledger.broker.topics import FIFO, NORMAL, PRIORITY
from dledger.checks.names import DEAD_LETTERS
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError, NotLeader, Refused
from dledger.requests.places import Place, Places
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq.dead_letters import DeadLetters
from dledger.types import Typed
from dledger_sim.asking import Asker, propose
from dledger_sim.audit import ids_stored
from dledger_sim.checkers import ViolationError
from dledger_sim.halves import HALVES
from dledger_sim.loop import MS, S
from dledger_sim.process import START_MS, Process, engine_of
from dledger_sim.timed import TIMED

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

PLAIN: Final = "plain"
ORDERED: Final = "ordered"
URGENT: Final = "urgent"
SEEKING: Final = "seeking"
STEADY: Final = "steady"
TOPICS: Final = (PLAIN, ORDERED, URGENT, TIMED, HALVES, *map(dead_letter_topic, (SEEKING, STEADY)))
_METRICS: Final = NodeMetrics("simulated", "consuming")
_QUEUES: Final = 2
_MOST_QUEUES: Final = 4
_GROUPS: Final = 5
_PRIORITIES: Final = 5
_BATCH: Final = 3
_LIMIT: Final = 4
_SENDERS: Final = 2
_CONSUMERS: Final = 6
_DISTURBERS: Final = 4
_ATTEMPTS: Final = 3
_RESUMED_S: Final = 30
_CONSUMED_S: Final = 90
_RETRIES: Final = Retries(_ATTEMPTS, (200,))


class Consuming(Asker):
    """All of them."""

    def __init__(self, cluster: Cluster) -> None:
        made = (
            CreateTopic(name=PLAIN, type=NORMAL.name, queues=_QUEUES),
            CreateTopic(name=ORDERED, type=FIFO.name, queues=_QUEUES),
            CreateTopic(name=URGENT, type=PRIORITY.name, queues=_QUEUES),
            CreateGroup(name=SEEKING),
            CreateGroup(name=STEADY),
            SetGroup(name=SEEKING, retries=_RETRIES),
        )
        super().__init__(cluster, "consuming", *(each.encode() for each in made))
        self._sent = self._asked = self._pauses = 0
        self._handed: list[tuple[str, str, LeaseRef]] = []
        self._is_draining = False
        cluster.consumed.watched.update(TOPICS)

    def start(self) -> None:
        """Send, consume and seek from now on."""
        self._is_draining = False
        self.begin(
            *[self._send] * _SENDERS,
            *[self._consume] * _CONSUMERS,
            *[self._disturb] * _DISTURBERS,
        )

    # -- sending -----------------------------------------------------------------------------------

    async def _send(self) -> None:
        self._sent += 1
        if self._is_draining:
            return
        topic = self.rng.choice((PLAIN, ORDERED, URGENT))
        ids = [f"{self._sent}.{row}" for row in range(self.rng.randint(1, _BATCH))]
        group = f"group {self.rng.randrange(_GROUPS)}"
        typed = {
            PLAIN: Typed(),
            ORDERED: Typed(message_group=group),
            URGENT: Typed(priority=self.rng.randrange(_PRIORITIES)),
        }[topic]
        is_wrong = topic == ORDERED and self.rng.random() < 0.1

        async def send(process: Process) -> object:
            queues = process.state.broker.topics.named(topic).queues
            queue_id = {
                PLAIN: -1,
                ORDERED: (queue_of_key(group.encode(), queues) + is_wrong) % queues,
                URGENT: queue_of_priority(typed.priority, queues),
            }[topic]
            count = len(ids)
            batch = Columns(
                message_ids=ids,
                bodies=[b"."] * count,
                born_at_ms=[0] * count,
                typed=[typed] * count,
            )
            command = encode_produce(batch, client_id="sender", topic=topic, queue_id=queue_id)
            return await propose(process, command=command, grows=True)

        if not is_wrong:
            await self.have(send)
            return
        try:
            await self.find(send)
        except DledgerError:
            return

    # -- consuming ---------------------------------------------------------------------------------

    async def _consume(self) -> None:
        self._asked += 1
        group, topic = self._what()
        for _ in range(self.rng.choice((1, 1, 2))):  # again, as who did not hear the answer
            received = await self._receive(group, topic, attempt_id=f"{self._asked}")
        if received is None:
            return
        refs = [
            LeaseRef(each.queue_id, each.offset, received.receive_id)
            for each in received.deliveries
        ]
        draws = ("ack", "part", "change", "", "") if group == SEEKING else ("ack", "ack", "part")
        what = "ack" if self._is_draining else self.rng.choice(draws)
        if what == "change" and refs:
            await self._change(group, topic, refs[-1])
        self._handed += [(group, topic, each) for each in refs[1:]] if what == "part" else []
        done = {"ack": refs, "part": refs[:1]}.get(what, ())
        if done:
            await self.sleep(1, 200 * MS)
            await self.commit(
                Ack(group=group, topic=topic, leases=tuple(done)).encode(), grows=False
            )

    def _what(self) -> tuple[str, str]:
        """Return whose turn it is to read which topic: in the end, of those that are not done."""
        if self._is_draining and (
            left := sorted({each[:2] for each in self.cluster.consumed.undone()})
        ):
            return self.rng.choice(left)
        there = sorted(self.cluster.consumed.topics) or TOPICS
        return self.rng.choice((SEEKING, SEEKING, STEADY)), self.rng.choice(there)

    async def _receive(self, group: str, topic: str, *, attempt_id: str) -> Received | None:
        command = Receive(
            group=group,
            topic=topic,
            queue_id=self.rng.randrange(_QUEUES) if topic in (PLAIN, ORDERED, URGENT) else 0,
            any_queue=topic == URGENT or self.rng.random() < 0.8,
            limit=self.rng.randint(1, _LIMIT),
            invisible_ms=2_000 if self._is_draining else self.rng.choice((100, 300, 2_000)),
            attempt_id=attempt_id,
        )

        async def receive(process: Process) -> object:
            return await _receive_at(process, command)

        try:
            received = await self.find(receive)
        except Refused:
            await self._make()
            return None
        except DledgerError:
            await self.sleep(1, 300 * MS)
            return None
        return received if isinstance(received, Received) else None

    async def _change(self, group: str, topic: str, lease: LeaseRef) -> None:
        command = ChangeInvisible(
            group=group,
            topic=topic,
            lease=lease,
            invisible_ms=self.rng.choice((1, 500)),
            suspend=self.rng.random() < 0.3,
        )
        await self._try(command.encode(), grows=False)

    # -- what disturbs them ------------------------------------------------------------------------

    async def _disturb(self) -> None:
        """Seek, acknowledge late, grow a topic, set a group, or pause what is held."""
        await self.sleep(1, S // 2)
        if self._is_draining:
            await self._resume(cancels=False)
            return
        await self.rng.choice(
            (self._seek, self._seek, self._seek, self._ack_late, self._set, self._pause)
        )()

    async def _seek(self) -> None:
        topic, kind = (
            self.rng.choice(TOPICS),
            self.rng.choice(("oldest", "newest", "time", "time", "offset")),
        )
        back_ms, part = self.rng.randint(-500, 6_000), self.rng.random()

        async def seek(process: Process) -> object:
            """Seek as `services.group_admin` does."""
            engine = engine_of(process)
            places, topics = Places(engine), process.state.broker.topics
            await places.settle()
            found, log_ms = topics.named(topic), process.state.broker.time.log_ms
            offsets = []
            for queue_id in range(found.queues):
                end = topics.queue(topic, queue_id).end
                stored_ms = self._time_in(topic, queue_id, part) or log_ms - back_ms
                place = {
                    "oldest": Place(),
                    "newest": Place(at_end=True),
                    "time": Place(stored_ms=max(stored_ms, START_MS)),
                    "offset": Place(offset=round(part * end)),
                }[kind]
                offset = await places.offset(found, queue_id, place)
                self._check_place(process, topic, queue_id, place, offset)
                offsets.append((queue_id, offset))
            command = SeekGroup(
                group=SEEKING, topic=topic, generation=found.generation, offsets=tuple(offsets)
            )
            return await process.driver.propose(command.encode(), grows=False)

        sought = await self.have(seek)
        if not isinstance(sought, GroupSought | None):
            raise ViolationError(f"a seek is answered with {sought}")

    def _time_in(self, topic: str, queue_id: int, part: float) -> int:
        """Return just when some message of a queue was stored, in every other case; else 0."""
        plain = self.cluster.consumed.topics.get(topic)
        queue = plain.queues[queue_id] if plain is not None else ()
        return queue[int(part * len(queue))].stored_ms if queue and self.rng.random() < 0.5 else 0

    def _check_place(
        self, process: Process, topic: str, queue_id: int, place: Place, offset: int
    ) -> None:
        """Check where a leader finds a place that people name."""
        plain = self.cluster.consumed.topics.get(topic)
        if plain is None or place.offset is not None:
            return
        applied = process.state.broker.applied_index
        known = [each for each in plain.queues[queue_id] if each.entry <= applied]
        first = process.state.broker.topics.queue(topic, queue_id).first
        right = first if place.stored_ms is None else plain.stored_from(queue_id, place.stored_ms)
        right = len(known) if place.at_end else min(max(right, first), len(known))
        if offset != right:
            raise ViolationError(f"{place} of {topic} is at {offset} of {queue_id}, not {right}")

    async def _ack_late(self) -> None:
        """Acknowledge what was handed out some time ago, or before a seek."""
        if self._handed:
            group, topic, lease = self._handed.pop(self.rng.randrange(len(self._handed)))
            await self._try(Ack(group=group, topic=topic, leases=(lease,)).encode(), grows=False)

    async def _set(self) -> None:
        some = [
            GrowTopic(name=URGENT, queues=self.rng.randint(_QUEUES, _MOST_QUEUES)).encode(),
            GrowTopic(name=ORDERED, queues=_QUEUES + 1).encode(),
            SetGroup(name=STEADY, retries=DEFAULT).encode(),
            SetRetention(name=self.rng.choice((PLAIN, ORDERED)), hours=0).encode(),
        ]
        await self._try(self.rng.choice(some), grows=False)

    async def _pause(self) -> None:
        """Let all that is held wait for a word, as a restored log does; and give it."""
        self._pauses += 1
        await self.commit(PauseHeld(pause_id=f"{self._pauses}").encode(), grows=False)
        await self.sleep(1, S)
        await self._resume(cancels=self.rng.random() < 0.3)

    async def _resume(self, *, cancels: bool) -> None:
        if self._is_paused() or cancels:
            await self.commit(ResumeHeld(cancels=cancels).encode(), grows=False)

    def _is_paused(self) -> bool:
        return any(one.state.broker.held.is_paused for one in self.cluster.up())

    async def _try(self, command: bytes, *, grows: bool) -> None:
        """Have a command committed once, or not."""
        try:
            await self.find(partial(propose, command=command, grows=grows))
        except DledgerError:
            await self.sleep(1, 300 * MS)

    # -- in the end --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Send and disturb nothing any more; demand that nothing waits for a word."""
        self._is_draining = True
        self.cluster.within(
            _RESUMED_S, lambda: not self._is_paused(), "what is held waits for a word"
        )

    def drain(self) -> None:
        """Demand that both groups come to the end of all that is kept."""
        consumed, newest = self.cluster.consumed, -1

        def all_done() -> bool:
            nonlocal newest
            if newest == consumed.newest:
                return False
            newest = consumed.newest
            return next(consumed.undone(), None) is None

        self.cluster.within(_CONSUMED_S, all_done, "groups do not get all that is kept")
        self.stop()

    def audit(self, processes: Sequence[Process]) -> None:
        """Compare a node with the model."""
        broker = processes[0].state.broker
        for name, plain in self.cluster.consumed.topics.items():
            stored = list(ids_stored(processes, name))
            known: list[str] = []
            for queue_id in range(broker.topics.named(name).queues):
                queue, model = broker.topics.queue(name, queue_id), plain.queues[queue_id]
                first = plain.firsts[queue_id]
                if (queue.first, queue.end) != (first, len(model)):
                    raise ViolationError(f"{name} has {queue} of {queue_id}, not {first}")
                known += [each.id for each in model[first:]]
            if stored != known:
                raise ViolationError(f"{name} has {stored}, and not {known}")


async def _receive_at(process: Process, command: Receive) -> object:
    """Receive as a poll does: only what there is, and what is spent becomes a dead letter."""
    engine, groups = engine_of(process), process.state.broker.groups
    if not engine.is_leader():
        raise NotLeader(process.driver.core.leader)
    topic = process.state.broker.topics.get(command.topic)
    if topic is None and command.topic.startswith(DEAD_LETTERS):
        return None
    queues = process.state.broker.topics.named(command.topic).queues
    queue_ids = range(queues) if command.any_queue else [command.queue_id]
    there = groups.available(
        command.group, command.topic, queue_ids, engine.lived_ms(), enough=command.limit
    )
    if not there and not groups.holds_attempt(command.group, command.topic, command.attempt_id):
        return None
    received = await process.driver.propose(command.encode(), grows=False)
    if isinstance(received, Received) and received.spent:
        broken = UnreadableMessages("simulated", _METRICS.broken_messages)
        letters = DeadLetters(engine, cast("Any", None), broken=broken, metrics=_METRICS)
        topic = process.state.broker.topics.named(command.topic)
        letters.begin(command.group, topic, received.spent)
    return received
