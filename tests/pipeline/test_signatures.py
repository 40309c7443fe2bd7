"""Hashes tell damage, a signature tells who wrote it: with a key, a forged backup is none."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dledger_pipeline.archive.archive import write_range
from dledger_pipeline.archive.catalog import load, publish
from dledger_pipeline.archive.hashed_json import Signature
from dledger_pipeline.archive.manifest import manifest_name
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import CorruptManifest, CorruptObject, NotSigned, StoreError
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import (
    GROUP_ID,
    backup,
    batches,
    entries,
    file_rows,
    manifest,
    rewrite,
)

pytestmark = pytest.mark.found

KEY = "0123456789abcdef" * 2
ENTRIES = entries(30)
MANIFEST = f"{GROUP_ID}/{manifest_name(1)}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a store's URL."""
    return f"file://{tmp_path}/store"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the key that the environment has."""
    monkeypatch.setenv("DLEDGER_MANIFEST_KEY", KEY)
    return KEY


def forge(store: Store) -> None:
    """Put another history into the store, with all hashes right, as who may write to it can."""
    other = [*entries(29), *entries(30, seed=7)[29:]]
    row = write_range(store, GROUP_ID, batches(other), previous_chain=0)
    rewrite(store, load(store.trusted()), [asdict(row)])


def test_a_forged_manifest_is_refused_where_there_is_a_key(url: str, key: str) -> None:
    """With the key's own signature taken off, or left as it was."""
    store = Store.open(url)
    backup(store, ENTRIES, (30,))
    assert verify(store).signature is Signature.VALID
    signature = json.loads(store.get(MANIFEST).to_pybytes())["hmac_sha256"]

    forge(store)
    with pytest.raises(NotSigned, match="no signature"):
        verify(store)
    content = json.loads(store.get(MANIFEST).to_pybytes())
    store.put(MANIFEST, json.dumps(content | {"hmac_sha256": signature}).encode())
    with pytest.raises(NotSigned, match="signed with another key"):
        verify(store)
    assert verify(store.trusted()).records == 30, "nothing but the signature tells"


def test_without_a_key_verify_says_what_it_does_not_know(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unsigned, or signed by a key that is not here."""
    backup(Store.open(url), ENTRIES, (30,))
    assert main(["verify", "--store", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == "unsigned"

    monkeypatch.setenv("DLEDGER_MANIFEST_KEY", KEY)
    assert main(["sign", "--store", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == "valid"
    monkeypatch.delenv("DLEDGER_MANIFEST_KEY")
    assert main(["verify", "--store", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == "not checked"


def test_a_backup_older_than_the_key_is_signed_on_purpose_and_goes_on(url: str, key: str) -> None:
    """It is refused until then; what is added behind it is signed as well."""
    rows = write_range(Store.open(url), GROUP_ID, batches(ENTRIES), previous_chain=0)
    old = Store.open(url).trusted()
    first = publish(old, manifest((rows,)))
    with pytest.raises(NotSigned, match="dledger-pipeline sign"):
        load(Store.open(url))

    assert main(["sign", "--store", url]) == 0

    assert load(Store.open(url), GROUP_ID).last_index == 30
    later = write_range(
        Store.open(url),
        GROUP_ID,
        [batches(entries(40))[0].slice(30)],
        previous_chain=rows.last_chain,
    )
    publish(Store.open(url), first.followed_by([later]))
    assert verify(Store.open(url)).signature is Signature.VALID


def test_a_damaged_backup_is_not_signed(url: str, key: str, capsys: Any) -> None:
    """To sign is to say that it is whole."""
    store = Store.open(url)
    published = backup(store.trusted(), ENTRIES, (30,))
    store.put(f"{GROUP_ID}/{published.files[0].name}", b"other")

    assert main(["sign", "--store", url]) == 1

    assert "corrupt object" in capsys.readouterr().err
    with pytest.raises(NotSigned):
        load(store)


def test_a_short_key_is_no_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be guessed; and nothing is signed with what is not one."""
    monkeypatch.setenv("DLEDGER_MANIFEST_KEY", "secret")

    with pytest.raises(StoreError, match="openssl rand"):
        Store.open(url)


@pytest.mark.parametrize(
    "change",
    [
        {"records": -1},
        {"last_index": 1 << 70},
        {"record_bytes": True},
        {"first_chain": 1 << 32},
        {"object_bytes": 0},
        {"first_timestamp_ms": -1},
        {"last_term": 1 << 63},
    ],
)
def test_numbers_that_no_log_has_are_refused(url: str, change: dict[str, object]) -> None:
    """When the manifest is read, by name, not where they would not fit later."""
    store = Store.open(url)
    published = backup(store, ENTRIES, (30,))
    rewrite(store, published, file_rows(published, **change))

    with pytest.raises(CorruptManifest):
        load(store)


def test_a_plain_connection_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed requests and all messages go over it as they are."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(StoreError, match="--allow-http"):
        Store.open("s3://bucket", "http://127.0.0.1:1")

    Store.open("s3://bucket", "https://127.0.0.1:1")
    Store.open("s3://bucket", "http://127.0.0.1:1", allow_http=True)
    monkeypatch.setenv("DLEDGER_STORE_ALLOW_HTTP", "1")
    Store.open("s3://bucket", "http://127.0.0.1:1")


def test_a_link_or_a_pipe_is_no_object(url: str, tmp_path: Path) -> None:
    """Who may write to a directory does not choose what else is read, nor what hangs."""
    store = Store.open(url)
    store.create("a", b"1")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store/link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "store/pipe")

    for name in ("link", "pipe"):
        with pytest.raises(StoreError):
            store.get(name)
    assert list(store.list()) == ["a"]
    assert stat.S_IMODE((tmp_path / "store/a").stat().st_mode) & 0o007 == 0


def test_an_object_larger_than_any_of_ours_is_not_read(url: str, tmp_path: Path) -> None:
    """A manifest of a gigabyte, say; a HEAD of that length is as good as none."""
    store = Store.open(url)
    published = backup(store, ENTRIES, (30,))
    os.truncate(tmp_path / f"store/{GROUP_ID}/HEAD", 1 << 30)
    assert load(store) == published
    os.truncate(tmp_path / "store" / MANIFEST, 1 << 30)

    with pytest.raises(CorruptObject, match="it may have"):
        load(store)
