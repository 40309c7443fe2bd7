"""Restore: a backup to a data directory that a node can start from. Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger_pipeline.archive import restore as core
from dledger_pipeline.jobs.result import COMPLETED, Progress, Result, mib
from dledger_pipeline.object_store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """What to restore and where to; see `dledger_pipeline.archive.restore.restore`."""

    store: str
    store_endpoint: str | None = None
    allow_http: bool = False
    group_id: str | None = None
    directory: Path
    name: str
    to_index: int | None = None
    to_time_ms: int | None = None


def restore(request: RestoreRequest, progress: Progress) -> Result:
    """Restore; return what was restored. Raises what `archive.restore.restore` does."""
    found = core.restore(
        Store.open(request.store, request.store_endpoint, allow_http=request.allow_http),
        request.group_id,
        request.directory,
        name=request.name,
        target_index=request.to_index,
        target_time_ms=request.to_time_ms,
        progress=lambda done, total: progress(f"restored {done} of {total} entries"),
    )
    progress(f"restored {mib(found.record_bytes)} of records into {request.directory}")
    return {
        "phase": COMPLETED,
        "groupId": found.group_id,
        "nodeId": found.node_id,
        "term": found.last_term,
        "firstIndex": found.first_index,
        "lastIndex": found.last_index,
        "lastTimestampMs": found.last_timestamp_ms,
        "records": found.records,
        "bytes": found.record_bytes,
    }
