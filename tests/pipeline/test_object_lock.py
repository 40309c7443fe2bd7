"""gc in stores that must not let objects go: object lock of a real S3 server, both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dledger_pipeline.archive.archive import write_range
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.cli.main import main
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import GROUP_ID, age, backup, batches, contents, entries
from tests.pipeline.s3_server import S3Server, s3_server

DAYS = 100


@pytest.fixture(scope="module")
def versioned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return a server whose buckets keep versions, as Amazon's under object lock must."""
    versions = tmp_path_factory.mktemp("versions")
    with s3_server(tmp_path_factory.mktemp("s3"), versions=versions) as server:
        yield server


def _orphan(store: Store, seed: int) -> str:
    part = batches(entries(5, seed=seed))
    return f"{GROUP_ID}/{write_range(store, GROUP_ID, part, previous_chain=0).name}"


def _gc(
    server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object], str]:
    """Run the command; return its exit code, its result and what it says."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.credentials.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.credentials.secret_access_key)
    where = ["--store", url, "--store-endpoint", server.endpoint, "--allow-http"]
    capsys.readouterr()
    code = main(["gc", *where, "--keep-days", "1", "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out), shown.err


def test_what_is_under_a_lock_is_told_and_the_rest_goes(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server denies a delete; that is no failure, and a backup that stays can be restored."""
    url = s3.locking_bucket("locking")
    store = s3.store(url)
    first, second = (backup(store, entries(count), (count,)) for count in (20, 40))
    held, free = (_orphan(store, seed) for seed in (8, 9))
    for name in (held, f"{GROUP_ID}/{first.name}"):
        s3.hold(url, name)
    age(s3.directory / "locking/backups", days=2)

    code, result, said = _gc(s3, url, monkeypatch, capsys)

    assert code == 0, said
    assert (result["locked"], result["objects"], result["manifests"]) == (2, 1, []), said
    assert f"not deleted: the store denies access to {url}/{held}" in said
    assert "2 objects could not be deleted" in said
    assert held in contents(store)
    assert free not in contents(store)
    for backed_up in (first, second):
        assert verify(store, number=backed_up.number).last_index == backed_up.last_index


def test_where_everything_is_locked_nothing_goes(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For as many days as the bucket says."""
    url = s3.locked_bucket("locked", DAYS)
    store = s3.store(url)
    backup(store, entries(20), (20,))
    _orphan(store, 8)
    age(s3.directory / "locked/backups", days=2)
    before = contents(store)

    code, result, said = _gc(s3, url, monkeypatch, capsys)

    assert (code, result["locked"], result["freedBytes"]) == (0, 1, 0), said
    assert contents(store) == before


def test_what_stays_as_a_version_is_not_said_to_be_freed(
    versioned: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A delete hides an object, and its bytes are still paid for."""
    url = versioned.locked_bucket("locked", DAYS)
    store = versioned.store(url)
    for count in (20, 40):
        backup(store, entries(count), (count,))
    hidden = _orphan(store, 8)
    assert _orphan(store, 8) == hidden
    size_bytes = store.size(hidden)
    age(versioned.directory / "locked/backups", days=2)

    code, result, said = _gc(versioned, url, monkeypatch, capsys)

    assert code == 0, said
    assert result["freedBytes"] == 0
    assert int(str(result["hiddenBytes"])) > size_bytes
    assert result["manifests"] == [1]
    assert "stay in the store as old versions" in said
    assert hidden not in contents(store)
    listed = versioned.ask("GET", "/locked", "versions=").decode()
    assert f"<Key>backups/{hidden}</Key>" in listed
    assert verify(store).records == 40
