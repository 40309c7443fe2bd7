"""Who erases keys of compacted topics, who reads them, and who makes and deletes one.

An *eraser* asks until all of a key is erased that was there when it began; from then on nobody is
shown any of it (`compacted`). A *reader* of a group lets most of its leases lapse, so that messages
go that it holds. A *maker* stores messages in a compacted topic that comes and goes, so that rounds
tell of one that is gone, or that was made anew.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from dledger.broker.commands import Ack, CreateGroup, CreateTopic, DeleteTopic, LeaseRef, Receive
from dledger.broker.produce import encode_produce
from dledger.broker.results import Received, TopicCreated
from dledger.broker.topics import NORMAL
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError
from dledger.services.erasing import Eraser, Erasing, Wanted
from dledger_sim.clients import KEPT, KEYS, QUEUES, compaction_of, keyed_batch
from dledger_sim.loop import MS
from dledger_sim.process import Process, engine_of
from dledger_sim.rounds import Caller

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

_METRICS: Final = NodeMetrics("simulated", "simulated")
PASSING: Final = "passing"
"""A compacted topic that comes and goes."""
_READERS: Final = "readers"
_PAUSE_US: Final = 200 * MS
_DELETES: Final = 0.1
_ACKS: Final = 0.3
_INVISIBLE_MS: Final = (10, 300, 10_000)
_BATCH: Final = 3
_MOST_TRIES: Final = 30


class Erasers(Caller):
    """All three."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "erasers")
        self._erasers: dict[tuple[str, int], Eraser] = {}
        self._generation = 0
        self._made = 0

    def start(self) -> None:
        """Begin from now on."""
        self.begin(self._erase, self._read, self._make)

    # -- erasing -----------------------------------------------------------------------------------

    async def _erase(self) -> None:
        """Erase a key, in as many calls as it takes, or give up."""
        topic = self.rng.choice((KEPT, KEPT, KEPT, PASSING))
        queue_id = self.rng.randrange(QUEUES)
        wanted = Wanted(topic=topic, key=self.rng.choice(KEYS[queue_id]))
        compacted = self.cluster.compacted
        generation, end = compacted.end_of(topic, queue_id)  # all of that was there when it began
        for _ in range(_MOST_TRIES):
            try:
                done = await self.ask(partial(self._serve, wanted))
            except DledgerError:
                await self.sleep(1, _PAUSE_US)
                continue
            assert isinstance(done, Erasing), "it was to erase"  # noqa: S101
            if done.next >= done.end:
                least = end if done.generation == generation else 0
                end = max(done.end, least)
                compacted.check_erased(done.generation, queue_id, wanted.key, end)
                return
            wanted = Wanted(
                topic=topic,
                key=wanted.key,
                generation=done.generation,
                first=done.next,
                end=done.end,
            )

    async def _serve(self, wanted: Wanted, process: Process) -> Erasing:
        """Do it at a node, whose callers come one after the other."""
        life = process.id, process.lives
        if life not in self._erasers:
            self._erasers[life] = Eraser(engine_of(process), _METRICS)
        return await self._erasers[life].erase(wanted)

    # -- reading -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Receive some messages, and acknowledge some of these."""
        got = await self._do(
            Receive(
                group=_READERS,
                topic=KEPT,
                queue_id=0,
                any_queue=True,
                limit=self.rng.choice((1, 8, 32)),
                invisible_ms=self.rng.choice(_INVISIBLE_MS),
            ).encode()
        )
        if not isinstance(got, Received):
            await self._do(CreateGroup(name=_READERS).encode())
            return
        leases = tuple(
            LeaseRef(each.queue_id, each.offset, got.receive_id)
            for each in got.deliveries
            if self.rng.random() < _ACKS
        )
        if leases:
            await self._do(Ack(group=_READERS, topic=KEPT, leases=leases).encode())

    # -- a topic that comes and goes ---------------------------------------------------------------

    async def _make(self) -> None:
        """Store a few messages, or delete the topic; it is made when there is none."""
        if self.rng.random() < _DELETES:
            await self._do(DeleteTopic(name=PASSING, generation=self._generation).encode())
            return
        self._made += 1
        ids = [f"{self._made}.{row}" for row in range(self.rng.randint(1, _BATCH))]
        queue_id = self.rng.randrange(QUEUES)
        batch = keyed_batch(ids, b".", queue_id, self.rng)
        command = encode_produce(batch, client_id="passing", topic=PASSING, queue_id=queue_id)
        if await self._do(command, grows=True) is None:
            made = await self._do(
                CreateTopic(
                    name=PASSING,
                    type=NORMAL.name,
                    queues=QUEUES,
                    compaction=compaction_of(self.cluster.options),
                ).encode()
            )
            if isinstance(made, TopicCreated):
                self._generation = made.topic.generation

    async def _do(self, command: bytes, *, grows: bool = False) -> object | None:
        """Have a command committed, asking once; None if it was not, as far as is known."""
        try:
            return await self.ask(lambda process: process.driver.propose(command, grows=grows))
        except DledgerError:
            return None
