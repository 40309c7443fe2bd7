"""From running nodes to a running group: exported, archived, restored, founded anew, compared."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dledger.client import Client, StoredRecord
from dledger_pipeline.archive.archive import write_range
from dledger_pipeline.archive.catalog import publish
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.errors import ForeignGroup, RangeNotAvailable
from dledger_pipeline.log.export_client import ExportClient, ExportPlan, choose_nodes
from dledger_pipeline.log.records import parse
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.store import Store
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.pipeline.live_group import QUEUES, TOPIC, LiveGroup
from tests.pipeline.logs import manifest
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.slow
RANGE_BYTES = 1 << 20


def plan_of(group: LiveGroup, address: str) -> ExportPlan:
    """Return how a node cuts the log up to the entry that all have."""
    with ExportClient(address) as exporter:
        plan = exporter.plan(last_index=group.last_index, target_bytes=RANGE_BYTES)
    return replace(plan, commit_index=0)  # a node may know of more by now


def exported(group: LiveGroup, address: str) -> bytes:
    """Return all record bytes of a node."""
    with ExportClient(address) as exporter:
        chunks = exporter.read(group.group_id, 1, group.last_index)
        return b"".join(bytes(chunk.data) for chunk in chunks)


def archive(group: LiveGroup, address: str, store: Store) -> Manifest:
    """Back up the group from one node, without Spark."""
    plan = plan_of(group, address)
    with ExportClient(address) as exporter:
        rows = tuple(
            write_range(
                store,
                plan.group_id,
                map(parse, exporter.read(plan.group_id, each.first_index, each.last_index)),
                previous_chain=each.previous_chain,
            )
            for each in plan.ranges
        )
    return publish(store, manifest(rows, plan.group_id))


async def read_all(address: str) -> dict[int, list[StoredRecord]]:
    """Return what consumers see in each queue, by any node."""
    async with Client(address) as client:
        return {queue: [one async for one in client.read(TOPIC, queue)] for queue in range(QUEUES)}


def test_every_node_gives_the_same_bytes_and_cuts_them_alike(group: LiveGroup) -> None:
    """Followers and leader."""
    plans = [plan_of(group, address) for address in group.admins]
    logs = [exported(group, address) for address in group.admins]

    assert plans[0] == plans[1] == plans[2]
    assert len(plans[0].ranges) > 5
    assert sum(each.size_bytes for each in plans[0].ranges) == len(logs[0])
    assert logs[0] == logs[1] == logs[2]


def test_a_follower_is_read_from(group: LiveGroup) -> None:
    """The leader has enough to do; it may be another one every time that the machine pauses."""

    def chosen_beside() -> str:
        leader = group.leader()
        chosen = choose_nodes(group.admins, timeout_s=60).addresses[0]
        return chosen if leader and chosen != leader == group.leader() else ""

    assert eventually_blocking(chosen_beside, "a follower is chosen", 60) in group.admins


def test_what_a_node_does_not_have_is_refused(group: LiveGroup) -> None:
    """Past its commit index, and of another group."""
    with ExportClient(group.admins[1]) as exporter:
        with pytest.raises(RangeNotAvailable, match="outside"):
            exporter.plan(last_index=1 << 40)
        with pytest.raises(ForeignGroup, match=group.group_id):
            list(exporter.read("another-group", 1, 2))


def test_a_group_is_founded_on_what_was_restored(group: LiveGroup, tmp_path: Path) -> None:
    """Record bytes are the exported ones; all members then show every message as it was."""
    store = Store.open(f"file://{tmp_path}/store")
    archived = archive(group, choose_nodes(group.admins).addresses[0], store)
    restored = tmp_path / "new" / "node-0"

    restore(store, group.group_id, restored, name="dev/node-0", segment_bytes=1 << 20)

    chunks = read_log(restored)
    assert b"".join(bytes(chunk.data) for chunk in chunks) == exported(group, group.admins[0])
    expected = group.stored()
    founded = DevGroup(tmp_path / "new", free_port_range(), "segment_bytes=1048576")
    try:
        endpoints = founded.announced()["endpoints"]
        for endpoint in endpoints:
            eventually_blocking(partial(_shows, endpoint, expected), "the messages are there", 60)
    finally:
        founded.stop()
    assert archived.last_index == group.last_index


def _shows(address: str, expected: dict[int, list[StoredRecord]]) -> bool:
    return asyncio.run(read_all(address)) == expected
