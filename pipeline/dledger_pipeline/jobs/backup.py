"""Backup: copies the log committed since the last backup to a store, range by range in Spark tasks.

The driver asks a node how to cut the log and gives each task one range; a task reads its range from
the node, checks it, and writes one object. The driver publishes the manifest when all objects
exist. So a run that is killed leaves objects that no manifest names, and the next run gets the same
ranges and writes the same objects. Called by the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from dledger.client import AdminClient
from dledger_pipeline.archive.archive import ManifestRow, write_range
from dledger_pipeline.archive.entry_ranges import ExportedRange, by_preference, exported
from dledger_pipeline.archive.manifest import Manifest, newest, publish
from dledger_pipeline.errors import BrokenBackup, ForeignGroup, RangeNotAvailable
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import COMPLETED, Progress, Result, count, size
from dledger_pipeline.log.export_client import TARGET_BYTES, ExportClient
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.session import collect, spark_session, typed_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest(SparkRequest):
    """What to back up, where to, and which Spark to use.

    Attributes:
        endpoints: Peer addresses (20911) of the group's nodes.
        last_index: The last entry wanted; 0: all that is committed.
        target_bytes: About how many record bytes an object holds.
    """

    endpoints: tuple[str, ...]
    last_index: int = 0
    target_bytes: int = TARGET_BYTES


@dataclass(frozen=True, slots=True)
class _Plan:
    """The group's name, and the ranges to be added."""

    group: str
    ranges: tuple[ExportedRange, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    store: Store
    entries: ExportedRange


def backup(request: BackupRequest, progress: Progress) -> Result:
    """Add new entries to the group's backup; return the newest backup.

    If there are no new entries, or the newest backup has *last_index* already, it is unchanged.

    Raises:
        ExportError: No node exports these entries.
        StoreError, BackupError: The store failed, or its backup is damaged.
        CorruptRecord: A node sent a record that is not valid; names segment and byte.
        SparkFailed: Spark did not run the tasks.
    """
    store = request.store
    addresses = by_preference(request.endpoints)
    group_id, committed = asyncio.run(_ask(addresses[0]))
    if request.group_id not in (None, group_id):
        raise ForeignGroup(f"{addresses[0]} belongs to group {group_id}, not to {request.group_id}")
    previous = newest(store, group_id)
    if previous is not None and previous.last_index >= (request.last_index or committed):
        progress(f"nothing is new since {previous.name}")
        return _result(previous, new_objects=0)
    plan = _plan(request, addresses, group_id, previous)
    rows = _run(request, plan, progress)
    earlier = previous.files if previous else ()
    manifest = publish(
        store, Manifest(group=plan.group, group_id=group_id, files=(*earlier, *rows))
    )
    progress(f"published {manifest.name} of group {group_id}")
    return _result(manifest, new_objects=len(rows))


async def _ask(address: str) -> tuple[str, int]:
    """Return a node's group id and commit index."""
    async with AdminClient(address) as admin:
        status = await admin.status()
    return status.group_id, status.commit_index


def _plan(
    request: BackupRequest, addresses: Sequence[str], group_id: str, previous: Manifest | None
) -> _Plan:
    """Plan the ranges after *previous*; refuse early what `publish` would refuse in the end."""
    with ExportClient(addresses[0]) as exporter:
        cut = exporter.plan(
            group_id=group_id,
            first_index=previous.last_index + 1 if previous else 1,
            last_index=request.last_index,
            target_bytes=request.target_bytes,
        )
    if not cut.ranges:
        raise RangeNotAvailable(f"{addresses[0]} has no committed entries to back up yet")
    if previous and cut.ranges[0].previous_chain != previous.files[-1].last_chain:
        raise BrokenBackup(
            previous.name,
            f"the log of {addresses[0]} does not continue its entry {previous.last_index}",
        )
    return _Plan(cut.group, tuple(exported(cut, addresses)))


def _run(request: BackupRequest, plan: _Plan, progress: Progress) -> list[ManifestRow]:
    first, last = plan.ranges[0].first_index, plan.ranges[-1].last_index
    progress(
        f"entries [{first}, {last}] of group {plan.group} in {count(len(plan.ranges), 'range')}, "
        f"from {plan.ranges[0].addresses[0]}, by Spark on {request.master}"
    )
    tasks = [_Task(request.store, entries) for entries in plan.ranges]
    name = f"dledger-backup-{plan.group}"
    with spark_session(name, request.master, request.conf) as spark, typed_errors():
        rows = collect(spark, tasks, _archive, ManifestRow)
    written = sum(row.object_bytes for row in rows)
    read = sum(row.record_bytes for row in rows)
    progress(f"wrote {count(len(rows), 'object')}: {size(written)} from {size(read)} of records")
    return sorted(rows, key=lambda row: row.first_index)


def _archive(task: _Task) -> ManifestRow:
    """Read, check and write one range; runs in a Spark worker."""
    return write_range(
        task.store,
        task.entries.group_id,
        task.entries.read(),
        previous_chain=task.entries.previous_chain,
    )


def _result(manifest: Manifest, *, new_objects: int) -> Result:
    return {
        "phase": COMPLETED,
        "groupId": manifest.group_id,
        "term": manifest.term,
        "firstIndex": manifest.first_index,
        "lastIndex": manifest.last_index,
        "records": manifest.records,
        "bytes": manifest.record_bytes,
        "objectBytes": manifest.object_bytes,
        "objects": len(manifest.files),
        "manifest": manifest.name,
        "newObjects": new_objects,
    }
