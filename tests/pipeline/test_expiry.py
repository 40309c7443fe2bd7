"""What expires is what nobody needs; what is lost is rebuilt from the objects that are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument
from dledger.store.format import Base
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.archive import ManifestRow, write_range
from dledger_pipeline.archive.bases import write_base
from dledger_pipeline.archive.catalog import load, newest, publish
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.manifest import (
    BaseRow,
    Manifest,
    RestorePoint,
    first_manifest,
    manifest_name,
)
from dledger_pipeline.archive.repair import rebuilt
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.errors import (
    LostManifest,
    NoBackup,
    ObjectMissing,
    StoreDenied,
    TargetNotAvailable,
    VersionConflict,
)
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Removal
from tests.pipeline.logs import DAY_S, GROUP_ID, age, backup, batches, contents, entries, flip

TURN_MS = 4 * 3_600_000
PER_DAY = 6
PER_TURN = 3


class Played:
    """A group whose log grows by some entries in four hours, and its store."""

    def __init__(self, store: Store, turns: int) -> None:
        count = 1 + PER_TURN * turns
        bodies = [CreateTopic(name=f"t{n}", type="NORMAL", queues=1).encode() for n in range(count)]
        self.log = [
            Entry(
                term=1,
                index=n,
                kind=EntryKind.DATA,
                timestamp_ms=TURN_MS * (1 + (n - 1) // PER_TURN),
                crc32c=crc32c(body),
                data=body,
            )
            for n, body in enumerate(bodies, 1)
        ]
        self.store = store
        self.state = BrokerState()
        self.turn = 0

    def rows(self, previous: Manifest | None, last: int) -> list[ManifestRow]:
        """Archive what is new."""
        first = previous.last_index if previous else 0
        chain = previous.last_chain if previous else 0
        part = batches(self.log[first:last], chain=chain)
        return [write_range(self.store, GROUP_ID, part, previous_chain=chain)]

    def base(self, last: int, chain: int, first: int) -> BaseRow:
        """Write a snapshot of the state at *last* that needs entries from *first* on."""
        for one in self.log[self.state.applied_index : last]:
            self.state.apply(one)
        whole = newest(self.store, GROUP_ID)
        chains = {row.last_index: row.last_chain for row in whole.files} if whole else {}
        snapshot = Snapshot(
            group_id=GROUP_ID,
            applied=Base(index=last, term=1, chain=chain),
            base=Base(index=first - 1, term=1 if first > 1 else 0, chain=chains.get(first - 1, 0)),
            memberships=(),
            body=b"",
        )
        data = b"".join(encode_snapshot(snapshot, self.state.freeze().pieces()))
        return write_base(self.store, GROUP_ID, data, now_ms=self.turn * TURN_MS)

    def backup(self) -> Manifest:
        """Make the next backup; each day one has a base, and nodes keep a day."""
        self.turn += 1
        last = PER_TURN * self.turn
        previous = newest(self.store, GROUP_ID)
        rows = self.rows(previous, last)
        kept_from = max(1, PER_TURN * (self.turn - PER_DAY) + 1)
        base = None
        if previous is not None and self.turn % PER_DAY == 0:
            base = self.base(last, rows[-1].last_chain, kept_from)
        if previous is None:
            made = first_manifest("orders", GROUP_ID, rows)
        else:
            made = previous.followed_by(rows, base=base)
        point = RestorePoint(last_index=last, kept_from=kept_from, as_of_ms=TURN_MS * self.turn)
        return publish(self.store, made.seen(point))


@pytest.fixture
def played(tmp_path: Path) -> Played:
    """Return a group without any backup yet."""
    return Played(Store.open(f"file://{tmp_path}/store"), 100)


def test_a_store_stays_as_large_as_its_retention_asks(played: Played, tmp_path: Path) -> None:
    """Six backups a day for 16 days, kept for two: no more objects after the fourth day."""
    sizes: list[tuple[int, int]] = []
    for turn in range(16 * PER_DAY):
        played.backup()
        if turn % PER_DAY == PER_DAY - 1:
            age(tmp_path / "store", 1.5)
            expire(played.store, GROUP_ID, Retention(keep_days=2), dry_run=False, told=_quiet)
            left = contents(played.store)
            sizes.append((len(left), len(load(played.store).files)))
            verify(played.store)

    assert max(sizes[5:]) <= max(sizes[4:6])
    assert sizes[-1][1] <= 4 * PER_DAY
    whole = load(played.store)
    with pytest.raises(TargetNotAvailable, match=r"to an entry in \[\d+, 288\]"):
        whole.start_for(1)
    for turns_ago in (0, 7, 11):
        index = PER_TURN * (played.turn - turns_ago)
        directory = tmp_path / f"restored-{turns_ago}"
        found = restore(played.store, None, directory, name="dev/node-0", target_index=index)
        assert (found.last_index, found.first_index > 1) == (index, True)


def test_what_is_young_is_kept(played: Played, tmp_path: Path) -> None:
    """A running backup may be about to publish it."""
    played.backup()
    orphan = write_range(played.store, GROUP_ID, batches(entries(5, seed=9)), previous_chain=0)
    before = contents(played.store)

    found = expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)
    assert (found.objects, contents(played.store)) == (0, before)

    age(tmp_path / "store", 1.5)
    dry = expire(played.store, GROUP_ID, Retention(), dry_run=True, told=_quiet)
    assert dry.objects == 1
    assert f"{GROUP_ID}/{orphan.name}" in contents(played.store)
    found = expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)
    assert (found.objects, found.freed_bytes) == (1, orphan.object_bytes)
    assert f"{GROUP_ID}/{orphan.name}" not in contents(played.store)
    assert verify(played.store).records == PER_TURN


@pytest.mark.found
def test_a_backup_that_was_just_replaced_stays_for_a_day(played: Played, tmp_path: Path) -> None:
    """Someone may be restoring it, however old it was when the next one came."""
    numbers = []
    for _ in range(2):
        played.backup()
        age(tmp_path / "store", days=7)
    played.backup()
    for days in (0.9, 0.2):
        age(tmp_path / "store", days)
        retention = Retention(keep_days=2)
        expire(played.store, GROUP_ID, retention, dry_run=False, told=_quiet)
        numbers.append(catalog.numbers(played.store, GROUP_ID))

    assert numbers == [[2, 3], [3]]


def test_each_chunk_is_read_once(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept manifests share all but the last ones."""
    monkeypatch.setattr("dledger_pipeline.archive.manifest.CHUNK_FILES", 2)
    for _ in range(9):
        played.backup()
    age(tmp_path / "store", 2)
    get, read = played.store.get, list[str]()

    def noting(name: str, **more: int) -> object:
        read.append(name)
        return get(name, **more)

    monkeypatch.setattr(played.store, "get", noting)
    expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)

    chunks = [name for name in read if "/chunks/" in name]
    assert len({*chunks}) == len(chunks) > 4


@pytest.mark.parametrize(("keep_last", "expected"), [(0, 8), (1, 8), (2, 8), (3, 6), (4, 0)])
def test_what_is_kept_reaches_back_as_far_as_either_asks(
    played: Played, keep_last: int, expected: int
) -> None:
    """To any time while there are fewer backups than asked for. In days."""
    backed_up = played.backup()
    made = [replace(backed_up, as_of_ms=day * DAY_S * 1000) for day in (10, 9, 6)]

    found = Retention(keep_days=2, keep_last=keep_last).oldest_ms(made)

    assert found == expected * DAY_S * 1000


def test_temporary_files_of_killed_writers_go(played: Played, tmp_path: Path) -> None:
    """Those that are old; nobody lists them otherwise."""
    played.backup()
    left = tmp_path / "store" / GROUP_ID / "data" / f".x.parquet.{'0' * 32}"
    left.write_bytes(b"half")
    age(tmp_path / "store", 2)

    found = expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)

    assert (found.temporary_files, left.exists()) == (1, False)


def test_nothing_is_deleted_if_a_kept_backup_is_damaged(played: Played, tmp_path: Path) -> None:
    """It may need what seems to be an orphan."""
    played.backup()
    played.backup()
    flip(played.store, f"{GROUP_ID}/{manifest_name(1)}")
    age(tmp_path / "store", 3)
    before = contents(played.store)

    with pytest.raises(Exception, match=manifest_name(1)):
        expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)

    assert contents(played.store) == before


def test_a_backup_that_is_published_meanwhile_stops_it(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it names was not looked at."""
    played.backup()
    write_range(played.store, GROUP_ID, batches(entries(5, seed=9)), previous_chain=0)
    age(tmp_path / "store", 2)
    sweep = played.store.listed

    def listed(prefix: str = "") -> object:
        found = list(sweep(prefix))
        if prefix.endswith("/chunks") and played.turn == 1:
            played.backup()
        return found

    monkeypatch.setattr(played.store, "listed", listed)
    before = contents(played.store)
    with pytest.raises(VersionConflict):
        expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)

    assert set(before) <= set(contents(played.store))


def test_what_is_locked_is_told_and_the_rest_goes(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object lock that is longer than the retention."""
    played.backup()
    for seed in (8, 9):
        write_range(played.store, GROUP_ID, batches(entries(5, seed=seed)), previous_chain=0)
    age(tmp_path / "store", 2)
    delete, denied = played.store.delete_old, list[str]()

    def locked(name: str, before_s: float) -> Removal:
        if not denied:
            denied.append(name)
            raise StoreDenied(name, "under a lock")
        return delete(name, before_s)

    monkeypatch.setattr(played.store, "delete_old", locked)
    found = expire(played.store, GROUP_ID, Retention(), dry_run=False, told=_quiet)

    assert (found.objects, found.locked) == (1, 1)
    assert denied[0] in contents(played.store)


def test_a_lost_manifest_and_its_chunks_are_rebuilt(played: Played, tmp_path: Path) -> None:
    """With the bases, and past objects that other runs left."""
    for _ in range(15):
        played.backup()
    whole = load(played.store)
    write_range(played.store, GROUP_ID, batches(played.log[:20]), previous_chain=0)
    write_range(played.store, GROUP_ID, batches(entries(5, seed=9)), previous_chain=0)
    for name in (*played.store.list(f"{GROUP_ID}/chunks"), f"{GROUP_ID}/{whole.name}"):
        played.store.delete(name)
    with pytest.raises(LostManifest):
        load(played.store)

    made = publish(played.store, rebuilt(played.store, GROUP_ID, _quiet))

    assert (made.number, made.first_index, made.last_index) == (16, 1, whole.last_index)
    assert made.last_chain == whole.last_chain
    assert [each.applied_index for each in made.bases] == [
        PER_DAY * PER_TURN,
        2 * PER_DAY * PER_TURN,
    ]
    assert verify(played.store, scratch=tmp_path / "scratch").last_index == whole.last_index


def test_damaged_objects_are_left_out_of_what_is_rebuilt(tmp_path: Path) -> None:
    """What is behind one cannot be restored without a base; without any start nothing can."""
    store = Store.open(f"file://{tmp_path}/store")
    published = backup(store, entries(60), (20, 20, 20))
    flip(store, f"{GROUP_ID}/{published.files[1].name}")
    said: list[str] = []

    made = rebuilt(store, GROUP_ID, said.append)

    assert (made.first_index, made.last_index, made.group) == (1, 20, "orders")
    assert any(line.startswith("left out: corrupt object") for line in said)
    store.delete(f"{GROUP_ID}/{published.files[0].name}")
    with pytest.raises(NoBackup, match="from entry 1 or from a base on"):
        rebuilt(store, GROUP_ID, _quiet)


def test_a_truncated_or_foreign_base_is_named(played: Played, tmp_path: Path) -> None:
    """By restore and by verify; nothing is left that a node could start from."""
    for _ in range(7):
        played.backup()
    name = f"{GROUP_ID}/{load(played.store).bases[0].name}"
    whole = played.store.get(name).to_pybytes()
    for spoilt in (whole[:-9], whole[: len(whole) // 2], whole.replace(b"6b1f3d1e", b"7b1f3d1e")):
        played.store.put(name, spoilt)
        for act in (
            lambda: verify(played.store),
            lambda: restore(played.store, None, tmp_path / "data", name="dev/node-0"),
        ):
            with pytest.raises(Exception, match=r"not a snapshot|is not the snapshot|is of group"):
                act()
    played.store.delete(name)
    with pytest.raises(ObjectMissing, match=name):
        verify(played.store)
    assert not (tmp_path / "data/identity.json").exists()


def _quiet(_: str) -> None:
    pass


@pytest.mark.found
@pytest.mark.parametrize("kind", ["data", "bases"])
def test_a_foreign_name_stops_neither_gc_nor_repair(
    played: Played, tmp_path: Path, kind: str
) -> None:
    """Such as a copy that someone made by hand: it stays, and is none of a backup's objects."""
    for _ in range(7):
        played.backup()
    foreign = tmp_path / "store" / GROUP_ID / kind / "copy of backup (1).parquet"
    foreign.write_bytes(b"x")
    orphan = write_range(played.store, GROUP_ID, batches(entries(5, seed=9)), previous_chain=0)
    age(tmp_path / "store", 3)

    found = expire(played.store, GROUP_ID, Retention(keep_days=1), dry_run=False, told=_quiet)
    made = rebuilt(played.store, GROUP_ID, _quiet)

    assert found.objects > 0
    assert f"{GROUP_ID}/{orphan.name}" not in contents(played.store)
    assert (made.last_index, len(made.bases)) == (load(played.store).last_index, 1)
    assert foreign.exists()


@pytest.mark.found
def test_a_repair_never_states_an_earlier_time(played: Played) -> None:
    """An idle group's backup is whole up to a time behind its last entry, and stays so."""
    played.backup()
    played.backup()
    known = load(played.store)
    later = replace(known, number=3, as_of_ms=known.as_of_ms + 5000)
    publish(played.store, later)

    made = publish(played.store, rebuilt(played.store, GROUP_ID, _quiet))
    assert made.as_of_ms == later.as_of_ms

    played.store.delete(f"{GROUP_ID}/{known.files[-1].name}")
    less = rebuilt(played.store, GROUP_ID, _quiet)
    assert less.last_index < known.last_index
    assert less.as_of_ms == less.last_timestamp_ms < known.as_of_ms


def test_copies_go_and_all_times_stay(played: Played, tmp_path: Path) -> None:
    """What the newest backup does not name, and every manifest but the newest."""
    for _ in range(8):
        previous, last = played.backup(), PER_TURN * (played.turn + 1)
        played.turn += 1
        part = batches(played.log[:last])
        merged = write_range(played.store, GROUP_ID, part, previous_chain=0)
        made = replace(first_manifest("orders", GROUP_ID, [merged]), number=previous.number + 1)
        point = RestorePoint(last_index=last, kept_from=1, as_of_ms=TURN_MS * played.turn)
        publish(played.store, replace(made, points=previous.points).seen(point))
    age(tmp_path / "store", 2)
    before = load(played.store)

    found = expire(played.store, GROUP_ID, Retention(drop_copies=True), dry_run=False, told=_quiet)

    assert found.manifests == tuple(range(1, before.number))
    assert load(played.store) == before
    listed = [name for name in contents(played.store) if name.startswith(f"{GROUP_ID}/data/0")]
    assert listed == [f"{GROUP_ID}/{row.name}" for row in before.files]
    assert verify(played.store).records == before.last_index
    with pytest.raises(InvalidArgument, match="without --keep-days"):
        Retention(drop_copies=True, keep_days=3)
