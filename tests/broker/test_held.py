"""Held messages against a plain model, under leaders whose clocks are wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import due_slots, held_bucket
from tests.broker.held_model import DAY, STEP, Group, Step


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    """Seal every eight slots, so that a few dozen messages fill several pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_bucket, "PIECE", 8)
        patch.setattr(due_slots, "PIECE", 8)
        yield


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=15, max_size=40))
def test_all_that_is_held_is_as_in_a_plain_model(steps: list[Step]) -> None:
    """Whoever leads: delivered or cancelled once, known again, in no dropped entry; all alike."""
    group = Group()
    for step in steps:
        step(group)
        group.check()
    group.check_frozen()
    group.resume(cancels=False)
    group.wait(2 * DAY)
    group.release(1 << 20, twice=True)
    group.check()
    assert group.state.held.count == group.state.held.halves
