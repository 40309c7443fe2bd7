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


def frozen(**times: float) -> int:
    """Return how many objects are left out after a collection of the young, and a full one."""
    gc.callbacks.append(Freezing(**times))
    gc.collect(1)
    young = gc.get_freeze_count()
    gc.collect()
    assert young == 0
    return gc.get_freeze_count()


def test_what_a_slow_collection_walked_is_not_walked_again() -> None:
    """A full one: those of young objects are never slow for what is old."""
    assert frozen(slow_s=0, all_again_s=0) > len(gc.get_objects())


@pytest.mark.parametrize(
    "times",
    [{"slow_s": 3600, "all_again_s": 0}, {"slow_s": 0, "all_again_s": 3600}],
    ids=["quick", "young"],
)
def test_nothing_is_left_out_while_collections_are_quick_or_all_is_new(
    times: dict[str, float],
) -> None:
    """As in a small installation; and while groups are founded, what is there soon goes."""
    assert frozen(**times) == 0


def test_a_cycle_that_was_left_out_is_freed_in_the_end() -> None:
    """Else each slow collection could leave one behind."""
    gc.callbacks.append(Freezing(slow_s=0, all_again_s=0))
    knot = Knot()
    died = weakref.ref(knot)
    gc.collect()
    del knot
    gc.callbacks.clear()
    gc.collect()
    left = died() is not None

    gc.callbacks.append(Freezing(slow_s=0, all_again_s=0))
    gc.collect()

    assert left
    assert died() is None
