"""Clients of a simulated group: producers, a prober, and one who makes and deletes topics.

A request and its answer travel the same bad network as everything else. A *producer* retries with
the same ids until a batch is acknowledged; what was is kept for the audit at the end of the run.
A *prober* asks for linearizable reads (Raft thesis 6.4): each must see all that was acknowledged
before it began. A *maker* asks once and never again, so it often does not know what came of it.
What it is told must fit: offsets of a topic that is made anew begin at 0 again, none is told
twice, and nothing is stored in, or handed out of, a topic whose end was told before it was asked
for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from dledger.broker.commands import (
    Ack,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    LeaseRef,
    Receive,
    SetRetention,
    SetSecret,
)
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import DELETES, TOMBSTONE, Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import GroupCreated, Produced, Received, TopicCreated, TopicDeleted
from dledger.broker.topics import NORMAL, Compaction
from dledger.errors import DiskFull, DledgerError, NotLeader, Refused
from dledger.types import NodeId
from dledger_sim.checkers import ViolationError
from dledger_sim.loop import MS, Clock
from dledger_sim.options import Options

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

TOPIC: Final = "simulated"
QUEUES: Final = 3
KEPT: Final = "kept"
"""A topic that keeps its messages for ever, in some runs."""
KEEPER: Final = "keeper"
"""Who sends them, and nobody else."""
KEYS: Final = [
    [key for key in map(str, range(30)) if queue_of_key(key.encode(), QUEUES) == queue_id]
    for queue_id in range(QUEUES)
]
"""Keys of each queue of that topic, if it is compacted."""
_TOMBSTONES: Final = 0.2
_TIMEOUT_US: Final = 600 * MS
_BACK_OFF_US: Final = 60 * MS
_CALM_THINK_MS: Final = 400
"""Without faults a group is fast, and nothing is learnt from keeping it busy."""

Answer = object
"""A result, or the DledgerError that was raised."""


class Service(Protocol):
    """How a client reaches the group."""

    clock: Clock
    calm: bool

    def ask(self, node: NodeId, command: bytes, answer: Callable[[Answer], None]) -> None:
        """Send a command to a node; *answer* may be called later, once, twice or never."""

    def nodes(self) -> Sequence[NodeId]:
        """Return who may be asked."""


@dataclass(slots=True)
class Request:
    """A batch on its way."""

    number: int
    ids: Sequence[str]
    command: bytes
    tries: int = 0
    result: Produced | None = None


@dataclass(slots=True)
class Producer:
    """One client; its ids are its own."""

    name: str
    service: Service
    options: Options
    rng: Random
    acknowledged: list[Request] = field(default_factory=list)
    running: bool = True
    highest_index: int = 0
    topic: str = TOPIC
    has_keys: bool = False
    _leader: NodeId | None = None
    _under_way: int = 0
    _made: int = 0
    _has_topic: bool = False

    def start(self) -> None:
        """Begin to send: there is the topic."""
        self._has_topic = True
        for _ in range(self.options.window):
            self._next()

    @property
    def messages_acknowledged(self) -> int:
        """How many messages were acknowledged so far."""
        return sum(len(request.ids) for request in self.acknowledged)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._under_way

    def stop(self) -> None:
        """Send nothing new; what is on its way goes on."""
        self.running = False

    def resume(self) -> None:
        """Send again, if there is the topic; else `start` comes when there is."""
        self.running = True
        if self._has_topic:
            for _ in range(self.options.window - self._under_way):
                self._next()

    def _next(self) -> None:
        self._under_way += 1
        think_ms = _CALM_THINK_MS if self.service.calm else self.options.think_ms
        delay_us = self.rng.randint(1, think_ms * MS)
        self.service.clock.after(delay_us, self._begin)

    def _begin(self) -> None:
        if not self.running:
            self._under_way -= 1
            return
        self._made += 1
        count = self.rng.randint(1, self.options.batch)
        ids = [f"{self._made}.{row}" for row in range(count)]
        body = b"." * self.rng.randint(1, self.options.body_bytes)
        queue_id = self.rng.randint(-1, QUEUES - 1)
        if self.has_keys:
            queue_id = max(queue_id, 0)
            batch = keyed_batch(ids, body, queue_id, self.rng)
        else:
            batch = Columns(message_ids=ids, bodies=[body] * count, born_at_ms=[0] * count)
        command = encode_produce(batch, client_id=self.name, topic=self.topic, queue_id=queue_id)
        self._try(Request(self._made, ids, command))

    def _try(self, request: Request) -> None:
        if request.result is not None:
            return
        request.tries += 1
        tried = request.tries
        node = self._leader or self.rng.choice(self.service.nodes())
        self.service.ask(node, request.command, lambda got: self._answered(request, tried, got))
        self.service.clock.after(_TIMEOUT_US, lambda: self._given_up(request, tried))

    def _given_up(self, request: Request, tried: int) -> None:
        if request.result is None and request.tries == tried:
            self._leader = None
            self._try(request)

    def _answered(self, request: Request, tried: int, answer: Answer) -> None:
        if isinstance(answer, Produced):
            self._stored(request, answer)
        elif isinstance(answer, Refused):
            raise ViolationError(f"{self.name}'s request {request.number} is refused: {answer}")
        elif request.result is None and request.tries == tried:
            self._leader = answer.leader if isinstance(answer, NotLeader) else None
            delay_us = MS if self._leader else self.rng.randint(MS, _BACK_OFF_US)
            request.tries += 1
            self.service.clock.after(delay_us, lambda: self._try(request))

    def _stored(self, request: Request, result: Produced) -> None:
        if request.result is None:
            request.result = result
            self.acknowledged.append(request)
            self.highest_index = max(self.highest_index, result.index)
            self._under_way -= 1
            if self.running:
                self._next()
        elif _places(request.result) != _places(result):
            raise ViolationError(
                f"{self.name}'s request {request.number} is told {_places(request.result)} "
                f"first and {_places(result)} later"
            )


def _places(result: Produced) -> list[tuple[int, int]]:
    return list(zip(result.queue_ids, result.offsets, strict=True))


def keyed_batch(ids: Sequence[str], body: bytes, queue_id: int, rng: Random) -> Columns:
    """Return messages of a compacted topic, of which some delete their keys."""
    return Columns(
        message_ids=ids,
        bodies=[body] * len(ids),
        born_at_ms=[0] * len(ids),
        keys=[(rng.choice(KEYS[queue_id]),) for _ in ids],
        properties=[{TOMBSTONE: DELETES} if rng.random() < _TOMBSTONES else {} for _ in ids],
    )


def compaction_of(options: Options) -> Compaction:
    """Return how topics are compacted."""
    return Compaction(min_lag_ms=options.lag_ms, tombstone_ms=options.tombstone_ms)


def create_topics(options: Options) -> list[bytes]:
    """Return the commands that make the topic of all producers, and `KEPT` if that is there."""
    made = [CreateTopic(name=TOPIC, type=NORMAL.name, queues=QUEUES).encode()]
    if options.keeps:
        compaction = compaction_of(options) if options.compacts else None
        kept = CreateTopic(name=KEPT, type=NORMAL.name, queues=QUEUES, compaction=compaction)
        made.append(kept.encode())
    if options.keeps and not options.compacts:
        made.append(SetRetention(name=KEPT, hours=0).encode())
    return made


def keeper(service: Service, options: Options, rng: Random) -> Producer:
    """Return a producer of few small messages, which their topic keeps for ever.

    Of more where rounds let them go.
    """
    few = replace(options, window=1, batch=4, think_ms=200, body_bytes=40)
    if options.rounds:
        few = replace(few, window=2, batch=8, think_ms=60)
    return Producer(KEEPER, service, few, rng, topic=KEPT, has_keys=options.compacts)


def is_error(answer: Answer) -> bool:
    """Whether an answer says that something did not happen, or perhaps did not."""
    return isinstance(answer, DledgerError)


_READ_EVERY_US: Final = 250 * MS
_STORM_EVERY_US: Final = 60 * MS


class Prober:
    """Asks whoever believes to lead, each if there are two, for a read index again and again.

    In a storm it has each store a message as well, and more often: a leader that was replaced and
    does not know it has entries that nobody will ever commit.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("reader")
        self._written = 0
        self.answered = 0

    def start(self) -> None:
        """Ask from now on."""
        storms = self._cluster.options.storm and not self._cluster.calm
        every_us = _STORM_EVERY_US if storms else _READ_EVERY_US
        self._cluster.clock.after(self._rng.randint(1, every_us), self._ask)

    def _ask(self) -> None:
        for leader in self._cluster.leaders():
            self._read(leader.id)
            if self._cluster.options.storm and not self._cluster.calm:
                self._write(leader.id)
        self.start()

    def _read(self, leader: NodeId) -> None:
        least = max(producer.highest_index for producer in self._cluster.producers)

        def answered(answer: Answer) -> None:
            if is_error(answer):
                return
            assert isinstance(answer, int), "a read is answered with an index"  # noqa: S101
            self.answered += 1
            if answer < least:
                raise ViolationError(
                    f"a read at {answer} misses entry {least}, acknowledged before it began"
                )

        self._cluster.call(leader, lambda driver: driver.read_index(), answered)

    def _write(self, leader: NodeId) -> None:
        self._written += 1
        batch = Columns(message_ids=[str(self._written)], bodies=[b"."], born_at_ms=[0])
        command = encode_produce(batch, client_id="prober", topic=TOPIC, queue_id=0)
        self._cluster.ask(leader, command, lambda _: None)


_CONSUME_EVERY_US: Final = 50 * MS
_CONSUMERS: Final = "consumers"


class Consumer:
    """Receives and acknowledges what is in the topic, which must work on a full disk, too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("consumer")
        self._has_group = False
        self.received = 0

    def start(self) -> None:
        """Receive from now on, when there is the group."""
        self._again()

    def _again(self) -> None:
        self._cluster.clock.after(self._rng.randint(1, _CONSUME_EVERY_US), self._receive)

    def _receive(self) -> None:
        if not self._has_group:
            self._do(CreateGroup(name=_CONSUMERS).encode())
        self._do(
            Receive(
                group=_CONSUMERS,
                topic=TOPIC,
                queue_id=0,
                any_queue=True,
                limit=_MADE_BATCH,
                invisible_ms=1000,
            ).encode()
        )
        self._again()

    def _do(self, command: bytes) -> None:
        for leader in self._cluster.leaders():
            self._cluster.call(
                leader.id, lambda driver: driver.propose(command, grows=False), self._answered
            )

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, DiskFull) and not self._cluster.lacks_room():
            raise ViolationError(f"a consumer is refused: {answer}")
        self._has_group = self._has_group or isinstance(answer, GroupCreated | Received)
        if isinstance(answer, Received):
            self.received += 1
            leases = tuple(
                LeaseRef(each.queue_id, each.offset, answer.receive_id)
                for each in answer.deliveries
            )
            if leases:
                self._do(Ack(group=_CONSUMERS, topic=TOPIC, leases=leases).encode())


_MADE_TOPICS: Final = ("comes-and-goes", "goes-and-comes")
_MADE_GROUP: Final = "comes-and-goes"
_MAKE_EVERY_US: Final = 150 * MS
_MADE_BATCH: Final = 3


class Maker:
    """One client of a cluster; `stop` it before the cluster is to be quiet."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("maker")
        self._running = False
        self._asked = 0
        self._generations: dict[str, int] = dict.fromkeys(_MADE_TOPICS, 1)
        self._over: set[int] = set()
        self._told: dict[tuple[int, int, int], str] = {}
        self._held: list[tuple[str, LeaseRef]] = []
        self.deleted = 0

    def start(self) -> None:
        """Make and unmake from now on."""
        self._running = True
        self._again()

    def stop(self) -> None:
        """Ask for nothing more."""
        self._running = False

    def _again(self) -> None:
        self._cluster.clock.after(self._rng.randint(1, _MAKE_EVERY_US), self._ask)

    def _ask(self) -> None:
        if not self._running:
            return
        self._asked += 1
        topic, over = self._rng.choice(_MADE_TOPICS), frozenset(self._over)
        command = self._draw(topic)
        leaders = [one.id for one in self._cluster.leaders()]
        node = self._rng.choice(leaders or list(self._cluster.nodes()))
        self._cluster.ask(node, command, lambda answer: self._answered(topic, answer, over))
        self._again()

    def _draw(self, topic: str) -> bytes:
        some = [self._make(topic), self._take(topic), self._send(topic), self._send(topic)]
        some += [DeleteGroup(name=_MADE_GROUP).encode(), CreateGroup(name=_MADE_GROUP).encode()]
        some += [SetSecret(secret=self._rng.randbytes(32)).encode()]
        some += [DeleteTopic(name=topic, generation=self._generations[topic]).encode()]
        if self._held:
            held, lease = self._rng.choice(self._held)
            some.append(Ack(group=_MADE_GROUP, topic=held, leases=(lease,)).encode())
        return self._rng.choice(some)

    def _make(self, topic: str) -> bytes:
        queues = self._rng.randint(1, 2)
        return CreateTopic(name=topic, type=NORMAL.name, queues=queues).encode()

    def _take(self, topic: str) -> bytes:
        return Receive(
            group=_MADE_GROUP,
            topic=topic,
            queue_id=0,
            any_queue=True,
            limit=_MADE_BATCH,
            invisible_ms=self._rng.choice((10, 10_000)),
        ).encode()

    def _send(self, topic: str) -> bytes:
        ids = [f"{self._asked}.{row}" for row in range(self._rng.randint(1, _MADE_BATCH))]
        bodies, times = [b"."] * len(ids), [0] * len(ids)
        batch = Columns(message_ids=ids, bodies=bodies, born_at_ms=times)
        return encode_produce(batch, client_id="maker", topic=topic, queue_id=0)

    def _answered(self, topic: str, answer: Answer, over: frozenset[int]) -> None:
        if isinstance(answer, TopicCreated):
            self._generations[topic] = max(self._generations[topic], answer.topic.generation)
        elif isinstance(answer, TopicDeleted):
            self._over.add(answer.topic.generation)
            self.deleted += 1
        elif isinstance(answer, Produced):
            self._stored(answer, over)
        elif isinstance(answer, Received):
            _check_not_over(answer.generation, over)
            self._held += [
                (topic, LeaseRef(each.queue_id, each.offset, answer.receive_id))
                for each in answer.deliveries
            ]

    def _stored(self, answer: Produced, over: frozenset[int]) -> None:
        _check_not_over(answer.generation, over)
        batch = f"{answer.topic} {answer.index} {list(answer.offsets)}"
        for queue_id, offset in zip(answer.queue_ids, answer.offsets, strict=True):
            place = (answer.generation, queue_id, offset)
            if self._told.setdefault(place, batch) != batch:
                raise ViolationError(f"{place} was told for {self._told[place]} and for {batch}")


def _check_not_over(generation: int, over: frozenset[int]) -> None:
    if generation in over:
        raise ViolationError(f"topic {generation} was deleted before it was asked for, and is used")
