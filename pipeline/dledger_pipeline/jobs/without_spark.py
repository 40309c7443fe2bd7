"""Verify, restore and sign the newest backup of a store: the jobs that need no Spark.

Called by the command line, one function a subcommand. Each raises what `archive.verify` and
`archive.restore` do.
"""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dledger_pipeline.archive import manifest
from dledger_pipeline.archive import restore as restoring
from dledger_pipeline.archive import verify as verifying
from dledger_pipeline.errors import StoreError
from dledger_pipeline.jobs.result import COMPLETED, Progress, Result, result_of, size
from dledger_pipeline.object_store.store import Store


def verify(
    store: Store, group_id: str | None, progress: Progress, *, deep: bool, scratch: Path | None
) -> Result:
    """Verify that the newest backup is complete; return what was checked.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        progress: Told after each object.
        deep: Whether to also restore it and compare all bytes.
        scratch: Where to create a temporary directory for that; it needs the log's size.
    """
    with _scratch(scratch, deep=deep) as directory:
        return result_of(_verified(store, group_id, progress, directory))


def _verified(
    store: Store, group_id: str | None, progress: Progress, directory: str | None = None
) -> verifying.VerifyResult:
    return verifying.verify(
        store,
        group_id,
        scratch=Path(directory) if directory else None,
        progress=lambda done, total: progress(f"checked {done} of {total} entries"),
    )


def _scratch(parent: Path | None, *, deep: bool) -> AbstractContextManager[str | None]:
    if not deep:
        return nullcontext()
    return tempfile.TemporaryDirectory(prefix="dledger-verify-", dir=parent)


def restore(
    store: Store,
    group_id: str | None,
    progress: Progress,
    *,
    directory: Path,
    name: str,
    to_index: int | None,
    to_time_ms: int | None,
) -> Result:
    """Write a data directory that a node can start from; return what was restored.

    See `archive.restore.restore` for the arguments.
    """
    found = restoring.restore(
        store,
        group_id,
        directory,
        name=name,
        target_index=to_index,
        target_time_ms=to_time_ms,
        progress=lambda done, total: progress(f"restored {done} of {total} entries"),
    )
    progress(f"restored {size(found.record_bytes)} of records into {directory}")
    return result_of(found)


def sign(store: Store, group_id: str | None, progress: Progress) -> Result:
    """Sign the newest backup with the store's key, after verifying that it is complete.

    It signs whatever is in the store now: call it only if you know who wrote that.

    Raises:
        StoreError: DLEDGER_MANIFEST_KEY is not set, or the store failed.
        BackupError, CorruptObject: What is there is not a whole backup; nothing was signed.
    """
    if store.manifest_key is None:
        raise StoreError("there is no key to sign with: set DLEDGER_MANIFEST_KEY")
    found = _verified(store.trusted(), group_id, progress)
    manifest.sign(store, found.group_id, found.last_index)
    return {
        "phase": COMPLETED,
        "groupId": found.group_id,
        "manifest": found.manifest,
        "firstIndex": found.first_index,
        "lastIndex": found.last_index,
        "signature": manifest.signature(store, manifest.load(store, found.group_id)),
    }
