"""A simulated administrator and user of topics and groups that come and go.

It asks once and never again, so it often does not know what came of it. What it is told must fit:
offsets of a topic that is made anew begin at 0 again, none is told twice, and nothing is stored in,
or handed out of, a topic whose end was told before it was asked for.
"""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.broker.commands import (
    Ack,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    LeaseRef,
    Receive,
    SetSecret,
)
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced, Received, TopicCreated, TopicDeleted
from dledger.broker.topics import NORMAL
from dledger_sim.checkers import ViolationError
from dledger_sim.cluster import MS, Cluster
from dledger_sim.producers import Answer

_TOPICS: Final = ("comes-and-goes", "goes-and-comes")
_GROUP: Final = "comes-and-goes"
_EVERY_US: Final = 150 * MS
_BATCH: Final = 3
_SHARE: Final = 0.4


def draws_one(seed: int) -> bool:
    """Whether topics and groups come and go in a run; nothing else of the run depends on it."""
    return Random(f"{seed}/makes").random() < _SHARE


class Maker:
    """One client of a cluster; `stop` it before the cluster is to be quiet."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("maker")
        self._running = False
        self._asked = 0
        self._generations: dict[str, int] = dict.fromkeys(_TOPICS, 1)
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
        self._cluster.clock.after(self._rng.randint(1, _EVERY_US), self._ask)

    def _ask(self) -> None:
        if not self._running:
            return
        self._asked += 1
        topic, over = self._rng.choice(_TOPICS), frozenset(self._over)
        command = self._draw(topic)
        leaders = [one.id for one in self._cluster.leaders()]
        node = self._rng.choice(leaders or list(self._cluster.nodes()))
        self._cluster.ask(node, command, lambda answer: self._answered(topic, answer, over))
        self._again()

    def _draw(self, topic: str) -> bytes:
        some = [self._make(topic), self._take(topic), self._send(topic), self._send(topic)]
        some += [DeleteGroup(name=_GROUP).encode(), CreateGroup(name=_GROUP).encode()]
        some += [SetSecret(secret=self._rng.randbytes(32)).encode()]
        some += [DeleteTopic(name=topic, generation=self._generations[topic]).encode()]
        if self._held:
            held, lease = self._rng.choice(self._held)
            some.append(Ack(group=_GROUP, topic=held, leases=(lease,)).encode())
        return self._rng.choice(some)

    def _make(self, topic: str) -> bytes:
        queues = self._rng.randint(1, 2)
        return CreateTopic(name=topic, type=NORMAL, queues=queues).encode()

    def _take(self, topic: str) -> bytes:
        return Receive(
            group=_GROUP,
            topic=topic,
            queue_id=0,
            any_queue=True,
            limit=_BATCH,
            invisible_ms=self._rng.choice((10, 10_000)),
        ).encode()

    def _send(self, topic: str) -> bytes:
        ids = [f"{self._asked}.{row}" for row in range(self._rng.randint(1, _BATCH))]
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
