"""The object stores: what is promised of names, atomic writes and errors, on files and real S3."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dledger_pipeline.errors import (
    AlreadyExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)
from dledger_pipeline.object_store import s3_requests
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Credentials
from tests.pipeline.s3_server import S3Server

WRITERS = 6


def test_an_object_is_read_as_it_was_written(store: Store) -> None:
    """Also a replaced one; and its size and being there."""
    store.put("a/b.json", b"old")
    store.put("a/b.json", memoryview(b"newer"))

    assert store.get("a/b.json").to_pybytes() == b"newer"
    assert store.size("a/b.json") == 5
    with pytest.raises(ObjectMissing):
        store.size("a/c.json")


def test_objects_are_listed_below_a_folder(store: Store) -> None:
    """Sorted, by their full names; not those beside it."""
    for name in ("x/data/2", "x/data/1", "x/HEAD", "xy/HEAD"):
        store.put(name, b"1")

    assert list(store.list("x")) == ["x/HEAD", "x/data/1", "x/data/2"]
    assert list(store.list()) == ["x/HEAD", "x/data/1", "x/data/2", "xy/HEAD"]
    assert list(store.list("nowhere")) == []


def test_folders_that_a_file_system_makes_are_nobodys(tmp_path: Path) -> None:
    """A store may be a whole volume: ext4 has lost+found there, a file server its snapshots."""
    for name in ("lost+found", ".snapshot", "group/data"):
        (tmp_path / name).mkdir(parents=True)

    assert list(Store.open(f"file://{tmp_path}").folders()) == ["group"]


def test_what_exists_is_not_created_again(store: Store) -> None:
    """The first one stays."""
    store.create("a", b"first")

    with pytest.raises(AlreadyExists, match="object a exists"):
        store.create("a", b"second")

    assert store.get("a").to_pybytes() == b"first"


def test_a_replaced_object_is_not_replaced_by_who_has_read_the_old_one(store: Store) -> None:
    """Compare and swap; what is not there cannot be replaced at all."""
    store.create("HEAD", b"1")
    version = store.get_versioned("HEAD").version

    store.replace("HEAD", b"2", version)

    with pytest.raises(VersionConflict, match="HEAD"):
        store.replace("HEAD", b"3", version)
    with pytest.raises(VersionConflict, match="nothing"):
        store.replace("nothing", b"3", version)
    assert store.get("HEAD").to_pybytes() == b"2"


def _winners(write: Callable[[int], None]) -> list[int]:
    """Let writers write at once; return those that were not refused."""
    barrier, won = threading.Barrier(WRITERS), []

    def run(number: int) -> None:
        barrier.wait()
        try:
            write(number)
        except (AlreadyExists, VersionConflict):
            return
        won.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def _create(store: Store, name: str, number: int) -> None:
    store.create(name, b"%d" % number)


def _replace(store: Store, attempt: int, version: str, number: int) -> None:
    store.replace("HEAD", b"%d-%d" % (attempt, number), version)


def test_one_of_many_writers_creates_an_object(store: Store) -> None:
    """And it is that writer's."""
    for attempt in range(5):
        name = f"object-{attempt}"

        won = _winners(partial(_create, store, name))

        assert len(won) == 1
        assert store.get(name).to_pybytes() == b"%d" % won[0]


def test_one_of_many_writers_replaces_an_object(store: Store) -> None:
    """Each of them read the same version."""
    store.create("HEAD", b"start")
    for attempt in range(5):
        version = store.get_versioned("HEAD").version

        won = _winners(partial(_replace, store, attempt, version))

        assert len(won) == 1
        assert store.get("HEAD").to_pybytes() == b"%d-%d" % (attempt, won[0])


def test_what_is_missing_is_named(store: Store) -> None:
    """By reading and by asking for its size."""
    with pytest.raises(ObjectMissing, match="object data/1 is missing"):
        store.get("data/1")
    with pytest.raises(ObjectMissing, match="object data/1 is missing"):
        store.size("data/1")


@pytest.mark.parametrize("name", ["../a", "/a", "a//b", "", "a/../b", ".hidden", "a b"])
def test_names_that_lead_elsewhere_are_refused(store: Store, name: str) -> None:
    """They may come from a manifest."""
    with pytest.raises(StoreError, match="cannot be the name of an object"):
        store.get(name)


@pytest.mark.parametrize("url", ["file://data", "file:data", "s3://", "nothing://x", "data"])
def test_urls_that_are_none_of_a_store_are_refused(url: str) -> None:
    """With the URL in the sentence."""
    with pytest.raises(StoreError, match=url):
        Store.open(url)


def test_a_store_is_sent_to_workers_without_its_credentials(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process takes them from its own environment."""
    store = s3.store(s3.bucket("pickled"))
    store.put("a", b"1")

    sent = pickle.dumps(store)

    assert s3.credentials.secret_access_key.encode() not in sent
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.credentials.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.credentials.secret_access_key)
    assert pickle.loads(sent).get("a").to_pybytes() == b"1"  # noqa: S301 - our own bytes


@pytest.mark.parametrize("wrong", ["access_key_id", "secret_access_key"])
def test_wrong_credentials_are_denied_whatever_is_asked(s3: S3Server, wrong: str) -> None:
    """Not taken for an object that is missing."""
    url = s3.bucket(f"denied-{wrong.replace('_', '-')}")
    s3.store(url).put("a", b"1")
    store = replace(s3, credentials=replace(s3.credentials, **{wrong: "wrong"})).store(url)

    for ask in (
        lambda: store.get("a"),
        lambda: store.size("a"),
        lambda: store.size("nothing"),
        lambda: store.put("a", b"2"),
        lambda: store.create("b", b"2"),
        lambda: list(store.list()),
    ):
        with pytest.raises(StoreDenied, match=r"check the credentials"):
            ask()
    assert list(s3.store(url).list()) == ["a"]


def test_an_endpoint_without_credentials_is_denied_at_once(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of looking for a cloud's metadata service."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID"):
        Store.open("s3://bucket", s3.endpoint, allow_http=True)


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server) -> None:
    """It is not created by us."""
    store = s3.store("s3://no-such-bucket/x")

    with pytest.raises(StoreError, match=r"bucket of s3://no-such-bucket/x does not exist"):
        store.put("a", b"1")
    with pytest.raises(StoreError, match=r"bucket of s3://no-such-bucket/x does not exist"):
        list(store.list())


def test_a_store_that_cannot_be_reached_is_unavailable(s3: S3Server) -> None:
    """Try again, says the error."""
    store = replace(s3, endpoint="http://127.0.0.1:1").store("s3://bucket")

    with pytest.raises(StoreUnavailable, match="s3://bucket/a"):
        store.get("a")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A directory where an object should be."""
    (tmp_path / "data").mkdir()

    with pytest.raises(StoreUnavailable, match=f"{tmp_path}/data"):
        Store.open(f"file://{tmp_path}").get("data")


def test_what_a_killed_writer_leaves_is_no_object(tmp_path: Path) -> None:
    """Temporary files and the lock are not listed."""
    store = Store.open(f"file://{tmp_path}/new/folder")
    store.create("a/HEAD", b"1")
    store.replace("a/HEAD", b"2", store.get_versioned("a/HEAD").version)
    (tmp_path / "new/folder/a/.HEAD.0123").write_bytes(b"half")

    assert list(store.list()) == ["a/HEAD"]


@pytest.mark.found
def test_what_no_object_can_be_called_is_left_out_of_listings_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each name once, and not thousands of them."""
    store = Store.open(f"file://{tmp_path}/store")
    store.put("g/data/a", b"")
    folder = tmp_path / "store/g/data"
    (folder / "copy of a (1).parquet").write_bytes(b"x")

    assert [*store.list("g/data"), *store.list("g")] == ["g/data/a"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        f"left out of {store.url}: 'g/data/copy of a (1).parquet' is no name of ours"
    ]
    for n in range(30):
        (folder / f"~ {n}").write_bytes(b"x")
    assert [*store.list("g/data")] == ["g/data/a"]
    assert len(caplog.records) == 11
    assert caplog.messages[-1].endswith("more names that are none of ours")


@pytest.mark.parametrize("url", ["file:///a/orders#1", "file:///a/b?c", "s3://bucket/a?b=c"])
def test_a_url_that_would_lose_its_end_is_refused(url: str) -> None:
    """Two stores, orders#1 and orders#2, would be one."""
    with pytest.raises(StoreError, match=r"has no # and no \?"):
        Store.open(url)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After seconds for each request of some bytes, not after the minutes of a whole object."""
    monkeypatch.setattr(s3_requests, "_ANSWERING_S", 0.1)
    monkeypatch.setattr(s3_requests, "_TRIES", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        credentials = Credentials(access_key_id="k", secret_access_key="s")  # noqa: S106
        store = Store.open("s3://bucket/a", endpoint, credentials, allow_http=True)
        requests: list[Callable[[], object]] = [
            lambda: store.get("a"),
            lambda: store.size("a"),
            lambda: [*store.list()],
            lambda: store.put("a", b"x"),
            lambda: store.delete("a"),
        ]
        for request in requests:
            with pytest.raises(StoreUnavailable):
                request()
