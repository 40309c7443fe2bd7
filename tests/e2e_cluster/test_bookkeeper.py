"""The bookkeeper of the backup stories: what it calls missing, changed and extra."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from dledger.client import StoredRecord
from e2e.harness import bookkeeper

STORED = StoredRecord(
    record=bookkeeper.message(7), offset=3, index=4711, stored_at_ms=1_900_000_000_000
)
NOTED = bookkeeper.noted_of(STORED)
NOTES = {("demo", 0, 0): NOTED, ("demo", 1, 0): NOTED, ("other", 0, 0): NOTED}


def kinds(found: bookkeeper.Notes) -> tuple[int, int, int]:
    """Return how many are missing, changed and extra."""
    differences = bookkeeper.differences_of(NOTES, found)
    return differences["missing"], differences["changed"], differences["extra"]


def test_nothing_differs_from_itself() -> None:
    """The one result that lets the demo pass."""
    assert kinds(dict(NOTES)) == (0, 0, 0)


def test_a_message_that_moved_is_missing_and_extra() -> None:
    """Its place counts: topic, queue and offset."""
    moved = {**NOTES, ("demo", 1, 1): NOTES["demo", 1, 0]}
    del moved["demo", 1, 0]

    assert kinds(moved) == (1, 0, 1)


def test_any_part_of_a_message_that_changed_is_seen() -> None:
    """Whatever a reader gets, he gets as it was."""
    changes: list[dict[str, Any]] = [
        {"index": 1},
        {"message_id": "x"},
        {"body": "x"},
        {"tag": "x"},
        {"keys": ()},
        {"properties": ()},
        {"born_at_ms": 1},
        {"stored_at_ms": 1},
    ]

    for change in changes:
        changed = replace(NOTED, **change)
        assert kinds({**NOTES, ("demo", 0, 0): changed}) == (0, 1, 0), change


def test_one_bit_of_a_body_makes_another_note() -> None:
    """It is known by its SHA-256."""
    body = STORED.record.body
    flipped = replace(STORED, record=replace(STORED.record, body=body[:-1] + b"\0"))

    assert bookkeeper.noted_of(flipped) != NOTED


def test_notes_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    """With names that are not ASCII."""
    path = tmp_path / "notes"
    lines = (json.dumps([place, astuple(noted)]) for place, noted in NOTES.items())
    path.write_text("\n".join(lines) + "\n", "utf-8")

    assert bookkeeper.read_notes(path) == NOTES
    assert ("größe", "1024 Bytes") in NOTED.properties
