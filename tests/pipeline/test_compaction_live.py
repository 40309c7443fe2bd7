"""The job compact and running nodes: a fresh reader finds one message a key, the newest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.topics import Compaction
from dledger.client import AdminClient, Client, Record
from dledger_pipeline.cli.main import main
from dledger_pipeline.log.leader_client import CompactCall, Compacted, LeaderClient
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.pipeline.test_retention import plan_of
from tests.pipeline.test_retention import running as running_alone
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.slow
QUEUES = 2
KEYS = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return where the three nodes of a group are."""
    directory = tmp_path_factory.mktemp("group") / "data"
    group = DevGroup(directory, free_port_range(), "retention_hours=1")
    try:
        group.announced()
        yield eventually_blocking(group.whole, "the group is whole", 120)
    finally:
        group.stop()


async def _send(address: str, rounds: range) -> None:
    async with Client(address, timeout_s=120, client_id="test") as client:
        await client.create_topic(
            "prices", queues=QUEUES, compaction=Compaction(min_lag_ms=1, tombstone_ms=1)
        )
        for number in rounds:
            for key in range(KEYS):
                await client.append("prices", [_record(number, key)])


def _record(number: int, key: int) -> Record:
    is_deleted = number == 2 and key == 7
    return Record(
        body=b"gone" if is_deleted else f"{number} of {key}".encode(),
        keys=(f"key-{key}",),
        properties={"dledger.tombstone": "true"} if is_deleted else {},
    )


async def _read(address: str) -> dict[str, list[bytes]]:
    """Return what a new reader finds, by key."""
    found: dict[str, list[bytes]] = {}
    async with Client(address, timeout_s=120) as client:
        for queue_id in range(QUEUES):
            async for each in client.read("prices", queue_id, linearizable=True):
                found.setdefault(each.record.keys[0], []).append(each.record.body)
    return found


async def _hand_over(addresses: list[str]) -> None:
    for address in addresses:
        async with AdminClient(address, timeout_s=60) as admin:
            if (await admin.status()).role == "leader":
                await admin.transfer_leader()
                return


def test_a_table_is_what_a_fresh_reader_finds(
    running: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From nodes, and from a backup under another leader; a deleted key is gone in the end."""
    address, nodes = running["endpoints"][0], running["adminEndpoints"]
    where = ("--endpoint", ",".join(nodes), "--runner", "plain", "--rate", "0")
    ahead = ("--again-in", "365d", "--json")  # whatever retention reaches in a year is copied now
    store = ("--store", f"file://{tmp_path}/store")

    asyncio.run(_send(address, range(3)))
    assert main(["compact", *where, *ahead]) == 0
    first = json.loads(capsys.readouterr().out)
    after = asyncio.run(_read(address))
    asyncio.run(_send(address, range(3, 4)))
    assert main(["backup", *where, *store]) == 0
    asyncio.run(_hand_over(nodes))
    capsys.readouterr()
    assert main(["compact", *where, *ahead, *store]) == 0
    second = json.loads(capsys.readouterr().out)

    assert first["letGo"] == 2 * KEYS
    assert after.pop("key-7") == [b"gone"]
    assert after == {f"key-{n}": [f"2 of {n}".encode()] for n in range(KEYS) if n != 7}
    assert asyncio.run(_read(address)) == {f"key-{n}": [f"3 of {n}".encode()] for n in range(KEYS)}
    assert (second["letGo"], second["later"]) == (KEYS, 0)


def test_a_round_that_retention_overtakes_reads_again_and_completes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node drops what the round has read before it is told anything, and says so."""
    few = ("storage_bytes=67108864", "disk_watermark_percent=1")
    told, dropped = LeaderClient.compact, list[int]()
    with running_alone(tmp_path / "data", free_port_range(), *few) as group:
        address = group.endpoints[0]

        def after_retention(self: LeaderClient, call: CompactCall, *proofs: Any) -> Compacted:
            if not dropped:
                dropped.append(call.as_of_index)
                asyncio.run(_write(address))
                eventually_blocking(
                    lambda: plan_of(group).first_available > call.as_of_index + 1,
                    "the entries that the round has read are dropped",
                    120,
                )
            return told(self, call, *proofs)

        monkeypatch.setattr(LeaderClient, "compact", after_retention)
        asyncio.run(_send(address, range(3)))
        where = ("--endpoint", group.admins[0], "--runner", "plain", "--rate", "0")
        code = main(["compact", *where, "--again-in", "365d", "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        result = last = json.loads(said.out)
        while last["later"]:  # what the node has copied since the round read it is the next one's
            assert main(["compact", *where, "--again-in", "365d", "--json"]) == 0
            last = json.loads(capsys.readouterr().out)
        found = asyncio.run(_read(address))

    assert f"entry {dropped[0]} is not in the log any more" in said.err
    assert result["asOfIndex"] > dropped[0]
    assert result["letGo"] + result["later"] == result["topics"]["prices"]["mayGo"] == 2 * KEYS
    assert found.pop("key-7") == [b"gone"]
    assert found == {f"key-{n}": [f"2 of {n}".encode()] for n in range(KEYS) if n != 7}


async def _write(address: str) -> None:
    """Store some segments of messages that nothing keeps longer than the group does."""
    records = [Record(body=b"x" * 1024)] * 50
    async with Client(address, timeout_s=120, client_id="other") as client:
        await client.create_topic("orders", queues=1)
        for _ in range(100):
            await client.append("orders", records)
