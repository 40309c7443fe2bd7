"""Places from a node to a backup, and what becomes of them there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic, DeleteTopic, SetRetention
from dledger.broker.rekeep import Kept
from dledger.rpc.pb import dledger_pb2 as pb
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.places_objects import exported_places
from dledger_pipeline.archive.repair import rebuilt
from dledger_pipeline.archive.topics import MAX_GONE, SeenTopics, Topics
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.errors import CorruptObject, ExportError, ForeignGroup, RangeNotAvailable
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.log.export_client import ExportClient, _exported_places
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.export_server import export_server
from tests.pipeline.live_group import LiveGroup
from tests.pipeline.logs import GROUP_ID, data_directory, flip
from tests.pipeline.message_logs import checked_entries, consumed, message_log, rows
from tests.pipeline.placing import Run, placed_backup, state_at, told

OTHER_ID = "00000000-1111-2222-3333-444444444444"


@pytest.fixture(scope="module")
def log() -> Log:
    """Return a log with everything that messages can go through, and a topic that is gone."""
    log = message_log()
    log.append(CreateTopic(name="gone", type="NORMAL", queues=1).encode())
    log.produce("gone", topic="gone")
    log.append(DeleteTopic(name="gone", generation=3).encode())
    log.produce("late", topic="prices")
    return log


@pytest.fixture(scope="module")
def directory(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a node with this log."""
    return data_directory(tmp_path_factory.mktemp("node") / "data", checked_entries(log))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(f"file://{tmp_path}/store")


# -- a node --------------------------------------------------------------------------------------


def test_a_node_tells_places_and_topics(log: Log, directory: Path) -> None:
    """Of the entries that are asked for, by the state that it has."""
    last = len(log.entries)
    with export_server(directory, state=log.state) as address, ExportClient(address) as client:
        whole = client.places(GROUP_ID, 1, last)
        part = client.places(GROUP_ID, 10, 20, with_topics=True)
        none = client.places(GROUP_ID, last + 1, last, with_topics=True)

    assert whole.places == told(log.state, 1, last)
    assert sum(whole.places.column("rows").to_pylist()) == len(consumed(log))
    assert {10, 20} >= {min(part.places.column("index").to_pylist())}
    assert (whole.topics, part.topics) == ({}, {1: "orders", 2: "prices"})
    assert (none.places.num_rows, none.topics_made, none.applied_index) == (0, 3, last)


def test_what_a_node_cannot_tell_is_refused(log: Log, directory: Path) -> None:
    """Another group's, what is not committed, what its state does not reach, no range."""
    last = len(log.entries)
    behind = state_at(log.entries, last - 1)
    with export_server(directory, state=behind) as address, ExportClient(address) as client:
        with pytest.raises(ForeignGroup):
            client.places(OTHER_ID, 1, last - 1)
        with pytest.raises(RangeNotAvailable, match=f"{last + 5} is outside"):
            client.places(GROUP_ID, 1, last + 5)
        with pytest.raises(RangeNotAvailable, match=f"{last} is outside"):
            client.places(GROUP_ID, 1, last)
        with pytest.raises(ExportError, match="is not a range"):
            client.places(GROUP_ID, 9, 5)


def test_a_node_that_dropped_messages_says_from_where_on_it_has_them(
    log: Log, directory: Path
) -> None:
    """So nobody takes its places for all of them."""
    dropped = state_at(log.entries, len(log.entries), kept_from=15)
    with export_server(directory, state=dropped) as address, ExportClient(address) as client:
        found = client.places(GROUP_ID, 1, 30)

    assert found.kept_from == 15
    assert min(found.places.column("index").to_pylist()) >= 15


def test_a_node_that_copied_messages_says_from_where_on_it_has_all(tmp_path: Path) -> None:
    """Those that it copied, or let go with that, are not told: which they were depends on when."""
    log = Log()
    log.create()
    log.append(SetRetention(name="t", hours=0).encode())
    stored = [log.produce(f"{n}", ids=(f"{n}",)).index for n in range(4)]
    log.append(Kept(topic="t", generation=1, queue_id=0, first=0, to=2).encode())
    directory = data_directory(tmp_path / "data", checked_entries(log))
    with export_server(directory, state=log.state) as address, ExportClient(address) as client:
        found = client.places(GROUP_ID, 1, len(log.entries))
        later = exported_places([address], GROUP_ID, stored[2], len(log.entries))
        early = exported_places([address], GROUP_ID, stored[1], len(log.entries))

    assert found.kept_from == stored[1] + 1
    assert found.places.column("index").to_pylist() == stored[2:]
    assert later is not None
    assert early is None


def _queue(**changed: Any) -> pb.QueuePlaces:
    one: dict[str, Any] = {
        "generation": 1, "queue_id": 0, "end_offset": 3, "first_offsets": bytes(8),
        "indexes": (5).to_bytes(8, "little"), "starts": bytes(4),
        "ends": (60).to_bytes(4, "little"), "rows": bytes(4),
    }  # fmt: skip
    return pb.QueuePlaces(**one | changed)


_STATE = pb.PlacesState(kept_from=1, applied_index=9, topics_made=2)


@pytest.mark.parametrize(
    ("queues", "state"),
    [
        ([_queue(indexes=b"")], _STATE),
        ([_queue(starts=b"123")], _STATE),
        ([_queue(end_offset=0)], _STATE),
        ([_queue(end_offset=-5)], _STATE),
        ([_queue(queue_id=-1)], _STATE),
        ([_queue(generation=0)], _STATE),
        ([_queue(indexes=(10).to_bytes(8, "little"))], _STATE),
        ([_queue(ends=bytes(4))], _STATE),
        ([_queue(first_offsets=b"\xff" * 8, end_offset=(1 << 63) - 1)], _STATE),
        ([_queue(), _queue(queue_id=1)], _STATE),
        ([_queue()], pb.PlacesState(kept_from=1, applied_index=8, topics_made=2)),
        ([_queue()], pb.PlacesState(kept_from=-1, applied_index=9, topics_made=2)),
        ([], pb.PlacesState(applied_index=9, topics=[pb.PlacesTopic(name="t", generation=1)])),
        (
            [],
            pb.PlacesState(
                applied_index=9, topics_made=1, topics=[pb.PlacesTopic(name="/", generation=1)]
            ),
        ),
    ],
)
def test_what_no_node_can_have_is_not_believed(
    queues: list[pb.QueuePlaces], state: pb.PlacesState
) -> None:
    """Cut short, negative, overlapping, of other entries, of no topic."""
    with pytest.raises(ExportError):
        _exported_places("node", queues, state, 1, 9)


# -- a backup ------------------------------------------------------------------------------------


def run(store: Store, address: str) -> tuple[Manifest, list[str]]:
    """Back up what a node has; return the manifest and what was said."""
    said: list[str] = []
    request = BackupRequest(
        endpoints=(address,), store=store, target_bytes=4 << 10, master="local[1]"
    )
    backup(request, Progress("backup", said.append))
    return catalog.load(store, GROUP_ID), said


@pytest.fixture(scope="module")
def backed_up(
    log: Log, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, Manifest]]:
    """Return a store with a backup that has places."""
    store = Store.open(f"file://{tmp_path_factory.mktemp('backed-up')}")
    with export_server(directory, state=log.state) as address:
        yield store, run(store, address)[0]


def test_a_backup_knows_where_messages_are(log: Log, backed_up: tuple[Store, Manifest]) -> None:
    """Every object has places, the manifest has topics, and verify reads all of it."""
    store, manifest = backed_up

    assert len(manifest.files) > 3
    assert all(row.places for row in manifest.files)
    assert manifest.topics.existing(manifest.last_index) == frozenset({1, 2})
    assert rows(store, manifest) == consumed(log)
    assert verify(store, GROUP_ID).objects == len(manifest.files)


def test_a_task_of_a_backup_imports_no_pandas(log: Log, directory: Path, tmp_path: Path) -> None:
    """To import it takes a second of a processor in each worker: as long as a small backup."""
    program = (
        "import sys\n"
        "from dledger_pipeline.archive.entry_ranges import live\n"
        "from dledger_pipeline.jobs.backup import _archive, _Task\n"
        "from dledger_pipeline.object_store.store import Store\n"
        "store = Store.open(sys.argv[2])\n"
        "rows = [_archive(_Task(store, (), each)).row for each in live(sys.argv[1:2])]\n"
        "assert all(row.places for row in rows)\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    with export_server(directory, state=log.state) as address:
        command = [sys.executable, "-c", program, address, f"file://{tmp_path}/store"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_backup_of_an_older_node_is_read_by_replay(
    log: Log, directory: Path, store: Store
) -> None:
    """It does not know the call: the backup is as it was before, and says what that costs."""
    with export_server(directory, state=log.state, without="ExportPlaces") as address:
        manifest, said = run(store, address)

    assert not any(row.places for row in manifest.files)
    assert any("no node tells where the messages of" in line for line in said)
    assert rows(store, manifest) == consumed(log)


def test_gc_keeps_places_that_are_needed_and_frees_others(log: Log, tmp_path: Path) -> None:
    """Those of small objects that were written again go with these."""
    store = Store.open(f"file://{tmp_path}/store")
    entries, last = checked_entries(log), len(log.entries)
    first = placed_backup(store, entries, [Run(last_index=20, applied=last)], size=10)
    catalog.publish(store, first)
    runs = [Run(last_index=20, applied=last), Run(last_index=last, applied=last, merged=1)]
    made = placed_backup(store, entries, runs, size=last)
    second = catalog.publish(store, replace(made, number=2, as_of_ms=10 * 86_400_000))
    _age(tmp_path / "store", hours=48)
    store.put(f"{GROUP_ID}/data/now", b"of today")

    expire(store, GROUP_ID, Retention(keep_last=1), dry_run=False, told=lambda _: None)

    left = {name.removeprefix(f"{GROUP_ID}/") for name in store.list(f"{GROUP_ID}/places")}
    assert left == {row.places.name for row in second.files if row.places}
    assert len(left) == 1
    assert rows(store, catalog.load(store, GROUP_ID)) == consumed(log)


def _age(directory: Path, *, hours: int) -> None:
    for path in directory.rglob("*"):
        at = path.stat().st_mtime - 3600 * hours
        os.utime(path, (at, at))


def test_repair_finds_places_again_and_leaves_damaged_ones_out(log: Log, store: Store) -> None:
    """Those by replay then; topics are known from any manifest that is left."""
    last = len(log.entries)
    run_ = Run(last_index=last, applied=last)
    made = placed_backup(store, checked_entries(log), [run_], size=10)
    published = catalog.publish(store, made)
    damaged = published.files[1].places
    assert damaged is not None
    flip(store, f"{GROUP_ID}/{damaged.name}")
    said: list[str] = []

    again = rebuilt(store, GROUP_ID, said.append)

    before = [row.places for row in published.files]
    assert [row.places for row in again.files] == [before[0], None, *before[2:]]
    assert again.topics == published.topics
    assert any(damaged.name in line for line in said)
    assert rows(store, again) == consumed(log)

    store.delete(f"{GROUP_ID}/{published.name}")
    without = rebuilt(store, GROUP_ID, said.append)
    assert without.topics == Topics()
    assert rows(store, without) == consumed(log)


def test_verify_names_damaged_places(log: Log, store: Store) -> None:
    """As every other object of the backup."""
    last = len(log.entries)
    made = placed_backup(store, checked_entries(log), [Run(last_index=last, applied=last)], size=9)
    places = catalog.publish(store, made).files[0].places
    assert places is not None
    flip(store, f"{GROUP_ID}/{places.name}")

    with pytest.raises(CorruptObject, match=places.name):
        verify(store, GROUP_ID)


# -- topics --------------------------------------------------------------------------------------


def seen(applied: int, made: int, *there: int) -> SeenTopics:
    """Return topics that are named after their generations."""
    return SeenTopics(applied_index=applied, made=made, names={n: f"t{n}" for n in there})


def test_topics_that_no_backup_saw_hide_only_what_is_before_them() -> None:
    """They were made and deleted between two backups, so their names are not known."""
    topics = Topics().seen(seen(10, 2, 1, 2)).seen(seen(20, 4, 1, 2, 4))

    assert topics.existing(20) == frozenset({1, 2, 4})
    assert topics.existing(19) is None
    assert topics.existing(20, "t4") == frozenset({4})
    assert topics.existing(21) is None


def test_an_older_state_adds_nothing() -> None:
    """A node that lags knows fewer topics, which are not gone."""
    topics = Topics().seen(seen(20, 2, 1, 2))

    assert topics.seen(seen(10, 1, 1)) == topics


def test_what_is_remembered_of_topics_is_bounded() -> None:
    """Old names are forgotten; then they may be any topic's."""
    topics, many = Topics(), MAX_GONE + 5
    topics = topics.seen(seen(1, many, *range(1, many + 1)))
    for n in range(many):
        topics = topics.seen(seen(n + 2, many, *range(n + 2, many + 1)))
        if n > 20:
            topics = topics.seen(seen(many + 2, many))
            break

    assert len(topics.rows) == MAX_GONE
    assert topics.others_gone_by == 6
    assert topics.existing(5, "t900") is None
    assert topics.existing(many + 2) == frozenset()


# -- running nodes -------------------------------------------------------------------------------


@pytest.mark.slow
def test_running_nodes_tell_the_places_of_all_messages(group: LiveGroup, tmp_path: Path) -> None:
    """All nodes the same; a backup of them shows what consumers see, without replay."""
    found = []
    for address in group.admins:
        with ExportClient(address) as client:
            found.append(client.places(group.group_id, 1, group.last_index).places)
    store = Store.open(f"file://{tmp_path}/store")
    backup(
        BackupRequest(
            endpoints=group.admins,
            store=store,
            last_index=group.last_index,
            target_bytes=1 << 20,
            master="local[2]",
        ),
        Progress("backup"),
    )
    manifest = catalog.load(store)

    assert found[0] == found[1] == found[2]
    assert all(row.places for row in manifest.files)
    assert manifest.topics.existing(manifest.last_index) == frozenset({1})
    read = {
        (row["queue_id"], row["queue_offset"]): row["message_id"] for row in rows(store, manifest)
    }
    assert read == {
        (queue_id, each.offset): each.record.message_id
        for queue_id, records in group.stored().items()
        for each in records
    }
