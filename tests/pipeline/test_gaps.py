"""Backups with a gap: what is on both sides of it is shown, and what is not shown is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dledger_pipeline.archive.archive import ManifestRow
from dledger_pipeline.archive.catalog import load, publish
from dledger_pipeline.archive.manifest import Chunk, Manifest
from dledger_pipeline.archive.planning import entries_left_out, left_out
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.archive.topics import Topics
from dledger_pipeline.jobs.query import QueryRequest, query
from dledger_pipeline.object_store.store import Store
from tests.pipeline.logs import based_backup
from tests.pipeline.message_logs import checked_entries, consumed, message_log, rows
from tests.pipeline.placing import Run, placed_backup, state_at

LOG = message_log()
LAST = len(LOG.entries)
GAP = (21, 30)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store whose newest backup lacks `GAP`, in objects of ten entries with places."""
    store, entries = Store.open(f"file://{tmp_path}/store"), checked_entries(LOG)
    runs, bases = [(1, GAP[0] - 1), (GAP[1] + 1, LAST)], [(state_at(LOG.entries, GAP[1]), 31)]
    based = based_backup(store, entries, runs, bases, size=10)
    placed = placed_backup(store, entries, [Run(last_index=LAST, applied=LAST)], size=10)
    files = tuple(row for row in placed.files if row.first_index != GAP[0])
    publish(store, replace(based, number=2, chunks=(Chunk(files),), topics=placed.topics))
    return store


def in_entries(*ranges: tuple[int, int]) -> list[dict[str, Any]]:
    """Return what consumers saw of these entries."""
    return [
        row for row in consumed(LOG) if any(first <= row["index"] <= last for first, last in ranges)
    ]


def without_places(manifest: Manifest, *first_indexes: int) -> Manifest:
    """Return the manifest as of nodes that did not tell where some messages are."""
    files: Sequence[ManifestRow] = [
        replace(row, places=None) if row.first_index in first_indexes else row
        for row in manifest.files
    ]
    return replace(manifest, chunks=(Chunk(tuple(files)),))


@pytest.mark.found
def test_messages_on_both_sides_of_a_gap_are_shown(store: Store) -> None:
    """All that the backup has, also by time; up to an entry before the gap as ever."""
    manifest = load(store)

    assert manifest.gaps() == [GAP]
    assert rows(store, manifest) == in_entries((1, 20), (31, LAST))
    early = Selection(first_ms=1, last_ms=LOG.entries[19].timestamp_ms)
    assert rows(store, manifest, early) == in_entries((1, 20))
    assert rows(store, manifest, Selection(last_index=18)) == in_entries((1, 18))
    assert rows(store, manifest, Selection(first_index=15)) == in_entries((15, 20), (31, LAST))
    assert left_out(manifest) == []


def test_what_nobody_told_before_a_gap_is_left_out_and_said(store: Store) -> None:
    """Places of ten entries, or which topics there are: the entries are told, and counted."""
    manifest = load(store)
    some, topics = without_places(manifest, 11, 41), replace(manifest, topics=Topics())

    assert rows(store, some) == in_entries((1, 10), (31, LAST)), "behind the gap it is replayed"
    assert (left_out(some), entries_left_out(some)) == ([(11, 20)], 10)
    assert left_out(some, Selection(first_index=31)) == []
    assert rows(store, topics) == in_entries((31, LAST))
    assert left_out(topics) == [(1, 20)]


def test_a_query_says_what_it_does_not_show(spark: SparkSession, store: Store) -> None:
    """A line for the gap, one for what is not shown before it, and a count in the result."""
    manifest = without_places(load(store), 11)
    publish(store, replace(manifest, number=3))
    sql = "SELECT count(*) AS n FROM messages WHERE index < 25"
    lines: list[str] = []
    said: list[str] = []

    request = QueryRequest(store=store, group_id=None, sql=f"{sql} UNION ALL {sql}")
    result = query(request, lines.append, said.append)

    assert [json.loads(line)["n"] for line in lines] == [len(in_entries((1, 10)))] * 2
    assert [line.partition(":")[0] for line in said] == [
        "entries [21, 30] are not in this backup",
        "messages in entries [11, 20] are not shown",
    ]
    assert result["entriesNotShown"] == 10
