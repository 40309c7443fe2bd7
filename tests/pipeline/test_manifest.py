"""A backup is there or not: manifests are whole when published, HEAD never moves backwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dledger_pipeline.archive.archive import write_range
from dledger_pipeline.archive.hashed_json import encode_hashed
from dledger_pipeline.archive.manifest import Manifest, load, manifest_name, newest, publish
from dledger_pipeline.errors import (
    BackupError,
    BrokenBackup,
    CorruptManifest,
    CorruptObject,
    ForeignManifest,
    NoBackup,
    ObjectMissing,
    StoreDenied,
)
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import GROUP_ID, archived, backup, batches, contents, entries, flip
from tests.pipeline.s3_server import S3Server

ENTRIES = entries(100)
OTHER_ID = "00000000-1111-2222-3333-444444444444"


def manifest_of(store: Store, *ranges: int) -> Manifest:
    """Return an unpublished manifest of archived ranges."""
    rows = archived(store, ENTRIES, ranges)
    return Manifest(group="orders", group_id=GROUP_ID, files=rows)


def outcome(store: Store) -> Manifest | BackupError:
    """Return the backup of the group, or what is wrong with it."""
    try:
        return load(store, GROUP_ID)
    except BackupError as error:
        return error


def test_a_published_backup_is_loaded(store: Store) -> None:
    """By its group, or without saying which if there is one only."""
    manifest = backup(store, ENTRIES, (30, 30, 40))

    assert load(store, GROUP_ID) == load(store) == newest(store, GROUP_ID) == manifest
    assert (manifest.first_index, manifest.last_index, manifest.term) == (1, 100, 6)
    assert (manifest.records, manifest.last_timestamp_ms) == (100, 990)
    assert manifest.name == f"manifests/{100:020}.json"


def test_an_unpublished_backup_is_not_there(store: Store) -> None:
    """Objects without a manifest are orphans."""
    manifest_of(store, 30, 30)

    assert newest(store, GROUP_ID) is None
    with pytest.raises(NoBackup, match=GROUP_ID):
        load(store, GROUP_ID)
    with pytest.raises(NoBackup, match=r"no backup was published in \w+://"):
        load(store)


def test_a_store_of_several_groups_asks_which(store: Store) -> None:
    """And names them."""
    backup(store, ENTRIES, (10,))
    backup(store, ENTRIES, (10,), OTHER_ID)

    with pytest.raises(NoBackup, match=f"give the group id of one: {OTHER_ID}, {GROUP_ID}"):
        load(store)


def test_publishing_again_changes_nothing(store: Store) -> None:
    """The same backup, twice: identical objects."""
    backup(store, ENTRIES, (30, 30))
    before = contents(store)

    backup(store, ENTRIES, (30, 30))

    assert contents(store) == before


def test_a_later_backup_adds_to_the_one_before(store: Store) -> None:
    """The earlier one can still be asked for."""
    first = backup(store, ENTRIES, (30,))
    second = backup(store, ENTRIES, (30, 30))

    assert load(store) == second
    assert load(store, at=30) == first
    with pytest.raises(ObjectMissing, match=manifest_name(31)):
        load(store, at=31)


def test_head_never_moves_backwards(store: Store) -> None:
    """A run that was overtaken publishes its backup, but the newer one counts."""
    newer = backup(store, ENTRIES, (30, 30))

    older = backup(store, ENTRIES, (30,))

    assert load(store) == newer
    assert load(store, at=30) == older


def test_of_two_ways_to_cut_a_log_the_first_stands(store: Store) -> None:
    """A rerun with other ranges is no other backup."""
    first = backup(store, ENTRIES, (30, 30))

    second = backup(store, ENTRIES, (20, 40))

    assert second == first
    assert load(store) == first


def test_a_run_killed_before_head_moved_is_finished_by_the_next(
    store: Store, tmp_path: Path
) -> None:
    """Its manifest is no backup yet; the rerun makes it one and writes nothing else."""
    twin = Store.open(f"file://{tmp_path}/twin")
    backup(twin, ENTRIES, (30, 30))
    whole = contents(twin)
    for name, data in whole.items():
        if not name.endswith("HEAD"):
            store.put(name, data)
    assert newest(store, GROUP_ID) is None

    backup(store, ENTRIES, (30, 30))

    assert contents(store) == whole


def test_concurrent_runs_leave_the_newest_as_head(store: Store) -> None:
    """Whoever comes first."""
    manifests = [manifest_of(store, *([10] * count)) for count in range(1, 7)]
    barrier = threading.Barrier(len(manifests))

    def run(manifest: Manifest) -> None:
        barrier.wait()
        publish(store, manifest)

    threads = [threading.Thread(target=run, args=(manifest,)) for manifest in manifests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert load(store) == manifests[-1]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda rows: (rows[0], rows[2]), "expected entry 21 first"),
        (lambda rows: (rows[0], rows[0]), "expected entry 21 first"),
        (lambda rows: (rows[0], replace(rows[1], first_chain=7)), "follows chain CRC 0x00000007"),
        (lambda rows: (replace(rows[0], records=7),), "states 7 entries"),
    ],
    ids=["gap", "overlap", "chain", "count"],
)
def test_files_that_do_not_join_are_not_published(
    store: Store, spoil: Callable[..., tuple[object, ...]], words: str
) -> None:
    """The file that does not continue the one before is named; nothing is written."""
    manifest = manifest_of(store, 20, 20, 20)
    before = contents(store)

    with pytest.raises(BrokenBackup, match=rf"^data/.*parquet .*{words}"):
        publish(store, replace(manifest, files=spoil(manifest.files)))

    assert contents(store) == before


def test_a_backup_of_another_history_is_not_published(store: Store) -> None:
    """A group id with two histories is a group that was founded twice."""
    backup(store, ENTRIES, (20, 20))
    rows = archived(store, entries(60, seed=2), (20, 20, 20))
    before = contents(store)

    with pytest.raises(BrokenBackup, match="another history of the group"):
        publish(store, Manifest(group="orders", group_id=GROUP_ID, files=rows))

    assert contents(store) == before


def test_a_missing_or_short_object_is_not_published(store: Store) -> None:
    """It is named."""
    manifest = manifest_of(store, 20)
    name = f"{GROUP_ID}/{manifest.files[0].name}"
    store.put(name, store.get(name).to_pybytes()[:-1])
    absent = replace(manifest.files[0], name="data/nothing.parquet")
    before = contents(store)

    with pytest.raises(CorruptObject, match=name):
        publish(store, manifest)
    with pytest.raises(ObjectMissing, match=f"{GROUP_ID}/data/nothing.parquet"):
        publish(store, replace(manifest, files=(absent,)))

    assert contents(store) == before


def test_wrong_credentials_publish_and_load_nothing(s3: S3Server) -> None:
    """They are not taken for a store without backups."""
    url = s3.bucket("publish-denied")
    store = s3.store(url)
    manifest = manifest_of(store, 20)
    before = contents(store)
    denied = replace(s3, credentials=replace(s3.credentials, access_key_id="no")).store(url)

    with pytest.raises(StoreDenied, match=url):
        publish(denied, manifest)
    with pytest.raises(StoreDenied, match=url):
        load(denied)
    with pytest.raises(StoreDenied, match=url):
        write_range(denied, GROUP_ID, batches(ENTRIES), previous_chain=0)

    assert contents(store) == before


@pytest.mark.parametrize("name", ["HEAD", manifest_name(40)])
def test_a_flipped_bit_in_a_manifest_is_named(store: Store, name: str) -> None:
    """Any byte that carries something; white space carries nothing."""
    manifest = backup(store, ENTRIES, (20, 20))
    whole = store.get(f"{GROUP_ID}/{name}").to_pybytes()

    for at in range(0, len(whole), 7):
        flip(store, f"{GROUP_ID}/{name}", at)
        found = outcome(store)
        assert found == manifest or f"{GROUP_ID}/{name}" in str(found)
        store.put(f"{GROUP_ID}/{name}", whole)


def test_nothing_is_published_on_top_of_a_damaged_manifest(store: Store) -> None:
    """What is there is looked at by people first."""
    backup(store, ENTRIES, (20,))
    flip(store, f"{GROUP_ID}/{manifest_name(20)}")
    later = manifest_of(store, 20, 20)
    before = contents(store)

    with pytest.raises(CorruptManifest, match=manifest_name(20)):
        publish(store, later)

    assert contents(store) == before


def test_a_truncated_manifest_is_named(store: Store) -> None:
    """As no JSON."""
    backup(store, ENTRIES, (20,))
    name = f"{GROUP_ID}/{manifest_name(20)}"
    store.put(name, store.get(name).to_pybytes()[:-20])

    with pytest.raises(CorruptManifest, match=f"{name}: not JSON"):
        load(store)


def test_a_manifest_that_is_missing_is_named(store: Store) -> None:
    """HEAD says that it should be there."""
    backup(store, ENTRIES, (20,))
    store.put(f"{OTHER_ID}/HEAD", encode_hashed({"group_id": OTHER_ID, "last_index": 20}))

    with pytest.raises(ObjectMissing, match=f"{OTHER_ID}/{manifest_name(20)}"):
        load(store, OTHER_ID)


def test_the_manifest_of_another_group_is_refused(store: Store) -> None:
    """Where ours should be: by HEAD, and by the manifest itself."""
    backup(store, ENTRIES, (20,))
    for name in ("HEAD", manifest_name(20)):
        store.put(f"{OTHER_ID}/{name}", store.get(f"{GROUP_ID}/{name}"))

    with pytest.raises(ForeignManifest, match=f"{OTHER_ID}/HEAD belongs to group {GROUP_ID}"):
        load(store, OTHER_ID)
    store.put(f"{OTHER_ID}/HEAD", encode_hashed({"group_id": OTHER_ID, "last_index": 20}))
    with pytest.raises(ForeignManifest, match=f"{manifest_name(20)} belongs to group {GROUP_ID}"):
        load(store, OTHER_ID)


@pytest.mark.parametrize(
    "spoil",
    [
        {"files": []},
        {"files": [7]},
        {"files": "data"},
        {"group": 7},
        {"format_version": 2},
        {"group_id": None},
        {"files": [{"name": "../../etc/passwd"}]},
    ],
    ids=json.dumps,
)
def test_a_manifest_of_other_fields_is_refused(store: Store, spoil: dict[str, object]) -> None:
    """Whole, but not ours."""
    backup(store, ENTRIES, (20,))
    name = f"{GROUP_ID}/{manifest_name(20)}"
    content = json.loads(store.get(name).to_pybytes())
    del content["sha256"]
    store.put(name, encode_hashed({**content, **spoil}))

    with pytest.raises(CorruptManifest, match=name):
        load(store)


def test_a_manifest_names_no_object_but_its_own(store: Store) -> None:
    """An object's name follows from its range and hash; another name leads elsewhere."""
    backup(store, ENTRIES, (20,))
    name = f"{GROUP_ID}/{manifest_name(20)}"
    content = json.loads(store.get(name).to_pybytes())
    del content["sha256"]
    content["files"][0]["name"] = "../other/data/1"
    store.put(name, encode_hashed(content))

    with pytest.raises(CorruptManifest, match="does not have the name of its contents"):
        load(store)


def test_contents_do_not_depend_on_when_and_where(store: Store) -> None:
    """No clock and no host name: all that is in a manifest follows from the log."""
    backup(store, ENTRIES, (20, 30))
    row = write_range(store, GROUP_ID, batches(ENTRIES[:20]), previous_chain=0)

    content = json.loads(store.get(f"{GROUP_ID}/{manifest_name(50)}").to_pybytes())

    assert sorted(content) == [
        "files", "first_index", "format_version", "group", "group_id", "last_index",
        "last_timestamp_ms", "sha256", "term",
    ]  # fmt: skip
    assert content["files"][0]["sha256"] == row.sha256
