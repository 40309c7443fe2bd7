"""Long work in a thread leaves the interpreter to the loop most of the time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dledger.common.pacing import in_short_turns


class _Clock:
    """Time that passes only where somebody works or sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def _made(clock: _Clock, count: int, piece_s: float) -> Iterator[int]:
    for number in range(count):
        clock.now_s += piece_s
        yield number


@pytest.mark.parametrize("piece_s", [0.0001, 0.0004, 0.001])
def test_work_takes_a_third_of_the_time_at_most(clock: _Clock, piece_s: float) -> None:
    """A turn ends with the piece that makes it 1 ms, and a rest of 4 ms follows."""
    assert list(in_short_turns(_made(clock, 1000, piece_s))) == list(range(1000))

    worked_s = 1000 * piece_s
    assert clock.slept_s > 2 * worked_s


def test_what_is_short_is_not_held_up(clock: _Clock) -> None:
    """A small state is written at once."""
    assert list(in_short_turns(_made(clock, 9, 0.0001))) == list(range(9))

    assert clock.slept_s == 0
