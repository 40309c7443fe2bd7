"""A filter is its asker's own: what one passes over comes to another that is in use, and is kept.

Random histories of one group against the obvious model (`filters_model`): the same answers, equal
twins from snapshots on the way, and at the end nothing lost to a filter that stayed in use.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dledger.broker import filter_room, kept_messages
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    LeaseRef,
    Release,
    Renew,
    Retain,
    SeekGroup,
    UseFilter,
)
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.filters import tag_codes
from dledger.broker.kept_messages import KeptMessages
from dledger.broker.results import Received
from dledger.broker.state import BrokerState, FrozenState
from tests.broker.filters_model import Filters, Queue, Tags, sorted_tags
from tests.broker.log import Log

_FILTERS: tuple[Tags, ...] = (
    frozenset("a"),
    frozenset("ab"),
    frozenset("c"),
    frozenset("bc"),
    None,
)
_LEASE_MS = 5_000
_HISTORIES = 150
_A_CHANGE = 1 << 48
"""So much higher is the receive id of a handle that ChangeInvisibleDuration answers."""


@dataclass
class _World:
    """The shipped state and the model, which are told the same."""

    seed: int
    log: Log = field(default_factory=Log)
    filters: Filters = field(default_factory=Filters)
    queues: list[Queue] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    owed_from: dict[Tags, list[set[int]]] = field(default_factory=dict)
    acked: list[set[int]] = field(default_factory=list)
    handles: list[tuple[int, int, int]] = field(default_factory=list)
    batches: int = 0
    twins: list[Log] = field(default_factory=list)
    frozen: list[tuple[FrozenState, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.most_runs = self.rng.choice([2, 5, 65_536])
        self.chosen = self.rng.sample(_FILTERS, self.rng.randint(1, 3))
        self.log.create(queues=2)
        self._begin(2)

    def _begin(self, queues: int) -> None:
        self.queues = [Queue(self.most_runs) for _ in range(queues)]
        self.places = [[] for _ in range(queues)]
        self.acked = [set() for _ in range(queues)]
        self.filters, self.owed_from, self.handles = Filters(), {}, []

    @property
    def filters_ms(self) -> int:
        return self.log.state.groups.filters_ms

    # -- what may happen -------------------------------------------------------------------------

    def step(self) -> None:
        self.wait(self.rng.choice([0, 1, 50, 3_000] + [150_000, 700_000] * (self.seed % 3 == 0)))
        kinds = [self.produce] * 7 + [self.receive] * 9 + [self.ack] * 5 + [self.use] * 2
        kinds += [self.change, self.renew, self.release, self.look, self.seek]
        if self.rng.random() < 0.06:
            kinds = [self.retain, self.grow, self.snapshot, self.snapshot, self.make_anew]
        self.rng.choice(kinds)()

    def wait(self, ms: int) -> None:
        self.log.now_ms += ms

    def append(self, command: bytes) -> object:
        (result,) = self.log.append(command)
        for twin in self.twins:
            twin.now_ms = self.log.now_ms
            twin.append(command)
        return result

    def produce(self) -> None:
        queue_id, tag = self.rng.randrange(len(self.queues)), self.rng.choice("abcd")
        count = self.rng.randint(1, 4)
        self.log.produce(*("x" * count), queue_id=queue_id, tag=tag)
        for twin in self.twins:
            twin.now_ms = self.log.now_ms
            twin.produce(*("x" * count), queue_id=queue_id, tag=tag)
        self.batches += 1
        self.queues[queue_id].tags += [tag] * count
        self.queues[queue_id].batches += [self.batches] * count
        self.places[queue_id] += [len(self.log.entries)] * count

    def _use(self, tags: Tags) -> None:
        """The model's part of a use; call it when the command was applied."""
        is_new, gone = self.filters.use(tags, self.filters_ms)
        for queue in self.queues if gone else ():
            queue.end_unnamed(self.filters)
        for each in gone:
            del self.owed_from[each]
        if is_new:
            self.owed_from[tags] = [queue.unreached(tags) for queue in self.queues]

    def use(self) -> None:
        tags = self.rng.choice(self.chosen)
        self.append(UseFilter(group="g", topic="t", tags=sorted_tags(tags)).encode())
        self._use(tags)

    def receive(self, tags: Tags | str = "any", limit: int = 0) -> list[tuple[int, int]]:
        chosen = self.rng.choice(self.chosen) if isinstance(tags, str) else tags
        limit = limit or self.rng.randint(1, 8)
        first, every = self.rng.randrange(len(self.queues)), self.rng.random() < 0.5
        client = self.rng.choice(["", "c", "d"])
        wanted: dict[str, Any] = {"queue_id": first, "any_queue": every, "invisible_ms": _LEASE_MS}
        received = self.log.receive(limit, tags=sorted_tags(chosen), client_id=client, **wanted)
        for twin in self.twins:
            twin.now_ms = self.log.now_ms
            twin.receive(limit, tags=sorted_tags(chosen), client_id=client, **wanted)
        self._use(chosen)
        return self._received(received, chosen, limit, first, every=every, client=client)

    def _received(
        self, received: Received, tags: Tags, limit: int, first: int, *, every: bool, client: str
    ) -> list[tuple[int, int]]:
        """Take from the model as well, and compare."""
        lease = (received.receive_id, self.log.now_ms + _LEASE_MS, client)
        order = [first, *range(first + 1, len(self.queues)), *range(first)]
        expected: list[tuple[int, int]] = []
        for queue_id in order if every else order[:1]:
            if len(expected) < limit:
                taken = self.queues[queue_id].take(
                    self.filters, tags, limit - len(expected), self.log.now_ms, lease
                )
                expected += [(queue_id, offset) for offset in taken]
        got = [(each.queue_id, each.offset) for each in received.deliveries]
        assert got == expected, f"seed {self.seed}"
        for each in received.deliveries:
            held = self.queues[each.queue_id].held[each.offset]
            assert each.attempt == held.attempt, f"seed {self.seed}"
            assert each.offset not in self.acked[each.queue_id], f"seed {self.seed}"
            self.handles.append((each.queue_id, each.offset, received.receive_id))
        return got

    def _handle(self) -> LeaseRef:
        if self.handles and self.rng.random() < 0.9:
            return LeaseRef(*self.rng.choice(self.handles[-30:]))
        return LeaseRef(self.rng.randrange(len(self.queues)), self.rng.randrange(20), 1)

    def ack(self, lease: LeaseRef | None = None) -> bool:
        lease = lease or self._handle()
        result = self.append(Ack(group="g", topic="t", leases=(lease,)).encode())
        if not self._was_read(lease.queue_id):
            return False
        was_held = lease.offset in self.queues[lease.queue_id].held
        expected = self.queues[lease.queue_id].ack(lease.offset, lease.receive_id)
        assert getattr(result, "outcomes", None) == (expected,), f"seed {self.seed}"
        if expected and was_held:
            self.acked[lease.queue_id].add(lease.offset)
        return expected

    def _was_read(self, queue_id: int) -> bool:
        """Whether the group has deliveries of the queue: before, nothing is known of it."""
        return self.deliveries(queue_id) is not None

    def change(self) -> None:
        lease, ms = self._handle(), self.rng.choice([1, 2_000, 60_000])
        command = ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=ms)
        result = self.append(command.encode())
        held = self.queues[lease.queue_id].held.get(lease.offset)
        if held and held.receive_id - lease.receive_id == _A_CHANGE:  # sent again
            assert getattr(result, "receive_id", None) == held.receive_id, f"seed {self.seed}"
            return
        queue = self.queues[lease.queue_id]
        held = queue.set_end(lease.offset, lease.receive_id, self.log.now_ms + ms)
        if held:
            held.receive_id += _A_CHANGE
            held.client_id, held.arrived = "", False
            self.handles.append((lease.queue_id, lease.offset, held.receive_id))

    def renew(self) -> None:
        lease, arrived = self._handle(), self.rng.random() < 0.5
        of: dict[str, Any] = {"group": "g", "topic": "t", "invisible_ms": _LEASE_MS}
        self.append(Renew(leases=(lease,), arrived=arrived, **of).encode())
        queue = self.queues[lease.queue_id]
        held = queue.held.get(lease.offset)
        if held and held.client_id and (arrived or not held.arrived):
            until_ms = self.log.now_ms + _LEASE_MS
            if queue.set_end(lease.offset, lease.receive_id, until_ms):
                held.arrived = arrived

    def release(self) -> None:
        client = self.rng.choice("cd")
        self.append(Release(group="g", client_id=client).encode())
        for queue in self.queues:
            for held in queue.held.values():
                if held.client_id == client:
                    held.until_ms, held.aside = self.log.now_ms, None

    def look(self) -> None:
        """A leader looks, which changes nothing, and says so if a filter can get something."""
        for tags in self.chosen:
            for queue_id, queue in enumerate(self.queues):
                seen = self.available(tags, queue_id)
                gets = queue.can_get(self.filters, tags, self.log.now_ms)
                assert seen > 0 or not gets, f"seed {self.seed}"
                if self._was_read(queue_id) and len(self.filters.used) > 1 and seen:
                    # or it goes on to the bound, and then no look says so again
                    assert gets or queue.runs() < queue.most_runs, f"seed {self.seed}"

    def available(self, tags: Tags, queue_id: int) -> int:
        codes = tag_codes(sorted_tags(tags))
        groups = self.log.state.groups
        return groups.available("g", "t", [queue_id], self.log.now_ms, enough=1, codes=codes)

    def retain(self) -> None:
        index = self.rng.randrange(1, len(self.log.entries) + 1)
        self.append(Retain(before_index=index).encode())
        for queue_id, queue in enumerate(self.queues):
            queue.drop_before(sum(place < index for place in self.places[queue_id]))

    def seek(self) -> None:
        """Go on from anywhere; what was held before is nobody's, and handles of it ack nothing."""
        queue_id = self.rng.randrange(len(self.queues))
        queue = self.queues[queue_id]
        offset = self.rng.randint(0, len(queue.tags))
        command = SeekGroup(
            group="g",
            topic="t",
            generation=self.log.state.topics.named("t").generation,
            offsets=((queue_id, offset),),
        )
        self.append(command.encode())
        queue.seek(offset)
        self.acked[queue_id] = {o for o in self.acked[queue_id] if o < queue.next_offset}
        for unreached in self.owed_from.values():
            unreached[queue_id] = set(range(queue.next_offset))

    def grow(self) -> None:
        queues = len(self.queues) + 1
        if queues <= 4:
            self.append(GrowTopic(name="t", queues=queues).encode())
            self.queues.append(Queue(self.most_runs))
            self.places.append([])
            self.acked.append(set())
            for unreached in self.owed_from.values():
                unreached.append(set())

    def make_anew(self) -> None:
        found = self.log.state.topics.named("t")
        self.append(DeleteTopic(name="t", generation=found.generation).encode())
        self.append(CreateTopic(name="t", type="NORMAL", queues=2).encode())
        self._begin(2)

    def snapshot(self) -> None:
        """Go on from a snapshot, with a twin that goes on from none, and one that is frozen."""
        encoded = self.log.state.encode()
        state = BrokerState.decode(encoded)
        assert state.digest() == self.log.state.digest(), f"seed {self.seed}"
        assert state.groups.kept_bytes == self.log.state.groups.kept_bytes
        self.frozen.append((self.log.state.freeze(), encoded))
        self.twins = [Log(state=state, entries=list(self.log.entries), now_ms=self.log.now_ms)]

    # -- what must be so -------------------------------------------------------------------------

    def deliveries(self, queue_id: int) -> QueueDeliveries | None:
        return self.log.state.groups._peek("g", "t", queue_id)

    def check(self) -> None:
        filters = self.log.state.groups._group("g").filters("t")
        assert {codes for codes, _ in filters or ()} == {
            tag_codes(sorted_tags(tags)) for tags in self.filters.used
        }, f"seed {self.seed}"
        for queue_id, queue in enumerate(self.queues):
            found = self.deliveries(queue_id)
            if found is None:
                continue
            assert found.next_offset == queue.next_offset, f"seed {self.seed}"
            assert found.leases.keys() == queue.held.keys(), f"seed {self.seed}"
            assert found.committed == queue.committed, f"seed {self.seed}"
            kept = found.kept or KeptMessages(filter_room.FilterRoom())
            assert kept.runs == queue.runs(), f"seed {self.seed}"
            assert kept.passed(None) == len(queue.passed), f"seed {self.seed}"

    def drain(self) -> None:
        """Every filter in use gets all that it can, and acknowledges it."""
        self.wait(60_001)
        more = True
        while more:
            more = False
            for tags in list(self.filters.used):
                for queue_id, offset in self.receive(tags, 8):
                    more = True
                    receive_id = self.queues[queue_id].held[offset].receive_id
                    assert self.ack(LeaseRef(queue_id, offset, receive_id))
                more = more or any(
                    queue.can_get(self.filters, tags, self.log.now_ms) for queue in self.queues
                )

    def lost(self) -> list[tuple[Tags, int, int]]:
        """Return what a filter in use names, could have got since it came, and nobody did."""
        return [
            (tags, queue_id, offset)
            for tags, unreached in self.owed_from.items()
            for queue_id, queue in enumerate(self.queues)
            for offset in range(queue.first, len(queue.tags))
            if (tags is None or queue.tags[offset] in tags)
            and offset not in unreached[queue_id] | self.acked[queue_id]
        ]


def _run(seed: int, steps: int = 60) -> _World:
    with pytest.MonkeyPatch.context() as patch:
        world = _World(seed)
        patch.setattr(kept_messages, "MAX_KEPT_RUNS", world.most_runs)
        for _ in range(steps):
            world.step()
            world.check()
        world.drain()
        world.check()
        assert world.lost() == [], f"seed {seed}"
        kept = [world.deliveries(queue_id) for queue_id in range(len(world.queues))]
        assert not any(found and found.kept for found in kept), f"seed {seed}"
        assert world.log.state.groups.kept_bytes == 0, f"seed {seed}"
        for twin in world.twins:
            assert twin.state.digest() == world.log.state.digest(), f"seed {seed}"
            assert twin.state.encode() == world.log.state.encode(), f"seed {seed}"
        for frozen, encoded in world.frozen:
            assert frozen.encode() == encoded, f"seed {seed}"
        return world


def _all_run(seeds: Iterable[int]) -> None:
    for seed in seeds:
        _run(seed)


def test_nothing_is_lost_to_a_filter_in_use_whatever_happens() -> None:
    """Receives, late acks, redeliveries, retention, deletion, growth, snapshots: as the model."""
    _all_run(range(_HISTORIES))


@pytest.mark.long
def test_nothing_is_lost_to_a_filter_in_use_in_1500_histories() -> None:
    """As above, with the seeds that follow."""
    _all_run(range(_HISTORIES, _HISTORIES + 1_500))
