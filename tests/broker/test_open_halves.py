"""Halves without an end: their number, their checks, and what is remembered of those that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import due_slots, held_bucket, open_halves
from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import CancelHeld, CheckHeld
from dledger.broker.held_refs import HOUR_MS, Fate, Kind, Ref
from dledger.broker.open_halves import OpenHalf
from dledger.broker.results import HeldCancelled, HeldChecked
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument, LimitReached
from tests.broker.held_model import MINUTE, T0, Group

_Step = Callable[["Halves"], None]


class Halves(Group):
    """A group whose leaders also check halves."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: dict[Ref, tuple[int, int]] = {}

    def check_half(self, which: int, after_ms: int) -> None:
        """Check a message, whatever it is and has become."""
        if not self.messages:
            return
        ref = sorted(self.messages)[which % len(self.messages)]
        wanted = self.messages[ref]
        next_ms = self.now_ms + after_ms
        (found,) = self.append(CheckHeld(refs=(ref,), next_ms=next_ms).encode())
        assert isinstance(found, HeldChecked)
        if wanted.kind is Kind.HALF and wanted.fate is Fate.HELD:
            self.checks[ref] = self.checks.get(ref, (0, 0))[0] + 1, next_ms
            assert found.checks == (self.checks[ref][0],)
        else:
            assert found.checks == (0,)

    def check(self) -> None:
        """Those are open that have no end, and are as often checked as that was committed."""
        super().check()
        for state in (self.state, self.other):
            halves = state.held.open_halves
            wanted = {
                ref: self.checks.get(ref, (0, message.due_ms))
                for ref, message in self.messages.items()
                if message.kind is Kind.HALF and message.fate is Fate.HELD
            }
            found = {ref: (half.checks, half.next_ms) for ref, half in halves.items()}
            assert found == wanted
            assert list(found) == sorted(wanted)
            assert len(halves) == state.held.halves == len(wanted)
            generations = [half.generation for _, half in halves.items()]
            for each in {*generations, self.generation}:
                assert halves.of_topic(each) == generations.count(each)
            since = [half.since_ms for _, half in halves.items()]
            assert halves.oldest_ms == min(since, default=None)


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    """Have several parts and pieces of a few dozen halves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_bucket, "PIECE", 8)
        patch.setattr(due_slots, "PIECE", 8)
        patch.setattr(open_halves, "_PART_BITS", 2)
        yield


_STEP: st.SearchStrategy[_Step] = st.one_of(
    st.builds(
        lambda ids, after, kind, lost: (
            lambda group: group.hold(ids, after[: len(ids)], kind, lost=lost)
        ),
        st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True),
        st.lists(st.sampled_from([0, MINUTE, 70 * MINUTE]), min_size=12, max_size=12),
        st.sampled_from([Kind.HALF, Kind.HALF, Kind.TIMER]),
        st.booleans(),
    ),
    st.builds(
        lambda which, after: lambda group: group.check_half(which, after),
        st.integers(0, 100),
        st.sampled_from([30_000, 60 * MINUTE]),
    ),
    st.builds(
        lambda which, twice: lambda group: group.commit(which, twice=twice),
        st.integers(0, 30),
        st.booleans(),
    ),
    st.builds(lambda which: lambda group: group.cancel(which), st.integers(0, 100)),
    st.builds(lambda ms: lambda group: group.wait(ms), st.sampled_from([1, MINUTE, 61 * MINUTE])),
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


@settings(max_examples=80, deadline=None)
@given(st.lists(_STEP, min_size=10, max_size=30))
def test_halves_are_open_until_their_first_end_in_any_history(steps: list[_Step]) -> None:
    """With their checks, on both replicas, one of which was restored."""
    group = Halves()
    for step in steps:
        step(group)
        group.check()
    group.check_frozen()


def test_an_end_is_remembered_for_an_hour_however_late_it_came() -> None:
    """The relay repeats it, and so may its producer."""
    group = Halves()
    group.hold([1], [0], Kind.HALF, lost=False)
    (ref,) = group.messages
    group.wait(30 * HOUR_MS)
    group.commit(0, twice=True)

    group.wait(HOUR_MS)
    late = _cancelled(group, ref)
    group.wait(HOUR_MS)

    assert late is Fate.DELIVERED
    assert _cancelled(group, ref) is Fate.UNKNOWN
    assert not group.state.held.buckets()


def _cancelled(group: Group, ref: Ref) -> Fate:
    (found,) = group.append(CancelHeld(refs=(ref,)).encode())
    assert isinstance(found, HeldCancelled)
    return found.before[0]


def test_so_many_halves_of_a_topic_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers do not count, nor what has an end; a refused command holds nothing."""
    monkeypatch.setattr(open_halves, "MAX_OPEN", 3)
    group = Halves()
    group.hold([9], [0], Kind.TIMER, lost=False)
    group.hold([1, 2], [0, 0], Kind.HALF, lost=False)

    (refused,) = group.append(group._command(["a", "b"], [T0, T0], Kind.HALF))

    assert isinstance(refused, LimitReached)
    assert "transactions of the topic" in str(refused)
    assert group.state.held.halves == 2
    group.commit(0, twice=False)
    group.hold([3, 4], [0, 0], Kind.HALF, lost=False)
    group.check()


def test_so_many_halves_of_all_topics_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_halves, "MAX_OPEN_IN_ALL", 2)
    group = Halves()
    group.hold([1, 2], [0, 0], Kind.HALF, lost=False)

    (refused,) = group.append(group._command(["a"], [T0], Kind.HALF))

    assert isinstance(refused, LimitReached)


def test_a_check_before_1970_is_malformed() -> None:
    """No snapshot could say so."""
    group = Halves()
    group.hold([1], [0], Kind.HALF, lost=False)

    (refused,) = group.append(frame(CommandType.CHECK_HELD, b'{"refs":[[1,1]],"next":-1}'))

    assert isinstance(refused, InvalidArgument)
    group.check()


@pytest.mark.parametrize(
    "half", [(Ref(5, 0), OpenHalf(1, 1, 0, 1)), (Ref(T0 // HOUR_MS, 0), OpenHalf(1, 1, 0, 1))]
)
def test_a_snapshot_with_other_halves_than_it_holds_is_refused(
    half: tuple[Ref, OpenHalf],
) -> None:
    """One that is not held, or is a timer."""
    group = Halves()
    group.hold([1], [0], Kind.TIMER, lost=False)
    group.state.held.open_halves.add(*half)

    with pytest.raises(MalformedStateError):
        BrokerState.decode(group.state.encode())
