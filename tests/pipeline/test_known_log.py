"""What a key ever had is found, wherever a backup may still show it; what is erased then is."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.erase import MAX_OFFSETS, Erase
from dledger.errors import NewerCommand
from dledger_pipeline.archive.erasable import commands, distinct, without_erased
from dledger_pipeline.archive.erased import Erased
from dledger_pipeline.archive.known_log import KnownLog, archived_log
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.selection import MAX_INDEX, Selection
from dledger_pipeline.log.erase_rows import rows_of
from dledger_pipeline.log.key_hits import HIT_SCHEMA, NOT_PLACED, find_hits, place_hits
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from tests.pipeline.entry_batches import entry_batch
from tests.pipeline.erasing_world import ErasingWorld, erasing_history
from tests.pipeline.kept_world import Place
from tests.pipeline.logs import GROUP_ID
from tests.pipeline.test_erased import (
    a_world,
    data_entry,
    ends_of,
    opened,
    places_in,
    restored,
    state_of,
)
from tests.pipeline.test_kept_messages import shown

_HISTORIES = int(os.environ.get("ERASED_HISTORIES", "6"))
_WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
TOPIC, KEY = "a", "k1"


def found_in(log: KnownLog) -> np.ndarray:
    """Return what a log has of the key, as `distinct` does."""
    tables = [
        pa.Table.from_batches(each.read(), HIT_SCHEMA)
        for each in log.ranges(TOPIC, KEY, bytes_per_s=0)
    ]
    return distinct(log.place(pa.concat_tables(tables)), MAX_INDEX)


def places_of(found: np.ndarray) -> set[Place]:
    """Return the places of what was found."""
    return {(topic, queue_id, offset) for topic, queue_id, offset, _ in found.tolist()}


def of_key(world: ErasingWorld) -> set[Place]:
    """Return all messages that the key ever had."""
    return {p for p, one in world.stored.items() if (one.topic, one.keys) == (TOPIC, (KEY,))}


def back_up_all(world: ErasingWorld) -> None:
    """Back up all that there is."""
    while not world.backups or world.backups[-1].last_index < len(world.log.entries):
        world.back_up()


def shown_of_key(world: ErasingWorld, manifest: Manifest, directory: Path) -> set[Place]:
    """Return what any view of a backup, and groups restored from it, show of the key."""
    rng = random.Random(manifest.number)
    found = set(shown(world, manifest, Selection()))
    for at in ends_of(manifest, rng, 1):
        to = directory / f"{manifest.number}-{at}"
        restored(world, to, at, manifest.number)
        found |= places_in(state_of(to))
    return found & of_key(world)


@settings(max_examples=_HISTORIES, deadline=None, phases=_WITHOUT_SHRINKING)
@given(st.integers(0, 1 << 32), st.integers(20, 80))
def test_whatever_a_backup_shows_of_a_key_is_found_and_erased(seed: int, steps: int) -> None:
    """Copied, let go, of a deleted topic, told by no node, in a backup that was trimmed since."""
    with tempfile.TemporaryDirectory() as directory:
        world = erasing_history(seed, steps, opened(f"{directory}/store"))
        back_up_all(world)
        log = archived_log(world.store, GROUP_ID)
        found = found_in(log)

        for *place, stored_in in found.tolist():
            assert world.stored[tuple(place)].index == stored_in
        assert places_of(found) <= of_key(world)
        chosen = random.Random(seed).sample(world.backups, min(2, len(world.backups)))
        for manifest in chosen:
            there = shown_of_key(world, manifest, Path(directory) / "before")
            assert there <= places_of(found)

        for each in commands(without_erased(found, log.read_erased())):
            command = Erase(
                generation=each.generation,
                queue_id=each.queue_id,
                offsets=each.offsets,
                first_entry=each.first_entry,
            )
            world.commit(command.encode())
        back_up_all(world)
        for manifest in (*chosen, world.backups[-1]):
            assert not shown_of_key(world, manifest, Path(directory) / "after")
        again = archived_log(world.store, GROUP_ID)
        assert not len(without_erased(found_in(again), again.read_erased()))


def test_what_the_newest_backup_has_no_more_is_found_in_an_older_one(tmp_path: Path) -> None:
    """It can be queried and restored until gc deletes it, a day after it was replaced."""
    world = a_world(opened(tmp_path))
    world.back_up(with_base=True)
    before = len(world.backups)
    world.move_on()
    world.back_up(with_base=True)
    world.log.now_ms += 1000
    world.back_up(with_base=True)
    world.trim()
    newest = world.backups[-1]

    log = archived_log(world.store, GROUP_ID)

    assert len(world.backups) > before
    assert newest.first_index > 1
    assert log.files[0].first_index == 1
    names = [row.name for row in log.files]
    assert len(names) == len(set(names))


# -- in entries ------------------------------------------------------------------------------------


def test_a_send_that_stored_nothing_has_no_place(tmp_path: Path) -> None:
    """What repeats another send lies in the log: no view shows it, unless it had no id."""
    world = a_world(opened(tmp_path))
    again = world.log.entries[min(one.index for one in world.stored.values()) - 1]
    world.commit(again.data)
    anew = world.visible[-1] - world.visible[-2]
    assert len(anew) < sum(one.index == again.index for one in world.stored.values())
    back_up_all(world)
    log = archived_log(world.store, GROUP_ID)

    found: dict[Place, int] = {}
    for topic, key in sorted(
        {(one.topic, key) for one in world.stored.values() for key in one.keys}
    ):
        hits = [
            pa.Table.from_batches(each.read(), HIT_SCHEMA)
            for each in log.ranges(topic, key, bytes_per_s=0)
        ]
        rows = distinct(log.place(pa.concat_tables(hits)), MAX_INDEX).tolist()
        found.update({(generation, queue_id, o): index for generation, queue_id, o, index in rows})

    stored = {place: one.index for place, one in world.stored.items()}
    assert found == stored | dict.fromkeys(anew, len(world.log.entries))


def test_what_a_newer_version_wrote_is_not_passed_over() -> None:
    """It may be a message of the key."""
    newer = frame(CommandType.PRODUCE, b"\xff" + b" k1 ".ljust(60))

    with pytest.raises(NewerCommand, match="entry 9 is of a newer version"):
        find_hits(entry_batch([data_entry(9, newer)]), TOPIC, KEY)
    assert not find_hits(entry_batch([data_entry(9, newer)]), TOPIC, "k2").num_rows


def hits_of(*rows: tuple[int, ...]) -> pa.Table:
    """Return hits."""
    return pa.Table.from_pylist(
        [dict(zip(HIT_SCHEMA.names, row, strict=True)) for row in rows], HIT_SCHEMA
    )


def test_a_hit_is_placed_by_its_row_in_its_payload() -> None:
    """Not by that of a neighbour, nor twice; what a copy said of itself stays."""
    places = pa.RecordBatch.from_pylist(
        [
            dict(zip(QUEUE_SLICE_SCHEMA.names, row, strict=True))
            for row in ((5, 9, 90, 4, 2, 1, 30, 7), (5, 9, 90, 0, 3, 0, 10, 7))
        ],
        QUEUE_SLICE_SCHEMA,
    )
    hits = hits_of(
        *((5, 9, row, NOT_PLACED, 0, 0, 5) for row in range(7)),
        (5, 8, 0, NOT_PLACED, 0, 0, 5),
        (6, 9, 0, NOT_PLACED, 0, 0, 6),
        (5, 9, 1, 2, 1, 77, 3),
    )

    found = place_hits(hits, places)

    places_found = [tuple(row.values())[3:6] for row in found.to_pylist()]
    nowhere = (NOT_PLACED, 0, 0)
    assert places_found == [
        *((7, 0, 10), (7, 0, 11), (7, 0, 12), nowhere, (7, 1, 30), (7, 1, 31), nowhere),
        *(nowhere, nowhere, (2, 1, 77)),
    ]


# -- what is left to be named ----------------------------------------------------------------------


def test_only_what_no_erase_means_is_named() -> None:
    """One that came before, or says that it means what was stored later, does not mean it."""
    messages = np.array([[1, 0, offset, 10] for offset in range(4)] + [[2, 0, 0, 10]])
    erased = Erased.of(
        rows_of(
            [
                (11, 1, Erase(generation=1, queue_id=0, first_entry=10, offsets=(0,))),
                (9, 1, Erase(generation=1, queue_id=0, first_entry=1, offsets=(1,))),
                (11, 1, Erase(generation=1, queue_id=0, first_entry=11, offsets=(2,))),
            ]
        )
    )

    left = without_erased(messages, erased)

    assert left.tolist() == [[1, 0, 1, 10], [1, 0, 2, 10], [1, 0, 3, 10], [2, 0, 0, 10]]
    assert not len(without_erased(messages[:0], erased))


def test_commands_are_of_one_queue_and_bounded() -> None:
    """Each says the lowest entry of its own messages."""
    many = [[1, 0, offset, 100 + offset] for offset in range(MAX_OFFSETS + 2)]
    messages = np.array([*many, [1, 1, 5, 3], [2, 0, 6, 4]])

    found = [*commands(messages)]

    assert [(each.generation, each.queue_id, len(each.offsets)) for each in found] == [
        (1, 0, MAX_OFFSETS),
        (1, 0, 2),
        (1, 1, 1),
        (2, 0, 1),
    ]
    assert [each.first_entry for each in found] == [100, 100 + MAX_OFFSETS, 3, 4]
