"""What a manifest decides, against a model of a few lines: a group, its nodes and its backups.

The model keeps, for each backup, the last index and from where nodes kept entries. What must hold:
whatever was backed up can be restored to any index from the oldest base on, from what nodes kept at
that time or less; and nothing below the oldest base is promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dledger_pipeline.archive.archive import ManifestRow, object_name
from dledger_pipeline.archive.manifest import (
    CHUNK_FILES,
    BaseRow,
    Manifest,
    RestorePoint,
    base_name,
    check_joins,
    first_manifest,
    needs_base,
    small_tail,
)
from dledger_pipeline.errors import BrokenBackup, TargetNotAvailable

HOUR_MS = 3_600_000
EVERY_HOURS = 24.0
RECORD = 100


def row(first: int, last: int, record_bytes: int = 0) -> ManifestRow:
    """Return a row whose chain CRCs are the indexes themselves."""
    sha256 = f"{first:032x}{last:032x}"
    return ManifestRow(
        name=object_name(first, last, sha256),
        first_index=first,
        last_index=last,
        records=last - first + 1,
        record_bytes=record_bytes or RECORD * (last - first + 1),
        object_bytes=50,
        sha256=sha256,
        first_chain=first - 1,
        last_chain=last,
        last_term=1,
        first_timestamp_ms=first,
        last_timestamp_ms=last,
    )


def base(applied: int, first: int, as_of_ms: int = 0) -> BaseRow:
    """Return a base whose chain CRC is the index itself."""
    sha256 = f"{applied:064x}"
    return BaseRow(
        name=base_name(applied, sha256),
        first_index=first,
        applied_index=applied,
        applied_term=1,
        applied_chain=applied,
        object_bytes=70,
        sha256=sha256,
        as_of_ms=as_of_ms,
    )


@dataclass
class Seen:
    """One backup in the model."""

    last_index: int
    kept_from: int
    hours: int


@dataclass
class Group:
    """A group's log: entries [kept_from, last_index] are on the nodes."""

    last_index: int = 1
    kept_from: int = 1
    hours: int = 0
    backups: list[Seen] = field(default_factory=list)


class Backups(RuleBasedStateMachine):
    """A group that grows and forgets, backed up now and then, and expired."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.manifest: Manifest | None = None
        self.oldest_ms = 0

    @initialize(last=st.integers(1, 50), kept=st.integers(1, 50))
    def begin(self, last: int, kept: int) -> None:
        """The group may be old already when its first backup is made."""
        self.group = Group(last_index=max(last, kept), kept_from=kept)

    @rule(entries=st.integers(0, 40), hours=st.integers(1, 30))
    def write(self, entries: int, hours: int) -> None:
        """Time passes, and entries are committed."""
        self.group.last_index += entries
        self.group.hours += hours

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        """Nodes drop some of their oldest entries."""
        kept = self.group.last_index - self.group.kept_from
        self.group.kept_from += int(share * kept)

    @rule(per_file=st.integers(1, 20))
    def backup(self, per_file: int) -> None:
        """As the job does, with a node's answers out of the model."""
        group, previous = self.group, self.manifest
        now_ms = group.hours * HOUR_MS
        needs = needs_base(
            previous, first_available=group.kept_from, now_ms=now_ms, every_hours=EVERY_HOURS
        )
        new = base(group.last_index, group.kept_from, now_ms) if needs else None
        follows = previous is not None and previous.last_index + 1 >= group.kept_from
        first = previous.last_index + 1 if previous and follows else group.kept_from
        starts = range(first, group.last_index + 1, per_file)
        rows = [row(at, min(at + per_file - 1, group.last_index)) for at in starts]
        if previous is None:
            made = first_manifest("orders", "id", rows, new)
        else:
            made = previous.followed_by(rows, base=new)
        self.manifest = made.seen(
            RestorePoint(last_index=made.last_index, kept_from=group.kept_from, as_of_ms=now_ms)
        )
        group.backups.append(Seen(made.last_index, group.kept_from, group.hours))

    @rule(hours=st.integers(1, 200))
    def expire(self, hours: int) -> None:
        """Keep only what restores of the last *hours* need."""
        if self.manifest is not None:
            self.oldest_ms = max(self.oldest_ms, self.manifest.as_of_ms - hours * HOUR_MS)
            self.manifest = self.manifest.without_before(self.oldest_ms)

    @invariant()
    def joins(self) -> None:
        """Whatever is published passes the check, and each index is there once."""
        if self.manifest is not None:
            check_joins(self.manifest)
            assert all(a.last_index < b.first_index for a, b in pairwise(self.manifest.files))
            assert all(len(chunk.files) <= CHUNK_FILES for chunk in self.manifest.chunks)

    @invariant()
    def every_backup_restores(self) -> None:
        """To its own end, from no more than nodes kept then and one file."""
        if self.manifest is None:
            return
        for seen in self.group.backups:
            if seen.hours * HOUR_MS < self.oldest_ms:
                continue
            start = self.manifest.start_for(seen.last_index)
            assert start.first_index <= seen.last_index + 1
            held = [each for each in self.manifest.files if each.last_index >= start.first_index]
            assert not held or held[0].first_index <= start.first_index
            if start.base is not None:
                known = [b.kept_from for b in self.group.backups if b.last_index <= seen.last_index]
                kept_from = min(max(known), start.base.applied_index + 1)
                assert (
                    start.base.first_index
                    <= start.first_index
                    <= max(kept_from, start.base.first_index)
                )

    @invariant()
    def what_is_said_to_be_restorable_is(self) -> None:
        """Both ends of each stretch, and not what lies outside."""
        if self.manifest is None:
            return
        stretches = self.manifest.restorable()
        inside = {at for first, last in stretches for at in (first, last)}
        for index in inside:
            self.manifest.start_for(index)
        outside = {first - 1 for first, _ in stretches} | {last + 1 for _, last in stretches}
        for index in outside - {i for first, last in stretches for i in range(first, last + 1)}:
            with pytest.raises(TargetNotAvailable, match=f"entry {index} cannot"):
                self.manifest.start_for(index)


TestBackups = Backups.TestCase
TestBackups.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)


def test_a_full_chunk_is_never_written_again() -> None:
    """Only the last one changes, so that a backup of a large store writes little."""
    rows = [row(at, at) for at in range(1, 2 * CHUNK_FILES + 6)]
    first = first_manifest("orders", "id", rows)

    second = first.followed_by([row(2 * CHUNK_FILES + 6, 2 * CHUNK_FILES + 9)], replacing=3)

    assert [len(chunk.files) for chunk in first.chunks] == [CHUNK_FILES, CHUNK_FILES, 5]
    assert second.chunks[:2] == first.chunks[:2]
    assert [each.last_index for each in second.chunks[2].files] == [2001, 2002, 2009]


def test_small_files_are_merged_a_few_times_each() -> None:
    """A thousand backups of one entry leave few files, and write each entry some ten times."""
    files: list[ManifestRow] = []
    written = 0
    target = 256 * RECORD
    for index in range(1, 1001):
        count = small_tail(files, RECORD, target)
        first = files[-count].first_index if count else index
        files[len(files) - count :] = [row(first, index)]
        written += index - first + 1

    assert [files[0].first_index, files[-1].last_index] == [1, 1000]
    assert len(files) <= 1000 * RECORD / target + 10
    assert written <= 1000 * 10


def test_files_of_another_day_are_not_merged() -> None:
    """Or a file of many days would keep what has expired for as long as it keeps what has not."""
    hour_ms = 3_600_000
    files = [
        replace(row(at, at), first_timestamp_ms=at * hour_ms, last_timestamp_ms=at * hour_ms)
        for at in range(1, 31)
    ]
    files[:5] = [replace(row(1, 5), first_timestamp_ms=hour_ms, last_timestamp_ms=5 * hour_ms)]
    assert small_tail(files, 30 * RECORD, 1 << 20) == 25
    unknown = [replace(each, first_timestamp_ms=0) for each in files]
    assert small_tail(unknown, 30 * RECORD, 1 << 20) == 26


def test_files_on_both_sides_of_a_gap_are_not_merged() -> None:
    """They are not consecutive."""
    assert small_tail([row(1, 2), row(10, 10)], RECORD, 1 << 20) == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ({"applied_chain": 7}, "entry 20 has chain CRC 0x00000014"),
        ({"first_index": 22}, "entry 20 has chain CRC"),
    ],
)
def test_a_base_of_another_history_does_not_join(spoil: dict[str, Any], words: str) -> None:
    """Where its last entry is the end of a file, it shows at once."""
    made = first_manifest("orders", "id", [row(11, 20), row(21, 30)], base(20, 11))
    check_joins(made)

    with pytest.raises(BrokenBackup, match=words):
        check_joins(replace(made, bases=(made.bases[0], replace(made.bases[0], **spoil))))


@pytest.mark.found
def test_what_nodes_kept_is_known_after_older_backups_expired() -> None:
    """A group that drops nothing for days has one point, which is older than its newest base.

    Found by tests/pipeline/test_beside.py: gc published a manifest without any, which is damaged.
    """
    made = first_manifest("orders", "id", [row(11, 20)], base(20, 11, 0))
    made = made.seen(RestorePoint(last_index=20, kept_from=11, as_of_ms=0))
    made = made.followed_by([row(21, 30)], base=base(30, 11, 25 * HOUR_MS))
    made = made.seen(RestorePoint(last_index=30, kept_from=11, as_of_ms=80 * HOUR_MS))

    trimmed = made.without_before(30 * HOUR_MS)

    assert [each.applied_index for each in trimmed.bases] == [30]
    assert trimmed.points == made.points[:1]
