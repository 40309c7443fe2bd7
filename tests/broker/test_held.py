"""Held messages against a plain model, under leaders whose clocks are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import due_slots, held_bucket
from dledger.broker.held_refs import Kind
from tests.broker.held_model import MINUTE, Group

_DAY = 1440 * MINUTE
_Step = Callable[[Group], None]


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    """Seal every eight slots, so that a few dozen messages fill several pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_bucket, "PIECE", 8)
        patch.setattr(due_slots, "PIECE", 8)
        yield


_AFTER = st.sampled_from([-MINUTE, 0, 1, 50, MINUTE, 59 * MINUTE, 125 * MINUTE])
_STEP: st.SearchStrategy[_Step] = st.one_of(
    st.builds(
        lambda ids, after, kind, lost: (
            lambda group: group.hold(ids, after[: len(ids)], kind, lost=lost)
        ),
        st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True),
        st.lists(_AFTER, min_size=12, max_size=12),
        st.sampled_from([Kind.TIMER, Kind.TIMER, Kind.HALF]),
        st.booleans(),
    ),
    st.builds(lambda which: lambda group: group.hold_otherwise(which), st.integers(0, 30)),
    st.builds(lambda which: lambda group: group.send_late(which), st.integers(0, 30)),
    st.builds(lambda count: lambda group: group.produce(count), st.integers(1, 3)),
    st.builds(
        lambda ms: lambda group: group.wait(ms),
        st.sampled_from([1, 50, MINUTE, 61 * MINUTE, 200 * MINUTE]),
    ),
    st.builds(lambda ms: lambda group: group.clock(ms), st.sampled_from([0, _DAY, -60 * MINUTE])),
    st.builds(
        lambda most, twice: lambda group: group.release(most, twice=twice),
        st.integers(1, 5),
        st.booleans(),
    ),
    st.builds(
        lambda which, twice: lambda group: group.commit(which, twice=twice),
        st.integers(0, 30),
        st.booleans(),
    ),
    st.builds(lambda which: lambda group: group.release_late(which), st.integers(0, 30)),
    st.builds(lambda which: lambda group: group.cancel(which), st.integers(0, 100)),
    st.builds(lambda again: lambda group: group.pause(again=again), st.booleans()),
    st.builds(lambda cancels: lambda group: group.resume(cancels=cancels), st.booleans()),
    st.builds(
        lambda part, roll: lambda group: group.retain(part, roll=roll),
        st.integers(0, 100),
        st.booleans(),
    ),
    st.just(lambda group: group.restore()),
    st.just(lambda group: group.delete()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, min_size=15, max_size=40))
def test_all_that_is_held_is_as_in_a_plain_model(steps: list[_Step]) -> None:
    """Whoever leads: delivered or cancelled once, known again, in no dropped entry; all alike."""
    group = Group()
    for step in steps:
        step(group)
        group.check()
    group.check_frozen()
    group.resume(cancels=False)
    group.wait(2 * _DAY)
    group.release(1 << 20, twice=True)
    group.check()
    assert group.state.held.count == group.state.held.halves
