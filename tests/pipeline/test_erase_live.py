"""The job erase and running nodes: older values that only backups have are shown by nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from dledger.broker.topics import Compaction
from dledger.client import Client, Record
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.cli.main import main
from dledger_pipeline.object_store.store import Store
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.pipeline.test_erased import places_in, state_of
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.slow
KEYS = ("user-17", "user-18")
ROUNDS = 3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return where the three nodes of a group are."""
    directory = tmp_path_factory.mktemp("group") / "data"
    group = DevGroup(directory, free_port_range())
    try:
        group.announced()
        yield eventually_blocking(group.whole, "the group is whole", 120)
    finally:
        group.stop()


async def _send(address: str) -> None:
    async with Client(address, timeout_s=120, client_id="test") as client:
        await client.create_topic(
            "people", queues=1, compaction=Compaction(min_lag_ms=1, tombstone_ms=1)
        )
        for number in range(ROUNDS):
            for key in KEYS:
                body = f"{number} of {key}".encode()
                await client.append("people", [Record(body=body, keys=(key,))])


def _bodies(store: Store, number: int | None) -> set[str]:
    """Return what view `messages` of a backup shows."""
    manifest = catalog.load(store, None, number)
    return {
        row["body"].decode()
        for each in archived_messages(store, manifest)
        for batch in each.read()
        for row in batch.to_pylist()
    }


def _back_up(where: Sequence[str], store: Store, wanted: set[str]) -> int:
    """Back up until the newest backup shows what it should, and return its number.

    It is made of a follower, which may not have heard of the last entries.
    """

    def backed_up() -> int:
        assert main(["backup", *where]) == 0
        return catalog.load(store, None).number if _bodies(store, None) == wanted else 0

    return eventually_blocking(backed_up, "the backup has all", 120)


def test_what_only_backups_have_of_a_key_is_shown_no_more(
    running: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by a query or an export, nor by a group that is restored to before it went."""
    nodes = ",".join(running["adminEndpoints"])
    url = f"file://{tmp_path}/store"
    where = ("--endpoint", nodes, "--store", url, "--runner", "plain", "--rate", "0", "--json")
    store = Store.open(url)
    asyncio.run(_send(running["endpoints"][0]))
    before = {f"{number} of {key}" for number in range(ROUNDS) for key in KEYS}
    others = {each for each in before if each.endswith(KEYS[1])}
    first = _back_up(where, store, before)
    assert main(["compact", *where, "--again-in", "365d"]) == 0
    assert main(["backup", *where]) == 0
    assert _bodies(store, first) == before
    last = catalog.load(store, None, first).last_index
    capsys.readouterr()

    assert main(["erase", *where, "--topic", "people", "--key", KEYS[0]]) == 0
    said = json.loads(capsys.readouterr().out)
    _back_up(where, store, others)

    assert (said["messages"], said["found"], said["older"]) == (1, ROUNDS, ROUNDS - 1)
    assert _bodies(store, first) == others
    to = ("--data", f"{tmp_path}/node", "--name", "dev/node-0")
    assert main(["restore", "--store", url, *to, "--to-index", f"{last}"]) == 0
    assert len(places_in(state_of(tmp_path / "node"))) == ROUNDS
    export = ("--store", url, "--to", f"file://{tmp_path}/table", "--runner", "plain")
    assert main(["export", *export]) == 0
    exported = ds.dataset(f"{tmp_path}/table", exclude_invalid_files=True).to_table()
    assert {each.decode() for each in exported.column("body").to_pylist()} == others
