"""Verify: prove that a backup is whole; deeply, by restoring it and comparing. Needs no Spark."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from dledger_pipeline.archive import verify as core
from dledger_pipeline.jobs.result import COMPLETED, Progress, Result
from dledger_pipeline.object_store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What to verify.

    Attributes:
        deep: Whether to restore it, too, and compare all bytes.
        scratch: Where to make a temporary directory for that; it takes as much as the log does.
    """

    store: str
    store_endpoint: str | None = None
    allow_http: bool = False
    group_id: str | None = None
    deep: bool = False
    scratch: Path | None = None


def verify(request: VerifyRequest, progress: Progress) -> Result:
    """Verify the newest backup; return what is good. Raises what `archive.verify` does."""
    with _scratch(request) as scratch:
        found = core.verify(
            Store.open(request.store, request.store_endpoint, allow_http=request.allow_http),
            request.group_id,
            scratch=Path(scratch) if scratch else None,
            progress=lambda done, total: progress(f"checked {done} of {total} entries"),
        )
    return {
        "phase": COMPLETED,
        "groupId": found.group_id,
        "manifest": found.manifest,
        "firstIndex": found.first_index,
        "lastIndex": found.last_index,
        "records": found.records,
        "bytes": found.record_bytes,
        "objectBytes": found.object_bytes,
        "objects": found.objects,
        "comparedBytes": found.compared_bytes,
        "signature": found.signature,
    }


def _scratch(request: VerifyRequest) -> AbstractContextManager[str | None]:
    if not request.deep:
        return nullcontext()
    return tempfile.TemporaryDirectory(prefix="dledger-verify-", dir=request.scratch)
