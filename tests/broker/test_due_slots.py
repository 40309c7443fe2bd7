"""What is due is told once and in order, whatever comes and goes between two looks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from dledger.broker.due_slots import DueSlots
from dledger.broker.editions import Edition
from dledger.broker.held_bucket import PIECE, Place
from dledger.broker.held_messages import HeldMessages
from dledger.broker.held_refs import HOUR_MS, Fate, HeldMessage, Kind, Ref
from dledger.broker.queue_positions import Payload

_T0 = 500_000 * HOUR_MS


def _held() -> HeldMessages:
    return HeldMessages(Edition())


def _hold(
    held: HeldMessages, due_ms: int, *, entry: int = 1, kind: Kind = Kind.TIMER, log_ms: int = _T0
) -> Ref:
    place = Place(entry, 5, 99, 0)
    hour = held.hour_of(due_ms, log_ms)
    return held.add(hour, due_ms, place, generation=1, kind=kind, size_bytes=94)


def _told(due: DueSlots, now_ms: int) -> list[HeldMessage]:
    return [message for part in due.until(now_ms) for message in part]


def _dues(messages: Sequence[HeldMessage]) -> list[int]:
    return [message.due_ms - _T0 for message in messages]


@pytest.mark.parametrize("width_ms", [1000, 60_000, 2 * HOUR_MS])
def test_each_is_told_once_when_it_is_due_and_in_order(width_ms: int) -> None:
    """Also thousands in one second, looked at in the middle of it."""
    held, rng = _held(), Random(1)
    dues = [rng.randrange(width_ms) for _ in range(5 * PIECE + 7)]
    for each in dues:
        _hold(held, _T0 + each)
    due, found = DueSlots(held), list[int]()

    for now_ms in (-1, 0, width_ms // 3, width_ms // 2 + 7, width_ms - 1, width_ms):
        told = _dues(_told(due, _T0 + now_ms))
        assert all(each <= now_ms for each in told)
        found += told

    assert found == sorted(dues)


def test_those_of_one_millisecond_are_in_the_order_in_which_they_came() -> None:
    """Which nobody is promised, and everybody expects."""
    held = _held()
    refs = [_hold(held, _T0 + 5) for _ in range(3 * PIECE)]

    assert [message.ref for message in _told(DueSlots(held), _T0 + 5)] == refs


def test_what_comes_between_two_looks_is_told_by_the_next() -> None:
    """For the second that is being told, for one that is past, and for one to come."""
    held = _held()
    for _ in range(3 * PIECE):
        _hold(held, _T0 + 999)
    _hold(held, _T0)
    due = DueSlots(held)
    assert _dues(_told(due, _T0 + 500)) == [0]

    for each in (700, 100, 2000, 999):
        _hold(held, _T0 + each)

    assert _dues(_told(due, _T0 + 998)) == [100, 700]
    assert _dues(_told(due, _T0 + 1999)) == [999] * (3 * PIECE + 1)
    assert _dues(_told(due, _T0 + 2000)) == [2000]


def test_what_is_called_by_a_later_hour_is_told_when_it_is_due() -> None:
    """A leader's clock was a day ahead: names are of its hour, and times are as they were."""
    held = _held()
    ahead_ms = _T0 + 24 * HOUR_MS
    refs = [_hold(held, _T0 + each, log_ms=ahead_ms) for each in (9, 5, 7)]
    assert {ref.hour for ref in refs} == {ahead_ms // HOUR_MS - 1}
    due = DueSlots(held)

    assert _dues(_told(due, _T0 + 5)) == [5]
    assert _dues(_told(due, _T0 + 9)) == [7, 9]


def test_what_is_let_go_is_not_told() -> None:
    """Recalled before it is due, even while its second is told."""
    held = _held()
    refs = [_hold(held, _T0 + each) for each in range(3 * PIECE)]
    held.remove(refs[1], Fate.CANCELLED)
    parts = DueSlots(held).until(_T0 + 3 * PIECE)
    first = next(part for part in parts if part)
    held.remove(refs[2 * PIECE], Fate.CANCELLED)

    told = {message.ref for message in first} | {each.ref for part in parts for each in part}

    assert told == {*refs} - {refs[1], refs[2 * PIECE]}


def test_what_is_moved_is_told_where_it_lies_now() -> None:
    """Its piece was opened before; another is there now."""
    held = _held()
    refs = [_hold(held, _T0 + each) for each in range(PIECE)]
    due = DueSlots(held)
    _told(due, _T0)

    held.move([refs[7]], Payload(9, 1, 2))

    (message,) = [each for each in _told(due, _T0 + PIECE) if each.ref == refs[7]]
    assert message.payload == Payload(9, 1, 2)


def test_what_is_given_back_is_told_again() -> None:
    """Once more, in its order, with those that are due by then."""
    held = _held()
    for each in (1, 2, 3):
        _hold(held, _T0 + each)
    due = DueSlots(held)
    told = _told(due, _T0 + 2)

    due.put_back(told[1:])

    assert _dues(_told(due, _T0 + 3)) == [2, 3]
    assert _told(due, _T0 + 3) == []


def test_each_kind_is_told_by_itself() -> None:
    """Whoever fires timers sees no halves, and who asks about halves no timers."""
    held = _held()
    _hold(held, _T0 + 1)
    _hold(held, _T0 + 2, kind=Kind.HALF)
    _hold(held, _T0 + 3)

    assert _dues(_told(DueSlots(held), _T0 + 9)) == [1, 3]
    assert _dues(_told(DueSlots(held, Kind.HALF), _T0 + 9)) == [2]


def test_what_waits_for_a_word_is_told_after_it() -> None:
    """What was held later is told at once."""
    held = _held()
    _hold(held, _T0 + 1)
    held.pause("restore")
    _hold(held, _T0 + 2)
    due = DueSlots(held)
    assert _dues(_told(due, _T0 + 9)) == [2]

    held.resume(cancels=False)

    assert _dues(_told(due, _T0 + 9)) == [1, 2]


def test_a_step_is_small() -> None:
    """However many are due at once: the loop has others to serve."""
    held, rng = _held(), Random(3)
    for _ in range(20 * PIECE):
        _hold(held, _T0 + rng.randrange(1000))

    parts = [len(part) for part in DueSlots(held).until(_T0 + 999)]

    assert sum(parts) == 20 * PIECE
    assert max(parts) <= 256
    assert not any(parts[:20]), "a piece at a time is taken in"
