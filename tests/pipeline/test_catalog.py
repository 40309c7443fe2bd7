"""A backup is there or not: manifests are whole when published, each with its own number."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dledger_pipeline.archive.archive import ManifestRow, write_range
from dledger_pipeline.archive.catalog import load, newest, numbers, publish
from dledger_pipeline.archive.erasures import erasures_name
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.hashed_json import encode_hashed
from dledger_pipeline.archive.manifest import Chunk, Manifest, manifest_name
from dledger_pipeline.archive.places import MAX_SPANS, places_name
from dledger_pipeline.archive.places_objects import write_places
from dledger_pipeline.archive.repair import rebuilt
from dledger_pipeline.errors import (
    AlreadyExists,
    BackupError,
    BrokenBackup,
    CorruptManifest,
    CorruptObject,
    ForeignManifest,
    LostManifest,
    NewerBackup,
    NoBackup,
    ObjectMissing,
    StoreDenied,
    StoreError,
    VersionConflict,
)
from dledger_pipeline.jobs.without_spark import list_backups
from dledger_pipeline.log.messages import QUEUE_SLICE_SCHEMA
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import (
    GROUP_ID,
    archived,
    backup,
    batches,
    contents,
    entries,
    file_rows,
    flip,
    manifest,
    rewrite,
)
from tests.pipeline.s3_server import S3Server

ENTRIES = entries(100)
OTHER_ID = "00000000-1111-2222-3333-444444444444"
FIRST = f"{GROUP_ID}/{manifest_name(1)}"


def manifest_of(store: Store, *ranges: int) -> Manifest:
    """Return an unpublished manifest of archived ranges."""
    return manifest(archived(store, ENTRIES, ranges))


def outcome(store: Store) -> Manifest | BackupError:
    """Return the backup of the group, or what is wrong with it."""
    try:
        return load(store, GROUP_ID)
    except BackupError as error:
        return error


def test_a_published_backup_is_loaded(store: Store) -> None:
    """By its group, or without saying which if there is one only."""
    published = backup(store, ENTRIES, (30, 30, 40))

    assert load(store, GROUP_ID) == load(store) == newest(store, GROUP_ID) == published
    assert (published.first_index, published.last_index, published.term) == (1, 100, 6)
    assert (published.records, published.last_timestamp_ms) == (100, 990)
    assert published.name == f"manifests/{1:010}.json"


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


def test_a_later_backup_adds_to_the_one_before(store: Store) -> None:
    """The earlier one can still be asked for by its number."""
    first = backup(store, ENTRIES, (30,))
    second = publish(store, first.followed_by(archived(store, ENTRIES, (30, 30))[1:]))

    assert load(store) == second
    assert load(store, number=1) == first
    assert (second.number, second.last_index) == (2, 60)
    with pytest.raises(ObjectMissing, match=manifest_name(3)):
        load(store, number=3)


def test_a_number_is_published_once(store: Store) -> None:
    """Whoever comes second looks again at what there is."""
    first = backup(store, ENTRIES, (30,))

    with pytest.raises(VersionConflict, match=manifest_name(1)):
        publish(store, manifest_of(store, 20, 40))

    assert load(store) == first


def test_a_run_killed_before_head_moved_has_published(store: Store) -> None:
    """HEAD only tells of a manifest that was lost; the next backup moves it on."""
    first = backup(store, ENTRIES, (30,))
    head = store.get(f"{GROUP_ID}/HEAD").to_pybytes()
    second = publish(store, first.followed_by(archived(store, ENTRIES, (30, 30))[1:]))
    store.put(f"{GROUP_ID}/HEAD", head)

    assert load(store) == second


@pytest.mark.parametrize("head", [b"", b"garbage", b"{}", None])
def test_head_may_be_lost_or_damaged(store: Store, head: bytes | None) -> None:
    """Manifests are found without it, and the next backup writes it anew."""
    first = backup(store, ENTRIES, (30,))
    name = f"{GROUP_ID}/HEAD"
    if head is None:
        store.delete(name)
    else:
        store.put(name, head)

    assert load(store) == first
    publish(store, first.followed_by(archived(store, ENTRIES, (30, 30))[1:]))
    store.delete(f"{GROUP_ID}/{manifest_name(2)}")
    with pytest.raises(LostManifest, match=manifest_name(2)):
        load(store)


def test_a_lost_newest_manifest_is_told(store: Store) -> None:
    """Nobody restores an older backup without having asked for it."""
    first = backup(store, ENTRIES, (30,))
    publish(store, first.followed_by(archived(store, ENTRIES, (30, 30))[1:]))
    store.delete(f"{GROUP_ID}/{manifest_name(2)}")

    with pytest.raises(LostManifest, match="`--manifest 1`; `dledger-pipeline repair`"):
        load(store)
    assert load(store, number=1) == first


def test_of_concurrent_runs_one_publishes(store: Store) -> None:
    """The others are told."""
    manifests = [manifest_of(store, *([10] * count)) for count in range(1, 7)]
    barrier = threading.Barrier(len(manifests))
    refused: list[VersionConflict] = []
    published: list[Manifest] = []

    def run(made: Manifest) -> None:
        barrier.wait()
        try:
            published.append(publish(store, made))
        except VersionConflict as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(made,)) for made in manifests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [load(store)] == published
    assert (len(refused), numbers(store, GROUP_ID)) == (5, [1])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda rows: (rows[0], rows[0]), "expected entry 21 first"),
        (lambda rows: (rows[0], replace(rows[1], first_chain=7)), "follows chain CRC 0x00000007"),
        (lambda rows: (replace(rows[0], records=7),), "states 7 entries"),
    ],
    ids=["overlap", "chain", "count"],
)
def test_files_that_do_not_join_are_not_published(
    store: Store, spoil: Callable[..., tuple[ManifestRow, ...]], words: str
) -> None:
    """The file that does not continue the one before is named; nothing is written."""
    made = manifest_of(store, 20, 20, 20)
    before = contents(store)

    with pytest.raises(BrokenBackup, match=rf"^data/.*parquet .*{words}"):
        publish(store, replace(made, chunks=(Chunk(spoil(made.files)),)))

    assert contents(store) == before


def test_a_gap_without_a_base_is_not_published(store: Store) -> None:
    """What was before it would be nowhere."""
    rows = archived(store, ENTRIES, (20, 20, 20))
    before = contents(store)

    with pytest.raises(BrokenBackup, match="no base stands for what is before entry 41"):
        publish(store, manifest((rows[0], rows[2])))

    assert contents(store) == before


def test_a_missing_or_short_object_is_not_published(store: Store) -> None:
    """It is named."""
    made = manifest_of(store, 20)
    name = f"{GROUP_ID}/{made.files[0].name}"
    store.put(name, store.get(name).to_pybytes()[:-1])
    absent = replace(made.files[0], name="data/nothing.parquet")

    with pytest.raises(CorruptObject, match=name):
        publish(store, made)
    with pytest.raises(ObjectMissing, match=f"{GROUP_ID}/data/nothing.parquet"):
        publish(store, manifest((absent,)))

    assert numbers(store, GROUP_ID) == []


def test_an_object_that_went_since_the_last_backup_is_noticed(store: Store) -> None:
    """Every object is looked for before a manifest names it again, not only the new ones."""
    first = backup(store, ENTRIES, (30,))
    store.delete(f"{GROUP_ID}/{first.files[0].name}")

    with pytest.raises(ObjectMissing, match=first.files[0].name):
        publish(store, first.followed_by(archived(store, ENTRIES, (29, 1, 30))[2:]))


def test_wrong_credentials_publish_and_load_nothing(s3: S3Server) -> None:
    """They are not taken for a store without backups."""
    url = s3.bucket("publish-denied")
    store = s3.store(url)
    made = manifest_of(store, 20)
    before = contents(store)
    denied = replace(s3, credentials=replace(s3.credentials, access_key_id="no")).store(url)

    with pytest.raises(StoreDenied, match=url):
        publish(denied, made)
    with pytest.raises(StoreDenied, match=url):
        load(denied)
    with pytest.raises(StoreDenied, match=url):
        write_range(denied, GROUP_ID, batches(ENTRIES), previous_chain=0)

    assert contents(store) == before


@pytest.mark.parametrize("kind", ["manifests", "chunks"])
def test_a_flipped_bit_in_a_manifest_is_named(store: Store, kind: str) -> None:
    """Any byte that carries something; white space carries nothing."""
    published = backup(store, ENTRIES, (20, 20))
    (name,) = store.list(f"{GROUP_ID}/{kind}")
    whole = store.get(name).to_pybytes()

    for at in range(0, len(whole), 7):
        flip(store, name, at)
        found = outcome(store)
        assert found == published or name in str(found)
        store.put(name, whole)


def test_a_truncated_manifest_is_named(store: Store) -> None:
    """As no JSON."""
    backup(store, ENTRIES, (20,))
    store.put(FIRST, store.get(FIRST).to_pybytes()[:-20])

    with pytest.raises(CorruptManifest, match=f"{FIRST}: not JSON"):
        load(store)


def test_a_missing_chunk_is_named(store: Store) -> None:
    """The manifest says that it should be there."""
    backup(store, ENTRIES, (20,))
    (chunk,) = store.list(f"{GROUP_ID}/chunks")
    store.delete(chunk)

    with pytest.raises(ObjectMissing, match=chunk):
        load(store)


def test_a_chunk_that_inflates_to_more_than_it_may_is_not_inflated(store: Store) -> None:
    """Its length is stated in the manifest."""
    published = backup(store, ENTRIES, (20,))
    chunk = published.chunks[0].row
    assert chunk is not None
    rewrite(store, published, chunks=[asdict(replace(chunk, raw_bytes=1 << 40))])

    with pytest.raises(CorruptManifest, match="more than a chunk has"):
        load(store)


def test_the_manifest_of_another_group_is_refused(store: Store) -> None:
    """Where ours should be: by the manifest itself, and by HEAD."""
    backup(store, ENTRIES, (20,))
    name = manifest_name(1)
    store.put(f"{OTHER_ID}/{name}", store.get(f"{GROUP_ID}/{name}"))

    with pytest.raises(ForeignManifest, match=f"{name} belongs to group {GROUP_ID}"):
        load(store, OTHER_ID)
    head = store.get(f"{GROUP_ID}/HEAD")
    store.put(f"{OTHER_ID}/HEAD", head)
    with pytest.raises(ForeignManifest, match=f"{OTHER_ID}/HEAD belongs to group {GROUP_ID}"):
        load(store, OTHER_ID)


@pytest.mark.parametrize(
    "spoil",
    [
        {"chunks": []},
        {"chunks": [7]},
        {"chunks": "data"},
        {"bases": [{"name": "bases/1"}]},
        {"points": []},
        {"group": 7},
        {"topics": None},
        {"topics": {"applied_index": 5, "made": 1, "others_gone_by": 0, "rows": [{"name": "t"}]}},
        {"topics": {"applied_index": 5, "made": 1, "others_gone_by": 6, "rows": []}},
        {
            "topics": {
                "applied_index": 5,
                "made": 1,
                "others_gone_by": 0,
                "rows": [{"name": "t", "generation": 2, "gone_by": 0}],
            }
        },
        {"number": 2},
        {"format_version": 1},
        {"group_id": None},
        {"chunks": [{"name": "../../etc/passwd"}]},
    ],
    ids=json.dumps,
)
def test_a_manifest_of_other_fields_is_refused(store: Store, spoil: dict[str, Any]) -> None:
    """Whole, but not ours."""
    rewrite(store, backup(store, ENTRIES, (20,)), **spoil)

    with pytest.raises(CorruptManifest, match=FIRST):
        load(store)


_SHA = "a" * 64
_PLACES = {
    "name": places_name(1, 20, _SHA),
    "object_bytes": 9,
    "sha256": _SHA,
    "rows": 1,
    "spans": [[1, 0, 0, 0, 5]],
}


@pytest.mark.parametrize(
    "places",
    [
        7,
        {},
        _PLACES | {"more": 1},
        _PLACES | {"name": "../other/places/1"},
        _PLACES | {"name": places_name(1, 21, _SHA)},
        _PLACES | {"object_bytes": 0},
        _PLACES | {"rows": -1},
        _PLACES | {"rows": 0},
        _PLACES | {"spans": 7},
        _PLACES | {"spans": []},
        _PLACES | {"spans": [[1, 0, 0, 0]]},
        _PLACES | {"spans": [[1, 0, 0, 0, True]]},
        _PLACES | {"spans": [[1, 0, 0, 5, 5]]},
        _PLACES | {"spans": [[0, 0, 0, 0, 5]]},
        _PLACES | {"spans": [[1, 2, 1, 0, 5]]},
        _PLACES | {"spans": [[1, 0, 0, 0, 1 << 63]]},
        _PLACES | {"spans": [[1, 0, 0, 0, 5]] * 2},
        _PLACES | {"spans": [[1, n, n, 0, 5] for n in range(MAX_SPANS + 1)]},
    ],
)
def test_places_that_a_file_cannot_have_are_refused(store: Store, places: object) -> None:
    """Foreign, cut short, negative, huge."""
    published = backup(store, ENTRIES, (20,))
    rewrite(store, published, file_rows(published, places=places))

    with pytest.raises(CorruptManifest):
        load(store)


_ERASURES = {"name": erasures_name(1, 20, _SHA), "object_bytes": 9, "sha256": _SHA, "rows": 1}


@pytest.mark.parametrize(
    "erasures",
    [
        7,
        {},
        _ERASURES | {"more": 1},
        _ERASURES | {"name": "../other/erasures/1"},
        _ERASURES | {"name": erasures_name(1, 21, _SHA)},
        _ERASURES | {"object_bytes": 0},
        _ERASURES | {"rows": 0},
        _ERASURES | {"rows": True},
    ],
)
def test_erasures_that_a_file_cannot_have_are_refused(store: Store, erasures: object) -> None:
    """As with places."""
    published = backup(store, ENTRIES, (20,))
    rewrite(store, published, file_rows(published, erasures=erasures))

    with pytest.raises(CorruptManifest):
        load(store)


def test_places_that_are_named_are_objects_of_the_backup(store: Store) -> None:
    """Counted, looked for when it is published, and loaded as they were."""
    row = archived(store, ENTRIES, (20,))[0]
    empty = QUEUE_SLICE_SCHEMA.empty_table()
    placed = replace(row, places=write_places(store, GROUP_ID, row, empty))
    published = publish(store, manifest([placed]))
    assert placed.places is not None

    assert load(store) == published
    assert placed.places.name in published.objects
    store.delete(f"{GROUP_ID}/{placed.places.name}")
    with pytest.raises(ObjectMissing, match=placed.places.name):
        publish(store, replace(manifest([placed]), number=2))


def test_a_manifest_names_no_object_but_its_own(store: Store) -> None:
    """An object's name follows from its range and hash; another name leads elsewhere."""
    published = backup(store, ENTRIES, (20,))
    rewrite(store, published, file_rows(published, name="../other/data/1"))

    with pytest.raises(CorruptManifest, match="does not have the name of its contents"):
        load(store)


def test_contents_do_not_depend_on_when_and_where(store: Store) -> None:
    """No host name, and no clock but the group's: the same log gives the same bytes."""
    published = backup(store, ENTRIES, (20, 30))
    row = write_range(store, GROUP_ID, batches(ENTRIES[:20]), previous_chain=0)

    content = json.loads(store.get(FIRST).to_pybytes())

    assert sorted(content) == [
        "as_of_ms", "bases", "chunks", "extent", "format_version", "group", "group_id",
        "number", "points", "sha256", "term", "topics",
    ]  # fmt: skip
    assert published.files[0].sha256 == row.sha256


def test_a_list_of_backups_reads_their_manifests_only(store: Store) -> None:
    """10,000 manifests name 10,000 chunks of up to 100 KB: that is a gigabyte to read."""
    published = [backup(store, ENTRIES, (20,)), backup(store, ENTRIES, (20, 30))]
    for name in [*store.list(f"{GROUP_ID}/chunks"), *store.list(f"{GROUP_ID}/data")]:
        store.delete(name)

    found = list(list_backups(store, None))

    assert [(row["number"], row["lastIndex"], row["objects"]) for row in found] == [
        (each.number, each.last_index, len(each.files)) for each in published
    ]
    assert [row["objectBytes"] for row in found] == [each.object_bytes for each in published]
    assert [row["restorable"] for row in found] == [[[1, 20]], [[1, 50]]]


@pytest.mark.parametrize(
    "extent", [{"objects": 3}, {"last_index": 21}, {"restorable": [[1]]}, {"restorable": [[2, 20]]}]
)
def test_a_manifest_that_states_another_extent_than_it_has_is_corrupt(
    store: Store, extent: dict[str, object]
) -> None:
    """What a list shows is what a restore finds."""
    backup(store, ENTRIES, (20,))
    content = json.loads(store.get(FIRST).to_pybytes())
    fields = {key: value for key, value in content.items() if key != "sha256"}
    fields["extent"] |= extent
    store.put(FIRST, encode_hashed(fields))

    with pytest.raises(CorruptManifest, match=r"extent|to be restorable"):
        load(store)


# -- what a store, or what is in front of it, does not do ------------------------------------------


class Answers:
    """A store in a directory, beside which some answers are not those of S3."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


class LostAnswers(Answers):
    """Writes each object; the answer is lost, and obstore's second try finds it there."""

    def create(self, name: str, data: memoryview) -> None:
        with suppress(AlreadyExists):
            self._objects.create(name, data)
        raise AlreadyExists(name)


class OtherETags(Answers):
    """Shows ETags that the store does not know, as some proxies do."""

    def replace(self, name: str, data: memoryview, version: str) -> None:
        raise VersionConflict(name)


@pytest.mark.found
def test_a_manifest_whose_answer_was_lost_is_published(tmp_path: Path) -> None:
    """Not "replaced by another writer": that would be tried again, one manifest more each time."""
    plain = Store.open(f"file://{tmp_path}/store")
    made = manifest_of(plain, 30)
    store = Store(plain.url, None, LostAnswers(plain._objects))

    published = publish(store, made)

    assert (numbers(plain, GROUP_ID), load(plain)) == ([1], published)
    with pytest.raises(VersionConflict, match=manifest_name(1)):
        publish(store, manifest_of(plain, 20, 40))


@pytest.mark.found
def test_a_store_without_compare_and_swap_is_no_other_writer(tmp_path: Path) -> None:
    """Said after a few tries, not tried again; and the backup is there."""
    plain = Store.open(f"file://{tmp_path}/store")
    first = publish(plain, manifest_of(plain, 30))
    store = Store(plain.url, None, OtherETags(plain._objects))

    with pytest.raises(StoreError, match=r"is published, but .*HEAD .* rewrite ETags") as caught:
        publish(store, first.followed_by(archived(plain, ENTRIES, (30, 30))[1:]))

    assert not isinstance(caught.value, VersionConflict)
    assert load(plain).last_index == 60


# -- other versions -------------------------------------------------------------------------------


def _as_of_format(store: Store, name: str, version: int) -> None:
    content = json.loads(store.get(name).to_pybytes())
    fields = {key: value for key, value in content.items() if "sha256" not in key}
    store.put(name, encode_hashed(fields | {"format_version": version}))


@pytest.mark.found
def test_the_backup_of_a_newer_version_is_not_called_corrupt(tmp_path: Path) -> None:
    """Nobody takes an older one, or repairs it, after a roll-back of the image."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, ENTRIES, (30,))
    backup(store, ENTRIES, (30, 30))
    _as_of_format(store, f"{GROUP_ID}/{manifest_name(2)}", 3)

    with pytest.raises(NewerBackup, match="made by a newer dledger: its format is 3"):
        load(store)
    with pytest.raises(NewerBackup):
        rebuilt(store, GROUP_ID, print)
    with pytest.raises(NewerBackup):
        expire(store, GROUP_ID, Retention(), dry_run=False, told=print)
    damaged, newer = list_backups(store, GROUP_ID)
    assert ("error" in damaged, "made by a newer dledger" in str(newer["error"])) == (False, True)

    _as_of_format(store, f"{GROUP_ID}/{manifest_name(2)}", 1)
    with pytest.raises(CorruptManifest, match="format version 1"):
        load(store)
