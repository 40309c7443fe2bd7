"""A group with messages that were copied forward comes back with all of them, to any moment."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest

from dledger.broker.state import BrokerState
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.bases import state_on_disk
from dledger_pipeline.archive.current import Chosen, current_ranges
from dledger_pipeline.archive.entry_ranges import on_disk
from dledger_pipeline.archive.queue_offsets import message_ranges, visible_ranges
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.archive.selection import MAX_INDEX
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.errors import CorruptManifest, CorruptObject
from dledger_pipeline.object_store.store import Store
from tests.pipeline.kept_world import KeptWorld, Place
from tests.pipeline.logs import rewrite
from tests.pipeline.test_kept_messages import as_stored, history, newest

NAME = "orders/orders-0"


def check_restored(world: KeptWorld, directory: Path, target_index: int) -> None:
    """Restore up to an entry; check the state that a node has there, and what the disk shows."""
    restore(
        world.store,
        None,
        directory,
        name=NAME,
        target_index=target_index,
        segment_bytes=1 << 14,
    )
    ranges = on_disk(directory)
    state = state_on_disk(directory) or BrokerState()
    for entry in world.log.entries[state.applied_index : target_index]:
        state.apply(entry)
    before = BrokerState()
    for entry in world.log.entries[:target_index]:
        before.apply(entry)
    lowest = state.topics.lowest_held()

    assert state.digest() == before.digest()
    assert lowest is None or (ranges and lowest >= ranges[0].first_index)
    found = shown_on_disk(world, directory, target_index)
    assert found >= world.visible[target_index]
    there = state_on_disk(directory)
    visible = visible_ranges(
        ranges, there, Chosen(frozenset("ab")), last_index=MAX_INDEX, last_ms=MAX_INDEX
    )
    current = {
        (row["topic"], row["key"]): as_stored(row)
        for each in current_ranges(visible)
        for batch in each.read()
        for row in batch.to_pylist()
    }
    assert current == newest(world, target_index)


def shown_on_disk(world: KeptWorld, directory: Path, last_index: int) -> set[Place]:
    """Return what view `messages` shows of a data directory: each message once, as it was."""
    found: set[Place] = set()
    for each in message_ranges(on_disk(directory), state_on_disk(directory)):
        for batch in each.read():
            for row in batch.to_pylist():
                generation = world.topics[last_index][row["topic"]]
                place = (generation, row["queue_id"], row["queue_offset"])
                assert place not in found, "a message is shown twice"
                assert as_stored(row) == world.stored[place]
                found.add(place)
    return found


def published(world: KeptWorld) -> None:
    """Publish the newest backup."""
    assert world.manifest is not None
    world.manifest = catalog.publish(world.store, world.manifest)


def test_what_is_kept_comes_back_between_any_two_copies(tmp_path: Path) -> None:
    """To the end, and before a copy whose message had been copied before: as it was then."""
    world = KeptWorld(7, Store.open(f"file://{tmp_path}/store"))
    world.create()
    for _ in range(6):
        for step in ("produce", "produce", "copy", "copy", "retain", "back_up", "trim"):
            getattr(world, step)()
    published(world)
    assert world.manifest is not None
    verify(world.store, world.manifest.group_id)
    assert world.manifest.first_index > 1
    assert world.state.first_index > world.manifest.first_index

    ends = [at for low, high in world.manifest.restorable() for at in range(low, high + 1)]
    for number, at in enumerate(ends[-12:]):
        check_restored(world, tmp_path / f"{number}", at)


def test_what_a_manifest_says_of_copies_is_checked(tmp_path: Path) -> None:
    """A query that believed a lie would not look for messages; `verify` compares it."""
    world = KeptWorld(1, Store.open(f"file://{tmp_path}/store"))
    world.create()
    for step in ("produce", "move_on", "back_up"):
        getattr(world, step)()
    published(world)
    assert world.manifest is not None
    (row,) = [asdict(base) for base in world.manifest.bases]
    assert row["kept"]

    rewrite(world.store, world.manifest, bases=[{**row, "kept": []}])
    with pytest.raises(CorruptObject, match=r"bases/.* it keeps messages of other queues"):
        verify(world.store, world.manifest.group_id)
    del row["kept"]
    rewrite(world.store, world.manifest, bases=[row])
    with pytest.raises(CorruptManifest, match="a base is"):
        catalog.load(world.store)


@pytest.mark.parametrize("seed", range(8))
def test_any_history_is_restored_to_any_entry(tmp_path: Path, seed: int) -> None:
    """Also where the log on disk begins behind copies that the snapshot on it refers to."""
    world = history(seed, 60, Store.open(f"file://{tmp_path}/store"))
    published(world)
    assert world.manifest is not None

    ends = [at for low, high in world.manifest.restorable() for at in range(low, high + 1)]
    for at in random.Random(seed).sample(ends, min(3, len(ends))):
        check_restored(world, tmp_path / f"{at}", at)
