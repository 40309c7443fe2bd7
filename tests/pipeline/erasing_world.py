"""Random histories of compacted topics of which messages are erased, and all backups of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dledger.broker.commands import CreateTopic
from dledger.broker.erase import Erase
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Message
from dledger.broker.results import Erased
from dledger.broker.topics import Compaction
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.object_store.store import Store
from tests.pipeline.kept_world import QUEUES, KeptWorld, Place

STEPS = (
    *("create", "delete", "produce", "produce", "produce", "produce", "erase", "erase"),
    *("copy", "copy", "copy_late", "retain", "back_up", "back_up", "trim"),
)


class ErasingWorld(KeptWorld):
    """As its base; each backup is published, and messages are erased at any time.

    Attributes:
        backups: All that were published, oldest first.
        erased: Each message that an ERASE named after it was stored, with the ERASEs' entries.
    """

    def __init__(self, seed: int, store: Store) -> None:
        super().__init__(seed, store)
        self.backups: list[Manifest] = []
        self.erased: dict[Place, list[int]] = {}

    def create(self) -> None:
        """Make a compacted topic."""
        name = self.rng.choice("ab")
        if self.state.topics.get(name) is None:
            command = CreateTopic(name=name, type="NORMAL", queues=QUEUES, compaction=Compaction())
            self.commit(command.encode())

    def _batch(self) -> tuple[list[Message], int]:
        messages, _ = super()._batch()
        queue_id = queue_of_key(messages[0].keys[0].encode(), QUEUES)
        keys = [k for k in ("k1", "k2", "k3", "k4") if queue_of_key(k.encode(), QUEUES) == queue_id]
        return [replace(each, keys=(self.rng.choice(keys),)) for each in messages], queue_id

    def erase(self) -> None:
        """Erase some of what a queue has, had, or has not come to yet."""
        topics = self.state.topics
        queues = [
            (t, q) for t in topics.all() for q in range(QUEUES) if topics.queue(t.name, q).end
        ]
        if not queues:
            return
        topic, queue_id = self.rng.choice(queues)
        end = topics.queue(topic.name, queue_id).end
        share = self.rng.choice((0.1, 0.5, 1.0))
        offsets = [offset for offset in range(end + 2) if self.rng.random() < share]
        if offsets and offsets[0] < end:
            self._erase(topic.generation, queue_id, offsets)

    def erase_these(self, places: Collection[Place]) -> None:
        """Erase these messages, a queue with a command."""
        for generation, queue_id in sorted({place[:2] for place in places}):
            offsets = sorted(o for *queue, o in places if queue == [generation, queue_id])
            self._erase(generation, queue_id, offsets)

    def _erase(self, generation: int, queue_id: int, offsets: list[int]) -> None:
        named = {(generation, queue_id, offset) for offset in offsets} & self.stored.keys()
        command = Erase(
            generation=generation,
            queue_id=queue_id,
            first_entry=min(self.stored[place].index for place in named),
            offsets=tuple(offsets),
        )
        assert isinstance(self.commit(command.encode()), Erased)
        for place in named:
            self.erased.setdefault(place, []).append(len(self.log.entries))

    def erased_by(self, manifests: Collection[Manifest], *, since: int = 0) -> set[Place]:
        """Return what ERASEs behind entry *since* have erased that one of *manifests* has."""
        return {
            place
            for place, indexes in self.erased.items()
            for index in indexes
            if index > since
            and any(low <= index <= high for each in manifests for low, high in each.runs())
        }

    def back_up(self, *, with_base: bool = False) -> None:
        """As its base, and publish it."""
        before = self.manifest
        super().back_up(with_base=with_base)
        self._publish(before)

    def trim(self) -> None:
        """As its base, and publish it, as `gc` does."""
        before = self.manifest
        super().trim()
        if before is not None and self.manifest is not None and self.manifest != before:
            self.manifest = replace(self.manifest, number=before.number + 1)
        self._publish(before)

    def _publish(self, before: Manifest | None) -> None:
        if self.manifest is not None and self.manifest != before:
            self.manifest = catalog.publish(self.store, self.manifest)
            self.backups.append(self.manifest)


def erasing_history(seed: int, steps: int, store: Store) -> ErasingWorld:
    """Return a world after some random steps, with a backup."""
    world = ErasingWorld(seed, store)
    world.create()
    for _ in range(steps):
        getattr(world, world.rng.choice(STEPS))()
    while not world.backups:
        world.back_up()
    return world
