"""A restored log is the log that was backed up, byte for byte, or there is no restored log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import CorruptFile, DirectoryLocked, DiskFull, StorageError
from dledger.files.files import DiskUsage, File, Mode, RealFiles
from dledger.store.commit_log import CommitLog
from dledger.store.identity import (
    LOG_DIRECTORY,
    join,
    load_identity,
    load_or_format,
    lock_directory,
)
from dledger.types import Entry, EntryKind, Member, Membership, NodeId
from dledger_pipeline.archive import restore as module
from dledger_pipeline.archive.restore import RestoreResult, restore
from dledger_pipeline.errors import (
    BackupError,
    CorruptObject,
    DirectoryNotEmpty,
    ForeignManifest,
    NoBackup,
    ObjectMissing,
    StoreError,
    TargetNotAvailable,
)
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import (
    GROUP_ID,
    SEGMENT_BYTES,
    backup,
    contents,
    data_directory,
    entries,
    entry,
    flip,
)

ENTRIES = entries(200)
NAME = "orders-restored/orders-restored-0"
NEW_ID = "99999999-1111-2222-3333-444444444444"


@pytest.fixture
def file_store(tmp_path: Path) -> Store:
    """Return a store in a directory with a backup of `ENTRIES`."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, ENTRIES, (70, 1, 129))
    return store


def run(store: Store, directory: Path, **options: Any) -> RestoreResult:
    """Restore with the segment size of the tests."""
    return restore(store, GROUP_ID, directory, name=NAME, segment_bytes=SEGMENT_BYTES, **options)


def record_bytes(directory: Path) -> bytes:
    """Return all record bytes of a data directory, by the pipeline's reader."""
    return b"".join(bytes(chunk.data) for chunk in read_log(directory))


def opened_entries(directory: Path, group_id: str = NEW_ID) -> list[Entry]:
    """Open the directory as a node of a new group does; return the entries of its log."""
    files = RealFiles()
    identity = load_identity(files, directory)
    assert identity is not None
    identity = join(files, directory, identity, group_id)
    log = CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity, reserve_bytes=0)
    try:
        found: list[Entry] = []
        while len(found) < log.last_index:
            found += log.read(len(found) + 1, log.last_index, 1 << 20)
        return found
    finally:
        log.close()


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_restored_log_is_the_original_byte_for_byte(store: Store, tmp_path: Path) -> None:
    """Segment by segment: all but the header page, whose node is another; index files wholly."""
    original = data_directory(tmp_path / "original", ENTRIES)
    backup(store, ENTRIES, (70, 1, 129))

    result = run(store, tmp_path / "restored")

    assert record_bytes(tmp_path / "restored") == record_bytes(original)
    ours, theirs = snapshot(tmp_path / "restored/log"), snapshot(original / "log")
    assert ours.keys() == theirs.keys()
    assert len(ours) > 8
    for name in ours.keys() - {"watermark"}:
        start = 4096 if name.endswith(".seg") else 0
        assert ours[name][start:] == theirs[name][start:], name
    assert (result.group_id, result.records, result.last_index) == (GROUP_ID, 200, 200)
    assert (result.term, result.last_timestamp_ms) == (11, 1990)
    assert result.record_bytes == len(record_bytes(original))


def test_a_restored_directory_is_an_unjoined_nodes(file_store: Store, tmp_path: Path) -> None:
    """With a node id of its own and the mark of how far its history goes; a new group opens it."""
    result = run(file_store, tmp_path / "data")

    identity = load_identity(RealFiles(), tmp_path / "data")
    assert identity is not None
    assert (identity.group_id, identity.name, identity.node_id) == ("", NAME, result.node_id)
    assert (identity.recovered_from, identity.recovered_to) == (GROUP_ID, 200)
    assert load_or_format(RealFiles(), tmp_path / "data", NAME) == identity
    assert opened_entries(tmp_path / "data") == ENTRIES


@pytest.mark.parametrize("index", [1, 69, 70, 71, 72, 120, 200])
def test_a_log_is_restored_to_an_index(file_store: Store, tmp_path: Path, index: int) -> None:
    """Inclusive."""
    result = run(file_store, tmp_path / "data", target_index=index)

    assert result.last_index == result.records == index
    assert result.record_bytes == len(record_bytes(tmp_path / "data"))
    assert result.term == ENTRIES[index - 1].term
    assert result.last_timestamp_ms == max(one.timestamp_ms for one in ENTRIES[:index])
    assert opened_entries(tmp_path / "data") == ENTRIES[:index]


@pytest.mark.parametrize(
    ("time_ms", "index"), [(10, 1), (19, 1), (190, 20), (705, 70), (1990, 200)]
)
def test_a_log_is_restored_to_a_time(
    file_store: Store, tmp_path: Path, time_ms: int, index: int
) -> None:
    """Up to the last entry before the first later one; no-ops have no time."""
    assert run(file_store, tmp_path / "data", target_time_ms=time_ms).last_index == index
    assert opened_entries(tmp_path / "data") == ENTRIES[:index]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"target_index": 201}, r"entry 201 cannot be restored: .* an entry in \[1, 200\]"),
        ({"target_index": 0}, r"entry 0 cannot be restored: .* an entry in \[1, 200\]"),
        ({"target_time_ms": 9}, r"00:00.009Z is before the first message: .*00:00.010Z, .*01.990Z"),
        ({"target_time_ms": 1991}, r"does not reach .*00:01.991Z: .*00:00.010Z, .*00:01.990Z"),
        ({"target_index": 1, "target_time_ms": 10}, "not to both"),
    ],
)
def test_targets_that_the_backup_does_not_hold_are_refused(
    file_store: Store, tmp_path: Path, target: dict[str, int], words: str
) -> None:
    """Before anything is written."""
    with pytest.raises(TargetNotAvailable, match=words):
        run(file_store, tmp_path / "data", **target)

    assert not (tmp_path / "data").exists()


memberships = st.builds(
    lambda n: Membership((Member(id=NodeId(f"n{n}"), name=f"orders-{n}", address="a:1"),)).encode(),
    st.integers(0, 3),
)
logs = st.lists(
    st.one_of(
        st.tuples(st.just(EntryKind.DATA), st.binary(max_size=9000)),
        st.tuples(st.just(EntryKind.MEMBERSHIP), memberships),
        st.tuples(st.just(EntryKind.NOOP), st.just(b"")),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=15)
@given(rows=logs, data=st.data())
def test_any_log_is_restored_as_a_node_would_have_written_it(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[EntryKind, bytes]],
    data: st.DataObject,
) -> None:
    """Any sizes, kinds and terms; any cut into objects; any target."""
    tmp_path = tmp_path_factory.mktemp("restore")
    log = [_of_kind(number, kind, body) for number, (kind, body) in enumerate(rows, 1)]
    cuts = data.draw(st.lists(st.integers(1, 5), max_size=4))
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, log, _ranges(len(log), cuts))
    target = data.draw(st.integers(1, len(log)))

    run(store, tmp_path / "data", target_index=target)

    expected = data_directory(tmp_path / "expected", log[:target])
    assert record_bytes(tmp_path / "data") == record_bytes(expected)
    assert opened_entries(tmp_path / "data") == log[:target]


def _of_kind(index: int, kind: EntryKind, body: bytes) -> Entry:
    made = entry(index, term=1 + index // 3, data=body, timestamp_ms=index)
    return Entry(
        term=made.term,
        index=index,
        kind=kind,
        timestamp_ms=made.timestamp_ms,
        crc32c=made.crc32c,
        data=body,
    )


def _ranges(count: int, cuts: list[int]) -> list[int]:
    ranges: list[int] = []
    for cut in cuts:
        if sum(ranges) + cut < count:
            ranges.append(cut)
    return [*ranges, count - sum(ranges)]


def test_a_directory_with_contents_is_not_touched(file_store: Store, tmp_path: Path) -> None:
    """A node's, or anyone's."""
    node = data_directory(tmp_path / "node", ENTRIES[:10])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_bytes(b"mine")
    before = snapshot(tmp_path)

    with pytest.raises(DirectoryNotEmpty, match="orders/orders-0"):
        run(file_store, node)
    with pytest.raises(DirectoryNotEmpty, match=r"notes\.txt"):
        run(file_store, tmp_path / "other")

    assert snapshot(tmp_path) == before


def test_a_fresh_volume_is_empty(file_store: Store, tmp_path: Path) -> None:
    """Though file systems put a directory of their own there."""
    (tmp_path / "data/lost+found").mkdir(parents=True)

    assert run(file_store, tmp_path / "data").records == 200


def test_a_directory_in_use_is_refused(file_store: Store, tmp_path: Path) -> None:
    """By its lock."""
    lock = lock_directory(RealFiles(), tmp_path / "data")

    with pytest.raises(DirectoryLocked, match="in use"):
        run(file_store, tmp_path / "data")
    lock.close()


def test_a_repeated_restore_says_what_is_there(file_store: Store, tmp_path: Path) -> None:
    """A Job that is run again finds its work done; until the node belongs to a group."""
    result = run(file_store, tmp_path / "data", target_index=150)
    before = snapshot(tmp_path / "data")

    assert run(file_store, tmp_path / "data", target_index=150) == result
    assert snapshot(tmp_path / "data") == before
    with pytest.raises(DirectoryNotEmpty):
        run(file_store, tmp_path / "data", target_index=151)
    assert len(opened_entries(tmp_path / "data")) == 150
    with pytest.raises(DirectoryNotEmpty):
        run(file_store, tmp_path / "data", target_index=150)


class Killed(BaseException):
    """The process ends here; nothing catches it."""


class KillingFiles(RealFiles):
    """Ends the process at a file operation, counted over all of them."""

    left = 0

    def _step(self) -> None:
        KillingFiles.left -= 1
        if KillingFiles.left < 0:
            raise Killed

    def open(self, path: Path, mode: Mode) -> Any:
        """Open, or end."""
        self._step()
        return super().open(path, mode)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, or end."""
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove, or end."""
        self._step()
        super().remove(path)

    def fsync_dir(self, directory: Path) -> None:
        """Sync, or end."""
        self._step()
        super().fsync_dir(directory)


def test_a_killed_restore_is_completed_by_the_next(
    file_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every third file operation of it; and no node takes what it left for a whole log."""
    monkeypatch.setattr(module, "RealFiles", KillingFiles)
    steps, finished = 0, False
    while not finished:
        directory = tmp_path / str(steps)
        KillingFiles.left = steps
        finished = not _is_killed(partial(run, file_store, directory))
        if not finished:
            _check_not_taken_for_whole(directory, tmp_path / f"copy-{steps}")
            KillingFiles.left = 10**6
            run(file_store, directory)
        assert opened_entries(directory) == ENTRIES
        steps += 3

    assert steps > 45


def _is_killed(act: Callable[[], object]) -> bool:
    try:
        act()
    except Killed:
        return True
    return False


def _check_not_taken_for_whole(directory: Path, copy: Path) -> None:
    """A node refuses the directory, or finds it empty, or the restore was complete."""
    for name, data in snapshot(directory).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    try:
        identity = load_or_format(RealFiles(), copy, NAME)
    except CorruptFile as error:
        assert "missing" in error.reason  # noqa: PT017 - one of three good outcomes
        return
    assert len(opened_entries(copy)) == identity.recovered_to
    assert identity.recovered_to in (0, 200)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (flip, CorruptObject),
        (lambda store, name: store.put(name, store.get(name)[:-5]), CorruptObject),
        (lambda store, name: Path(store.url[7:], name).unlink(), ObjectMissing),
    ],
    ids=["flipped", "truncated", "missing"],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_backup_is_named_and_not_restored(
    file_store: Store, tmp_path: Path, spoil: Any, error: type[StoreError], number: int
) -> None:
    """The object; the directory does not become a node's; the store stays as it is."""
    name = [name for name in file_store.list() if "/data/" in name][number]
    spoil(file_store, name)
    before = contents(file_store)

    with pytest.raises(error, match=name):
        run(file_store, tmp_path / "data")

    assert load_identity(RealFiles(), tmp_path / "data") is None
    assert contents(file_store) == before


def test_another_groups_backup_is_not_restored(file_store: Store, tmp_path: Path) -> None:
    """Neither one that is not there, nor one that lies in another's place."""
    with pytest.raises(NoBackup, match=NEW_ID):
        restore(file_store, NEW_ID, tmp_path / "data", name=NAME)
    for name, data in contents(file_store).items():
        file_store.put(name.replace(GROUP_ID, NEW_ID), data)
    with pytest.raises(ForeignManifest, match=f"belongs to group {GROUP_ID}, not to {NEW_ID}"):
        restore(file_store, NEW_ID, tmp_path / "data", name=NAME)
    with pytest.raises(BackupError, match="give the group id"):
        restore(file_store, None, tmp_path / "data", name=NAME)

    assert not (tmp_path / "data").exists()


def test_a_full_disk_is_named(
    file_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the restore works when there is room."""
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "disk_usage", lambda *_: DiskUsage(1 << 30, 1 << 20))
        with pytest.raises(DiskFull, match=f"no room for a segment of {SEGMENT_BYTES} bytes"):
            run(file_store, tmp_path / "data")

    assert run(file_store, tmp_path / "data").records == 200


def test_a_failing_disk_is_named(
    file_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync of a segment, which happens in the background, ends the restore."""

    def fail(self: File) -> None:
        raise OSError(5, "Input/output error")

    real = RealFiles.open

    def failing_open(self: RealFiles, path: Path, mode: Mode) -> Any:
        file = real(self, path, mode)
        if path.suffix == ".seg":
            monkeypatch.setattr(type(file), "fdatasync", fail)
        return file

    monkeypatch.setattr(RealFiles, "open", failing_open)

    with pytest.raises(StorageError, match=f"{tmp_path}/data"):
        run(file_store, tmp_path / "data")

    monkeypatch.undo()
    assert load_identity(RealFiles(), tmp_path / "data") is None


def test_progress_is_told_by_objects(file_store: Store, tmp_path: Path) -> None:
    """After each object, of how many in all."""
    told: list[tuple[int, int]] = []

    run(
        file_store,
        tmp_path / "data",
        target_index=150,
        progress=lambda row, total: told.append((row.last_index, total)),
    )

    assert told == [(70, 3), (71, 3), (150, 3)]
