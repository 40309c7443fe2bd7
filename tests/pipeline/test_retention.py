"""A group that has dropped its oldest entries: backed up, after a gap too, and founded anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger.client import AdminClient, Client, Record, StoredRecord
from dledger.errors import InvalidArgument
from dledger_pipeline.archive.catalog import load
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.log.export_client import ExportClient, ExportPlan
from dledger_pipeline.object_store.store import Store
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.pipeline.message_logs import rows
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.slow

TOPIC = "orders"
KEPT = [f"kept {number}".encode() for number in range(40)]
SMALL = ("segment_bytes=1048576", "snapshot_bytes=1048576", "snapshot_entries=10")


@contextmanager
def running(directory: Path, port: int, *settings: str) -> Iterator[DevGroup]:
    """Run a group of one node until the block ends."""
    group = DevGroup(directory, port, *SMALL, *settings, nodes=1)
    try:
        group.announced()
        yield group
    finally:
        group.stop()


async def _produce(address: str, name: str, batches: int) -> None:
    async with Client(address, timeout_s=120, client_id=name) as client:
        await client.create_topic(TOPIC, queues=1)
        for batch in range(batches):
            records = [
                Record(
                    body=f"{batch}-{row}".encode().ljust(1024, b"x"), message_id=f"{batch}-{row}"
                )
                for row in range(50)
            ]
            await client.append(TOPIC, records)


def produce_until_dropped(directory: Path, port: int, name: str, beyond: int) -> None:
    """Run a node that drops all but its newest segments until it has dropped entry *beyond*."""
    numbers = iter(range(100))
    with running(directory, port, "storage_bytes=67108864", "disk_watermark_percent=1") as group:

        def dropped() -> bool:
            asyncio.run(_produce(group.endpoints[0], f"{name}-{next(numbers)}", 40))
            return plan_of(group).first_available > beyond

        eventually_blocking(dropped, "old entries are dropped", 120)


def plan_of(group: DevGroup) -> ExportPlan:
    """Return how the node would cut what it keeps."""
    with ExportClient(group.admins[0]) as exporter:
        return exporter.plan()


def stored(address: str) -> list[StoredRecord]:
    """Return every message that a consumer can read."""
    return asyncio.run(_stored(address))


async def _stored(address: str) -> list[StoredRecord]:
    async with Client(address, timeout_s=120) as client:
        try:
            return [each async for each in client.read(TOPIC, 0)]
        except InvalidArgument as error:  # "offset 0 is outside [first, last]"
            first = int(str(error).partition("[")[2].partition(",")[0])
        return [each async for each in client.read(TOPIC, 0, start_offset=first)]


def founded(directory: Path, last_index: int) -> list[StoredRecord]:
    """Found a group on a restored directory; return its messages, after it has taken another."""
    with running(directory, free_port_range()) as group:
        messages = stored(group.endpoints[0])
        asyncio.run(_produce(group.endpoints[0], "later", 1))
        assert len(stored(group.endpoints[0])) == len(messages) + 50
        assert asyncio.run(_recovered_to(group.admins[0])) == last_index
        return messages


async def _recovered_to(address: str) -> int:
    async with AdminClient(address, timeout_s=60) as admin:
        return (await admin.status()).recovered_to


def run(store: Store, group: DevGroup) -> tuple[dict[str, object], list[str]]:
    """Back the group up; return the result and what was said on the way."""
    said: list[str] = []
    request = BackupRequest(
        endpoints=tuple(group.admins), store=store, target_bytes=1 << 20, master="local[1]"
    )
    return backup(request, Progress("backup", said.append)), said


def values(messages: Sequence[StoredRecord]) -> list[tuple[int, bytes]]:
    """Return offsets and bodies."""
    return [(each.offset, each.record.body) for each in messages]


@pytest.mark.long
def test_a_node_that_has_dropped_messages_is_read_as_a_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """While it runs and from its disk: what consumers can still read."""
    port = free_port_range()
    produce_until_dropped(tmp_path / "data", port, "first", 1)
    options = {"topic": TOPIC, "columns": "queue_offset,body"}

    with running(tmp_path / "data", port) as group:
        expected = values(stored(group.endpoints[0]))
        frame = spark.read.format("dledger").options(**options, endpoint=",".join(group.admins))
        live = [(offset, bytes(body)) for offset, body in frame.load().collect()]
    frame = spark.read.format("dledger").options(**options, data=f"{tmp_path}/data/node-0")
    disk = [(offset, bytes(body)) for offset, body in frame.load().collect()]

    assert expected[0][0] > 0
    assert sorted(live) == sorted(disk) == expected


@pytest.mark.long
def test_a_group_whose_first_entries_are_gone_is_backed_up_and_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every message that the node keeps comes back; so it is again after a gap."""
    store, port = Store.open(f"file://{tmp_path}/store"), free_port_range()
    produce_until_dropped(tmp_path / "data", port, "first", 1)

    with running(tmp_path / "data", port) as group:
        kept = plan_of(group)
        result, said = run(store, group)
        expected = stored(group.endpoints[0])

    assert result["newBase"] == f"nodes keep entries from {kept.first_available} on"
    assert any(line.startswith("a new base") for line in said)
    assert (result["bases"], result["firstIndex"]) == (1, kept.kept_from)
    assert verify(store, scratch=tmp_path / "scratch").compared_bytes == result["bytes"]
    restored = restore(store, None, tmp_path / "new/node-0", name="dev/node-0")
    assert values(founded(tmp_path / "new", restored.last_index)) == values(expected)

    produce_until_dropped(tmp_path / "data", port, "second", restored.last_index + 1)
    with running(tmp_path / "data", port) as group:
        later = plan_of(group)
        result, said = run(store, group)
        expected = stored(group.endpoints[0])

    gap = f"[{restored.last_index + 1}, {later.first_available - 1}]"
    assert gap in str(result["newBase"])
    assert (result["bases"], result["number"]) == (2, 2)
    assert verify(store).records == result["records"]
    again = restore(store, None, tmp_path / "newer/node-0", name="dev/node-0")
    assert again.first_index == later.kept_from
    assert values(founded(tmp_path / "newer", again.last_index)) == values(expected)


@pytest.mark.long
def test_what_a_topic_keeps_for_ever_is_restored_with_its_group(tmp_path: Path) -> None:
    """Its messages lie in copies by then: with the offsets that they had, and more can be sent."""
    store, port = Store.open(f"file://{tmp_path}/store"), free_port_range()
    with running(tmp_path / "data", port) as group:
        asyncio.run(_keep(group, KEPT))
        stored_by = plan_of(group).ranges[-1].last_index
    produce_until_dropped(tmp_path / "data", port, "first", stored_by)

    with running(tmp_path / "data", port) as group:
        run(store, group)
        expected = asyncio.run(_read_kept(group.endpoints[0]))
    verify(store, scratch=tmp_path / "scratch")
    manifest = load(store)
    shown = rows(store, manifest, Selection(topic="kept"))
    restore(store, None, tmp_path / "new/node-0", name="dev/node-0")
    with running(tmp_path / "new", free_port_range()) as group:
        found = asyncio.run(_read_kept(group.endpoints[0]))
        asyncio.run(_keep(group, [b"one more"]))
        after = asyncio.run(_read_kept(group.endpoints[0]))

    assert values(expected) == list(enumerate(KEPT))
    assert {row["queue_offset"]: row["body"] for row in shown} == dict(enumerate(KEPT))
    assert {row["index"] for row in shown} == {stored_by} < {*range(manifest.first_index)}
    assert values(found) == values(expected)
    assert values(after) == list(enumerate([*KEPT, b"one more"]))


async def _keep(group: DevGroup, bodies: list[bytes]) -> None:
    async with Client(group.endpoints[0], timeout_s=120) as client:
        await client.create_topic("kept", queues=1)
        async with AdminClient(group.admins[0], timeout_s=120) as admin:
            await admin.set_topic_retention("kept", 0)
        await client.append("kept", bodies)


async def _read_kept(address: str) -> list[StoredRecord]:
    async with Client(address, timeout_s=120) as client:
        return [each async for each in client.read("kept", 0)]
