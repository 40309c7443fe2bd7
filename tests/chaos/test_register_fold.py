"""Registers over the log: whoever folds the same messages gets the same answers."""

from __future__ import annotations

import json

from dledger.client import Record, StoredRecord
from e2e.chaos.history import Outcome
from e2e.chaos.register_clients import Fold


def folded(*asked: dict[str, object]) -> tuple[Fold, list[tuple[Outcome, int] | None]]:
    """Return the fold of a queue with these operations on key k, and their answers."""
    fold, answers = Fold(), []
    for offset, one in enumerate(asked):
        record = Record(body=json.dumps({"key": "k", **one}).encode())
        fold.apply(StoredRecord(record=record, offset=offset, index=offset + 1, stored_at_ms=0))
        answers.append(fold.answer)
    return fold, answers


def test_a_compare_and_set_takes_effect_only_where_it_matches() -> None:
    """Its place in the log decides, not when it was sent."""
    _, answers = folded(
        {"kind": "cas", "expected": 0, "value": 5},
        {"kind": "cas", "expected": 0, "value": 6},
        {"kind": "read"},
    )

    assert answers == [(Outcome.OK, 5), (Outcome.REFUSED, 5), (Outcome.OK, 5)]


def test_a_write_takes_effect_whatever_was_there() -> None:
    """And the next message is the one behind it."""
    fold, answers = folded({"kind": "write", "value": 3}, {"kind": "read"})

    assert answers[-1] == (Outcome.OK, 3)
    assert fold.next_offset == 2
