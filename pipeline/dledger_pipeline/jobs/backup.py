"""Backup: copies the log committed since the last backup to a store, range by range in tasks.

The driver asks a node how to cut the log and gives each task one range; a task reads its range from
the node, checks it, and writes one object. The driver publishes the manifest when all objects
exist. So a run that is killed leaves objects that no manifest names, and the next run gets the same
ranges and writes the same objects. Where nodes have dropped entries, a base stands for them: the
snapshot of a node. Called by the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from dledger_pipeline.archive.archive import ManifestRow, read_range
from dledger_pipeline.archive.bases import write_base
from dledger_pipeline.archive.catalog import newest, publish
from dledger_pipeline.archive.entry_ranges import ExportedRange, exported
from dledger_pipeline.archive.erasures_objects import write_entries
from dledger_pipeline.archive.expiry import Retention, expire
from dledger_pipeline.archive.kept_log import caught_up
from dledger_pipeline.archive.manifest import (
    BaseRow,
    Manifest,
    RestorePoint,
    first_manifest,
    needs_base,
    small_tail,
    told_time,
)
from dledger_pipeline.archive.places_objects import (
    exported_places,
    exported_topics,
    with_places,
)
from dledger_pipeline.archive.topics import Topics
from dledger_pipeline.errors import (
    BackupError,
    BrokenBackup,
    ForeignGroup,
    NodeUnavailable,
    RangeNotAvailable,
    StoreError,
    VersionConflict,
)
from dledger_pipeline.jobs.progress import Phase, Progress
from dledger_pipeline.jobs.request import StoreRequest
from dledger_pipeline.jobs.result import COMPLETED, Result, count, size
from dledger_pipeline.jobs.runner import (
    THRESHOLD_BYTES,
    Archived,
    RunnerName,
    by_spark,
    chosen,
    plain,
    workers,
)
from dledger_pipeline.log.export_client import (
    TARGET_BYTES,
    ExportClient,
    ExportPlan,
    Nodes,
    choose_nodes,
)
from dledger_pipeline.object_store.store import Store

BASE_EVERY_HOURS: Final = 24.0
_ATTEMPTS: Final = 3
"""Each further one means that another backup was published, or a segment dropped, meanwhile."""
_WHOLE: Final = 1 << 40
"""A target size that gives one range, where only the plan's other facts are wanted."""
_FOREVER: Final = Retention()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest(StoreRequest):
    """What to back up, where to, and who does the work.

    Attributes:
        endpoints: Peer addresses (20911) of the group's nodes.
        last_index: The last entry wanted; 0: all that is committed.
        target_bytes: About how many record bytes an object holds.
        base_every_hours: How old the newest base may become before another one is made.
        retention: What is deleted behind the backup, see `expiry`.
        runner: See `runner`.
        local_threshold_bytes: Below so many bytes of records AUTO does without Spark.
        bytes_per_s: How fast nodes are read by all workers together; 0: as fast as they can.
    """

    endpoints: tuple[str, ...]
    last_index: int = 0
    target_bytes: int = TARGET_BYTES
    base_every_hours: float = BASE_EVERY_HOURS
    retention: Retention = _FOREVER
    runner: RunnerName = RunnerName.AUTO
    local_threshold_bytes: int = THRESHOLD_BYTES
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Task:
    """Entries of a node, to be written behind those of *tail*, which are in the store."""

    store: Store
    tail: tuple[ManifestRow, ...]
    entries: ExportedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What this backup adds to *previous*.

    Attributes:
        seen: What the node said of its log.
        ranges: The entries to be added; none if nothing is new.
        base: A new base, if one was needed, and why it was.
        topics: What is known of topics before the ranges are read.
    """

    nodes: Nodes
    previous: Manifest | None
    seen: ExportPlan
    ranges: tuple[ExportedRange, ...]
    range_bytes: int
    base: BaseRow | None
    reason: str
    topics: Topics


def backup(request: BackupRequest, progress: Progress) -> Result:
    """Add new entries to the group's backup; return the newest backup.

    If there are no new entries and no later time to state, it is unchanged.

    Raises:
        ExportError: No node exports these entries.
        StoreError, BackupError: The store failed, or its backup is damaged.
        CorruptRecord: A node sent a record that is not valid; names segment and byte.
        SparkFailed, WorkerFailed: Tasks were not run.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _backup(request, progress)
        except (VersionConflict, RangeNotAvailable) as error:
            if request.last_index:
                raise
            progress(f"beginning again: {error}")
    return _backup(request, progress)


def _backup(request: BackupRequest, progress: Progress) -> Result:
    progress.at(Phase.PLANNING)
    nodes = choose_nodes(request.endpoints)
    if request.group_id not in (None, nodes.group_id):
        raise ForeignGroup(
            f"{nodes.addresses[0]} belongs to group {nodes.group_id}, not to {request.group_id}"
        )
    previous = newest(request.store, nodes.group_id)
    if previous is not None and 0 < request.last_index < previous.last_index:
        progress(f"{previous.name} has entry {request.last_index} already")
        return _result(previous, new_objects=0)
    plan = _plan(request, nodes, previous, progress)
    written, replacing = _write(request, plan, progress) if plan.ranges else ([], 0)
    rows, topics = _placed(plan, written, progress)
    progress.at(Phase.PUBLISHING)
    manifest = _next(request, plan, rows, replacing, topics)
    if manifest == previous:
        progress(f"nothing is new since {previous.name}")
        return _result(previous, new_objects=0)
    published = publish(request.store, manifest)
    progress(f"published {published.name} of group {nodes.group_id}")
    result = _result(published, new_objects=len(rows) + (plan.base is not None), reason=plan.reason)
    if request.retention == _FOREVER:
        return result
    return result | _expired(request, nodes.group_id, progress)


def _expired(request: BackupRequest, group_id: str, progress: Progress) -> Result:
    """Delete what the request does not keep; what fails there does not undo the backup."""
    progress.at(Phase.EXPIRING)
    try:
        found = expire(
            request.store,
            group_id,
            request.retention,
            dry_run=False,
            told=progress,
            freed=progress.freed,
        )
    except (BackupError, StoreError) as error:
        progress(f"the backup is published, but old ones were not deleted: {error}")
        return {"notExpired": str(error)}
    return {
        "freedBytes": found.freed_bytes,
        "hiddenBytes": found.hidden_bytes,
        "lockedObjects": found.locked,
    }


def _plan(
    request: BackupRequest, nodes: Nodes, previous: Manifest | None, progress: Progress
) -> _Plan:
    """Decide what to add; refuse before the work what `publish` would refuse after it."""
    address = nodes.addresses[0]
    with ExportClient(address) as exporter:
        kept = _plan_of_all(exporter, nodes, progress)
        reason = needs_base(
            previous,
            first_available=kept.first_available,
            now_ms=nodes.leader_ms,
            every_hours=request.base_every_hours,
        )
        topics = previous.topics if previous else Topics()
        if told := exported_topics(nodes.addresses, nodes.group_id, kept.commit_index):
            topics = topics.seen(told)
        base = None
        if reason:
            progress(f"a new base, since {reason}")
            snapshot = exporter.snapshot(nodes.group_id, bytes_per_s=request.bytes_per_s)
            base = write_base(request.store, nodes.group_id, snapshot, now_ms=nodes.leader_ms)
        follows = previous is not None and previous.last_index + 1 >= kept.first_available
        if previous is not None and follows:
            first = previous.last_index + 1
        else:
            first = base.first_index if base else 1
        seen = exporter.plan(
            group_id=nodes.group_id,
            first_index=first,
            last_index=_last_index(request, base),
            target_bytes=request.target_bytes,
        )
    if base and seen.commit_index < base.applied_index:
        raise RangeNotAvailable(
            f"{address} has synced entry {seen.commit_index}, its snapshot is of "
            f"{base.applied_index}"
        )
    if not seen.ranges and previous is None:
        raise RangeNotAvailable(f"{address} has no committed entries to back up yet")
    joins = previous and follows and seen.ranges
    if previous and joins and seen.ranges[0].previous_chain != previous.last_chain:
        raise BrokenBackup(
            previous.name,
            f"the log of {address} does not continue its entry {previous.last_index}",
        )
    return _Plan(
        nodes=nodes,
        previous=previous,
        seen=seen,
        ranges=tuple(exported(seen, nodes.addresses)),
        range_bytes=sum(each.size_bytes for each in seen.ranges),
        base=base,
        reason=reason,
        topics=topics,
    )


def _plan_of_all(exporter: ExportClient, nodes: Nodes, progress: Progress) -> ExportPlan:
    """Return what the node has: all that was committed when this began, unless it stays behind."""
    try:
        return caught_up(exporter, nodes.group_id, nodes.leader_commit_index)
    except NodeUnavailable as error:
        progress(f"the backup will end before what is committed: {error}")
        return exporter.plan(group_id=nodes.group_id, target_bytes=_WHOLE)


def _last_index(request: BackupRequest, base: BaseRow | None) -> int:
    """Return where to end: not before a new base, or nothing could be restored from it yet."""
    reaches = base.applied_index if base else 0
    return max(request.last_index, reaches) if request.last_index else 0


def _write(request: BackupRequest, plan: _Plan, progress: Progress) -> tuple[list[Archived], int]:
    """Write the plan's ranges; return what was written, and how many older files it replaces."""
    first, last = plan.ranges[0].first_index, plan.ranges[-1].last_index
    files = plan.previous.files if plan.previous else ()
    replacing = 0
    if len(plan.ranges) == 1 and files and files[-1].last_index + 1 == first:
        replacing = small_tail(files, plan.range_bytes, request.target_bytes)
    tail = files[len(files) - replacing :]
    runner = chosen(
        request.runner,
        request.master,
        size_bytes=plan.range_bytes,
        threshold_bytes=request.local_threshold_bytes,
    )
    at_once = workers(runner, request.master, request.conf, tasks=len(plan.ranges))
    if runner is RunnerName.SPARK:
        name = f"dledger-backup-{plan.seen.group}"
        run, by = (
            by_spark(name, request.master, request.conf, progress),
            f"Spark on {request.master}",
        )
    else:
        run, by = plain(at_once, progress), count(at_once, "local worker")
    progress(
        f"entries [{first}, {last}] of group {plan.seen.group} in "
        f"{count(len(plan.ranges), 'range')}, {size(plan.range_bytes)}, "
        f"from {plan.ranges[0].addresses[0]}, by {by}"
    )
    if tail:
        progress(f"together with {count(len(tail), 'small object')} from {tail[0].first_index} on")
    tasks = [
        _Task(
            request.store,
            tail if number == 0 else (),
            replace(entries, bytes_per_s=request.bytes_per_s / at_once),
        )
        for number, entries in enumerate(plan.ranges)
    ]
    progress.working(len(tasks))
    done = run(tasks, _archive)
    written = sum(each.row.object_bytes for each in done)
    read = sum(each.row.record_bytes for each in done)
    progress(f"wrote {count(len(done), 'object')}: {size(written)} from {size(read)} of records")
    return sorted(done, key=lambda each: each.row.first_index), replacing


def _placed(
    plan: _Plan, written: list[Archived], progress: Progress
) -> tuple[list[ManifestRow], Topics]:
    """Return the rows, and what is known of topics: at least up to where places may lack some."""
    if not written:
        return [], plan.topics
    reached = max([plan.ranges[-1].last_index, *(each.applied_index for each in written)])
    told = exported_topics(plan.nodes.addresses, plan.nodes.group_id, reached)
    rows = [each.row if told else replace(each.row, places=None) for each in written]
    if unknown := sum(row.places is None for row in rows):
        progress(
            f"no node tells where the messages of {count(unknown, 'object')} are: "
            "queries read all of it while they are planned"
        )
    return rows, plan.topics.seen(told) if told else plan.topics


def _archive(task: _Task) -> Archived:
    """Read, check and write one range; runs in a worker."""
    group_id = task.entries.group_id
    archived = (
        batch for row in task.tail for batch in read_range(task.store, group_id, row).to_batches()
    )
    row = write_entries(
        task.store,
        group_id,
        chain(archived, task.entries.read()),
        previous_chain=task.tail[0].first_chain if task.tail else task.entries.previous_chain,
    )
    new = task.entries
    told = exported_places(new.addresses, group_id, new.first_index, new.last_index)
    if told is None:
        return Archived(row, 0)
    return Archived(
        with_places(task.store, group_id, row, task.tail, told.places), told.applied_index
    )


def _next(
    request: BackupRequest, plan: _Plan, rows: list[ManifestRow], replacing: int, topics: Topics
) -> Manifest:
    """Return the manifest to publish; the previous one if nothing at all is new."""
    previous = plan.previous
    if previous is None:
        made = first_manifest(plan.seen.group, plan.nodes.group_id, rows, plan.base)
    else:
        made = previous.followed_by(rows, replacing=replacing, base=plan.base)
    made = replace(made, topics=topics)
    as_of_ms = _as_of(plan, made)
    if previous is not None and not rows and plan.base is None and as_of_ms <= previous.as_of_ms:
        return previous
    kept_from = made.points[-1].kept_from if made.points else made.first_index
    if plan.seen.applied_index <= made.last_index:
        kept_from = plan.seen.kept_from
    made = made.seen(
        RestorePoint(last_index=made.last_index, kept_from=kept_from, as_of_ms=as_of_ms)
    )
    return made.without_before(request.retention.oldest_ms([made]))


def _as_of(plan: _Plan, made: Manifest) -> int:
    """Return up to which time the backup has everything.

    The leader's clock counts if the backup reaches what the leader had committed when it was read;
    else only what the last entry shows.
    """
    whole = plan.nodes.leader_ms and made.last_index >= plan.nodes.leader_commit_index
    return max(made.as_of_ms, plan.nodes.leader_ms if whole else made.last_timestamp_ms)


def _result(manifest: Manifest, *, new_objects: int, reason: str = "") -> Result:
    result: Result = {
        "phase": COMPLETED,
        "groupId": manifest.group_id,
        "number": manifest.number,
        "term": manifest.term,
        "firstIndex": manifest.first_index,
        "lastIndex": manifest.last_index,
        "asOf": told_time(manifest.as_of_ms),
        "records": manifest.records,
        "bytes": manifest.record_bytes,
        "objectBytes": manifest.object_bytes,
        "objects": len(manifest.files),
        "bases": len(manifest.bases),
        "manifest": manifest.name,
        "newObjects": new_objects,
    }
    return result | ({"newBase": reason} if reason else {})
