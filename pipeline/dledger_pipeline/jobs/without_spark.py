"""Verify, restore, list, expire, repair and sign backups: the jobs that need no Spark.

Called by the command line, one function a subcommand. Each raises what `archive.verify` and
`archive.restore` do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from dledger_pipeline.archive import catalog, expiry
from dledger_pipeline.archive import repair as repairing
from dledger_pipeline.archive import restore as restoring
from dledger_pipeline.archive import verify as verifying
from dledger_pipeline.archive.erased import read_erases
from dledger_pipeline.archive.erasures_left import tell_erasures_left
from dledger_pipeline.archive.expiry import Retention
from dledger_pipeline.archive.extent import Extent
from dledger_pipeline.archive.hashed_json import field
from dledger_pipeline.archive.manifest import manifest_name, told_time
from dledger_pipeline.errors import BackupError, NoBackup, ObjectMissing, StoreError
from dledger_pipeline.jobs.progress import Done, Phase, Progress
from dledger_pipeline.jobs.result import COMPLETED, Result, count, result_of, size
from dledger_pipeline.object_store.store import Store

_READ_AT_ONCE: Final = 16
"""Manifests that a list waits for at a time: an object store takes some 20 ms for each."""


def verify(
    store: Store,
    group_id: str | None,
    progress: Progress,
    *,
    number: int | None,
    deep: bool,
    scratch: Path | None,
) -> Result:
    """Verify that a backup is complete; return what was checked.

    Args:
        store: The store's root.
        group_id: Whose backup; None if the store holds one group only.
        progress: Told after each object.
        number: Which backup; None: the newest.
        deep: Whether to also restore it and compare all bytes.
        scratch: Where to create a temporary directory for that; it needs the log's size.
    """
    with _scratch(scratch, deep=deep) as directory:
        return result_of(_verified(store, group_id, progress, number, directory))


def _verified(
    store: Store,
    group_id: str | None,
    progress: Progress,
    number: int | None = None,
    directory: str | None = None,
) -> verifying.VerifyResult:
    return verifying.verify(
        store,
        group_id,
        number=number,
        scratch=Path(directory) if directory else None,
        progress=_counting(progress),
    )


def _counting(progress: Progress) -> restoring.Progress:
    """Begin the work; return what is told each object that was read, and how many there are."""
    progress.working()
    return lambda row, total: progress.finished(Done(row.record_bytes, row.object_bytes), total)


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
    number: int | None,
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
        number=number,
        target_index=to_index,
        target_time_ms=to_time_ms,
        progress=_counting(progress),
    )
    progress(f"restored {size(found.record_bytes)} of records into {directory}")
    return result_of(found)


def list_backups(store: Store, group_id: str | None, *, last: int = 0) -> Iterator[Result]:
    """Yield what each backup holds, oldest first; of a damaged manifest what is wrong with it.

    It goes by manifests alone; whether all is there that they name, `verify` tells.

    *last*: only the newest so many of each group, without reading the others; 0: all.
    """
    with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
        for group in [group_id] if group_id else catalog.groups(store):
            numbers = catalog.numbers(store, group)[-last:]
            yield from readers.map(partial(_row, store, group), numbers)


def list_objects(store: Store, group_id: str | None, number: int | None) -> list[str]:
    """Return the names, from the store's URL on, of all objects that a backup needs.

    Those of `data/` have each of its entries once. *number* None: the newest. Raises like
    `catalog.load`.
    """
    manifest = catalog.load(store, group_id, number)
    return [f"{manifest.group_id}/{name}" for name in (*manifest.objects, manifest.name)]


def list_erasures(store: Store, group_id: str | None, *, keep_days: float) -> Result:
    """Return what was erased of which the newest backup may still have bytes, oldest first.

    Each says in how many of the `objects`, which are oldest first, and from when on a `gc` with
    *keep_days* (0: that keeps all times) deletes the last of these. Raises like `catalog.load`.
    """
    manifest = catalog.load(store, group_id)
    rows = read_erases(store, manifest.group_id, manifest.files)
    found = [*tell_erasures_left(manifest, rows, keep_days=keep_days)]
    most = max((each.objects for each in found), default=0)
    return {
        "groupId": manifest.group_id,
        "number": manifest.number,
        "objects": [row.name for row in manifest.files[:most]],
        "erasures": [
            {
                "entry": each.entry,
                "at": told_time(each.at_ms),
                "topic": each.topic,
                "messages": each.messages,
                "objects": each.objects,
                "gone": None if each.gone_ms is None else told_time(each.gone_ms),
            }
            for each in found
        ],
    }


def _row(store: Store, group_id: str, number: int) -> Result:
    row: Result = {"groupId": group_id, "number": number}
    name = f"{group_id}/{manifest_name(number)}"
    try:
        content = catalog.content_of(store, group_id, number)
        extent = Extent.read(name, content)
        return row | {
            "group": field(name, content, "group", str),
            "asOf": told_time(field(name, content, "as_of_ms", int)),
            "firstIndex": extent.first_index,
            "lastIndex": extent.last_index,
            "restorable": [list(each) for each in extent.restorable],
            "bases": len(field(name, content, "bases", list)),
            "objects": extent.objects,
            "objectBytes": extent.object_bytes,
        }
    except (BackupError, ObjectMissing) as error:
        return row | {"error": str(error)}


def gc(
    store: Store, group_id: str | None, progress: Progress, retention: Retention, *, dry_run: bool
) -> Result:
    """Delete what *retention* does not keep, and what killed runs left; return what that was."""
    progress.at(Phase.EXPIRING)
    group_id = catalog.only_group(store) if group_id is None else group_id
    found = expiry.expire(
        store, group_id, retention, dry_run=dry_run, told=progress, freed=progress.freed
    )
    verb = "would free" if dry_run else "freed"
    progress(f"{verb} {size(found.freed_bytes)}")
    if found.hidden_bytes:
        progress(
            f"{size(found.hidden_bytes)} stay in the store as old versions, until its lifecycle "
            "rule, or object lock, lets them go"
        )
    if found.locked:
        progress(f"{count(found.locked, 'object')} could not be deleted: see above")
    return result_of(found) | {"dryRun": dry_run}


def repair(store: Store, group_id: str | None, progress: Progress) -> Result:
    """Publish a manifest that is made of nothing but the group's objects; return what it holds.

    Raises:
        NoBackup: Several groups, or nothing that can be restored.
        StoreError: The store failed.
    """
    if group_id is None:
        folders = [folder for folder in store.folders() if any(store.list(f"{folder}/data"))]
        if len(folders) != 1:
            raise NoBackup(f"{store.url} has objects of {len(folders)} groups: give --group-id")
        (group_id,) = folders
    published = catalog.publish(store, repairing.rebuilt(store, group_id, progress))
    progress(f"published {published.name}: {published.range_told()}")
    return {"phase": COMPLETED} | _row(store, group_id, published.number)


def sign(store: Store, group_id: str | None, progress: Progress) -> Result:
    """Sign the newest backup with the store's key, after verifying it.

    It signs whatever is in the store now: call it only if you know who wrote that.

    Raises:
        StoreError: DLEDGER_MANIFEST_KEY is not set, or the store failed.
        BackupError, CorruptObject: What is there is not a whole backup; nothing was signed.
    """
    if store.manifest_key is None:
        raise StoreError("there is no key to sign with: set DLEDGER_MANIFEST_KEY")
    found = _verified(store.trusted(), group_id, progress)
    manifest = catalog.load(store.trusted(), found.group_id, found.number)
    catalog.sign(store, manifest)
    return {
        "phase": COMPLETED,
        "groupId": found.group_id,
        "manifest": found.manifest,
        "firstIndex": found.first_index,
        "lastIndex": found.last_index,
        "signature": catalog.signature(store, manifest),
    }
