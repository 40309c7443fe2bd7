"""Rebuilds a manifest from the objects of a group: each says by itself which entries it holds.

Of objects that overlap, those are taken that lead furthest without a gap. Used by the job `repair`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dledger_pipeline.archive.archive import ManifestRow, describe_object
from dledger_pipeline.archive.bases import describe_base
from dledger_pipeline.archive.catalog import head_number, load, numbers
from dledger_pipeline.archive.erasures_objects import with_erasures
from dledger_pipeline.archive.manifest import (
    BaseRow,
    Manifest,
    RestorePoint,
    first_manifest,
)
from dledger_pipeline.archive.places_objects import describe_places
from dledger_pipeline.archive.topics import Topics
from dledger_pipeline.errors import BackupError, NewerBackup, NoBackup, StoreError
from dledger_pipeline.object_store.store import Store

_PLACES: Final = re.compile(r"places/(\d{20})-(\d{20})-[0-9a-f]{64}\.parquet")
_DATA: Final = re.compile(r"data/(\d{20})-(\d{20})-[0-9a-f]{64}\.parquet")

Told = Callable[[str], None]


def rebuilt(store: Store, group_id: str, told: Told) -> Manifest:
    """Return an unpublished manifest of all that the group's objects can restore.

    Damaged objects are left out, and told.

    Raises:
        NoBackup: The objects hold nothing that can be restored.
        NewerBackup: A newer version's manifests are there, which know more than the objects say.
        StoreError: The store failed.
    """
    described = _describe_all(store, group_id, told)
    rows, erasures = [row for row, _ in described], {row.name: found for row, found in described}
    bases = _bases(store, group_id, told)
    runs = _runs(rows, bases)
    if not runs:
        raise NoBackup(
            f"{store.url} has no entries of group {group_id} from entry 1 or from a base on"
        )
    files = [
        with_erasures(store, group_id, row, erasures[row.name])
        for row in _with_places(store, group_id, [row for run in runs for row in run], told)
    ]
    known = _readable(store, group_id)
    made = replace(
        first_manifest(known.group if known else group_id, group_id, files),
        topics=known.topics if known else Topics(),
        number=max([head_number(store, group_id), *numbers(store, group_id)]) + 1,
        bases=tuple(base for base in bases if _covers(runs, base)),
    )
    as_of_ms = _as_of_ms(made, known)
    starts = [base.first_index for base in made.bases if base.applied_index <= made.last_index]
    point = RestorePoint(
        last_index=made.last_index, kept_from=max(starts, default=1), as_of_ms=as_of_ms
    )
    return made.seen(point)


def _describe_all(store: Store, group_id: str, told: Told) -> list[tuple[ManifestRow, pa.Table]]:
    """Return the rows of all whole objects, ascending, each with the ERASEs among its entries."""
    rows: list[tuple[ManifestRow, pa.Table]] = []
    for listed in sorted(store.listed(f"{group_id}/data"), key=lambda each: each.name):
        name = listed.name.removeprefix(f"{group_id}/")
        if not _DATA.fullmatch(name):
            told(f"left out: {listed.name} is none of ours")
            continue
        try:
            rows.append(describe_object(store, group_id, name, listed.size_bytes))
        except BackupError as error:
            told(f"left out: {error}")
        else:
            told(f"read {name}")
    return rows


def _with_places(
    store: Store, group_id: str, rows: Sequence[ManifestRow], told: Told
) -> list[ManifestRow]:
    """Return *rows* with the places of their messages, where there is a whole object of them."""
    found = dict[tuple[int, int], str]()
    for listed in store.list(f"{group_id}/places"):
        name = listed.removeprefix(f"{group_id}/")
        if match := _PLACES.fullmatch(name):
            found[int(match[1]), int(match[2])] = name
        else:
            told(f"left out: {listed} is none of ours")
    placed = []
    for row in rows:
        name = found.get((row.first_index, row.last_index), "")
        try:
            places = describe_places(store, group_id, row, name) if name else None
        except BackupError as error:
            told(f"left out: {error}")
            places = None
        placed.append(replace(row, places=places))
    return placed


def _bases(store: Store, group_id: str, told: Told) -> list[BaseRow]:
    """Return the rows of all whole bases, ascending; each counts from its newest entry's time."""
    found: list[BaseRow] = []
    for name in store.list(f"{group_id}/bases"):
        try:
            base = describe_base(group_id, store.get(name).to_pybytes())
        except BackupError as error:
            told(f"left out: {error}")
            continue
        if f"{group_id}/{base.name}" != name:
            told(f"left out: {name} does not have the name of its contents")
        else:
            found.append(base)
    return found


def _runs(rows: Sequence[ManifestRow], bases: Sequence[BaseRow]) -> list[list[ManifestRow]]:
    """Return the runs that can be restored, ascending: each from entry 1, or from before a base."""
    after: dict[tuple[int, int], ManifestRow] = {}
    reach: dict[ManifestRow, int] = {}
    for row in sorted(rows, key=lambda each: each.first_index, reverse=True):
        follower = after.get((row.last_index + 1, row.last_chain))
        reach[row] = reach[follower] if follower else row.last_index
        best = after.get((row.first_index, row.first_chain))
        if best is None or reach[row] > reach[best]:
            after[row.first_index, row.first_chain] = row
    runs: list[list[ManifestRow]] = []
    last = 0
    for row in sorted(after.values(), key=lambda each: (each.first_index, -reach[each])):
        if row.first_index <= last:
            continue
        run = [row]
        while follower := after.get((run[-1].last_index + 1, run[-1].last_chain)):
            run.append(follower)
        if row.first_index == 1 or any(_covers([run], base) for base in bases):
            runs.append(run)
            last = run[-1].last_index
    return runs


def _covers(runs: Sequence[Sequence[ManifestRow]], base: BaseRow) -> bool:
    return any(base.begins_in(run[0].first_index, run[-1].last_index) for run in runs)


def _readable(store: Store, group_id: str) -> Manifest | None:
    """Return the newest manifest that can be read, which knows names; None if none can."""
    for number in reversed(numbers(store, group_id)):
        try:
            return load(store, group_id, number)
        except NewerBackup:
            raise
        except (BackupError, StoreError):
            continue
    return None


def _as_of_ms(made: Manifest, known: Manifest | None) -> int:
    """Return up to which time *made* is whole: not less than was *known*, if it has as much."""
    if known is None or made.last_index < known.last_index:
        return made.last_timestamp_ms
    return max(made.last_timestamp_ms, known.as_of_ms)
