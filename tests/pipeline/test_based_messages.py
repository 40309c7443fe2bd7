"""Messages of a backup that does not begin with entry 1, or has a gap: its bases stand for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.broker.commands import DeleteTopic
from dledger.broker.state import BrokerState
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.logs import based_backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log, place

KEPT_FROM, APPLIED, LAST_BEFORE_GAP = 23, 37, 12


@pytest.fixture(scope="module")
def log() -> Log:
    """Return the log with everything that messages can go through, and one more."""
    log = message_log()
    log.produce("late", topic="prices")
    return log


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(f"file://{tmp_path}/store")


def state(log: Log, applied: int, kept_from: int) -> BrokerState:
    """Return a node's state at an entry, without the messages below another."""
    made = BrokerState()
    for entry in log.entries[:applied]:
        made.apply(entry)
    made.forget_before(kept_from)
    return made


def gapped(store: Store, log: Log, *more: int) -> Manifest:
    """Back up with a gap, the base behind it, and *more* bases."""
    last = len(log.entries)
    bases = [(state(log, applied, KEPT_FROM), KEPT_FROM) for applied in (APPLIED, *more)]
    runs = [(1, LAST_BEFORE_GAP), (KEPT_FROM, last)]
    return based_backup(store, checked_entries(log), runs, bases, size=9)


def read(store: Store, manifest: Manifest, first: int = 1, last: int = 10**6) -> list[Any]:
    """Return the messages of a range of entries."""
    selection = Selection(first_index=first, last_index=last)
    rows = [
        row
        for each in archived_messages(store, manifest, selection)
        for batch in each.read()
        for row in batch.to_pylist()
    ]
    return sorted(({**row, "properties": dict(row["properties"])} for row in rows), key=place)


def expected(log: Log, first: int, last: int = 10**6) -> list[Any]:
    """Return what the broker holds of these entries."""
    return [row for row in consumed(log) if first <= row["index"] <= last]


def test_behind_a_gap_are_the_messages_that_a_restored_node_serves(store: Store, log: Log) -> None:
    """Those that the base refers to and all later ones, with the offsets that they always had."""
    manifest = gapped(store, log)

    found = read(store, manifest)

    assert found == expected(log, KEPT_FROM)
    assert found[0]["queue_offset"] > 0


def test_before_the_gap_are_the_messages_of_the_run_there(store: Store, log: Log) -> None:
    """A last index picks the run; the one that begins with entry 1 needs no base."""
    manifest = gapped(store, log)

    assert read(store, manifest, last=LAST_BEFORE_GAP + 3) == expected(log, 1, LAST_BEFORE_GAP)


@pytest.mark.parametrize(
    ("first", "last"),
    [(1, APPLIED - 4), (APPLIED - 3, APPLIED + 5), (APPLIED + 1, 10**6), (APPLIED + 9, 50)],
)
def test_a_range_is_read_from_the_base_that_suits_it(
    store: Store, log: Log, first: int, last: int
) -> None:
    """Around the base, below all of it, and behind it: places do not depend on the range."""
    manifest = gapped(store, log, APPLIED + 6)

    found = read(store, manifest, first, last)

    assert found == expected(log, max(first, KEPT_FROM), last)


def test_a_later_range_needs_no_older_entries(store: Store, log: Log) -> None:
    """The newest base below the range is used, also where the backup begins with entry 1."""
    bases = [(state(log, applied, 1), 1) for applied in (20, 40)]
    whole = based_backup(store, checked_entries(log), [(1, len(log.entries))], bases, size=10)
    for row in whole.files[:4]:
        (Path(store.url.removeprefix("file://")) / whole.group_id / row.name).unlink()

    assert read(store, whole, 41) == expected(log, 41)


def test_messages_of_a_topic_that_is_deleted_behind_the_base_are_left_out(store: Store) -> None:
    """As they are for every consumer."""
    log = message_log()
    log.append(DeleteTopic(name="prices", generation=2).encode())
    manifest = gapped(store, log)

    found = read(store, manifest)

    assert found == expected(log, KEPT_FROM)
    assert {row["topic"] for row in found} == {"orders"}
