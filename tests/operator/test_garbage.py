"""What the operator leaves out of garbage collections, with Python's own collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dledger_operator.garbage import Freezing


class Knot:
    """An object that only a collection can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector as it was."""
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


def test_what_a_slow_collection_walked_is_not_walked_again() -> None:
    """A full one: those of young objects are never slow for what is old."""
    gc.callbacks.append(Freezing(slow_s=0))
    gc.collect(1)
    young = gc.get_freeze_count()
    gc.collect()

    assert young == 0
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_quick_collections_leave_nothing_out() -> None:
    """Each of a small installation's is."""
    gc.callbacks.append(Freezing(slow_s=3600))
    gc.collect()

    assert gc.get_freeze_count() == 0


def test_a_cycle_that_was_left_out_is_freed_in_the_end() -> None:
    """Else each slow collection could leave one behind."""
    freezing = Freezing(slow_s=0, all_again_s=3600)
    gc.callbacks.append(freezing)
    knot = Knot()
    died = weakref.ref(knot)
    gc.collect()
    del knot
    gc.collect()
    left = died() is not None

    gc.callbacks[-1] = Freezing(slow_s=0, all_again_s=0)
    gc.collect()

    assert left
    assert died() is None
